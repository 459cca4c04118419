"""What one run of a client's round contributes to its releases: whole sums, and record by record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from privdd.auditing.guarantees.recording_context import Heeded, exact, flat, unit
from privdd.core.types import Tensors
from privdd.privacy.mechanism import Mechanism

HELD = 4  # releases of one query in which other records are compared one by one
SINGLE = 32  # of these records at most

Place = tuple[str, str | None, int]  # query, cell, which row of its releases


class Enough(Exception):
    """Every query was seen often enough; the rest of the round is not needed."""


@dataclass
class Seen:
    """What one run of a round contributed to its releases.

    limit: query -> releases after which it is enough; singly: query -> release -> what its first rows contribute one by
    one; where: query -> the cell of each release; largest: query -> (size before it is clipped, place) of the row
    that contributes most.
    """

    limit: Mapping[str, int]
    rows: int = SINGLE
    totals: dict[str, list[Tensor]] = field(default_factory=dict)
    singly: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    largest: dict[str, tuple[float, Place]] = field(default_factory=dict)
    where: dict[str, list[str | None]] = field(default_factory=dict)

    def __call__(self, mechanism: Mechanism, heeded: Heeded) -> None:
        one, name, cell = unit(heeded.released), heeded.name, heeded.partition
        totals, cells = self.totals.setdefault(name, []), self.where.setdefault(name, [])
        totals.append(flat(exact(mechanism, heeded.rows)) / one)
        if mechanism.per_record and (len(totals) <= HELD or cell not in cells):
            alone = singly(mechanism, heeded.rows, self.rows) / one
            self.singly.setdefault(name, {})[len(totals)] = alone
            self._weigh(name, cell, sizes(heeded.rows))
        cells.append(cell)
        if self.limit and all(len(self.totals.get(n, ())) >= most for n, most in self.limit.items()):
            raise Enough

    def _weigh(self, name: str, cell: str | None, norms: Tensor) -> None:
        if len(norms) and float(norms.max()) > self.largest.get(name, (0.0, None))[0]:
            self.largest[name] = float(norms.max()), (name, cell, int(norms.argmax()))


def sizes(rows: Tensors) -> Tensor:
    """The norm of each record's contribution (n,), before it is clipped."""
    flattened = [(t.flatten(1) if t.ndim > 1 else t.unsqueeze(1)).detach().double() for t in rows.values()]
    return torch.cat(flattened, 1).nan_to_num().norm(dim=1)


def singly(mechanism: Mechanism, rows: Tensors, most: int | None = None) -> Tensor:
    """What each of the first records alone would contribute, (n, p), clipped as the mechanism does."""
    count = len(next(iter(rows.values())))
    each = [
        flat(exact(mechanism, {n: t[i : i + 1] for n, t in rows.items()}))
        for i in range(count if most is None else min(count, most))
    ]
    return torch.stack(each) if each else torch.zeros(0, 1)
