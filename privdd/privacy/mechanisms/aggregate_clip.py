"""FedDM's and FedRD's equation as printed: the batch mean is clipped, not its records.

Kept for study. Clipping the mean bounds what the whole batch does, not what one record does: the
mean may move from one end of the ball to the other, by 2C, while the noise is sigma C / |B|. The
size of that noise says how many records a small class has, so it states no accounted epsilon.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import dp_accounting as dpa
import torch

from attacks.validation import check_positive
from privdd.core.types import Tensors
from privdd.privacy.clipping import clip_factors
from privdd.privacy.mechanism import Mechanism, Output, SensitivityKind
from privdd.privacy.noise import Noise


@dataclass(frozen=True)
class AggregateClip(Mechanism):
    """clip_C(mean of the contributions) + N(0, (sigma C / |B|)**2 I) (Zhang et al., FedRD, eq. 7).

    Never private: its worst-case sensitivity is 2C, kappa = 2|B| times what the papers' proof
    assumes, and |B|, the class size if a class is smaller than a batch, sets the variance: one
    record less changes the variance, and no Gaussian bound at one variance covers that.
    ``privdd.privacy.claims`` holds what the papers state for it.
    Input: tensors (|B|, ...), |B| >= 1 (a mean expanded to |B| equal rows costs no memory);
    output: tensors (...).
    """

    noise_multiplier: float
    clip_norm: float
    per_record: ClassVar[bool] = False  # it reads the mean only
    for_queries: ClassVar[bool] = True
    sensitivity_kind: ClassVar[SensitivityKind] = "batch_mean"

    def __post_init__(self) -> None:
        check_positive(self, "noise_multiplier", "clip_norm")

    @property
    def event(self) -> dpa.DpEvent:
        """Raises ValueError: no noise gives it a finite epsilon."""
        raise ValueError(
            "privacy.epsilon: AggregateClip has no finite epsilon at any noise "
            "(the mean of a batch is clipped, not "
            "its records); set privacy.noise_multiplier, or choose a mechanism that is accounted"
        )

    def __call__(self, value: Tensors, noise: Noise) -> Output:
        size = max(len(next(iter(value.values()))), 1)
        mean = {name: tensor.sum(0) / size for name, tensor in value.items()}
        norm = torch.linalg.vector_norm(
            torch.stack([torch.linalg.vector_norm(t) for t in mean.values()])
        )
        factor = clip_factors(norm, self.clip_norm)
        exact = {name: torch.nan_to_num(tensor) * factor for name, tensor in mean.items()}
        std = self.noise_multiplier * self.clip_norm / size
        return Output(
            {
                name: total + std * noise.normal(tuple(total.shape)).to(total)
                for name, total in exact.items()
            },
            dpa.NonPrivateDpEvent(),
            clip_norm=float(self.clip_norm),
            sensitivity=2 * self.clip_norm,
            why="unsound as printed: the mean of the batch is clipped; one record may move "
            "it by 2C, not C/|B|",
            noise_std=std,
            flags={"noise_scale_public": False},  # sigma C / |B|, and |B| is at most the class size
            exact=exact,
        )
