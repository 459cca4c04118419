"""Canaries, records crafted for audits: those that affect a mechanism most, and out-of-distribution ones.

Every set is (x (n, c, h, w) float32 in [0, 1], y (n,) int64). A bound measured with canaries is about
the worst case that a guarantee must cover, not about an average record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.linalg import qr
from torch import Tensor

Pattern = Literal["white", "black", "stripes", "noise"]
Contribution = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Canaries:
    """x (n, c, h, w) in [0, 1], y (n,) int64 and one short name each."""

    x: Tensor
    y: Tensor
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.x.ndim != 4 or not len(self.x) == len(self.y) == len(self.names):
            raise ValueError(f"x {tuple(self.x.shape)}, y {tuple(self.y.shape)}, {len(self.names)} names")
        if not bool(((self.x >= 0) & (self.x <= 1)).all()):
            raise ValueError("canaries must lie in [0, 1]")

    def __len__(self) -> int:
        return len(self.y)


def join(*parts: Canaries) -> Canaries:
    return Canaries(
        torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]), tuple(n for p in parts for n in p.names)
    )


def mislabelled(x: Tensor, y: Tensor, classes: int, generator: torch.Generator) -> Canaries:
    """The records themselves, each with a label drawn uniformly from the wrong ones."""
    if not classes >= 2:
        raise ValueError(f"classes={classes}: at least 2 are needed")
    shift = torch.randint(1, classes, y.shape, generator=generator)
    return Canaries(x.clone(), (y + shift) % classes, ("mislabelled",) * len(y))


def pattern(
    name: Pattern, shape: tuple[int, int, int], label: int, generator: torch.Generator | None = None
) -> Canaries:
    """One out-of-distribution image: all ones, all zeros, one-pixel vertical stripes, or uniform noise."""
    if name == "noise":
        if generator is None:
            raise ValueError("pattern='noise': a generator is needed")
        image = torch.rand(shape, generator=generator)
    elif name in ("white", "black"):
        image = torch.full(shape, float(name == "white"))
    elif name == "stripes":
        image = (torch.arange(shape[2]) % 2).float().expand(shape).clone()
    else:
        raise ValueError(f"pattern={name!r}: white, black, stripes or noise")
    return Canaries(image.unsqueeze(0), torch.tensor([label]), (name,))


def out_of_distribution(shape: tuple[int, int, int], label: int, generator: torch.Generator) -> Canaries:
    """The four patterns under one label."""
    names: tuple[Pattern, ...] = ("white", "black", "stripes", "noise")
    return join(*(pattern(name, shape, label, generator) for name in names))


def patches(shape: tuple[int, int, int], count: int, generator: torch.Generator) -> Tensor:
    """Images (count, c, h, w) of random black and white blocks, of one size and share of white each: unlike one another."""
    c, h, w = shape
    images = torch.empty(count, c, h, w)
    for at in range(count):
        block = int(torch.randint(1, max(2, min(h, w) // 2 + 1), (), generator=generator))
        share = 0.1 + 0.8 * float(torch.rand((), generator=generator))
        grid = torch.rand(c, -(-h // block), -(-w // block), generator=generator) < share
        images[at] = grid.repeat_interleave(block, 1).repeat_interleave(block, 2)[:, :h, :w].float()
    return images


def independent(effects: np.ndarray, count: int) -> np.ndarray:
    """Positions of ``count`` rows of effects (n, p), each next one with most that the ones before do not span.

    Greedy, by QR with column pivoting (Businger and Golub 1965). Raises ValueError for more rows than there are.
    """
    if not 0 <= count <= len(effects):
        raise ValueError(f"count={count}: between 0 and the {len(effects)} rows")
    _, order = qr(np.asarray(effects, dtype=np.float64).T, mode="r", pivoting=True)
    return order[:count]


def crafted(
    contribution: Contribution,
    start: Canaries,
    *,
    direction: Tensor | None = None,
    steps: int = 50,
    step_size: float = 0.05,
) -> Canaries:
    """Records that maximise their effect: sign-gradient ascent in the pixel box [0, 1].

    contribution(x, y) -> (b, p), differentiable in x and row by row: what each record adds to the
    released quantity. Maximised is its Euclidean norm, or its inner product with ``direction`` (p,),
    e.g. minus the sum of the others' contributions, where an aggregate is clipped. The best iterate
    of each record is kept, so no canary does worse than its start.
    """
    if not steps >= 1 or not step_size > 0:
        raise ValueError(f"steps={steps}, step_size={step_size}: positive numbers are needed")
    x, best = start.x.clone(), start.x.clone()
    record = torch.full((len(start),), -torch.inf, dtype=start.x.dtype)
    for _ in range(steps + 1):
        leaf = x.detach().requires_grad_(True)
        effect = _effect(contribution(leaf, start.y), direction)
        (slope,) = torch.autograd.grad(effect.sum(), leaf)
        better = effect.detach() > record
        best[better], record[better] = x[better], effect.detach()[better].to(record.dtype)
        x = (x + step_size * slope.sign()).clamp(0, 1).detach()
    return Canaries(best, start.y, tuple(f"crafted:{name}" for name in start.names))


def _effect(rows: Tensor, direction: Tensor | None) -> Tensor:
    if rows.ndim != 2:
        raise ValueError(f"contribution returned {tuple(rows.shape)}: (b, p) is needed")
    return rows.norm(dim=1) if direction is None else rows @ direction
