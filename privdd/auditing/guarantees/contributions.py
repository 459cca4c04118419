"""What one run of a client's round contributes to its releases: whole sums, and record by record.

A method may put its records in any order, so that a contribution is known by what it is, not by its place; equal ones are
interchangeable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from privdd.auditing.guarantees.recording_context import Heeded, exact, flat, unit
from privdd.core.types import Tensors
from privdd.privacy.mechanism import Mechanism

HELD = 4  # releases of one query in which other records are compared one by one
SINGLE = 32  # of these records at most
SPARE = 4  # more where one has joined, and rounding may have put others before it
MARKS = 4  # numbers by which a contribution is known
FAR = 1e6  # units: what has no bound at all
TINY = 1e-9
ALIKE = 1e-4  # of their size: batched kernels round differently with the batch size

Place = tuple[int, str | None, int]  # which release of the query, its cell, which row


class Enough(Exception):
    """Every query was seen often enough; the rest of the round is not needed."""


@dataclass
class Seen:
    """What one run of a round contributed to its releases.

    limit: query -> releases after which it is enough; singly: query -> release -> what its first rows contribute one by
    one (first by ``marks``); where: query -> the cell of each release; largest: query -> (size before it is clipped,
    place) of the row that contributes most; marks: query -> those of each release.
    """

    limit: Mapping[str, int]
    rows: int = SINGLE
    totals: dict[str, list[Tensor]] = field(default_factory=dict)
    singly: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    largest: dict[str, tuple[float, Place]] = field(default_factory=dict)
    where: dict[str, list[str | None]] = field(default_factory=dict)
    marks: dict[str, list[Tensor]] = field(default_factory=dict)

    def __call__(self, mechanism: Mechanism, heeded: Heeded) -> None:
        one, name, cell = unit(heeded.released), heeded.name, heeded.partition
        totals, cells = self.totals.setdefault(name, []), self.where.setdefault(name, [])
        totals.append(flat(exact(mechanism, heeded.rows)) / one)
        if mechanism.per_record:
            self.marks.setdefault(name, []).append(marks(heeded.rows))
        if mechanism.per_record and (len(totals) <= HELD or cell not in cells):
            order = self.marks[name][-1][:, 0].argsort()[: self.rows]
            alone = singly(mechanism, {n: t[order] for n, t in heeded.rows.items()}) / one
            self.singly.setdefault(name, {})[len(totals)] = alone
            self._weigh(name, (len(totals) - 1, cell), sizes(heeded.rows))
        cells.append(cell)
        if self.limit and all(len(self.totals.get(n, ())) >= most for n, most in self.limit.items()):
            raise Enough

    def _weigh(self, name: str, release: tuple[int, str | None], norms: Tensor) -> None:
        if len(norms) and float(norms.max()) > self.largest.get(name, (0.0, None))[0]:
            self.largest[name] = float(norms.max()), (*release, int(norms.argmax()))


def sizes(rows: Tensors) -> Tensor:
    """The norm of each record's contribution (n,), before it is clipped."""
    flattened = [(t.flatten(1) if t.ndim > 1 else t.unsqueeze(1)).detach().double() for t in rows.values()]
    return torch.cat(flattened, 1).nan_to_num().norm(dim=1)


def singly(mechanism: Mechanism, rows: Tensors) -> Tensor:
    """What each of the records alone would contribute, (n, p), clipped as the mechanism does."""
    count = len(next(iter(rows.values())))
    each = [flat(exact(mechanism, {n: t[i : i + 1] for n, t in rows.items()})) for i in range(count)]
    return torch.stack(each) if each else torch.zeros(0, 1)


def marks(rows: Tensors) -> Tensor:
    """A few numbers of each contribution (n, MARKS) that equal ones share and no others do."""
    flattened = [(t.flatten(1) if t.ndim > 1 else t.unsqueeze(1)).detach().float().nan_to_num() for t in rows.values()]
    return torch.stack([part @ _directions(part.shape[1]) for part in flattened]).sum(0).double()


@lru_cache(maxsize=64)
def _directions(size: int) -> Tensor:
    return torch.randn(size, MARKS, generator=torch.Generator().manual_seed(size))


def matched(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The cheapest matching of rows: (rows of one, rows of the other, how far each pair is apart)."""
    away = torch.cdist(one.double(), other.double(), compute_mode="donot_use_mm_for_euclid_dist").nan_to_num(
        nan=torch.inf
    )
    pairs = linear_sum_assignment(away.clamp_max(FAR).numpy())
    rows, columns = torch.from_numpy(pairs[0]), torch.from_numpy(pairs[1])
    return rows, columns, away.clamp_max(FAR)[rows, columns]


def alike(one: Tensor, other: Tensor) -> Tensor:
    """Whether marks (n, MARKS) are the same, row by row, up to rounding."""
    return (one - other).norm(dim=1) <= ALIKE * (one.norm(dim=1) + other.norm(dim=1)) + TINY


def strangers(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Places of marks that have no equal on the other side: (in one, in the other)."""
    a, b, _ = matched(one, other)
    same = alike(one[a], other[b])
    left = [
        torch.ones(len(side), dtype=torch.bool).index_fill(0, at[same], False) for side, at in ((one, a), (other, b))
    ]
    return left[0].nonzero()[:, 0], left[1].nonzero()[:, 0]
