"""T2 and T3 of the printed matching step: runs of noised distribution matching with and without one
record.

A step releases clip_C(g) + N(0, (sigma C / |B|)^2 I), g the gradient of |mean embedding of the
images - mean embedding of the batch|^2 (Zhang et al., FedRD, eq. 7). With the guest in the batch,
which has chance |B| / (copies + 1), the batch mean is ((|B| - 1) e + e_guest) / |B|.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vjp, vmap

from attacks.canaries import Canaries, craft_canaries, join_canaries
from attacks.certificates import gaussian_log_ratio, subsampled_log_ratio
from privdd.auditing.dp_tests.likelihood_ratios import RatioTranscripts
from privdd.distillation.distribution_matching import Embed, descend_images
from privdd.distillation.private_matching import MatchingSteps
from privdd.privacy.clipping import clip_factors
from privdd.privacy.mechanisms import AggregateClip

RUNS_AT_ONCE = 128  # runs whose autograd graph is in memory at a time


@dataclass(frozen=True)
class MatchingStepLaw:
    """The noised step: its mechanism, the batch |B|, and the chance that the guest is in it."""

    mechanism: AggregateClip
    batch: int
    probability: float

    @property
    def noise_std(self) -> float:
        return self.mechanism.noise_multiplier * self.mechanism.clip_norm / self.batch

    @property
    def sensitivity_unit(self) -> float:
        """What the papers' proof allows one record: C / |B|."""
        return self.mechanism.clip_norm / self.batch

    def target_means(
        self, embed: Embed, steps: MatchingSteps, base: Tensor, guests: Tensor
    ) -> Tensor:
        """Mean embeddings (1 + g, p) of a batch of copies, and of one with a guest in the place of
        a copy."""
        with torch.no_grad():
            rows = embed(steps.project(torch.cat([base.unsqueeze(0), guests])))
        return torch.cat([rows[:1], ((self.batch - 1) * rows[:1] + rows[1:]) / self.batch])

    def clipped_gradients(self, images: Tensor, targets: Tensor, embed: Embed) -> Tensor:
        """Clipped gradients (M, g, ipc, ...) of images (M, ipc, ...) towards each of the targets
        (g, p)."""
        parts = []
        for part in images.split(RUNS_AT_ONCE):
            leaf = part.detach().requires_grad_(True)
            means = embed(leaf.flatten(0, 1)).unflatten(0, part.shape[:2]).mean(1)
            slopes = [2 * (means.detach() - target) for target in targets]
            last = len(slopes) - 1
            rows = [
                torch.autograd.grad(means, leaf, v, retain_graph=i < last)[0]
                for i, v in enumerate(slopes)
            ]
            parts.append(torch.stack(rows, 1))
        whole = torch.cat(parts)
        factors = clip_factors(whole.flatten(2).norm(dim=2), self.mechanism.clip_norm)
        return whole * factors.reshape(*factors.shape, *(1,) * (whole.ndim - 2))


def measure_kappas(
    steps: MatchingSteps,
    law: MatchingStepLaw,
    base: Tensor,
    guests: Tensor,
    images: Tensor,
    noise: torch.Generator,
) -> Tensor:
    """Largest change that each guest (g, c, h, w) makes along one run without it, in units:
    (g,)."""
    images, velocity, worst = images.clone(), torch.zeros_like(images), torch.zeros(len(guests))
    for t in range(steps.settings.iterations):
        embed = steps.maps(t)
        both = law.clipped_gradients(images, law.target_means(embed, steps, base, guests), embed)[0]
        worst = torch.maximum(
            worst, (both[1:] - both[:1]).flatten(1).norm(dim=1) / law.sensitivity_unit
        )
        released = both[:1] + law.noise_std * torch.randn(images.shape, generator=noise)
        images, velocity = descend_images(images, velocity, released, steps.settings)
    return worst


def search_guests(
    steps: MatchingSteps,
    law: MatchingStepLaw,
    base: Tensor,
    odd: Canaries,
    ipc: int,
    generator: torch.Generator,
) -> tuple[Canaries, Tensor]:
    """Out-of-distribution guests and gradient-crafted ones, best first, with each one's kappa."""
    shape = base.shape
    start = steps.start(torch.randn(ipc, *shape, generator=generator)).unsqueeze(0)
    embed = steps.maps(steps.settings.iterations - 1)
    mean, pull = vjp(lambda s: embed(s).mean(0), start[0])  # type: ignore[misc]
    rows = vmap(pull)(torch.eye(len(mean)))[0].flatten(1).detach()
    centre = embed(steps.project(base.unsqueeze(0))).detach()

    def crafting_gradient(x: Tensor, y: Tensor) -> Tensor:
        return 2 * (embed(steps.project(x)) - centre) @ rows

    guests = join_canaries(odd, craft_canaries(crafting_gradient, odd, steps=30))
    found = measure_kappas(steps, law, base, guests.x, start, generator)
    order = found.argsort(descending=True)
    return Canaries(guests.x[order], guests.y[order], tuple(guests.names[i] for i in order)), found[
        order
    ]


def run_transcripts(
    steps: MatchingSteps,
    law: MatchingStepLaw,
    base: Tensor,
    guest: Tensor,
    runs: int,
    ipc: int,
    generator: torch.Generator,
) -> RatioTranscripts:
    """``runs`` independent runs with the guest and as many without, computed as one batch. Batches
    are drawn without replacement, so in each step the guest is in the batch with probability |B| /
    (copies + 1). That coin flip is all that the transcript hides, so its likelihood ratio is
    exact."""
    noise = torch.randn(2 * runs * ipc, *base.shape, generator=generator)
    images = torch.cat([steps.start(part) for part in noise.split(512)]).unflatten(
        0, (2 * runs, ipc)
    )
    velocity = torch.zeros_like(images)
    ratios = torch.zeros(2 * runs, dtype=torch.float64)
    member = torch.arange(2 * runs) < runs
    for t in range(steps.settings.iterations):
        embed = steps.maps(t)
        both = law.clipped_gradients(
            images, law.target_means(embed, steps, base, guest.unsqueeze(0)), embed
        )
        without = both[:, 0]
        inside = both[:, 1]
        coin = member & (torch.rand(2 * runs, generator=generator) < law.probability)
        exact = torch.where(coin.reshape(-1, *(1,) * (images.ndim - 1)), inside, without)
        released = exact + law.noise_std * torch.randn(images.shape, generator=generator)
        step = gaussian_log_ratio(
            released.flatten(1), inside.flatten(1), without.flatten(1), law.noise_std
        )
        ratios += subsampled_log_ratio(step.unsqueeze(1), law.probability)
        images, velocity = descend_images(images, velocity, released, steps.settings)
    return RatioTranscripts(ratios, images.flatten(1))
