"""T0 of sums: a client that leaves its noise out is found, and shares that are too few for the stated noise."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from privdd.auditing.guarantees.own_noise import noise_finding, noted
from privdd.auditing.guarantees.residual_law import allowed
from privdd.auditing.guarantees.statement import Subject
from privdd.auditing.guarantees.summed_noise import enough, sum_looks, summed
from privdd.auditing.guarantees.tiers import of_sums
from privdd.auditing.seen_sums import Scaled
from privdd.federated.channel import ClientContext
from privdd.federated.noise_record import NoiseRecord
from privdd.federated.settings import Budget
from privdd.federated.simulation import Plan, start, step
from privdd.privacy.mechanisms import ClientLevel
from privdd.privacy.mechanisms.noise_share import ClientShare
from privdd.runtime.engine import Engine
from tests.federations import tiny

torch.set_num_threads(1)
SUMMED = ("fedavg", "privacy=client", "trust=secagg", "model=mlp", "partition.clients=4", "algo.rounds=6")


@dataclass(frozen=True)
class OneQuiet(Plan):
    """Client 2's draws are multiplied by ``times``, in one round or in all."""

    times: float = 0.0
    only: int | None = None

    def context(self, round: int, client: int, **more: Any) -> ClientContext:
        ctx = super().context(round, client, **more)
        if client == 2 and self.only in (None, round):
            ctx.noise = Scaled(ctx.noise, self.times)
        return ctx


def run(times: float, only: int | None = None) -> tuple[Subject, NoiseRecord]:
    experiment = tiny(*SUMMED)
    plan = OneQuiet(**{f.name: getattr(experiment.plan, f.name) for f in fields(Plan)}, times=times, only=only)
    record, progress = NoiseRecord(plan.victim), start(plan, experiment.ledger())
    while progress.round < plan.method.rounds:
        progress, _, _ = step(plan, progress, experiment.shards, Engine(), record=record)
    held = (experiment.shards[plan.victim], progress.snapshots, progress.ledger)
    return Subject(plan, *held, 1e-5, 0.99, Budget(20, 20, 1), plan.keys), record


def of_the_sum(subject: Subject, record: NoiseRecord) -> float:
    """The smallest p-value of the tests of the sum alone."""
    sums, why = summed(subject, "update", noted(record, "update"))
    assert not why
    return min(look.p for look in sum_looks(subject, "update", sums))


def test_a_client_that_leaves_its_noise_out_is_found_in_the_sum() -> None:
    healthy, faulty = run(1.0), run(0.0)
    assert of_the_sum(*healthy) > allowed(0.99) > of_the_sum(*faulty)
    right, wrong = (noise_finding(*one, "update").measures["diagnostics"] for one in (healthy, faulty))
    assert "refuted" not in right and "untested" not in right
    assert wrong["refuted"] is True


def test_shares_that_are_not_there_make_the_noise_untested() -> None:
    subject, record = run(1.0)
    for (_, client), watch in record.rounds.items():
        for release in watch.releases if client == 2 else ():
            release.sample = torch.zeros(0)
    assert "untested" in noise_finding(subject, record, "update").measures["diagnostics"]


@pytest.mark.parametrize("gone", ["a share", "all shares", "what a share was"])
def test_one_round_that_was_not_seen_makes_the_noise_untested(gone: str) -> None:
    """Of a client that is not audited, or of a round that the audited one is not in."""
    subject, record = run(1.0)
    other = next(k for k in range(4) if k != subject.plan.victim)
    if gone == "a share":
        record.rounds[3, other].releases.clear()
    elif gone == "what a share was":
        record.rounds[3, other].releases[0].missing = "its values are not finite"
    releases = [one for one in noted(record, "update") if gone != "all shares" or one[0].round != 3]
    sums, why = summed(subject, "update", releases)
    assert not sums and "round 3" in why
    if gone != "all shares":
        assert "round 3" in noise_finding(subject, record, "update").measures["diagnostics"]["untested"]["noise"]


def test_a_client_that_halves_its_noise_in_one_round_is_found() -> None:
    healthy, faulty = run(1.0), run(0.5, 3)
    right, wrong = (noise_finding(*one, "update").measures["diagnostics"] for one in (healthy, faulty))
    assert "refuted" not in right and wrong["refuted"] is True


def test_noise_dealt_among_more_than_are_honest_is_counted() -> None:
    subject, _ = run(1.0)
    share = subject.plan.mechanisms["update"]
    assert isinstance(share, ClientShare) and share.parts == 3 and enough(subject, "update").p == 1.0
    dealt = replace(subject.plan, mechanisms={"update": replace(share, parts=4)})
    assert enough(replace(subject, plan=dealt), "update").p == 0.0


def test_other_tiers_test_a_contribution_under_the_whole_noise() -> None:
    subject, _ = run(1.0)
    whole = of_sums(subject).plan.mechanisms["update"]
    assert type(whole) is ClientLevel and isinstance(subject.plan.mechanisms["update"], ClientShare)
    assert whole.noise_multiplier == subject.plan.mechanisms["update"].noise_multiplier  # type: ignore[attr-defined]
    assert isinstance(whole.event.noise_multiplier, float) and not isinstance(whole, Tensor)
