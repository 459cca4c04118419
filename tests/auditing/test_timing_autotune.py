"""The choice between loop and wide network: measured once a machine, kept in the run, never in the way."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privdd.auditing import timing as pace
from privdd.auditing.replay import draw_membership_game
from privdd.auditing.shadow_models import ShadowTraining
from privdd.auditing.timing import (
    SpeedTrial,
    TrainingChoice,
    choose_training,
    decide_by_ratio,
    measure_ratio,
    ratio_file,
    speed_ratio,
)
from privdd.auditing.views import FinishedRun
from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.federated.settings import AuditSettings, GuaranteeBudget
from privdd.federated.simulation import Progress, Snapshot
from privdd.runtime.engine import Engine
from privdd.runtime.run_folder import RunFolder
from tests.federations import tiny


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRIVDD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def prepared(*more: str, worlds: int = 9, algo: str = "fedavg") -> SpeedTrial:
    """One world of a tiny client against a group of eight, as an audit would time them."""
    made = tiny(algo, "model=mlp", *more)
    plan = made.plan
    (whole,) = (s for s in made.shards if s.client == plan.victim)
    game = draw_membership_game(whole, 20, worlds, plan.keys, plan.relation)
    server = plan.method.init(plan.problem, plan.keys)
    snapshots = {0: Snapshot(0, plan.method.broadcast(server), {})}
    scene = FinishedRun(made, Progress(1, server, {}, made.new_ledger(), snapshots=snapshots), game, whole)
    stage = ShadowTraining(plan, snapshots, 0, whole, game, scene.adversary_view(0), RunFolder(Path("nowhere")), Engine(), "config")
    return stage.speed_trial()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[float | None], list[int]]:
    """measured(ratio) -> a list that grows by one each time something is measured, to that ratio."""
    monkeypatch.setattr(pace, "MIN_TOTAL_STEPS", 0)

    def install(ratio: float | None) -> list[int]:
        calls: list[int] = []
        monkeypatch.setattr(pace, "measure_ratio", lambda trial: calls.append(trial.group) or ratio)
        return calls

    return install


def pick(trial: SpeedTrial, record: Path, asked: str = "auto") -> TrainingChoice:
    return choose_training(asked, trial, record)


def test_the_probe_is_short_and_says_what_a_stopwatch_says() -> None:
    trial = prepared()
    began = time.process_time()
    ratio = measure_ratio(trial)
    assert time.process_time() - began < 10  # 1 to 2 alone; a busy neighbour makes a CPU second shorter
    assert ratio is not None and 1.0 < ratio < 30  # eight tiny networks: far from a tie


def test_a_slow_network_is_not_measured_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = prepared()
    assert trial.steps
    monkeypatch.setattr(pace, "_time_work", lambda work, device: 0.1 * trial.steps)
    assert measure_ratio(trial) is None
    assert decide_by_ratio(None, 64, 8).training == "loop"


def test_only_what_is_clearly_faster_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    chosen = {ratio: decide_by_ratio(ratio, 63, 8).training for ratio in (0.5, 1.0, 1.29, 1.31, 4.0)}
    assert chosen == {0.5: "loop", 1.0: "loop", 1.29: "loop", 1.31: "vectorised", 4.0: "vectorised"}


def test_cores_that_wide_networks_leave_idle_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eleven worlds are two wide networks: on sixteen cores a loop has eleven workers, they have two."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert decide_by_ratio(3.0, 11, 8).training == "loop" and decide_by_ratio(8.0, 11, 8).training == "vectorised"
    assert decide_by_ratio(3.0, 255, 8).training == "vectorised"
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert decide_by_ratio(3.0, 11, 8).training == "vectorised" and decide_by_ratio(3.0, 7, 8).training == "vectorised"
    assert decide_by_ratio(2.0, 7, 8).training == "loop"  # one wide network, and a second core that could have shared the loop


def test_a_machine_measures_once(measured: Any, cache: Path, tmp_path: Path) -> None:
    calls = measured(3.0)
    first = pick(prepared(), tmp_path / "a.json")
    assert (first.training, first.ratio, calls) == ("vectorised", 3.0, [7])
    measured(0.1)  # a second measurement would say the opposite
    assert pick(prepared(), tmp_path / "b.json") == first
    key = prepared().key
    (file,) = cache.iterdir()
    assert file == ratio_file(cache, key)
    assert json.loads(file.read_text()) == {"key": key, "ratio": 3.0}


def test_other_networks_batches_and_numbers_of_worlds_are_measured_anew(measured: Any, tmp_path: Path) -> None:
    calls, seen = measured(3.0), set()
    variants = [prepared(), prepared("algo.batch_size=8"), prepared("model.width=16"), prepared(worlds=5), prepared("algo.momentum=0")]
    for at, one in enumerate(variants):
        pick(one, tmp_path / f"{at}.json")
        seen.add(one.key)
    assert len(calls) == len(seen) == len(variants)
    assert prepared("algo.lr=0.09", "algo.rounds=9").key == variants[0].key  # cost nothing, change nothing


def test_a_run_keeps_its_choice_whatever_the_machine_says_later(measured: Any, cache: Path, tmp_path: Path) -> None:
    measured(3.0)
    first = pick(prepared(), tmp_path / "a.json")
    for file in cache.iterdir():
        file.unlink()
    calls = measured(0.1)
    assert pick(prepared(), tmp_path / "a.json") == first and calls == []
    assert pick(prepared(), tmp_path / "a.json", asked="loop").training == "loop"  # unless it is told otherwise


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1, 2]", b"null", b'{"key": "KEY"}', b"\xff\xfe", b'{"key": "another", "ratio": 0.1}']
    + [b'{"key": "KEY", "ratio": %s}' % bad for bad in (b'"fast"', b"-1", b"true", b"{}")],
)
def test_a_damaged_memory_is_an_absent_one(content: bytes, measured: Any, cache: Path, tmp_path: Path) -> None:
    trial = prepared()
    key = trial.key
    cache.mkdir(parents=True)
    ratio_file(cache, key).write_bytes(content.replace(b"KEY", key.encode()))
    calls = measured(3.0)
    assert pick(trial, tmp_path / "a.json").training == "vectorised" and calls == [7]
    assert json.loads(ratio_file(cache, key).read_text()) == {"key": key, "ratio": 3.0}
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b"[]", b'{"training": "magic", "why": "?"}', b'{"training": "loop", "why": "", "ratio": "x"}', b'{"why": ""}'])
def test_a_damaged_record_is_an_absent_one(content: bytes, measured: Any, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    calls = measured(3.0)
    assert pick(prepared(), tmp_path / "a.json").training == "vectorised" and calls == [7]
    assert json.loads((tmp_path / "a.json").read_text())["training"] == "vectorised"


def test_a_cache_that_cannot_be_written_is_no_obstacle(measured: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PRIVDD_CACHE", str(tmp_path / "file" / "below"))
    calls = measured(3.0)
    assert pick(prepared(), tmp_path / "a.json").training == "vectorised" and calls == [7]


def test_the_quicker_of_two_runs_decides_for_both(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = prepared()
    file = ratio_file(cache, trial.key)

    def slow(*_: object) -> float:  # while this run measures, another one is done
        cache.mkdir(parents=True)
        file.write_text(json.dumps({"key": trial.key, "ratio": 3.0}))
        return 0.1

    monkeypatch.setattr(pace, "measure_ratio", slow)
    assert speed_ratio(trial) == 3.0 and list(cache.iterdir()) == [file]


def test_too_slow_to_measure_is_remembered_too(measured: Any, tmp_path: Path) -> None:
    measured(None)
    assert pick(prepared(), tmp_path / "a.json").training == "loop"
    calls = measured(9.0)
    assert speed_ratio(prepared()) is None and calls == []


def test_a_user_without_a_home_measures_each_time(measured: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PRIVDD_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    calls = measured(3.0)
    assert pick(prepared(), tmp_path / "a.json").training == "vectorised" and calls == [7]


def test_small_audits_are_not_measured(cache: Path, tmp_path: Path) -> None:
    choice = pick(prepared(), tmp_path / "a.json")
    assert choice.training == "loop" and "too few" in choice.why
    assert not cache.exists() and not (tmp_path / "a.json").exists()


SETTINGS = {
    "client": "auto", "records": 9, "worlds": 3, "federations": 0, "victims": 1, "confidence": 0.95, "guarantee": GuaranteeBudget(),
}  # fmt: skip


def test_a_way_that_does_not_exist_is_one_line() -> None:
    line = "audit.training=fast: allowed are auto, loop, vectorised"
    with pytest.raises(ValueError, match=line):
        AuditSettings(**{**SETTINGS, "training": "fast"})
    with pytest.raises(ValueError, match=line):
        build_experiment(compose_config("audit", ["algo=fedavg", "preset=smoke", "data.limit=120", "audit.training=fast", "attack=[lira]"]))
    for good in ("auto", "loop", "vectorised"):
        assert AuditSettings(**{**SETTINGS, "training": good}).training == good


def test_methods_without_a_wide_form_take_the_loop_whatever_is_asked(tmp_path: Path) -> None:
    for asked in ("auto", "vectorised"):
        assert choose_training(asked, prepared(algo="moon"), tmp_path / f"{asked}.json").training == "loop"


def test_a_method_whose_worlds_share_work_is_batched_without_measuring(measured: Any, tmp_path: Path) -> None:
    calls = measured(0.1)
    trial = prepared("model=convnet", algo="feddm")
    assert trial.always and choose_training("auto", trial, tmp_path / "a.json").training == "vectorised" and calls == []
    assert choose_training("loop", trial, tmp_path / "b.json").training == "loop"  # as it is told
