"""How often a federation's model is right, on the test set or on each client's own.

One whose numbers are no longer finite has no accuracy to speak of: training diverged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from privdd.core.device import to_device
from privdd.core.types import Records, Shard, State
from privdd.federated.simulation import Plan, Progress


def predict_in_batches(predict: Callable[[Tensor], Tensor], x: Tensor, batch: int = 500) -> Tensor:
    with torch.no_grad():
        return torch.cat([predict(part) for part in x.split(batch)])


def measure_accuracy(plan: Plan, progress: Progress, test: Records, shards: Sequence[Shard]) -> float:
    """Global: on the test set; personal: mean over clients of their own test split, with their memory.

    NaN where a model's output is not finite.
    """
    method, device = plan.method, plan.problem.device
    progress = replace(progress, server=to_device(progress.server, device))

    def predict_logits(memory: State | None, x: Tensor) -> Tensor:
        held = to_device(memory, device)
        return predict_in_batches(lambda part: method.predict(progress.server, held, part.to(device)), x).cpu()

    if method.audit_hooks.accuracy_kind == "global":
        return accuracy_of_logits(predict_logits(None, test.x), test.y)
    values = []
    for k, shard in enumerate(shards):
        memory = progress.memories.get(k)
        if memory and len(shard.test):
            values.append(accuracy_of_logits(predict_logits(memory, shard.test.x), shard.test.y))
    return sum(values) / len(values) if values else 0.0


def is_finite_state(state: State) -> bool:
    """Whether no tensor holds NaN or infinity."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in state.values())


def accuracy_of_logits(logits: Tensor, y: Tensor) -> float:
    """Accuracy in [0, 1] of logits (n, C) for labels y (n,); NaN where they are none, and so the loss is not finite.

    A logit of minus infinity is one: a class that the model rules out (FedProto before it has seen all).
    """
    if bool((logits.isnan() | logits.isposinf()).any()):
        return math.nan
    return float((logits.argmax(1) == y).float().mean())


def divergence_message(round: int) -> str:
    """One line for the user."""
    return f"training diverged in round {round}: the model is not finite and has no accuracy (lower the learning rate)"
