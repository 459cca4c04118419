"""Transcripts: what a mechanism lets out in the calls of one instance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privdd.blackbox.budgets import CallBudget
from privdd.blackbox.mechanism import BlackBox, Data

NUMBERS = 30_000_000  # in memory at a time
CHECKED = 32  # transcripts between two looks at the budget


@dataclass(frozen=True)
class Transcripts:
    """Transcripts of one input.

    Attributes:
        rows: (n, T, m), m numbers of each of T calls (zeros if the shape is not the usual one).
        codes: (n,) what is no number.
    """

    rows: np.ndarray
    codes: list[str]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, which: slice) -> Transcripts:
        return Transcripts(self.rows[which], self.codes[which])

    def split_half(self) -> Sides:
        """(the first half, the second)."""
        half = len(self) // 2
        return self[:half], self[half:]

    @property
    def most_common_code(self) -> str:
        """What is no number, in most transcripts."""
        return Counter(self.codes).most_common(1)[0][0]


Sides = tuple[Transcripts, Transcripts]  # of an input with the record, and of one without it


@dataclass(frozen=True)
class PairSample:
    """Transcripts of neighbours.

    Attributes:
        trained: to learn from.
        fresh: to judge by.
        axis: (m,) direction of the record, if it is known.
        shift: (T, m) what the record adds exactly, if that was seen without noise.
    """

    trained: Sides
    fresh: Sides
    axis: np.ndarray | None = None
    shift: np.ndarray | None = None


def join_transcripts(earlier: Transcripts, later: Transcripts) -> Transcripts:
    """Transcripts of the same input, drawn at two times."""
    rows = np.concatenate([earlier.rows, later.rows])
    return Transcripts(rows, [*earlier.codes, *later.codes])


def transcript_totals(block: Transcripts) -> np.ndarray:
    """(n, m): the sum over a transcript's calls, sufficient for a shift under independent Gaussian
    noise."""
    return block.rows.sum(1)


def draw_transcripts(
    mechanism: BlackBox,
    inputs: Sequence[Data],
    count: int,
    budget: CallBudget,
    *,
    joined: bool = False,
) -> Transcripts:
    """``count`` transcripts.

    Args:
        mechanism: what is called.
        inputs: of the T calls of a transcript.
        count: above 0.
        budget: that is checked.
        joined: whether all calls are one long vector, rows (n, 1, T m).

    Raises:
        InputRefused: the mechanism raised an error.
        OutOfTime: the budget is spent.
    """
    releases = []
    for index in range(count):
        if index % CHECKED == 0:
            budget.check_budget(mechanism)
        releases.append(mechanism.transcript(inputs))
    sizes = Counter(len(release.numbers) for release in releases)
    size = sizes.most_common(1)[0][0]
    rows = np.zeros((count, size))
    for index, release in enumerate(releases):
        if len(release.numbers) == size:
            rows[index] = release.numbers
    calls = 1 if joined or size % len(inputs) else len(inputs)
    codes = [release.signature for release in releases]
    return Transcripts(rows.reshape(count, calls, size // calls), codes)
