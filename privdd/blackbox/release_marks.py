"""Marks of a release: words of what is no number, and values that come back exactly."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from privdd.blackbox.transcripts import Sides, Transcripts

# marks of each kind, at most: those whose odds differ most
MAX_WORDS = 200
MAX_ATOMS = 64
MIN_VALUES = 4  # values of a number from which on it is no flag
ADDED_COUNT = 0.5  # to counts, so that what was never seen has finite odds (Haldane and Anscombe)

Statistic = Callable[[Transcripts], np.ndarray]  # (n,) one number a transcript
Atom = tuple[int, float]  # number of a release, its value


@dataclass(frozen=True)
class ReleaseMarks:
    """words: parts of what is no number; atoms: (number of a release, its value), in any of the
    calls."""

    words: tuple[str, ...]
    atoms: tuple[Atom, ...]

    @staticmethod
    def from_sides(
        present: Transcripts, absent: Transcripts, values: int | None = None
    ) -> ReleaseMarks | None:
        """Marks that some transcripts have and others lack.

        Args:
            present: transcripts with the record.
            absent: transcripts without it.
            values: if given, flags alone: numbers of at most so many values.

        Returns:
            None if there are no such marks.
        """
        sides = (present, absent)
        words = most_revealing_marks(_count_words(sides), sides, MAX_WORDS)
        atoms: list[Atom] = []
        if present.rows.shape[1:] == absent.rows.shape[1:]:
            atoms = most_revealing_marks(_count_atoms(sides, values), sides, MAX_ATOMS)
        if not words and not atoms:
            return None
        return ReleaseMarks(tuple(words), tuple(atoms))

    def find_marks(self, block: Transcripts) -> np.ndarray:
        """(n, marks) bool: words first, then atoms."""
        has_words = {
            code: np.isin(self.words, list(_signature_words(code))) for code in set(block.codes)
        }
        of_words = np.stack([has_words[code] for code in block.codes])
        of_words = of_words.reshape(len(block), len(self.words))
        if not self.atoms:
            return of_words
        if any(
            column >= block.rows.shape[2] for column, _ in self.atoms
        ):  # releases of another size
            of_atoms = np.zeros((len(block), len(self.atoms)), bool)
        else:
            columns = [(block.rows[:, :, column] == value).any(1) for column, value in self.atoms]
            of_atoms = np.stack(columns, 1)
        return np.concatenate([of_words, of_atoms], 1)

    def odds_of_each(self, present: Transcripts, absent: Transcripts) -> Statistic:
        """The sum of the marks' log odds, whether they are there or not.

        sum over marks j of x_j ln(p_j / q_j) + (1 - x_j) ln((1 - p_j) / (1 - q_j)), with shares p_j
        = (count + 1/2) / (n + 1): the log likelihood ratio if marks are independent, which is
        learned from few transcripts.
        """
        share_present = self._shares(present)
        share_absent = self._shares(absent)
        if_there = np.log(share_present / share_absent)
        if_missing = np.log((1 - share_present) / (1 - share_absent))
        return lambda block: np.where(self.find_marks(block), if_there, if_missing).sum(1)

    def _shares(self, block: Transcripts) -> np.ndarray:
        counts = self.find_marks(block).sum(0)
        return np.asarray((counts + ADDED_COUNT) / (len(block) + 2 * ADDED_COUNT))

    def odds_of_all(self, present: Transcripts, absent: Transcripts) -> Statistic:
        """The log odds of all marks together; of what was never seen, as of what both sides have
        alike."""
        return learn_odds(
            present, absent, lambda block: [row.tobytes() for row in self.find_marks(block)]
        )


def learn_odds(
    present: Transcripts, absent: Transcripts, keys_of: Callable[[Transcripts], list[Any]]
) -> Statistic:
    """How much more often a key comes with the record: ln((n_key + 1/2) / (m_key + 1/2)) + ln(m /
    n), the likelihood ratio of a multinomial.

    Args:
        present: n transcripts with the record.
        absent: m transcripts without it.
        keys_of: transcripts -> one key for each of them.
    """
    counts_present = Counter(keys_of(present))
    counts_absent = Counter(keys_of(absent))
    shift = np.log(len(absent) / len(present))

    def log_odds(key: Any) -> float:
        ratio = (counts_present[key] + ADDED_COUNT) / (counts_absent[key] + ADDED_COUNT)
        return float(shift + np.log(ratio))

    def score_transcripts(block: Transcripts) -> np.ndarray:
        keys = keys_of(block)
        odds = {key: log_odds(key) for key in set(keys)}
        return np.array([odds[key] for key in keys])

    return score_transcripts


@lru_cache(4096)
def _signature_words(code: str) -> tuple[str, ...]:
    """The words of a signature, and all of it as its order may tell."""
    return tuple(dict.fromkeys([code, *re.findall(r"[^;,\[\]\s]+", code)]))


def _count_words(sides: Sides) -> dict[str, tuple[int, int]]:
    """Word -> in how many transcripts of either side."""
    counts: list[Counter[str]] = []
    for block in sides:
        words: Counter[str] = Counter()
        for code in block.codes:
            words.update(_signature_words(code))
        counts.append(words)
    present, absent = counts
    return {word: (present[word], absent[word]) for word in present | absent}


def _count_atoms(sides: Sides, values: int | None) -> dict[Atom, tuple[int, int]]:
    """(number, value) -> in how many calls of either side, for values that come back."""
    counts: dict[Atom, tuple[int, int]] = {}
    present, absent = sides
    for index in range(present.rows.shape[2]):
        column_present = present.rows[:, :, index].ravel()
        column_absent = absent.rows[:, :, index].ravel()
        distinct, places, repeats = np.unique(
            np.concatenate([column_present, column_absent]),
            return_inverse=True,
            return_counts=True,
        )
        is_constant = len(distinct) <= 1
        is_no_flag = values is not None and len(distinct) > values
        if is_constant or is_no_flag or repeats.max() < 2:
            continue
        of_present = np.bincount(places.ravel()[: column_present.size], minlength=len(distinct))
        for i in np.flatnonzero(repeats > 1):
            count = int(of_present[i])
            counts[index, float(distinct[i])] = (count, int(repeats[i] - of_present[i]))
    return counts


def most_revealing_marks(
    counts: dict[Any, tuple[int, int]], sides: Sequence[Transcripts], most: int
) -> list[Any]:
    """The marks whose odds differ most, less a standard error; none that all transcripts have.

    |ln(n / m) + ln(M / N)| - sqrt(1/n + 1/m) for counts n of N and m of M, by the normal limit of a
    log ratio: the largest ratio alone would be that of the rarest mark.

    Args:
        counts: mark -> counts of either side.
        sides: transcripts with the record, and without it.
        most: marks.
    """
    sizes = tuple(map(len, sides))
    shift = np.log(sizes[1] / sizes[0])
    gain = {}
    for mark, count in counts.items():
        if sum(count) > 1 and count != sizes:
            n = np.array(count) + ADDED_COUNT
            gain[mark] = abs(np.log(n[0] / n[1]) + shift) - np.sqrt((1 / n).sum())
    return sorted(gain, key=lambda mark: -gain[mark])[:most]


def comes_back(present: Transcripts, absent: Transcripts) -> bool:
    """Whether whole outcomes come back, as they do if no noise is continuous."""
    different = len(set(discrete_outcomes(present))) + len(set(discrete_outcomes(absent)))
    return different <= (len(present) + len(absent)) / 4


def discrete_outcomes(block: Transcripts) -> list[tuple[str, bytes]]:
    """Of each transcript all that comes out, as a key."""
    return [(code, row.tobytes()) for code, row in zip(block.codes, block.rows)]
