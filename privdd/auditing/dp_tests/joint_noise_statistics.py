"""Relations between noise values, which leave some direction with less noise than stated.

Symbols: X is a matrix of residuals, R releases (rows) of n numbers, whose entries should be
independent standard normal. Noise that lies in fewer directions, or takes itself off in a later
release, is of the stated law number by number; here directions are examined. All tests but that of
alignment are one-sided: more noise than stated is no fault.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from attacks.statistics import chance_of_at_least
from privdd.auditing.dp_tests.outcomes import CheckOutcome
from privdd.auditing.dp_tests.residual_statistics import MIN_OVERLAP

MAX_JOINT_RELEASES = 256  # releases whose joint law is examined
MIN_BLOCK_DEGREES = 8  # of chi-square, of a block that is examined by itself
WEAK_LEVELS = (0.1, 0.01, 1e-3, 1e-4)  # p-values of a place below which it counts as weak
EMPTY_POWER = 1e-6  # of a frequency, whose stated mean is 2


def normal_lengths(rows: Tensor) -> Tensor:
    """The lengths of releases (R, n) as standard normal numbers, Phi^-1(P(chi2_n <= |x|^2)).

    Their sum of squares is then chi-square(R): it sees lengths that are all nearly the same, as of
    noise that is drawn on a sphere.
    """
    tails = stats.chi2.cdf(rows.square().sum(1).numpy(), rows.shape[1])
    return torch.special.ndtri(torch.from_numpy(np.clip(tails, 1e-15, 1 - 1e-15)))


def conditional_variance_p_value(rows: Tensor, what: str) -> CheckOutcome:
    """Does any release, given those before it, have less noise than stated, or any number, given
    those before it?

    Bartlett's decomposition (Muirhead 1982, Theorem 3.2.14): with X^T = Q T the diagonal of T has
    T_ii^2 ~ chi-square(n - i + 1), independent. T_ii^2 is what release i leaves outside the span of
    the earlier ones; p = m min_i P(chi2 <= T_ii^2) by the union bound. The smaller side of X is
    conditioned on, as at most min(R, n) directions exist. It is the exact law at any size, unlike
    Wilks' determinant, and names the release.

    Args:
        rows: X (R, n).
        what: which releases these are, in words.
    """
    by_release = len(rows) <= rows.shape[1]
    tall = rows.T if by_release else rows
    if min(tall.shape) < 2:
        return CheckOutcome(1.0)
    pivots = torch.linalg.qr(tall.double(), mode="r").R.diagonal().square().numpy()
    degrees = len(tall) - np.arange(len(pivots))
    p_values = stats.chi2.cdf(pivots, degrees)
    place = int(p_values.argmin())
    kind = "release" if by_release else "number"
    ratio = (pivots[place] / (len(tall) - place)) ** 0.5
    says = f"{what}: given the {kind}s before it, one has {ratio:.3g} times the stated noise"
    return CheckOutcome(min(1.0, float(p_values.min()) * len(p_values)), says)


def direction_alignment_p_value(groups: Mapping[str, Tensor]) -> CheckOutcome:
    """Are the releases of each group more alike in direction than independent ones, all pairs
    together?

    T = sum over pairs of n r_ij^2. Each n r^2 is n Beta(1/2, (n - 1)/2), of mean 1 and variance
    2 (n - 1) / (n + 2), and the pairs are uncorrelated, so T of R releases has mean R (R - 1) / 2
    and variance R (R - 1) (n - 1) / (n + 2). A gamma law of these moments. Noise in a fixed
    subspace makes all pairs a little alike, which no single pair shows.

    Args:
        groups: which releases, in words -> X (R, n).
    """
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
    description = f"they are {(total / mean) ** 0.5:.3g} times as alike as independent ones"
    return CheckOutcome(p, f"the noise of releases lies in few directions: {description}")


def block_variance_p_value(power: Tensor, degrees: int, what: str) -> CheckOutcome:
    """Is any block of these squares smaller than chi-square makes it, in one release or in all?

    A block B of w neighbours x_j of d degrees each is chi-square(w d), of all R releases
    chi-square(R w d), and F is its distribution function:

        p = min(1, m min_B F(sum_{j in B} x_j)),

    corrected for all m blocks by the union bound. Widths are halved from n to 1, so a gap of any
    width is covered to its quarter at least. Short blocks, of fewer than
    ``MIN_BLOCK_DEGREES``, are examined in all releases together alone.

    Args:
        power: (R, n) squares of residuals, or powers of their frequencies.
        degrees: d, 1 for residuals, 2 for complex frequencies.
        what: which releases these are, in words.
    """
    looks: list[tuple[np.ndarray, int]] = []
    releases, size = power.shape
    rows = torch.cat([power, power.sum(0, keepdim=True)]).double()
    multiples = np.r_[np.ones(releases), releases][:, None]
    width = size
    while width >= 1 and size:
        is_short = width * degrees < MIN_BLOCK_DEGREES
        is_long_in_all = releases > 1 and width * degrees * releases >= MIN_BLOCK_DEGREES
        if not is_short or is_long_in_all:
            part = slice(releases, None) if is_short else slice(None)
            blocks = rows[part, : size // width * width].reshape(len(rows[part]), -1, width)
            sums = blocks.sum(2).numpy()
            looks.append((stats.chi2.cdf(sums, multiples[part] * width * degrees), width))
        width //= 2
    if not looks:
        return CheckOutcome(1.0)
    p_values, width = min(looks, key=lambda block: float(block[0].min()))
    tried = sum(block_p_values.size for block_p_values, _ in looks)
    says = f"{what}: {width} neighbours together have less noise than stated"
    return CheckOutcome(min(1.0, float(p_values.min()) * tried), says)


def power_spectrum(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The spectra of releases (R, n) by the unitary Fourier transform.

    Returns:
        (2 |F_k|^2 (R, m) of each frequency but the lowest and the highest, chi-square(2) each;
        F_0 (R,), the sum over sqrt(n), standard normal).
    """
    spectrum = torch.fft.rfft(rows.double(), norm="ortho")
    inner = spectrum[:, 1 : (rows.shape[1] + 1) // 2]
    return 2 * inner.abs().square(), spectrum[:, 0].real


def empty_frequency_p_value(power: Tensor, what: str) -> CheckOutcome:
    """How many frequencies have next to no noise?

    P(chi2_2 < c) = 1 - exp(-c / 2) for c = ``EMPTY_POWER``, so the number below c is Binomial. A
    gap of scattered frequencies is in no block of ``block_variance_p_value``.

    Args:
        power: (R, m) of ``power_spectrum``.
        what: which releases these are, in words.
    """
    empty = int((power < EMPTY_POWER).sum())
    tried = power.numel()
    if tried:
        p = float(chance_of_at_least(empty, tried, -np.expm1(-EMPTY_POWER / 2)))
    else:
        p = 1.0
    return CheckOutcome(p, f"{what}: {empty} of {tried} frequencies have no noise")


def weak_place_p_value(rows: Tensor, what: str) -> CheckOutcome:
    """Are more places noised little in all releases than chance makes them?

    Each place has p_j = P(chi2_R <= sum over releases of x_j^2), uniform under the stated law, so
    the number of places with p_j < a is Binomial(n, a), for each a of ``WEAK_LEVELS`` (union
    bound). A form of higher criticism: noise whose size depends on the place leaves many places a
    little weak, of which none is refuted alone.

    Args:
        rows: X (R, n).
        what: which releases these are, in words.
    """
    if len(rows) < 2 or not rows.shape[1]:
        return CheckOutcome(1.0)
    place_p_values = stats.chi2.cdf(rows.double().square().sum(0).numpy(), len(rows))
    levels = np.array(WEAK_LEVELS)
    weak = (place_p_values[:, None] < levels).sum(0)
    p_values = chance_of_at_least(weak, len(place_p_values), levels)
    best = int(p_values.argmin())
    says = (
        f"{what}: {weak[best]} of {len(place_p_values)} places have little noise in every release, "
        f"{len(place_p_values) * levels[best]:.3g} are expected"
    )
    return CheckOutcome(min(1.0, float(p_values.min()) * len(levels)), says)
