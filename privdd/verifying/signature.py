"""Who vouches for a run: an Ed25519 signature over its manifest, and through it over every file of the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from privdd.runtime.files import DamagedRun, read_bytes, read_json, write_json
from privdd.runtime.seal import MANIFEST, SIGNATURE, signed_part
from privdd.verifying.disagreement import Disagreement
from privdd.verifying.file_digests import sealed_files

ALGORITHM = "ed25519"
LARGEST_KEY = 2**16  # bytes


def sign(folder: Path, key: Path) -> Path:
    """Sign the manifest with a private key (PEM or OpenSSH, without a password); returns ``signature.json``.

    Raises DamagedRun for an unsealed folder or another kind of key.
    """
    private, manifest = _private(key), read_json(folder / MANIFEST)
    sealed_files(manifest)
    signed = private.sign(signed_part(manifest)).hex()
    public = private.public_key().public_bytes_raw().hex()
    write_json(folder / SIGNATURE, {"algorithm": ALGORITHM, "public_key": public, "signature": signed})
    return folder / SIGNATURE


def check_signature(folder: Path, manifest: Any, key: Path | None) -> tuple[str, list[Disagreement]]:
    """(the public key in hexadecimal, what is wrong with the signature).

    key: the public key of who should have signed; None: any key, which shows only that its holder signed. Raises
    DamagedRun where there is no signature, or one of another form.
    """
    stored = read_json(folder / SIGNATURE)
    fields = ("algorithm", "public_key", "signature")
    if not isinstance(stored, dict) or not all(isinstance(stored.get(name), str) for name in fields):
        raise DamagedRun(f"{folder / SIGNATURE}: not a signature")
    if stored["algorithm"] != ALGORITHM:
        raise DamagedRun(f"{folder / SIGNATURE}: algorithm {stored['algorithm'][:40]!r}, needed is {ALGORITHM}")
    wrong = []
    if key is not None and (expected := _public(key)) != stored["public_key"]:
        wrong.append(Disagreement(SIGNATURE, "public_key", stored["public_key"][:64], f"{expected} in {key}"))
    if not _holds(stored["public_key"], stored["signature"], signed_part(manifest)):
        wrong.append(Disagreement(SIGNATURE, "signature", stored["signature"][:16], "does not hold for manifest.json"))
    return stored["public_key"][:64], wrong


def _holds(public: str, signature: str, data: bytes) -> bool:
    library = _library()
    try:
        known = library.ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        known.verify(bytes.fromhex(signature), data)
    except (ValueError, library.InvalidSignature):
        return False
    return True


def _private(file: Path) -> Any:
    library, data = _library(), read_bytes(file, LARGEST_KEY)
    load = library.load_ssh_private_key if b"OPENSSH" in data else library.load_pem_private_key
    what = "no private key without a password"
    return _key(file, lambda: load(data, password=None), library.ed25519.Ed25519PrivateKey, what)


def _public(file: Path) -> str:
    library, data = _library(), read_bytes(file, LARGEST_KEY)
    load = library.load_ssh_public_key if data.startswith(b"ssh-") else library.load_pem_public_key
    key = _key(file, lambda: load(data), library.ed25519.Ed25519PublicKey, "no public key")
    return key.public_bytes_raw().hex()


def _key(file: Path, load: Callable[[], Any], kind: type, otherwise: str) -> Any:
    try:
        key = load()
    except (ValueError, TypeError, _library().UnsupportedAlgorithm) as error:
        raise DamagedRun(f"{file}: {otherwise} ({' '.join(str(error).split())[:80]})") from None
    if not isinstance(key, kind):
        raise DamagedRun(f"{file}: not an Ed25519 key")
    return key


class _Cryptography:
    """The parts of ``cryptography`` that are used."""

    def __init__(self) -> None:
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519

        self.InvalidSignature, self.UnsupportedAlgorithm, self.ed25519 = InvalidSignature, UnsupportedAlgorithm, ed25519
        self.load_pem_private_key = serialization.load_pem_private_key
        self.load_ssh_private_key = serialization.load_ssh_private_key
        self.load_pem_public_key = serialization.load_pem_public_key
        self.load_ssh_public_key = serialization.load_ssh_public_key


def _library() -> _Cryptography:
    try:
        return _Cryptography()
    except ImportError:
        raise DamagedRun("signatures: the package cryptography is missing; pip install 'privdd[sign]'") from None
