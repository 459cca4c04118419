"""Relations between noise values, which leave some direction with less noise than stated."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from attacks.statistics import chance_of_at_least
from privdd.auditing.dp_tests.outcomes import CheckOutcome
from privdd.auditing.dp_tests.residual_statistics import MIN_OVERLAP

MAX_JOINT_RELEASES = 256  # releases whose joint law is looked at


def normal_lengths(rows: Tensor) -> Tensor:
    """The lengths of releases (R, n) as standard normal numbers."""
    tails = stats.chi2.cdf(rows.square().sum(1).numpy(), rows.shape[1])
    return torch.special.ndtri(torch.from_numpy(np.clip(tails, 1e-15, 1 - 1e-15)))


def conditional_variance_p_value(rows: Tensor, what: str) -> CheckOutcome:
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


def direction_alignment_p_value(groups: Mapping[str, Tensor]) -> CheckOutcome:
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


def block_variance_p_value(power: Tensor, degrees: int, what: str) -> CheckOutcome:
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


def empty_frequency_p_value(power: Tensor, what: str) -> CheckOutcome:
    """How many frequencies have next to no noise?"""
    least = 1e-6
    few = int((power < least).sum())
    tried = power.numel()
    p = float(chance_of_at_least(few, tried, -np.expm1(-least / 2))) if tried else 1.0
    return CheckOutcome(p, f"{what}: {few} of {tried} frequencies have no noise")


def weak_place_p_value(rows: Tensor, what: str) -> CheckOutcome:
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
