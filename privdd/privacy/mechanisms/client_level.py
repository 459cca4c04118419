"""Client-level privacy of one update: clip the whole of it, add noise (McMahan et al. 2018, section
3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import dp_accounting as dpa
import torch

from attacks.validation import check_positive
from privdd.core.types import Tensors
from privdd.privacy.clipping import LazyTensors, RecordLayout, clipped_sum
from privdd.privacy.lattice import ON_LATTICE, Lattice
from privdd.privacy.mechanism import Mechanism, Output, SensitivityKind
from privdd.privacy.noise import Noise


@dataclass(frozen=True)
class ClientLevel(Mechanism, hooks=("noise_std",)):
    """clip_C(update) + N(0, (z C)**2 I), noised by the client itself: no trusted server is assumed.

    The unit is a client; the neighbour is the client whose update is zero. The norm spans all
    tensors. It must be given a difference to what the server sent: clipping parameters as such
    would shrink the model. The clipped update is rounded towards zero on a public lattice, so its
    norm does
    not grow, and noised there: a function of the Gaussian mechanism's (proof:
        ``privdd.privacy.lattice``).
    Input and output: tensors of any shape.
    """

    noise_multiplier: float
    clip_norm: float
    sensitivity_kind: ClassVar[SensitivityKind] = "update"

    def __post_init__(self) -> None:
        check_positive(self, "noise_multiplier", "clip_norm")
        _ = self._noise_lattice  # raises for noise that is too small

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on the released value."""
        return self.noise_multiplier * self.clip_norm

    @property
    def _noise_lattice(self) -> Lattice:
        return Lattice.under(self.noise_std, self.clip_norm)

    @property
    def event(self) -> dpa.DpEvent:
        return dpa.GaussianDpEvent(float(self.noise_multiplier))

    def __call__(self, value: Tensors, noise: Noise) -> Output:
        lattice = self._noise_lattice
        std = self.noise_std
        alone = {name: tensor.detach().unsqueeze(0) for name, tensor in value.items()}
        total = clipped_sum(alone, self.clip_norm, lattice)
        released = lattice.add_noise(total, std, noise.normal)
        layout = RecordLayout.from_contributions(alone)
        return Output(
            layout.to_tensors(lattice.to_numbers(released, torch.float64)),
            self.event,
            clip_norm=float(self.clip_norm),
            sensitivity=float(self.clip_norm),
            why=f"the whole update of one client has norm at most clip_norm, and is {ON_LATTICE}",
            noise_std=std,
            lattice=lattice.step,
            flags={"unit:client": True},
            exact=LazyTensors(total, lattice, layout),
        )
