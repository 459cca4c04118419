"""Replays under secure aggregation: the view is the victim's upload among the others', under the noise of all shares."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from attacks.types import Adversary, Family, Knowledge, Surface, View
from privdd.auditing.replay import other_uploads, replay_context, uploads_seen_by_server
from privdd.auditing.views import describe_granted_knowledge
from privdd.federated.simulation import Plan, Snapshot
from tests.federations import tiny, trained

torch.set_num_threads(1)
PLAIN = ("fedavg", "algo.weighting=uniform", "trust=secagg", "model=mlp")
NOISED = ("fedavg", "privacy=client", "trust=secagg", "model=mlp")


def state(*settings: str) -> tuple[Plan, Snapshot, list[object]]:
    experiment = tiny(*settings)
    return experiment.plan, trained(*settings)[0].snapshots[0], list(experiment.shards)


def replayed(plan: Plan, snapshot: Snapshot, shards: list[object]) -> dict[str, torch.Tensor]:
    others = other_uploads(plan, 0, snapshot.broadcast, shards)  # type: ignore[arg-type]
    ctx = replay_context(plan, 0)
    upload, _ = plan.method.local(snapshot.broadcast, {}, shards[plan.victim], ctx)  # type: ignore[arg-type]
    return dict(uploads_seen_by_server(plan, 0, plan.channel.send(upload, ctx)[0].values, others)["update"])


def test_without_noise_a_replay_on_the_same_records_is_what_the_server_saw() -> None:
    plan, snapshot, shards = state(*PLAIN)
    again = replayed(plan, snapshot, shards)
    for key, value in snapshot.sent["update"].items():
        assert torch.allclose(again[key], value, atol=1e-6)


def test_the_noise_of_a_replay_is_that_of_all_shares() -> None:
    """Accepted at its closed form, refused at that of one share, of the audited client alone."""
    plan, snapshot, shards = state(*NOISED)
    plans = [replace(plan, keys=plan.keys.fold("world", w)) for w in (1, 2)]
    one, two = (torch.cat([t.flatten() for t in replayed(p, snapshot, shards).values()]) for p in plans)
    share = float(plan.mechanisms["update"].noise_std)  # type: ignore[attr-defined]
    square = float((one - two).double().square().sum()) * 9  # of the sum over three clients, twice
    spread = stats.chi2.cdf(square / (2 * 3 * share**2), len(one))
    assert 1e-6 < spread < 1 - 1e-6
    assert stats.chi2.cdf(square / (2 * share**2), len(one)) > 1 - 1e-6
    assert math.isclose(share * math.sqrt(2), 1.0)  # dealt among two of three: one may collude


def test_where_every_upload_is_seen_nothing_is_added() -> None:
    experiment = tiny("fedavg", "model=mlp")
    assert other_uploads(experiment.plan, 0, {}, experiment.shards) == {}
    sent = {"update": {"w": torch.ones(2)}}
    assert uploads_seen_by_server(experiment.plan, 0, sent, {}) is sent


def test_laplace_noise_is_not_dealt() -> None:
    with pytest.raises(ValueError, match="Laplace"):
        replay_context(tiny(*NOISED).plan, 0).noise.laplace((1,))


def test_a_note_grants_the_others_part_to_the_attacks_that_have_it() -> None:
    """The sum less the others' part is in no view: only replays of the client are made with it."""
    view = View(Surface.UPDATE, Adversary.SERVER, (), Knowledge((1, 8, 8), 10, torch.zeros(1, 1, 8, 8), torch.zeros(1)))
    summed, local = tiny(*PLAIN).plan, tiny("fedavg", "model=mlp").plan
    said = {family: describe_granted_knowledge(summed, view, family) for family in Family}
    assert {family for family, words in said.items() if "knows what the other" in words} == {Family.MEMBERSHIP}
    assert all("sees the sum" in words for words in said.values())
    assert not any(describe_granted_knowledge(local, view, family) for family in Family)
