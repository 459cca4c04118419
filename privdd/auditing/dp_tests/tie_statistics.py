"""Noise values that are equal or opposite more often than the lattice makes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import special, stats
from torch import Tensor

from privdd.auditing.dp_tests.outcomes import CheckOutcome, combine_outcomes
from privdd.auditing.dp_tests.residual_statistics import MAX_SHAPE_RESIDUALS
from privdd.federated.noise_log import FAR_BOUNDS, chosen_sizes

EXPECTED_TIES = 2**19  # equal pairs that are expected among the residuals that are compared


def tie_p_value(
    samples: Sequence[Tensor],
    steps: Sequence[float],
    names: Sequence[str],
    own: Sequence[bool],
    numbers: Sequence[int] | None = None,
    share: float = 1.0,
) -> CheckOutcome:
    """Are more residuals equal, or opposite, than the lattice makes them: in a release, in two, or
    in all together?
    samples: of releases, or what ``chosen_sizes`` chose with ``share`` or more out of so many
        ``numbers``; own: those that are asked about. Of very many residuals, those of some sizes
        are compared."""
    sizes = np.array(numbers if numbers is not None else [len(sample) for sample in samples], float)
    if sizes.sum() < 2:
        return CheckOutcome(1.0)
    step = np.asarray(steps, float)
    share = min(share, EXPECTED_TIES / max(1.0, _expected_ties(sizes, step)))
    chosen = [chosen_sizes(sample, share).numpy() for sample in samples]
    values, which = _sorted_values(chosen)
    mine = np.asarray(own, bool)
    everywhere = _tie_outcome(
        _equal_pairs(values, which), sizes, step, share, names, mine, "equal or opposite"
    )
    large = _large_tie_outcome(values[mine[which]], float(step[mine].max(initial=0.0)) / share)
    return combine_outcomes([everywhere, large])


def _sorted_values(samples: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(all values in order, which sample each is of)."""
    values = np.concatenate(samples)
    which = np.repeat(np.arange(len(samples)), [len(sample) for sample in samples])
    order = np.argsort(values, kind="stable")
    return values[order], which[order]


def _large_tie_outcome(values: np.ndarray, step: float) -> CheckOutcome:
    """Equal pairs among large residuals alone, where few are expected of so many: noise that is cut
    piles up."""
    found = []
    for bound in FAR_BOUNDS:
        counts = np.unique(values[values > bound], return_counts=True)[1].astype(float)
        chance = (
            step * float(special.erfc(bound) / (2 * stats.norm.sf(bound)) ** 2) / np.sqrt(np.pi)
        )
        pairs = float((counts * (counts - 1) / 2).sum())
        expected = chance * float(counts.sum()) ** 2 / 2
        said = (
            f"above {bound} standard deviations are equal or opposite, {expected:.3g} are expected"
        )
        found.append(
            (
                float(stats.poisson.sf(pairs - 1, expected)),
                f"{pairs:.0f} pairs of noise values {said}",
            )
        )
    return combine_outcomes(found)


def near_tie_p_value(
    samples: Sequence[Tensor], steps: Sequence[float], names: Sequence[str], own: Sequence[bool]
) -> CheckOutcome:
    """The same of noise that is used at several scales: rounded to a lattice each time, it is equal
    up to a step."""
    most = max(8, int(MAX_SHAPE_RESIDUALS / max(len(samples), 1)))
    some = [sample[:: max(1, -(-len(sample) // most))] for sample in samples]
    sizes = np.array([len(sample) for sample in some], float)
    step = np.asarray(steps, float)
    if sizes.sum() < 2:
        return CheckOutcome(1.0)
    values, which = _sorted_values([np.abs(sample.numpy().astype(float)) for sample in some])
    # of a lattice finer than said up to 2.8 times as many pairs as of a lattice of this step are so
    # close
    pairs = _close_pairs(values, which, step)
    return _tie_outcome(
        pairs,
        sizes,
        3 * step,
        1.0,
        names,
        np.asarray(own, bool),
        "equal or opposite up to rounding",
    )


def _expected_ties(sizes: np.ndarray, step: np.ndarray) -> float:
    """Expected equal pairs: the sum over pairs of the coarser step over sqrt(pi)."""
    order = np.argsort(step)
    before = np.cumsum(sizes[order]) - sizes[order]
    return float((sizes[order] * step[order] * (before + sizes[order] / 2)).sum() / np.sqrt(np.pi))


def _equal_pairs(values: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of releases, one for each pair of equal values (sorted): at most 64 for a value, and 8
    x ``EXPECTED_TIES``."""
    pairs = [np.zeros((2, 0), int)]
    found = 0
    for lag in range(1, min(65, len(values))):
        at = np.flatnonzero(values[lag:] == values[:-lag])
        pairs.append(np.stack([which[at], which[at + lag]]))
        found += len(at)
        if not len(at) or found > 8 * EXPECTED_TIES:
            break
    return _ordered_pairs(pairs)


def _close_pairs(
    values: np.ndarray, which: np.ndarray, step: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    pairs = [np.zeros((2, 0), int)]
    reach = 0.9 * float(step.max())
    for lag in range(1, min(65, len(values))):
        gaps = values[lag:] - values[:-lag]
        if not (gaps <= reach).any():
            break
        at = np.flatnonzero(
            (gaps <= 0.45 * (step[which[lag:]] + step[which[:-lag]])) & (values[:-lag] > reach)
        )
        pairs.append(np.stack([which[at], which[at + lag]]))
    return _ordered_pairs(pairs)


def _ordered_pairs(pairs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    whole = np.concatenate(pairs, 1)
    return whole.min(0), whole.max(0)


def _tie_outcome(
    pairs: tuple[np.ndarray, np.ndarray],
    sizes: np.ndarray,
    step: np.ndarray,
    share: float,
    names: Sequence[str],
    own: np.ndarray,
    how: str,
) -> CheckOutcome:
    """Counts of pairs, release by release and all together, against a law with their mean and
    variance."""
    asked = own[pairs[0]] | own[pairs[1]]
    first = pairs[0][asked]
    second = pairs[1][asked]
    mean = share * (_expected_ties(sizes, step) - _expected_ties(sizes[~own], step[~own]))
    every = float(sizes.sum())
    coarsest = float(step.max())
    total = len(first)
    more = share * (0.05 * every**3 * coarsest**2 + (1 - share) * 0.07 * every**4 * coarsest**3)
    p = float(_more_pairs(np.array([total]), np.array([mean]), np.array([more]))[0])
    found = [(p, f"{total} pairs of {int(every)} noise values are {how}, {mean:.3g} are expected")]
    keys, counts = np.unique(first * len(sizes) + second, return_counts=True)
    one = keys // len(sizes)
    other = keys % len(sizes)
    same = one == other
    product = sizes[one] * sizes[other]
    coarse = np.maximum(step[one], step[other])
    rate = share * coarse * product / np.sqrt(np.pi) / np.where(same, 2, 1)
    shared = 0.05 * product * np.where(same, sizes[one], sizes[one] + sizes[other]) * coarse**2
    extra = share * (shared + (1 - share) * 0.27 * product**2 * coarse**3 / np.where(same, 4, 1))
    ps = _more_pairs(counts, rate, extra)
    if len(ps):
        at = int(ps.argmin())
        where = names[one[at]] if same[at] else f"{names[one[at]]} and {names[other[at]]}"
        says = (
            f"{counts[at]} pairs of noise values of {where} are {how}, {rate[at]:.3g} are expected"
        )
        found.append((min(1.0, float(ps[at]) * int(own.sum()) * len(sizes)), says))
    return combine_outcomes(found)


def _more_pairs(counts: np.ndarray, mean: np.ndarray, more: np.ndarray) -> np.ndarray:
    """P(at least so many pairs). mean: expected; more: their variance beyond that of a Poisson law,
    for pairs share numbers, and equal numbers are chosen together."""
    flat = stats.poisson.sf(counts - 1, mean)
    more = np.maximum(more, 1e-9 * np.maximum(mean, 1e-9))
    wide = stats.nbinom.sf(counts - 1, mean**2 / more, mean / (mean + more))
    return np.where(more < 1e-6 * mean, flat, wide)
