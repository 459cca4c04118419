"""The ledger held against what was noted of a run: right as it is, wrong in each way that understates what was spent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import dp_accounting as dpa
import pytest

from attacks.types import Finding
from privdd.auditing.dp_tests.ledger_test import LEDGER_TEST, ledger_findings
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.federated.channel import POST_PROCESSING
from privdd.federated.noise_log import NoiseLog
from privdd.federated.settings import GuaranteeBudget
from privdd.federated.simulation import run_round, start_training
from privdd.privacy.ledger import Ledger, Release
from privdd.runtime.engine import Engine
from tests.federations import tiny

RUNS = {
    "dpsgd": ("fedavg", "privacy=dpsgd", "privacy.sampling_probability=0.2"),
    "feddm_dp": ("feddm_dp",),
    "client": ("fedavg", "privacy=client"),
    "adaptive": ("fedavg_adaptive",),
}


def trained(name: str) -> tuple[GuaranteeSubject, NoiseLog]:
    experiment = tiny(*RUNS[name])
    plan, record = experiment.plan, NoiseLog(experiment.plan.victim)
    progress = start_training(plan, experiment.new_ledger())
    while progress.round < plan.method.rounds:
        progress, _, _ = run_round(plan, progress, experiment.shards, Engine(), record=record)
    shard = experiment.shards[plan.victim]
    subject = GuaranteeSubject(plan, shard, progress.snapshots, progress.ledger, 1e-5, 0.95, GuaranteeBudget(20, 20, 1), plan.keys)
    return subject, record


def with_rows(subject: GuaranteeSubject, change: Callable[[Release], Release]) -> GuaranteeSubject:
    ledger = Ledger(subject.ledger.relation, subject.ledger.unit, subject.ledger.delta)
    ledger.append([change(row) for row in subject.ledger.releases], absolute=True)
    return replace(subject, ledger=ledger)


@pytest.mark.parametrize("name", RUNS)
def test_the_ledger_of_a_run_tells_of_all_its_releases(name: str) -> None:
    subject, record = trained(name)
    assert sum(len(watch.releases) for watch in record.rounds.values()) > 3
    assert _quiet(ledger_findings(subject, record))
    first = min(watch.round for watch in record.rounds.values() if watch.audited)
    record.rounds[first, subject.plan.victim].releases.clear()
    gone = [f.measures["diagnostics"].get("untested", {}).get("ledger", "") for f in ledger_findings(subject, record)]
    assert any(f"(first: round {first})" in why for why in gone)


def _quiet(found: Iterable[Finding]) -> bool:
    """Whether the test has rows, and all say that the ledger was looked at and is right."""
    said = [f.measures["diagnostics"] for f in found]
    return bool(said) and all("covers" in one and "refuted" not in one for one in said)


def spent(row: Release, **changes: object) -> Release:
    return replace(row, **changes) if row.is_protected else row  # type: ignore[arg-type]


def quieter(event: dpa.DpEvent) -> dpa.DpEvent:
    if isinstance(event, dpa.PoissonSampledDpEvent):
        return dpa.PoissonSampledDpEvent(event.sampling_probability, quieter(event.event))
    return dpa.GaussianDpEvent(event.noise_multiplier * 1.01) if isinstance(event, dpa.GaussianDpEvent) else event


FAULTS: dict[str, tuple[tuple[str, ...], Callable[[Release], Release], str]] = {
    "less noise is entered": (tuple(RUNS), lambda row: spent(row, event=quieter(row.event)), "was released"),
    "a release too few": (("dpsgd", "feddm_dp"), lambda r: spent(r, count=max(1, r.count - 1)), "the ledger has"),
    "entered as free": (tuple(RUNS), lambda r: spent(r, event=dpa.NoOpDpEvent()) if r.round else r, "the ledger has 0"),
    "entered for somebody else": (tuple(RUNS), lambda r: spent(r, client=(r.client + 1) % 2), "the ledger has 0"),
    "entered in another cell": (tuple(RUNS), lambda r: spent(r, partition=f"label:{90 + r.round}"), "the ledger has 0"),
    "post-processing of nothing": (
        ("dpsgd", "feddm_dp"), lambda r: replace(r, post_of=()) if r.why == POST_PROCESSING else r, "does not point to",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "fault"), [(name, f) for f, (names, *_) in FAULTS.items() for name in names])
def test_a_ledger_that_understates_is_refuted(name: str, fault: str) -> None:
    subject, record = trained(name)
    _, change, says = FAULTS[fault]
    found = [f for f in ledger_findings(with_rows(subject, change), record) if not _quiet([f])]
    assert found and all(f.attack == LEDGER_TEST and f.measures["diagnostics"]["refuted"] for f in found)
    assert any(says in f.measures["note"] for f in found)


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
    assert "coins were tossed at 0.4" in found.measures["note"]
