"""Tests of ``privdd.auditing.dp_tests.ledger_audit``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache

import dp_accounting as dpa
import pytest

from attacks.tradeoff import gaussian_epsilon
from attacks.types import Finding
from privdd.auditing.dp_tests.epsilon_lower_bound import epsilon_lower_bound
from privdd.auditing.dp_tests.ledger_audit import (
    LEDGER_TEST,
    _find_small_noise,
    ledger_findings,
)
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.core.units import Relation
from privdd.federated.channel import POST_PROCESSING
from privdd.federated.noise_log import NoiseLog
from privdd.federated.settings import GuaranteeBudget
from privdd.federated.simulation import run_round, start_training
from privdd.privacy.accounting import epsilon
from privdd.privacy.ledger import Ledger, Release
from privdd.privacy.noise_laws import NOISE_LAWS
from privdd.runtime.engine import Engine
from tests.federations import tiny

# The lower bound of a composition's epsilon: near what an accountant states, and never above.


G = dpa.GaussianDpEvent
P = dpa.PoissonSampledDpEvent
L = dpa.LaplaceDpEvent
CASES = {
    "gaussians": [(G(1.0), 3)],
    "sampled": [(P(0.25, G(5.0)), 8), (G(20.0), 2)],
    "steps": [(P(0.1, G(1.0)), 80)],
    "laplace": [(L(1.0), 3)],
    "composed": [
        (dpa.SelfComposedDpEvent(P(0.2, G(1.0)), 5), 1),
        (dpa.ComposedDpEvent([G(1.0), G(2.0)]), 1),
    ],
}


@pytest.mark.nightly(
    cases=[
        "steps-add_remove",
        "composed-zero_out",
        "composed-add_remove",
        "composed-replace",
        "steps-zero_out",
    ]
)
@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_just_below_the_accountant(case: str, relation: Relation) -> None:
    event = dpa.ComposedDpEvent([dpa.SelfComposedDpEvent(one, n) for one, n in CASES[case]])
    stated = epsilon(event, 1e-5, relation=relation)
    assert 0.94 * stated < epsilon_lower_bound(CASES[case], 1e-5, relation) <= stated * (1 + 1e-6)


def test_a_gaussian_is_exact_and_an_exchange_moves_it_twice_as_far() -> None:
    assert epsilon_lower_bound([(G(2.0), 4)], 1e-5, "zero_out") == pytest.approx(
        gaussian_epsilon(1.0, 1e-5), rel=1e-6
    )
    assert epsilon_lower_bound([(G(2.0), 4)], 1e-5, "replace") == pytest.approx(
        gaussian_epsilon(2.0, 1e-5), rel=1e-6
    )


def test_nothing_is_said_of_an_unknown_law() -> None:
    assert epsilon_lower_bound([(dpa.ZCDpEvent(0.1), 1), (G(1.0), 1)], 1e-5, "zero_out") == 0.0


@pytest.mark.nightly(cases=["steps-1e-320", "steps-1e-100", "steps-1e-13", "steps-1e-15"])
@pytest.mark.parametrize("delta", [1e-13, 1e-15, 1e-20, 1e-100, 1e-320])
@pytest.mark.parametrize("case", ["sampled", "steps", "laplace"])
def test_a_tiny_delta_is_no_infinite_loss(case: str, delta: float) -> None:
    """It was, where delta is below the tails that are cut off: a sound ledger was refuted."""
    event = dpa.ComposedDpEvent([dpa.SelfComposedDpEvent(one, n) for one, n in CASES[case]])
    assert (
        0
        < epsilon_lower_bound(CASES[case], delta, "add_remove")
        <= epsilon(event, delta) * (1 + 1e-6)
    )


# The ledger held against what was noted of a run: right as it is, wrong in each way that
# understates what was spent.


RUNS = {
    "dpsgd": ("fedavg", "privacy=dpsgd", "privacy.sampling_probability=0.2"),
    "feddm_dp": ("feddm_dp",),
    "client": ("fedavg", "privacy=client"),
    "adaptive": ("fedavg_adaptive",),
}


def trained(name: str) -> tuple[GuaranteeSubject, NoiseLog]:
    """What was trained once, with a log of the test's own."""
    subject, record = train_once(name)
    return subject, deepcopy(record)


@cache
def train_once(name: str) -> tuple[GuaranteeSubject, NoiseLog]:
    experiment = tiny(*RUNS[name])
    plan = experiment.plan
    record = NoiseLog(experiment.plan.victim)
    progress = start_training(plan, experiment.new_ledger())
    while progress.round < plan.method.rounds:
        progress, _, _ = run_round(plan, progress, experiment.shards, Engine(), record=record)
    shard = experiment.shards[plan.victim]
    subject = GuaranteeSubject(
        plan,
        shard,
        progress.snapshots,
        progress.ledger,
        1e-5,
        0.95,
        GuaranteeBudget(20, 20, 1),
        plan.keys,
    )
    return subject, record


def with_rows(subject: GuaranteeSubject, change: Callable[[Release], Release]) -> GuaranteeSubject:
    ledger = Ledger(subject.ledger.relation, subject.ledger.unit, subject.ledger.delta)
    ledger.append([change(row) for row in subject.ledger.releases], absolute=True)
    return replace(subject, ledger=ledger)


@pytest.mark.nightly(cases=["dpsgd", "feddm_dp"])
@pytest.mark.parametrize("name", RUNS)
def test_the_ledger_of_a_run_tells_of_all_its_releases(name: str) -> None:
    subject, record = trained(name)
    assert sum(len(watch.releases) for watch in record.rounds.values()) > 3
    assert _quiet(ledger_findings(subject, record))
    first = min(watch.round for watch in record.rounds.values() if watch.audited)
    record.rounds[first, subject.plan.victim].releases.clear()
    gone = [
        f.diagnostics.get("untested", {}).get("ledger", "")
        for f in ledger_findings(subject, record)
    ]
    assert any(f"(first: round {first})" in why for why in gone)


def _quiet(found: Iterable[Finding]) -> bool:
    """Whether the test has rows, and all say that the ledger was looked at and is right."""
    said = [f.diagnostics for f in found]
    return bool(said) and all("covers" in one and "refuted" not in one for one in said)


def spent(row: Release, **changes: object) -> Release:
    return replace(row, **changes) if row.is_protected else row  # type: ignore[arg-type]


def quieter(event: dpa.DpEvent) -> dpa.DpEvent:
    if isinstance(event, dpa.PoissonSampledDpEvent):
        return dpa.PoissonSampledDpEvent(event.sampling_probability, quieter(event.event))
    return (
        dpa.GaussianDpEvent(event.noise_multiplier * 1.01)
        if isinstance(event, dpa.GaussianDpEvent)
        else event
    )


FAULTS: dict[str, tuple[tuple[str, ...], Callable[[Release], Release], str]] = {
    "less noise is entered": (
        tuple(RUNS),
        lambda row: spent(row, event=quieter(row.event)),
        "was released",
    ),
    "a release too few": (
        ("dpsgd", "feddm_dp"),
        lambda r: spent(r, count=max(1, r.count - 1)),
        "the ledger has",
    ),
    "entered as free": (
        tuple(RUNS),
        lambda r: spent(r, event=dpa.NoOpDpEvent()) if r.round else r,
        "the ledger has 0",
    ),
    "entered for somebody else": (
        tuple(RUNS),
        lambda r: spent(r, client=(r.client + 1) % 2),
        "the ledger has 0",
    ),
    "entered in another cell": (
        tuple(RUNS),
        lambda r: spent(r, partition=f"label:{90 + r.round}"),
        "the ledger has 0",
    ),
    "post-processing of nothing": (
        ("dpsgd", "feddm_dp"),
        lambda r: replace(r, post_of=()) if r.why == POST_PROCESSING else r,
        "does not point to",
    ),
}


@pytest.mark.nightly(
    cases=[
        "feddm_dp-a release too few",
        "feddm_dp-less noise is entered",
        "dpsgd-less noise is entered",
        "dpsgd-a release too few",
    ]
)
@pytest.mark.parametrize(
    ("name", "fault"), [(name, f) for f, (names, *_) in FAULTS.items() for name in names]
)
def test_a_ledger_that_understates_is_refuted(name: str, fault: str) -> None:
    subject, record = trained(name)
    _, change, says = FAULTS[fault]
    found = [f for f in ledger_findings(with_rows(subject, change), record) if not _quiet([f])]
    assert found and all(f.attack == LEDGER_TEST and f.diagnostics["refuted"] for f in found)
    assert any(says in f.measures.note for f in found)


def test_a_release_too_many_in_the_ledger_is_no_fault() -> None:
    """It overstates what was spent."""
    subject, record = trained("dpsgd")
    more = with_rows(subject, lambda row: spent(row, count=row.count + 1))
    assert _quiet(ledger_findings(more, record))


def test_an_event_amplified_by_a_rate_that_was_not_drawn_is_refuted() -> None:
    """Row and release agree, and coins were tossed at twice the rate that both state."""
    subject, record = trained("dpsgd")
    for watch in record.rounds.values():
        for coins in watch.samples:
            coins.probability *= 2
    (found,) = ledger_findings(subject, record)
    assert "coins were tossed at 0.4" in found.measures.note


@dataclass(frozen=True)
class BoundedEvent(dpa.DpEvent):
    """A release with noise of bounded support, a law that is not shipped."""

    noise_multiplier: float


def stated_release(event: dpa.DpEvent, noise_std: float) -> Release:
    return Release(
        id=0,
        round=0,
        client=0,
        name="sum",
        surface="update",
        visible_to=("server",),
        shape={},
        digest="",
        event=event,
        noise_std=noise_std,
        sensitivity=2.0,
    )


@pytest.mark.parametrize("event", [G(1.5), L(1.5), BoundedEvent(1.5)])
def test_too_little_noise_of_any_law_is_seen(
    event: dpa.DpEvent, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded = replace(NOISE_LAWS["laplace"], name="bounded", event=BoundedEvent)
    monkeypatch.setitem(NOISE_LAWS, "bounded", bounded)
    assert list(_find_small_noise([stated_release(event, 3.0)])) == []
    ((name, says),) = _find_small_noise([stated_release(event, 2.9)])
    assert name == "sum" and "noise of 2.9 is stated" in says
