"""A client whose reply could not be used: the round goes on without it, and the ledger keeps what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import dp_accounting as dpa

from attacks.types import Surface
from privdd.privacy.mechanism import Row

NAME = "dropped reply"


@dataclass(frozen=True)
class Dropped:
    """In the place of what the server would have received."""

    client: int
    round: int


def dropped_rows(
    planned: Sequence[Row], uploads: Mapping[str, Surface], dropped: Dropped, why: str, *, uncovered: bool
) -> list[Row]:
    """The ledger rows of a dropped client: all that its round was planned to spend, and a row that says why.

    What it sent was received, used or not, so its planned releases count. uncovered: it also sent what no planned
    mechanism covers, or says that it spent something else, so that last row has no finite epsilon.
    """
    unknown = [replace(row, shape={}, digest="") for row in planned]
    note = Row(
        round=dropped.round,
        client=dropped.client,
        name=NAME,
        surface=str(next(iter(uploads.values()))),
        visible_to=("server",),
        shape={},
        digest="",
        event=dpa.NonPrivateDpEvent() if uncovered else dpa.NoOpDpEvent(),
        why=why,
        nonprivate_reason="the reply held what no planned mechanism covers" if uncovered else None,
    )
    return [*unknown, note]
