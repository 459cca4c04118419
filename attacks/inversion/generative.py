"""Generative model inversion: search the latent space of a GAN trained on what the attacker has.

GMI (Zhang et al. 2020): a WGAN-GP prior, then min over z of -D(G(z)) + 100 CE(T(G(z)), y). FedFed's
    appendix E (Yang et al.
2023) attacks with it in two roles (``RoleInversion``). An independent classifier says whether an
  image shows its class, whatever the attacked model thinks.
"""

from __future__ import annotations

import copy
import hashlib
import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.inversion.drawn_weights import draw_weights, uninitialised_layer
from attacks.inversion.evaluation import (
    class_mean_images,
    has_record_shape,
    measure_class_images,
)
from attacks.inversion.released_rows import (
    FeatureMap,
    true_map,
)
from attacks.inversion.victim import Reconstruction
from attacks.measures import ReconstructionMeasures
from attacks.tensors import average_pool, draw_ahead
from attacks.types import Adversary, Attack, Evidence, Family, Finding, Surface, Truth, View
from attacks.validation import check_below_one, check_counts, check_positive

MOST_JUDGES = 4  # trained networks that a process keeps, each with the generator after it
_JUDGES: dict[tuple[EvaluationClassifier, int, str, str], tuple[EvaluationNetwork, Tensor]] = {}


class InversionRole(StrEnum):
    """Who inverts (FedFed, appendix E): what its prior is trained on, what it conditions on."""

    SERVER = "server"  # no data: the shared features are all it can train a prior on
    CLIENT = "client"  # its own data as public set, the shared features as auxiliary input


class ImageGenerator(nn.Module):
    """z (b, latent), auxiliary image (b, c, h, w) or None -> (b, c, h, w) in [0, 1]."""

    def __init__(
        self, shape: tuple[int, int, int], width: int, latent: int, auxiliary: bool
    ) -> None:
        super().__init__()
        c, h, w = shape
        self.size = (h, w)
        stages = max(1, math.ceil(math.log2(max(h, w) / 4)))
        self.widths = [max(width, (4 * width) >> i) for i in range(stages)] + [c]
        self.context: AuxiliaryEncoder | None = None
        if auxiliary:
            self.context = AuxiliaryEncoder(c, width)
        inputs = latent
        if auxiliary:
            inputs += 2 * width * 16  # numbers of ``AuxiliaryEncoder``
        self.enter = uninitialised_layer(nn.Linear, inputs, self.widths[0] * 16)
        self.ups = nn.ModuleList(
            uninitialised_layer(nn.ConvTranspose2d, a, b, 5, stride=2, padding=2, output_padding=1)
            for a, b in pairwise(self.widths)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(k) for k in self.widths[:-1])

    def forward(self, z: Tensor, auxiliary: Tensor | None = None) -> Tensor:
        if self.context is not None and auxiliary is not None:
            z = torch.cat([z, self.context(auxiliary)], 1)
        x = self.enter(z).unflatten(1, (self.widths[0], 4, 4))
        for norm, up in zip(self.norms, self.ups):
            x = up(F.relu(norm(x)))
        h, w = self.size
        top = (x.shape[2] - h) // 2
        start = (x.shape[3] - w) // 2
        return torch.sigmoid(x[..., top : top + h, start : start + w])


class AuxiliaryEncoder(nn.Module):
    """Dilated convolutions over the auxiliary image, pooled to 4 x 4: (b, c, h, w) -> (b, 32
    width)."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.first = uninitialised_layer(nn.Conv2d, channels, width, 5, padding=2)
        self.second = uninitialised_layer(nn.Conv2d, width, 2 * width, 3, padding=2, dilation=2)

    def forward(self, x: Tensor) -> Tensor:
        return average_pool(F.relu(self.second(F.relu(self.first(x)))), 4).flatten(1)


class Critic(nn.Module):
    """(b, c, h, w) -> (b,); instance norm, since batch norm would break the gradient penalty."""

    def __init__(self, shape: tuple[int, int, int], width: int) -> None:
        super().__init__()
        c, h, w = shape
        stages = max(1, math.ceil(math.log2(max(h, w) / 4)))
        widths = [c, *(min(4 * width, width << i) for i in range(stages))]
        self.downs = nn.ModuleList(
            uninitialised_layer(nn.Conv2d, a, b, 5, stride=2, padding=2)
            for a, b in pairwise(widths)
        )
        low = (math.ceil(h / 2**stages), math.ceil(w / 2**stages))
        self.exit = uninitialised_layer(nn.Linear, widths[-1] * low[0] * low[1], 1)

    def forward(self, x: Tensor) -> Tensor:
        for i, down in enumerate(self.downs):
            x = down(x)
            if i and x.shape[2] * x.shape[3] > 1:
                x = F.instance_norm(x)
            x = F.leaky_relu(x, 0.2)
        return self.exit(x.flatten(1)).squeeze(1)


@dataclass(frozen=True)
class GanPrior:
    """A trained generator and its critic."""

    generator: ImageGenerator
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

    def fit(
        self, images: Tensor, rng: torch.Generator, auxiliary: Tensor | None = None
    ) -> GanPrior:
        """A prior over images (m, c, h, w); auxiliary (m, c, h, w): their conditioning images."""
        shape = (images.shape[1], images.shape[2], images.shape[3])
        maker = ImageGenerator(shape, self.width, self.latent, auxiliary is not None)
        maker = maker.to(images.device)
        critic = Critic(shape, self.width).to(images.device)
        draw_weights(maker, rng)
        draw_weights(critic, rng)
        making, judging = (
            torch.optim.Adam(n.parameters(), lr=self.lr, betas=(0.5, 0.999), fused=True)
            for n in (maker, critic)
        )

        def generate_images(z: Tensor, rows: Tensor) -> Tensor:
            condition = None
            if auxiliary is not None:
                condition = auxiliary[rows]
            fakes: Tensor = maker(z, condition)
            return fakes

        for draws in draw_ahead(
            lambda: self._draw_step(len(images), rng), self.steps, images.device
        ):
            *before, rows, z = draws
            for batch, code, mix in zip(before[::3], before[1::3], before[2::3]):
                with torch.no_grad():
                    fake = generate_images(code, batch)
                judging.zero_grad()
                self._critic_loss(critic, images[batch], fake, mix).backward()
                judging.step()
            making.zero_grad()
            loss = -critic(generate_images(z, rows)).mean()
            loss.backward(inputs=list(maker.parameters()))
            making.step()
        maker.eval().requires_grad_(False)
        critic.eval().requires_grad_(False)
        return GanPrior(maker, critic, self.latent)

    def _draw_step(self, count: int, rng: torch.Generator) -> tuple[Tensor, ...]:
        """(rows, codes, mixtures) of each critic step, then the generator's own rows, codes."""
        size = min(self.batch, count)

        def draw_rows_and_codes() -> tuple[Tensor, Tensor]:
            rows = torch.randint(count, (size,), generator=rng)
            codes = torch.randn((size, self.latent), generator=rng)
            return rows, codes

        draws: list[Tensor] = []
        for _ in range(self.critic_steps):
            draws += draw_rows_and_codes()
            draws.append(torch.rand((size, 1, 1, 1), generator=rng))
        return (*draws, *draw_rows_and_codes())

    def _critic_loss(self, critic: Critic, real: Tensor, fake: Tensor, mix: Tensor) -> Tensor:
        mix = mix.to(real)
        between = (mix * real + (1 - mix) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        steep = (slope.flatten(1).norm(dim=1) - 1).square().mean()
        return critic(fake).mean() - critic(real).mean() + self.penalty * steep


@dataclass(frozen=True)
class GenerativeInversion:
    """Nesterov momentum on z in [-1, 1]; of several starts the one that the target is surest of is
    kept."""

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
        self,
        model: nn.Module,
        prior: GanPrior,
        labels: Tensor,
        rng: torch.Generator,
        auxiliary: Tensor | None = None,
    ) -> Reconstruction:
        """One image (c, h, w) for each of ``labels`` (b,); auxiliary (b, c, h, w) where the prior
        was trained with it.

        model: the target, in evaluation mode, takes [0, 1] images. objective: mean cross-entropy.
        """
        labels_of_starts = labels.repeat(self.starts)
        if auxiliary is None:
            code = None
        else:
            code = auxiliary.repeat(self.starts, 1, 1, 1)
        z = torch.randn((len(labels_of_starts), prior.latent), generator=rng)
        z = z.to(labels.device).clamp(-1, 1).requires_grad_()
        optimiser = torch.optim.SGD([z], lr=self.lr, momentum=self.momentum, nesterov=True)
        for _ in range(self.iterations):
            images = prior.generator(z, code)
            identity_loss = F.cross_entropy(model(images), labels_of_starts, reduction="sum")
            prior_loss = -prior.critic(images).sum()
            loss = prior_loss + self.weight * identity_loss
            optimiser.zero_grad()
            loss.backward(inputs=[z])
            optimiser.step()
            with torch.no_grad():
                z.clamp_(-1, 1)
        with torch.no_grad():
            images = prior.generator(z, code)
            costs = F.cross_entropy(model(images), labels_of_starts, reduction="none")
            cost = costs.view(self.starts, -1)
        rows = torch.arange(len(labels), device=labels.device)
        chosen = images.view(self.starts, len(labels), *images.shape[1:])[cost.argmin(0), rows]
        return Reconstruction(chosen, labels, float(cost.amin(0).mean()))


class EvaluationNetwork(nn.Module):
    """Two strided convolutions and a linear layer: another architecture than the attacked ones."""

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int) -> None:
        super().__init__()
        c, h, w = shape
        self.first = uninitialised_layer(nn.Conv2d, c, width, 5, stride=2, padding=2)
        self.second = uninitialised_layer(nn.Conv2d, width, 2 * width, 5, stride=2, padding=2)
        places = ((h + 3) // 4) * ((w + 3) // 4)  # after two halvings
        self.head = uninitialised_layer(nn.Linear, 2 * width * places, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.first(x - 0.5), 0.1)
        x = F.leaky_relu(self.second(x), 0.1)
        return self.head(x.flatten(1))


@dataclass(frozen=True)
class EvaluationClassifier:
    """Training of the judge on public records: Adam, random shifts of one pixel and light noise."""

    steps: int = 300
    batch: int = 64
    width: int = 16
    lr: float = 2e-3

    def __post_init__(self) -> None:
        check_counts(self, "steps", "batch", "width")
        check_positive(self, "lr")

    def fit(
        self, x: Tensor, y: Tensor, classes: int, generator: torch.Generator
    ) -> EvaluationNetwork:
        """A classifier trained on x (m, c, h, w) in [0, 1], y (m,).

        Several attacks judge by the same public records: one network is trained for all of them
        in a process, and the generator moves on as if it were trained anew.
        """
        key = (self, classes, str(x.device), _digest_tensors(x, y, generator.get_state()))
        if key not in _JUDGES:
            net = self._train(x, y, classes, generator)
            while len(_JUDGES) >= MOST_JUDGES:
                _JUDGES.pop(next(iter(_JUDGES)))
            _JUDGES[key] = (net, generator.get_state())
        net, state = _JUDGES[key]
        generator.set_state(state)
        return net

    def _train(
        self, x: Tensor, y: Tensor, classes: int, generator: torch.Generator
    ) -> EvaluationNetwork:
        shape = (x.shape[1], x.shape[2], x.shape[3])
        net = EvaluationNetwork(shape, classes, self.width).to(x.device)
        draw_weights(net, generator)
        optimiser = torch.optim.Adam(net.parameters(), lr=self.lr, fused=True)
        shifts: list[list[int]] = []

        def draw_batch() -> tuple[Tensor, Tensor]:
            rows = torch.randint(len(x), (min(self.batch, len(x)),), generator=generator)
            shifts.append(torch.randint(-1, 2, (2,), generator=generator).tolist())
            return rows, torch.randn((len(rows), *x.shape[1:]), generator=generator)

        for step, (rows, noise) in enumerate(draw_ahead(draw_batch, self.steps, x.device)):
            images = torch.roll(x[rows], shifts[step], dims=(2, 3))
            images = images + 0.05 * noise.to(images)
            optimiser.zero_grad()
            F.cross_entropy(net(images), y[rows]).backward()
            optimiser.step()
        return net.eval().requires_grad_(False)


def _digest_tensors(*tensors: Tensor) -> str:
    """SHA-256 of types, shapes and values."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def class_accuracy(judge: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of ``images`` that the judge puts in their class."""
    with torch.no_grad():
        return float((judge(images).argmax(1) == labels).double().mean())


@dataclass(frozen=True)
class RoleInversion(Attack):
    """GMI against the shared classifier with the prior that the attacker's role allows.

    server: the prior is trained on the features themselves. client: on the attacker's own images
        (public records stand for them), conditioned on their features where the map is known; the
        search conditions on a shared feature of each class.
    """

    prior: WganGp = field(default_factory=WganGp)
    search: GenerativeInversion = field(
        default_factory=lambda: GenerativeInversion(iterations=200, starts=2)
    )
    referee: EvaluationClassifier = field(default_factory=EvaluationClassifier)
    limit: int = 1000
    name: str = "role_inversion"
    images_only = True
    family = Family.MODEL_INVERSION
    on_gpu = True
    surfaces = frozenset({Surface.FEATURES, Surface.SHARED_FEATURES})
    adversaries = frozenset({Adversary.SERVER, Adversary.PEER})

    def __post_init__(self) -> None:
        check_counts(self, "limit")

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images (k, c, h, w), labels (k,): one for each class that has a feature."""
        value = view.captures[0].value
        knowledge = view.knowledge
        # the server sees uploaded features and holds no data; a peer sees the shared ones and holds
        # its own data
        if view.adversary == Adversary.SERVER:
            role = InversionRole.SERVER
        else:
            role = InversionRole.CLIENT
        z = value["x"].detach()
        if knowledge.model is None or "y" not in value or not has_record_shape(z, knowledge.shape):
            return Evidence(
                notes={"skipped": "needs image-like features with labels, and the classifier"}
            )
        labels = value["y"].unique()
        anchors = torch.stack([z[value["y"] == c][0] for c in labels])
        prior, auxiliary = self._train_prior(
            role, z, anchors, knowledge.public_x, true_map(view), generator
        )
        model = copy.deepcopy(knowledge.model).eval().requires_grad_(False)
        reconstruction = self.search.reconstruct(
            model, prior, labels, generator, auxiliary=auxiliary
        )
        return Evidence(images=reconstruction.images, labels=labels, notes={"role": str(role)})

    def _train_prior(
        self,
        role: InversionRole,
        features: Tensor,
        anchors: Tensor,
        public: Tensor,
        feature_map: FeatureMap | None,
        rng: torch.Generator,
    ) -> tuple[GanPrior, Tensor | None]:
        """The prior, and what the search conditions on: ``anchors``, if the prior was trained on
        features too."""
        if role is InversionRole.SERVER:
            return self.prior.fit(features[: self.limit].clamp(0, 1), rng), None
        images = public[: self.limit]
        if feature_map is None:
            return self.prior.fit(images, rng), None
        with torch.no_grad():
            auxiliary = feature_map(images)
        return self.prior.fit(images, rng, auxiliary=auxiliary), anchors

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """Against the mean image of each class; label_accuracy by an independent classifier."""
        if evidence.images is None or evidence.labels is None:
            return Finding(
                view.surface,
                self.name,
                self.family,
                view.adversary,
                ReconstructionMeasures(note=evidence.notes["skipped"]),
            )
        knowledge = view.knowledge
        rng = torch.Generator().manual_seed(0)
        keep = torch.tensor([bool((truth.y == c).any()) for c in evidence.labels])
        images = evidence.images[keep]
        labels = evidence.labels[keep]
        referee = self.referee.fit(knowledge.public_x, knowledge.public_y, knowledge.classes, rng)
        means = class_mean_images(truth.x, truth.y, knowledge.classes)[labels]
        public_means = class_mean_images(knowledge.public_x, knowledge.public_y, knowledge.classes)
        public = public_means[labels]
        measures = measure_class_images(
            images, means, {"class_mean": public, "black": torch.zeros_like(public)}
        )
        measures = replace(
            measures,
            label_accuracy=class_accuracy(referee, images, labels),
            baselines={
                **(measures.baselines or {}),
                "label_accuracy_class_mean": class_accuracy(referee, public, labels),
            },
            diagnostics={"role": evidence.notes["role"]},
        )
        figures = {"real": means, "reconstructed": images}
        return Finding(view.surface, self.name, self.family, view.adversary, measures, figures)
