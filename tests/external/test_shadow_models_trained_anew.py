"""Shadow models of the same network by plain SGD, and on every engine the same bits."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from privdd.core.validation import BadConfig
from privdd.external.records import LabelledRecords
from privdd.external.shadow_models import (
    NetworkRetraining,
    PlainSGD,
    ShadowModelTask,
    copy_with_new_weights,
    train_shadow_model,
)
from privdd.runtime.engine import Engine
from tests.external.memory import records


@pytest.fixture(autouse=True)
def cluster() -> Iterator[None]:
    yield
    if "ray" in sys.modules:
        from privdd.runtime.ray_pool import disconnect_ray

        disconnect_ray()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 3))


def test_first_values_follow_pytorchs_law_and_the_stream_alone() -> None:
    wide = nn.Sequential(nn.Conv2d(3, 50, 3), nn.ConvTranspose2d(50, 4, 3), nn.GroupNorm(2, 4))
    made, again = (copy_with_new_weights(wide, torch.Generator().manual_seed(1)) for _ in range(2))
    for ours, theirs, twin in zip(
        made.state_dict().values(), wide.state_dict().values(), again.state_dict().values()
    ):
        assert torch.equal(ours, twin) and (ours.std() == 0 or not torch.equal(ours, theirs))
        assert ours.abs().max().item() == pytest.approx(theirs.abs().max().item(), rel=0.15)


def test_layers_that_nobody_can_start_are_named() -> None:
    with pytest.raises(BadConfig, match=r"0 \(Embedding\) holds weight.*give a function"):
        NetworkRetraining(nn.Sequential(nn.Embedding(4, 2)), PlainSGD(0.1, 1))


def shadow_tasks() -> list[ShadowModelTask]:
    """Twice of one network, and of one with other weights."""
    x, y = records(60, 1)
    held = LabelledRecords(torch.from_numpy(x), torch.from_numpy(y))
    fits = [NetworkRetraining(network(), PlainSGD(0.5, 60, 20)) for _ in range(2)]
    return [
        ShadowModelTask(fit, "target.training", held, 7, held.x, np.arange(3))
        for fit in (fits[0], fits[0], fits[1])
    ]


def test_it_learns_without_the_audited_weights() -> None:
    tasks = shadow_tasks()
    (first, drew), _, (other, _) = map(train_shadow_model, tasks)
    assert torch.equal(first, other) and not drew
    assert first.argmax(1).eq(tasks[0].records.y).float().mean() > 0.6


# the first suite tests the engine that auto chooses, and of Ray the missing package
@pytest.mark.nightly
@pytest.mark.engine
def test_shadow_models_are_alike_on_ray() -> None:
    tasks = shadow_tasks()
    here = map(train_shadow_model, tasks)
    assert all(
        torch.equal(a, b)
        for (a, _), (b, _) in zip(
            here, Engine("ray", workers=2).map(train_shadow_model, tasks), strict=True
        )
    )
