"""Clip each record's contribution, however many tensors it spans, to one norm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from privdd.core.types import Tensors
from privdd.privacy.batch_invariance import LEAST, filled
from privdd.privacy.lattice import Lattice, rows_at_once

# So that rounding cannot lift a clipped row above its bound: in float64 the norm of d numbers errs
# by at most (d + 3) 2**-53 of it, and what a row is multiplied with by a few 2**-53.
SAFE = 1 - 1e-6
# of an outer product's right vector, in units of its norm; the left one has the other bits
FACTOR_BITS = 20
LEAST_STEP = (
    2**14
    # units: under noise below 2**-10 of the clip norm the factors' rounding would show: no factors
    # then
)
EXACT_ROWS = (
    2**11
    # contributions of one sum in float64: each number is at most 2**41 units, so it stays below
    # 2**53
)
# of a vector: squares of smaller numbers lose digits in float64, so none is taken as shorter
LEAST_NORM = 1e-140


@dataclass(frozen=True)
class OuterProducts:
    """Rows (n, p, q) as their factors: ``left`` (n, p) times ``right`` (n, q)."""

    left: Tensor
    right: Tensor

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.left.shape, self.right.shape[1]))

    @property
    def dtype(self) -> torch.dtype:
        return self.left.dtype

    @property
    def device(self) -> torch.device:
        return self.left.device

    def __getitem__(self, index: Any) -> OuterProducts:
        """Those of the records at ``index``."""
        return OuterProducts(self.left[index], self.right[index])

    def to_rows(self) -> Tensor:
        """The products (n, p, q)."""
        return self.left.unsqueeze(2) * self.right.unsqueeze(1)


Part = Tensor | OuterProducts


@dataclass(frozen=True)
class FactoredRows(Mapping[str, Tensor]):
    """Contributions of n records, name -> (n, ...), some of which are multiplied out only when they
    are read."""

    parts: Mapping[str, Part]

    def __getitem__(self, name: str) -> Tensor:
        part = self.parts[name]
        return part if isinstance(part, Tensor) else part.to_rows()

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


def parts_of(contributions: Tensors) -> Mapping[str, Part]:
    """Name -> (n, ...), factored where that is how the contributions are held."""
    if isinstance(contributions, FactoredRows):
        return contributions.parts
    return contributions


def count_records(contributions: Tensors) -> int:
    """How many records contribute."""
    return next(iter(parts_of(contributions).values())).shape[0]


def take_records(contributions: Tensors, index: Any) -> Tensors:
    """The contributions of the records at ``index``: a slice, positions, or a mask."""
    chosen: dict[str, Any] = {name: part[index] for name, part in parts_of(contributions).items()}
    if isinstance(contributions, FactoredRows):
        return FactoredRows(chosen)
    return chosen


def scale_records(contributions: Tensors, times: Tensor) -> Tensors:
    """Each record's contribution times its number of ``times`` (n,)."""
    scaled: dict[str, Any] = {}
    for name, part in parts_of(contributions).items():
        tensor = part if isinstance(part, Tensor) else part.left
        rows = tensor * times.to(tensor).reshape(-1, *(1,) * (tensor.ndim - 1))
        if isinstance(part, Tensor):
            scaled[name] = rows
        else:
            scaled[name] = OuterProducts(rows, part.right)
    if isinstance(contributions, FactoredRows):
        return FactoredRows(scaled)
    return scaled


def require_positive(value: object, name: str) -> float:
    """``value`` as a finite float above 0. Raises ValueError that names the field."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value < float("inf")
    ):
        raise ValueError(f"{name}={value!r}: a finite number above 0 is needed")
    return float(value)


def as_rows(tensor: Tensor) -> Tensor:
    """(n, ...) -> (n, d), also for n = 0 and for one number a record."""
    if tensor.ndim > 1:
        return tensor.flatten(1)
    return tensor.unsqueeze(1)


def record_norms(contributions: Tensors, order: int = 2) -> Tensor:
    """Norm (L2, or L1 with order=1) of each record's concatenated contribution -> (n,) float64."""
    return _joint_norms(
        [_row_norms(as_rows(tensor.detach()), order) for tensor in contributions.values()], order
    )


def _joint_norms(parts: Sequence[Tensor], order: int = 2) -> Tensor:
    """Each record's norm from those of its parts (n,): by sums, products and roots, which round
    alike at every place."""
    if len(parts) == 1:
        return parts[0]
    total = torch.zeros_like(parts[0])
    for part in parts:
        total += part if order == 1 else part * part
    return total if order == 1 else total.sqrt_()


def _row_norms(rows: Tensor, order: int) -> Tensor:
    at_once = rows_at_once(rows, rows.shape[1])
    if rows.device.type != "cpu":
        return torch.cat([_folded_norms(block.double(), order) for block in rows.split(at_once)])
    blocks = [filled(block, min(LEAST, at_once)).double() for block in rows.split(at_once)]
    return torch.cat([torch.linalg.vector_norm(block, ord=order, dim=1) for block in blocks])[
        : len(rows)
    ]


def _folded_norms(rows: Tensor, order: int) -> Tensor:
    """Norms (n,) of rows (n, d), one half added to the other until a number is left.

    A GPU's own kernel adds a row up in an order that depends on where it lies and on how many rows
    there are."""
    total = rows.abs() if order == 1 else rows * rows
    while total.shape[1] > 1:
        half = (total.shape[1] + 1) // 2
        total[:, : total.shape[1] - half] += total[:, half:]
        total = total[:, :half]
    sums = total.sum(1)  # of one number, or none
    return sums if order == 1 else sums.sqrt()


def clip_factors(norms: Tensor, clip_norm: float) -> Tensor:
    """The factor of each record: min(1, C / norm), and 0 where its norm is not finite."""
    factors = (clip_norm * SAFE / norms.clamp_min(1e-30)).clamp_max(1.0)
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(factors))


def clipped_sum(
    contributions: Tensors, clip_norm: float, lattice: Lattice, *, per: float = 1.0
) -> Tensor:
    """Sum over records of the contributions, (d,) for d numbers a record, in units of ``lattice``
    (int64).

    Each is clipped to L2 norm C across all tensors together, divided by ``per`` and rounded towards
    zero, so that none is longer than C / per, and the sum, of integers, is exact. ``RecordLayout``
    makes tensors of it again. Exact while C / per is at most 2**41 units, as on
    ``Lattice.under(std, C / per)``."""
    fine = lattice.step > LEAST_STEP * lattice.unit
    if fine:
        parts = parts_of(contributions)
    else:
        parts = dict(contributions)
    rows = [as_rows(part.detach()) for part in parts.values() if isinstance(part, Tensor)]
    outer = [_LongProducts(part) for part in parts.values() if isinstance(part, OuterProducts)]
    whole, norms, weights = _sum_rows(
        rows, [part.norms for part in outer], clip_norm, per * lattice.unit
    )
    if not outer:
        return whole
    bad = _find_bad(norms)
    sizes = [math.prod(part.shape[1:]) for part in parts.values()]
    total = torch.empty(sum(sizes), dtype=torch.int64, device=weights.device)
    pieces = iter(whole.split([part.shape[1] for part in rows]))
    products = iter(outer)
    for part, place in zip(parts.values(), total.split(sizes)):
        if isinstance(part, Tensor):
            place.copy_(next(pieces))
        else:
            next(products).sum_into(place, weights, bad)
    return total


def _sum_rows(
    rows: list[Tensor], beside: list[Tensor], clip_norm: float, unit: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(the sum of the rows (n, ...) side by side, in units, int64; each record's norm (n,); what it
    was multiplied with (n,)).

    beside: the norms (n,) of what else each record contributes.
    """
    count = len((rows + beside)[0])
    device = (rows + beside)[0].device
    width = sum(part.shape[1] for part in rows)
    total = torch.zeros(width, dtype=torch.int64, device=device)
    norms = torch.zeros(count, dtype=torch.float64, device=device)
    weights = torch.zeros_like(norms)
    at_once = min(EXACT_ROWS, rows_at_once(norms, width))
    for first in range(0, count, at_once):
        some = slice(first, first + at_once)
        if rows:
            block = torch.cat([part[some].double() for part in rows], 1)
        else:
            block = norms.new_zeros(len(norms[some]), 0)
        norms[some] = _joint_norms([*(part[some] for part in beside), _row_norms(block, 2)])
        weights[some] = clip_factors(norms[some], clip_norm) / unit
        total += (
            _truncate(_zero_rows(block, _find_bad(norms[some])), weights[some])
            .sum(0)
            .to(torch.int64)
        )
    return total, norms, weights


class _LongProducts:
    """Outer products in float64, to be weighted and summed on a lattice; norms: (n,)."""

    def __init__(self, part: OuterProducts) -> None:
        self.left = part.left.detach().double()
        self.right = part.right.detach().double()
        self.rights = _row_norms(self.right, 2).clamp_min_(LEAST_NORM)
        self.norms = _row_norms(self.left, 2).clamp_min_(LEAST_NORM) * self.rights

    def sum_into(self, total: Tensor, weights: Tensor, bad: Tensor | None) -> None:
        """Make ``total`` (p q,) int64 the sum of the products times ``weights`` (n,), left and
        right rounded towards zero.

        bad: which records count for nothing, (n,) bool, if any.
        """
        share = 2.0**FACTOR_BITS / (
            self.rights if bad is None else self.rights.masked_fill(bad, 1.0)
        )
        scaled = _truncate(_zero_rows(self.left, bad), weights / share)
        right = _truncate(_zero_rows(self.right, bad), share)
        for index in range(0, max(1, len(scaled)), EXACT_ROWS):
            product = torch.mm(
                scaled[index : index + EXACT_ROWS].T, right[index : index + EXACT_ROWS]
            ).view(-1)
            if index == 0:
                total.copy_(product)
            else:
                total += product.to(torch.int64)


def _truncate(rows: Tensor, weights: Tensor) -> Tensor:
    """Rows (n, d) times ``weights`` (n,), rounded towards zero, float64."""
    scaled = rows * weights.unsqueeze(1)
    scaled -= scaled.frac()  # seven times as fast as ``trunc``
    return scaled


def _find_bad(norms: Tensor) -> Tensor | None:
    """Records whose norm (n,) is not finite, (n,) bool: their factor is 0, but 0 times NaN is not.
    None: there are none."""
    bad = ~torch.isfinite(norms)
    # to look would make the host wait for a GPU
    if norms.device.type != "cpu" or bool(bad.any()):
        return bad
    return None


def _zero_rows(rows: Tensor, bad: Tensor | None) -> Tensor:
    if bad is None:
        return rows
    return rows.masked_fill(bad.reshape(-1, *(1,) * (rows.ndim - 1)), 0)


@dataclass(frozen=True)
class RecordLayout:
    """Names, shapes and types of one record's contribution."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    kinds: tuple[torch.dtype, ...]

    @staticmethod
    def from_contributions(like: Tensors) -> RecordLayout:
        """The layout of contributions (n, ...); whole numbers become float32."""
        parts = parts_of(like).values()
        kinds = tuple(
            part.dtype if part.dtype.is_floating_point else torch.float32 for part in parts
        )
        return RecordLayout(tuple(like), tuple(part.shape[1:] for part in parts), kinds)

    def to_tensors(self, flat: Tensor) -> dict[str, Tensor]:
        """``clipped_sum``'s numbers (d,) as tensors with memory of their own."""
        is_uniform = len(set(self.kinds)) == 1
        # one conversion instead of many small ones
        flat = flat.to(self.kinds[0]) if is_uniform else flat
        parts: Any = torch.split_with_sizes_copy(flat, [s.numel() for s in self.shapes])  # type: ignore[func-returns-value]
        shaped = [p if len(s) == 1 else p.view(s) for p, s in zip(parts, self.shapes)]
        return dict(
            zip(self.names, shaped if is_uniform else (p.to(k) for p, k in zip(shaped, self.kinds)))
        )


@dataclass(frozen=True)
class LazyTensors(Mapping[str, Tensor]):
    """Tensors that are made when they are first read: few releases are asked what they were before
    noise.

    units: ``clipped_sum``'s numbers.
    """

    units: Tensor
    lattice: Lattice
    layout: RecordLayout

    @cached_property
    def tensors_by_name(self) -> dict[str, Tensor]:
        kinds = (torch.float64,) * len(self.layout.kinds)  # float32 would round the fine units
        return replace(self.layout, kinds=kinds).to_tensors(
            self.lattice.to_numbers(self.units, torch.float64)
        )

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.names)

    def __len__(self) -> int:
        return len(self.layout.names)
