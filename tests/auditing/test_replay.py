"""What a client keeps, without what it sends: the same bits, whichever way they are had."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from privdd.auditing.replay import ClientReplay, draw_membership_game, restore_memories, round_chain
from privdd.core.types import remote_memory_marker
from privdd.methods.fedrd import FedRD
from tests.federations import tiny, trained


def same(a: Any, b: Any) -> bool:
    return list(a) == list(b) and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("algo", ["fedrd", "fedrd_dp"])
def test_fedrd_recalls_what_its_local_work_keeps(algo: str) -> None:
    experiment = tiny(algo)
    plan, shard = experiment.plan, experiment.shards[experiment.plan.victim]
    broadcast = plan.method.broadcast(plan.method.init(plan.problem, plan.keys.fold("public", "init")))
    memory: dict[str, torch.Tensor] = {}
    for t in range(2):
        expected = plan.method.local(broadcast, memory, shard, plan.client_context(t, plan.victim))[1]
        found = plan.method.recall(broadcast, memory, shard, plan.client_context(t, plan.victim))  # type: ignore[attr-defined]
        assert same(found, expected) and not same(found, memory)
        memory = found


def test_a_replay_that_recalls_sends_what_one_that_distils_every_round_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny("fedrd")
    snapshots, plan = trained("fedrd")[0].snapshots, experiment.plan
    chain = round_chain(plan, snapshots, max(snapshots))
    shard = experiment.shards[plan.victim]
    game = draw_membership_game(shard, 20, 2, plan.keys.fold("audit", plan.victim), plan.relation)
    assert len(chain) > 1
    (found,) = ClientReplay(plan, chain, shard, game, [1]).run()
    monkeypatch.delattr(FedRD, "recall")
    (expected,) = ClientReplay(plan, chain, shard, game, [1]).run()
    assert all(same(found[name], expected[name]) for name in expected) and found.keys() == expected.keys()


@pytest.mark.parametrize("algo", ["fedrd", "scaffold"])
def test_a_memory_that_stayed_with_its_client_is_worked_out_again(algo: str) -> None:
    experiment = tiny(algo)
    whole, plan = trained(algo)[0], experiment.plan
    away = replace(
        whole,
        memories=dict.fromkeys(whole.memories, remote_memory_marker()),
        snapshots={t: replace(s, memory=remote_memory_marker() if s.memory else {}) for t, s in whole.snapshots.items()},
    )
    found = restore_memories(plan, away, experiment.shards[plan.victim])
    assert same(found.memories[plan.victim], whole.memories[plan.victim])
    assert all(same(found.snapshots[t].memory, s.memory) for t, s in whole.snapshots.items())
    assert restore_memories(plan, whole, experiment.shards[plan.victim]) is whole
