"""The sound query: clip each record's contribution, divide by a constant, sum on a lattice, add
Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import dp_accounting as dpa
import torch

from attacks.validation import check_positive, check_probability
from privdd.core.types import Tensors
from privdd.privacy.clipping import LazyTensors, RecordLayout, clipped_sum
from privdd.privacy.lattice import ON_LATTICE, Lattice
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.noise import Noise


@dataclass(frozen=True)
class ClippedSum(Mechanism, hooks=("noise_std",)):
    """(sum over records of clip_C(contribution) + N(0, (z C)**2 I)) / normaliser.

    Serves DP-SGD ("dpsgd"; Abadi et al. 2016), noisy mean embeddings ("embedding"), per-record
    gradients of synthetic data ("synthetic_gradient"), class counts and class statistics. All
    tensors of a record are clipped together. sampling_probability q < 1 states that the records
    were drawn by ``ctx.sample`` (Poisson); the normaliser is a public constant, never the realised
    batch size. Each clipped contribution, divided by the normaliser, is rounded towards zero on a
    public lattice, so its norm does not grow; the integers are summed exactly, noised, and rounded
    to whole steps of 2**-16 of noise_std or less. So the release is a function of the Gaussian
    mechanism's (proof: ``privdd.privacy.lattice``).
    Input: tensors (n, ...), n >= 0; output: tensors (...).
    """

    noise_multiplier: float
    clip_norm: float
    sampling_probability: float = 1.0
    normaliser: float = 1.0
    for_queries: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, "noise_multiplier", "clip_norm", "normaliser")
        check_probability(self, "sampling_probability")
        _ = self._noise_lattice  # raises for noise that is too small

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on the released (normalised) value."""
        return self.noise_multiplier * self.clip_norm / self.normaliser

    @property
    def event(self) -> dpa.DpEvent:
        gaussian = dpa.GaussianDpEvent(float(self.noise_multiplier))
        q = float(self.sampling_probability)
        if q == 1:
            return gaussian
        return dpa.PoissonSampledDpEvent(q, gaussian)

    @property
    def _noise_lattice(self) -> Lattice:
        return Lattice.under(self.noise_std, self.clip_norm / self.normaliser)

    def __call__(self, value: Tensors, noise: Noise) -> Output:
        lattice = self._noise_lattice
        std = self.noise_std
        total = clipped_sum(value, self.clip_norm, lattice, per=self.normaliser)
        released = lattice.add_noise(total, std, noise.normal)
        layout = RecordLayout.from_contributions(value)
        return Output(
            layout.to_tensors(lattice.to_numbers(released, torch.float64)),
            self.event,
            clip_norm=float(self.clip_norm),
            sensitivity=self.clip_norm / self.normaliser,
            why="one record adds one vector of norm at most clip_norm, divided by a constant "
            f"and {ON_LATTICE}",
            noise_std=std,
            lattice=lattice.step,
            exact=LazyTensors(total, lattice, layout),
        )
