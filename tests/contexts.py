"""What the privacy tests share: a client's context, and noise that is switched off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks.types import Surface
from privdd.core.rng import Keys
from privdd.core.types import Problem, Records
from privdd.federated.channel import ClientContext, OutputLog
from privdd.privacy.mechanism import Mechanism

SHAPE = (1, 6, 6)
CLASSES = 4


@dataclass(frozen=True)
class Silence:
    """Noise of size zero; uniform draws still come from a generator."""

    generator: torch.Generator

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape)

    def laplace(self, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape)

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        return torch.rand(shape, generator=self.generator, dtype=torch.float64)


def context(
    mechanisms: Mapping[str, Mechanism], *, seed: int = 0, silent: bool = False
) -> ClientContext:
    problem = Problem(SHAPE, CLASSES, clients=1)
    queries = {name: Surface.GRADIENT for name in mechanisms}
    ctx = ClientContext(0, 0, Keys(seed), problem, mechanisms, queries, observer=OutputLog())
    if silent:
        ctx.noise = Silence(torch.Generator().manual_seed(seed))
    return ctx


def batch_sizes(monkeypatch: pytest.MonkeyPatch, kind: type[Mechanism]) -> list[int]:
    """A list that grows by the number of contributions of every application of this kind of
    mechanism."""
    sizes: list[int] = []
    apply = kind.__call__

    def counted(self: Mechanism, value: Mapping[str, Tensor], noise: Any) -> Any:
        sizes.append(len(next(iter(value.values()))))
        return apply(self, value, noise)

    monkeypatch.setattr(kind, "__call__", counted)
    return sizes


def records(n: int, *, seed: int = 0, classes: int = CLASSES) -> Records:
    g = torch.Generator().manual_seed(seed)
    return Records(
        torch.rand(n, *SHAPE, generator=g),
        torch.randint(classes, (n,), generator=g),
        torch.arange(n),
    )


def network(norm: str = "group", *, seed: int = 0) -> nn.Module:
    """A small convolutional classifier whose values come from the seed alone."""
    layers = {"group": nn.GroupNorm(2, 4), "batch": nn.BatchNorm2d(4), "none": nn.Identity()}
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), layers[norm], nn.Tanh(), nn.Flatten(), nn.Linear(64, CLASSES)
    )
    g = torch.Generator().manual_seed(seed)
    for value in net.parameters():
        value.data = 0.3 * torch.randn(value.shape, generator=g)
    return net
