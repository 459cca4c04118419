"""Two processes cannot write one run folder; a dead one holds nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from privdd.cli.compose import compose_config
from privdd.cli.run import run_audit, run_training
from privdd.core.validation import BadConfig
from privdd.runtime.files import LOCK_FILE, lock_folder

ROOT = Path(__file__).parents[2]
HOLD = "import sys, time; from pathlib import Path; from privdd.runtime.files import lock_folder\nwith lock_folder(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
TINY = ["preset=smoke", "partition.clients=3", "data.limit=150", "model=mlp", "algo.rounds=1", "algo.local_epochs=1"]


def holder(folder: Path) -> subprocess.Popen[str]:
    """Another process that holds the folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize(("run", "command"), [(run_training, "train"), (run_audit, "audit")])
def test_a_folder_that_another_process_writes_is_refused(run, command: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    other = holder(folder)
    try:
        config = compose_config(command, [*TINY, *(["attack=[lira,loss_threshold]", "audit.worlds=4"] if command == "audit" else [])])
        with pytest.raises(BadConfig) as failure:
            run(config, folder, [])
        line = str(failure.value)
        assert f"process {other.pid} on " in line and line.startswith(str(folder)) and "\n" not in line
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


def test_two_are_never_inside_at_once(tmp_path: Path) -> None:
    """Processes that come and go: each that gets in finds nobody else's mark."""
    work = (
        "import sys, os, time; from pathlib import Path; from privdd.runtime.files import lock_folder\n"
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
    many = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) for _ in range(3)]
    told = [process.communicate(timeout=120) for process in many]
    assert [process.returncode for process in many] == [0, 0, 0], (told, time.monotonic() - began)
    assert sum(int(out) for out, _ in told) > 10
