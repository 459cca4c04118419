"""``single_record_view``: what gradient inversion is given is the update of the very record that it is judged against."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from attacks.types import Adversary, Surface
from privdd.auditing.replay import draw_membership_game
from privdd.auditing.views import FinishedRun, single_record_view
from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.core.rng import Keys
from privdd.core.types import Records, Shard
from privdd.federated.simulation import run_round, start_training

SMALL = [
    "preset=smoke", "data=digits", "data.limit=90", "data.test_limit=20", "partition=iid", "partition.clients=2",
    "algo.rounds=2", "algo.local_epochs=2",
]  # fmt: skip
CHOSEN = [0, 5, 2, 17]  # positions in what the client trained on, not in order


@lru_cache(maxsize=4)
def scene(algo: str, *more: str) -> FinishedRun:
    """A finished run of two rounds; the audited client has lost half of some 30 records, so positions differ from ids."""
    experiment = build_experiment(compose_config("audit", [f"algo={algo}", *SMALL, *more]))
    plan = experiment.plan
    game = draw_membership_game(experiment.shards[plan.victim], 20, 4, Keys(3))
    shards = list(experiment.shards)
    shards[plan.victim] = game.shard_of_replay(shards[plan.victim], 0)
    progress = start_training(plan, experiment.new_ledger())
    for _ in range(2):
        progress, _, _ = run_round(plan, progress, shards, experiment.engine)
    return FinishedRun(experiment, progress, game, shards[plan.victim])


def only(shard: Shard, at: int) -> Shard:
    """The client that holds one record."""
    own = shard.train
    return replace(shard, train=Records(own.x[at : at + 1], own.y[at : at + 1], own.ids[at : at + 1]))


@pytest.mark.parametrize("algo", ["fedavg", "fedprox"])
@pytest.mark.parametrize("round", [0, 1])
def test_probe_view_is_local_of_that_very_record_bit_for_bit(algo: str, round: int) -> None:
    """On one record no batch is drawn, so the update does not depend on any stream: an unrelated one is used here."""
    now = scene(algo)
    probed = single_record_view(now, round, CHOSEN)
    assert probed is not None
    view, truth = probed
    plan, broadcast = now.plan, now.progress.snapshots[round].broadcast
    assert view.surface == Surface.UPDATE and view.adversary == Adversary.SERVER and len(view.captures) == len(CHOSEN)
    for at, capture, x, y in zip(CHOSEN, view.captures, truth.x, truth.y, strict=True):
        assert torch.equal(x, now.shard.train.x[at]) and y == now.shard.train.y[at]
        ctx = replace(plan, keys=Keys(987)).client_context(round, plan.victim)
        sent = plan.method.local(broadcast, {}, only(now.shard, at), ctx)[0]["update"].value
        assert sent and all(torch.equal(capture.value[name], value) for name, value in sent.items())
        assert all(torch.equal(capture.broadcast[name], value) for name, value in broadcast["model"].items())
        assert (capture.round, capture.client) == (round, plan.victim)
    for one, other in zip(view.captures, view.captures[1:]):
        assert any(not torch.equal(one.value[name], other.value[name]) for name in one.value)


def test_probe_view_tells_the_attack_that_one_record_was_trained_on() -> None:
    now = scene("fedavg")
    view, truth = single_record_view(now, 1, CHOSEN) or pytest.fail("no probe")
    method = now.plan.method
    assert view.knowledge.settings["batch_records"] == 1
    assert view.knowledge.settings["local_steps"] == method.settings(1)["local_steps"]  # type: ignore[attr-defined]
    assert method.settings(1)["local_steps"] != method.settings(500)["local_steps"]  # type: ignore[attr-defined]
    assert torch.equal(truth.counts, torch.bincount(now.shard.train.y[CHOSEN], minlength=10))
    assert torch.equal(truth.heldout_x, now.shard.heldout.x)


def test_probe_view_passes_through_the_mechanism_of_the_channel() -> None:
    """Client-level privacy with a clip norm of 1e-3 and hardly any noise: no probe's change is longer than that."""
    now = scene("fedavg", "privacy=client", "privacy.clip_norm=0.001", "privacy.noise_multiplier=0.001")
    view, _ = single_record_view(now, 1, CHOSEN) or pytest.fail("no probe")
    for capture in view.captures:
        change = torch.cat([(capture.value[n] - capture.broadcast[n]).flatten() for n in capture.broadcast])
        assert 0.0009 < float(change.norm()) < 0.0015
    bare, _ = single_record_view(scene("fedavg"), 1, CHOSEN) or pytest.fail("no probe")
    one = bare.captures[0]
    assert torch.cat([(one.value[n] - one.broadcast[n]).flatten() for n in one.broadcast]).norm() > 0.01


def test_probe_view_needs_an_update_and_a_record() -> None:
    assert single_record_view(scene("fedavg"), 0, []) is None
