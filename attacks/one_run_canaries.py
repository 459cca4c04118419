"""Scores of many canaries in one noisy transcript, by regression on the whole signal.

A release of a clipped sum is y = sum over canaries of z_i a_i + noise, once what the other records add is taken off: a_i
is what canary i adds (which an adversary who knows the canaries, the public maps and all earlier releases computes), and
z_i is 1 where the canary is in and was sampled. Noise is Gaussian with a stated scale. The best linear estimate of all
z_i together decorrelates canaries that point the same way. How a score is computed needs no care for the bound: the
one-run bounds hold for every score that does not look at the coins. So where the signal has directions that no canary
reaches, the noise is measured there, and a release with less noise than it states is read with what it has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

SPARE = 10  # directions free of canaries, at least, to measure the noise in


@dataclass
class CanaryScores:
    """Log likelihood ratios, in against out, of m canaries; releases are added one by one.

    Full-batch releases are regressed on together, for a canary is in all of them or in none. Poisson-sampled ones are
    taken one at a time, since each has coins of its own.
    """

    count: int
    _precision: np.ndarray = field(init=False)
    _moment: np.ndarray = field(init=False)
    _sampled: np.ndarray = field(init=False)
    releases: int = 0
    gain: float = (
        0.0  # sum of |a_i|^2 / std^2 over canaries and releases: the squared mu of a perfect adversary, m times
    )

    def __post_init__(self) -> None:
        self._precision = np.zeros((self.count, self.count))
        self._moment, self._sampled = np.zeros(self.count), np.zeros(self.count)

    def add(self, at: np.ndarray, effects: np.ndarray, observed: np.ndarray, std: float, probability: float) -> None:
        """One release: canaries ``at`` (g,), what each adds (g, p), the release less the other records' part (p,).

        Raises ValueError for shapes that do not fit and noise that is not positive.
        """
        if effects.shape != (len(at), *observed.shape) or not std > 0 or not 0 < probability <= 1:
            raise ValueError(f"{len(at)} canaries, effects {effects.shape}, observed {observed.shape}, std {std}")
        rows, signal = effects.astype(np.float64), observed.astype(np.float64)
        self.releases += 1
        self.gain += float(np.square(rows).sum()) / std**2
        real = noise_beside(rows, signal, std)
        precision, moment = rows @ rows.T / real**2, rows @ signal / real**2
        if probability == 1:
            self._precision[np.ix_(at, at)] += precision
            self._moment[at] += moment
            return
        ratios = likelihood_ratios(precision, moment, probability / 2)
        stay = math.log1p(-probability)
        self._sampled[at] += np.logaddexp(stay, math.log(probability) + ratios)

    def scores(self) -> np.ndarray:
        """(m,), larger = in."""
        return self._sampled + likelihood_ratios(self._precision, self._moment, 0.5)


def noise_beside(rows: np.ndarray, signal: np.ndarray, std: float) -> float:
    """The noise scale outside the span of the rows, at most ``std`` and at least a ten-thousandth of it."""
    energy, free = outside_span(rows, signal)
    return std if free < SPARE else min(std, max(math.sqrt(energy / free), 1e-4 * std))


def outside_span(rows: np.ndarray, signal: np.ndarray) -> tuple[float, int]:
    """(squared norm, dimensions) of a signal (p,) outside the span of the rows (g, p)."""
    solution, _, rank, _ = np.linalg.lstsq(rows.T, signal, rcond=1e-9)
    rest = signal - solution @ rows
    return float(rest @ rest), len(signal) - int(rank)


def likelihood_ratios(precision: np.ndarray, moment: np.ndarray, mean: float) -> np.ndarray:
    """ln of z_i = 1 over z_i = 0 (..., n), the other coefficients being unknown with this mean and a coin's variance.

    precision: (n, n) symmetric; moment: (..., n), one transcript or several.
    """
    spread = 1 / (mean * (1 - mean))
    whole = np.linalg.inv(precision + spread * np.eye(len(precision)))
    middle = mean + (moment - precision.sum(1) * mean) @ whole
    # without the prior of canary i itself: precision w, estimate e, and the ratio w (e - 1/2)
    w = np.maximum(1 / np.diag(whole) - spread, 0.0)
    return middle / np.diag(whole) - spread * mean - w / 2
