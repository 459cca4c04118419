"""Noise on each record's own feature map, as FedFed shares them (Yang et al. 2023, section 3.3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import dp_accounting as dpa
import torch
from torch import Tensor

from attacks.validation import check_counts
from privdd.core.types import Tensors
from privdd.privacy.clipping import clip_factors, record_norms, require_positive
from privdd.privacy.lattice import ON_LATTICE, Lattice
from privdd.privacy.mechanism import Mechanism, Output, SensitivityKind
from privdd.privacy.noise import Noise

Pair = tuple[Tensors, Tensors]


@dataclass(frozen=True)
class FeatureNoise(Mechanism, hooks=("norm_for_size", "copy_stds", "event_at")):
    """Clip each record to a norm, add noise to it, share it (``copies`` times, each with its own
    noise).

    The norm is clip_norm, or rho * sqrt(d) for d numbers a record: the most that the paper's bound
    rho ||x|| can be for pixels in [0, 1]. Exactly one of noise_std (a number, or one a copy),
    variance and noise_multiplier (of the norm) sets the scale; for Laplace it is the scale b and
    the norm is L1. Neither clip_norm nor rho, and broadcast_batch (one noise tensor for so many
    neighbouring records), are what the authors' code does: neither has a guarantee, and the flags
    say so. Each record is released by itself, so the count is public: the relation is zero_out, or
    replace. Where it has a guarantee, each clipped record is rounded towards zero on the public
    lattice under the smallest noise scale, so its norm (L1 too)
    does not grow, and noised there: a function of the ideal mechanism (proof:
        ``privdd.privacy.lattice``).
    Input: tensors (n, ...); output: tensors (copies * n, ...), copy after copy.
    """

    clip_norm: float | None = None
    noise_std: float | Sequence[float] | None = None
    variance: float | None = None
    noise_multiplier: float | None = None
    rho: float | None = None
    copies: int = 1
    broadcast_batch: int | None = None
    distribution: Literal["gaussian", "laplace"] = "gaussian"
    sensitivity_kind: ClassVar[SensitivityKind] = "rows"

    def __post_init__(self) -> None:
        set_scales = [
            n for n in ("noise_std", "variance", "noise_multiplier") if getattr(self, n) is not None
        ]
        if len(set_scales) != 1:
            raise ValueError(
                "noise: exactly one of noise_std, variance, noise_multiplier is needed, "
                f"got {set_scales}"
            )
        for name in ("clip_norm", "rho", "variance", "noise_multiplier"):
            if getattr(self, name) is not None:
                require_positive(getattr(self, name), name)
        if self.clip_norm is not None and self.rho is not None:
            raise ValueError(
                f"clip_norm={self.clip_norm!r}, rho={self.rho!r}: at most one of the two "
                "sets the norm"
            )
        if self.noise_multiplier is not None and self.clip_norm is None and self.rho is None:
            raise ValueError(
                "noise_multiplier is noise over the norm: set clip_norm or rho, or use noise_std"
            )
        if self.copies not in (1, 2):
            raise ValueError(f"copies={self.copies!r}: allowed are 1, 2")
        if self.broadcast_batch is not None:
            check_counts(self, "broadcast_batch")
        if self.distribution not in ("gaussian", "laplace"):
            raise ValueError(f"distribution={self.distribution!r}: allowed are gaussian, laplace")
        if len(self.copy_stds(1.0)) != self.copies:
            raise ValueError(
                f"noise_std={self.noise_std!r}: one number, or one for each of {self.copies} copies"
            )
        _ = self._lattice_for(self.norm_for_size(1))  # raises for noise that is too small

    def norm_for_size(self, numbers: int) -> float | None:
        """The clip norm of a record of so many numbers; None = not clipped."""
        if self.rho is not None:
            return self.rho * math.sqrt(numbers)
        return self.clip_norm

    def copy_stds(self, norm: float | None) -> tuple[float, ...]:
        """The absolute noise scale of each copy."""
        if self.noise_multiplier is not None:
            return (self.noise_multiplier * (norm or math.nan),) * self.copies
        if self.variance is not None:
            return (math.sqrt(self.variance),) * self.copies
        is_single = isinstance(self.noise_std, int | float)
        many = (self.noise_std,) * self.copies if is_single else tuple(self.noise_std or ())  # type: ignore[arg-type]
        return tuple(require_positive(std, "noise_std") for std in many)

    def public_constants(self, numbers: int) -> Mapping[str, Any]:
        stds = self.copy_stds(self.norm_for_size(numbers))
        return {
            "std": stds[0],
            "noise_stds": stds,
            "copies": self.copies,
            "broadcast_batch": self.broadcast_batch,
        }

    @property
    def event(self) -> dpa.DpEvent:
        """All copies of one record together. Raises ValueError where the size of a record decides
        it."""
        if self.rho is not None and self.noise_multiplier is None:
            raise ValueError(
                f"rho={self.rho!r}: noise over norm depends on the size of a record; set "
                "noise_multiplier"
            )
        return self.event_at(self.clip_norm or self.rho)

    def event_at(self, norm: float | None) -> dpa.DpEvent:
        """The event of records clipped to ``norm``."""
        if norm is None or self.broadcast_batch is not None:
            return dpa.NonPrivateDpEvent()
        if self.distribution == "gaussian":
            kind = dpa.GaussianDpEvent
        else:
            kind = dpa.LaplaceDpEvent
        ratios = [std / norm for std in self.copy_stds(norm)]
        parts = [
            kind(self.noise_multiplier if self.noise_multiplier is not None else ratio)
            for ratio in ratios
        ]
        if len(parts) == 1:
            return parts[0]
        return dpa.ComposedDpEvent(parts)

    def __call__(self, value: Tensors, noise: Noise) -> Output:
        norm = self.norm_for_size(sum(math.prod(tensor.shape[1:]) for tensor in value.values()))
        lattice = self._lattice_for(norm)
        if lattice and norm:
            exact, released = self._release_on_lattice(lattice, value, norm, noise)
        else:
            exact, released = self._release_unrounded(value, norm, noise)
        return Output(
            released,
            self.event_at(norm),
            clip_norm=norm,
            sensitivity=norm,
            why=f"each record alone, clipped to {norm}{f', {ON_LATTICE}' if lattice else ''}, "
            f"{self.copies} time(s)",
            noise_std=self.copy_stds(norm)[0],
            lattice=lattice.step if lattice else None,
            flags={
                "clipped": norm is not None,
                "noise_per_record": self.broadcast_batch is None,
                "relation:zero_out": True,
            },
            exact=exact,
        )

    def _lattice_for(self, norm: float | None) -> Lattice | None:
        """One for all copies, under the smallest noise; None where there is no guarantee to
        keep."""
        if norm is None or self.broadcast_batch:
            return None
        return Lattice.under(min(self.copy_stds(norm)), norm)

    def _clip_factors(self, value: Tensors, norm: float) -> Tensor:
        return clip_factors(record_norms(value, 2 if self.distribution == "gaussian" else 1), norm)

    def _noise_sampler(self, noise: Noise) -> Callable[[tuple[int, ...]], Tensor]:
        if self.distribution == "gaussian":
            return noise.normal
        return noise.laplace

    def _release_on_lattice(
        self, lattice: Lattice, value: Tensors, norm: float, noise: Noise
    ) -> Pair:
        """(the clipped records, what is released), both on the lattice."""
        factors = self._clip_factors(value, norm)
        exact = {}
        released = {}
        for name, tensor in value.items():
            lattice_points = lattice.round_contributions(tensor, factors)
            copies = [
                lattice.add_noise(lattice_points, std, self._noise_sampler(noise))
                for std in self.copy_stds(norm)
            ]
            if tensor.is_floating_point():
                kind = tensor.dtype
            else:
                kind = torch.float32
            exact[name] = lattice.to_numbers(lattice_points, kind)
            released[name] = lattice.to_numbers(torch.cat(copies), kind)
        return exact, released

    def _release_unrounded(self, value: Tensors, norm: float | None, noise: Noise) -> Pair:
        """The release in floating point, without a guarantee."""
        if norm is not None:
            factors = self._clip_factors(value, norm)
            value = {
                n: torch.nan_to_num(t) * factors.to(t).reshape(-1, *(1,) * (t.ndim - 1))
                for n, t in value.items()
            }
        stds = self.copy_stds(norm)
        released = {
            n: torch.cat([self._add_batch_noise(t, std, noise) for std in stds])
            for n, t in value.items()
        }
        return value, released

    def _add_batch_noise(self, tensor: Tensor, std: float, noise: Noise) -> Tensor:
        batch = self.broadcast_batch or 1
        image = self._noise_sampler(noise)((-(-len(tensor) // batch), *tensor.shape[1:])).to(tensor)
        return tensor + std * image.repeat_interleave(batch, dim=0)[: len(tensor)]
