"""Membership from noised sums over records, in closed form: the strongest reading of what a
mechanism releases.

What is computed from noised sums says no more about a record than the sums do (data processing). In
a sum y = sum_i z_i a_i + noise, the analyst of the guarantee knows what each record i adds, a_i:
all records are known, and the question is which are in (z_i = 1). So the log likelihood ratio of
each record needs no shadow model. Other records' inclusion bits are marginalised as normal
variables of the same mean and variance."""

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
# numbers that no record reaches, from which the size of the noise is measured
MIN_FREE_NUMBERS = 1000
# by which the measured size of a run's noise may differ from the stated one ...
MAX_RUN_SIGMAS = 5.0
# ... and that of one release from the run's: there are many, and some reach few numbers
MAX_RELEASE_SIGMAS = 7.0
MIN_NOISE_SHARE = 1e-4  # of the stated noise: a transcript with less is read as if it had that


@dataclass(frozen=True)
class _ReleasedSum:
    """One release y, read along what the records add, the rows of A."""

    name: str  # of the mechanism
    records: np.ndarray  # positions (g,)
    precision: np.ndarray  # A A^T / std^2 (g, g)
    moment: np.ndarray  # A y / std^2 (g,)
    probability: float  # of a record to be sampled
    energy: float  # squared noise over the stated variance, in the directions no record reaches
    free: int  # the number of these directions

    @property
    def noise_ratio(self) -> float:
        """The noise of this release over the stated one."""
        return max(math.sqrt(self.energy / self.free), MIN_NOISE_SHARE)

    def differs_from(self, usual: float) -> bool:
        """Whether its noise is certainly not the usual one."""
        # the size of n normal numbers is estimated with a relative deviation of 1 / sqrt(2 n)
        if self.free <= 0:
            return False
        return abs(self.noise_ratio / usual - 1) > MAX_RELEASE_SIGMAS / math.sqrt(2 * self.free)


@dataclass
class NoisedSums:
    """The noised sums of one run over ``count`` candidates, added one by one."""

    count: int
    releases: list[_ReleasedSum] = field(default_factory=list)

    def add_release(
        self,
        name: str,
        records: np.ndarray,
        effects: np.ndarray,
        observed: np.ndarray,
        std: float,
        probability: float = 1.0,
    ) -> None:
        """Adds one release of a mechanism.

        Args:
            name: of the mechanism.
            records: positions of the candidates (g,).
            effects: what each of them adds (g, p).
            observed: the release less the part of all other records (p,).
            std: of its noise, above 0.
            probability: of a record to be sampled, in (0, 1].

        Raises:
            ValueError: for shapes that do not fit, and noise that is not positive.
        """
        shape = (len(records), *observed.shape)
        if effects.shape != shape or not std > 0 or not 0 < probability <= 1:
            raise ValueError(
                f"{len(records)} records, effects {effects.shape}, observed {observed.shape}, "
                f"std {std}"
            )
        rows = effects.astype(np.float64) / std
        signal = observed.astype(np.float64) / std
        energy, free = outside_span(rows, signal)
        self.releases.append(
            _ReleasedSum(name, records, rows @ rows.T, rows @ signal, probability, energy, free)
        )

    def usual_noise_ratio(self, name: str) -> float:
        """The noise of a mechanism over the whole run, over the stated one, in directions that no
        record reaches; 1 if these are few."""
        energy, free = self._energy_outside_span(name)
        if free < MIN_FREE_NUMBERS:
            return 1.0
        return max(math.sqrt(energy / free), MIN_NOISE_SHARE)

    @property
    def has_stated_noise(self) -> bool:
        """Whether all noise that can be measured has the stated size, over the run and in each
        release. Other noise shows there, and so do records that add something else than assumed."""
        for name in {release.name for release in self.releases}:
            size = self.usual_noise_ratio(name)
            free = self._energy_outside_span(name)[1]
            if free >= MIN_FREE_NUMBERS and abs(size - 1) > MAX_RUN_SIGMAS / math.sqrt(2 * free):
                return False
        return not any(release.differs_from(1.0) for release in self.releases)

    def _energy_outside_span(self, name: str) -> tuple[float, int]:
        releases = [release for release in self.releases if release.name == name]
        energy = sum(release.energy for release in releases)
        return energy, sum(release.free for release in releases)

    def _noise_per_release(self) -> list[float]:
        """The noise that each release is read with: its own if it is not the usual one, which an
        average over rounds would hide."""
        names = {release.name for release in self.releases}
        usual = {name: self.usual_noise_ratio(name) for name in names}
        ratios = []
        for release in self.releases:
            ratio = usual[release.name]
            if release.differs_from(ratio):
                ratio = release.noise_ratio
            ratios.append(ratio)
        return ratios

    def log_likelihood_ratios(self, masks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Log likelihood ratios (K, n), in against out, for masks (K, n) bool, of which row 0 is
        the real run.

        The other rows read simulated transcripts of the same sums, with their own inclusion bits,
        samples and noise, of the law and size of the run's noise. Raises ValueError for masks of
        another width.
        """
        if masks.ndim != 2 or masks.shape[1] != self.count:
            raise ValueError(f"masks {masks.shape}: rows of {self.count} coins are needed")
        precision = np.zeros((self.count, self.count))
        moment = np.zeros(self.count)
        total = np.zeros(masks.shape)
        for release, noise in zip(self.releases, self._noise_per_release(), strict=True):
            records = release.records
            release_precision = release.precision / noise**2
            release_moment = release.moment / noise**2
            if release.probability == 1:
                precision[np.ix_(records, records)] += release_precision
                moment[records] += release_moment
                continue
            # a sampled release is read by itself, as its samples are drawn anew:
            #     ln(1 - q + q e^ratio), ratio of a sampled record
            sampled = rng.random((len(masks), len(records))) < release.probability
            bits = masks[:, records] & sampled
            moments = _draw_transcripts(release_precision, release_moment, bits, rng)
            ratios = likelihood_ratios(release_precision, moments, release.probability / 2)
            log_absent = math.log1p(-release.probability)
            total[:, records] += np.logaddexp(log_absent, math.log(release.probability) + ratios)
        moments = _draw_transcripts(precision, moment, masks, rng)
        return total + likelihood_ratios(precision, moments, 0.5)


def _draw_transcripts(
    precision: np.ndarray, moment: np.ndarray, bits: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """A y / std^2 (K, n): the real one, then those of other inclusion bits z (K - 1, n), by its law
    N(P z, P), P the precision."""
    values, vectors = np.linalg.eigh(precision)
    noise = rng.standard_normal((len(bits) - 1, len(moment))) * np.sqrt(values.clip(0))
    return np.concatenate([moment[None], bits[1:] @ precision + noise @ vectors.T])


@dataclass(frozen=True)
class NoisedSumAttack(MembershipAttack):
    """The closed-form ratio as the score, for the analyst who sees every noised release; no shadow
    model."""

    name: ClassVar[str] = "noised_reads"
    adversaries: ClassVar[frozenset[Adversary]] = frozenset({Adversary.ANALYST})
    least_worlds: ClassVar[int] = 1

    def score(self, view: View, name: str, seed: int) -> Tensor:
        return require_worlds(view).signals[RATIO_SIGNAL].double()
