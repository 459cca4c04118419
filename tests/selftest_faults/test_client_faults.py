"""Faults of a client's local work change what they say, and nothing else."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from privdd.core.rng import Keys
from privdd.core.types import Records
from privdd.selftest_faults.client_faults import _train_steps
from privdd.training.sgd import SharedBatches

STEPS = 7


def make_batches() -> SharedBatches:
    records = Records(torch.zeros(10, 1, 2, 2), torch.zeros(10, dtype=torch.long), torch.arange(10))
    return SharedBatches(records, Keys(3).torch(), batch_size=4)


def test_private_training_step_by_step_has_the_shared_batches_of_one_call() -> None:
    """Two and a half passes over the shared records."""
    seen: list[Tensor] = []

    def train(model: Any, state: Any, records: Any, *, steps: int, extra: Any, **more: Any) -> Any:
        seen.extend(islice(extra.draw_indices("cpu"), steps))
        return state

    no_records = make_batches().records.take([])
    batches = make_batches()
    steps = _train_steps(
        train, nn.Linear(1, 1), {}, no_records, ctx=None, steps=STEPS, extra=batches
    )
    assert len(list(steps)) == STEPS
    expected = list(islice(make_batches().draw_indices(torch.device("cpu")), STEPS))
    assert len(seen) == STEPS and all(torch.equal(a, b) for a, b in zip(seen, expected))
