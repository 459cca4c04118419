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
EXTRA_RECORDS = 4  # more if one has joined, and rounding may have put others before it
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

    Attributes:
        limit: query -> releases after which it is enough.
        rows: of each release, that are examined one by one.
        totals: query -> the value before noise of each release, in units.
        single: query -> release -> what its first rows, by fingerprint, contribute one by one.
        largest: query -> (size before it is clipped, place) of the row that contributes most.
        cells: query -> the cell of each release.
        fingerprints: query -> those of each release.
    """

    limit: Mapping[str, int]
    rows: int = COMPARED_RECORDS
    totals: dict[str, list[Tensor]] = field(default_factory=dict)
    single: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    largest: dict[str, tuple[float, ReleasePlace]] = field(default_factory=dict)
    cells: dict[str, list[str | None]] = field(default_factory=dict)
    fingerprints: dict[str, list[Tensor]] = field(default_factory=dict)

    def __call__(self, mechanism: Mechanism, release: RecordedRelease) -> None:
        unit = sensitivity_unit(release.released)
        name = release.name
        totals = self.totals.setdefault(name, [])
        cells = self.cells.setdefault(name, [])
        totals.append(clean_numbers(mechanism, release.rows) / unit)
        if mechanism.per_record:
            fingerprints = contribution_fingerprints(release.rows)
            self.fingerprints.setdefault(name, []).append(fingerprints)
            if len(totals) <= COMPARED_RELEASES or release.partition not in cells:
                order = fingerprints[:, 0].argsort()[: self.rows]
                alone = single_contributions(mechanism, take_records(release.rows, order)) / unit
                self.single.setdefault(name, {})[len(totals)] = alone
                self._update_largest(name, len(totals) - 1, release)
        cells.append(release.partition)
        if self.limit and all(len(self.totals.get(n, ())) >= m for n, m in self.limit.items()):
            raise EnoughReleases

    def _update_largest(self, name: str, number: int, release: RecordedRelease) -> None:
        norms = contribution_norms(release.rows)
        if len(norms) and float(norms.max()) > self.largest.get(name, (0.0, None))[0]:
            place = (number, release.partition, int(norms.argmax()))
            self.largest[name] = (float(norms.max()), place)


def contribution_norms(rows: Tensors) -> Tensor:
    """The L2 norm of each record's contribution (n,), before it is clipped."""
    return torch.cat([part.double() for part in _flatten_rows(rows)], 1).nan_to_num().norm(dim=1)


def _flatten_rows(rows: Tensors) -> list[Tensor]:
    """Each tensor as (n, numbers)."""
    parts = []
    for tensor in rows.values():
        if tensor.ndim > 1:
            numbers = tensor.flatten(1)
        else:
            numbers = tensor.unsqueeze(1)
        parts.append(numbers.detach())
    return parts


def single_contributions(mechanism: Mechanism, rows: Tensors) -> Tensor:
    """What each of the records alone would contribute, (n, p), clipped as the mechanism does."""
    values = []
    for row in range(count_records(rows)):
        values.append(clean_numbers(mechanism, take_records(rows, slice(row, row + 1))))
    return torch.stack(values) if values else torch.zeros(0, 1)


def contribution_fingerprints(rows: Tensors) -> Tensor:
    """A few numbers of each contribution (n, FINGERPRINT_SIZE) that equal ones share and no others
    do.

    G^T c with a fixed standard normal matrix G: two contributions that differ have equal
    projections with probability 0. A method may put its records in any order, so a contribution is
    known by what it is, not by its place.
    """
    parts = [part.float().nan_to_num() for part in _flatten_rows(rows)]
    return torch.stack([part @ _projection_matrix(part.shape[1]) for part in parts]).sum(0).double()


@lru_cache(maxsize=64)
def _projection_matrix(size: int) -> Tensor:
    return torch.randn(size, FINGERPRINT_SIZE, generator=torch.Generator().manual_seed(size))


def match_rows(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The cheapest matching of rows, min over matchings of sum |a_i - b_j|_2 (Kuhn 1955).

    Returns:
        (rows of the first, rows of the second, distance of each pair).
    """
    distances = torch.cdist(
        first.double(), second.double(), compute_mode="donot_use_mm_for_euclid_dist"
    )
    distances = distances.nan_to_num(nan=torch.inf).clamp_max(MAX_CHANGE)
    rows, columns = map(torch.from_numpy, linear_sum_assignment(distances.numpy()))
    return rows, columns, distances[rows, columns]


def equal_fingerprints(first: Tensor, second: Tensor) -> Tensor:
    """Whether fingerprints (n, FINGERPRINT_SIZE) are the same, row by row, up to rounding."""
    size = first.norm(dim=1) + second.norm(dim=1)
    return (first - second).norm(dim=1) <= FINGERPRINT_TOLERANCE * size + MIN_NORM


def unmatched_rows(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Places of fingerprints that have no equal on the other side: (in the first, in the
    second)."""
    rows, columns, _ = match_rows(first, second)
    is_equal = equal_fingerprints(first[rows], second[columns])
    is_lone = torch.ones(len(first), dtype=torch.bool)
    is_lone_in_second = torch.ones(len(second), dtype=torch.bool)
    is_lone[rows[is_equal]] = False
    is_lone_in_second[columns[is_equal]] = False
    return is_lone.nonzero()[:, 0], is_lone_in_second.nonzero()[:, 0]
