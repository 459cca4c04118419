"""``privdd.runtime.noise_secret``: a worker reads its own copy, and is refused where it has none or
another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from privdd.core.rng import Keys
from privdd.core.validation import BadConfig
from privdd.runtime import noise_secret
from privdd.runtime.noise_secret import SECRET_FILE_VARIABLE, SECRET_VARIABLE, secret_of_environment
from privdd.runtime.task_messages import decode_value, encode_value

SECRET = "0123456789abcdef secret"
KEYS = Keys(3, ("noise",), SECRET.encode())


@pytest.fixture
def message(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Written by another process: this one has locked nothing."""
    written = encode_value(KEYS, locks_secrets=True)
    monkeypatch.setattr(noise_secret, "_locks", {})
    monkeypatch.setattr(noise_secret, "_secrets", {})
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    monkeypatch.delenv(SECRET_FILE_VARIABLE, raising=False)
    return written


def write_secret(path: Path, mode: int) -> Path:
    path.write_text(SECRET + "\n")
    path.chmod(mode)
    return path


def test_a_message_does_not_hold_the_secret(message: bytes) -> None:
    assert SECRET.encode() in encode_value(KEYS), "the search would find nothing anyway"
    assert SECRET.encode() not in message and SECRET.encode().hex().encode() not in message


def test_a_worker_takes_it_from_its_environment(
    message: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    assert decode_value(message) == KEYS and decode_value(message).private() == KEYS.private()


def test_a_worker_takes_it_from_its_file(
    message: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(SECRET_FILE_VARIABLE, str(write_secret(tmp_path / "secret", 0o600)))
    assert decode_value(message) == KEYS
    assert encode_value(decode_value(message), locks_secrets=True) == message, (
        "an answer would hold the secret"
    )


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_file_that_others_may_read_is_refused(
    mode: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    monkeypatch.setenv(SECRET_FILE_VARIABLE, str(write_secret(tmp_path / "secret", mode)))
    with pytest.raises(BadConfig, match=r"^PRIVDD_SECRET_FILE=.*0600"):
        secret_of_environment()


def test_a_link_a_pipe_and_nothing_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    (tmp_path / "link").symlink_to(write_secret(tmp_path / "secret", 0o600))
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("link", "pipe", "nothing"):
        monkeypatch.setenv(SECRET_FILE_VARIABLE, str(tmp_path / name))
        with pytest.raises(BadConfig, match=r"^PRIVDD_SECRET_FILE="):
            secret_of_environment()


def test_none_and_another_are_refused_and_the_line_holds_neither(
    message: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadConfig, match="a worker has no secret; set PRIVDD_SECRET"):
        decode_value(message)
    monkeypatch.setenv(SECRET_VARIABLE, "another secret of a node")
    with pytest.raises(BadConfig, match="holds another secret") as caught:
        decode_value(message)
    assert SECRET not in str(caught.value) and "another secret of" not in str(caught.value)
