"""Noise on each record's own feature map, as FedFed shares them (Yang et al. 2023, section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import dp_accounting as dpa
import torch
from torch import Tensor

from privdd.core import Tensors
from privdd.privacy.base import Output
from privdd.privacy.clipping import clip_factors, positive, record_norms
from privdd.privacy.noise import Noise


@dataclass(frozen=True)
class FeatureNoise:
    """Clip each record to a norm, add noise to it, share it (``copies`` times, each with its own noise).

    Exactly one of noise_std (a number, or one a copy), variance and noise_multiplier (of the clip
    norm) sets the scale; for Laplace it is the scale b and the norm is L1. clip_norm=None and
    broadcast_batch (one noise tensor for so many neighbouring records) are what the authors' code
    does: neither has a guarantee, and the flags say so. Each record is released by itself, so the
    count is public: the relation is zero_out, or replace.
    Input: tensors (n, ...); output: tensors (copies * n, ...), copy after copy.
    """

    clip_norm: float | None = None
    noise_std: float | Sequence[float] | None = None
    variance: float | None = None
    noise_multiplier: float | None = None
    copies: int = 1
    broadcast_batch: int | None = None
    distribution: Literal["gaussian", "laplace"] = "gaussian"

    def __post_init__(self) -> None:
        given = [n for n in ("noise_std", "variance", "noise_multiplier") if getattr(self, n) is not None]
        if len(given) != 1:
            raise ValueError(f"noise: exactly one of noise_std, variance, noise_multiplier is needed, got {given}")
        if self.clip_norm is not None:
            positive(self.clip_norm, "clip_norm")
        elif self.noise_multiplier is not None:
            raise ValueError("noise_multiplier is noise over clip_norm: set clip_norm, or give noise_std or variance")
        if self.copies not in (1, 2):
            raise ValueError(f"copies={self.copies!r}: allowed are 1, 2")
        if self.broadcast_batch is not None and not self.broadcast_batch >= 1:
            raise ValueError(f"broadcast_batch={self.broadcast_batch!r}: an integer >= 1 or null is needed")
        if self.distribution not in ("gaussian", "laplace"):
            raise ValueError(f"distribution={self.distribution!r}: allowed are gaussian, laplace")
        if len(self.stds) != self.copies:
            raise ValueError(f"noise_std={self.noise_std!r}: one number, or one for each of {self.copies} copies")

    @property
    def stds(self) -> tuple[float, ...]:
        """The absolute noise scale of each copy."""
        if self.noise_std is not None and not isinstance(self.noise_std, int | float):
            return tuple(positive(float(std), "noise_std") for std in self.noise_std)
        if self.noise_std is not None:
            return (positive(self.noise_std, "noise_std"),) * self.copies
        if self.variance is not None:
            return (positive(self.variance, "variance") ** 0.5,) * self.copies
        return (positive(self.noise_multiplier, "noise_multiplier") * (self.clip_norm or 0.0),) * self.copies

    @property
    def event(self) -> dpa.DpEvent:
        """All copies of one record together."""
        if self.clip_norm is None or self.broadcast_batch is not None:
            return dpa.NonPrivateDpEvent()
        kind = dpa.GaussianDpEvent if self.distribution == "gaussian" else dpa.LaplaceDpEvent
        parts = [kind(std / self.clip_norm) for std in self.stds]
        return parts[0] if len(parts) == 1 else dpa.ComposedDpEvent(parts)

    def __call__(self, value: Tensors, noise: Noise) -> Output:
        exact = value if self.clip_norm is None else self._clipped(value, self.clip_norm)
        released = {name: torch.cat([self._noised(t, std, noise) for std in self.stds]) for name, t in exact.items()}
        return Output(
            released,
            self.event,
            clip_norm=self.clip_norm,
            sensitivity=self.clip_norm,
            why=f"each record alone, clipped to {self.clip_norm} and shared {self.copies} time(s)",
            noise_std=self.stds[0],
            flags={
                "clipped": self.clip_norm is not None,
                "noise_per_record": self.broadcast_batch is None,
                "relation:zero_out": True,
            },
            exact=exact,
        )

    def _clipped(self, value: Tensors, clip_norm: float) -> dict[str, Tensor]:
        factors = clip_factors(record_norms(value, 2 if self.distribution == "gaussian" else 1), clip_norm)
        bad = factors == 0
        clipped = {}
        for name, tensor in value.items():
            shape = (-1,) + (1,) * (tensor.ndim - 1)
            scaled = tensor * factors.reshape(shape)
            clipped[name] = scaled.masked_fill(bad.reshape(shape), 0.0) if bad.any() else scaled
        return clipped

    def _noised(self, tensor: Tensor, std: float, noise: Noise) -> Tensor:
        draw = noise.normal if self.distribution == "gaussian" else noise.laplace
        if self.broadcast_batch is None:
            return tensor + std * draw(tuple(tensor.shape)).to(tensor)
        batches = -(-len(tensor) // self.broadcast_batch)
        image = draw((batches, *tensor.shape[1:])).to(tensor)
        return tensor + std * image.repeat_interleave(self.broadcast_batch, dim=0)[: len(tensor)]
