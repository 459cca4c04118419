"""Before a bound that trusts the noise's law refutes a statement: is it that law on many more numbers, in the tails too?

Noise that is normal in the middle and has other tails, where its guarantee is made, passes for normal among a few
thousand numbers. What is drawn here decides nothing but whether the law is believed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from privdd.checking.called import Data, Refused
from privdd.checking.examining import Examining
from privdd.checking.learned import totals
from privdd.checking.sampled import Block, OutOfTime, drawn
from privdd.checking.shift_law import law_of_calls

Sides = tuple[Block, Block]
NUMBERS = 600_000  # of the noise; enough for a kurtosis that is off by a twentieth
SHARE = 0.25  # of the time and the calls that are left
OTHER = "the noise looks {law} in a few thousand numbers and is not in many more: no bound that trusts that law counts"
WORTH = 2  # times the transcripts that the law was told from: fewer say nothing new


def wanted(fresh: Block) -> int:
    """Transcripts that hold enough numbers with noise."""
    noised = int((fresh.rows.reshape(len(fresh), -1).std(0) > 0).sum())
    return -(-NUMBERS // max(1, noised))


def moved_numbers(present: Block, absent: Block) -> np.ndarray:
    """(m,): which numbers the record moves; all where none is seen to move."""
    a, b = totals(present), totals(absent)
    error = np.sqrt(a.var(0) / len(a) + b.var(0) / len(b))
    moved = np.abs(a.mean(0) - b.mean(0)) > 4 * error
    return moved if moved.any() else np.ones_like(moved)


def confirmed(law: str, more: Block, moved: np.ndarray) -> bool:
    """Whether all that is noised follows ``law`` (gaussian, laplace) in transcripts of one input, and so do those numbers
    by themselves that the record moves (m,)."""
    parts = (
        [more] if moved.all() or more.rows.shape[2] != len(moved) else [more, Block(more.rows[:, :, moved], more.codes)]
    )
    return all(law_of_calls(part, pool=NUMBERS) == law for part in parts)


@dataclass
class BelievedLaw(Examining):
    """Keeps which laws the noise only seemed to follow."""

    _doubted: set[str] = field(default_factory=set)

    def held(self, inputs: list[Data], trained: Sides, fresh: Sides, law: str, epsilon: float) -> float:
        """``epsilon``, which trusts the noise's law; 0 if it refutes the statement, and more of the noise has another law."""
        if epsilon <= self.stated.limit:
            return epsilon
        if law not in self._doubted and not self._confirmed(law, inputs, trained, fresh):
            self._doubted.add(law)
            self.result.notes.append(OTHER.format(law=law))
        return 0.0 if law in self._doubted else epsilon

    def _confirmed(self, law: str, inputs: list[Data], trained: Sides, fresh: Sides) -> bool:
        """True too where more releases cannot be had."""
        try:
            count = self._affordable(inputs, SHARE, wanted(fresh[1]))
            if count < WORTH * len(fresh[1]):
                return True
            return confirmed(law, drawn(self.mechanism, inputs, count, self.clock), moved_numbers(*trained))
        except (Refused, OutOfTime):
            return True
