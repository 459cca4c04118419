"""From shared features back to images, for four attackers with decreasing knowledge.

Each rung of the knowledge ladder names what the attacker holds, and ``FeatureInverter`` uses only that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.arrays import arrays
from attacks.inversion.decoder import DecoderTraining
from attacks.inversion.objectives import total_variation
from attacks.inversion.result import Reconstruction
from attacks.ranges import check_counts, check_from_zero, check_positive

FeatureMap = Callable[[Tensor], Tensor]


class Rung(StrEnum):
    """What the attacker knows about the map from images to features, from most to least."""

    KNOWS_MAP = "knows_map"  # holds it: white-box optimisation from a decoder's guess
    CAN_QUERY = "can_query"  # black box: a decoder trained on queried public images
    SHADOW_MAP = "shadow_map"  # knows architecture and public data: a decoder of another map
    NOTHING = "nothing"  # shows the release as an image


@dataclass(frozen=True)
class WhiteBox:
    """min over x in [0, 1] of sum_k |f_k(x) - z_k|^2 / numel + tv TV(x) (He, Zhang, Lee 2019, eq. 2).

    Several maps f_k are several rounds of the same records. Where the features carry noise the variation gives way to
    what the start, a decoder's guess, is worth: see ``invert``.
    """

    iterations: int = 300
    lr: float = 0.02
    tv: float = 1e-3

    def __post_init__(self) -> None:
        check_counts(self, "iterations")
        check_positive(self, "lr")
        check_from_zero(self, "tv")

    def residual(self, maps: Sequence[FeatureMap], released: Sequence[Tensor], images: Tensor) -> Tensor:
        """(b,) squared feature error relative to the released features' variance, summed over the maps."""
        gaps = [(f(images) - z).square().flatten(1).mean(1) / z.var().clamp_min(1e-12) for f, z in zip(maps, released)]
        return torch.stack(gaps).sum(0)

    def invert(
        self,
        maps: Sequence[FeatureMap],
        released: Sequence[Tensor],
        start: Tensor,
        noise: float = 0.0,
        doubt: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Best images (b, c, h, w) met from ``start`` and their residuals (b,).

        noise: standard deviation of each released number's Gaussian noise. Above 0 the images are the most probable
        ones, min sum_k |f_k(x) - z_k|^2 / (2 noise^2) + |x - start|^2 / (2 doubt^2), with doubt the root mean squared
        error of the start.
        """

        def cost(images: Tensor, residual: Tensor) -> Tensor:
            if not noise:
                return residual + self.tv * total_variation(images)
            misfit = torch.stack([(f(images) - z).square().flatten(1).sum(1) for f, z in zip(maps, released)]).sum(0)
            return misfit / (2 * noise**2) + (images - start).square().flatten(1).sum(1) / (2 * max(doubt, 1e-3) ** 2)

        images = start.detach().clone().clamp(0, 1).requires_grad_()
        optimiser = torch.optim.Adam([images], lr=self.lr)
        best, lowest = images.detach().clone(), torch.full((len(images),), torch.inf, device=images.device)
        for step in range(self.iterations + 1):
            residual = self.residual(maps, released, images)
            costs = cost(images, residual)
            judged = (costs if noise else residual).detach()
            better = judged < lowest
            best = torch.where(better.view(-1, 1, 1, 1), images.detach(), best)
            lowest = torch.where(better, judged, lowest)
            if step == self.iterations:
                break
            optimiser.zero_grad()
            costs.sum().backward(inputs=[images])
            optimiser.step()
            with torch.no_grad():
                images.clamp_(0, 1)
        with torch.no_grad():
            return best, self.residual(maps, released, best)


@dataclass(frozen=True)
class FeatureInverter:
    """Images from features at one rung of the ladder."""

    rung: Rung = Rung.KNOWS_MAP
    decoder: DecoderTraining = field(default_factory=DecoderTraining)
    whitebox: WhiteBox = field(default_factory=WhiteBox)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rung", Rung(self.rung))

    def invert(
        self,
        released: Sequence[Tensor],
        public: Tensor,
        generator: torch.Generator,
        *,
        maps: Sequence[FeatureMap] = (),
        shadows: Sequence[FeatureMap] = (),
        labels: tuple[Tensor, Tensor] | None = None,
    ) -> Reconstruction:
        """Images of the records behind ``released``: one tensor (b, ...) a round, rows in step.

        public: (m, c, h, w) public images; maps: the rounds' true maps (rungs knows_map and
        can_query); shadows: as many maps of the same architecture (rung shadow_map); labels: of the released rows (b,)
        and of the public images (m,), where they are known. The noise is ``decoder.noise_std``. Raises
        ValueError where the rung's maps are missing.
        """
        needed = shadows if self.rung is Rung.SHADOW_MAP else maps
        if not released or (self.rung is not Rung.NOTHING and len(needed) != len(released)):
            raise ValueError(f"rung={self.rung}: {len(released)} releases need as many maps, got {len(needed)}")
        doubt = 0.0
        if self.rung is Rung.NOTHING:
            images = look(torch.stack(list(released)).mean(0), public)
        else:
            images, doubt = self._decode(released, needed, public, generator, labels)
        residual = images.new_zeros(len(images))
        if self.rung is Rung.KNOWS_MAP:
            images, residual = self.whitebox.invert(maps, released, images, self.decoder.noise_std, doubt)
        return Reconstruction(images, torch.full((len(images),), -1, device=images.device), float(residual.mean()))

    def _decode(
        self,
        released: Sequence[Tensor],
        maps: Sequence[FeatureMap],
        public: Tensor,
        generator: torch.Generator,
        labels: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, float]:
        """Mean of the rounds' decoders, each of which sees the same records through another map, and its error.

        error: root mean square on a fifth of the public images, which the decoders are not fitted to where it is
        needed.
        """
        split = (
            len(public) - len(public) // 5 if self.decoder.noise_std and self.rung is Rung.KNOWS_MAP else len(public)
        )
        own, known = labels if labels is not None else (None, None)
        classes = 0 if labels is None else int(torch.cat(labels).max()) + 1
        shown, guesses, checks = public[:split], [], []
        for f, z in zip(maps, released):
            with torch.no_grad():
                pairs = torch.cat([f(part) for part in public.split(256)])
            told = None if known is None else known[:split]
            decoder = self.decoder.fit(pairs[:split], shown, generator, told, classes)
            guesses.append(decoder(z, own))
            if split < len(public):
                noise = self.decoder.noise_std * torch.randn(pairs[split:].shape, generator=generator).to(pairs)
                checks.append(decoder(pairs[split:] + noise, None if known is None else known[split:]))
        error = float((torch.stack(checks).mean(0) - public[split:]).square().mean().sqrt()) if checks else 0.0
        return torch.stack(guesses).mean(0), error


@arrays
def look(released: Tensor, public: Tensor) -> Tensor:
    """The release shown as images: channels averaged, resized, each stretched to [0, 1].

    A release without rows and columns shows nothing; the public mean image stands for it.
    """
    shape = public.shape[1:]
    if released.ndim != 4:
        return public.mean(0).expand(len(released), *shape).clone()
    z = released if released.shape[1] == shape[0] else released.mean(1, keepdim=True)
    z = F.interpolate(z, size=tuple(shape[1:]), mode="bilinear", align_corners=False)
    low, high = (z.flatten(1).amin(1), z.flatten(1).amax(1))
    z = (z - low.view(-1, 1, 1, 1)) / (high - low).clamp_min(1e-6).view(-1, 1, 1, 1)
    return z.expand(-1, shape[0], -1, -1).clone()


@arrays
def remove_shared_noise(released: Tensor, batch: int, expected: Tensor) -> Tensor:
    """Subtract noise that a whole batch shares; what stays is the batch mean's own deviation.

    Where ``batch`` consecutive rows carry one and the same noise tensor, mean(batch) = noise +
    mean(features), so released - mean(batch) + expected is the feature up to a sampling error of
    deviation / sqrt(batch). released: (n, ...); expected: (...) mean feature of public images.
    """
    if not batch >= 2:
        raise ValueError(f"batch={batch}: at least 2 rows must share a noise tensor")
    return torch.cat([part - part.mean(0) + expected for part in released.split(batch)])


@arrays
def average_copies(released: Tensor, copies: int, interleaved: bool = False) -> Tensor:
    """(copies * n, ...) -> (n, ...): several noised copies of a record averaged.

    Copies follow each other as whole sets, or (interleaved) record by record.
    """
    if not copies >= 1 or len(released) % copies:
        raise ValueError(f"copies={copies}: a positive divisor of {len(released)} rows is needed")
    n = len(released) // copies
    if interleaved:
        return released.reshape(n, copies, *released.shape[1:]).mean(1)
    return released.reshape(copies, n, *released.shape[1:]).mean(0)
