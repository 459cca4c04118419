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
START_PART = 512  # images that are started at a time


@dataclass(frozen=True)
class MatchingStepLaw:
    """The noised step.

    Attributes:
        mechanism: the clipped batch mean.
        batch: |B|.
        probability: the chance that the guest is in the batch.
    """

    mechanism: AggregateClip
    batch: int
    probability: float

    @property
    def noise_std(self) -> float:
        """sigma C / |B|."""
        return self.mechanism.noise_multiplier * self.mechanism.clip_norm / self.batch

    @property
    def sensitivity_unit(self) -> float:
        """What the papers' proof allows one record: C / |B|."""
        return self.mechanism.clip_norm / self.batch

    def target_means(
        self, embed: Embed, steps: MatchingSteps, base: Tensor, guests: Tensor
    ) -> Tensor:
        """Mean embeddings (1 + g, p) of a batch of copies, and of one with a guest in the place of
        a copy, ((|B| - 1) e + e_guest) / |B|."""
        with torch.no_grad():
            rows = embed(steps.project(torch.cat([base.unsqueeze(0), guests])))
        with_guest = ((self.batch - 1) * rows[:1] + rows[1:]) / self.batch
        return torch.cat([rows[:1], with_guest])

    def clipped_gradients(self, images: Tensor, targets: Tensor, embed: Embed) -> Tensor:
        """Clipped gradients (M, g, ipc, ...) of images (M, ipc, ...) towards each of the targets
        (g, p).

        g = J^T 2 (mean embedding - target), times min(1, C / |g|).
        """
        parts = []
        for part in images.split(RUNS_AT_ONCE):
            leaf = part.detach().requires_grad_(True)
            means = embed(leaf.flatten(0, 1)).unflatten(0, part.shape[:2]).mean(1)
            rows = []
            for number, target in enumerate(targets):
                slope = 2 * (means.detach() - target)
                is_last = number == len(targets) - 1
                rows.append(torch.autograd.grad(means, leaf, slope, retain_graph=not is_last)[0])
            parts.append(torch.stack(rows, 1))
        gradients = torch.cat(parts)
        factors = clip_factors(gradients.flatten(2).norm(dim=2), self.mechanism.clip_norm)
        return gradients * factors.reshape(*factors.shape, *(1,) * (gradients.ndim - 2))


def measure_kappas(
    steps: MatchingSteps,
    law: MatchingStepLaw,
    base: Tensor,
    guests: Tensor,
    images: Tensor,
    noise: torch.Generator,
) -> Tensor:
    """kappa of each guest (g, c, h, w): the largest change that it makes along one run without it,
    in units (g,)."""
    images = images.clone()
    velocity = torch.zeros_like(images)
    worst = torch.zeros(len(guests))
    for t in range(steps.settings.iterations):
        embed = steps.maps(t)
        targets = law.target_means(embed, steps, base, guests)
        gradients = law.clipped_gradients(images, targets, embed)[0]
        changes = (gradients[1:] - gradients[:1]).flatten(1).norm(dim=1)
        worst = torch.maximum(worst, changes / law.sensitivity_unit)
        noise_values = law.noise_std * torch.randn(images.shape, generator=noise)
        released = gradients[:1] + noise_values
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
    """Out-of-distribution guests and gradient-crafted ones, best first, with each one's kappa.

    Args:
        steps: the method's matching steps.
        law: the noised step.
        base: the record (c, h, w) whose copies fill the batch.
        odd: out-of-distribution guests.
        ipc: synthetic images.
        generator: of the images and of the noise.
    """
    shape = base.shape
    start = steps.start(torch.randn(ipc, *shape, generator=generator)).unsqueeze(0)
    embed = steps.maps(steps.settings.iterations - 1)
    mean, pull = vjp(lambda s: embed(s).mean(0), start[0])  # type: ignore[misc]
    rows = vmap(pull)(torch.eye(len(mean)))[0].flatten(1).detach()
    centre = embed(steps.project(base.unsqueeze(0))).detach()

    def crafting_gradient(x: Tensor, y: Tensor) -> Tensor:
        return 2 * (embed(steps.project(x)) - centre) @ rows

    guests = join_canaries(odd, craft_canaries(crafting_gradient, odd, steps=30))
    kappas = measure_kappas(steps, law, base, guests.x, start, generator)
    order = kappas.argsort(descending=True)
    names = tuple(guests.names[number] for number in order)
    return Canaries(guests.x[order], guests.y[order], names), kappas[order]


def run_transcripts(
    steps: MatchingSteps,
    law: MatchingStepLaw,
    base: Tensor,
    guest: Tensor,
    runs: int,
    ipc: int,
    generator: torch.Generator,
) -> RatioTranscripts:
    """Independent runs with the guest and as many without, computed as one batch.

    Batches are drawn without replacement, so in each step the guest is in the batch with
    probability |B| / (copies + 1). That coin is all that the transcript hides, so its likelihood
    ratio, ln[(1 - q) + q exp(l)] a step, is exact.

    Args:
        steps: the method's matching steps.
        law: the noised step.
        base: the record (c, h, w) whose copies fill the batch.
        guest: (c, h, w).
        runs: R.
        ipc: synthetic images.
        generator: of images, coins and noise.
    """
    noise = torch.randn(2 * runs * ipc, *base.shape, generator=generator)
    starts = torch.cat([steps.start(part) for part in noise.split(START_PART)])
    images = starts.unflatten(0, (2 * runs, ipc))
    velocity = torch.zeros_like(images)
    ratios = torch.zeros(2 * runs, dtype=torch.float64)
    is_member = torch.arange(2 * runs) < runs
    for t in range(steps.settings.iterations):
        embed = steps.maps(t)
        targets = law.target_means(embed, steps, base, guest.unsqueeze(0))
        gradients = law.clipped_gradients(images, targets, embed)
        absent = gradients[:, 0]
        present = gradients[:, 1]
        coin = is_member & (torch.rand(2 * runs, generator=generator) < law.probability)
        exact = torch.where(coin.reshape(-1, *(1,) * (images.ndim - 1)), present, absent)
        released = exact + law.noise_std * torch.randn(images.shape, generator=generator)
        ratio = gaussian_log_ratio(
            released.flatten(1), present.flatten(1), absent.flatten(1), law.noise_std
        )
        ratios += subsampled_log_ratio(ratio.unsqueeze(1), law.probability)
        images, velocity = descend_images(images, velocity, released, steps.settings)
    return RatioTranscripts(ratios, images.flatten(1))
