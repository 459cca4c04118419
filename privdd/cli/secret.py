"""The secret that noise is drawn with: how a command gets it, and how it stays out of every file.

It comes from the environment variable PRIVDD_SECRET, or from ``privacy.secret=...``, which the commands move there before
anything else reads the command line (other users of the machine can still see it in the list of processes).
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from privdd.core.errors import BadConfig
from privdd.runtime.files import DamagedRun, read_json, write_json

if TYPE_CHECKING:
    from privdd.runtime.run_folder import RunFolder

VARIABLE = "PRIVDD_SECRET"
KEY = "privacy.secret"
LEAST = 16  # characters: whoever sees a run's noise can try short secrets one by one
MAKE = "python -c 'import secrets; print(secrets.token_hex(16))' makes one"
COST = {"n": 2**14, "r": 8, "p": 1}  # of scrypt (RFC 7914): some 50 ms a try


def taken(argv: Sequence[str]) -> tuple[list[str], bool]:
    """(the arguments without ``privacy.secret=...``, whether it was among them).

    It becomes the environment variable of this process.
    """
    kept = without(argv)
    for item in argv:
        value = item.partition("=")[2]
        if item not in kept and value.lower() != "null":
            os.environ[VARIABLE] = _checked(value.strip("'\""))
    return kept, len(kept) < len(argv)


def without(argv: Sequence[str]) -> list[str]:
    """The arguments as they may be written down."""
    return [item for item in argv if item.partition("=")[0].lstrip("+") != KEY]


def secret_of(config: DictConfig) -> str | None:
    """The secret of a run with ``noise_source=secret``, None where none is given; of other runs, None.

    Raises BadConfig for a secret that is too short, and for one that would not be used.
    """
    given = config.privacy.get("secret")
    if config.privacy.noise_source != "secret":
        if given is not None:
            raise unused()
        return None
    if given is None:
        given = os.environ.get(VARIABLE) or None
    return None if given is None else _checked(given)


def _checked(given: Any) -> str:
    """The secret as text. The message never holds it."""
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise BadConfig(f"{KEY}: a text or a whole number is needed; {MAKE}")
    if len(str(given)) < LEAST:
        raise BadConfig(f"{KEY}: at least {LEAST} characters are needed; {MAKE}")
    return str(given)


def unused() -> BadConfig:
    """Where a secret is given that draws no noise."""
    return BadConfig(f"{KEY}: it is used with privacy.noise_source=secret only")


def needed() -> BadConfig:
    """Where noise is to be drawn and no secret is given."""
    return BadConfig(f"privacy.noise_source=secret: no secret is given (environment variable {VARIABLE}); {MAKE}")


def storable(config: DictConfig) -> DictConfig:
    """The config as it is written down."""
    if config.privacy.get("secret") is None:
        return config
    stored = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
    stored.privacy.secret = None
    return stored  # type: ignore[return-value]


def recognise(folder: RunFolder, config: DictConfig) -> None:
    """Refuse to go on with another secret than the folder's run began with; of a new run, keep what tells it.

    Kept is a salted scrypt digest, in ``state/secret.json``; a server whose clients hold the secrets keeps none.
    Raises BadConfig for another secret, DamagedRun where the file is missing or is none of privdd's.
    """
    if config.privacy.noise_source != "secret":
        return
    file, secret = folder.path / "state" / "secret.json", secret_of(config)
    if not folder.checkpoint.exists():
        write_json(file, {"schema": 1, "held_by": "clients"} if secret is None else _kept(secret), private=True)
        return
    if secret is None:
        return
    kept = read_json(file)
    if isinstance(kept, dict) and kept.get("held_by") == "clients":
        return
    if not _same(secret, kept, file):
        raise BadConfig(f"{folder.path}: began with another secret; give that one ({VARIABLE})")


def _kept(secret: str) -> dict[str, Any]:
    salt = secrets.token_bytes(16)
    return {"schema": 1, "held_by": "here", "salt": salt.hex(), "scrypt": _digest(secret, salt)}


def _digest(secret: str, salt: bytes) -> str:
    return hashlib.scrypt(secret.encode(), salt=salt, dklen=32, **COST).hex()


def _same(secret: str, kept: Any, file: Path) -> bool:
    try:
        salt, expected = bytes.fromhex(kept["salt"]), str(kept["scrypt"])
    except (KeyError, TypeError, ValueError):
        raise DamagedRun(f"{file}: damaged (no salted digest of a secret)") from None
    return secrets.compare_digest(_digest(secret, salt).encode(), expected.encode())
