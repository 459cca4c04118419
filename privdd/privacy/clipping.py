"""Clip each record's contribution, however many tensors it spans, to one norm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from privdd.core.types import Tensors
from privdd.privacy.batch_invariance import LEAST, filled
from privdd.privacy.lattice import Lattice, RunningSum, rows_at_once

# So that rounding in float32 cannot lift a clipped row above its bound: a factor over the lattice step errs by at most
# 2**-22 where it gives a whole step at all (it may be subnormal), a product by 2**-24.
SAFE = 1 - 1e-6


def require_positive(value: object, name: str) -> float:
    """``value`` as a finite float above 0. Raises ValueError that names the field."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{name}={value!r}: a finite number above 0 is needed")
    return float(value)


def as_rows(tensor: Tensor) -> Tensor:
    """(n, ...) -> (n, d), also for n = 0 and for one number a record."""
    return tensor.flatten(1) if tensor.ndim > 1 else tensor.unsqueeze(1)


def record_norms(contributions: Tensors, order: int = 2) -> Tensor:
    """Norm (L2, or L1 with order=1) of each record's concatenated contribution -> (n,) float64."""
    parts = [_row_norms(as_rows(tensor.detach()), order) for tensor in contributions.values()]
    return torch.linalg.vector_norm(torch.stack(parts), ord=order, dim=0)


def _row_norms(rows: Tensor, order: int) -> Tensor:
    at_once = rows_at_once(rows, rows.shape[1])
    blocks = [filled(block, min(LEAST, at_once)).double() for block in rows.split(at_once)]
    return torch.cat([torch.linalg.vector_norm(block, ord=order, dim=1) for block in blocks])[: len(rows)]


def clip_factors(norms: Tensor, clip_norm: float) -> Tensor:
    """The factor of each record: min(1, C / norm), and 0 where its norm is not finite."""
    factors = (clip_norm * SAFE / norms.clamp_min(1e-30)).clamp_max(1.0)
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(factors))


def clipped_sum(contributions: Tensors, clip_norm: float, lattice: Lattice, *, per: float = 1.0) -> Tensor:
    """Sum over records of the contributions, (d,) for d numbers a record, in steps of ``lattice`` (int64).

    Each is clipped to L2 norm C across all tensors together, divided by ``per`` and rounded towards zero, so that
    none is longer than C / per, and the sum, of integers, is exact. ``RecordLayout`` makes tensors of it again.
    """
    rows = [as_rows(t.detach() if t.requires_grad else t) for t in contributions.values()]  # many, and often tiny
    kind = torch.float64 if any(part.dtype == torch.float64 for part in rows) else torch.float32
    width = sum(part.shape[1] for part in rows)
    total = RunningSum(lattice, (width,), rows[0].device)
    at_once = rows_at_once(rows[0], width)
    for first in range(0, len(rows[0]), at_once):
        parts = rows if len(rows[0]) <= at_once else [part[first : first + at_once] for part in rows]
        block = torch.cat([part if part.dtype == kind else part.to(kind) for part in parts], 1)
        total.add_contributions(block, clip_factors(_row_norms(block, 2), clip_norm) / per)
    return total.current_sum()


@dataclass(frozen=True)
class RecordLayout:
    """Names, shapes and types of one record's contribution."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    kinds: tuple[torch.dtype, ...]

    @staticmethod
    def from_contributions(like: Tensors) -> RecordLayout:
        """The layout of contributions (n, ...); whole numbers become float32."""
        kinds = tuple(tensor.dtype if tensor.is_floating_point() else torch.float32 for tensor in like.values())
        return RecordLayout(tuple(like), tuple(tensor.shape[1:] for tensor in like.values()), kinds)

    def to_tensors(self, flat: Tensor) -> dict[str, Tensor]:
        """``clipped_sum``'s numbers (d,) as tensors with memory of their own."""
        alike = len(set(self.kinds)) == 1
        flat = flat.to(self.kinds[0]) if alike else flat  # one conversion instead of many small ones
        parts: Any = torch.split_with_sizes_copy(flat, [s.numel() for s in self.shapes])  # type: ignore[func-returns-value]
        shaped = [p if len(s) == 1 else p.view(s) for p, s in zip(parts, self.shapes)]
        return dict(zip(self.names, shaped if alike else (p.to(k) for p, k in zip(shaped, self.kinds))))


@dataclass(frozen=True)
class LazyTensors(Mapping[str, Tensor]):
    """Tensors that are made when they are first read: few releases are asked what they were before noise.

    steps: ``clipped_sum``'s numbers.
    """

    steps: Tensor
    lattice: Lattice
    layout: RecordLayout

    @cached_property
    def tensors_by_name(self) -> dict[str, Tensor]:
        return self.layout.to_tensors(self.lattice.to_numbers(self.steps, torch.float64))

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.names)

    def __len__(self) -> int:
        return len(self.layout.names)
