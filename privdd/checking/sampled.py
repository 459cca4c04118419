"""Many transcripts of one input, within a budget of time and calls."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from privdd.checking.called import BlackBox, Data

WAITS = 12
NUMBERS = 30_000_000  # in memory at a time


class OutOfTime(Exception):
    """The budget is spent: what is known so far is the answer."""


@dataclass
class Clock:
    """seconds of processor time and calls that may be spent.

    A mechanism that waits is stopped at ``WAITS`` times the seconds on the wall.
    """

    seconds: float
    calls: int
    began: float = field(default_factory=time.process_time)
    wall: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        worked, waited = time.process_time() - self.began, time.monotonic() - self.wall
        return self.seconds - max(worked, waited / WAITS)

    def check(self, mechanism: BlackBox) -> None:
        if self.left() <= 0 or mechanism.calls >= self.calls:
            raise OutOfTime


@dataclass(frozen=True)
class Block:
    """Transcripts of one input: rows (n, T, m), the numbers of each call, and what else came out, (n,) codes.

    Transcripts that are not of the most common shape have rows of zeros: their code tells them apart.
    """

    rows: np.ndarray
    codes: list[str]

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def usual(self) -> str:
        return Counter(self.codes).most_common(1)[0][0]


def joined_blocks(one: Block, other: Block) -> Block | None:
    """Transcripts of the same input, drawn at two times; None where their usual numbers are of different sizes."""
    if one.rows.shape[1:] != other.rows.shape[1:]:
        return None
    return Block(np.concatenate([one.rows, other.rows]), [*one.codes, *other.codes])


def drawn(mechanism: BlackBox, inputs: Sequence[Data], count: int, clock: Clock, *, joined: bool = False) -> Block:
    """``count`` transcripts. joined: all calls of a transcript as one long vector, rows (n, 1, T m).

    Raises Refused where the mechanism refuses this input, and OutOfTime.
    """
    found = []
    for at in range(count):
        if at % 32 == 0:
            clock.check(mechanism)
        found.append(mechanism.transcript(inputs))
    sizes = Counter(len(one.numbers) for one in found)
    size = sizes.most_common(1)[0][0]
    codes = [one.signature for one in found]
    rows = np.stack([one.numbers if len(one.numbers) == size else np.zeros(size) for one in found])
    calls = 1 if joined or size % len(inputs) else len(inputs)
    return Block(rows.reshape(count, calls, size // calls), codes)


def affordable(block_cost: float, clock: Clock, share: float, wanted: int, width: int) -> int:
    """How many transcripts a share of the time left pays for; block_cost: seconds of one, width: its numbers."""
    pays = int(share * max(clock.left(), 0) / max(block_cost, 1e-7))
    return max(0, min(wanted, pays, NUMBERS // max(width, 1)))
