"""T0 of sums: a client that leaves its noise out is found, and shares that are too few for the stated noise."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from privdd.auditing.dp_tests.noise_and_sampling_test import (
    logged_releases,
    noise_finding,
    share_count_outcome,
    sum_noise_outcomes,
    sum_residuals,
)
from privdd.auditing.dp_tests.randomness_statistics import p_value_limit
from privdd.auditing.dp_tests.runner import subject_of_sums
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.auditing.replay import scale_noise
from privdd.federated.channel import ClientContext
from privdd.federated.noise_log import NoiseLog
from privdd.federated.settings import GuaranteeBudget
from privdd.federated.simulation import Plan, run_round, start_training
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

    def client_context(self, round: int, client: int, **more: Any) -> ClientContext:
        ctx = super().client_context(round, client, **more)
        if client == 2 and self.only in (None, round):
            ctx.noise = scale_noise(ctx.noise, self.times)
        return ctx


def run(times: float, only: int | None = None) -> tuple[GuaranteeSubject, NoiseLog]:
    experiment = tiny(*SUMMED)
    plan = OneQuiet(**{f.name: getattr(experiment.plan, f.name) for f in fields(Plan)}, times=times, only=only)
    record, progress = NoiseLog(plan.victim), start_training(plan, experiment.new_ledger())
    while progress.round < plan.method.rounds:
        progress, _, _ = run_round(plan, progress, experiment.shards, Engine(), record=record)
    held = (experiment.shards[plan.victim], progress.snapshots, progress.ledger)
    return GuaranteeSubject(plan, *held, 1e-5, 0.99, GuaranteeBudget(20, 20, 1), plan.keys), record


def of_the_sum(subject: GuaranteeSubject, record: NoiseLog) -> float:
    """The smallest p-value of the tests of the sum alone."""
    sums, why = sum_residuals(subject, "update", logged_releases(record, "update"))
    assert not why
    return min(look.p for look in sum_noise_outcomes(subject, "update", sums))


def test_a_client_that_leaves_its_noise_out_is_found_in_the_sum() -> None:
    healthy, faulty = run(1.0), run(0.0)
    assert of_the_sum(*healthy) > p_value_limit(0.99) > of_the_sum(*faulty)
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
    releases = [one for one in logged_releases(record, "update") if gone != "all shares" or one[0].round != 3]
    sums, why = sum_residuals(subject, "update", releases)
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
    assert isinstance(share, ClientShare) and share.parts == 3 and share_count_outcome(subject, "update").p == 1.0
    dealt = replace(subject.plan, mechanisms={"update": replace(share, parts=4)})
    assert share_count_outcome(replace(subject, plan=dealt), "update").p == 0.0


def test_other_tiers_test_a_contribution_under_the_whole_noise() -> None:
    subject, _ = run(1.0)
    whole = subject_of_sums(subject).plan.mechanisms["update"]
    assert type(whole) is ClientLevel and isinstance(subject.plan.mechanisms["update"], ClientShare)
    assert whole.noise_multiplier == subject.plan.mechanisms["update"].noise_multiplier  # type: ignore[attr-defined]
    assert isinstance(whole.event.noise_multiplier, float) and not isinstance(whole, Tensor)
