"""Transcripts of a mechanism within a budget of time, calls and error probability."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from attacks.statistics import shared_confidence
from privdd.blackbox.mechanism import BlackBox, Data

WAITS = 12
NUMBERS = 30_000_000  # in memory at a time


class OutOfTime(Exception):
    """The budget is spent: what is known so far is the answer."""


@dataclass
class CallBudget:
    """seconds of processor time and calls that may be spent.

    A mechanism that waits is stopped at ``WAITS`` times the seconds on the wall.
    """

    seconds: float
    calls: int
    began: float = field(default_factory=time.process_time)
    wall: float = field(default_factory=time.monotonic)

    def seconds_left(self) -> float:
        worked, waited = time.process_time() - self.began, time.monotonic() - self.wall
        return self.seconds - max(worked, waited / WAITS)

    def check_budget(self, mechanism: BlackBox) -> None:
        if self.seconds_left() <= 0 or mechanism.calls >= self.calls:
            raise OutOfTime


@dataclass(frozen=True)
class Transcripts:
    """Transcripts of one input: rows (n, T, m), the numbers of each call, and what else came out, (n,) codes.

    Transcripts that are not of the most common shape have rows of zeros: their code tells them apart.
    """

    rows: np.ndarray
    codes: list[str]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, which: slice) -> Transcripts:
        return Transcripts(self.rows[which], self.codes[which])

    def split_half(self) -> Sides:
        """(the first half, the second)."""
        return self[: len(self) // 2], self[len(self) // 2 :]

    @property
    def most_common_code(self) -> str:
        return Counter(self.codes).most_common(1)[0][0]


Sides = tuple[Transcripts, Transcripts]  # of an input with the record, and of one without it


@dataclass(frozen=True)
class PairSample:
    """Transcripts of two neighbouring inputs: some to learn from, fresh ones to judge.

    axis: the direction (m,) in which the record moves, None where it is not known; shift (T, m): what it adds to each number
    exactly, where that was seen without noise.
    """

    trained: Sides
    fresh: Sides
    axis: np.ndarray | None = None
    shift: np.ndarray | None = None


def join_transcripts(one: Transcripts, other: Transcripts) -> Transcripts | None:
    """Transcripts of the same input, drawn at two times; None where their usual numbers are of different sizes."""
    if one.rows.shape[1:] != other.rows.shape[1:]:
        return None
    return Transcripts(np.concatenate([one.rows, other.rows]), [*one.codes, *other.codes])


def transcript_totals(block: Transcripts) -> np.ndarray:
    """(n, m): the sum over a transcript's calls, sufficient for a shift under independent Gaussian noise."""
    return block.rows.sum(1)


def draw_transcripts(
    mechanism: BlackBox, inputs: Sequence[Data], count: int, clock: CallBudget, *, joined: bool = False
) -> Transcripts:
    """``count`` transcripts. joined: all calls of a transcript as one long vector, rows (n, 1, T m).

    Raises InputRefused where the mechanism refuses this input, and OutOfTime.
    """
    found = []
    for at in range(count):
        if at % 32 == 0:
            clock.check_budget(mechanism)
        found.append(mechanism.transcript(inputs))
    sizes = Counter(len(one.numbers) for one in found)
    size = sizes.most_common(1)[0][0]
    codes = [one.signature for one in found]
    rows = np.stack([one.numbers if len(one.numbers) == size else np.zeros(size) for one in found])
    calls = 1 if joined or size % len(inputs) else len(inputs)
    return Transcripts(rows.reshape(count, calls, size // calls), codes)


def affordable_transcripts(block_cost: float, clock: CallBudget, share: float, wanted: int, width: int) -> int:
    """How many transcripts a share of the time left pays for; block_cost: seconds of one, width: its numbers."""
    pays = int(share * max(clock.seconds_left(), 0) / max(block_cost, 1e-7))
    return max(0, min(wanted, pays, NUMBERS // max(width, 1)))


SHARES = 100


@dataclass(frozen=True)
class BoundLevel:
    """What a lower bound on epsilon is asked for."""

    delta: float
    confidence: float

    @property
    def error(self) -> float:
        return 1 - self.confidence


class OutOfShares(OutOfTime):
    """Every share is taken: a further bound would not hold at the confidence that is said."""


@dataclass
class ErrorShares:
    """confidence: of all tests together, by the union bound; taken: tests so far, at most ``SHARES``."""

    confidence: float
    taken: int = 0

    def next_confidence(self, tests: int = 1) -> float:
        """The confidence of the next test, or of each of several. Raises OutOfShares where fewer are left."""
        if self.taken + tests > SHARES:
            raise OutOfShares
        self.taken += tests
        return shared_confidence(self.confidence, SHARES)
