"""Client-level privacy of one update: clip the whole of it, add noise (McMahan et al. 2018, section 3)."""

from __future__ import annotations

from dataclasses import dataclass

import dp_accounting as dpa

from privdd.core.types import Tensors
from privdd.privacy.clipping import clipped_sum, positive
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.noise import Noise


@dataclass(frozen=True)
class ClientLevel(Mechanism):
    """clip_C(update) + N(0, (z C)**2 I), noised by the client itself: no trusted server is assumed.

    The unit is a client; the neighbour is the client whose update is zero. The norm spans all tensors.
    It must be given a difference to what the server sent: clipping parameters as such would shrink
    the model. Input and output: tensors of any shape.
    """

    noise_multiplier: float
    clip_norm: float

    def __post_init__(self) -> None:
        positive(self.noise_multiplier, "noise_multiplier")
        positive(self.clip_norm, "clip_norm")

    @property
    def event(self) -> dpa.DpEvent:
        return dpa.GaussianDpEvent(float(self.noise_multiplier))

    def __call__(self, value: Tensors, noise: Noise) -> Output:
        whole = {name: tensor.detach().reshape(1, *tensor.shape) for name, tensor in value.items()}
        exact = clipped_sum(whole, self.clip_norm)
        std = self.noise_multiplier * self.clip_norm
        return Output(
            {name: tensor + std * noise.normal(tuple(tensor.shape)).to(tensor) for name, tensor in exact.items()},
            self.event,
            clip_norm=float(self.clip_norm),
            sensitivity=float(self.clip_norm),
            why="the whole update of one client has norm at most clip_norm",
            noise_std=std,
            flags={"unit:client": True},
            exact=exact,
        )
