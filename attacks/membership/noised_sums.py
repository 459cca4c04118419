"""Membership from noised sums over records, in closed form: the strongest reading of what a
mechanism let out.

What is computed from noised sums says no more of a record than the sums do (data processing). Of a
sum y = sum_i z_i a_i + noise, what each record i adds, a_i, is known to the analyst of the
guarantee, who knows all records and asks which are in (z_i = 1). So the log likelihood ratio of
each record needs no shadow model. Other records' coins are marginalised as normal variables of a
coin's mean and variance."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from torch import Tensor

from attacks.canaries import likelihood_ratios, outside_span
from attacks.membership.attack import MembershipAttack, require_worlds
from attacks.types import Adversary, View

RATIO_SIGNAL = "likelihood_ratio"
MIN_FREE_NUMBERS = (
    1000  # numbers that no record reaches, from which the size of the noise is measured
)
MAX_RUN_SIGMAS = 5.0  # by which the measured size of the noise may differ from the stated one
# ... and that of one release from the usual one: there are many, and some reach few numbers
MAX_RELEASE_SIGMAS = 7.0
MIN_NOISE_SHARE = 1e-4  # of the stated noise: a transcript with less is read as if it had that


@dataclass(frozen=True)
class _ReleasedSum:
    """One release: records ``at`` (g,), A A^T / std^2 (g, g), A y / std^2 (g,), the chance to be
    sampled, and what was measured
    in the directions that no record reaches: squared noise over the stated variance, and their
        number."""

    name: str
    at: np.ndarray
    precision: np.ndarray
    moment: np.ndarray
    probability: float
    energy: float
    free: int

    @property
    def noise_ratio(self) -> float:
        """The noise that this release had, over the stated one."""
        return max(math.sqrt(self.energy / self.free), MIN_NOISE_SHARE)

    def differs_from(self, usual: float) -> bool:
        """Whether its noise is surely another than the usual one."""
        return self.free > 0 and abs(self.noise_ratio / usual - 1) > MAX_RELEASE_SIGMAS / math.sqrt(
            2 * self.free
        )


@dataclass
class NoisedSums:
    """The noised sums of one run over ``count`` candidates, added one by one."""

    count: int
    releases: list[_ReleasedSum] = field(default_factory=list)

    def add_release(
        self,
        name: str,
        at: np.ndarray,
        effects: np.ndarray,
        observed: np.ndarray,
        std: float,
        probability: float = 1.0,
    ) -> None:
        """One release of the mechanism ``name``: candidates ``at`` (g,), what each adds (g, p), the
        release less all other records' part (p,), the standard deviation of its noise and the
        chance of a record to be sampled.

        Raises ValueError for shapes that do not fit and noise that is not positive.
        """
        if effects.shape != (len(at), *observed.shape) or not std > 0 or not 0 < probability <= 1:
            raise ValueError(
                f"{len(at)} records, effects {effects.shape}, observed {observed.shape}, std {std}"
            )
        rows = effects.astype(np.float64) / std
        signal = observed.astype(np.float64) / std
        self.releases.append(
            _ReleasedSum(
                name, at, rows @ rows.T, rows @ signal, probability, *outside_span(rows, signal)
            )
        )

    def usual_noise_ratio(self, name: str) -> float:
        """The usual noise of a mechanism in this run, over the stated one, in directions that no
        record reaches; 1 where these are few."""
        energy, free = self._energy_outside_span(name)
        return max(math.sqrt(energy / free), MIN_NOISE_SHARE) if free >= MIN_FREE_NUMBERS else 1.0

    @property
    def has_stated_noise(self) -> bool:
        """Whether the noise of every mechanism that can be measured has the stated size, in all
        rounds together and in each
        release: other noise, or records that add something else than they are read with, show
            there."""
        for name in {read.name for read in self.releases}:
            size = self.usual_noise_ratio(name)
            free = self._energy_outside_span(name)[1]
            if free >= MIN_FREE_NUMBERS and abs(size - 1) > MAX_RUN_SIGMAS / math.sqrt(2 * free):
                return False
        return not any(read.differs_from(1.0) for read in self.releases)

    def _energy_outside_span(self, name: str) -> tuple[float, int]:
        found = [read for read in self.releases if read.name == name]
        return sum(read.energy for read in found), sum(read.free for read in found)

    def _noise_per_release(self) -> list[float]:
        """The noise that each release is read with: an average over rounds would hide one that had
        less."""
        usual = {
            name: self.usual_noise_ratio(name) for name in {read.name for read in self.releases}
        }
        return [
            read.noise_ratio if read.differs_from(usual[read.name]) else usual[read.name]
            for read in self.releases
        ]

    def log_likelihood_ratios(self, masks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Log likelihood ratios (K, n), in against out, for masks (K, n) bool, of which row 0 is
        the run that happened.

        The other rows read transcripts along the same sums, with their own coins, samples and
        noise, of the law and size that the run's noise has. Raises ValueError for masks of another
        width."""
        if masks.ndim != 2 or masks.shape[1] != self.count:
            raise ValueError(f"masks {masks.shape}: rows of {self.count} coins are needed")
        precision = np.zeros((self.count, self.count))
        moment = np.zeros(self.count)
        total = np.zeros(masks.shape)
        for read, noise in zip(self.releases, self._noise_per_release(), strict=True):
            size = noise**2
            if read.probability == 1:
                precision[np.ix_(read.at, read.at)] += read.precision / size
                moment[read.at] += read.moment / size
                continue
            coins = masks[:, read.at] & (rng.random((len(masks), len(read.at))) < read.probability)
            seen = _draw_transcripts(read.precision / size, read.moment / size, coins, rng)
            ratios = likelihood_ratios(read.precision / size, seen, read.probability / 2)
            stay = math.log1p(-read.probability)
            total[:, read.at] += np.logaddexp(stay, math.log(read.probability) + ratios)
        return total + likelihood_ratios(
            precision, _draw_transcripts(precision, moment, masks, rng), 0.5
        )


def _draw_transcripts(
    precision: np.ndarray, moment: np.ndarray, coins: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """A y / std^2 (K, n): the real one, then those of other coins (K - 1, n), by its law N(P z,
    P)."""
    values, vectors = np.linalg.eigh(precision)
    noise = rng.standard_normal((len(coins) - 1, len(moment))) * np.sqrt(values.clip(0))
    return np.concatenate([moment[None], coins[1:] @ precision + noise @ vectors.T])


@dataclass(frozen=True)
class NoisedSumAttack(MembershipAttack):
    """The closed-form ratio as the score, for the analyst who sees every noised release; no shadow
    model."""

    name: ClassVar[str] = "noised_reads"
    adversaries: ClassVar[frozenset[Adversary]] = frozenset({Adversary.ANALYST})
    least_worlds: ClassVar[int] = 1

    def score(self, view: View, name: str, seed: int) -> Tensor:
        return require_worlds(view).signals[RATIO_SIGNAL].double()
