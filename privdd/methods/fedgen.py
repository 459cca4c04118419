"""FedGen (Zhu, Hong and Zhou, ICML 2021): the server trains a generator of features on the clients'
heads, and clients train on what it generates beside their records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.types import Surface
from attacks.validation import check_counts, check_non_negative, check_positive
from privdd.core.loop_timing import timed_steps
from privdd.core.rng import Keys
from privdd.core.types import Problem, Received, State, Tensors, pack, unpack
from privdd.federated.aggregation import sort_by_client
from privdd.methods.fedavg import FedAvg
from privdd.models import build
from privdd.training.sgd import ClientRound, Loss, Trained

PRIOR = "prior"  # the share of each class among all clients' records, beside the generator
LABEL_COUNTS = "label_counts"


def generate_features(generator: Tensors, noise: Tensor, labels: Tensor) -> Tensor:
    """G(z, y): a hidden layer with ReLU, then a linear one.

    Args:
        generator: "first.weight" (h, q + C), "first.bias" (h,), "second.weight" (d, h),
            "second.bias" (d,).
        noise: z, (b, q).
        labels: y, (b,) classes.

    Returns:
        (b, d) in the place of a network's penultimate features.
    """
    classes = generator["first.weight"].shape[1] - noise.shape[1]
    one_hot = F.one_hot(labels, classes).to(noise)
    inputs = torch.cat([noise, one_hot], 1)
    hidden = F.linear(inputs, generator["first.weight"], generator["first.bias"]).relu()
    return F.linear(hidden, generator["second.weight"], generator["second.bias"])


def diversity_loss(features: Tensor, noise: Tensor) -> Tensor:
    """exp(-mean_ij |G_i - G_j|_1 / d * |z_i - z_j|): small where other noise gives other features
    (b, d); noise (b, q)."""
    apart = torch.cdist(features, features, p=1) / features.shape[1]
    return (-(apart * torch.cdist(noise, noise)).mean()).exp()


def generator_loss(
    generator: Tensors, heads: Sequence[Tensors], noise: Tensor, labels: Tensor
) -> Tensor:
    """Cross-entropy of the clients' mean logits of generated features (the paper's eq. 4).

    Args:
        generator: as of ``generate_features``.
        heads: "weight" (C, d) and "bias" (C,) of each client.
        noise: (b, q).
        labels: (b,) drawn by the share of each class.
    """
    # J(w) = E_{y ~ p(y), z ~ N(0, 1)} l(sigma(1/K sum_k g(G_w(z, y); theta_k)), y)
    features = generate_features(generator, noise, labels)
    logits = torch.stack([F.linear(features, head["weight"], head["bias"]) for head in heads])
    return F.cross_entropy(logits.mean(0), labels)


@dataclass(frozen=True, kw_only=True)
class FedGen(FedAvg):
    """Adds alpha CE(head(G(z, y)), y) to every step, from the second round on.

    Attributes:
        alpha: weight of that term; 0 is FedAvg, whose messages are label counts besides.
        latent: numbers of noise z.
        hidden: width of the generator's hidden layer.
        generator_steps: of Adam on the server each round.
        generator_lr: of these steps.
        generator_batch: features that are generated in a step.
        diversity: weight of ``diversity_loss``.

    With ``weighting`` "records" each client sends how many records of each class it has, and
    classes are drawn as often as all clients have them; with "uniform" neither counts nor shares
    leave, and classes are drawn alike.
    """

    alpha: float = 1.0
    latent: int = 32
    hidden: int = 128
    generator_steps: int = 100
    generator_lr: float = 3e-4
    generator_batch: int = 128
    diversity: float = 1.0

    uploads: ClassVar[Mapping[str, Surface]] = {
        **FedAvg.uploads,
        LABEL_COUNTS: Surface.STATISTICS,
    }
    queries: ClassVar[Mapping[str, Surface]] = {}
    broadcasts: ClassVar[Mapping[str, Surface]] = {
        **FedAvg.broadcasts,
        "generator": Surface.GENERATOR,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_non_negative(self, "alpha", "diversity")
        check_counts(self, "latent", "hidden", "generator_batch")
        check_counts(self, "generator_steps", least=0)
        check_positive(self, "generator_lr")

    def init(self, problem: Problem, keys: Keys) -> State:
        head = cast(nn.Linear, build(self.model, problem.shape, problem.classes).head)
        sizes = (self.latent + problem.classes, self.hidden, head.in_features)
        stream = keys.fold("generator").torch()
        generator: dict[str, Tensor] = {PRIOR: torch.zeros(problem.classes)}
        for name, inputs, outputs in zip(("first", "second"), sizes, sizes[1:]):
            bound = inputs**-0.5
            for part, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
                uniform = 2 * torch.rand(shape, generator=stream) - 1
                generator[f"{name}.{part}"] = bound * uniform
        return {**super().init(problem, keys), **pack("generator", generator)}

    def loss(self, turn: ClientRound) -> Loss | None:
        generator = turn.broadcast["generator"]
        prior = generator[PRIOR]
        if not self.alpha or not bool(prior.sum()):  # no head has trained the generator yet
            return None
        draws = self._draws(prior, self.batch_size, turn.ctx.keys.fold("generated"))

        def joint_loss(net: Any, x: Tensor, y: Tensor) -> Tensor:
            noise, labels = next(draws)
            features = generate_features(generator, noise, labels).to(x)
            generated = F.cross_entropy(net.head(features), labels)
            return F.cross_entropy(net(x), y) + self.alpha * generated

        return joint_loss

    def outcome(self, turn: ClientRound, trained: Trained) -> tuple[dict[str, Tensors], State]:
        values, memory = super().outcome(turn, trained)
        if self.weighting == "records":
            labels = turn.shard.train.y
            count = torch.bincount(labels, minlength=turn.shard.classes).float()
            values[LABEL_COUNTS] = {"count": count}
        return values, memory

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        new = super().aggregate(server, inbox, keys)
        generator = unpack("generator", server)
        generator = self._train_generator(generator, server, sort_by_client(inbox), keys)
        return {**new, **pack("generator", generator)}

    def _train_generator(
        self, generator: State, server: State, inbox: Sequence[Received], keys: Keys
    ) -> State:
        prior = self._class_shares(generator[PRIOR], inbox)
        heads = [self._head_of_upload(server, received.values["update"]) for received in inbox]
        weights = {
            name: value.detach().clone().requires_grad_(True)
            for name, value in generator.items()
            if name != PRIOR
        }
        optimiser = torch.optim.Adam(weights.values(), lr=self.generator_lr)
        draws = self._draws(prior, self.generator_batch, keys.fold("generator"))
        for _ in timed_steps(range(self.generator_steps)):
            noise, labels = next(draws)
            noise = noise.to(weights["first.weight"])
            loss = generator_loss(weights, heads, noise, labels)
            if self.diversity:
                features = generate_features(weights, noise, labels)
                loss = loss + self.diversity * diversity_loss(features, noise)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return {PRIOR: prior, **{name: value.detach() for name, value in weights.items()}}

    def _class_shares(self, prior: Tensor, inbox: Sequence[Received]) -> Tensor:
        """p(y): of all records of the round's clients; alike if nobody says."""
        counts = [received.values.get(LABEL_COUNTS) for received in inbox]
        total = sum((value["count"] for value in counts if value is not None), 0 * prior)
        if not bool(total.sum()):
            return torch.full_like(prior, 1 / len(prior))
        return total / total.sum()

    def _head_of_upload(self, server: State, update: Tensors) -> dict[str, Tensor]:
        head = {part: update[f"head.{part}"] for part in ("weight", "bias")}
        if self.update_is_delta:
            head = {part: server[f"model/head.{part}"] + change for part, change in head.items()}
        return head

    def _draws(self, prior: Tensor, count: int, keys: Keys) -> Iterator[tuple[Tensor, Tensor]]:
        """Noise (count, q) and classes (count,), again and again, on the prior's device."""
        stream = keys.torch()
        shares = prior.double().cpu()
        while True:
            labels = torch.multinomial(shares, count, replacement=True, generator=stream)
            noise = torch.randn(count, self.latent, generator=stream)
            yield noise.to(prior), labels.to(prior.device)
