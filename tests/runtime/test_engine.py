"""Every engine gives the same bits, survives lost workers, and says in one line what it cannot
do."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import pytest
import torch
from joblib.externals.loky import get_reusable_executor, process_executor

from attacks.types import Finding
from privdd.auditing.attack_tasks import AttackOutcome, AttackTask
from privdd.auditing.dp_tests.runner import GuaranteeTest
from privdd.auditing.pipeline import audit_experiment, membership_game_of
from privdd.auditing.replay import ClientReplay, round_chain
from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.cli.errors import explain_error
from privdd.core.types import State
from privdd.federated.simulation import Plan, Progress, run_round, start_training
from privdd.privacy.ledger import Ledger
from privdd.runtime.engine import Engine, engine_in_words
from privdd.runtime.process_pool import own_workers
from privdd.runtime.run_folder import RunFolder
from privdd.runtime.startup import usable_cores
from privdd.runtime.worker_pool import TooManyLostWorkers
from tests.auditing.test_attack_tasks import attacks, experiment
from tests.runtime import crash_tasks
from tests.runtime.crash_tasks import Deadly

OTHERS = [
    pytest.param(Engine("processes", workers=2), id="processes"),
    pytest.param(Engine("ray", workers=2), id="ray", marks=pytest.mark.engine),
]
SMALL = [
    "preset=smoke",
    "partition.clients=3",
    "algo.rounds=2",
    "algo.local_epochs=1",
    "data.limit=150",
    "model=mlp",
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    yield
    if "ray" in sys.modules:
        from privdd.runtime.ray_pool import disconnect_ray

        disconnect_ray()


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.param


def replayed(replay: ClientReplay) -> State:
    (sent,) = replay.run()
    return {f"{name}/{k}": t for name, value in sent.items() for k, t in value.items()}


def rounds(engine: Engine, overrides: list[str]) -> tuple[Plan, Progress, list[State]]:
    """Two real rounds, then three worlds of the second."""
    experiment = build_experiment(compose_config("audit", [*SMALL, *overrides]))
    plan = experiment.plan
    progress = start_training(plan, experiment.new_ledger())
    for _ in range(2):
        progress, _, _ = run_round(plan, progress, experiment.shards, engine)
    game = membership_game_of(experiment)
    chain = round_chain(plan, progress.snapshots, 1)
    whole = experiment.shards[plan.victim]
    worlds = list(
        engine.map(replayed, [ClientReplay(plan, chain, whole, game, [w]) for w in range(1, 4)])
    )
    return plan, progress, worlds


def both_workers(engine: Engine, marker: Path) -> set[int]:
    """The process ids of two workers, each of which had a task."""
    found = set(engine.map(crash_tasks.meet, [Deadly(i, str(marker)) for i in range(2)]))
    assert len(found) == 2
    return found


@dataclass(frozen=True)
class Keeping(Engine):
    """Serial, and keeps the attacks and guarantee tests with their answers."""

    work: list[tuple[Callable[[Any], Any], list[Any]]] = field(default_factory=list)
    answers: list[list[Any]] = field(default_factory=list)

    def map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        work = list(items)
        answers = [fn(item) for item in work]
        if fn in (AttackTask.run, GuaranteeTest.run):
            self.work.append((fn, work)), self.answers.extend(answers)
        return iter(answers)


def bits(part: AttackOutcome | Finding) -> tuple[Any, ...]:
    """All of a finding but its seconds, and of the tensors that are kept."""
    finding, kept = (
        (part.finding, part.evidence_tensors) if isinstance(part, AttackOutcome) else (part, {})
    )
    told = {key: value for key, value in finding.measures.to_row().items() if key != "seconds"}
    tensors = {
        name: (str(t.dtype), tuple(t.shape), t.numpy().tobytes()) for name, t in kept.items()
    }
    return finding.surface, finding.attack, finding.adversary, repr(told), tensors


SERIAL: dict[str, tuple[Plan, Progress, list[State]]] = {}


@pytest.mark.nightly(but=["scaffold-processes"])
@pytest.mark.parametrize("engine", OTHERS, indirect=True)
@pytest.mark.parametrize(
    "overrides", [["algo=fedavg"], ["algo=scaffold"]], ids=["fedavg", "scaffold"]
)
def test_rounds_and_worlds_are_bit_identical(engine: Engine, overrides: list[str]) -> None:
    if overrides[0] not in SERIAL:
        SERIAL[overrides[0]] = rounds(Engine(), overrides)
    _, expected, expected_worlds = SERIAL[overrides[0]]
    _, progress, worlds = rounds(engine, overrides)
    assert all(torch.equal(progress.server[k], v) for k, v in expected.server.items())
    assert progress.memories.keys() == expected.memories.keys()
    assert progress.ledger.to_json() == expected.ledger.to_json()
    assert len(worlds) == 3
    for mine, other in zip(worlds, expected_worlds, strict=True):
        assert mine.keys() == other.keys() and all(torch.equal(mine[k], other[k]) for k in mine)
    assert not torch.equal(worlds[0]["update/head.weight"], worlds[1]["update/head.weight"])


@pytest.mark.nightly
@pytest.mark.parametrize(
    "engine", [pytest.param(Engine("ray", workers=1), marks=pytest.mark.engine)], indirect=True
)
def test_attacks_and_guarantee_tests_are_bit_identical_on_ray(
    engine: Engine, tmp_path: Path
) -> None:
    """Only they are run twice; whole audits in processes and in reverse order:
    tests/auditing/test_attack_tasks."""
    few = {name: attack for name, attack in attacks().items() if name in ("lira", "inverting")}
    kept = Keeping()
    audit_experiment(replace(experiment(), engine=kept), few, RunFolder(tmp_path))
    found = [answer for fn, work in kept.work for answer in engine.map(fn, work)]
    assert {
        part.finding.attack for parts in found for part in parts if isinstance(part, AttackOutcome)
    } == set(few)
    assert {part.attack for parts in found for part in parts if isinstance(part, Finding)} >= {
        "t2_whole_run",
        "t1_sensitivity",
    }
    for mine, other in zip(found, kept.answers, strict=True):
        assert [bits(part) for part in mine] == [bits(part) for part in other]


# the first suite tests the engine that auto chooses, and of Ray the missing package
@pytest.mark.nightly(cases=["ray"])
@pytest.mark.parametrize("engine", OTHERS, indirect=True)
def test_a_killed_worker_is_replaced_and_the_result_is_the_same(engine: Engine, tmp_path) -> None:
    calm = [Deadly(i, "") for i in range(6)]
    deadly = [Deadly(i, str(tmp_path / "mark"), times=int(i == 3)) for i in range(6)]
    expected = list(Engine().map(crash_tasks.run, calm))
    found = list(engine.map(crash_tasks.run, deadly))
    assert (tmp_path / "mark.3.0").exists(), "no worker was killed: the test tested nothing"
    assert len(found) == 6 and all(torch.equal(a, b) for a, b in zip(found, expected))


# the first suite tests the engine that auto chooses, and of Ray the missing package
@pytest.mark.nightly(cases=["ray"])
@pytest.mark.parametrize("engine", OTHERS, indirect=True)
def test_a_task_that_always_kills_its_worker_ends_in_one_line(engine: Engine, tmp_path) -> None:
    impatient = Engine(engine.kind, workers=2, retries=1)
    tasks = [Deadly(i, str(tmp_path / "mark"), times=9 * int(i == 1)) for i in range(3)]
    with pytest.raises(TooManyLostWorkers) as caught:
        list(impatient.map(crash_tasks.run, tasks))
    line = explain_error(caught.value)
    assert line and "\n" not in line and "engine.workers" in line
    assert (
        1 <= len(list(tmp_path.glob("mark.1.*"))) <= 2
    )  # a try may be lost with a neighbour, on the way to its worker


# the first suite tests the engine that auto chooses, and of Ray the missing package
@pytest.mark.nightly(cases=["ray"])
@pytest.mark.parametrize("engine", OTHERS, indirect=True)
def test_a_tasks_own_error_arrives_as_it_is(engine: Engine) -> None:
    with pytest.raises(ValueError, match=r"^task [01]: refused$"):
        list(engine.map(crash_tasks.refuse, [Deadly(0, ""), Deadly(1, "")]))


# the first suite tests the engine that auto chooses, and of Ray the missing package
@pytest.mark.nightly
@pytest.mark.parametrize("engine", OTHERS, indirect=True)
def test_the_pool_is_started_once(engine: Engine, tmp_path: Path) -> None:
    found = [both_workers(engine, tmp_path / f"call_{i}") for i in range(4)]
    assert (
        len(set.union(*found)) <= {"processes": 2, "ray": 4}[engine.kind]
    )  # Ray may have had others idle; 8 if none stayed


def cores(_: int) -> int:
    return usable_cores()


@pytest.mark.nightly
def test_a_worker_has_one_core_and_its_parent_those_that_it_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert (Engine("processes").size, Engine("processes", workers=3).size) == (1, 3)
    assert usable_cores() == 1
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "64")
    assert usable_cores() == len(os.sched_getaffinity(0))
    assert list(Engine("processes", workers=2).map(cores, range(2))) == [1, 1]


def test_auto_runs_here_until_it_is_chosen_and_engines_have_names() -> None:
    assert set(Engine("auto", workers=4).map(process, range(3))) == {os.getpid()}
    made = [
        Engine("auto", workers=4),
        Engine(),
        Engine("processes", workers=2),
        Engine("ray", workers=1),
    ]
    assert [engine_in_words(one) for one in made] == [
        "one process",
        "one process",
        "2 processes",
        "1 Ray worker",
    ]


def process(_: int) -> int:
    return os.getpid()


@pytest.mark.nightly
def test_a_callers_own_joblib_works_after_ours(tmp_path: Path) -> None:
    """Both keep one pool, and joblib fails on one that it did not start itself."""
    get_reusable_executor(reuse=True).shutdown()  # of tests before
    with own_workers():
        both_workers(Engine("processes", workers=2), tmp_path / "met")
    assert joblib.Parallel(2, backend="loky")(joblib.delayed(abs)(i) for i in (-1, -2)) == [1, 2]
    get_reusable_executor(reuse=True).shutdown()


@pytest.mark.nightly
@pytest.mark.engine
def test_a_cluster_for_one_worker_makes_way_where_two_are_asked_for(tmp_path: Path) -> None:
    """In whatever order: the first Ray engine of a process decided how many workers all later ones
    had."""
    import ray

    from privdd.runtime.ray_pool import RayCluster, connect_ray, disconnect_ray

    disconnect_ray()
    found = [RayCluster(connect_ray(None, workers), workers).workers for workers in (1, 2, 1)]
    assert found == [1, 2, 1] and ray.cluster_resources()["CPU"] == 2
    both_workers(Engine("ray", workers=2), tmp_path / "met")


def test_a_cluster_that_the_user_started_meanwhile_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ours is gone then; theirs, with fewer workers than are asked for, is no one's to end but
    theirs."""
    from privdd.runtime import ray_cleanup
    from privdd.runtime import ray_pool as ours

    made: list[str] = []
    ray = SimpleNamespace(
        __file__=__file__,
        is_initialized=lambda: bool(made),
        init=lambda **_: made.append("ours"),
        shutdown=made.clear,
        get_runtime_context=lambda: SimpleNamespace(gcs_address=made[-1]),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ours, "_started_clusters", {})
    monkeypatch.setattr(ray_cleanup, "start_watcher", lambda word: None)
    ours.connect_ray(None, 1)
    made[:] = ["theirs"]
    ours.connect_ray(None, 2)
    assert made == ["theirs"]
    made.clear()
    for workers in (1, 2):
        ours.connect_ray(None, workers)
    assert made == ["ours"] and ours._started_clusters == {"ours": 2}
    ours.disconnect_ray()
    assert not made and not ours._started_clusters, "a cluster that ended counts as running"


@pytest.mark.nightly
def test_a_worker_that_keeps_memory_is_not_replaced(tmp_path: Path) -> None:
    """Loky replaces a worker that grew by 300 MB, if it can measure memory and is not told
    otherwise."""
    assert process_executor._USE_PSUTIL, "loky cannot measure memory: the test tests nothing"
    engine = Engine("processes", workers=2)
    before = both_workers(engine, tmp_path / "met")
    try:
        grown = Counter(engine.map(crash_tasks.grow, [Deadly(i, "") for i in range(20)]))
    finally:
        # with the memory that they keep
        get_reusable_executor(reuse=True).shutdown(kill_workers=True)
    assert set(grown) <= before
    assert max(grown.values()) >= 8, "no worker came to be measured: the test tested nothing"


# the first suite tests the engine that auto chooses, and of Ray the missing package
@pytest.mark.nightly
@pytest.mark.parametrize("engine", [pytest.param(Engine(), id="serial"), *OTHERS], indirect=True)
def test_threads_per_task_are_what_was_asked(engine: Engine) -> None:
    """The last that starts processes: others would have to replace workers of two threads by their
    own."""
    before = torch.get_num_threads()
    two = Engine(engine.kind, workers=2, threads=2)
    assert list(two.map(crash_tasks.thread_count, [Deadly(i, "") for i in range(3)])) == [2, 2, 2]
    assert torch.get_num_threads() == before


def test_ray_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ValueError, match=r"^engine=ray: ray is not installed.*pip install ray psutil"
    ):
        list(Engine("ray").map(crash_tasks.run, [Deadly(0, ""), Deadly(1, "")]))


# the first suite tests the engine that auto chooses, and of Ray the missing package
@pytest.mark.nightly
@pytest.mark.engine
def test_an_address_without_a_cluster_is_one_line() -> None:
    from privdd.runtime.ray_pool import disconnect_ray

    disconnect_ray()
    with pytest.raises(ValueError, match=r"^engine\.address=127\.0\.0\.1:1: ") as caught:
        list(
            Engine("ray", address="127.0.0.1:1").map(
                crash_tasks.run, [Deadly(0, ""), Deadly(1, "")]
            )
        )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "threads"},
        {"workers": -1},
        {"threads": 0},
        {"threads": True},
        {"retries": -1},
        {"workers": 1.5},
        {"threads": 100_000},
        {"workers": 100_000},
    ],
)
def test_engine_settings_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=rf"^engine\.{next(iter(wrong))}="):
        Engine(**wrong)  # type: ignore[arg-type]


def test_ledger_rows_follow_client_order() -> None:
    """Results are taken in the order of the items, whichever worker ends first."""
    _, progress, _ = SERIAL.get("algo=fedavg") or rounds(Engine(), ["algo=fedavg"])
    rows = [r.client for r in progress.ledger.releases if r.client >= 0 and r.round == 0]
    assert rows == sorted(rows) and isinstance(progress.ledger, Ledger)
