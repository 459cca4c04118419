"""JSON of run folders: every number is finite, and every refusal is one line that names the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from privdd.runtime.files import DamagedRun, is_half_written, read_json, write_bytes, write_json, write_parts
from tests.conftest import REAL_FSYNC


@pytest.mark.parametrize("text", ["", "{", '{"x": NaN}', '{"x": -Infinity}', '{"x": 1e999}', "[" * 99999])
def test_what_is_no_finite_json_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DamagedRun) as caught:
        read_json(tmp_path / "a.json")
    assert "\n" not in str(caught.value) and "a.json" in str(caught.value)


def test_finite_json_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": [1, 2.5, "inf", null]}')
    assert read_json(tmp_path / "a.json") == {"x": [1, 2.5, "inf", None]}


def test_nan_is_not_written(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": 1.5})
    with pytest.raises(ValueError, match="NaN"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert read_json(tmp_path / "a.json") == {"x": 1.5}


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield b"half"
        raise OSError(28, "No space left on device")

    write_bytes(tmp_path / "a", b"old")
    with pytest.raises(OSError, match="No space left") as caught:
        write_parts(tmp_path / "a", parts())
    assert caught.value.filename == str(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_bytes() == b"old"


def test_a_file_is_whole_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[tuple[int, int, bool]] = []

    def fsync(handle: int) -> None:
        REAL_FSYNC(handle)
        flushed.append((os.fstat(handle).st_ino, os.fstat(handle).st_size, (tmp_path / "a").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_bytes(tmp_path / "a", b"all of it")
    inside, folder = flushed  # the file, and then the name that it has got
    assert inside == ((tmp_path / "a").stat().st_ino, 9, False)
    assert folder[0] == tmp_path.stat().st_ino and folder[2]


@pytest.mark.parametrize(("umask", "private", "mode"), [(0o022, False, 0o644), (0o077, False, 0o600), (0o002, False, 0o664), (0o000, True, 0o600)])
def test_a_file_has_the_mode_that_the_umask_gives_or_is_private_from_the_first_byte(
    umask: int, private: bool, mode: int, tmp_path: Path
) -> None:
    seen: list[int] = []

    def parts() -> Iterator[bytes]:
        seen.extend(path.stat().st_mode & 0o777 for path in tmp_path.iterdir())
        yield b"content"

    before = os.umask(umask)
    try:
        write_parts(tmp_path / "a", parts(), private=private)
    finally:
        os.umask(before)
    assert seen == [mode] and (tmp_path / "a").stat().st_mode & 0o777 == mode


def test_what_a_killed_process_left_is_known_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "update.lira.safetensors", b"half")
    assert [is_half_written(f"evidence/{path.name}") for path in tmp_path.iterdir()] == [True]
    for name in (".update.lira.safetensors.ab12cd", ".config.yaml.k3_x9a1b"):
        assert is_half_written(name)
    for name in (".gitignore", ".lock", "evidence/update.lira.safetensors", ".hydra/config.yaml", "a/.hidden.json"):
        assert not is_half_written(name)
