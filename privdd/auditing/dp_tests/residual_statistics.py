"""Scale, shape and reuse of residuals that should be independent standard normal numbers.

Symbols: x_1 ... x_n are residuals, (released value - clean value) / stated noise scale, so that the
stated law is N(0, 1), independent. Each function returns a p-value for one look;
``combine_outcomes`` corrects for several. Tests of scale are one-sided: more noise than stated is
no fault of a guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from attacks.statistics import chance_of_at_least, chance_of_at_most
from privdd.auditing.dp_tests.outcomes import (
    MAX_COMPARED_RELEASES,
    CheckOutcome,
    combine_outcomes,
    select_evenly,
)
from privdd.federated.noise_log import FAR_BOUNDS, NEAR_BOUNDS

MIN_RESIDUALS = 16  # fewer residuals of one release are joined with others of their client round
MAX_SHAPE_RESIDUALS = 2**16  # residuals in the test of shape
SHIFT_LENGTH = 256  # first numbers of a release that are compared at every shift
MIN_OVERLAP = 8  # the fewest numbers that are compared
# The chance that a residual is rounded to zero is s phi(0) = 0.399 s on a lattice of step s.
# A quarter more allows for clean values that lie between two steps.
ZERO_RATE = 0.52
# The share of a lattice point that a bound may cut off, half a step and its rounding, in steps.
LATTICE_ROOM = 0.65


def variance_p_value(sums: Mapping[str, tuple[int, float]]) -> CheckOutcome:
    """Is the noise of any of these smaller than stated?

    S = sum_i x_i^2 ~ chi-square(n); p = P(chi2_n <= S), one-sided. It is the likelihood-ratio test
    of a smaller scale, hence the most powerful one.

    Args:
        sums: what the residuals are of, in words -> (n, S).
    """
    named = [(what, count, total) for what, (count, total) in sums.items() if count]
    if not named:
        return combine_outcomes([])
    totals = [total for _, _, total in named]
    counts = [count for _, count, _ in named]
    p_values = stats.chi2.cdf(totals, counts)
    outcomes = []
    for p, (what, count, total) in zip(p_values, named):
        ratio = (total / count) ** 0.5
        outcomes.append((p, f"the noise of {what} is {ratio:.3g} times the stated value"))
    return combine_outcomes(outcomes)


def single_number_p_value(columns: Mapping[str, tuple[int, Tensor]]) -> CheckOutcome:
    """Is any single number noised less than stated?

    S_j = sum over R releases of x_j^2 ~ chi-square(R) for each of d numbers; the smallest is tested
    by the union bound, p = d P(chi2_R <= min_j S_j). A sum over all numbers would not show one
    number without noise.

    Args:
        columns: what the numbers are of, in words -> (R, S (d,)).
    """
    outcomes = []
    for what, (releases, squares) in columns.items():
        if releases > 1 and squares.numel():
            least = float(squares.min())
            p = float(stats.chi2.cdf(least, releases)) * squares.numel()
            ratio = (least / releases) ** 0.5
            says = f"one number of {what} has {ratio:.3g} times the stated noise"
            outcomes.append((min(1.0, p), says))
    return combine_outcomes(outcomes)


def normality_p_value(samples: Sequence[Tensor]) -> CheckOutcome:
    """Are the residuals normal?

    Kolmogorov and Smirnov: D = sup_x |F_n(x) - Phi(x / r)|, r = max(1, root mean square). Noise
    that is larger than stated is rescaled, as it is no fault. r is 1, a constant, if the noise is
    as stated or smaller; else it is estimated, which only makes the test lenient. D sees a shift, a
    cut and a lump anywhere; the tails, where it is weak, have ``magnitude_count_p_value``.

    Args:
        samples: residuals of each release; at most ``MAX_SHAPE_RESIDUALS`` of all are used.
    """
    if samples:
        values = torch.cat(list(samples)).double().numpy()
    else:
        values = np.zeros(0)
    values = values[:: max(1, len(values) // MAX_SHAPE_RESIDUALS)]
    if len(values) < MIN_RESIDUALS:
        return CheckOutcome(1.0)
    scale = max(1.0, float(np.sqrt(np.square(values).mean())))
    distance, p = stats.kstest(values / scale, "norm")
    says = f"the noise is not of the stated law (distance {distance:.3g} from it)"
    return CheckOutcome(float(p), says)


def maximum_p_value(samples: Sequence[Tensor]) -> CheckOutcome:
    """Is the largest of n residuals too small?

    P(max_i |x_i| <= m) = P(|x| <= m)^n. Noise that is cut at m shows here first: the counts of
    ``magnitude_count_p_value`` look at fixed bounds only.

    Args:
        samples: residuals of each release.
    """
    if samples:
        values = torch.cat(list(samples)).double()
    else:
        values = torch.zeros(0)
    if len(values) < MIN_RESIDUALS:
        return CheckOutcome(1.0)
    largest = float(values.abs().max())
    p = float(np.exp(len(values) * stats.halfnorm.logcdf(max(largest, 1e-300))))
    says = f"none of {len(values)} noise values is above {largest:.3g} standard deviations"
    return CheckOutcome(p, says)


def correlation_p_value(samples: Mapping[str, Tensor]) -> CheckOutcome:
    """Do any two of these releases share noise?

    r = <a, b> / (|a| |b|) of the first w residuals of each pair, by ``beta_p_value``, times the
    number of pairs (union bound). The vectors are not centred: the stated mean is 0, and a shared
    offset is shared noise.

    Args:
        samples: which release -> residuals, at the same places in each.
    """
    long_enough = [name for name, sample in samples.items() if len(sample) >= 2]
    names = select_evenly(long_enough, MAX_COMPARED_RELEASES)
    if len(names) < 2:
        return CheckOutcome(1.0)
    width = min(len(samples[name]) for name in names)
    rows = torch.stack([samples[name][:width] for name in names]).double()
    rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-30)
    products = (rows @ rows.T).abs().fill_diagonal_(0)
    place = int(products.argmax())
    first = names[place // len(names)]
    second = names[place % len(names)]
    r = min(1.0, float(products.max()))
    pairs = len(names) * (len(names) - 1) / 2
    p = min(1.0, beta_p_value(r, width) * pairs)
    return CheckOutcome(p, f"{first} and {second} share their noise (correlation {r:.3g})")


@dataclass(frozen=True)
class _ShiftedMatch:
    """The most correlated overlap so far: about ln p, |r|, the numbers compared, a sentence."""

    log_p: float = 0.0
    r: float = 0.0
    width: int = MIN_OVERLAP
    says: str = ""


def shifted_reuse_p_value(own: Mapping[str, Tensor], every: Mapping[str, Tensor]) -> CheckOutcome:
    """Does noise of these releases come back in any release, itself included, at another place,
    backwards or with other signs?

    r(k) = sum_i a_i b_{i+k} / sqrt(sum a_i^2 sum b_{i+k}^2) over the overlap at each shift k, by
    ``beta_p_value``, times the number of all shifts tried (union bound). Parts of a stream that do
    not start at the same draw, or are used for draws of other shapes, look independent place by
    place, so every shift is tried, by Fourier transform. The same is done with |x| taken to normal
    scores, as signs may be drawn apart from sizes.

    Args:
        own: which release -> residuals in the order in which they were drawn.
        every: the same of all releases to compare with, those of ``own`` among them.
    """
    own_names = [name for name, sample in own.items() if len(sample) >= MIN_OVERLAP]
    names = [name for name, sample in every.items() if len(sample) >= MIN_OVERLAP]
    if not own_names:
        return CheckOutcome(1.0)
    best = _ShiftedMatch()
    tried = 0
    changes: tuple[Callable[[Tensor], Tensor], ...] = (Tensor.double, _normal_sizes)
    for change in changes:
        shifted_parts = _FourierParts.from_samples(
            [change(every[name][:SHIFT_LENGTH]) for name in names]
        )
        for name, backwards in product(own_names, (False, True)):
            head = change(every[name][:SHIFT_LENGTH])
            head = head.flip(0) if backwards else head
            log_p, r2, width = _FourierParts.from_samples([head]).correlate_with(shifted_parts)
            # A release equals itself at shift 0; backwards no shift of it is independent.
            log_p[names.index(name), slice(None) if backwards else 0] = 0.0
            tried += int((width >= MIN_OVERLAP).sum())
            place = int(log_p.argmin())
            least = float(log_p.flatten()[place])
            if least < best.log_p:
                r = float(r2.flatten()[place]) ** 0.5
                says = (
                    f"{name} and {names[place // log_p.shape[1]]} share their noise (at a shift, "
                    f"correlation {r:.3g})"
                )
                best = _ShiftedMatch(least, min(1.0, r), int(width.flatten()[place]), says)
    if not best.says:
        return CheckOutcome(1.0)
    return CheckOutcome(min(1.0, beta_p_value(best.r, best.width) * tried), best.says)


def _normal_sizes(residuals: Tensor) -> Tensor:
    """|x| as standard normal numbers, Phi^-1(1 - P(|Z| > |x|))."""
    tail = torch.erfc(residuals.double().abs() / 2**0.5).clamp(1e-15, 1 - 1e-15)
    return -torch.special.ndtri(tail)


@dataclass(frozen=True)
class _FourierParts:
    """Fourier transforms (n, F) of residuals, of their squares, and of the mask of their places."""

    values: Tensor
    squares: Tensor
    mask: Tensor

    @staticmethod
    def from_samples(samples: Sequence[Tensor]) -> _FourierParts:
        """Transforms of n samples of at most ``SHIFT_LENGTH`` numbers, padded with zeros."""
        rows = torch.zeros(len(samples), SHIFT_LENGTH).double()
        mask = torch.zeros(len(samples), SHIFT_LENGTH).double()
        for row, sample in enumerate(samples):
            size = min(SHIFT_LENGTH, len(sample))
            rows[row, :size] = sample[:size].double()
            mask[row, :size] = 1.0
        transforms = [
            torch.fft.rfft(part, 2 * SHIFT_LENGTH) for part in (rows, rows.square(), mask)
        ]
        return _FourierParts(*transforms)

    def correlate_with(self, others: _FourierParts) -> tuple[Tensor, Tensor, Tensor]:
        """One release against n others at every shift.

        The density of r^2 is about (1 - r^2)^((w - 1) / 2), so ln p is about
        (w - 1) / 2 ln(1 - r^2): enough to choose the shift, whose p-value is then exact.

        Returns:
            (about ln p, r^2, numbers compared w), each (n, shifts).
        """
        inner = _cross_correlate(self.values, others.values)
        own_squares = _cross_correlate(self.squares, others.mask)
        other_squares = _cross_correlate(self.mask, others.squares)
        width = _cross_correlate(self.mask, others.mask).round()
        r2 = (inner.square() / (own_squares * other_squares).clamp_min(1e-12)).clamp(0, 1)
        r2 = r2 * (width >= MIN_OVERLAP)
        log_p = (width - 1).clamp_min(0) / 2 * torch.log1p(-r2.clamp_max(1 - 1e-15))
        return log_p, r2, width


def _cross_correlate(first: Tensor, second: Tensor) -> Tensor:
    """Cross-correlation of two real signals, of their Fourier transforms."""
    return torch.fft.irfft(first * second.conj(), 2 * SHIFT_LENGTH)


def autocorrelation_p_value(peaks: Mapping[str, tuple[int, float, int]]) -> CheckOutcome:
    """Does any release repeat its own noise?

    The largest |r(k)| over shifts k of a release against itself, by ``beta_p_value`` times the
    number of shifts (union bound); ``noise_log.autocorrelation_peak`` finds it while the run
    trains. Beta is the law for a fixed vector against an independent one; parts of one vector that
    do not overlap are that, and overlapping ones are close to it.

    Args:
        peaks: which release -> (numbers compared, r, shifts tried).
    """
    outcomes = []
    for which, (width, r, shifts) in peaks.items():
        if shifts:
            p = min(1.0, beta_p_value(r, width) * shifts)
            outcomes.append((p, f"the noise of {which} repeats itself (correlation {r:.3g})"))
    return combine_outcomes(outcomes)


def same_noise_p_value(first: Tensor, second: Tensor, says: str) -> CheckOutcome:
    """Are two vectors of residuals, which should be independent, correlated?

    r = <a, b> / (|a| |b|), by ``beta_p_value``; the vectors are cut to the shorter one's length.
    """
    width = min(len(first), len(second))
    if width < 2:
        return CheckOutcome(1.0)
    a = first[:width].double()
    b = second[:width].double()
    r = float((a @ b).abs() / (a.norm() * b.norm()).clamp_min(1e-30))
    return CheckOutcome(beta_p_value(min(r, 1.0), width), says)


def beta_p_value(r: float, width: int) -> float:
    """P(|R| >= r) for the uncentred correlation R of w numbers.

    R^2 ~ Beta(1/2, (w - 1) / 2), exactly, for any fixed vector and an independent normal one, whose
    direction is uniform on the sphere (Muirhead 1982, Theorem 1.5.7). So it holds whatever the
    other release's noise is, which Student's t for two normal samples would not promise.
    """
    return float(stats.beta.sf(r * r, 0.5, (width - 1) / 2))


def magnitude_count_p_value(
    numbers: Sequence[int],
    steps: Sequence[float],
    near: Tensor,
    far: Tensor,
    groups: Mapping[str, Sequence[int]],
) -> CheckOutcome:
    """Are more residuals near zero, or fewer far from it, than the law says?

    Of n residuals Binomial(n, 2 Phi(b) - 1) lie within b and Binomial(n, 2 Phi(-b)) beyond b. The
    counts of all numbers are kept for a few bounds b, so a single number without noise shows among
    millions, which Kolmogorov and Smirnov's distance would not see. On a lattice a bound is moved
    by ``LATTICE_ROOM`` steps against the test. Union bound over bounds and groups.

    Args:
        numbers: n of each release.
        steps: each release's lattice step, in noise scales.
        near: (releases, bounds) how many residuals lie within ``NEAR_BOUNDS``.
        far: (releases, bounds) how many lie beyond ``FAR_BOUNDS``.
        groups: what is added up, in words -> which releases.
    """
    if not groups:
        return CheckOutcome(1.0)
    counts = np.asarray(numbers, float)
    step = np.asarray(steps, float)
    places = [list(releases) for releases in groups.values()]
    total = np.array([int(counts[place].sum()) for place in places])[:, None]
    room = LATTICE_ROOM * np.array([float(step[place].max()) for place in places])[:, None]
    counts_inside = torch.stack([near[place].sum(0) for place in places]).numpy()
    beyond = torch.stack([far[place].sum(0) for place in places]).numpy()
    inside_chance = 1 - 2 * stats.norm.sf(np.asarray(NEAR_BOUNDS) + room)
    beyond_chance = 2 * stats.norm.sf(np.asarray(FAR_BOUNDS) + room)
    p_near = chance_of_at_least(counts_inside, total, inside_chance)
    p_far = chance_of_at_most(beyond, total, beyond_chance)
    p_values = np.concatenate([p_near, p_far], 1)
    row, column = np.unravel_index(int(p_values.argmin()), p_values.shape)
    which = list(groups)[row]
    if column < len(NEAR_BOUNDS):
        where = f"within {NEAR_BOUNDS[column]:.2g} standard deviations of zero"
        where = where if column else "exactly zero"
        says = f"{counts_inside[row, column]} of {total[row, 0]} noise values are {where}"
    else:
        bound = column - len(NEAR_BOUNDS)
        where = f"above {FAR_BOUNDS[bound]} standard deviations"
        says = f"only {beyond[row, bound]} of {total[row, 0]} noise values are {where}"
    p = min(1.0, float(p_values.min()) * p_values.size)
    return CheckOutcome(p, f"{which}: {says}")


def fewest_visible_zeros(numbers: Sequence[int], steps: Sequence[float], p: float) -> int:
    """The smallest number of zero residuals, of all releases, that has a p-value of at most ``p``.

    Zeros among sum_r n_r residuals on lattices of steps s_r are about
    Poisson(0.4 sum_r n_r s_r); ``ZERO_RATE`` is that rate with its room.
    """
    expected = ZERO_RATE * float(np.dot(numbers, steps))
    return int(stats.poisson.isf(p, expected)) + 1


def least_visible_cut(numbers: int, p: float) -> float:
    """The smallest cut c, in standard deviations, that ``maximum_p_value`` does not refute.

    P(|x| <= c)^n = p, so c = Phi^-1(1 - (1 - p^(1/n)) / 2).
    """
    return float(stats.norm.isf(-np.expm1(np.log(p) / max(numbers, 1)) / 2))
