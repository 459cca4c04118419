"""A round on made-up records says what any client's reply looks like: honest replies of every
method pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from privdd.core.types import Records, Shard
from privdd.federated.simulation import ClientTask, run_round, start_training
from privdd.integrations.flower import GridEngine
from privdd.integrations.reply_check import Rehearsals, made_up_shard, rehearse_round
from tests.federations import ALGOS, tiny
from tests.integrations.hand_grid import AlteringGrid

pytestmark = pytest.mark.nightly

PRIVATE = {
    "fedavg": ["privacy=dpsgd", "privacy=client"],
    "fedrd": [
        "privacy=aggregate_clip algo.frozen_projection=true algo.start=noise model.norm=instance"
    ],
    "feddm": ["privacy=aggregate_clip algo.start=noise"],
    "scaffold": ["privacy=dpsgd"],
    "fedfed_dp": ["privacy.noise_source=os"],
}
CASES = [(algo, more) for algo in ALGOS for more in ("", *PRIVATE.get(algo, ()))]


def uneven(shards: list[Shard]) -> list[Shard]:
    """Client 1 holds one class only, client 2 a few records of the last classes."""
    one = shards[1].train
    few = shards[2].train
    single = one.take(one.y == one.y[0])
    late = few.take((few.y >= 8).nonzero()[:5, 0])
    return [shards[0], shards[1].with_train(single), shards[2].with_train(late)]


@pytest.mark.parametrize(("algo", "more"), CASES)
def test_an_honest_reply_passes_whatever_its_client_holds(algo: str, more: str) -> None:
    experiment = tiny(algo, *more.split())
    plan = experiment.plan
    shards = uneven(list(experiment.shards))
    grid = AlteringGrid(experiment, shards=shards)
    engine = GridEngine(grid, {k: 100 + k for k in range(3)})  # type: ignore[arg-type]
    here = start_training(plan, experiment.new_ledger())
    there = start_training(plan, experiment.new_ledger())
    for _ in range(plan.method.rounds):
        here = run_round(plan, here, shards, experiment.engine)[0]
        there = run_round(plan, there, shards, engine)[0]  # type: ignore[arg-type]
    if plan.noise_source == "seed":
        assert there.ledger.to_json() == here.ledger.to_json()
        assert all(torch.equal(there.server[name], here.server[name]) for name in here.server)
    assert there.round == plan.method.rounds and len(there.ledger) == len(here.ledger)


def test_rounds_that_are_alike_are_rehearsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny("fedavg", "algo.rounds=3")
    plan = experiment.plan
    made = []
    monkeypatch.setattr(
        "privdd.integrations.reply_check.rehearse_round",
        lambda task: made.append(task) or rehearse_round(task),
    )
    rehearsals = Rehearsals()
    broadcast = plan.method.broadcast(start_training(plan, experiment.new_ledger()).server)
    for round, client in [(0, 0), (0, 1), (1, 0), (2, 2)]:
        task = ClientTask(plan, round, client, broadcast, {}, experiment.shards[client])
        expected = rehearsals.expected_reply(task)
        assert {(row.round, row.client) for row in expected.rows} == {(round, client)}
    assert [task.round for task in made] == [0, 1]  # the first round, and one for all the others
    rehearsals.expected_reply(task, anew=True)
    assert len(made) == 3


def test_made_up_records_read_nobodys_data() -> None:
    experiment = tiny("feddm")
    plan, (client, *_) = experiment.plan, experiment.shards
    blank = replace(client, train=Records(client.train.x * 0, client.train.y * 0, client.train.ids))
    broadcast = plan.method.broadcast(start_training(plan, experiment.new_ledger()).server)
    one, other = (
        Rehearsals().expected_reply(ClientTask(plan, 0, 0, broadcast, {}, shard))
        for shard in (client, blank)
    )
    assert one == other
    made = made_up_shard(plan, 0).train
    assert (
        sorted(set(made.y.tolist())) == list(range(10))
        and 0 <= float(made.x.min()) <= float(made.x.max()) <= 1
    )
