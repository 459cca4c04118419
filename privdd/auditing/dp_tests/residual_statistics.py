"""Scale, shape and reuse of residuals that should be independent standard normal numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
# first numbers of a release that are compared at every shift, and the fewest
SHIFT_LENGTH = 256
MIN_OVERLAP = 8


def variance_p_value(sums: Mapping[str, tuple[int, float]]) -> CheckOutcome:
    """Is the noise of any of these smaller than stated? sums: what -> (numbers, sum of squared
    residuals)."""
    named = [(what, n, total) for what, (n, total) in sums.items() if n]
    ps = stats.chi2.cdf([total for *_, total in named], [n for _, n, _ in named]) if named else []
    found = []
    for p, (what, n, total) in zip(ps, named):
        found.append((p, f"the noise of {what} is {(total / n) ** 0.5:.3g} times what is stated"))
    return combine_outcomes(found)


def single_number_p_value(columns: Mapping[str, tuple[int, Tensor]]) -> CheckOutcome:
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


def normality_p_value(samples: Sequence[Tensor]) -> CheckOutcome:
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


def maximum_p_value(samples: Sequence[Tensor]) -> CheckOutcome:
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


def correlation_p_value(samples: Mapping[str, Tensor]) -> CheckOutcome:
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
    p = min(1.0, beta_p_value(r, width) * pairs)
    return CheckOutcome(p, f"{one} and {other} share their noise (correlation {r:.3g})")


def shifted_reuse_p_value(own: Mapping[str, Tensor], all_: Mapping[str, Tensor]) -> CheckOutcome:
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
    p = min(1.0, beta_p_value(best[1], best[2]) * tried)
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


def autocorrelation_p_value(found: Mapping[str, tuple[int, float, int]]) -> CheckOutcome:
    """Does any release repeat its own noise? found: which -> (numbers compared, correlation, shifts
    tried)."""
    says = "the noise of {} repeats itself (correlation {:.3g})"
    tried = [(which, *of) for which, of in found.items() if of[2]]
    ps = (min(1.0, beta_p_value(r, width) * shifts) for _, width, r, shifts in tried)
    return combine_outcomes((p, says.format(which, r)) for p, (which, _, r, _) in zip(ps, tried))


def same_noise_p_value(first: Tensor, second: Tensor, says: str) -> CheckOutcome:
    """Are two vectors of residuals, which should be independent, correlated?"""
    width = min(len(first), len(second))
    if width < 2:
        return CheckOutcome(1.0)
    a = first[:width].double()
    b = second[:width].double()
    r = float((a @ b).abs() / (a.norm() * b.norm()).clamp_min(1e-30))
    return CheckOutcome(beta_p_value(min(r, 1.0), width), says)


def beta_p_value(r: float, width: int) -> float:
    return float(stats.beta.sf(r * r, 0.5, (width - 1) / 2))


def magnitude_count_p_value(
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


def fewest_visible_zeros(numbers: Sequence[int], steps: Sequence[float], p: float) -> int:
    """The smallest number of residuals of zero, of all, that shows at a p-value of ``p``."""
    return int(stats.poisson.isf(p, 0.52 * float(np.dot(numbers, steps)))) + 1


def least_visible_cut(numbers: int, p: float) -> float:
    """The smallest cut, in standard deviations, that the largest of so many numbers does not show
    at a p-value of ``p``."""
    return float(stats.norm.isf(-np.expm1(np.log(p) / max(numbers, 1)) / 2))
