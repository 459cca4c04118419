"""A run that was killed, stopped or starved of disk goes on to the result of an undisturbed one."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from privdd.cli import main as command
from privdd.cli.compose import compose_config
from privdd.cli.errors import explain_error, run_guarded
from privdd.cli.run import prepare_run_folder, run_training
from privdd.cli.stored_config import load_stored_config
from privdd.core.validation import BadConfig
from privdd.runtime import files as store
from privdd.runtime.files import DamagedRun

pytestmark = pytest.mark.nightly

HERE = Path(__file__).parent
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), *sys.path]),
}
TINY = [
    "preset=smoke",
    "partition.clients=3",
    "data.limit=150",
    "model=mlp",
    "algo.rounds=3",
    "algo.local_epochs=1",
]


def test_killed_audits_resume_to_the_same_result(tmp_path: Path) -> None:
    """PRIVDD_KILLS=10 kills ten times; the seed is new each time and shown on failure."""
    kills = int(os.environ.get("PRIVDD_KILLS", "2"))
    seed = random.SystemRandom().randrange(10**6)
    command = [sys.executable, str(HERE / "kill_harness.py"), str(tmp_path), str(kills), str(seed)]
    done = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=150 * (kills + 4)
    )
    assert done.returncode == 0, done.stderr
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(seen) == kills
    assert any(one["killed"] for one in seen), f"seed {seed}: no kill struck in time: {seen}"
    assert all(one["same"] for one in seen), f"seed {seed}: {seen}"


def command_line(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "privdd.train", *arguments]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def test_ctrl_c_says_how_to_resume_and_resume_takes_no_other_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    long = [*TINY, "algo.rounds=100000", f"hydra.run.dir={run}"]
    process = command_line(*long, folder=tmp_path)
    deadline = time.monotonic() + 600
    while not (run / "artifacts" / "round_002").is_dir():
        assert time.monotonic() < deadline and process.poll() is None, "no round was finished"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert f"resume with: python -m privdd.train resume={run}" in err and "Traceback" not in err
    monkeypatch.setattr(sys, "argv", ["privdd-train", f"resume={run}", "algo.rounds=3"])
    GlobalHydra.instance().clear()
    assert command.main("train", run_training) == 1
    err = capsys.readouterr().err
    assert err.count("privdd: error:") == 1 and "only engine can be changed" in err


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    settings = compose_config("train", TINY)
    assert run_training(settings, tmp_path, []) == 0
    assert prepare_run_folder(
        tmp_path, compose_config("train", [*TINY, "engine=processes"])
    )  # does not decide what is sent
    with pytest.raises(BadConfig, match=r"another config.*seed"):
        prepare_run_folder(tmp_path, compose_config("train", [*TINY, "seed=1"]))
    with pytest.raises(BadConfig, match=r"another config.*algo"):
        run_training(compose_config("train", [*TINY, "algo.lr=0.01"]), tmp_path, [])


def test_a_finished_training_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_training(compose_config("train", TINY), tmp_path, [])
    before = json.loads((tmp_path / "training.json").read_text())
    (tmp_path / "ledger.json").unlink()
    monkeypatch.setattr("privdd.federated.trainer.run_round", None)  # a round would fail
    run_training(load_stored_config(tmp_path), tmp_path, [])
    assert json.loads((tmp_path / "training.json").read_text()) == before
    assert (tmp_path / "ledger.json").is_file()


@pytest.mark.parametrize("moment", [1, 4, 9, 14])
def test_a_full_disk_is_one_line_and_keeps_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], moment: int
) -> None:
    """The moment-th file does not fit; everything before it stays, and the run goes on once there
    is room."""
    monkeypatch.setattr("privdd.federated.trainer.CHECKPOINT_EVERY", 0.0)
    whole = tmp_path / "whole"
    starved = tmp_path / "starved"
    run_training(compose_config("train", TINY), whole, [])
    real = os.fsync
    count = 0

    def full(handle: int) -> None:
        nonlocal count
        count += 1
        if count >= moment:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(store.os, "fsync", full)
    capsys.readouterr()
    assert run_guarded(lambda: run_training(compose_config("train", TINY), starved, [])) == 1
    error = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("privdd: error")
    ]
    assert len(error) == 1 and "no space left" in error[0] and str(starved) in error[0]
    kept = [p for p in starved.rglob("*") if p.is_file()]
    assert len(kept) >= min(moment - 1, 8) // 2 and not [p for p in kept if p.name.startswith(".")]
    monkeypatch.setattr(store.os, "fsync", real)
    run_training(compose_config("train", TINY), starved, [])
    assert (starved / "ledger.json").read_bytes() == (whole / "ledger.json").read_bytes()


def test_a_real_full_disk(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(OSError) as caught:
            run_training(compose_config("train", TINY), tmp_path / "run", [])
        line = explain_error(caught.value)
        assert line and "no space left" in line and "\n" not in line
        assert (tmp_path / "run" / "config.yaml").is_file()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_an_unwritable_folder_is_one_line_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("privdd.federated.trainer.run_round", None)
    for place in (tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(OSError) as caught:
            run_training(compose_config("train", TINY), place, [])
        line = explain_error(caught.value)
        assert line and str(place) in line and "\n" not in line


def test_resume_of_what_is_no_run_is_one_line(tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(DamagedRun, match="not a run folder"):
            load_stored_config(place)
    (tmp_path / "config.yaml").write_text("a: [1")
    with pytest.raises(DamagedRun, match="not a config of privdd"):
        load_stored_config(tmp_path)
