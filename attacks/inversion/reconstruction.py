"""What an inversion returns, and the pixel space that it works in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Channelwise = float | Sequence[float]


@dataclass(frozen=True)
class Reconstruction:
    """images (b, c, h, w) in [0, 1]; labels (b,); objective: the data term alone, at these images.

    history: lowest objective at regular steps; diagnostics: plain numbers about the run.
    """

    images: Tensor
    labels: Tensor
    objective: float
    history: tuple[float, ...] = ()
    diagnostics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PixelScale:
    """The map between [0, 1] images and the model's inputs: input = (image - mean) / std."""

    mean: Channelwise = 0.0
    std: Channelwise = 1.0

    def __post_init__(self) -> None:
        if not bool((torch.as_tensor(self.std) > 0).all()):
            raise ValueError(f"std={self.std}: positive numbers are needed")

    def _channel_columns(self, like: Tensor) -> tuple[Tensor, Tensor]:
        def channel_column(numbers: Channelwise) -> Tensor:  # filled where they are needed: nothing travels to a GPU
            each = torch.as_tensor(numbers, dtype=torch.float64).reshape(-1).tolist()
            return torch.stack([like.new_full((1, 1), number) for number in each])

        return channel_column(self.mean), channel_column(self.std)

    def to_input(self, images: Tensor) -> Tensor:
        mean, std = self._channel_columns(images)
        return (images - mean) / std

    def to_image(self, inputs: Tensor) -> Tensor:
        mean, std = self._channel_columns(inputs)
        return (inputs * std + mean).clamp(0, 1)

    def input_box(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs of black and of white."""
        mean, std = self._channel_columns(like)
        return (0 - mean) / std, (1 - mean) / std


def check_gradient_request(gradients: Sequence[Tensor], parameters: Sequence[Tensor], shape: Sequence[int]) -> None:
    """Raise ValueError unless there is one gradient of the same shape per parameter and shape is (b, c, h, w)."""
    if len(shape) != 4 or not all(int(side) >= 1 for side in shape):
        raise ValueError(f"shape={tuple(shape)}: four positive integers (b, c, h, w) are needed")
    got, need = [tuple(g.shape) for g in gradients], [tuple(p.shape) for p in parameters]
    if got != need:
        raise ValueError(f"gradients have shapes {got}: those of model.parameters() are needed, {need}")
    if not all(bool(torch.isfinite(g).all()) for g in gradients):
        raise ValueError("gradients hold NaN or infinity: finite values are needed")
