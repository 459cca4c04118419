"""How often a federation's model is right, on the test set or on each client's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from privdd.core.types import Records, Shard
from privdd.federated.divergence import share_right
from privdd.federated.simulation import Plan, Progress


def predict_in_batches(predict: Callable[[Tensor], Tensor], x: Tensor, batch: int = 500) -> Tensor:
    with torch.no_grad():
        return torch.cat([predict(part) for part in x.split(batch)])


def accuracy(plan: Plan, progress: Progress, test: Records, shards: Sequence[Shard]) -> float:
    """Global: on the test set; personal: mean over clients of their own test split, with their memory.

    NaN where a model's output is not finite.
    """
    method = plan.method
    if method.accuracy_kind == "global":
        logits = predict_in_batches(lambda x: method.predict(progress.server, None, x), test.x)
        return share_right(logits, test.y)
    values = []
    for k, shard in enumerate(shards):
        memory = progress.memories.get(k)
        if memory and len(shard.test):
            logits = predict_in_batches(lambda x, m=memory: method.predict(progress.server, m, x), shard.test.x)  # type: ignore[misc]
            values.append(share_right(logits, shard.test.y))
    return sum(values) / len(values) if values else 0.0
