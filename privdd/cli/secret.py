"""The secret that noise is drawn with: how a command gets it, and how it stays out of every file.

It comes from the environment (``privdd.runtime.noise_secret``), or from ``privacy.secret=...``,
which the commands move there before anything else reads the command line (other users of the
machine can still see it in the list of processes)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from privdd.core.validation import BadConfig
from privdd.runtime.files import DamagedRun, read_json, write_json
from privdd.runtime.noise_secret import (
    SALT_BYTES,
    SECRET_FILE_VARIABLE,
    SECRET_VARIABLE,
    digest_secret,
    secret_of_environment,
)

if TYPE_CHECKING:
    from privdd.runtime.run_folder import RunFolder

SECRET_KEY = "privacy.secret"
MIN_SECRET_LENGTH = 16  # characters: whoever sees a run's noise can try short secrets one by one
MAKE_SECRET_HINT = "python -c 'import secrets; print(secrets.token_hex(16))' makes one"


def take_secret(argv: Sequence[str]) -> tuple[list[str], bool]:
    """(the arguments without ``privacy.secret=...``, whether it was among them).

    It becomes the environment variable of this process.
    """
    public = without_secret(argv)
    for item in argv:
        value = item.partition("=")[2]
        if item not in public and value.lower() != "null":
            os.environ[SECRET_VARIABLE] = _check_secret(value.strip("'\""))
    return public, len(public) < len(argv)


def without_secret(argv: Sequence[str]) -> list[str]:
    """The arguments as they may be written down."""
    return [item for item in argv if item.partition("=")[0].lstrip("+") != SECRET_KEY]


def secret_of_config(config: DictConfig) -> str | None:
    """The secret of a run with ``noise_source=secret``, None where none is given; of other runs,
    None.

    Raises BadConfig for a secret that is too short, and for one that would not be used.
    """
    secret = config.privacy.get("secret")
    if config.privacy.noise_source != "secret":
        if secret is not None:
            raise unused_secret_error()
        return None
    if secret is None:
        secret = secret_of_environment()
    return None if secret is None else _check_secret(secret)


def _check_secret(given: Any) -> str:
    """The secret as text. The message never holds it."""
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise BadConfig(f"{SECRET_KEY}: a text or a whole number is needed; {MAKE_SECRET_HINT}")
    if len(str(given)) < MIN_SECRET_LENGTH:
        raise BadConfig(
            f"{SECRET_KEY}: at least {MIN_SECRET_LENGTH} characters are needed; {MAKE_SECRET_HINT}"
        )
    return str(given)


def unused_secret_error() -> BadConfig:
    """Where a secret is given that draws no noise."""
    return BadConfig(f"{SECRET_KEY}: it is used with privacy.noise_source=secret only")


def missing_secret_error() -> BadConfig:
    """Where noise is to be drawn and no secret is given."""
    return BadConfig(
        "privacy.noise_source=secret: no secret is given (environment variable "
        f"{SECRET_VARIABLE}, or a file named by {SECRET_FILE_VARIABLE}); "
        f"{MAKE_SECRET_HINT}"
    )


def remove_secret(config: DictConfig) -> DictConfig:
    """The config as it is written down."""
    if config.privacy.get("secret") is None:
        return config
    stored = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
    stored.privacy.secret = None
    return stored  # type: ignore[return-value]


def check_same_secret(folder: RunFolder, config: DictConfig) -> None:
    """Refuse to go on with another secret than the folder's run began with; of a new run, keep what
    tells it.

    Kept is a salted scrypt digest, in ``state/secret.json``; a server whose clients hold the
    secrets keeps none. Raises BadConfig for another secret, DamagedRun where the file is missing or
    is none of privdd's."""
    if config.privacy.noise_source != "secret":
        return
    file = folder.path / "state" / "secret.json"
    secret = secret_of_config(config)
    if not folder.checkpoint_file.exists():
        record: dict[str, Any] = {"schema": 1, "held_by": "clients"}
        if secret is not None:
            salt = secrets.token_bytes(SALT_BYTES)
            record |= {"held_by": "here", "salt": salt.hex(), "scrypt": digest_secret(secret, salt)}
        write_json(file, record, private=True)
        return
    if secret is None:
        return
    record = read_json(file)
    if isinstance(record, dict) and record.get("held_by") == "clients":
        return
    if not _matches_record(secret, record, file):
        raise BadConfig(
            f"{folder.path}: began with another secret; give that one ({SECRET_VARIABLE})"
        )


def _matches_record(secret: str, kept: Any, file: Path) -> bool:
    try:
        salt = bytes.fromhex(kept["salt"])
        expected = str(kept["scrypt"])
    except (KeyError, TypeError, ValueError):
        raise DamagedRun(f"{file}: damaged (no salted digest of a secret)") from None
    return secrets.compare_digest(digest_secret(secret, salt).encode(), expected.encode())
