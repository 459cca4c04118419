"""``FinishedRun``: which row of a release stems from which record, and who sees what the server sends."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attacks.types import Adversary, Capture, Surface, View
from privdd.auditing import views
from privdd.auditing.replay import draw_membership_game
from privdd.auditing.views import FinishedRun, server_views
from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.core.rng import Keys
from privdd.core.types import Records, Shard
from privdd.federated.simulation import run_round, start_training


def records(*ids: int) -> Records:
    """Each image is filled with its id."""
    x = torch.tensor(ids, dtype=torch.float).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return Records(x, torch.zeros(len(ids), dtype=torch.long), torch.tensor(ids))


def scene(train: Records, nulls: Records | None) -> FinishedRun:
    nothing: Any = None
    plan: Any = SimpleNamespace(plan=SimpleNamespace(method=SimpleNamespace(audit_hooks=SimpleNamespace(rows_are_records=lambda: True))))
    return FinishedRun(plan, nothing, nothing, Shard(0, train, records(0), records(1), 3, nulls))


@pytest.mark.parametrize("nulls", [None, records(12, 55, 3)])
def test_a_records_row_is_its_rank_among_all_ids_that_are_released(nulls: Records | None) -> None:
    """Ids in no order; null records of zero-out have rows of their own in between."""
    train = records(40, 7, 99, 13, 2, 60)
    now = scene(train, nulls)
    every = sorted([*train.ids.tolist(), *([] if nulls is None else nulls.ids.tolist())])
    assert now._rows_of_records(now.shard).tolist() == [every.index(i) for i in train.ids.tolist()]
    for batch in (2, 4, 64):
        known = now.known_records(batch)
        assert [every[row] for row in known["row"].tolist()] == known["x"][:, 0, 0, 0].int().tolist()
        held = sorted({every.index(i) // batch for i in train.ids.tolist()})  # batches with a real record in them
        assert sorted((known["row"] // batch).tolist()) == held


@pytest.mark.parametrize("copies", [1, 2])
def test_each_row_of_a_pool_is_judged_by_the_record_of_the_client_that_sent_it(copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients' rows, ordered by ids and in copies, the second with a null record between; each row shows its id."""
    monkeypatch.setattr(views, "feature_noise_constants", lambda plan: {"copies": copies})
    first, second = records(8, 3, 21), records(50, 9, 77)
    now = scene(second, records(60))
    held: Any = now.experiment
    held.shards, held.plan.victim = [Shard(0, first, records(4), records(1), 3), Shard(1, records(1), records(5), records(1), 3)], 1
    rows = torch.tensor([*[3, 8, 21] * copies, *[9, 50, 60, 77] * copies]).reshape(-1, 1, 1, 1).float()
    nothing: Any = None
    view = View(Surface.SHARED_FEATURES, Adversary.PEER, (Capture(0, -1, "features", {"x": rows}),), nothing)
    truth = now.ground_truth_of(view)
    assert sorted(truth.x[:, 0, 0, 0].tolist()) == [3, 8, 9, 21, 50, 77]
    assert rows[truth.rows, 0, 0, 0].tolist() == truth.x[:, 0, 0, 0].tolist()
    other = replace(view, captures=(Capture(0, -1, "features", {"x": rows[1:]}),))
    assert now.ground_truth_of(other).rows is None  # another pool than that of all rows


def test_the_final_model_is_seen_by_the_public_and_loaded_with_what_was_sent() -> None:
    tiny = ["preset=smoke", "data=digits", "data.limit=60", "data.test_limit=20", "partition=iid", "partition.clients=2"]
    experiment = build_experiment(compose_config("audit", ["algo=fedavg", "algo.rounds=1", "algo.local_epochs=1", *tiny]))
    plan = experiment.plan
    game = draw_membership_game(experiment.shards[plan.victim], 10, 2, Keys(0))
    progress, _, _ = run_round(plan, start_training(plan, experiment.new_ledger()), experiment.shards, experiment.engine)
    final = plan.method.broadcast(progress.server)
    (view,) = server_views(FinishedRun(experiment, progress, game, experiment.shards[plan.victim]), final, {})
    assert (view.surface, view.adversary, view.worlds) == (Surface.GLOBAL_MODEL, Adversary.PUBLIC, None)
    assert [(c.round, c.client, c.name) for c in view.captures] == [(1, -1, "model")]
    assert view.knowledge.model is not None
    held = view.knowledge.model.state_dict()
    before = progress.snapshots[0].broadcast["model"]
    assert all(torch.equal(held[name], value) for name, value in final["model"].items())
    assert any(not torch.equal(before[name], value) for name, value in final["model"].items())
