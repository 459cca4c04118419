"""Every file of a folder is listed; links, pipes and sockets are refused at any depth."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from privdd.runtime.files import DamagedRun, check_plain_folder, list_plain_files, read_bytes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b/c", "b/d/e"):
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_text(name)
    return tmp_path / "run"


def test_all_files_by_name(folder: Path) -> None:
    assert sorted(list_plain_files(folder)) == ["a", "b/c", "b/d/e"]
    (folder.parent / "link").symlink_to(folder)
    assert sorted(list_plain_files(folder.parent / "link")) == ["a", "b/c", "b/d/e"]  # the folder's own name was typed


@pytest.mark.parametrize("place", ["x", "b/d/x"])
@pytest.mark.parametrize("target", ["/etc/passwd", ".", "nowhere"])
def test_links_are_refused(folder: Path, place: str, target: str) -> None:
    (folder / place).symlink_to(target)
    with pytest.raises(DamagedRun, match="is a link"):
        check_plain_folder(folder)


def test_pipes_are_refused_and_never_opened(folder: Path) -> None:
    os.mkfifo(folder / "b" / "pipe")
    with pytest.raises(DamagedRun, match="neither a file nor a folder"):
        check_plain_folder(folder)
    with pytest.raises(DamagedRun, match="not a plain file"):
        read_bytes(folder / "b" / "pipe", 10)


def test_a_file_is_read_up_to_its_limit(folder: Path) -> None:
    assert read_bytes(folder / "a", 1) == b"a"
    with pytest.raises(DamagedRun, match="at most 0"):
        read_bytes(folder / "a", 0)
