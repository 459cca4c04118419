"""Noise values that are equal or opposite more often than the lattice makes them.

Symbols: residuals lie on a lattice of step s, in noise scales; phi is the standard normal density.
Two independent residuals are equal or opposite with chance

    P2 = 2 sum_k (s phi(k s))^2 = 2 s int phi^2 = s / sqrt(pi)

if s is small; on lattices of two steps the coarser one decides. Among n residuals the number of
such pairs has mean P2 n (n - 1) / 2. Its variance is that of a Poisson law and the covariance of
pairs that share a residual: three residuals agree with chance 4 s^2 int phi^3 = .3676 s^2, so two
such pairs have covariance (.3676 - 1 / pi) s^2 = .0493 s^2, and there are n^3 of them. The count is
then taken as negative binomial with that mean and variance. It finds noise that is used twice at
any two places, where correlations would have to try all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special, stats
from torch import Tensor

from privdd.auditing.dp_tests.outcomes import CheckOutcome, combine_outcomes
from privdd.auditing.dp_tests.residual_statistics import MAX_SHAPE_RESIDUALS
from privdd.federated.noise_log import FAR_BOUNDS, chosen_sizes

EXPECTED_TIES = 2**19  # equal pairs that are expected among the residuals that are compared
MAX_LAG = 64  # equal values that are paired with one value
TRIPLE_COVARIANCE = 0.05  # 4 int phi^3 - 1 / pi = .0493, of pairs that share a residual, over s^2
QUADRUPLE_CHANCE = 0.27  # 8 int phi^4 = .254, that two pairs of one value agree, over s^3
QUADRUPLE_RATE = 0.07  # and a quarter of it: n^4 / 4 pairs of pairs are in one set of n residuals
# Values rounded to two lattices from one number differ by at most half of both steps; a tenth less,
# so that neighbouring points of one lattice are not counted as close.
CLOSE_STEPS = 0.45
# On a lattice finer than stated up to 2.8 times as many pairs are close as on one of this step.
CLOSE_RATE = 3


@dataclass(frozen=True)
class _ComparedReleases:
    """The releases whose residuals are compared: of each its size, lattice step and name, and
    whether it is asked about. share: of the residuals, that are compared."""

    sizes: np.ndarray
    step: np.ndarray
    names: Sequence[str]
    own: np.ndarray
    share: float = 1.0


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

    Of very many residuals, those of some sizes are compared: a share c of sizes, chosen by their
    bits, keeps a share c of the pairs, as equal residuals are chosen together.

    Args:
        samples: residuals of each release, or those that ``chosen_sizes`` chose.
        steps: each release's lattice step s.
        names: what each release is called.
        own: whether a release is one that is asked about.
        numbers: of how many residuals ``samples`` were chosen; None if none were left out.
        share: the share that was chosen, at least.
    """
    sizes = np.array(numbers if numbers is not None else [len(sample) for sample in samples], float)
    if sizes.sum() < 2:
        return CheckOutcome(1.0)
    step = np.asarray(steps, float)
    share = min(share, EXPECTED_TIES / max(1.0, _expected_ties(sizes, step)))
    chosen = [chosen_sizes(sample, share).numpy() for sample in samples]
    values, which = _sorted_values(chosen)
    is_asked = np.asarray(own, bool)
    releases = _ComparedReleases(sizes, step, names, is_asked, share)
    everywhere = _tie_outcome(_equal_pairs(values, which), releases, "equal or opposite")
    coarsest = float(step[is_asked].max(initial=0.0))
    large = _large_tie_outcome(values[is_asked[which]], coarsest / share)
    return combine_outcomes([everywhere, large])


def near_tie_p_value(
    samples: Sequence[Tensor], steps: Sequence[float], names: Sequence[str], own: Sequence[bool]
) -> CheckOutcome:
    """The same of noise that is used at several scales: rounded to a lattice each time, it is equal
    up to a step.

    Pairs closer than half of both steps, against the law of ``CLOSE_RATE`` times the step.

    Args:
        samples: residuals of each release, evenly thinned to ``MAX_SHAPE_RESIDUALS`` in all.
        steps: each release's lattice step s.
        names: what each release is called.
        own: whether a release is one that is asked about.
    """
    most = max(8, int(MAX_SHAPE_RESIDUALS / max(len(samples), 1)))
    thinned = [sample[:: max(1, -(-len(sample) // most))] for sample in samples]
    sizes = np.array([len(sample) for sample in thinned], float)
    step = np.asarray(steps, float)
    if sizes.sum() < 2:
        return CheckOutcome(1.0)
    values, which = _sorted_values([np.abs(sample.numpy().astype(float)) for sample in thinned])
    pairs = _close_pairs(values, which, step)
    releases = _ComparedReleases(sizes, CLOSE_RATE * step, names, np.asarray(own, bool))
    return _tie_outcome(pairs, releases, "equal or opposite up to rounding")


def _sorted_values(samples: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(all values in order, which sample each is of)."""
    values = np.concatenate(samples)
    which = np.repeat(np.arange(len(samples)), [len(sample) for sample in samples])
    order = np.argsort(values, kind="stable")
    return values[order], which[order]


def _large_tie_outcome(values: np.ndarray, step: float) -> CheckOutcome:
    """Equal pairs among large residuals alone: noise that is cut piles up at the cut.

    Given that both sizes are beyond b, two are equal with chance

        s int_b^inf (2 phi)^2 / (2 Phi(-b))^2 = s erfc(b) / (sqrt(pi) (2 Phi(-b))^2),

    and their pairs are about Poisson. Few are expected, so a lump shows that all pairs would hide.
    """
    outcomes = []
    for bound in FAR_BOUNDS:
        counts = np.unique(values[values > bound], return_counts=True)[1].astype(float)
        density = float(special.erfc(bound) / (2 * stats.norm.sf(bound)) ** 2)
        chance = step * density / np.sqrt(np.pi)
        pairs = float((counts * (counts - 1) / 2).sum())
        expected = chance * float(counts.sum()) ** 2 / 2
        says = (
            f"{pairs:.0f} pairs of noise values above {bound} standard deviations are equal or "
            f"opposite, {expected:.3g} are expected"
        )
        outcomes.append((float(stats.poisson.sf(pairs - 1, expected)), says))
    return combine_outcomes(outcomes)


def _expected_ties(sizes: np.ndarray, step: np.ndarray) -> float:
    """Expected equal pairs: the sum over pairs of residuals of max(s_i, s_j) / sqrt(pi)."""
    order = np.argsort(step)
    before = np.cumsum(sizes[order]) - sizes[order]
    return float((sizes[order] * step[order] * (before + sizes[order] / 2)).sum() / np.sqrt(np.pi))


def _equal_pairs(values: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of releases, one for each pair of equal values (sorted): at most ``MAX_LAG`` for a
    value, and 8 ``EXPECTED_TIES`` in all, which is far beyond any level."""
    pairs = [np.zeros((2, 0), int)]
    count = 0
    for lag in range(1, min(MAX_LAG + 1, len(values))):
        places = np.flatnonzero(values[lag:] == values[:-lag])
        pairs.append(np.stack([which[places], which[places + lag]]))
        count += len(places)
        if not len(places) or count > 8 * EXPECTED_TIES:
            break
    return _ordered_pairs(pairs)


def _close_pairs(
    values: np.ndarray, which: np.ndarray, step: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of releases, one for each pair of close values; sizes near zero are close by rounding
    alone, and left out."""
    pairs = [np.zeros((2, 0), int)]
    reach = 2 * CLOSE_STEPS * float(step.max())
    for lag in range(1, min(MAX_LAG + 1, len(values))):
        gaps = values[lag:] - values[:-lag]
        if not (gaps <= reach).any():
            break
        is_close = gaps <= CLOSE_STEPS * (step[which[lag:]] + step[which[:-lag]])
        places = np.flatnonzero(is_close & (values[:-lag] > reach))
        pairs.append(np.stack([which[places], which[places + lag]]))
    return _ordered_pairs(pairs)


def _ordered_pairs(pairs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(the earlier release of each pair, the later one)."""
    every = np.concatenate(pairs, 1)
    return every.min(0), every.max(0)


def _tie_outcome(
    pairs: tuple[np.ndarray, np.ndarray], releases: _ComparedReleases, how: str
) -> CheckOutcome:
    """Counts of pairs, release by release and all together, against the law of this module.

    The variance beyond a Poisson law, of n residuals of which a share c is compared, is

        c (.05 n^3 s^2 + (1 - c) .07 n^4 s^3):

    pairs that share a residual, and pairs of one value, which are compared together or not at all.
    """
    sizes = releases.sizes
    step = releases.step
    share = releases.share
    is_asked = releases.own[pairs[0]] | releases.own[pairs[1]]
    outcomes = [_total_outcome(int(is_asked.sum()), releases, how)]
    count = len(sizes)
    keys, counts = np.unique(pairs[0][is_asked] * count + pairs[1][is_asked], return_counts=True)
    first = keys // count
    second = keys % count
    is_tied = first == second
    product = sizes[first] * sizes[second]
    coarse = np.maximum(step[first], step[second])
    mean = share * coarse * product / np.sqrt(np.pi) / np.where(is_tied, 2, 1)
    members = np.where(is_tied, sizes[first], sizes[first] + sizes[second])
    triples = TRIPLE_COVARIANCE * product * members * coarse**2
    quadruples = (1 - share) * QUADRUPLE_CHANCE * product**2 * coarse**3 / np.where(is_tied, 4, 1)
    extra = share * (triples + quadruples)
    p_values = _pair_count_p_values(counts, mean, extra)
    if len(p_values):
        place = int(p_values.argmin())
        where = releases.names[first[place]]
        if not is_tied[place]:
            where = f"{where} and {releases.names[second[place]]}"
        says = (
            f"{counts[place]} pairs of noise values of {where} are {how}, {mean[place]:.3g} are "
            "expected"
        )
        p = float(p_values[place]) * int(releases.own.sum()) * count
        outcomes.append((min(1.0, p), says))
    return combine_outcomes(outcomes)


def _total_outcome(total: int, releases: _ComparedReleases, how: str) -> tuple[float, str]:
    """The number of pairs of all releases together; pairs without one that is asked about are
    taken off."""
    sizes = releases.sizes
    step = releases.step
    share = releases.share
    is_other = ~releases.own
    mean = share * (_expected_ties(sizes, step) - _expected_ties(sizes[is_other], step[is_other]))
    residuals = float(sizes.sum())
    coarsest = float(step.max())
    triples = TRIPLE_COVARIANCE * residuals**3 * coarsest**2
    quadruples = (1 - share) * QUADRUPLE_RATE * residuals**4 * coarsest**3
    extra = share * (triples + quadruples)
    p = float(_pair_count_p_values(np.array([total]), np.array([mean]), np.array([extra]))[0])
    return p, f"{total} pairs of {int(residuals)} noise values are {how}, {mean:.3g} are expected"


def _pair_count_p_values(counts: np.ndarray, mean: np.ndarray, extra: np.ndarray) -> np.ndarray:
    """P(N >= count) for N ~ NB(m^2 / v, m / (m + v)), of mean m and variance m + v.

    Poisson if v is next to nothing. The negative binomial is the Poisson law whose rate is gamma,
    and has the heavier tail: it errs against an accusation.
    """
    poisson = stats.poisson.sf(counts - 1, mean)
    extra = np.maximum(extra, 1e-9 * np.maximum(mean, 1e-9))
    overdispersed = stats.nbinom.sf(counts - 1, mean**2 / extra, mean / (mean + extra))
    return np.where(extra < 1e-6 * mean, poisson, overdispersed)
