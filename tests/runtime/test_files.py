"""JSON of run folders: every number is finite, and every refusal is one line that names the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from privdd.runtime.files import DamagedRun, read_json, write_bytes, write_json, write_parts
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
    assert flushed == [((tmp_path / "a").stat().st_ino, 9, False)]
