"""Records that were made hard to fit give themselves away more than the ordinary ones beside them,
in a real client."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from scipy import stats
from torch import Tensor

from attacks.membership.attack import score_leave_one_out
from attacks.membership.lira import lira
from attacks.roc import roc
from privdd.auditing.adversary_view import AdversaryView
from privdd.auditing.pipeline import membership_game_of
from privdd.auditing.replay import MembershipGame
from privdd.auditing.signal_extraction import extract_signals
from privdd.cli.build import build_experiment
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Snapshot
from tests.federations import tiny_config

WORLDS = 24
RECORDS = 50
HARD = {"mislabelled": 6, "near_duplicates": 6}
SIZE = [
    f"audit.records={RECORDS}",
    f"audit.worlds={WORLDS}",
    "data.limit=500",
    "partition.clients=2",
]
TAIL = [f"audit.tail.{kind}={count}" for kind, count in HARD.items()]


def made(*more: str) -> Experiment:
    return build_experiment(
        tiny_config("fedavg", *SIZE, "algo.local_epochs=15", "model=mlp", *more, command="audit")
    )


@cache
def signals() -> tuple[MembershipGame, Tensor]:
    """(the game, (K, n) the confidence of each replay's model in each audited record's label)."""
    experiment = made(*TAIL)
    plan = experiment.plan
    game = membership_game_of(experiment)
    whole = experiment.shards[plan.victim]
    broadcast = plan.method.broadcast(plan.method.init(plan.problem, plan.keys))
    lens = AdversaryView(
        plan.method,
        plan.problem,
        Snapshot(0, broadcast, {}),
        game.audited_records,
        experiment.test_records,
        {},
        frozenset(),
        {},
    )
    found = []
    for world in range(WORLDS):
        ctx = replace(plan, keys=plan.keys.fold("world", world)).client_context(0, plan.victim)
        upload, _ = plan.method.local(broadcast, {}, game.shard_of_replay(whole, world), ctx)
        found.append(
            extract_signals(
                lens, {name: dict(artifact.value) for name, artifact in upload.items()}
            )["update|confidence"]
        )
    return game, torch.stack(found).double()


def exposure(game: MembershipGame, values: Tensor) -> Tensor:
    """(n,) how far a record's own coin moves the signal, in standard deviations of what all else
    moves it by."""
    gaps = []
    for value, coin in zip(values.T, game.masks.T):
        inside = value[coin]
        outside = value[~coin]
        gaps.append((inside.mean() - outside.mean()) / (inside.var() + outside.var()).div(2).sqrt())
    return torch.stack(gaps)


@pytest.mark.nightly(cases=["mislabelled"])
@pytest.mark.parametrize("kind", HARD)
def test_they_are_more_exposed_than_ordinary_ones(kind: str) -> None:
    game, values = signals()
    ordinary = torch.ones(RECORDS, dtype=torch.bool)
    ordinary[torch.cat([*game.kinds.values()])] = False
    moved = exposure(game, values)
    hard = moved[game.kinds[kind]]
    usual = moved[ordinary]
    assert len(hard) == HARD[kind] and len(usual) == RECORDS - sum(HARD.values())
    assert stats.mannwhitneyu(hard, usual, alternative="greater").pvalue < 0.005
    scores = score_leave_one_out(lambda s, m, t: lira(s, m, t), values, game.masks)

    def auc(at: Tensor) -> float:
        return roc(scores[:, at].flatten(), game.masks[:, at].flatten()).auc

    assert auc(game.kinds[kind]) > max(0.9, auc(ordinary.nonzero()[:, 0]) + 0.2)


def test_without_a_tail_the_data_are_the_clients_own_and_with_one_only_the_tail_differs() -> None:
    plain = made()
    hard = made(*TAIL)
    victim = plain.plan.victim
    assert membership_game_of(plain).kinds == {} and not plain.audit_settings.tail.size
    game = membership_game_of(hard)
    before = plain.shards[victim].train
    after = hard.shards[victim].train
    assert torch.equal(before.ids, after.ids) and torch.equal(
        game.masks, membership_game_of(plain).masks
    )
    changed = (before.y != after.y) | (before.x != after.x).flatten(1).any(1)
    assert set(changed.nonzero()[:, 0].tolist()) <= set(
        game.audited[torch.cat([*game.kinds.values()])].tolist()
    )
    assert torch.equal(before.y[~changed], after.y[~changed]) and int(changed.sum()) == sum(
        HARD.values()
    )
    for mine, other in zip(plain.shards, hard.shards):
        assert mine.client == victim or torch.equal(mine.train.y, other.train.y)


def test_noise_without_a_tail_is_that_of_earlier_versions_and_a_tail_gets_its_own() -> None:
    """Two runs that differ in what is trained on must not share noise drawn from the settings."""
    settings = {
        made(*more).plan.settings for more in ((), ("audit.tail.mislabelled=0",), TAIL, TAIL[:1])
    }
    assert len(settings) == 3
