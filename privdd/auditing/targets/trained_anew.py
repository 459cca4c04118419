"""``target.training=sgd`` for a model: the same network from new first values, trained by plain SGD with known settings.

For a network whose training script nobody wants to rewrite as a function. First values follow PyTorch's default laws
(uniform within 1 / sqrt(fan-in); norms start as the identity), drawn from the shadow model's own stream.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from privdd.auditing.targets.shadow_updates import PlainSGD
from privdd.core.errors import BadConfig
from privdd.core.keys import Keys

DRAWN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class TrainedAnew:
    """A training function (x, y, seed) -> model. model: the audited one, whose weights are not used.

    Raises BadConfig for layers whose first values are not known here.
    """

    model: nn.Module
    training: PlainSGD

    def __post_init__(self) -> None:
        for name, part in self.model.named_modules():
            own = [leaf for leaf, _ in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False))]
            if own and not isinstance(part, DRAWN + NORMS):
                raise BadConfig(
                    f"target.training=sgd: {name or type(part).__name__} ({type(part).__name__}) holds "
                    f"{', '.join(own)}, whose first values are not known here; give a function (x, y, seed) -> model"
                )

    def __call__(self, x: Any, y: Any, seed: int) -> nn.Module:
        started = fresh(self.model, Keys(seed).fold("start").torch()).train()
        return self.training(started, torch.as_tensor(x), torch.as_tensor(y).long(), seed).eval()


def fresh(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy with new first values."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        for part in made.modules():
            if isinstance(part, DRAWN):
                bound = 1 / math.sqrt(_fan_in(part))
                for parameter in part.parameters(recurse=False):
                    parameter.uniform_(-bound, bound, generator=generator)
            elif isinstance(part, NORMS):
                for name, value in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
                    value.fill_(1 if name in ("weight", "running_var") else 0)
    return made.requires_grad_(True)


def _fan_in(part: nn.Module) -> int:
    """As PyTorch counts it: the second dimension of the weight, of a transposed convolution too, times the kernel."""
    weight: torch.Tensor = part.weight  # type: ignore[assignment]
    return weight.shape[1] * math.prod(weight.shape[2:])
