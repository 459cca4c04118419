"""Tests of ``privdd.runtime.files``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from privdd.cli.compose import compose_config
from privdd.cli.run import run_audit, run_training
from privdd.core.validation import BadConfig
from privdd.runtime.files import (
    LOCK_FILE,
    DamagedRun,
    check_plain_folder,
    list_plain_files,
    lock_folder,
    read_bytes,
    read_json,
    write_bytes,
    write_json,
)
from tests.conftest import REAL_FSYNC

# JSON of run folders: every number is finite, and every refusal is one line that names the file.


@pytest.mark.parametrize(
    "text", ["", "{", '{"x": NaN}', '{"x": -Infinity}', '{"x": 1e999}', "[" * 99999]
)
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
        write_bytes(tmp_path / "a", parts())
    assert caught.value.filename == str(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (
        tmp_path / "a"
    ).read_bytes() == b"old"


def test_a_file_is_whole_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[tuple[int, int, bool]] = []

    def fsync(handle: int) -> None:
        REAL_FSYNC(handle)
        flushed.append(
            (os.fstat(handle).st_ino, os.fstat(handle).st_size, (tmp_path / "a").exists())
        )

    monkeypatch.setattr(os, "fsync", fsync)
    write_bytes(tmp_path / "a", b"all of it")
    inside, folder = flushed  # the file, and then the name that it has got
    assert inside == ((tmp_path / "a").stat().st_ino, 9, False)
    assert folder[0] == tmp_path.stat().st_ino and folder[2]


@pytest.mark.parametrize(
    ("umask", "private", "mode"),
    [(0o022, False, 0o644), (0o077, False, 0o600), (0o002, False, 0o664), (0o000, True, 0o600)],
)
def test_a_file_has_the_mode_that_the_umask_gives_or_is_private_from_the_first_byte(
    umask: int, private: bool, mode: int, tmp_path: Path
) -> None:
    seen: list[int] = []

    def parts() -> Iterator[bytes]:
        seen.extend(path.stat().st_mode & 0o777 for path in tmp_path.iterdir())
        yield b"content"

    before = os.umask(umask)
    try:
        write_bytes(tmp_path / "a", parts(), private=private)
    finally:
        os.umask(before)
    assert seen == [mode] and (tmp_path / "a").stat().st_mode & 0o777 == mode


# Two processes cannot write one run folder; a dead one holds nothing.


ROOT = Path(__file__).parents[2]
HOLD = (
    "import sys, time; from pathlib import Path; from privdd.runtime.files import "
    "lock_folder\nwith lock_folder(Path(sys.argv[1])): print('held', flush=True); "
    "time.sleep(600)"
)
TINY = [
    "preset=smoke",
    "partition.clients=3",
    "data.limit=150",
    "model=mlp",
    "algo.rounds=1",
    "algo.local_epochs=1",
]


def holder(folder: Path) -> subprocess.Popen[str]:
    """Another process that holds the folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize(("run", "command"), [(run_training, "train"), (run_audit, "audit")])
def test_a_folder_that_another_process_writes_is_refused(run, command: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    other = holder(folder)
    try:
        config = compose_config(
            command,
            [
                *TINY,
                *(["attack=[lira,loss_threshold]", "audit.worlds=4"] if command == "audit" else []),
            ],
        )
        with pytest.raises(BadConfig) as failure:
            run(config, folder, [])
        line = str(failure.value)
        assert (
            f"process {other.pid} on " in line and line.startswith(str(folder)) and "\n" not in line
        )
        assert [p.name for p in folder.iterdir()] == [LOCK_FILE]  # nothing was written beside it
    finally:
        other.kill()
        other.wait()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    other = holder(tmp_path)
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert (tmp_path / LOCK_FILE).is_file()  # it could not clean up
    assert run_training(compose_config("train", TINY), tmp_path, []) == 0
    assert not (tmp_path / LOCK_FILE).exists()


def test_the_folder_is_free_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lock_folder(tmp_path):
        with pytest.raises(BadConfig, match=f"process {os.getpid()} on"), lock_folder(tmp_path):
            pass
        raise ZeroDivisionError
    with lock_folder(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_two_are_never_inside_at_once(tmp_path: Path) -> None:
    """Processes that come and go: each that gets in finds nobody else's mark."""
    work = (
        "import sys, os, time; from pathlib import Path; from privdd.runtime.files "
        "import lock_folder\n"
        "folder, won = Path(sys.argv[1]), 0\n"
        "end = time.monotonic() + 3\n"
        "while time.monotonic() < end:\n"
        "    try:\n"
        "        with lock_folder(folder):\n"
        "            os.close(os.open(folder / 'inside', os.O_CREAT | os.O_EXCL)); won += 1\n"
        "            os.unlink(folder / 'inside')\n"
        "    except ValueError: pass\n"
        "print(won)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-c", work, str(tmp_path)]
    began = time.monotonic()
    many = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(3)
    ]
    told = [process.communicate(timeout=120) for process in many]
    assert [process.returncode for process in many] == [0, 0, 0], (told, time.monotonic() - began)
    assert sum(int(out) for out, _ in told) > 10


# Every file of a folder is listed; links, pipes and sockets are refused at any depth.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b/c", "b/d/e"):
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_text(name)
    return tmp_path / "run"


def test_all_files_by_name(folder: Path) -> None:
    assert sorted(list_plain_files(folder)) == ["a", "b/c", "b/d/e"]
    (folder.parent / "link").symlink_to(folder)
    assert sorted(list_plain_files(folder.parent / "link")) == [
        "a",
        "b/c",
        "b/d/e",
    ]  # the folder's own name was typed


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
