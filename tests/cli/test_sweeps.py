"""A sweep's folders, statuses and its end, with any launcher, killed or not."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from privdd.cli import main as command
from privdd.cli.compose import compose_config, config_dir, expand_arguments, group_choices
from privdd.cli.main import check_command
from privdd.cli.run import prepare_run_folder, run_audit
from privdd.cli.sweeps import (
    Sweep,
    count_points,
    first_point,
    pin_sweep_folder,
    point_name,
    sweep_folder_name,
    why_not_done,
)
from privdd.core.validation import BadConfig
from privdd.reporting.comparison import read_training_record
from privdd.runtime.files import read_json, write_json
from privdd.runtime.seal import is_sealed, seal_folder

ROOT = Path(__file__).parents[2]
TINY = (
    "preset=smoke",
    "partition.clients=2",
    "algo.rounds=1",
    "algo.local_epochs=1",
    "audit.worlds=3",
    "audit.records=12",
    "attack=[lira]",
    "audit.waive.global_model=small",
)


def test_more_values_of_a_swept_key_are_the_same_question() -> None:
    base = sweep_folder_name(
        "audit",
        ["algo=fedfed_dp", "privacy.noise_multiplier=0.5,1", "seed=0,1", "-m", "preset=smoke"],
    )
    more = sweep_folder_name(
        "audit",
        ["seed=range(0,5)", "preset=smoke", "algo=fedfed_dp", "privacy.noise_multiplier=4,1,2"],
    )
    assert base == more
    assert base.startswith("audit-algo-fedfed_dp-noise_multiplier-seed-")


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("train", ["algo=fedavg", "seed=0,1"]),
        ("audit", ["algo=fedprox", "seed=0,1"]),
        ("audit", ["algo=fedavg", "seed=0"]),
        ("audit", ["algo=fedavg", "seed=0,1", "attack=[lira,rmia]"]),
    ],
)
def test_another_question_has_another_folder(command: str, argv: list[str]) -> None:
    assert sweep_folder_name(command, argv) != sweep_folder_name(
        "audit", ["algo=fedavg", "seed=0,1"]
    )


def test_hydras_own_settings_do_not_change_the_folder() -> None:
    plain = sweep_folder_name("audit", ["algo=fedavg,fedprox"])
    assert (
        sweep_folder_name(
            "audit", ["algo=fedavg,fedprox", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
        )
        == plain
    )


@pytest.mark.parametrize(
    "text", ["data.path=../../etc,seed=0", "name='a b;$(x)'", "", "x=" + "é" * 300]
)
def test_point_names_are_safe_and_can_be_typed_again(text: str) -> None:
    name = point_name(text)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}", name)
    assert compose_config("audit", [f"run=outputs/{name}"]).run == f"outputs/{name}"


def test_point_names_keep_what_cutting_and_cleaning_would_merge() -> None:
    assert point_name("privacy.noise_multiplier=0.5,seed=1").startswith(
        "noise_multiplier-0.5_seed-1-"
    )
    alike = ("a=x/y", "a=x_y", "a=" + "z" * 90, "a=" + "z" * 91)
    assert len({point_name(text) for text in alike}) == 4


def test_pinned_arguments_name_the_folder_once() -> None:
    argv = pin_sweep_folder(["-m", "hydra.sweep.dir=old", "algo=a,b", "seed=1"], Path("new"))
    assert [a for a in argv if a.startswith("hydra.sweep.dir")] == ["hydra.sweep.dir='new'"]
    assert "hydra.job.config.override_dirname.exclude_keys=['seed']" in argv


def _finished(path: Path, verdict: str, **utility: int) -> None:
    write_json(path / "findings.json", {"verdict": verdict, "utility": utility})
    (path / "report.html").write_text("")
    seal_folder(path)


def test_statuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = Sweep("train", tmp_path)  # its end writes no page
    assert sweep.finish_sweep() == 1  # no point at all
    assert sweep.run_point(tmp_path / "a", lambda: 0) == 0
    assert sweep.finish_sweep() == 0

    def fails() -> int:
        raise ValueError("lr=-1: positive")

    assert sweep.run_point(tmp_path / "b", fails) == 1
    assert sweep.finish_sweep() == 1
    assert "b failed: lr=-1: positive" in capsys.readouterr().err
    assert sweep.run_point(tmp_path / "c", lambda: 2) == 2
    assert sweep.finish_sweep() == 2
    assert (
        Sweep("train", tmp_path).point_statuses() == {}
    )  # another start counts its own points only


def test_a_finished_point_is_skipped_and_keeps_its_status(tmp_path: Path) -> None:
    sweep = Sweep("audit", tmp_path)
    _finished(tmp_path / "a", "contradiction")
    _finished(tmp_path / "b", "unprotected")
    assert [sweep.run_point(tmp_path / name, lambda: 1 / 0) for name in "ab"] == [2, 0]  # type: ignore[arg-type,return-value]
    (tmp_path / "b" / "report.html").unlink()  # so it is not finished
    assert sweep.run_point(tmp_path / "b", lambda: 2) == 2


def test_a_point_that_was_cut_off_before_its_seal_is_mended(tmp_path: Path) -> None:
    sweep = Sweep("audit", tmp_path)
    point = tmp_path / "a"
    _finished(point, "unprotected")
    (point / "manifest.json").unlink()  # all is written but the seal
    ran: list[Path] = []
    assert sweep.run_point(point, lambda: ran.append(point) or 0) == 0 and ran == [point]  # type: ignore[func-returns-value]
    _finished(point, "unprotected")
    write_json(point / "findings.json", {"verdict": "consistent"})  # not what was sealed
    assert sweep.run_point(point, lambda: ran.append(point) or 0) == 0 and len(ran) == 2  # type: ignore[func-returns-value]


def test_a_point_whose_training_diverged_fails_however_often_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = Sweep("train", tmp_path)
    write_json(tmp_path / "a" / "training.json", {"diverged": 3})
    seal_folder(tmp_path / "a")
    assert sweep.run_point(tmp_path / "a", lambda: 1 / 0) == 1  # type: ignore[arg-type,return-value]
    audits = Sweep("audit", tmp_path / "audits")
    _finished(audits.folder / "a", "unprotected", diverged=0)
    assert audits.run_point(audits.folder / "a", lambda: 1 / 0) == 1  # type: ignore[arg-type,return-value]
    assert "is finished, skipped" in capsys.readouterr().err
    assert why_not_done(tmp_path / "a", "train") == "its training diverged"


def test_a_file_of_the_users_own_is_no_mark_of_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "point.json").write_text('{"x": 1, "y": 2}')
    with pytest.raises(BadConfig, match="so it is kept"):
        Sweep("train", tmp_path).run_point(tmp_path / "a", lambda: 0)
    assert (tmp_path / "a" / "point.json").read_text() == '{"x": 1, "y": 2}'


def test_a_point_cut_off_counts_as_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = Sweep("audit", tmp_path)

    def stopped() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.run_point(tmp_path / "a", stopped)
    assert sweep.point_statuses() == {tmp_path / "a": 1}
    assert sweep.finish_sweep() == 1 and "a failed: cut off" in capsys.readouterr().err


def test_a_launcher_that_lost_a_worker_fails_the_sweep(tmp_path: Path) -> None:
    """The points that it did not come to have left no mark."""
    sweep = Sweep("train", tmp_path)
    sweep.run_point(tmp_path / "a", lambda: 0)
    assert [command._run_sweep(sweep, lambda code=code: sys.exit(code)) for code in (0, 1)] == [
        0,
        1,
    ]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("argv", "count"),
    [
        (["-m", "algo=fedavg,feddm", "seed=range(0,5)", "data.limit=200"], 10),
        (["-m", "privacy.noise_multiplier=choice(0.5,1,2)", "attack=[lira,rmia]"], 3),
        (["-m", "seed=3"], 1),
        (["-m", "algo=glob(fed*)"], None),
        (["-m", "seed=0,1", "hydra/sweeper=optuna"], None),
    ],
)
def test_points_are_counted_before_they_run(argv: list[str], count: int | None) -> None:
    assert count_points(argv) == count


def test_every_point_says_how_far_the_whole_sweep_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Sweep("train", tmp_path).run_point(tmp_path / "of_another_start", lambda: 0)
    # no second passes, however slow the machine
    monkeypatch.setattr("privdd.cli.sweeps.time", SimpleNamespace(time=lambda: 1_000_000.0))
    sweep = Sweep("train", tmp_path, total=3, began=1_000_000.0 - 75)
    for name, work in (("a", lambda: 0), ("b", lambda: 1 // 0), ("c", lambda: 0)):
        sweep.run_point(tmp_path / name, work)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sweep: ")]
    left = {
        "1 of 3 points": ", about 2 min 30 s left",
        "2 of 3 points, 1 failed": ", about 38 s left",
        "3 of 3 points, 1 failed": "",
    }
    assert lines[1:] == [
        f"sweep: {points}, 1 min 15 s so far{rest}" for points, rest in left.items()
    ]


def test_the_first_point_of_a_sweep_is_its_first_values() -> None:
    argv = [
        "-m",
        "algo=fedavg",
        "seed=3,1",
        "algo.rounds=range(2,4)",
        "attack=[lira,rmia]",
        "--config-dir=x",
    ]
    assert first_point(argv) == [
        "algo=fedavg",
        "seed=3",
        "algo.rounds=2",
        "attack=[lira,rmia]",
        "--config-dir=x",
    ]
    assert first_point(["seed=3"]) == ["seed=3"]


def test_trainings_end_in_a_table_over_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # no ledger stands behind
    monkeypatch.setattr(
        "privdd.verification.recomputed.load_verified_training", read_training_record
    )
    sweep = Sweep("train", tmp_path)
    for name, epsilon, seed, accuracy in (
        ("a", 2.5, 0, 0.5),
        ("b", 2.5, 1, 0.7),
        ("c", "inf", 0, 0.8),
    ):
        sweep.run_point(
            tmp_path / name,
            lambda n=name, e=epsilon, s=seed, a=accuracy: _trained(tmp_path / n, e, s, a),
        )  # type: ignore[misc]
    assert sweep.finish_sweep() == 0
    told = capsys.readouterr().out
    assert "60 % (50 % to 70 %)" in told.replace("\u00a0", " ") and "training.csv" in told
    rows = list(csv.DictReader((tmp_path / "training.csv").read_text().splitlines()))
    found = [(r["seeds"], r["epsilon_pld"], float(r["accuracy_mean"]), r["unit"]) for r in rows]
    assert found == [("2", "2.5", pytest.approx(0.6), "record"), ("1", "inf", 0.8, "record")]


def _trained(path: Path, epsilon: float | str, seed: int, accuracy: float) -> int:
    noise = None if epsilon == "inf" else 1.0
    write_json(
        path / "config.yaml",
        {  # JSON is YAML
            "name": "fedavg",
            "data": {"name": "digits"},
            "preset": {"name": "smoke"},
            "seed": seed,
            "privacy": {"noise": noise},
        },
    )
    return _write_training(path, epsilon, accuracy)


def _write_training(path: Path, epsilon: float | str, accuracy: float) -> int:
    write_json(
        path / "training.json",
        {
            "schema": 1,
            "accuracy": accuracy,
            "epsilon": {"pld": epsilon, "rdp": epsilon},
            "delta": 1e-5,
            "unit": "record",
            "relation": "zero_out",
            "uploaded_bytes_per_client": 10,
            "downloaded_bytes_per_client": 10,
            "accuracy_by_round": [accuracy],
        },
    )
    seal_folder(path)
    return 0


def test_a_finished_point_of_other_settings_is_no_result_of_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder was named by hand, so it does not depend on what is asked."""
    monkeypatch.setattr(
        "privdd.verification.recomputed.load_verified_training", read_training_record
    )

    def run(config: DictConfig, path: Path, argv: object) -> int:
        done.append(config.algo.rounds)
        prepare_run_folder(path, config)
        return _write_training(path, "inf", 0.5)

    done: list[int] = []
    for rounds, status in ((1, 0), (1, 0), (2, 1)):
        typed = [
            "-m",
            "preset=smoke",
            f"hydra.sweep.dir={tmp_path}",
            "seed=0",
            f"algo.rounds={rounds}",
        ]
        assert _in_process(monkeypatch, "train", typed, run) == status
    (mark,) = tmp_path.glob("*/point.json")
    assert done == [1] and "holds a run of another config (algo differ)" in read_json(mark)["error"]


def _start(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", "privdd.audit", "-m", *TINY, *more]
    return subprocess.Popen(
        argv,
        cwd=folder,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _frontier(folder: Path) -> bytes:
    (file,) = folder.glob("outputs/sweeps/*/frontier.csv")
    return file.read_bytes()


def _in_process(
    monkeypatch: pytest.MonkeyPatch, name: str, typed: list[str], run: Callable[..., int]
) -> int:
    """A command by Hydra's own launcher, in this process."""
    for module in (
        "hydra.core.utils",
        "hydra._internal.hydra",
    ):  # it would keep this test's captured stderr
        monkeypatch.setattr(f"{module}.configure_log", lambda *_, **__: None)
    monkeypatch.setattr(sys, "argv", [f"privdd-{name}", *typed])
    GlobalHydra.instance().clear()
    return command.main(name, run)


@pytest.mark.nightly
def test_killed_half_way_and_repeated_gives_the_same_csv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The joblib launcher is killed after its first point; repeating the command ends where one go
    ends."""
    cut = tmp_path / "cut"
    whole = tmp_path / "whole"
    cut.mkdir(), whole.mkdir()
    first = _start(
        cut, "algo=fedavg,fedprox", "seed=0", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1"
    )
    deadline = time.monotonic() + 600
    while not any(is_sealed(path) for path in cut.glob("outputs/sweeps/*/*")):
        assert time.monotonic() < deadline and first.poll() is None, "no point was finished"
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    done = {p.parent: p.stat().st_mtime_ns for p in cut.glob("outputs/sweeps/*/*/findings.json")}
    assert len(done) == 1
    assert not list(cut.glob("outputs/sweeps/*/frontier.csv"))

    again = _start(
        cut, "seed=0", "algo=fedprox,fedavg", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1"
    )
    monkeypatch.chdir(whole)
    once = _in_process(
        monkeypatch, "audit", ["-m", *TINY, "algo=fedavg,fedprox", "seed=0"], run_audit
    )
    assert (again.wait(), once) == (0, 0)
    assert {p: (p / "findings.json").stat().st_mtime_ns for p in done} == done  # not computed again
    assert _frontier(cut) == _frontier(whole)
    (page,) = whole.glob("outputs/sweeps/*/comparison.html")
    assert "costs privacy beyond" in page.read_text()
    rows = list(csv.DictReader(_frontier(whole).decode().splitlines()))
    assert [row["method"] for row in rows] == ["fedavg", "fedprox"]
    names = {read_json(p)["run"]["algo"] for p in whole.glob("outputs/sweeps/*/*/findings.json")}
    assert names == {"fedavg", "fedprox"}


@pytest.mark.parametrize(
    ("typed", "spelled"),
    [
        ("algo=glob(fedp*)", "algo=fedprox,fedproto"),
        ("algo=glob([fedp*,moon],exclude=fedproto)", "algo=fedprox,moon"),
        ("model@algo.model=glob(ml*)", "model@algo.model=mlp"),
    ],
)
def test_a_glob_stands_for_the_choices_that_it_matches(typed: str, spelled: str) -> None:
    found = expand_arguments([typed, "-m"], "train")[0]
    assert sorted(found.partition("=")[2].split(",")) == sorted(
        spelled.partition("=")[2].split(",")
    )
    assert count_points(["-m", found]) == spelled.count(",") + 1
    assert set(expand_arguments(["algo=glob(*)"], "train")[0][5:].split(",")) == set(
        group_choices("algo", [config_dir()])
    )  # none of _*.yaml


@pytest.mark.parametrize("typed", ["seed=glob(*)", "algo=glob(zz*)", "algo=glob(", "algo=glob([)"])
def test_a_glob_that_stands_for_nothing_is_one_line(typed: str) -> None:
    with pytest.raises(BadConfig) as caught:
        check_command("train", expand_arguments([typed], "train"))
    assert "\n" not in str(caught.value)


def test_a_sweep_over_a_glob_is_checked() -> None:
    assert check_command(
        "train", expand_arguments(["algo=glob(fedp*)", "-m"], "train")
    ).algo._target_.startswith("privdd.methods.fedpro")
