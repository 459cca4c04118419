"""Tests of residuals that should be independent standard normal numbers, and of coins that should be fair to q.

Every function returns p-values that hold for one look; whoever makes several corrects them (``smallest``). Scale by
chi-square, shape by Kolmogorov and Smirnov, reuse by the exact law of an uncentred correlation: for a fixed vector
and an independent normal one of m numbers, r**2 is Beta(1/2, (m - 1)/2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

import numpy as np
import torch
from scipy import stats
from torch import Tensor

T = TypeVar("T")
SHORT = 16  # fewer residuals of one release are joined with others of their client round
POOL = 2**16  # residuals in the test of shape
HEAD, OVERLAP = 256, 8  # first numbers of a release that are compared at every shift, and the fewest of them
COMPARED, DRAWS = 4096, 512  # releases of one query, and draws, that are compared with each other


@dataclass(frozen=True)
class Look:
    """The outcome of one or several tests of one kind: p, corrected for their number, and what it says."""

    p: float
    says: str = ""


CAREFUL = 0.1  # a fault of noise or sampling shows far below any usual limit, so a tenth of a test's share is enough


def allowed(confidence: float) -> float:
    """The p-value below which a run's own noise or sampling is refuted: a healthy run is accused ten times less often
    than the share of the test would let it be. confidence: of one test, in (0, 1)."""
    return CAREFUL * (1 - confidence)


def smallest(found: Iterable[tuple[float, str]]) -> Look:
    """Bonferroni: the smallest p-value times how many there are."""
    made = list(found)
    if not made:
        return Look(1.0)
    p, says = min(made, key=lambda one: one[0])
    return Look(min(1.0, float(p) * len(made)), says)


def scale(sums: Mapping[str, tuple[int, float]]) -> Look:
    """Is the noise of any of these smaller than stated? sums: what -> (numbers, sum of squared residuals)."""
    named = [(what, n, total) for what, (n, total) in sums.items() if n]
    ps = stats.chi2.cdf([total for *_, total in named], [n for _, n, _ in named]) if named else []
    return smallest(
        (p, f"the noise of {what} is {(total / n) ** 0.5:.3g} times what is stated")
        for p, (what, n, total) in zip(ps, named)
    )


def single_numbers(columns: Mapping[str, tuple[int, Tensor]]) -> Look:
    """Is any single number noised less than stated? columns: what -> (releases, sums of squares of each number)."""
    found = []
    for what, (count, total) in columns.items():
        if count > 1 and total.numel():
            p = float(stats.chi2.cdf(float(total.min()), count)) * total.numel()
            low = (float(total.min()) / count) ** 0.5
            found.append((min(1.0, p), f"one number of {what} has {low:.3g} times the stated noise"))
    return smallest(found)


def shape(samples: Sequence[Tensor]) -> Look:
    """Are the residuals normal? Noise that is larger than stated is rescaled: that is no fault of a guarantee."""
    values = torch.cat(list(samples)).double().numpy() if samples else np.zeros(0)
    values = values[:: max(1, len(values) // POOL)]
    if len(values) < SHORT:
        return Look(1.0)
    rms = max(1.0, float(np.sqrt(np.square(values).mean())))
    gap, p = stats.kstest(values / rms, "norm")
    return Look(float(p), f"the noise is not of the stated law (distance {gap:.3g} from it)")


def extremes(samples: Sequence[Tensor]) -> Look:
    """Is the largest of n residuals too small? P(all within m) = P(|x| <= m)**n: noise that is cut shows here first."""
    values = torch.cat(list(samples)).double() if samples else torch.zeros(0)
    if len(values) < SHORT:
        return Look(1.0)
    most = float(values.abs().max())
    p = float(np.exp(len(values) * stats.halfnorm.logcdf(max(most, 1e-300))))
    return Look(p, f"none of {len(values)} noise values is above {most:.3g} standard deviations")


def reuse(samples: Mapping[str, Tensor]) -> Look:
    """Do any two of these releases share noise? samples: which release -> residuals at the same places in each."""
    names = [name for name, sample in samples.items() if len(sample) >= 2]
    names = spread_over(names, COMPARED)
    if len(names) < 2:
        return Look(1.0)
    width = min(len(samples[name]) for name in names)
    rows = torch.stack([samples[name][:width] for name in names]).double()
    rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-30)
    products = (rows @ rows.T).abs().fill_diagonal_(0)
    at = int(products.argmax())
    one, other = names[at // len(names)], names[at % len(names)]
    r = min(1.0, float(products.max()))
    pairs = len(names) * (len(names) - 1) / 2
    p = min(1.0, _correlated(r, width) * pairs)
    return Look(p, f"{one} and {other} share their noise (correlation {r:.3g})")


def shifted(own: Mapping[str, Tensor], all_: Mapping[str, Tensor]) -> Look:
    """Does noise of these releases come back in any release, its own too, at another place, backwards or with other signs?

    own, all_: which release -> residuals in the order in which they were drawn. Shares of a stream that do not start at
    the same draw, or are used for draws of other shapes (sizes and signs are drawn apart), look independent place by
    place: every shift is tried, by Fourier transform, of the residuals and of their sizes.
    """
    mine, names = ([n for n, s in some.items() if len(s) >= OVERLAP] for some in (own, all_))
    if not mine:
        return Look(1.0)
    best, tried = (0.0, 0.0, OVERLAP, ""), 0
    for change in (_as_it_is, _size):
        other = _Parts.of([change(all_[name][:HEAD]) for name in names])
        for name, backwards in product(mine, (False, True)):
            head = change(all_[name][:HEAD])
            log_p, r2, width = _Parts.of([head.flip(0) if backwards else head]).against(other)
            log_p[names.index(name), slice(None) if backwards else 0] = 0.0  # itself: no news
            tried += int((width >= OVERLAP).sum())
            at = int(log_p.argmin())
            if float(log_p.flatten()[at]) < best[0]:
                r = float(r2.flatten()[at]) ** 0.5
                says = f"{name} and {names[at // log_p.shape[1]]} share their noise (at a shift, correlation {r:.3g})"
                best = float(log_p.flatten()[at]), min(1.0, r), int(width.flatten()[at]), says
    return Look(min(1.0, _correlated(best[1], best[2]) * tried), best[3]) if best[3] else Look(1.0)


def _as_it_is(residuals: Tensor) -> Tensor:
    return residuals


def _size(residuals: Tensor) -> Tensor:
    """Absolute values of standard normal numbers as standard normal numbers."""
    tail = torch.erfc(residuals.double().abs() / 2**0.5).clamp(1e-15, 1 - 1e-15)
    return -torch.special.ndtri(tail)


@dataclass(frozen=True)
class _Parts:
    """Fourier transforms of residuals (n, F), of their squares, and of where there are any."""

    values: Tensor
    squares: Tensor
    there: Tensor

    @staticmethod
    def of(samples: Sequence[Tensor]) -> _Parts:
        rows, there = torch.zeros(len(samples), HEAD).double(), torch.zeros(len(samples), HEAD).double()
        for at, sample in enumerate(samples):
            size = min(HEAD, len(sample))
            rows[at, :size], there[at, :size] = sample[:size].double(), 1.0
        return _Parts(*(torch.fft.rfft(part, 2 * HEAD) for part in (rows, rows.square(), there)))

    def against(self, other: _Parts) -> tuple[Tensor, Tensor, Tensor]:
        """(about ln p, squared correlation, numbers compared), each (n, shifts), of one release and n others."""
        made = (
            (self.values, other.values),
            (self.squares, other.there),
            (self.there, other.squares),
            (self.there, other.there),
        )
        inner, mine, theirs, width = (torch.fft.irfft(a * b.conj(), 2 * HEAD) for a, b in made)
        width = width.round()
        r2 = (inner.square() / (mine * theirs).clamp_min(1e-12)).clamp(0, 1) * (width >= OVERLAP)
        return (width - 1).clamp_min(0) / 2 * torch.log1p(-r2.clamp_max(1 - 1e-15)), r2, width


def spread_over(names: list[T], most: int) -> list[T]:
    return names if len(names) <= most else [names[i] for i in np.linspace(0, len(names) - 1, most).astype(int)]


def echoes(found: Mapping[str, tuple[int, float, int]]) -> Look:
    """Does any release repeat its own noise? found: which -> (numbers compared, correlation, shifts tried)."""
    return smallest(
        (min(1.0, _correlated(r, width) * shifts), f"the noise of {which} repeats itself (correlation {r:.3g})")
        for which, (width, r, shifts) in found.items()
        if shifts
    )


def same_noise(first: Tensor, second: Tensor, says: str) -> Look:
    """Are two vectors of residuals, which should be independent, correlated?"""
    width = min(len(first), len(second))
    if width < 2:
        return Look(1.0)
    a, b = first[:width].double(), second[:width].double()
    r = float((a @ b).abs() / (a.norm() * b.norm()).clamp_min(1e-30))
    return Look(_correlated(min(r, 1.0), width), says)


def _correlated(r: float, width: int) -> float:
    return float(stats.beta.sf(r * r, 0.5, (width - 1) / 2))


def rate(taken: int, expected: Sequence[int], probability: float, what: str) -> Look:
    """Were as many taken as coins of this probability take? expected: the numbers of records asked."""
    asked = int(sum(expected))
    p = float(stats.binomtest(taken, asked, probability).pvalue) if asked else 1.0
    share = taken / max(asked, 1)
    return Look(p, f"{what}: {share:.3g} of the records are taken, {probability:.3g} is stated")


def spread(sizes: Sequence[int], asked: Sequence[int], probability: float, what: str) -> Look:
    """Do the sizes of batches vary as independent coins make them vary?

    The sum of squared standard scores, by a gamma law with its exact mean and variance: good in the tails
    where the expected batch is not tiny, so draws with a variance below 1 are left out.
    """
    n, m = np.asarray(asked, float), np.asarray(sizes, float)
    variance = n * probability * (1 - probability)
    keep = variance >= 1
    if keep.sum() < 2:
        return Look(1.0)
    score = np.square(m - n * probability)[keep] / variance[keep]
    more = 2 + (1 - 6 * probability * (1 - probability)) / variance[keep]  # exact variance of a squared score
    mean, var = float(keep.sum()), float(more.sum())
    law = stats.gamma(mean**2 / var, scale=var / mean)
    p = 2 * min(float(law.cdf(score.sum())), float(law.sf(score.sum())))
    return Look(min(1.0, p), f"{what}: batch sizes vary {(score.mean()) ** 0.5:.2g} times as much as coins make them")


def single_records(counts: Tensor, draws: int, probability: float, what: str) -> Look:
    """Is any record taken more or less often than its coins say? counts (n,): of ``draws`` draws."""
    if not len(counts):
        return Look(1.0)
    high, low = int(counts.max()), int(counts.min())
    over = len(counts) * float(stats.binom.sf(high - 1, draws, probability))
    under = len(counts) * float(stats.binom.cdf(low, draws, probability))
    return smallest(
        [
            (min(1.0, over), f"{what}: one record is taken in {high} of {draws} draws"),
            (min(1.0, under), f"{what}: one record is taken in {low} of {draws} draws"),
        ]
    )


def same_coins(draws: Mapping[str, Tensor], probability: float) -> Look:
    """Do any two draws take the same records more often than independent coins do? draws: which -> (n,) bool."""
    names = spread_over(list(draws), DRAWS)
    if len(names) < 2:
        return Look(1.0)
    width = max(len(draws[name]) for name in names)
    heads = torch.stack([torch.nn.functional.pad(draws[n].double(), (0, width - len(draws[n]))) for n in names])
    held = torch.stack([(torch.arange(width) < len(draws[n])).double() for n in names])
    agree = heads @ heads.T + (held - heads) @ (held - heads).T
    both = held @ held.T
    equal = probability**2 + (1 - probability) ** 2
    ps = stats.binom.sf((agree - 1).numpy(), both.numpy(), equal)
    np.fill_diagonal(ps, 1.0)
    at = int(ps.argmin())
    pairs = len(names) * (len(names) - 1) / 2
    one, other = names[at // len(names)], names[at % len(names)]
    return Look(min(1.0, float(ps.min()) * pairs), f"{one} and {other} take the same records")
