"""What the records of one run contribute to its releases, and which contributions of two runs
belong together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from privdd.auditing.dp_tests.clean_values import clean_numbers, sensitivity_unit
from privdd.auditing.dp_tests.instrumentation import RecordedRelease
from privdd.core.types import Tensors
from privdd.privacy.clipping import count_records, take_records
from privdd.privacy.mechanism import Mechanism

COMPARED_RELEASES = 4  # releases of one query in which other records are compared one by one
COMPARED_RECORDS = 32  # of these records at most
EXTRA_RECORDS = 4  # more where one has joined, and rounding may have put others before it
FINGERPRINT_SIZE = 4  # numbers by which a contribution is known
MAX_CHANGE = 1e6  # units: what has no bound at all
MIN_NORM = 1e-9
FINGERPRINT_TOLERANCE = 1e-4  # of their size: batched kernels round differently with the batch size


ReleasePlace = tuple[int, str | None, int]  # which release of the query, its cell, which row


class EnoughReleases(Exception):
    """Every query was seen often enough; the rest of the round is not needed."""


@dataclass
class SeenContributions:
    """What one run of a round contributed to its releases.

    limit: query -> releases after which it is enough; singly: query -> release -> what its first
        rows contribute one by one (first by ``marks``); where: query -> the cell of each release;
        largest: query -> (size before it is clipped,
    place) of the row that contributes most; marks: query -> those of each release.
    """

    limit: Mapping[str, int]
    rows: int = COMPARED_RECORDS
    totals: dict[str, list[Tensor]] = field(default_factory=dict)
    singly: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    largest: dict[str, tuple[float, ReleasePlace]] = field(default_factory=dict)
    where: dict[str, list[str | None]] = field(default_factory=dict)
    marks: dict[str, list[Tensor]] = field(default_factory=dict)

    def __call__(self, mechanism: Mechanism, heeded: RecordedRelease) -> None:
        one = sensitivity_unit(heeded.released)
        name = heeded.name
        cell = heeded.partition
        totals = self.totals.setdefault(name, [])
        cells = self.where.setdefault(name, [])
        totals.append(clean_numbers(mechanism, heeded.rows) / one)
        if mechanism.per_record:
            self.marks.setdefault(name, []).append(contribution_fingerprints(heeded.rows))
        if mechanism.per_record and (len(totals) <= COMPARED_RELEASES or cell not in cells):
            order = self.marks[name][-1][:, 0].argsort()[: self.rows]
            alone = single_contributions(mechanism, take_records(heeded.rows, order)) / one
            self.singly.setdefault(name, {})[len(totals)] = alone
            self._update_largest(name, (len(totals) - 1, cell), contribution_norms(heeded.rows))
        cells.append(cell)
        if self.limit and all(
            len(self.totals.get(n, ())) >= most for n, most in self.limit.items()
        ):
            raise EnoughReleases

    def _update_largest(self, name: str, release: tuple[int, str | None], norms: Tensor) -> None:
        if len(norms) and float(norms.max()) > self.largest.get(name, (0.0, None))[0]:
            self.largest[name] = float(norms.max()), (*release, int(norms.argmax()))


def contribution_norms(rows: Tensors) -> Tensor:
    """The norm of each record's contribution (n,), before it is clipped."""
    return torch.cat([part.double() for part in _flatten_rows(rows)], 1).nan_to_num().norm(dim=1)


def _flatten_rows(rows: Tensors) -> list[Tensor]:
    """Each tensor as (n, numbers)."""
    return [(t.flatten(1) if t.ndim > 1 else t.unsqueeze(1)).detach() for t in rows.values()]


def single_contributions(mechanism: Mechanism, rows: Tensors) -> Tensor:
    """What each of the records alone would contribute, (n, p), clipped as the mechanism does."""
    each = [
        clean_numbers(mechanism, take_records(rows, slice(i, i + 1)))
        for i in range(count_records(rows))
    ]
    return torch.stack(each) if each else torch.zeros(0, 1)


def contribution_fingerprints(rows: Tensors) -> Tensor:
    """A few numbers of each contribution (n, FINGERPRINT_SIZE) that equal ones share and no others
    do: a method may put its records in any order, so a contribution is known by what it is, not by
        its place."""
    parts = [part.float().nan_to_num() for part in _flatten_rows(rows)]
    return torch.stack([part @ _projection_matrix(part.shape[1]) for part in parts]).sum(0).double()


@lru_cache(maxsize=64)
def _projection_matrix(size: int) -> Tensor:
    return torch.randn(size, FINGERPRINT_SIZE, generator=torch.Generator().manual_seed(size))


def match_rows(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The cheapest matching of rows: (rows of one, rows of the other, how far each pair is
    apart)."""
    away = torch.cdist(one.double(), other.double(), compute_mode="donot_use_mm_for_euclid_dist")
    away = away.nan_to_num(nan=torch.inf).clamp_max(MAX_CHANGE)
    rows, columns = map(torch.from_numpy, linear_sum_assignment(away.numpy()))
    return rows, columns, away[rows, columns]


def equal_fingerprints(one: Tensor, other: Tensor) -> Tensor:
    """Whether fingerprints (n, FINGERPRINT_SIZE) are the same, row by row, up to rounding."""
    return (one - other).norm(dim=1) <= FINGERPRINT_TOLERANCE * (
        one.norm(dim=1) + other.norm(dim=1)
    ) + MIN_NORM


def unmatched_rows(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Places of marks that have no equal on the other side: (in one, in the other)."""
    a, b, _ = match_rows(one, other)
    same = equal_fingerprints(one[a], other[b])
    left = torch.ones(len(one), dtype=torch.bool)
    right = torch.ones(len(other), dtype=torch.bool)
    left[a[same]] = right[b[same]] = False
    return left.nonzero()[:, 0], right.nonzero()[:, 0]
