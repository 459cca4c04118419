"""What a server sees of a replay when uploads are added up: the audited client's upload among those of the others.

The others' part of a round is computed once, from their own data and without noise; each replay adds fresh noise of all
clients' shares. So membership attacks are granted what the other clients' data add to the sum, as differential privacy
grants it, and none of their noise. Attacks without replays are not: they read the sum as if it were one client's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from privdd.core.types import Shard, Tensors
from privdd.federated.channel import ClientContext
from privdd.federated.simulation import Plan
from privdd.privacy.noise import Noise

Uploads = Mapping[str, Tensors]  # name of an upload -> its tensors
GRANTED = "the adversary sees the sum over clients, and knows what the other clients' data add to it"
NOT_GRANTED = "the adversary sees the sum over clients, and takes it for what the audited client sent"


@dataclass(frozen=True)
class Scaled:
    """Normal draws times a constant (0: none at all); coins as they are."""

    noise: Noise
    times: float

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return self.noise.normal(shape) * self.times

    def laplace(self, shape: tuple[int, ...]) -> Tensor:
        raise ValueError("Laplace noise of several clients is no Laplace noise: it is not dealt in shares")

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        return self.noise.uniform(shape)


def replaying(plan: Plan, round: int) -> ClientContext:
    """The audited client's context; under a sum, its noise is that of all clients' shares together."""
    ctx = plan.context(round, plan.victim)
    if plan.trust.summed:
        ctx.noise = Scaled(ctx.noise, math.sqrt(len(plan.participants(round))))
    return ctx


def of_others(plan: Plan, round: int, broadcast: Mapping[str, Tensors], shards: Sequence[Shard]) -> Uploads:
    """What the other clients of a round add to the sum, but for their noise; {} where the server sees single uploads."""
    total: dict[str, dict[str, Tensor]] = {}
    for client in plan.participants(round) if plan.trust.summed else ():
        if client == plan.victim:
            continue
        ctx = plan.context(round, client)
        ctx.noise = Scaled(ctx.noise, 0.0)
        upload, memory = plan.method.local(broadcast, {}, shards[client], ctx)
        if memory:
            raise ValueError(
                f"trust={plan.trust.name}: what {type(plan.method).__name__}'s clients remember is not replayed"
            )
        for name, value in plan.channel.send(upload, ctx)[0].values.items():
            into = total.setdefault(name, {})
            for key, tensor in value.items():
                into[key] = into.get(key, torch.zeros(())) + tensor.double()
    return total


def seen(plan: Plan, round: int, sent: Uploads, others: Uploads) -> Uploads:
    """What the server holds of one client's upload: itself, or the sum (or the mean) with the others'."""
    if not plan.trust.summed:
        return sent
    over = len(plan.participants(round)) if plan.method.adds_up(plan.mechanisms) == "mean" else 1
    return {
        name: {key: ((tensor.double() + others[name][key]) / over).float() for key, tensor in value.items()}
        for name, value in sent.items()
    }
