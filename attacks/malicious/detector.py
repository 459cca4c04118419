"""What a client could notice: a model in which most of what it sends stems from single records.

After the disaggregation signal-to-noise ratio of Garov, Dimitrov, Jovanovic and Vechev ("Hiding in Plain Sight", ICLR
2024): the client looks at its own records' gradients before it sends their sum.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

ALARM = 0.5  # share of a unit's total that one record makes, averaged over units; an ordinary network stays below
BATCHES, SEED = 20, 20
Parts = Callable[[nn.Module, Tensor, Tensor], Tensor]


def isolation(parts: Tensor) -> float:
    """In [0, 1]: the largest record's share of each unit, averaged over the units that any record reaches.

    parts (n, u): how much each record adds to each unit, at least 0. 0 where no unit is reached.
    """
    total = parts.sum(0)
    live = total > 0
    return float((parts.amax(0)[live] / total[live]).mean()) if live.any() else 0.0


def ordinary(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """The same architecture with a usual random start (He et al. 2015), biases zero."""
    fresh = copy.deepcopy(model).requires_grad_(True)
    with torch.no_grad():
        for value in fresh.parameters():
            scale = (2 / value[0].numel()) ** 0.5 if value.ndim > 1 else 0.0
            value.copy_(scale * torch.randn(value.shape, generator=generator))
    return fresh


def detection_rate(parts: Parts, model: nn.Module, x: Tensor, y: Tensor, batch: int) -> Mapping[str, float]:
    """ "detected": share of the client's batches that raise an alarm; "false_alarms": the same for ordinary models."""
    generator = torch.Generator().manual_seed(SEED)
    alarms = {"detected": 0, "false_alarms": 0}
    for _ in range(BATCHES):
        chosen = torch.randperm(len(x), generator=generator)[:batch]
        for name, net in (("detected", model), ("false_alarms", ordinary(model, generator))):
            alarms[name] += isolation(parts(net, x[chosen], y[chosen])) > ALARM
    return {name: count / BATCHES for name, count in alarms.items()}
