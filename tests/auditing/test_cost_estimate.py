"""What a run needs at least, against what it really writes, and what it takes: counts times what
was timed."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attacks.inversion.distiller_inference import DistillerInference
from attacks.membership.fedmia import FedMIA
from attacks.types import Surface
from privdd.auditing import cost_estimate as pricing
from privdd.auditing.adversary_view import MATRICES_AT_ONCE
from privdd.auditing.cost_estimate import (
    PROCESS_BYTES,
    SIGNAL_SECONDS,
    STEPS_PER_LOCAL_STEP,
    STEPS_PER_SEARCH_STEP,
    TEST_SECONDS,
    RoundTiming,
    Stage,
    TwoClientEngine,
    _size_text,
    check_resources,
    choose_engine,
    describe_estimate,
    estimate_cost,
    free_disk,
    free_memory,
    least_needs,
    longest_search,
    rounds_to_time,
    spread_tasks,
    time_rounds,
    timing_of_round,
)
from privdd.cli.build import build_attacks, build_experiment
from privdd.cli.run import run_training
from privdd.cli.settings import is_forced
from privdd.core.loop_timing import truncate_loops
from privdd.core.types import Received, Records, Shard
from privdd.core.validation import BadConfig
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import ClientTask
from privdd.federated.trainer import Trainer
from privdd.runtime.engine import Engine
from privdd.runtime.run_folder import RunFolder
from tests.federations import tiny, tiny_config


def written(experiment: Any, folder: Path) -> int:
    """Bytes of artifacts that training really keeps."""
    Trainer(
        experiment.plan,
        experiment.shards,
        experiment.test_records,
        experiment.engine,
        RunFolder(folder),
        experiment.new_ledger(),
        experiment.capture,
    ).run()
    return sum(f.stat().st_size for f in (folder / "artifacts").rglob("*") if f.is_file())


@pytest.mark.parametrize("algo", ["fedavg", "feddm"])
@pytest.mark.parametrize(
    "more", [[], ["capture.clients=victim"], ["capture.rounds=first_last", "algo.rounds=3"]]
)
def test_artifacts_take_what_was_said_and_little_more(
    algo: str, more: list[str], tmp_path: Path
) -> None:
    """Headers of the files and small tensors, such as labels and counts, are not counted."""
    experiment = tiny(algo, "model.width=16", *more)
    said = least_needs(experiment).disk
    real = written(experiment, tmp_path)
    assert said <= real <= 1.5 * said


def test_a_large_run_fits_on_a_disk_by_default() -> None:
    """5,000 uploads of a ResNet-18 would take 220 GB; the audited client's are kept alone."""
    large = (
        "model=resnet18",
        "model.width=64",
        "partition=iid",
        "partition.clients=100",
        "data.limit=1200",
        "algo.rounds=50",
    )
    assert 50 * 44e6 < least_needs(tiny("fedavg", *large)).disk < 5 * 2**30
    assert least_needs(tiny("fedavg", *large, "capture.clients=all")).disk > 200e9


def test_of_a_sum_one_artifact_is_kept_however_many_clients_add_to_it(tmp_path: Path) -> None:
    experiment = tiny(
        "fedavg", "model=mlp", "algo.weighting=uniform", "trust=secagg", "partition.clients=4"
    )
    said = least_needs(experiment).disk
    real = written(experiment, tmp_path)
    assert said <= real <= 1.5 * said


def test_memory_holds_the_gradients_of_each_audited_record_and_their_solvers() -> None:
    few, many = (
        least_needs(
            build_experiment(tiny_config("fedavg", f"audit.records={n}", command="audit"))
        ).memory
        for n in (10, 20)
    )
    model = tiny("fedavg").plan.method.audit_hooks.classifier(tiny("fedavg").plan.problem)
    assert model is not None
    numbers = sum(t.numel() for t in model.state_dict().values())
    assert many - few == MATRICES_AT_ONCE * 10 * 4 * numbers


@pytest.mark.parametrize("algo", ["fedavg", "feddm"])
def test_every_worker_process_holds_the_program_too(algo: str) -> None:
    alone = build_experiment(tiny_config(algo, command="audit"))
    serial, three = (
        least_needs(replace(alone, engine=engine)).memory
        for engine in (Engine(), Engine("processes", workers=3))
    )
    assert (
        three - serial >= 3 * PROCESS_BYTES
        and least_needs(replace(alone, engine=Engine("ray", workers=3))).memory == serial
    )


def test_gradients_that_are_not_held_take_the_memory_of_a_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, many = (
        build_experiment(tiny_config("fedavg", f"audit.records={n}", command="audit"))
        for n in (10, 20)
    )
    assert least_needs(few).memory < least_needs(many).memory
    monkeypatch.setattr(pricing, "MAX_MATRIX_BYTES", 0)
    monkeypatch.setattr(pricing, "MAX_BLOCK_BYTES", 100)
    assert least_needs(few).memory == least_needs(many).memory


def test_surfaces_that_are_not_kept_take_nothing() -> None:
    assert least_needs(tiny("fedavg", f"capture.surfaces=[{Surface.COUNTS}]")).disk == 0


@pytest.mark.parametrize(
    ("full", "says"),
    [("free_disk", "^capture: .*capture.clients=victim"), ("free_memory", "^memory: ")],
)
def test_what_cannot_fit_is_refused_unless_forced(
    full: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pricing, full, lambda *at: 1000)
    with pytest.raises(BadConfig, match=says + ".* resources.force=true runs anyway$") as refused:
        check_resources(tiny("fedavg"), tmp_path, force=False)
    assert "1 kB are free" in str(refused.value)
    check_resources(tiny("fedavg"), tmp_path, force=True)


def test_the_commands_ask_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pricing, "free_disk", lambda folder: 1000)
    with pytest.raises(BadConfig, match=r"^capture: "):
        run_training(tiny_config("fedavg"), tmp_path / "run", [])
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_force_is_a_truth_value() -> None:
    config = tiny_config("fedavg")
    assert is_forced(config) is False
    assert is_forced(tiny_config("fedavg", "resources.force=true")) is True
    with pytest.raises(BadConfig, match=r"^resources.force='often': true or false is needed"):
        is_forced(tiny_config("fedavg", "resources.force=often"))


def test_what_is_free_is_found_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert free_disk(tmp_path / "not" / "yet") > 0
    assert free_memory() is None or free_memory() > 10**6  # type: ignore[operator]
    limit = tmp_path / "memory.max"
    info = tmp_path / "meminfo"
    limit.write_text("5000\n")
    info.write_text("MemTotal: 99 kB\nMemAvailable: 7 kB\n")
    monkeypatch.setattr(pricing, "MEMINFO", info)
    monkeypatch.setattr(pricing, "CGROUP_LIMITS", (limit,))
    assert free_memory() == 5000
    limit.write_text("max\n")
    assert free_memory() == 7 * 1024


def test_sizes_are_spelt_in_powers_of_a_thousand() -> None:
    assert [_size_text(n) for n in (12, 1536, 3e9, 2.24e14)] == [
        "12 B",
        "1.54 kB",
        "3 GB",
        "224 TB",
    ]


# --- time --------------------------------------------------------------------------------------


def audited(algo: str, *more: str) -> Experiment:
    return build_experiment(tiny_config(algo, *more, command="audit"))


def tasks(*sizes: int) -> list[ClientTask]:
    records = lambda n: Records(torch.zeros(n, 1, 2, 2), torch.arange(n) % 3, torch.arange(n))  # noqa: E731
    shards = [Shard(k, records(n), records(2), records(2), 3) for k, n in enumerate(sizes)]
    plan: Any = None
    return [ClientTask(plan, 0, k, {}, {}, shard) for k, shard in enumerate(shards)]


def test_the_usual_client_stands_for_all_but_the_audited_one() -> None:
    ran: list[int] = []

    def answer(task: ClientTask) -> Any:
        ran.append(task.client)
        return (
            Received(task.client, task.round, {"n": {"n": torch.tensor(len(task.shard.train))}}),
            [],
            {},
        )

    with truncate_loops(1.0) as loops:
        engine = TwoClientEngine(loops=loops, audited=3)
        found = list(engine.map(answer, tasks(10, 22, 30, 50, 11)))
    assert ran == [1, 3] == [*engine.took] and [received.client for received, _, _ in found] == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert [int(received.values["n"]["n"]) for received, _, _ in found] == [22, 22, 22, 50, 22]


def test_rounds_to_time_are_first_and_second_of_each_kind_and_the_last() -> None:
    plan = audited("fedfed", "algo.distill_rounds=5", "algo.base.rounds=9").plan
    assert rounds_to_time(plan) == {0: True, 1: False, 5: True, 6: True, 7: False, 14: False}
    plan = audited("fedlgd", "algo.rounds=20", "algo.tau=3", "algo.tau_step=5").plan
    assert rounds_to_time(plan) == {0: True, 1: True, 2: False, 5: False, 19: False}
    timed = {t: RoundTiming(float(t), 0.0, 1.0) for t in (0, 1, 2, 5, 19)}
    assert [timing_of_round(plan, timed, t).usual for t in (0, 1, 4, 5, 7, 10, 18, 19)] == [
        0,
        1,
        2,
        5,
        2,
        5,
        2,
        19,
    ]


def test_rounds_that_everybody_drops_out_of_are_not_timed() -> None:
    """Under trust=secagg, where too few clients are left for a sum."""
    more = [
        "trust=secagg",
        "trust.dropout=0.5",
        "trust.least=2",
        "algo.weighting=uniform",
        "privacy=none",
        "algo.rounds=6",
        "seed=1",
    ]
    experiment = audited("fedavg", *more)
    taken = [t for t in range(6) if experiment.plan.participants(t)]
    assert (
        0 not in taken
        and 0 < len(taken) < 6
        and set(time_rounds(experiment, 9.0)[0]) == {*taken[:2], taken[-1]}
    )
    assert estimate_cost(experiment, {}, 9.0).stages["train"].cpu > 0


REMEMBERING = {
    "fedavg": False,
    "scaffold": True,
    "fedlgd": True,
    "dp_head": False,
    "feddm_guided_dp": False,
    "fedfed": False,
}


@pytest.mark.nightly(cases=["feddm_guided_dp"])
@pytest.mark.parametrize(
    "algo",
    [
        "fedavg",
        "scaffold",
        "feddm_dp",
        "fedfed",
        "fedlgd",
        "fedrd",
        "feddm_guided_dp",
        "dp_head",
        "vhl",
    ],
)
def test_each_kind_of_round_is_timed_though_those_between_are_not_run(algo: str) -> None:
    experiment = audited(algo)
    timed, chained = time_rounds(experiment, 60.0)
    assert set(timed) == set(rounds_to_time(experiment.plan)) and chained == REMEMBERING.get(
        algo, chained
    )
    assert all(one.usual > 0 and one.audited > 0 and one.server >= 0 for one in timed.values())


def test_what_a_process_computes_first_is_not_charged_to_every_client() -> None:
    shards = [task.shard for task in tasks(20, 10, 40)]
    assert pricing._take_out_start({0: 9.0, 2: 1.0}, shards) == {0: 1.0, 2: 1.0}
    assert pricing._take_out_start({1: 9.0, 2: 12.0}, shards) == {
        1: 9.0,
        2: 12.0,
    } and pricing._take_out_start({1: 9.0}, shards) == {1: 9.0}


def test_a_pass_of_a_larger_network_takes_longer() -> None:
    small, large = (
        pricing.time_pass(audited("fedavg", "model=convnet", f"model.width={width}"))
        for width in (4, 128)
    )
    assert 0 < 2 * small < large


def test_a_pass_is_timed_on_the_threads_of_the_run_and_leaves_the_network_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads that wait for one another on a busy machine count as work."""
    experiment = audited("fedavg", "model=convnet", "model.norm=batch")
    seen = list[int]()
    model = experiment.plan.method.audit_hooks.classifier(experiment.plan.problem)
    model.register_forward_pre_hook(lambda *given: seen.append(torch.get_num_threads()))
    monkeypatch.setattr(type(experiment.plan.method), "classifier", lambda *given: model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.set_num_threads(2)
    try:
        pricing.time_pass(experiment)
    finally:
        torch.set_num_threads(1)
    assert set(seen) == {experiment.engine.threads} and all(
        p.grad is None for p in model.parameters()
    )
    assert all(
        torch.equal(value.nan_to_num(), before[name].nan_to_num())
        for name, value in model.state_dict().items()
    )


def test_long_training_is_timed_in_a_moment() -> None:
    """A million epochs of two clients, and as many of the server."""
    began = time.process_time()
    short = time_rounds(audited("fedavg", "algo.local_epochs=100"), 0.0)[0][0]
    assert (
        time_rounds(audited("fedavg", "algo.local_epochs=1000000"), 0.0)[0][0].usual
        > 100 * short.usual
    )
    server = time_rounds(audited("feddm", "algo.server.epochs=1000000"), 0.0)[0][0]
    assert server.server > server.usual and time.process_time() - began < 30


def test_stages_are_counts_times_what_was_timed_in_waves_of_the_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed = {
        0: RoundTiming(2.0, 3.0, 5.0),
        1: RoundTiming(1.0, 2.0, 4.0),
        9: RoundTiming(1.0, 2.0, 50.0),
    }
    monkeypatch.setattr(pricing, "time_rounds", lambda *given: (timed, False))
    more = [
        "partition.clients=3",
        "audit.worlds=6",
        "audit.rounds=2",
        "audit.federations=4",
        "algo.rounds=10",
    ]
    experiment = audited("fedavg", *more, "audit.federation_rounds=1")
    found = estimate_cost(experiment, {}, 0.0).stages
    trained = (3 * 2 + 5) + 8 * (3 * 1 + 4) + (3 * 1 + 50)
    assert found["train"] == Stage(trained, trained) and found["worlds"].cpu == pytest.approx(
        5 * 2 * (3 + 9 * 2) / 10
    )
    assert found["federations"].cpu == pytest.approx(
        3 * 53 + trained - 53
    )  # one of the four is the run itself
    assert (
        found["attacks"].cpu == pytest.approx(6 * SIGNAL_SECONDS) and "guarantee tests" not in found
    )
    two = replace(experiment, engine=Engine("processes", workers=2))
    waves = estimate_cost(two, {}, 0.0).stages
    assert waves["train"] == Stage(
        trained, (2 * 2 + 5) + 8 * (2 * 1 + 4) + (2 * 1 + 50)
    )  # three clients: two waves
    assert waves["federations"].wall == pytest.approx(2 * 53 + waves["train"].wall - (2 * 1 + 50))
    assert (
        waves["worlds"].wall == pytest.approx(3 * 2 * (3 + 9 * 2) / 10)
        and waves["workers' start"].cpu > 0
    )
    monkeypatch.setattr(pricing, "time_rounds", lambda *given: (timed, True))
    assert estimate_cost(experiment, {}, 0.0).stages["worlds"].cpu == pytest.approx(5 * (3 + 9 * 2))
    noised = audited("fedavg", "privacy=dpsgd", "algo.rounds=10")
    tests = TEST_SECONDS * noised.audit_settings.guarantee.slow_runs
    assert estimate_cost(noised, {}, 0.0).stages["guarantee tests"] == Stage(tests, tests)


def test_searches_of_attacks_that_read_what_is_sent_are_counted_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tiny_config(
        "fedavg",
        "attack=[lira,gradient_inversion,update_inversion,feature_inversion]",
        command="audit",
    )
    attacks = build_attacks(config)
    experiment = build_experiment(config)
    assert [
        longest_search(attacks[n]) for n in ("lira", "gradient_inversion", "update_inversion")
    ] == [0, 200, 200]
    steps = experiment.plan.method.audit_hooks.settings(
        len(experiment.shards[experiment.plan.victim].train)
    )["local_steps"]
    monkeypatch.setattr(
        pricing, "time_rounds", lambda *given: ({0: RoundTiming(1.0, 1.0, 0.0)}, False)
    )
    monkeypatch.setattr(pricing, "time_pass", lambda given: 2.0)
    signals = SIGNAL_SECONDS * experiment.audit_settings.worlds
    searches = 2.0 * 200 * (2 * STEPS_PER_SEARCH_STEP + STEPS_PER_LOCAL_STEP * steps)
    assert estimate_cost(experiment, attacks, 0.0).stages["attacks"].cpu == pytest.approx(
        searches + signals
    )


def test_a_search_is_priced_for_each_surface_that_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tiny_config("fedfed", "attack=[feature_inversion,role_inversion]", command="audit")
    attacks = build_attacks(config)
    experiment = build_experiment(config)
    surfaces = {Surface.FEATURES, Surface.SHARED_FEATURES}
    assert surfaces <= {
        *experiment.plan.method.uploads.values(),
        *experiment.plan.method.broadcasts.values(),
    }
    monkeypatch.setattr(pricing, "time_rounds", lambda *given: ({0: RoundTiming(1, 1, 0)}, False))
    monkeypatch.setattr(pricing, "time_pass", lambda given: 2.0)
    signals = SIGNAL_SECONDS * experiment.audit_settings.worlds
    for name, attack in attacks.items():
        found = estimate_cost(experiment, {name: attack}, 0.0).stages["attacks"].cpu
        twice = 2 * 2.0 * STEPS_PER_SEARCH_STEP * longest_search(attack)
        assert found == pytest.approx(twice + signals)


def test_uploads_of_other_clients_cost_what_their_rounds_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two other clients, two of ten rounds; of clients who remember, all ten rounds."""
    timed = {0: RoundTiming(2.0, 3.0, 5.0), 1: RoundTiming(1.0, 2.0, 4.0)}
    monkeypatch.setattr(pricing, "time_rounds", lambda *given: (timed, False))
    more = ["partition.clients=3", "audit.rounds=2", "algo.rounds=10"]
    experiment = audited("fedavg", *more)
    attacks = {"fedmia": FedMIA()}
    found = estimate_cost(experiment, attacks, 0.0).stages["other clients"]
    assert found.cpu == found.wall == pytest.approx(2 * 2 * (2 + 9 * 1) / 10)
    two = replace(experiment, engine=Engine("processes", workers=2))
    waves = estimate_cost(two, attacks, 0.0).stages["other clients"]
    assert (waves.cpu, waves.wall) == pytest.approx((found.cpu, found.cpu / 2))
    assert "other clients" not in estimate_cost(experiment, {}, 0.0).stages
    monkeypatch.setattr(pricing, "time_rounds", lambda *given: (timed, True))
    chained = estimate_cost(experiment, attacks, 0.0).stages["other clients"]
    assert chained.cpu == pytest.approx(2 * (2 + 9 * 1))
    summed = audited("fedavg", *more, "trust=secagg", "algo.weighting=uniform")
    assert "other clients" not in estimate_cost(summed, attacks, 0.0).stages


def test_sets_that_an_attacker_distils_are_priced_by_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A distiller that takes a tenth of a second on a clock of its own."""
    clock = [0.0]
    monkeypatch.setattr("privdd.core.loop_timing.time.process_time", lambda: clock[0])
    monkeypatch.setattr(pricing, "time_rounds", lambda *given: ({0: RoundTiming(1, 1, 0)}, False))

    def distil(x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        clock[0] += 0.1
        return x, torch.zeros(len(x))

    attack = DistillerInference({"one": distil, "other": distil}, sets=7)
    experiment = audited("feddm")
    with_sets = estimate_cost(experiment, {"distiller_inference": attack}, 0.0)
    without = estimate_cost(experiment, {}, 0.0)
    gap = with_sets.stages["attacks"].cpu - without.stages["attacks"].cpu
    assert gap == pytest.approx(7 * 2 * 0.1)


def test_tasks_of_one_length_run_in_waves() -> None:
    assert [spread_tasks(2.0, n, 4) for n in (0, 1, 4, 5)] == [
        Stage(0, 0),
        Stage(2, 2),
        Stage(8, 2),
        Stage(10, 4),
    ]


def test_a_short_run_says_nothing_and_a_long_one_one_line() -> None:
    assert (
        describe_estimate(choose_engine(audited("fedavg"), {}, 0.0)[1])
        == ""
        == describe_estimate(None)
    )
    longer = audited("fedavg", "algo.local_epochs=1000000")
    line = describe_estimate(
        choose_engine(replace(longer, engine=Engine("processes", workers=2)), {}, 0.0)[1]
    )
    assert re.fullmatch(
        r"estimated [\d hmins]+ on 2 processes, [\d.]+ [MG]B at least; --dry-run for details", line
    )


def never(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, seed: int) -> Any:
    raise AssertionError("a user's training is not run for a line before a run")


def test_a_function_of_the_users_own_is_not_run_for_the_line_before_a_run() -> None:
    experiment = audited("own_training", f"algo.training={__name__}:never", "engine.workers=2")
    chosen, cost = choose_engine(experiment, {}, 0.0)
    assert cost is None and chosen.engine.kind == "serial"


def test_auto_takes_processes_where_they_save_more_than_their_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three clients, five rounds: of 15 client rounds of s seconds two workers save 5 s; their
    start costs what is priced."""
    more = ["engine.workers=2", "algo.rounds=5", "audit.federations=0", "audit.worlds=1"]
    experiment = audited("fedavg", *more)
    start = pricing._worker_start(Engine("processes", workers=2), experiment.run)
    assert experiment.engine.kind == "auto"
    for share, kind in ((0.9, "serial"), (1.1, "processes")):
        each = share * (start.cpu + start.wall) / 5
        monkeypatch.setattr(
            pricing, "time_rounds", lambda *given, s=each: ({0: RoundTiming(s, s, 1.0)}, False)
        )
        chosen, cost = choose_engine(experiment, {}, 0.0)
        assert chosen.engine.kind == kind and cost is not None and cost.engine == chosen.engine
        trained = choose_engine(build_experiment(tiny_config("fedavg", *more[:2])), {}, 0.0)
        assert trained[0].engine.kind == kind


def test_workers_that_start_once_they_are_chosen_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At smoke sizes nothing starts before the choice: what is saved is less by the start."""
    monkeypatch.setattr(pricing, "can_fork", lambda device: True)
    run = audited("fedavg").run
    two = Engine("processes", workers=2)
    smoke, default = (
        pricing._worker_start(two, replace(run, preset=name)) for name in ("smoke", "default")
    )
    assert smoke.cpu == default.cpu
    assert smoke.wall - default.wall == pricing.FORKSERVER_SECONDS


def test_auto_stays_in_this_process_where_processes_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        pricing, "time_rounds", lambda *given: ({0: RoundTiming(900.0, 900.0, 1.0)}, False)
    )
    many = audited("fedavg", "engine.workers=2")
    assert choose_engine(many, {}, 0.0)[0].engine.kind == "processes"
    assert choose_engine(audited("fedavg", "engine.workers=1"), {}, 0.0)[0].engine.kind == "serial"
    on_gpu = replace(many, run=replace(many.run, device="cuda"))
    assert choose_engine(on_gpu, {}, 0.0)[0].engine.kind == "serial"
    assert (
        choose_engine(replace(many, engine=Engine("ray", workers=2)), {}, 0.0)[0].engine.kind
        == "ray"
    )
    monkeypatch.setattr(pricing, "free_memory", lambda: 10**8)
    assert choose_engine(many, {}, 0.0)[0].engine.kind == "serial"


def test_a_training_is_timed_only_where_there_is_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pricing, "time_rounds", never)
    for engine in ("engine=processes", "engine=serial", "engine.workers=1"):
        assert choose_engine(build_experiment(tiny_config("fedavg", engine)), {}, 0.0)[1] is None
