"""What the reference loops share: streams, weighted sums, a contrastive loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privdd.core.rng import Keys
from privdd.core.types import Shard, State


def values(model: nn.Module) -> State:
    """Copies of the parameters and float buffers."""
    return {name: v.clone() for name, v in model.state_dict().items() if v.is_floating_point()}


def by_records(shards: Sequence[Shard]) -> list[float]:
    """Each client's share of all records."""
    total = sum(len(shard.train) for shard in shards)
    return [len(shard.train) / total for shard in shards]


def weighted(states: Sequence[State], weights: Sequence[float]) -> State:
    """The weighted sum of states."""
    return {
        name: sum((w * s[name] for w, s in zip(weights, states)), torch.zeros(()))
        for name in states[0]
    }


def under(prefix: str, state: State) -> State:
    """The same values under names of the stack: prefix/name."""
    return {f"{prefix}/{name}": value for name, value in state.items()}


def merged(states: Sequence[State]) -> State:
    """All values together."""
    return {name: value for state in states for name, value in state.items()}


def client(keys: Keys, t: int, shard: Shard, *names: str | int) -> Keys:
    """A client's own stream of a round."""
    return keys.fold("round", t, "client", shard.client, *names)


def supervised_contrast(features: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Khosla et al. 2020, equation 2, mean over the anchors that have a partner."""
    z = F.normalize(features)
    itself = torch.eye(len(z), dtype=torch.bool)
    logits = (z @ z.T / temperature).masked_fill(itself, -1e9)
    log_p = logits - logits.logsumexp(1, keepdim=True)
    positive = (labels[:, None] == labels) & ~itself
    pairs = positive.sum(1)
    return -((log_p * positive).sum(1)[pairs > 0] / pairs[pairs > 0]).mean()
