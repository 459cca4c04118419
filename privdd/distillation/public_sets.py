"""Sets that an attacker distils of public records, to learn what a distiller's images look like."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privdd.core.rng import Keys
from privdd.core.types import ClientData, Problem
from privdd.distillation.gradient_matching import GradientImages
from privdd.distillation.virtual_images import VirtualImages, as_records
from privdd.federated.channel import ClientContext
from privdd.models import ModelSpec


@dataclass(frozen=True, kw_only=True)
class PublicDistiller:
    """A distiller, and the network that it distils in, as somebody without the client's records
    runs them."""

    distiller: VirtualImages | GradientImages
    model: ModelSpec

    def __call__(
        self,
        x: Tensor,
        y: Tensor,
        classes: int,
        images_per_class: int,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor]:
        """Distil a set.

        Args:
            x: (n, c, h, w) public records in [0, 1].
            y: (n,) their classes.
            classes: how many there are.
            images_per_class: of the set.
            generator: all randomness comes from it.

        Returns:
            Images (m, c, h, w) and their classes (m,).
        """
        keys = Keys(int(torch.randint(2**31 - 1, (), generator=generator)))
        problem = Problem(tuple(x.shape[1:]), classes, clients=1)
        data = ClientData(0, as_records(x, y), classes)
        distiller = replace(self.distiller, ipc=images_per_class)
        memory = distiller.distil(self.model, data, ClientContext(0, 0, keys, problem))
        images = memory["images/x"]
        return images.flatten(0, 1), memory["images/label"].repeat_interleave(images.shape[1])
