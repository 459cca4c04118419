"""Tests of residuals that should be independent standard normal numbers, and of coins that should
be fair to q.

Every function returns p-values that hold for one look; whoever makes several corrects them
(``combine_outcomes``). Scale by chi-square, shape by Kolmogorov and Smirnov, reuse by the exact law
of an uncentred correlation: for a fixed vector and an independent normal one of m numbers, r**2 is
    Beta(1/2, (m - 1)/2).

The joint law: on a lattice of step s (in noise scales) two independent residuals are equal or
    opposite with a chance of s / sqrt(pi), and zero with one of 0.4 s, so repeated and missing
    noise shows at any places (``tie_test``,
``magnitude_count_test``). Relations between numbers leave some direction with less noise than
stated: blocks and bands of frequencies (``block_variance_test``), and each release beside those
    before it (``conditional_variance_test``: Bartlett's decomposition). These are one-sided: more
    noise is no fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor

from attacks.statistics import binomial_p_value, chance_of_at_least, chance_of_at_most
from privdd.federated.noise_log import FAR_BOUNDS, NEAR_BOUNDS, chosen_sizes

T = TypeVar("T")
MIN_RESIDUALS = 16  # fewer residuals of one release are joined with others of their client round
MAX_SHAPE_RESIDUALS = 2**16  # residuals in the test of shape
# first numbers of a release that are compared at every shift, and the fewest
SHIFT_LENGTH = 256
MIN_OVERLAP = 8
# of one query, compared with each other
MAX_COMPARED_RELEASES = 4096
MAX_COMPARED_DRAWS = 512
MAX_JOINT_RELEASES = 256  # releases whose joint law is looked at
EXPECTED_TIES = 2**19  # equal pairs that are expected among the residuals that are compared


class CheckOutcome(NamedTuple):
    """The outcome of one or several tests of one kind: p, corrected for their number, and what it
    says."""

    p: float
    says: str = ""


# of a test's share of the error: a fault of noise or sampling shows far below any usual limit
LEVEL_SHARE = 0.1


def p_value_limit(confidence: float) -> float:
    """The p-value below which a run's own noise or sampling is refuted: ``LEVEL_SHARE`` of the
    share of one test, which is at ``confidence`` in (0, 1), by itself: a healthy run is accused ten
    times less often than the share allows."""
    return LEVEL_SHARE * (1 - confidence)


def combine_outcomes(found: Iterable[tuple[float, str]]) -> CheckOutcome:
    """Bonferroni: the smallest p-value times how many there are."""
    made = list(found)
    p, says = min(made, key=lambda one: one[0], default=(1.0, ""))
    return CheckOutcome(min(1.0, float(p) * max(1, len(made))), says)


def variance_test(sums: Mapping[str, tuple[int, float]]) -> CheckOutcome:
    """Is the noise of any of these smaller than stated? sums: what -> (numbers, sum of squared
    residuals)."""
    named = [(what, n, total) for what, (n, total) in sums.items() if n]
    ps = stats.chi2.cdf([total for *_, total in named], [n for _, n, _ in named]) if named else []
    found = []
    for p, (what, n, total) in zip(ps, named):
        found.append((p, f"the noise of {what} is {(total / n) ** 0.5:.3g} times what is stated"))
    return combine_outcomes(found)


def single_number_test(columns: Mapping[str, tuple[int, Tensor]]) -> CheckOutcome:
    """Is any single number noised less than stated? columns: what -> (releases, sums of squares of
    each number)."""
    found = []
    for what, (count, total) in columns.items():
        if count > 1 and total.numel():
            p = float(stats.chi2.cdf(float(total.min()), count)) * total.numel()
            low = (float(total.min()) / count) ** 0.5
            found.append(
                (min(1.0, p), f"one number of {what} has {low:.3g} times the stated noise")
            )
    return combine_outcomes(found)


def normality_test(samples: Sequence[Tensor]) -> CheckOutcome:
    """Are the residuals normal? Noise that is larger than stated is rescaled: that is no fault of a
    guarantee."""
    values = torch.cat(list(samples)).double().numpy() if samples else np.zeros(0)
    values = values[:: max(1, len(values) // MAX_SHAPE_RESIDUALS)]
    if len(values) < MIN_RESIDUALS:
        return CheckOutcome(1.0)
    rms = max(1.0, float(np.sqrt(np.square(values).mean())))
    gap, p = stats.kstest(values / rms, "norm")
    return CheckOutcome(
        float(p), f"the noise is not of the stated law (distance {gap:.3g} from it)"
    )


def maximum_test(samples: Sequence[Tensor]) -> CheckOutcome:
    """Is the largest of n residuals too small? P(all within m) = P(|x| <= m)**n: noise that is cut
    shows here first."""
    values = torch.cat(list(samples)).double() if samples else torch.zeros(0)
    if len(values) < MIN_RESIDUALS:
        return CheckOutcome(1.0)
    most = float(values.abs().max())
    p = float(np.exp(len(values) * stats.halfnorm.logcdf(max(most, 1e-300))))
    return CheckOutcome(
        p, f"none of {len(values)} noise values is above {most:.3g} standard deviations"
    )


def correlation_test(samples: Mapping[str, Tensor]) -> CheckOutcome:
    """Do any two of these releases share noise? samples: which release -> residuals at the same
    places in each."""
    names = select_evenly(
        [name for name, sample in samples.items() if len(sample) >= 2], MAX_COMPARED_RELEASES
    )
    if len(names) < 2:
        return CheckOutcome(1.0)
    width = min(len(samples[name]) for name in names)
    rows = torch.stack([samples[name][:width] for name in names]).double()
    rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-30)
    products = (rows @ rows.T).abs().fill_diagonal_(0)
    at = int(products.argmax())
    one = names[at // len(names)]
    other = names[at % len(names)]
    r = min(1.0, float(products.max()))
    pairs = len(names) * (len(names) - 1) / 2
    p = min(1.0, _correlation_p_value(r, width) * pairs)
    return CheckOutcome(p, f"{one} and {other} share their noise (correlation {r:.3g})")


def shifted_reuse_test(own: Mapping[str, Tensor], all_: Mapping[str, Tensor]) -> CheckOutcome:
    """Does noise of these releases come back in any release, its own too, at another place,
    backwards or with other signs?

    own, all_: which release -> residuals in the order in which they were drawn. Shares of a stream
        that do not start at the same draw, or are used for draws of other shapes, look independent
        place by place: every shift is tried, by Fourier
    transform, of the residuals and of their sizes (which are drawn apart from the signs).
    """
    mine, names = ([n for n, s in some.items() if len(s) >= MIN_OVERLAP] for some in (own, all_))
    if not mine:
        return CheckOutcome(1.0)
    best = (0.0, 0.0, MIN_OVERLAP, "")
    tried = 0
    for change in (Tensor.double, _normal_sizes):
        other = _FourierParts.from_samples([change(all_[name][:SHIFT_LENGTH]) for name in names])
        for name, backwards in product(mine, (False, True)):
            head = change(all_[name][:SHIFT_LENGTH])
            log_p, r2, width = _FourierParts.from_samples(
                [head.flip(0) if backwards else head]
            ).correlate_with(other)
            log_p[names.index(name), slice(None) if backwards else 0] = 0.0  # itself: no news
            tried += int((width >= MIN_OVERLAP).sum())
            at = int(log_p.argmin())
            if float(log_p.flatten()[at]) < best[0]:
                r = float(r2.flatten()[at]) ** 0.5
                says = (
                    f"{name} and {names[at // log_p.shape[1]]} share their noise (at a shift, "
                    f"correlation {r:.3g})"
                )
                best = float(log_p.flatten()[at]), min(1.0, r), int(width.flatten()[at]), says
    p = min(1.0, _correlation_p_value(best[1], best[2]) * tried)
    return CheckOutcome(p, best[3]) if best[3] else CheckOutcome(1.0)


def _normal_sizes(residuals: Tensor) -> Tensor:
    """Absolute values of standard normal numbers as standard normal numbers."""
    tail = torch.erfc(residuals.double().abs() / 2**0.5).clamp(1e-15, 1 - 1e-15)
    return -torch.special.ndtri(tail)


@dataclass(frozen=True)
class _FourierParts:
    """Fourier transforms of residuals (n, F), of their squares, and of where there are any."""

    values: Tensor
    squares: Tensor
    there: Tensor

    @staticmethod
    def from_samples(samples: Sequence[Tensor]) -> _FourierParts:
        rows = torch.zeros(len(samples), SHIFT_LENGTH).double()
        there = torch.zeros(len(samples), SHIFT_LENGTH).double()
        for at, sample in enumerate(samples):
            size = min(SHIFT_LENGTH, len(sample))
            rows[at, :size], there[at, :size] = sample[:size].double(), 1.0
        return _FourierParts(
            *(torch.fft.rfft(part, 2 * SHIFT_LENGTH) for part in (rows, rows.square(), there))
        )

    def correlate_with(self, other: _FourierParts) -> tuple[Tensor, Tensor, Tensor]:
        """(about ln p, squared correlation, numbers compared), each (n, shifts), of one release and
        n others."""
        there = self.there
        theirs_there = other.there
        made = (
            (self.values, other.values),
            (self.squares, theirs_there),
            (there, other.squares),
            (there, theirs_there),
        )
        inner, mine, theirs, width = (
            torch.fft.irfft(a * b.conj(), 2 * SHIFT_LENGTH) for a, b in made
        )
        width = width.round()
        r2 = (inner.square() / (mine * theirs).clamp_min(1e-12)).clamp(0, 1) * (
            width >= MIN_OVERLAP
        )
        return (width - 1).clamp_min(0) / 2 * torch.log1p(-r2.clamp_max(1 - 1e-15)), r2, width


def select_evenly(names: list[T], most: int) -> list[T]:
    return (
        names
        if len(names) <= most
        else [names[i] for i in np.linspace(0, len(names) - 1, most).astype(int)]
    )


def autocorrelation_test(found: Mapping[str, tuple[int, float, int]]) -> CheckOutcome:
    """Does any release repeat its own noise? found: which -> (numbers compared, correlation, shifts
    tried)."""
    says = "the noise of {} repeats itself (correlation {:.3g})"
    tried = [(which, *of) for which, of in found.items() if of[2]]
    ps = (min(1.0, _correlation_p_value(r, width) * shifts) for _, width, r, shifts in tried)
    return combine_outcomes((p, says.format(which, r)) for p, (which, _, r, _) in zip(ps, tried))


def same_noise_test(first: Tensor, second: Tensor, says: str) -> CheckOutcome:
    """Are two vectors of residuals, which should be independent, correlated?"""
    width = min(len(first), len(second))
    if width < 2:
        return CheckOutcome(1.0)
    a = first[:width].double()
    b = second[:width].double()
    r = float((a @ b).abs() / (a.norm() * b.norm()).clamp_min(1e-30))
    return CheckOutcome(_correlation_p_value(min(r, 1.0), width), says)


def _correlation_p_value(r: float, width: int) -> float:
    return float(stats.beta.sf(r * r, 0.5, (width - 1) / 2))


def magnitude_count_test(
    numbers: Sequence[int],
    steps: Sequence[float],
    near: Tensor,
    far: Tensor,
    groups: Mapping[str, Sequence[int]],
) -> CheckOutcome:
    """Are more residuals near zero, or fewer far from it, than the law says? near, far: (releases,
    bounds) counts of all numbers (``NEAR_BOUNDS``, ``FAR_BOUNDS``); groups: what -> which releases
    are added up."""
    if not groups:
        return CheckOutcome(1.0)
    count = np.asarray(numbers, float)
    step = np.asarray(steps, float)
    places = [list(at) for at in groups.values()]
    rows = [
        (int(count[at].sum()), float(step[at].max()), near[at].sum(0), far[at].sum(0))
        for at in places
    ]
    total = np.array([row[0] for row in rows])[:, None]
    room = (
        0.65 * np.array([row[1] for row in rows])[:, None]
    )  # a lattice point's share on each side, at most
    inside, beyond = (torch.stack([row[i] for row in rows]).numpy() for i in (2, 3))  # type: ignore[misc]
    p_near = chance_of_at_least(
        inside, total, 1 - 2 * stats.norm.sf(np.asarray(NEAR_BOUNDS) + room)
    )
    p_far = chance_of_at_most(beyond, total, 2 * stats.norm.sf(np.asarray(FAR_BOUNDS) + room))
    ps = np.concatenate([p_near, p_far], 1)
    row, at = np.unravel_index(int(ps.argmin()), ps.shape)
    which = list(groups)[row]
    if at < len(NEAR_BOUNDS):
        where = (
            f"within {NEAR_BOUNDS[at]:.2g} standard deviations of zero" if at else "exactly zero"
        )
        says = f"{inside[row, at]} of {total[row, 0]} noise values are {where}"
    else:
        bound = at - len(NEAR_BOUNDS)
        above = f"above {FAR_BOUNDS[bound]} standard deviations"
        says = f"only {beyond[row, bound]} of {total[row, 0]} noise values are {above}"
    return CheckOutcome(min(1.0, float(ps.min()) * ps.size), f"{which}: {says}")


def normal_lengths(rows: Tensor) -> Tensor:
    """The lengths of releases (R, n) as standard normal numbers."""
    tails = stats.chi2.cdf(rows.square().sum(1).numpy(), rows.shape[1])
    return torch.special.ndtri(torch.from_numpy(np.clip(tails, 1e-15, 1 - 1e-15)))


def fewest_visible_zeros(numbers: Sequence[int], steps: Sequence[float], p: float) -> int:
    """The smallest number of residuals of zero, of all, that shows at a p-value of ``p``."""
    return int(stats.poisson.isf(p, 0.52 * float(np.dot(numbers, steps)))) + 1


def least_visible_cut(numbers: int, p: float) -> float:
    """The smallest cut, in standard deviations, that the largest of so many numbers does not show
    at a p-value of ``p``."""
    return float(stats.norm.isf(-np.expm1(np.log(p) / max(numbers, 1)) / 2))


def tie_test(
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


def near_tie_test(
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


def conditional_variance_test(rows: Tensor, what: str) -> CheckOutcome:
    """Does any release (R, n) have less noise than stated beside those before it, or any number
    beside those before it? What independent normal rows leave outside the span of those before them
    is chi-square of n, n - 1, ... degrees."""
    tall = rows.T if len(rows) <= rows.shape[1] else rows
    if min(tall.shape) < 2:
        return CheckOutcome(1.0)
    left = torch.linalg.qr(tall.double(), mode="r").R.diagonal().square().numpy()
    ps = stats.chi2.cdf(left, len(tall) - np.arange(len(left)))
    at = int(ps.argmin())
    kind = "release" if tall is not rows else "number"
    says = (
        f"{what}: given the {kind}s before it, one has "
        f"{(left[at] / (len(tall) - at)) ** 0.5:.3g} times the stated noise"
    )
    return CheckOutcome(min(1.0, float(ps.min()) * len(ps)), says)


def direction_alignment_test(groups: Mapping[str, Tensor]) -> CheckOutcome:
    """Are the releases of each group (R, n), all pairs together, more alike in direction than
    independent ones? Noise in few directions makes them so. n r**2 of a pair has mean 1 and
    variance 2 (n - 1) / (n + 2), and pairs are uncorrelated."""
    total = mean = variance = 0.0
    for rows in groups.values():
        size, width = rows.shape
        if size < 2 or width < MIN_OVERLAP:
            continue
        unit = torch.nn.functional.normalize(rows.double(), dim=1)
        total += width * float(((unit @ unit.T).square().sum() - size) / 2)
        mean += size * (size - 1) / 2
        variance += size * (size - 1) * (width - 1) / (width + 2)
    if not mean:
        return CheckOutcome(1.0)
    p = float(stats.gamma.sf(total, mean**2 / variance, scale=variance / mean))
    alike = f"they are {(total / mean) ** 0.5:.3g} times as alike as independent ones"
    return CheckOutcome(p, f"the noise of releases lies in few directions: {alike}")


def block_variance_test(power: Tensor, degrees: int, what: str) -> CheckOutcome:
    """Is any block of these squares (R, n), of one release or of all, smaller than chi-square of
    ``degrees`` each makes it?"""
    found = []
    size = power.shape[1]
    both = torch.cat([power, power.sum(0, keepdim=True)]).double()
    times = np.r_[np.ones(len(power)), len(power)][:, None]
    width = size
    while width >= 1 and size:
        few = width * degrees < 8  # then of all releases together alone, where that is enough
        if not few or (len(power) > 1 and width * degrees * len(power) >= 8):
            rows, of = (both[-1:], times[-1:]) if few else (both, times)
            sums = rows[:, : size // width * width].reshape(len(rows), -1, width).sum(2).numpy()
            found.append((stats.chi2.cdf(sums, of * width * degrees), width))
        width //= 2
    if not found:
        return CheckOutcome(1.0)
    ps, width = min(found, key=lambda one: float(one[0].min()))
    tried = sum(one[0].size for one in found)
    return CheckOutcome(
        min(1.0, float(ps.min()) * tried),
        f"{what}: {width} neighbours together have less noise than stated",
    )


def power_spectrum(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(power (R, m) of each frequency but the lowest and the highest, chi-square of 2 degrees each;
    sums (R,) over the root of their number, standard normal)."""
    turned = torch.fft.rfft(rows.double(), norm="ortho")
    return 2 * turned[:, 1 : (rows.shape[1] + 1) // 2].abs().square(), turned[:, 0].real


def empty_frequency_test(power: Tensor, what: str) -> CheckOutcome:
    """How many frequencies have next to no noise?"""
    least = 1e-6
    few = int((power < least).sum())
    tried = power.numel()
    p = float(chance_of_at_least(few, tried, -np.expm1(-least / 2))) if tried else 1.0
    return CheckOutcome(p, f"{what}: {few} of {tried} frequencies have no noise")


def weak_place_test(rows: Tensor, what: str) -> CheckOutcome:
    """Are more places (R, n) noised little in all releases than chance makes them? Noise whose size
    depends on the place."""
    if len(rows) < 2 or not rows.shape[1]:
        return CheckOutcome(1.0)
    ps = stats.chi2.cdf(rows.double().square().sum(0).numpy(), len(rows))
    levels = np.array([0.1, 0.01, 1e-3, 1e-4])
    low = (ps[:, None] < levels).sum(0)
    found = chance_of_at_least(low, len(ps), levels)
    at = int(found.argmin())
    says = (
        f"{what}: {low[at]} of {len(ps)} places have little noise in every release, "
        f"{len(ps) * levels[at]:.3g} are expected"
    )
    return CheckOutcome(min(1.0, float(found.min()) * len(levels)), says)


def sampling_rate_test(
    taken: int, expected: Sequence[int], probability: float, what: str
) -> CheckOutcome:
    """Were as many taken as coins of this probability take? expected: the numbers of records
    asked."""
    asked = int(sum(expected))
    p = binomial_p_value(taken, asked, probability) if asked else 1.0
    share = taken / max(asked, 1)
    return CheckOutcome(
        p, f"{what}: {share:.3g} of the records are taken, {probability:.3g} is stated"
    )


def batch_size_test(
    sizes: Sequence[int],
    asked: Sequence[int],
    probability: float,
    what: str,
    of: str = "batch sizes",
) -> CheckOutcome:
    """Do the sizes of batches vary as independent coins make them vary? of: what the sizes are of,
    if not of batches. The sum of squared standard scores, by a gamma law with its exact mean and
    variance: good in the tails where the expected batch is not tiny, so draws with a variance below
        1 are left out."""
    n = np.asarray(asked, float)
    m = np.asarray(sizes, float)
    variance = n * probability * (1 - probability)
    keep = variance >= 1
    if keep.sum() < 2:
        return CheckOutcome(1.0)
    score = np.square(m - n * probability)[keep] / variance[keep]
    more = (
        2 + (1 - 6 * probability * (1 - probability)) / variance[keep]
    )  # exact variance of a squared score
    mean = float(keep.sum())
    var = float(more.sum())
    law = stats.gamma(mean**2 / var, scale=var / mean)
    p = 2 * min(float(law.cdf(score.sum())), float(law.sf(score.sum())))
    return CheckOutcome(
        min(1.0, p),
        f"{what}: {of} vary {(score.mean()) ** 0.5:.2g} times as much as coins make them",
    )


def record_count_test(counts: Tensor, draws: int, probability: float, what: str) -> CheckOutcome:
    """Is any record taken more or less often than its coins say? counts (n,): of ``draws``
    draws."""
    if not len(counts):
        return CheckOutcome(1.0)
    high = int(counts.max())
    low = int(counts.min())
    over = len(counts) * float(chance_of_at_least(high, draws, probability))
    under = len(counts) * float(chance_of_at_most(low, draws, probability))
    says = f"{what}: one record is taken in {{}} of {draws} draws"
    return combine_outcomes(
        (min(1.0, p), says.format(count)) for p, count in ((over, high), (under, low))
    )


def same_coins_test(draws: Mapping[str, Tensor], probability: float) -> CheckOutcome:
    """Do any two draws take the same records more often than independent coins do? draws: which ->
    (n,) bool."""
    names = select_evenly(list(draws), MAX_COMPARED_DRAWS)
    if len(names) < 2:
        return CheckOutcome(1.0)
    width = max(len(draws[name]) for name in names)
    heads = torch.stack(
        [torch.nn.functional.pad(draws[n].double(), (0, width - len(draws[n]))) for n in names]
    )
    held = torch.stack([(torch.arange(width) < len(draws[n])).double() for n in names])
    agree = heads @ heads.T + (held - heads) @ (held - heads).T
    both = held @ held.T
    equal = probability**2 + (1 - probability) ** 2
    ps = chance_of_at_least(agree.numpy(), both.numpy(), equal)
    np.fill_diagonal(ps, 1.0)
    at = int(ps.argmin())
    pairs = len(names) * (len(names) - 1) / 2
    one = names[at // len(names)]
    other = names[at % len(names)]
    return CheckOutcome(
        min(1.0, float(ps.min()) * pairs), f"{one} and {other} take the same records"
    )
