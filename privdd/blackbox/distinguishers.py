"""Statistics that tell two inputs apart: learned on some transcripts, judged on others, of numbers
with noise and of marks without."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from scipy.special import logsumexp

from attacks.epsilon import best_threshold, from_scores
from privdd.blackbox.mechanism import BoundLevel, PairSample, Transcripts, transcript_totals

# marks of each kind, at most: those whose odds differ most
MAX_WORDS = 200
MAX_ATOMS = 64
MIN_VALUES = 4  # values of a number from which on it is no flag
ADDED_COUNT = 0.5  # added to counts


@dataclass(frozen=True)
class ReleaseMarks:
    """words: parts of what is no number; atoms: (number of a release, its value), in any of the
    calls."""

    words: tuple[str, ...]
    atoms: tuple[tuple[int, float], ...]

    @staticmethod
    def from_sides(
        present: Transcripts, absent: Transcripts, values: int | None = None
    ) -> ReleaseMarks | None:
        """Marks that some transcripts have and others lack; None for none. values: flags alone,
        numbers of at most so many values."""
        sides = (present, absent)
        seen = [
            Counter(word for code in block.codes for word in _signature_words(code))
            for block in sides
        ]
        counts = {word: (seen[0][word], seen[1][word]) for word in seen[0] | seen[1]}
        words = _most_revealing_marks(counts, sides, MAX_WORDS)
        same = present.rows.shape[1:] == absent.rows.shape[1:]
        atoms = _most_revealing_marks(_count_atoms(sides, values), sides, MAX_ATOMS) if same else []
        return ReleaseMarks(tuple(words), tuple(atoms)) if words or atoms else None

    def find_marks(self, block: Transcripts) -> np.ndarray:
        """(n, marks) bool."""
        known = {
            code: np.isin(self.words, list(_signature_words(code))) for code in set(block.codes)
        }
        said = np.stack([known[code] for code in block.codes]).reshape(len(block), len(self.words))
        fits = all(at < block.rows.shape[2] for at, _ in self.atoms)
        back = [
            (block.rows[:, :, at] == value).any(1) for at, value in (self.atoms if fits else ())
        ]
        back += [] if fits else [np.zeros(len(block), bool)] * len(self.atoms)
        return np.concatenate([said, np.stack(back, 1)], 1) if back else said

    def odds_of_each(
        self, present: Transcripts, absent: Transcripts
    ) -> Callable[[Transcripts], np.ndarray]:
        """The sum of the marks' log odds, whether they are there or not."""
        one, other = (
            (self.find_marks(b).sum(0) + ADDED_COUNT) / (len(b) + 2 * ADDED_COUNT)
            for b in (present, absent)
        )
        there = np.log(one / other)
        away = np.log((1 - one) / (1 - other))
        return lambda block: np.where(self.find_marks(block), there, away).sum(1)

    def odds_of_all(
        self, present: Transcripts, absent: Transcripts
    ) -> Callable[[Transcripts], np.ndarray]:
        """The log odds of all marks together; of what was never seen, as of what both sides have
        alike."""
        return learn_odds(
            present, absent, lambda block: [row.tobytes() for row in self.find_marks(block)]
        )


def learn_odds(
    present: Transcripts, absent: Transcripts, keys: Callable[[Transcripts], list[Any]]
) -> Callable[[Transcripts], np.ndarray]:
    """How much more often a key comes with the record, as log odds; keys: transcripts -> one for
    each of them."""
    seen = [Counter(keys(block)) for block in (present, absent)]
    shift = np.log(len(absent) / len(present))

    def score_transcripts(block: Transcripts) -> np.ndarray:
        found = keys(block)
        log = {
            key: shift + np.log((seen[0][key] + ADDED_COUNT) / (seen[1][key] + ADDED_COUNT))
            for key in set(found)
        }
        return np.array([log[key] for key in found])

    return score_transcripts


@lru_cache(4096)
def _signature_words(code: str) -> tuple[str, ...]:
    """The words of a signature, and all of it where its order may tell."""
    return tuple(dict.fromkeys([code, *re.findall(r"[^;,\[\]\s]+", code)]))


def _count_atoms(
    sides: Sequence[Transcripts], values: int | None
) -> dict[tuple[int, float], tuple[int, int]]:
    """(number, value) -> in how many calls of either side, for values that come back."""
    found: dict[tuple[int, float], tuple[int, int]] = {}
    for at in range(sides[0].rows.shape[2]):
        both = np.concatenate([block.rows[:, :, at].ravel() for block in sides])
        value, place, count = np.unique(both, return_inverse=True, return_counts=True)
        if not len(value) > 1 or (values is not None and len(value) > values) or count.max() < 2:
            continue
        of_first = np.bincount(place.ravel()[: sides[0].rows[:, :, at].size], minlength=len(value))
        back = np.flatnonzero(count > 1)
        found |= {
            (at, float(value[i])): (int(of_first[i]), int(count[i] - of_first[i])) for i in back
        }
    return found


def _most_revealing_marks(
    counts: dict[Any, tuple[int, int]], sides: Sequence[Transcripts], most: int
) -> list[Any]:
    """The marks whose odds differ most, less a standard error; none that all transcripts have."""
    sizes = tuple(map(len, sides))
    some = [
        (mark, np.array(n) + ADDED_COUNT) for mark, n in counts.items() if sum(n) > 1 and n != sizes
    ]
    shift = np.log(len(sides[1]) / len(sides[0]))
    gain = {mark: abs(np.log(n[0] / n[1]) + shift) - np.sqrt((1 / n).sum()) for mark, n in some}
    return sorted(gain, key=lambda mark: -gain[mark])[:most]


PRODUCTS = 24  # numbers of a transcript up to which their products are looked at too
WIDE = 300  # numbers above which the covariance of the noise is taken to be diagonal
FLOOR = 1e-12  # relative: variances below are taken for rounding
ROUNDING = 1e-9  # of the largest number: pieces that hold the same noise differ in less
WHOLE = "odds of the marks"
PARTS = "odds of each mark"
WORDS = "odds of the words"
EACH_WORD = "odds of each word"
WORDLESS = "what is no number"
OF_ANY_SIZE = {
    WORDLESS,
    WORDS,
    EACH_WORD,
}  # numbers of another size than the usual one, which may be chance, are not kept
Statistic = Callable[[Transcripts], np.ndarray]


@dataclass(frozen=True)
class NoiseMetric:
    """The noise's own metric, from transcripts. centre (m,): mean; std (m,); precision (m, m) or
    None (diagonal)."""

    centre: np.ndarray
    std: np.ndarray
    precision: np.ndarray | None

    @staticmethod
    def from_sides(*sides: np.ndarray) -> NoiseMetric:
        """From sides (n, m), each about its own mean; the centre is the last side's."""
        residuals = np.concatenate([side - side.mean(0) for side in sides])
        n, m = residuals.shape
        std = np.sqrt(np.square(residuals).sum(0) / max(1, n - len(sides)))
        largest = float(np.abs(np.concatenate(sides)).max(initial=0.0))
        floor = max(largest * 1e-13, FLOOR * float(std.max(initial=0.0)), 1e-60)
        precision = None
        if m <= WIDE and n > 3 * m:
            scale = np.maximum(std, floor)
            inner = (residuals / scale).T @ (residuals / scale) / max(1, n - len(sides))
            values, vectors = np.linalg.eigh(inner)
            precision = (vectors / np.maximum(values, 1e-9)) @ vectors.T / scale / scale[:, None]
        return NoiseMetric(sides[-1].mean(0), np.maximum(std, floor), precision)

    def whiten_vector(self, v: np.ndarray) -> np.ndarray:
        """Sigma^-1 v, (m,) or (n, m)."""
        return v / np.square(self.std) if self.precision is None else v @ self.precision


def shift_directions(
    present: Transcripts, absent: Transcripts, axis: np.ndarray | None
) -> list[np.ndarray]:
    """Directions (m,) along which the sums of two training blocks differ: learned, and along
    ``axis`` if it fits."""
    a = transcript_totals(present)
    b = transcript_totals(absent)
    if a.shape[1] != b.shape[1] or not a.shape[1]:
        return []
    metric = NoiseMetric.from_sides(a, b)
    gap = a.mean(0) - b.mean(0)
    found = [metric.whiten_vector(gap)]
    if axis is not None and len(axis) == a.shape[1]:
        found.append(metric.whiten_vector(axis * np.sign(axis @ found[0] or 1.0)))
    elif (
        axis is not None and a.shape[1] % len(axis) == 0
    ):  # several pieces, each as long as the record
        found.append(
            metric.whiten_vector(np.outer(gap.reshape(-1, len(axis)) @ axis, axis).ravel())
        )
    noise = metric.std * np.sqrt(1 / len(a) + 1 / len(b))
    kept = np.where(np.abs(gap) > 3 * noise, gap, 0.0)
    if kept.any() and (kept == 0).any():
        found.append(metric.whiten_vector(kept))
    return [w / np.linalg.norm(w) for w in found if np.isfinite(w).all() and w.any()]


def learn_statistics(
    present: Transcripts, absent: Transcripts, axis: np.ndarray | None
) -> dict[str, Statistic]:
    """Name -> statistic, learned from two training blocks of the same pair."""
    usual = present.most_common_code
    found: dict[str, Statistic] = {
        WORDLESS: lambda block: np.array([code == usual for code in block.codes], float)
    }
    if (marks := ReleaseMarks.from_sides(present, absent)) is not None:
        words = replace(marks, atoms=())
        found |= {
            WORDS: words.odds_of_all(present, absent),
            EACH_WORD: words.odds_of_each(present, absent),
        }
        if marks.atoms:
            found |= {
                WHOLE: marks.odds_of_all(present, absent),
                PARTS: marks.odds_of_each(present, absent),
            }
    if present.rows.shape[1:] != absent.rows.shape[1:] or not present.rows.shape[2]:
        return found
    for at, w in enumerate(shift_directions(present, absent, axis)):
        found[f"shift {at}"] = lambda block, w=w: transcript_totals(block) @ w  # type: ignore[misc]
    metric = NoiseMetric.from_sides(absent.rows.reshape(-1, absent.rows.shape[2]))
    standardise = lambda block: (block.rows - metric.centre) / metric.std  # noqa: E731
    found["energy"] = lambda block: np.square(standardise(block)).sum((1, 2))
    found["largest number"] = lambda block: standardise(block).max((1, 2))
    found["smallest number"] = lambda block: standardise(block).min((1, 2))
    found["weakest number"] = lambda block: np.abs(standardise(block)).min((1, 2))
    found |= _single_call_statistics(present, absent, axis) | _product_statistics(present, absent)
    return (
        found
        | _value_statistics(present, absent)
        | _weighted_call_statistics(present, absent, axis)
    )


def _value_statistics(present: Transcripts, absent: Transcripts) -> dict[str, Statistic]:
    """Numbers that come back exactly, as no continuous noise lets them: the share of them, and the
    odds of each outcome."""
    width = present.rows.shape[2]
    a, b = (block.rows.reshape(-1, width) for block in (present, absent))
    known = [(j, np.unique(x)) for j, x in enumerate(a.T)]
    again = [(j, u) for j, u in known if len(u) < len(a) or len(np.unique(b[:, j])) < len(b)]
    if not again:
        return {}
    found: dict[str, Statistic] = {
        "values that come back": lambda block: np.mean(
            [np.isin(block.rows[:, :, j], u).mean(1) for j, u in again], axis=0
        )
    }
    if comes_back(present, absent):
        found["odds of the outcome"] = learn_odds(present, absent, discrete_outcomes)
    return found


def _product_statistics(present: Transcripts, absent: Transcripts) -> dict[str, Statistic]:
    """Fisher's direction over the numbers and their products: a flag that says whether to look, or
    noise that correlates."""
    if present.rows[0].size > PRODUCTS:
        return {}
    centre = NoiseMetric.from_sides(absent.rows.reshape(len(absent), -1)).centre
    pairs = np.triu_indices(len(centre))

    def numbers_and_products(block: Transcripts) -> np.ndarray:
        flat = block.rows.reshape(len(block), -1) - centre
        return np.concatenate([flat, flat[:, pairs[0]] * flat[:, pairs[1]]], axis=1)

    a = numbers_and_products(present)
    b = numbers_and_products(absent)
    way = NoiseMetric.from_sides(a, b).whiten_vector(a.mean(0) - b.mean(0))
    if not np.isfinite(way).all():
        return {}
    return {"numbers and their products": lambda block: numbers_and_products(block) @ way}


def comes_back(present: Transcripts, absent: Transcripts) -> bool:
    """Whether whole outcomes do, as they do where no noise is continuous."""
    return (
        sum(len(set(discrete_outcomes(block))) for block in (present, absent))
        <= (len(present) + len(absent)) / 4
    )


def discrete_outcomes(block: Transcripts) -> list[tuple[str, bytes]]:
    return [(code, row.tobytes()) for code, row in zip(block.codes, block.rows)]


def _weighted_call_statistics(
    present: Transcripts, absent: Transcripts, axis: np.ndarray | None
) -> dict[str, Statistic]:
    """Calls that have less noise than others, or share theirs, count for more than in the sum."""
    if present.rows.shape[1] < 2:
        return {}
    found: dict[str, Statistic] = {}
    for at, w in enumerate(shift_directions(present, absent, axis)[:2]):
        a = present.rows @ w
        b = absent.rows @ w
        over = NoiseMetric.from_sides(a, b).whiten_vector(a.mean(0) - b.mean(0))
        if np.isfinite(over).all() and over.any():
            over /= np.linalg.norm(over)
            found[f"shift {at}, calls weighed"] = lambda block, w=w, over=over: (
                (block.rows @ w) @ over
            )  # type: ignore[misc]
    return found


def _single_call_statistics(
    present: Transcripts, absent: Transcripts, axis: np.ndarray | None
) -> dict[str, Statistic]:
    """For transcripts of several calls, or calls that return several rows: the row that holds the
    record."""
    width = present.rows.shape[2]
    if axis is None:
        return {}
    size = len(axis) if width % len(axis) == 0 else width
    if present.rows.shape[1] * width == size:
        return {}
    u = axis if size == len(axis) else (present.rows - absent.rows[: len(present)]).mean((0, 1))

    def project_calls(block: Transcripts) -> np.ndarray:
        return block.rows.reshape(len(block), -1, size) @ u

    def one_call_shifted(block: Transcripts, step: float) -> np.ndarray:
        return logsumexp(step * (project_calls(block) - centre) / spread, axis=1)

    centre = project_calls(absent).mean(0)
    spread = float(project_calls(absent).std(0).mean()) or 1.0
    least = ROUNDING * float(np.abs(project_calls(absent)).max(initial=0.0)) or 1.0
    found: dict[str, Statistic] = {
        "largest call": lambda block: (project_calls(block) - centre).max(1),
        "smallest call": lambda block: (project_calls(block) - centre).min(1),
        "spread over calls": lambda block: np.round(
            project_calls(block).std(1) / least
        ),  # low bits: ``conditions``
    }
    for step in (1.0, 2.0, 4.0):
        found[f"one call shifted by {step:g}"] = partial(one_call_shifted, step=step)
    return found


# of the bounds that statistics are compared by, on the transcripts that they were learned on
LEVEL = 0.9


@dataclass(frozen=True)
class DistinguishingBound:
    """epsilon: lower bound at the asked confidence; how: by which statistic; transcripts: of both
    sides that judged it."""

    epsilon: float
    how: str
    transcripts: int


@dataclass(frozen=True)
class DecisionRule:
    """A statistic with its threshold and sign, fixed before it is judged."""

    how: str
    sign: float
    threshold: float
    promise: float


def _scores_and_members(
    values: np.ndarray, others: np.ndarray, sign: float
) -> tuple[np.ndarray, np.ndarray]:
    both = sign * np.concatenate([values, others])
    return both, np.arange(len(both)) < len(values)


def choose_rule(
    present: Transcripts, absent: Transcripts, axis: np.ndarray | None, delta: float
) -> tuple[DecisionRule, dict]:
    """The most promising rule, and the statistics: learned on the first halves, compared on the
    second."""
    first, second = zip(present.split_half(), absent.split_half())
    made = learn_statistics(first[0], first[1], axis)
    best = DecisionRule("", 1.0, 0.0, -1.0)
    for how, statistic in made.items():
        a = statistic(second[0])
        b = statistic(second[1])
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            continue
        for sign in (1.0, -1.0):
            scores, inside = _scores_and_members(a, b, sign)
            at = best_threshold(scores, inside, delta)
            bound = from_scores(
                scores, inside, delta=delta, confidence=LEVEL, thresholds=[at]
            ).value
            promise = (
                bound
                if bound > 0
                else -1 + abs(float((a * sign >= at).mean() - (b * sign >= at).mean()))
            )
            if promise > best.promise:
                best = DecisionRule(how, sign, at, promise)
    return best, made


def bound_by_distinguishing(pair: PairSample, level: BoundLevel) -> DistinguishingBound:
    """A finite-sample bound from the fresh transcripts (Clopper-Pearson), by the rule that the
    others suggest."""
    rule, made = choose_rule(*pair.trained, pair.axis, level.delta)
    same_size = len({block.rows.shape[1:] for block in (*pair.trained, *pair.fresh)}) == 1
    if rule.how not in made or not (rule.how in OF_ANY_SIZE or same_size):
        return DistinguishingBound(0.0, "nothing", 0)
    a, b = (np.nan_to_num(made[rule.how](block)) for block in pair.fresh)
    scores, inside = _scores_and_members(a, b, rule.sign)
    bound = from_scores(
        scores, inside, delta=level.delta, confidence=level.confidence, thresholds=[rule.threshold]
    )
    return DistinguishingBound(bound.value, rule.how, len(scores))
