"""The secret that noise is drawn with, in this process and in workers: where it is read, and how it
is compared.

It never travels. A message holds a salted scrypt digest (RFC 7914) in its place, and the worker
reads its own copy: from the environment variable PRIVDD_SECRET, or from the file that
PRIVDD_SECRET_FILE names, which nobody else may read."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from privdd.core.validation import BadConfig

SECRET_VARIABLE = "PRIVDD_SECRET"
SECRET_FILE_VARIABLE = "PRIVDD_SECRET_FILE"
SCRYPT_COST = {"n": 2**14, "r": 8, "p": 1}  # of scrypt (RFC 7914): some 50 ms a try
SALT_BYTES = 16
MAX_SECRET_FILE_BYTES = 4096
READABLE_BY_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def digest_secret(secret: str | bytes, salt: bytes) -> str:
    """The salted digest of a secret, 64 hexadecimal digits; slow, so that short secrets cannot be
    tried one by one."""
    if isinstance(secret, str):
        content = secret.encode()
    else:
        content = secret
    return hashlib.scrypt(content, salt=salt, dklen=32, **SCRYPT_COST).hex()


def secret_of_environment() -> str | None:
    """The secret of PRIVDD_SECRET, else of the file that PRIVDD_SECRET_FILE names; None where
    neither is set.

    Raises BadConfig for a file that cannot be read, is no plain file, or is readable by others.
    """
    if secret := os.environ.get(SECRET_VARIABLE):
        return secret
    name = os.environ.get(SECRET_FILE_VARIABLE)
    return _read_secret_file(Path(name)) if name else None


def _read_secret_file(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise BadConfig(f"{SECRET_FILE_VARIABLE}={path}: {error.strerror}") from None
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode) or mode & READABLE_BY_OTHERS:
            raise BadConfig(
                f"{SECRET_FILE_VARIABLE}={path}: a plain file that nobody else may read "
                "(0600) is needed"
            )
        content = file.read(MAX_SECRET_FILE_BYTES)
    try:
        return content.decode().strip()
    except UnicodeDecodeError:
        raise BadConfig(f"{SECRET_FILE_VARIABLE}={path}: a line of text is needed") from None


@dataclass(frozen=True)
class SecretLock:
    """What stands for a secret in a message: who holds the same secret can tell. salt, digest:
    hexadecimal."""

    salt: str
    digest: str


_locks: dict[bytes, SecretLock] = {}  # secrets that this process has locked or unlocked
_secrets: dict[SecretLock, bytes] = {}


def lock_secret(secret: bytes) -> SecretLock:
    """The lock of a secret, the same for as long as the process lives."""
    if secret not in _locks:
        salt = secrets.token_bytes(SALT_BYTES)
        _keep_secret(secret, SecretLock(salt.hex(), digest_secret(secret, salt)))
    return _locks[secret]


def unlock_secret(lock: SecretLock) -> bytes:
    """The secret that ``lock`` stands for, as this process holds it. Raises BadConfig where it
    holds another or none."""
    if lock not in _secrets:
        secret = secret_of_environment()
        if secret is None:
            raise BadConfig(
                "privacy.noise_source=secret: a worker has no secret; set "
                f"{SECRET_VARIABLE} or {SECRET_FILE_VARIABLE} "
                "where its node is started, before it is started"
            )
        if digest_secret(secret, bytes.fromhex(lock.salt)) != lock.digest:
            raise BadConfig(
                "privacy.noise_source=secret: a worker holds another secret than this run's"
            )
        _keep_secret(secret.encode(), lock)
    return _secrets[lock]


def _keep_secret(secret: bytes, lock: SecretLock) -> None:
    _locks[secret] = lock
    _secrets[lock] = secret
