"""A run deletes and overwrites only what a run wrote, and begins in no folder that holds anything
else."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
from pathlib import Path

import pytest

from privdd.core.validation import BadConfig
from privdd.runtime import files
from privdd.runtime.files import DamagedRun, lock_folder
from privdd.runtime.run_files import (
    check_run_folder,
    hold_run_folder,
    is_own_file,
    is_run_folder,
    remove_half_written,
)

CONFIG = "algo: {}\ndata: {}\npartition: {}\nprivacy: {}\n"
LEFT = ".privdd-partial.17.0123456789abcdef"
USERS_FILES = (
    ".env.local.example",
    ".env.prod.secrets",
    "app/.htpasswd.v1.backup",
    ".privdd-partial.mine",
    ".a.json.0a1b2c3d",
)


def write_files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    "name",
    [
        *USERS_FILES,
        "config.yaml",
        "ledger.json",
        "findings.json",
        "manifest.json",
        "evidence/a.safetensors",
    ],
)
def test_a_new_run_is_refused_in_a_folder_that_holds_a_file(name: str, tmp_path: Path) -> None:
    write_files(tmp_path, name)
    before = contents(tmp_path)
    with (
        pytest.raises(BadConfig, match="holds files of something else") as caught,
        hold_run_folder(tmp_path),
    ):
        pass
    assert name in str(caught.value) and "\n" not in str(caught.value)
    remove_half_written(tmp_path)
    assert contents(tmp_path) == before


def test_an_empty_folder_and_what_a_killed_start_left_are_no_reason_to_refuse(
    tmp_path: Path,
) -> None:
    check_run_folder(tmp_path / "missing")
    check_run_folder(tmp_path)
    (tmp_path / LEFT).write_text("algo: {")
    (tmp_path / ".lock").write_text("process 17 on host")
    with hold_run_folder(tmp_path):
        assert (tmp_path / LEFT).exists()


def test_half_written_files_go_from_a_run_and_from_nowhere_else(tmp_path: Path) -> None:
    places = (LEFT, f"evidence/{LEFT}", f"state/round_0001/{LEFT}", f"app/{LEFT}")
    write_files(tmp_path, *places, *USERS_FILES)
    remove_half_written(tmp_path)
    assert {*places} <= contents(tmp_path).keys(), "the folder does not prove to be a run"
    (tmp_path / "config.yaml").write_text(CONFIG)
    check_run_folder(tmp_path)
    remove_half_written(tmp_path)
    assert contents(tmp_path).keys() == {"config.yaml", f"app/{LEFT}", *USERS_FILES}


@pytest.mark.parametrize(
    ("name", "text", "is_run"),
    [
        ("config.yaml", CONFIG, True),
        ("config.yaml", "algo: {}\n", False),
        ("config.yaml", "- 1\n", False),
        ("config.yaml", CONFIG + "loop: &l [*l]\n", False),
        (
            "manifest.json",
            json.dumps({"schema": 1, "version": "4", "seed": 0, "command": []}),
            True,
        ),
        ("manifest.json", json.dumps({"name": "a web page", "version": "4"}), False),
        ("manifest.json", "[]", False),
    ],
)
def test_a_folder_proves_to_be_a_run_by_its_config_or_manifest(
    name: str, text: str, is_run: bool, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    assert is_run_folder(tmp_path) is is_run


def test_own_files_are_told_by_their_whole_name() -> None:
    own = (
        "config.yaml",
        "state/checkpoint.json",
        "state/round_0001/server.safetensors",
        "worlds/ab/world_0000.safetensors",
    )
    own += (
        "evidence/update.lira.safetensors",
        "figures/roc.svg",
        "artifacts/round_000/client_0.safetensors",
    )
    assert all(is_own_file(name) for name in own)
    foreign = (
        "evidence/notes.txt",
        "figures/a/b.svg",
        "app/config.yaml",
        "state/a/b/c.json",
        "artifacts/x.safetensors",
        "main.log",
    )
    assert not any(is_own_file(name) for name in foreign)


def test_a_link_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    folder = tmp_path / "run"
    target.write_text("precious")
    folder.mkdir()
    (folder / "config.yaml").write_text(CONFIG)
    (folder / ".lock").symlink_to(target)
    with pytest.raises(DamagedRun, match="is a link"), hold_run_folder(folder):
        pass
    assert target.read_text() == "precious" and (folder / ".lock").is_symlink()


@pytest.mark.parametrize("kind", ["link", "dangling", "hard link", "pipe", "folder", "text"])
def test_what_is_no_lock_of_privdd_is_neither_written_nor_removed(
    kind: str, tmp_path: Path
) -> None:
    target = tmp_path / "precious"
    folder = tmp_path / "run"
    folder.mkdir()
    file = folder / ".lock"
    if kind != "dangling":
        target.write_text("precious")
    if kind in ("link", "dangling"):
        file.symlink_to(target)
    elif kind == "hard link":
        file.hardlink_to(target)
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.write_text("of another program")
    with (
        pytest.raises(BadConfig, match=r"\.lock: a link, or no lock of privdd's"),
        lock_folder(folder),
    ):
        pass
    assert os.path.lexists(file) and target.exists() is (kind != "dangling")
    assert kind == "dangling" or target.read_text() == "precious"
    assert kind != "text" or file.read_text() == "of another program"


def test_a_file_system_without_locks_has_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with caplog.at_level(logging.WARNING, "privdd"), lock_folder(tmp_path):
        assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()}")
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}: this file system has no locks; let no other run write there meanwhile"
    ]
    assert not (tmp_path / ".lock").exists()
    monkeypatch.setattr(
        fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "broken"))
    )
    with pytest.raises(OSError, match="broken"), lock_folder(tmp_path):
        pass


def test_what_privdd_writes_at_once_has_a_name_that_nobody_else_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    with pytest.raises(KeyboardInterrupt):
        files.write_bytes(tmp_path / "evidence" / "update.lira.safetensors", b"half")
    (left,) = (tmp_path / "evidence").iterdir()
    assert left.name.startswith(f".privdd-partial.{os.getpid()}.") and files.is_half_written(
        f"evidence/{left.name}"
    )
