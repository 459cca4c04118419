"""The sound query: clip each record's contribution, sum, add Gaussian noise, divide by a constant."""

from __future__ import annotations

from dataclasses import dataclass

import dp_accounting as dpa

from privdd.core.types import Tensors
from privdd.privacy.clipping import clipped_sum, positive
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.noise import Noise


@dataclass(frozen=True)
class ClippedSum(Mechanism, hooks=("noise_std",)):
    """(sum over records of clip_C(contribution) + N(0, (z C)**2 I)) / normaliser.

    Serves DP-SGD ("dpsgd"; Abadi et al. 2016), noisy mean embeddings ("embedding"), per-record
    gradients of synthetic data ("synthetic_gradient"), class counts and class statistics. All tensors
    of a record are clipped together. sampling_probability q < 1 states that the records were drawn by
    ``ctx.sample`` (Poisson); the normaliser is a public constant, never the realised batch size.
    Input: tensors (n, ...), n >= 0; output: tensors (...).
    """

    noise_multiplier: float
    clip_norm: float
    sampling_probability: float = 1.0
    normaliser: float = 1.0

    def __post_init__(self) -> None:
        positive(self.noise_multiplier, "noise_multiplier")
        positive(self.clip_norm, "clip_norm")
        positive(self.normaliser, "normaliser")
        if not 0 < self.sampling_probability <= 1:
            raise ValueError(f"sampling_probability={self.sampling_probability!r}: a number in (0, 1] is needed")

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on the released (normalised) value."""
        return self.noise_multiplier * self.clip_norm / self.normaliser

    @property
    def event(self) -> dpa.DpEvent:
        gaussian = dpa.GaussianDpEvent(float(self.noise_multiplier))
        q = float(self.sampling_probability)
        return gaussian if q == 1 else dpa.PoissonSampledDpEvent(q, gaussian)

    def __call__(self, value: Tensors, noise: Noise) -> Output:
        exact = {name: total / self.normaliser for name, total in clipped_sum(value, self.clip_norm).items()}
        std = self.noise_std
        return Output(
            {name: total + std * noise.normal(tuple(total.shape)).to(total) for name, total in exact.items()},
            self.event,
            clip_norm=float(self.clip_norm),
            sensitivity=self.clip_norm / self.normaliser,
            why="one record adds one vector of norm at most clip_norm, divided by a constant",
            noise_std=std,
            exact=exact,
        )
