"""The files of a run folder: digests in its manifest, values that clients sent against the ledger,
and who signed the manifest; one disagreement is a number that is not what the other files say.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privdd.core.types import unpack
from privdd.federated.aggregation import SUM_CLIENT
from privdd.federated.channel import digest_tensors
from privdd.privacy.ledger import Ledger
from privdd.runtime import run_folder, seal
from privdd.runtime.files import (
    DamagedRun,
    list_plain_files,
    printable,
    read_bytes,
    read_json,
    write_json,
)
from privdd.runtime.run_files import MANIFEST, SIGNATURE, is_own_file

# relative: between versions of SciPy and dp-accounting the last digits differ
RELATIVE_TOLERANCE = 1e-6
ARTIFACT_FILE = re.compile(r"artifacts/round_(\d+)/(?:client_(\d+)|sum)\.safetensors")
SIGNATURE_ALGORITHM = "ed25519"
ED25519 = "hazmat.primitives.asymmetric.ed25519"
MAX_KEY_BYTES = 2**16  # bytes


class Unverified(DamagedRun):
    """A run folder whose files contradict each other."""


@dataclass(frozen=True)
class Disagreement:
    """file: where the stored value stands; key: its dotted name; stored, found: in words."""

    file: str
    key: str
    stored: str
    found: str

    def __str__(self) -> str:
        return printable(f"{self.file}: {self.key}: stored {self.stored}, found {self.found}")


def find_disagreements(file: str, key: str, stored: Any, found: Any) -> Iterator[Disagreement]:
    """Every leaf of two plain values (mappings, lists, numbers, texts) that differs."""
    if isinstance(stored, Mapping) and isinstance(found, Mapping):
        for name in dict.fromkeys([*stored, *found]):
            yield from find_disagreements(file, f"{key}.{name}", stored.get(name), found.get(name))
    elif _is_list(stored) and _is_list(found) and len(stored) == len(found):
        for index, (stored_item, recomputed_item) in enumerate(zip(stored, found, strict=True)):
            yield from find_disagreements(file, f"{key}.{index}", stored_item, recomputed_item)
    elif not is_same_value(stored, found):
        yield Disagreement(file, key, _printable_value(stored), _printable_value(found))


_numbers: ContextVar[list[int] | None] = ContextVar("numbers", default=None)


@contextmanager
def count_comparisons() -> Iterator[list[int]]:
    """A list with one number, of the stored numbers that were compared meanwhile."""
    count = [0]
    mark = _numbers.set(count)
    try:
        yield count
    finally:
        _numbers.reset(mark)


def is_same_value(stored: Any, found: Any) -> bool:
    """Equal, or two numbers that differ by rounding; infinity may be written as "inf"."""
    if (
        (count := _numbers.get()) is not None
        and not isinstance(stored, bool)
        and _to_number(stored) is not None
    ):
        count[0] += 1
    if isinstance(stored, bool) or isinstance(found, bool) or stored is None or found is None:
        return stored is found
    stored_number = _to_number(stored)
    recomputed_number = _to_number(found)
    if stored_number is None or recomputed_number is None:
        return bool(stored == found)
    return math.isclose(stored_number, recomputed_number, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-9)


def _to_number(value: Any) -> float | None:
    if value in ("inf", "-inf"):
        return float(value)
    if isinstance(value, int | float):
        return float(value)
    return None


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _printable_value(value: Any) -> str:
    if value is None:
        return "nothing"
    text = str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def check_file_digests(folder: Path, manifest: Mapping[str, Any]) -> Iterator[Disagreement]:
    """Files that are missing or changed, and unlisted files that privdd would read."""
    listed = seal.listed_digests(manifest)
    digests = seal.file_digests(folder, listed.keys())
    if manifest.get(seal.SEAL_KEY) != (expected := seal.compute_seal(manifest)):
        yield Disagreement(
            MANIFEST, seal.SEAL_KEY, str(manifest.get(seal.SEAL_KEY))[:16], expected[:16]
        )
    for name in sorted({*listed} - seal.UNSEALED):
        if listed[name] != (digest := digests.get(name, "no such file")):
            yield Disagreement(name, "sha256", listed[name][:16], digest[:16])
    for name in sorted({*digests} - {*listed}):
        yield Disagreement(
            name, "sha256", "nothing (not listed in manifest.json)", digests[name][:16]
        )


def check_page_sources(folder: Path, manifest: Mapping[str, Any]) -> Iterator[Disagreement]:
    """The same check for the files alone that a page or a comparison is drawn from."""
    for name, stored, now in seal.list_changed_sources(folder, manifest):
        yield Disagreement(
            name, seal.SEAL_KEY if name == MANIFEST else "sha256", stored[:16], now[:16]
        )


def list_unlisted_files(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Files that the run did not write and that privdd does not read."""
    listed = seal.listed_digests(manifest)
    return sorted(
        name for name in list_plain_files(folder) if name not in listed and not is_own_file(name)
    )


def check_sent_values(folder: Path, ledger: Ledger) -> Iterator[Disagreement]:
    """Every kept value is the one that a row of the ledger was written for, bit by bit.

    Raises DamagedRun for a file that is not readable as safetensors.
    """
    rows = {
        (r.round, r.client, r.name): r.digest
        for r in ledger.releases
        if r.visible_to != ("analyst",)
    }
    for name in sorted(list_plain_files(folder)):
        match = ARTIFACT_FILE.fullmatch(name)
        if match is None:
            continue
        tensors = run_folder.read_tensors(folder / name)
        for sent in dict.fromkeys(key.split("/", 1)[0] for key in tensors):
            stored = rows.get(
                (int(match[1]), SUM_CLIENT if match[2] is None else int(match[2]), sent)
            )
            digest = digest_tensors(unpack(sent, tensors))
            if stored != digest:
                yield Disagreement(name, sent, f"{stored} in ledger.json", digest)


def sign_run(folder: Path, key: Path) -> Path:
    """Sign the manifest with a private key (PEM or OpenSSH, without a password); returns
    ``signature.json``.

    Raises DamagedRun for an unsealed folder or another kind of key.
    """
    private = _load_key(key, private=True)
    manifest = read_json(folder / MANIFEST)
    seal.listed_digests(manifest)
    signed = private.sign(seal.signed_bytes(manifest)).hex()
    public = private.public_key().public_bytes_raw().hex()
    write_json(
        folder / SIGNATURE,
        {"algorithm": SIGNATURE_ALGORITHM, "public_key": public, "signature": signed},
    )
    return folder / SIGNATURE


def check_signature(
    folder: Path, manifest: Any, key: Path | None
) -> tuple[str, list[Disagreement]]:
    """(the public key in hexadecimal, what is wrong with the signature).

    key: the public key of who should have signed; None: any key, which shows only that its holder
        signed. Raises DamagedRun where there is no signature, or one of another form.
    """
    stored = read_json(folder / SIGNATURE)
    fields = ("algorithm", "public_key", "signature")
    if not isinstance(stored, dict) or not all(
        isinstance(stored.get(name), str) for name in fields
    ):
        raise DamagedRun(f"{folder / SIGNATURE}: not a signature")
    if stored["algorithm"] != SIGNATURE_ALGORITHM:
        raise DamagedRun(
            f"{folder / SIGNATURE}: algorithm {stored['algorithm'][:40]!r}, needed is "
            f"{SIGNATURE_ALGORITHM}"
        )
    wrong = []
    if key is not None:
        expected = _load_key(key, private=False).public_bytes_raw().hex()
        if expected != stored["public_key"]:
            wrong.append(
                Disagreement(
                    SIGNATURE, "public_key", stored["public_key"][:64], f"{expected} in {key}"
                )
            )
    if not _is_valid_signature(
        stored["public_key"], stored["signature"], seal.signed_bytes(manifest)
    ):
        wrong.append(
            Disagreement(
                SIGNATURE, "signature", stored["signature"][:16], "does not hold for manifest.json"
            )
        )
    return stored["public_key"][:64], wrong


def _is_valid_signature(public: str, signature: str, data: bytes) -> bool:
    errors = _import_cryptography("exceptions")
    library = _import_cryptography(ED25519)
    try:
        library.Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(
            bytes.fromhex(signature), data
        )
    except (ValueError, errors.InvalidSignature):
        return False
    return True


def _load_key(file: Path, *, private: bool) -> Any:
    """A key without a password, in PEM or OpenSSH's form."""
    errors = _import_cryptography("exceptions")
    library = _import_cryptography("hazmat.primitives.serialization")
    data = read_bytes(file, MAX_KEY_BYTES)
    if b"OPENSSH" in data if private else data.startswith(b"ssh-"):
        form = "ssh"
    else:
        form = "pem"
    try:
        if private:
            key = getattr(library, f"load_{form}_private_key")(data, password=None)
        else:
            key = getattr(library, f"load_{form}_public_key")(data)
    except (ValueError, TypeError, errors.UnsupportedAlgorithm) as error:
        if private:
            what = "no private key without a password"
        else:
            what = "no public key"
        raise DamagedRun(f"{file}: {what} ({' '.join(str(error).split())[:80]})") from None
    key_class = _import_cryptography(ED25519)
    if not isinstance(key, key_class.Ed25519PrivateKey if private else key_class.Ed25519PublicKey):
        raise DamagedRun(f"{file}: not an Ed25519 key")
    return key


def _import_cryptography(part: str) -> Any:
    """A module of the package, which is optional."""
    try:
        return importlib.import_module(f"cryptography.{part}")
    except ImportError:
        raise DamagedRun(
            "signatures: the package cryptography is missing; pip install cryptography"
        ) from None
