"""Tests of ``privdd.federated.simulation``."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import dp_accounting as dpa
import pytest
import torch

from privdd.auditing.findings import bytes_per_client
from privdd.auditing.replay import group_replays, plan_of_replay
from privdd.auditing.shadow_models import audited_rounds
from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.core.types import Problem, Records, Shard
from privdd.federated.channel import POST_PROCESSING, digest_tensors
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import (
    KEPT_BYTES,
    LEAST_KEPT_ROUNDS,
    MAX_NOISE_TO_SIGNAL,
    MOST_KEPT_ROUNDS,
    SERVER,
    Plan,
    Progress,
    Snapshot,
    count_bytes,
    kept_round_limit,
    link_to_broadcast,
    noise_to_signal,
    publish_final_state,
    round_half_up,
    run_round,
    select_spread_rounds,
    start_training,
    too_few_clients_warning,
)
from privdd.federated.trainer import measure_accuracy
from privdd.privacy.accounting import epsilon
from privdd.privacy.ledger import Ledger, Release
from privdd.privacy.mechanism import LedgerRow
from tests.federations import tiny, trained

# Who takes part, what is kept for the audit, what is counted in bytes, and what every row of the
# server came from.


TINY = [
    "preset=smoke",
    "data=digits",
    "data.limit=100",
    "data.test_limit=20",
    "partition=iid",
    "partition.clients=4",
    "algo.local_epochs=1",
]


@lru_cache(maxsize=4)
def run(*overrides: str) -> tuple[Experiment, list[Progress]]:
    """The progress before the first and after each round; all of them share one ledger, which
    grows."""
    experiment = build_experiment(compose_config("train", [*TINY, *overrides]))
    past = [start_training(experiment.plan, experiment.new_ledger())]
    while past[-1].round < experiment.plan.method.rounds:
        past.append(run_round(experiment.plan, past[-1], experiment.shards, experiment.engine)[0])
    return experiment, past


def test_participants_are_public_fair_and_of_a_fixed_number() -> None:
    """Two of four, each client in half of 600 rounds, every pair as often; the same in every world
    of the audit."""
    plan = run("algo=fedavg", "algo.rounds=2", "participation=0.5")[0].plan
    rounds = [plan.participants(t) for t in range(600)]
    assert all(chosen == sorted(set(chosen)) and len(chosen) == 2 for chosen in rounds)
    times = torch.bincount(torch.tensor(rounds).flatten(), minlength=4)
    assert ((times - 300).abs() < 5 * 150**0.5).all()
    pairs = [sum(chosen == [a, b] for chosen in rounds) for a in range(4) for b in range(a + 1, 4)]
    assert len(pairs) == 6 and all(abs(count - 100) < 5 * (600 * 5 / 36) ** 0.5 for count in pairs)
    other = plan_of_replay(plan, 3)
    assert other.keys != plan.keys and [other.participants(t) for t in range(20)] == rounds[:20]


@pytest.mark.parametrize(
    ("fraction", "count"), [(0.01, 1), (0.5, 2), (0.62, 2), (0.63, 3), (1.0, 4)]
)
def test_a_share_of_clients_is_rounded_half_up_and_at_least_one(
    fraction: float, count: int
) -> None:
    base = run("algo=fedavg", "algo.rounds=2", "participation=0.5")[0].plan
    plan = Plan(base.keys, base.problem, base.method, fraction=fraction)
    assert len(plan.participants(0)) == count and round_half_up(2.5) == 3


def test_only_participants_upload_and_bytes_are_those_of_their_tensors() -> None:
    """size_of counts numbers by their width; a client that did not take part has no bytes and no
    rows."""
    value = {
        "a": {"x": torch.zeros(3, 2), "y": torch.zeros(3, dtype=torch.long)},
        "b": {"z": torch.zeros(5).double()},
    }
    assert count_bytes(value) == 6 * 4 + 3 * 8 + 5 * 8 and count_bytes({}) == 0
    experiment, past = run("algo=fedavg", "algo.rounds=2", "participation=0.5")
    plan = experiment.plan
    last = past[-1]
    model = sum(t.numel() * t.element_size() for name, t in last.server.items())
    for t in range(2):
        chosen = plan.participants(t)
        assert {
            r.client for r in last.ledger.releases if r.round == t and r.client != SERVER
        } == set(chosen)
        assert set(last.uploaded[t]) == set(last.downloaded[t]) == set(chosen)
        assert set(last.uploaded[t].values()) == {model + 4}  # the parameters and one record count
        assert set(last.downloaded[t].values()) == {model}
    assert bytes_per_client(last.uploaded, 4) == 4 * (model + 4) / 4
    assert bytes_per_client([{0: 10, 2: 5}, {1: 3}], 4) == round(18 / 4)


def test_rows_of_a_round_come_from_the_clients_own_rows_and_the_broadcast() -> None:
    """DP-SGD: an upload is post-processing of the client's query and of what the server had sent
    before."""
    _, past = run(
        "algo=fedavg", "algo.rounds=2", "privacy=dpsgd", "privacy.sampling_probability=0.5"
    )
    rows = past[-1].ledger.releases
    for row in rows:
        if row.name != "update":
            continue
        sources = [rows[of] for of in row.post_of]
        assert row.why == POST_PROCESSING
        assert {(s.name, s.client, s.round) for s in sources if s.client != SERVER} == {
            ("dpsgd", row.client, row.round)
        }
        assert {(s.name, s.round) for s in sources if s.client == SERVER} == {("model", row.round)}
    second = next(r for r in rows if r.client == SERVER and r.round == 1)
    assert {rows[of].round for of in second.post_of} == {0} and {
        rows[of].client for of in second.post_of
    } == {SERVER, 0, 1, 2, 3}


def test_rooted_shifts_ids_and_adds_the_broadcast_to_what_was_computed_from_it() -> None:
    def row(post_of: tuple[int, ...], why: str, event: dpa.DpEvent | None = None) -> LedgerRow:
        return LedgerRow(
            0,
            0,
            "x",
            "update",
            ("server",),
            {},
            "",
            event or dpa.NoOpDpEvent(),
            post_of=post_of,
            why=why,
        )

    noised = row((0,), "clipped", dpa.GaussianDpEvent(1.0))
    found = link_to_broadcast(
        [row((), "public"), row((0,), POST_PROCESSING), row((0,), "other"), noised], 10, (4, 7)
    )
    assert [r.post_of for r in found] == [(), (10, 4, 7), (10,), (10, 4, 7)]


def test_a_noised_query_costs_what_the_broadcast_it_reads_had_cost() -> None:
    """The second round embeds in a model that was trained with the first round's noised counts."""
    ledger = trained("feddm_dp")[0].ledger
    rows = ledger.releases
    mine = [r for r in ledger.releases if r.client == 0]
    late = [r for r in mine if r.name == "embedding" and r.round == 1]
    assert late and {(rows[of].name, rows[of].round) for r in late for of in r.post_of} == {
        ("model", 1)
    }
    alone = max(
        epsilon(
            dpa.ComposedDpEvent(
                [dpa.SelfComposedDpEvent(r.event, r.count) for r in mine if r.partition == cell]
            ),
            ledger.delta,
        )
        for cell in {r.partition for r in mine if r.name == "embedding"}
    )
    assert ledger.epsilon(surfaces=["prototypes"], client=0) > alone * 1.01


@pytest.mark.nightly(cases=["case1"])
@pytest.mark.parametrize(
    "case",
    [("feddm_dp",), ("fedfed_dp",), ("fedavg", "privacy=client"), ("fedavg", "privacy=dpsgd")],
)
def test_sources_widen_surfaces_and_never_the_total(case: tuple[str, ...]) -> None:
    ledger = trained(*case)[0].ledger
    bare = Ledger(ledger.relation, ledger.unit, ledger.delta)
    bare.append([replace(row, post_of=()) for row in ledger.releases])
    assert bare.epsilon() == ledger.epsilon() < math.inf
    assert all(
        bare.epsilon(surfaces=[s]) <= ledger.epsilon(surfaces=[s]) <= ledger.epsilon()
        for s in {r.surface for r in ledger.releases}
    )


def test_a_server_that_sends_nothing_new_for_a_round_still_owes_its_sources() -> None:
    """What was received before a silent round is named by the first broadcast after it."""
    experiment = build_experiment(compose_config("train", [*TINY, "algo=fedavg", "algo.rounds=3"]))
    plan = experiment.plan
    engine = experiment.engine
    one = run_round(plan, start_training(plan, experiment.new_ledger()), experiment.shards, engine)[
        0
    ]
    known = {
        name: digest_tensors(value) for name, value in plan.method.broadcast(one.server).items()
    }
    silent = run_round(plan, replace(one, sent=known), experiment.shards, engine)[0]
    rows = run_round(plan, silent, experiment.shards, engine)[0].ledger.releases
    (fresh,) = [r for r in rows if r.client == SERVER and r.round > 0]
    assert {rows[of].round for of in fresh.post_of if rows[of].client != SERVER} == {0, 1}


def test_what_is_published_at_the_end_is_seen_by_peers_and_the_public() -> None:
    experiment, past = run("algo=fedavg", "algo.rounds=2", "participation=0.5")
    before = len(past[-1].ledger)
    done = publish_final_state(experiment.plan, past[-1])
    last: list[Release] = list(done.ledger.releases[before:])
    assert [r.visible_to for r in last] == [("peer", "public")] and last[0].client == SERVER
    assert all(
        r.visible_to == ("peer",) for r in done.ledger.releases[:before] if r.client == SERVER
    )


def test_rounds_of_the_audited_client_are_kept_as_far_as_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, past = run("algo=fedavg", "algo.rounds=4")
    assert [sorted(p.snapshots) for p in past] == [[], [0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
    monkeypatch.setattr("privdd.federated.simulation.LEAST_KEPT_ROUNDS", 2)
    monkeypatch.setattr("privdd.federated.simulation.KEPT_BYTES", 1)
    _, past = run("algo=fedavg", "algo.rounds=4", "seed=1")
    assert [sorted(p.snapshots) for p in past] == [[], [0], [0, 1], [0, 2], [0, 3]]


def test_small_rounds_are_kept_in_number_and_large_ones_as_far_as_their_bytes_fit() -> None:
    assert kept_round_limit(0) == kept_round_limit(100_000) == MOST_KEPT_ROUNDS == 32
    assert kept_round_limit(KEPT_BYTES // 20) == 20
    assert kept_round_limit(90_000_000) == LEAST_KEPT_ROUNDS == 8  # a ResNet-18, both ways


def test_audited_rounds_are_the_latest_of_each_phase_and_kind_of_upload() -> None:
    def at(round: int, phase: str, *names: str) -> Snapshot:
        return Snapshot(round, {}, {}, {name: {} for name in names}, phase)

    kept = [
        at(0, "distill", "a"),
        at(2, "distill", "a"),
        at(3, "release", "b"),
        at(4, "train", "a"),
        at(9, "train", "a"),
        at(7, "train", "a", "c"),
    ]
    assert audited_rounds({s.round: s for s in kept}) == [2, 3, 7, 9]


@pytest.mark.parametrize(("worlds", "size"), [(1, 4), (2, 4), (4, 4), (5, 4), (17, 16), (33, 16)])
def test_chunks_hold_every_world_but_the_real_one_once(worlds: int, size: int) -> None:
    groups = group_replays(worlds, size)
    assert [w for group in groups for w in group] == list(range(1, worlds))
    assert all(len({w // size for w in group}) == 1 for group in groups)


class Remembered:
    """Predicts class 1 for everybody, or what the client remembers."""

    audit_hooks = property(lambda self: self)

    def __init__(self, kind: str) -> None:
        self.accuracy_kind = kind

    def predict(self, server: Any, memory: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.eye(3)[torch.full((len(x),), 1 if memory is None else int(memory["class"]))]


def labelled(*y: int) -> Records:
    return Records(
        torch.zeros(len(y), 1, 2, 2), torch.tensor(y, dtype=torch.long), torch.arange(len(y))
    )


def test_accuracy_is_global_or_the_mean_of_the_clients_own() -> None:
    """Personal: each client's own memory on its own test records; clients without memory or test
    records are left out."""
    tests = [labelled(0, 0, 0, 2), labelled(2, 1), labelled(1, 1, 1), labelled()]
    shards = [Shard(k, labelled(0), test, labelled(0), 3) for k, test in enumerate(tests)]
    memories = {
        0: {"class": torch.tensor(0)},
        1: {"class": torch.tensor(2)},
        3: {"class": torch.tensor(1)},
    }
    progress = Progress(1, {}, memories, Ledger())

    def of(kind: str) -> float:
        plan: Any = SimpleNamespace(method=Remembered(kind), problem=Problem((1, 1, 1), 3, 4))
        return measure_accuracy(plan, progress, labelled(1, 1, 1, 0, 2), shards)

    assert of("global") == pytest.approx(3 / 5) and of("personal") == pytest.approx(
        (3 / 4 + 1 / 2) / 2
    )


# When client-level noise drowns what is learned: the closed form, and what it says.


torch.set_num_threads(1)
CLIENT = ("fedavg", "privacy=client", "model=mlp", "algo.rounds=4")


def ratio(*more: str) -> float:
    found = noise_to_signal(tiny(*CLIENT, *more).plan)
    assert found is not None
    return found[0]


def test_the_noise_of_the_average_is_that_of_simulated_noise() -> None:
    """Length of the mean of three clients' noise over four rounds, against four rounds of updates
    of the clip norm."""
    plan = tiny(*CLIENT).plan
    size = sum(p.numel() for p in plan.method.classifier(plan.problem).parameters())  # type: ignore[union-attr]
    noise = torch.randn(4, 3, size, generator=torch.Generator().manual_seed(1)).mean(1).sum(0)
    assert ratio() == pytest.approx(float(noise.norm()) / 4, rel=0.05)


def test_shares_of_noise_are_counted_as_such() -> None:
    assert ratio() / ratio("trust=secagg", "trust.colluding=0") == pytest.approx(math.sqrt(3))


@pytest.mark.parametrize("trust", ["local", "secagg"])
def test_the_number_of_clients_named_is_enough(trust: str) -> None:
    more = (f"trust={trust}",) if trust == "local" else ("trust=secagg", "trust.colluding=0")
    noise = f"privacy.noise_multiplier={0.1 if trust == 'local' else 0.25}"
    least = noise_to_signal(tiny(*CLIENT, *more, noise).plan)
    assert least is not None and least[0] > MAX_NOISE_TO_SIGNAL and 3 < least[1] <= 14
    alike = noise_to_signal(tiny(*CLIENT, *more, noise, f"partition.clients={least[1]}").plan)
    assert alike is not None and alike[0] <= MAX_NOISE_TO_SIGNAL


def test_it_is_said_once_and_only_where_it_is_so() -> None:
    with pytest.warns(
        UserWarning, match=r"3 clients a round are too few: .* about \d+ clients are needed"
    ):
        tiny(*CLIENT, "privacy.noise_multiplier=9")
    assert (
        too_few_clients_warning(tiny("fedavg").plan) == ""
        and noise_to_signal(tiny("feddm_dp").plan) is None
    )
    assert too_few_clients_warning(tiny(*CLIENT, "privacy.noise_multiplier=.05").plan) == ""


# Rounds that arrive one at a time stay spread over all of them.


@pytest.mark.parametrize("most", [2, 3, 8])
@pytest.mark.parametrize("total", [1, 2, 8, 9, 50, 200])
def test_a_stream_of_rounds_stays_spread(total: int, most: int) -> None:
    kept: list[int] = []
    for t in range(total):
        kept = select_spread_rounds([*kept, t], most)
        assert (
            kept[0] == 0
            and kept[-1] == t
            and kept == sorted(set(kept))
            and len(kept) == min(t + 1, most)
        )
    gaps = [b - a for a, b in pairwise(kept)]
    if total > most > 2:
        assert max(gaps) <= 4 * total / (most - 1)


def test_what_fits_is_left_alone() -> None:
    assert select_spread_rounds([3, 5, 9], 3) == [3, 5, 9] and select_spread_rounds([], 2) == []
    assert select_spread_rounds([0, 1, 10, 20], 3) == [0, 10, 20]
