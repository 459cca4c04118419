"""What of a release is no continuous noise: names, shapes, types, texts, NaN, flags, and single values that come back.

A key that only one side ever has may be rare, and the numbers beside it noised soundly: averages over all that is released
drown it. Each mark is there or not; it counts by the odds with which it is there, and all of them together by theirs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privdd.checking.sampled import Block

WORDS, ATOMS = 200, 64  # marks of each kind, at most: those whose odds differ most
FEW = 4  # values of a number from which on it is no flag
SMALL = 0.5  # added to counts


@dataclass(frozen=True)
class Marks:
    """words: parts of what is no number; atoms: (number of a release, its value), in any of the calls."""

    words: tuple[str, ...]
    atoms: tuple[tuple[int, float], ...]

    @staticmethod
    def of(present: Block, absent: Block, values: int | None = None) -> Marks | None:
        """Those that some transcripts have and others lack; None where all are alike. values: flags alone, numbers of at
        most so many values."""
        sides = (present, absent)
        seen = [_words(block) for block in sides]
        words = _telling({word: (seen[0][word], seen[1][word]) for word in seen[0] | seen[1]}, sides, WORDS)
        same = present.rows.shape[1:] == absent.rows.shape[1:]
        atoms = _telling(_atoms(sides, values), sides, ATOMS) if same else []
        return Marks(tuple(words), tuple(atoms)) if words or atoms else None

    def on(self, block: Block) -> np.ndarray:
        """(n, marks) bool."""
        known = {code: np.isin(self.words, list(_parts(code))) for code in set(block.codes)}
        said = np.stack([known[code] for code in block.codes]).reshape(len(block), len(self.words))
        fits = all(at < block.rows.shape[2] for at, _ in self.atoms)
        back = [
            (block.rows[:, :, at] == value).any(1) if fits else np.zeros(len(block), bool) for at, value in self.atoms
        ]
        return np.concatenate([said, np.stack(back, 1)], 1) if back else said

    def odds_of_each(self, present: Block, absent: Block) -> Callable[[Block], np.ndarray]:
        """The sum of the marks' log odds, whether they are there or not."""
        one, other = ((self.on(b).sum(0) + SMALL) / (len(b) + 2 * SMALL) for b in (present, absent))
        there, away = np.log(one / other), np.log((1 - one) / (1 - other))
        return lambda block: np.where(self.on(block), there, away).sum(1)

    def odds_of_all(self, present: Block, absent: Block) -> Callable[[Block], np.ndarray]:
        """The log odds of all marks together; of what was never seen, as of what both sides have alike."""
        seen = [Counter(row.tobytes() for row in self.on(block)) for block in (present, absent)]
        shift = np.log(len(absent) / len(present))

        def scores(block: Block) -> np.ndarray:
            rows = [row.tobytes() for row in self.on(block)]
            log = {row: np.log((seen[0][row] + SMALL) / (seen[1][row] + SMALL)) + shift for row in set(rows)}
            return np.array([log[row] for row in rows])

        return scores


def _parts(code: str) -> tuple[str, ...]:
    """The words of a signature, and all of it where its order may tell."""
    return tuple(dict.fromkeys([code, *re.findall(r"[^;,\[\]\s]+", code)]))


def _words(block: Block) -> Counter[str]:
    """Word -> in how many transcripts."""
    found: Counter[str] = Counter()
    for code, count in Counter(block.codes).items():
        found.update(dict.fromkeys(_parts(code), count))
    return found


def _atoms(sides: Sequence[Block], values: int | None) -> dict[tuple[int, float], tuple[int, int]]:
    """(number, value) -> in how many calls of either side, for values that come back."""
    found: dict[tuple[int, float], tuple[int, int]] = {}
    for at in range(sides[0].rows.shape[2]):
        both = np.concatenate([block.rows[:, :, at].ravel() for block in sides])
        value, place, count = np.unique(both, return_inverse=True, return_counts=True)
        if not len(value) > 1 or (values is not None and len(value) > values) or count.max() < 2:
            continue
        of_first = np.bincount(place.ravel()[: sides[0].rows[:, :, at].size], minlength=len(value))
        back = np.flatnonzero(count > 1)
        found |= {(at, float(value[i])): (int(of_first[i]), int(count[i] - of_first[i])) for i in back}
    return found


def _telling(counts: dict[Any, tuple[int, int]], sides: Sequence[Block], most: int) -> list[Any]:
    """The marks whose odds differ most, less a standard error; none that all transcripts have."""
    some = [(mark, np.array(n) + SMALL) for mark, n in counts.items() if sum(n) > 1 and n != tuple(map(len, sides))]
    shift = np.log(len(sides[1]) / len(sides[0]))
    gain = {mark: abs(np.log(n[0] / n[1]) + shift) - np.sqrt((1 / n).sum()) for mark, n in some}
    return sorted(gain, key=lambda mark: -gain[mark])[:most]
