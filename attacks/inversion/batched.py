"""Gradient matching for updates of several models of one architecture: one batch, within a bound on memory.

What a step of the search costs on small models is the number of kernels it starts, not their size, so that eight
problems cost little more than four.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attacks.gpu import replayed, room
from attacks.inversion.optimise import Matching, Slope
from attacks.inversion.victim import Victim

MEMORY = 2**30  # bytes, about, that the problems which go through the model at once may take on the CPU
ACTIVATIONS, WEIGHTS = 8, 6  # numbers kept a step for each activation and each parameter: a third above the ConvNet's
ITERATIONS = 400  # of a search, from which recording its kernels once costs less than it saves


@dataclass(frozen=True)
class Posed:
    """k problems of one model: observed list of (k r, *parameter shape) and starts (k r, b, c, h, w), each problem's r
    restarts one after the other; labels (k, b)."""

    model: nn.Module
    observed: list[Tensor]
    labels: Tensor
    starts: Tensor


def joined(posed: Sequence[Posed]) -> dict[str, Tensor]:
    """Parameters of every problem, name -> (all restarts, *shape); {} where there is one model alone."""
    if len(posed) == 1:
        return {}
    rows = [dict(one.model.named_parameters()) for one in posed]
    return {
        name: torch.cat([row[name].detach().expand(len(one.starts), *p.shape) for row, one in zip(rows, posed)])
        for name, p in rows[0].items()
    }


def alike(models: Sequence[nn.Module]) -> bool:
    """Whether problems of these models can share a batch: one architecture in one mode, and the same buffers."""
    first = models[0]
    if not Victim(first).batchable():
        return False
    buffers = dict(first.named_buffers())
    return all(
        repr(other) == repr(first)
        and other.training == first.training
        and _shapes(other) == _shapes(first)
        and all(torch.equal(b, buffers[name]) for name, b in other.named_buffers())
        for other in models[1:]
    )


def _shapes(model: nn.Module) -> list[tuple[str, torch.Size]]:
    return [(name, value.shape) for name, value in model.state_dict().items()]


def at_once(victim: Victim, images: Tensor, memory: int | None = None) -> int:
    """How many problems with ``images`` (b, c, h, w) each may go through the model at once; at least one.

    memory: bytes; None: ``MEMORY`` on the CPU, a share of a GPU's (``room``).
    """
    memory = room(images.device, MEMORY) if memory is None else memory
    steps = victim.local.steps
    batch = images if victim.local.batch_size is None else images[: victim.local.batch_size]
    weights = sum(p.numel() for p in victim.model.parameters())
    numbers = steps * (ACTIVATIONS * _activations(victim, batch) + WEIGHTS * weights)
    return max(1, memory // (numbers * images.element_size()))


def _activations(victim: Victim, images: Tensor) -> int:
    """Numbers that the model's layers put out for ``images``."""
    counted: list[int] = []

    def count(module: nn.Module, given: Any, out: Any) -> None:
        counted.append(out.numel() if isinstance(out, Tensor) else 0)

    hooks = [m.register_forward_hook(count) for m in victim.model.modules() if next(m.children(), None) is None]
    try:
        with torch.no_grad():
            victim.loss(victim.parameters(), images, torch.zeros(len(images), dtype=torch.int64, device=images.device))
    finally:
        for hook in hooks:
            hook.remove()
    return sum(counted) + images.numel()


@dataclass
class Recorded:
    """``Matching`` with its kernels recorded at the first call and replayed ever after: the same bits, without what
    torch.func adds to each kernel. Only for models whose computation does not depend on values."""

    matching: Matching
    replay: Callable[[Tensor], tuple[Tensor, ...]] | None = None

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.replay is None:
            self.replay = self._recorded(images)
        with torch.no_grad():
            data, total, slope = self.replay(images)
        return data, total, slope

    def _recorded(self, images: Tensor) -> Callable[[Tensor], tuple[Tensor, ...]]:
        from torch.fx.experimental.proxy_tensor import make_fx

        fixed = (self.matching.labels, self.matching.observed, dict(self.matching.parameters))
        kernels = make_fx(lambda *at: self.matching.at(*at))(images, *fixed)  # counts no self
        with torch.no_grad():
            return replayed(lambda x: kernels(x, *fixed), images)


def slope_of(matching: Matching, problems: int, iterations: int) -> Slope:
    """The matching problem, recorded where its search is long enough and all problems go through at once."""
    whole = not 0 < matching.together < problems
    return Recorded(matching) if iterations >= ITERATIONS and whole and matching.batched(problems) else matching
