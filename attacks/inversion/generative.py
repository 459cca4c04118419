"""Generative model inversion: search the latent space of a GAN trained on what the attacker has.

GMI (Zhang et al. 2020): a WGAN-GP prior, then min over z of -D(G(z)) + 100 CE(T(G(z)), y). FedFed's
appendix E attacks with it in two roles, here data: ``Role``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.gpu import ahead
from attacks.inversion.decoder import blank, draw_weights
from attacks.inversion.result import Reconstruction
from attacks.ranges import check_below_one, check_counts, check_positive
from attacks.repeatable import average_pool


class Role(StrEnum):
    """Who inverts (Xiong et al. 2023, appendix E): what its prior is trained on, what it conditions on."""

    SERVER = "server"  # no data: the shared features are all it can train a prior on
    CLIENT = "client"  # its own data as public set, the shared features as auxiliary input


class Generator(nn.Module):
    """z (b, latent), auxiliary image (b, c, h, w) or None -> (b, c, h, w) in [0, 1]."""

    def __init__(self, shape: tuple[int, int, int], width: int, latent: int, auxiliary: bool) -> None:
        super().__init__()
        c, h, w = shape
        self.size, stages = (h, w), max(1, math.ceil(math.log2(max(h, w) / 4)))
        self.widths = [max(width, (4 * width) >> i) for i in range(stages)] + [c]
        self.context = Context(c, width) if auxiliary else None
        self.enter = blank(nn.Linear, latent + (2 * width * 16 if auxiliary else 0), self.widths[0] * 16)
        self.ups = nn.ModuleList(
            blank(nn.ConvTranspose2d, a, b, 5, stride=2, padding=2, output_padding=1) for a, b in pairwise(self.widths)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(k) for k in self.widths[:-1])

    def forward(self, z: Tensor, auxiliary: Tensor | None = None) -> Tensor:
        if self.context is not None and auxiliary is not None:
            z = torch.cat([z, self.context(auxiliary)], 1)
        x = self.enter(z).unflatten(1, (self.widths[0], 4, 4))
        for norm, up in zip(self.norms, self.ups):
            x = up(F.relu(norm(x)))
        h, w = self.size
        top, left = (x.shape[2] - h) // 2, (x.shape[3] - w) // 2
        return torch.sigmoid(x[..., top : top + h, left : left + w])


class Context(nn.Module):
    """Dilated convolutions over the auxiliary image, pooled to 4 x 4: (b, c, h, w) -> (b, 32 width)."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.first = blank(nn.Conv2d, channels, width, 5, padding=2)
        self.second = blank(nn.Conv2d, width, 2 * width, 3, padding=2, dilation=2)

    def forward(self, x: Tensor) -> Tensor:
        return average_pool(F.relu(self.second(F.relu(self.first(x)))), 4).flatten(1)


class Critic(nn.Module):
    """(b, c, h, w) -> (b,); instance norm, since batch norm would break the gradient penalty."""

    def __init__(self, shape: tuple[int, int, int], width: int) -> None:
        super().__init__()
        c, h, w = shape
        stages = max(1, math.ceil(math.log2(max(h, w) / 4)))
        widths = [c, *(min(4 * width, width << i) for i in range(stages))]
        self.downs = nn.ModuleList(blank(nn.Conv2d, a, b, 5, stride=2, padding=2) for a, b in pairwise(widths))
        low = (math.ceil(h / 2**stages), math.ceil(w / 2**stages))
        self.exit = blank(nn.Linear, widths[-1] * low[0] * low[1], 1)

    def forward(self, x: Tensor) -> Tensor:
        for i, down in enumerate(self.downs):
            x = down(x)
            x = F.leaky_relu(F.instance_norm(x) if i and x.shape[2] * x.shape[3] > 1 else x, 0.2)
        return self.exit(x.flatten(1)).squeeze(1)


@dataclass(frozen=True)
class Prior:
    """A trained generator and its critic."""

    generator: Generator
    critic: Critic
    latent: int


@dataclass(frozen=True)
class WganGp:
    """WGAN with gradient penalty 10, five critic steps, Adam 2e-4 (.5, .999), batch 64.

    width: 64 is the published size (256 channels first), for a GPU; 8 to 16 train on a CPU.
    steps: generator steps.
    """

    steps: int = 200
    width: int = 8
    latent: int = 100
    batch: int = 64
    critic_steps: int = 5
    penalty: float = 10.0
    lr: float = 2e-4

    def __post_init__(self) -> None:
        check_counts(self, "steps", "width", "latent", "batch", "critic_steps")
        check_positive(self, "penalty", "lr")

    def fit(self, images: Tensor, rng: torch.Generator, auxiliary: Tensor | None = None) -> Prior:
        """A prior over images (m, c, h, w); auxiliary (m, c, h, w): their conditioning images."""
        shape = (images.shape[1], images.shape[2], images.shape[3])
        maker = Generator(shape, self.width, self.latent, auxiliary is not None).to(images.device)
        critic = Critic(shape, self.width).to(images.device)
        draw_weights(maker, rng)
        draw_weights(critic, rng)
        making, judging = (torch.optim.Adam(n.parameters(), lr=self.lr, betas=(0.5, 0.999)) for n in (maker, critic))

        def made(z: Tensor, rows: Tensor) -> Tensor:
            return maker(z, None if auxiliary is None else auxiliary[rows])  # type: ignore[no-any-return]

        for drawn in ahead(lambda: self._drawn(len(images), rng), self.steps, images.device):
            *before, rows, z = drawn
            for own, code, mix in zip(before[::3], before[1::3], before[2::3]):
                fake = made(code, own).detach()
                judging.zero_grad()
                self._critic_loss(critic, images[own], fake, mix).backward()
                judging.step()
            making.zero_grad()
            (-critic(made(z, rows)).mean()).backward()
            making.step()
        return Prior(maker.eval().requires_grad_(False), critic.eval().requires_grad_(False), self.latent)

    def _drawn(self, count: int, rng: torch.Generator) -> tuple[Tensor, ...]:
        """Random numbers of one generator step: (rows, codes, mixtures) of each critic step, then its own rows, codes."""
        size = min(self.batch, count)

        def pair() -> tuple[Tensor, Tensor]:
            return torch.randint(count, (size,), generator=rng), torch.randn((size, self.latent), generator=rng)

        critics = [(*pair(), torch.rand((size, 1, 1, 1), generator=rng)) for _ in range(self.critic_steps)]
        return (*(part for step in critics for part in step), *pair())

    def _critic_loss(self, critic: Critic, real: Tensor, fake: Tensor, mix: Tensor) -> Tensor:
        mix = mix.to(real)
        between = (mix * real + (1 - mix) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        steep = (slope.flatten(1).norm(dim=1) - 1).square().mean()
        return critic(fake).mean() - critic(real).mean() + self.penalty * steep


@dataclass(frozen=True)
class GenerativeInversion:
    """Nesterov momentum on z in [-1, 1]; of several starts the one that the target is surest of is kept."""

    iterations: int = 1500
    starts: int = 5
    lr: float = 0.02
    momentum: float = 0.9
    weight: float = 100.0

    def __post_init__(self) -> None:
        check_counts(self, "iterations", "starts")
        check_positive(self, "lr", "weight")
        check_below_one(self, "momentum")

    def reconstruct(
        self, model: nn.Module, prior: Prior, labels: Tensor, rng: torch.Generator, auxiliary: Tensor | None = None
    ) -> Reconstruction:
        """One image (c, h, w) for each of ``labels`` (b,); auxiliary (b, c, h, w) where the prior was trained with it.

        model: the target, in evaluation mode, takes [0, 1] images. objective: mean cross-entropy.
        """
        many = labels.repeat(self.starts)
        given = None if auxiliary is None else auxiliary.repeat(self.starts, 1, 1, 1)
        z = torch.randn((len(many), prior.latent), generator=rng).to(labels.device).clamp(-1, 1).requires_grad_()
        optimiser = torch.optim.SGD([z], lr=self.lr, momentum=self.momentum, nesterov=True)
        for _ in range(self.iterations):
            images = prior.generator(z, given)
            loss = self.weight * F.cross_entropy(model(images), many, reduction="sum") - prior.critic(images).sum()
            optimiser.zero_grad()
            loss.backward(inputs=[z])
            optimiser.step()
            with torch.no_grad():
                z.clamp_(-1, 1)
        with torch.no_grad():
            images = prior.generator(z, given)
            cost = F.cross_entropy(model(images), many, reduction="none").view(self.starts, -1)
        pick = cost.argmin(0)
        chosen = images.view(self.starts, len(labels), *images.shape[1:])[
            pick, torch.arange(len(labels), device=labels.device)
        ]
        return Reconstruction(chosen, labels, float(cost.amin(0).mean()))
