"""Gradient matching: images whose training gradient points where a given gradient points.

Zhao, Mopuri and Bilen, "Dataset Condensation with Gradient Matching" (ICLR 2021), section 3: per
layer and output unit 1 - cosine, summed. FedLGD (Huang et al. 2024, equations 5 to 7) matches the
average of the clients' gradients on the server.
``GradientImages`` is their algorithm 1: for each new network, and T times as it is trained on the
images, the images of every class take a step towards the records' gradient. ``SetGeneration``
is Chen, Kerkouche and Fritz, "Private Set Generation with
Discriminative Information" (NeurIPS 2022), algorithm 1: in newly drawn networks, the records'
gradients are clipped one by one, summed and noised (DP-SGD), the images follow them, and the
network then trains on the images. Noise is spent on the records' gradient alone; all else is
post-processing. Momentum begins anew with each query (the released code keeps one optimiser for
all)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from attacks.validation import check_below_one, check_counts, check_positive
from privdd.core.device import stream_to_device
from privdd.core.loop_timing import timed_steps
from privdd.core.rng import Keys
from privdd.core.types import ClientData, Records, State, Tensors
from privdd.distillation.class_cells import (
    ClassCells,
    RealBatch,
    check_init,
    draw_initial_images,
    draw_real_batches,
    images_to_memory,
    single_client_cells,
)
from privdd.distillation.virtual_images import Distiller, as_records
from privdd.federated.channel import ClientContext
from privdd.models import ModelSpec, build_skeleton, initial
from privdd.training import dp_sgd
from privdd.training.sgd import local_sgd

EPSILON = 1e-6  # in the denominator, as the published code has it
SET_GRADIENT_QUERY = "set_gradient"
MOST_IMAGES_A_BATCH = 256  # on which a network of a later turn is trained
NETWORKS_AT_ONCE = 64  # networks whose gradients are kept until the images have followed them


def gradient_distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """Sum over layers and output units of 1 - cosine(a, b); tensors of one axis do not count.

    a, b: gradients by parameter name; a weight's first axis runs over its output units.
    """
    total = torch.zeros(())
    for name in a:
        if a[name].ndim < 2:
            continue
        rows_a = a[name].flatten(1)
        right = b[name].flatten(1)
        norms = rows_a.norm(dim=1) * right.norm(dim=1)
        total = total + (1 - (rows_a * right).sum(1) / (norms + EPSILON)).sum()
    return total


def compared_weights(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights in ``state`` whose gradients are compared: parameters of at least two axes."""
    return {
        name: state[name].detach()
        for name, parameter in model.named_parameters()
        if parameter.ndim >= 2
    }


def weight_gradients(
    model: nn.Module, state: Mapping[str, Tensor], x: Tensor, y: Tensor, *, graph: bool = False
) -> dict[str, Tensor]:
    """Gradient of the cross-entropy of x (b, c, h, w) and y (b,) at ``state``, of the weights that
    are compared.

    graph: it can be differentiated by x.
    """
    params = {
        name: value.requires_grad_(True) for name, value in compared_weights(model, state).items()
    }
    loss = F.cross_entropy(functional_call(model, {**state, **params}, (x,)), y)
    return dict(zip(params, torch.autograd.grad(loss, list(params.values()), create_graph=graph)))


def match_gradient(
    model: nn.Module,
    state: Mapping[str, Tensor],
    target: Mapping[str, Tensor],
    images: Tensor,
    labels: Tensor,
    *,
    iterations: int,
    lr: float,
    momentum: float,
) -> Tensor:
    """Move ``images`` (m, c, h, w) until the gradient of their cross-entropy at ``state`` fits
    ``target``.

    target: gradient by parameter name; its length does not matter. One batch holds all images. The
    model should be free of batch norm. Returns the images.
    """
    x = images.detach()
    velocity = torch.zeros_like(images)
    for _ in timed_steps(range(iterations)):
        x = x.detach().requires_grad_(True)
        distance = gradient_distance(weight_gradients(model, state, x, labels, graph=True), target)
        velocity = momentum * velocity + torch.autograd.grad(distance, x)[0]
        x = x - lr * velocity
    return x.detach()


@dataclass(frozen=True, kw_only=True)
class GradientImages(Distiller):
    """ipc: images per class; start: real | noise | statistics; networks: new networks, one after
    the other; matches: steps on the images in each; batch: real records per class and step; lr,
    momentum: SGD on the images; between matches the network is trained on all images for
        network_steps of SGD at network_lr, in batches of network_batch."""

    ipc: int = 10
    start: Literal["real", "noise", "statistics"] = "real"
    networks: int = 1000
    matches: int = 10
    batch: int = 256
    lr: float = 0.01
    momentum: float = 0.5
    network_steps: int = 50
    network_lr: float = 0.01
    network_batch: int = 256

    def __post_init__(self) -> None:
        check_init(self.start)
        check_counts(
            self, "ipc", "matches", "batch", "network_steps", "network_batch", under="virtual."
        )
        check_counts(self, "networks", least=0, under="virtual.")
        check_positive(self, "lr", "network_lr", under="virtual.")
        check_below_one(self, "momentum", under="virtual.")

    def without_matching(self) -> GradientImages:
        return replace(self, networks=0)

    def distil(self, model: ModelSpec, shard: ClientData, ctx: ClientContext) -> State:
        cells = single_client_cells(shard.train, shard.classes)
        images = draw_initial_images(
            self.start, cells, self.ipc, shard.shape, ctx.keys.fold("start")
        ).to(shard.train.x)
        count = self.networks if len(cells) else 0
        streams = ctx.public("gradient", "networks")
        law = partial(initial, model, shard.shape, shard.classes)
        starts = stream_to_device(lambda k: law(streams.fold(k).torch()), count, images.device)
        gradient = ctx.keys.fold("gradient")

        def batch_stream(step: int) -> Keys:
            return gradient.fold(step // self.matches, "batch", step % self.matches)

        batches = draw_real_batches(cells, self.batch, batch_stream, count * self.matches)
        labels = cells.labels.to(images.device).repeat_interleave(self.ipc)
        for k, state in zip(timed_steps(range(count)), starts):
            network = build_skeleton(model, shard.shape, shard.classes)
            velocity = torch.zeros_like(images)
            for t, batch in zip(timed_steps(range(self.matches)), batches):
                if t:
                    records = as_records(images.flatten(0, 1), labels)
                    stream = gradient.fold(k, "training", t).torch()
                    state = local_sgd(
                        network,
                        state,
                        records,
                        lr=self.network_lr,
                        generator=stream,
                        steps=self.network_steps,
                        batch_size=self.network_batch,
                    )[0]
                velocity = self.momentum * velocity + class_matching_gradient(
                    network, state, cells, images, batch
                )
                images = images - self.lr * velocity
        return images_to_memory(images, cells.labels)


def class_matching_gradient(
    network: nn.Module,
    state: Mapping[str, Tensor],
    cells: ClassCells,
    images: Tensor,
    batch: RealBatch,
) -> Tensor:
    """Gradient (M, ipc, c, h, w), by the images, of the distance of each class's gradient to that
    of real records."""
    parts = []
    for group, class_images, positions in zip(
        cells.groups, images, batch.at.split([rows.shape[1] for rows in batch.taken])
    ):
        target = weight_gradients(network, state, cells.pool.x[positions], cells.pool.y[positions])
        x = class_images.detach().requires_grad_(True)
        gradients = weight_gradients(
            network,
            state,
            x,
            torch.full((len(class_images),), group.label, device=class_images.device),
            graph=True,
        )
        parts.append(torch.autograd.grad(gradient_distance(gradients, target), x)[0])
    return torch.stack(parts)


# a network's state -> the records' gradient there, by name
GradientQuery = Callable[[Tensors], Tensors]


@dataclass(frozen=True)
class SetGeneration:
    """networks: newly drawn ones, each at first untrained; turns: times that the images learn in
    one network, between which it trains on them; reads: noised gradients in one turn; steps: of the
    images along each of them; lr,
    momentum: of these; net_lr, net_epochs: of the network's training on the images."""

    networks: int = 1000
    turns: int = 10
    reads: int = 10
    steps: int = 1
    lr: float = 0.1
    momentum: float = 0.5
    net_lr: float = 0.01
    net_epochs: int = 50

    def __post_init__(self) -> None:
        check_counts(self, "networks", "turns", "reads", "steps", "net_epochs", under="generation.")
        check_positive(self, "lr", "net_lr", under="generation.")
        check_below_one(self, "momentum", under="generation.")

    @property
    def release_count(self) -> int:
        """How often the records are read."""
        return self.networks * self.turns * self.reads


def generate_set(
    images: Tensor,
    labels: Tensor,
    model: nn.Module,
    draw: Callable[[int], State],
    read: GradientQuery,
    settings: SetGeneration,
    keys: Keys,
) -> Tensor:
    """Images (m, c, h, w) of ``labels`` (m,) after ``settings.releases`` reads; draw: number -> a
    new network's state."""
    follow = partial(
        match_gradient, model, iterations=settings.steps, lr=settings.lr, momentum=settings.momentum
    )
    if settings.turns == 1:
        return _generate_in_new_networks(images, labels, draw, read, settings, follow)
    for number in timed_steps(range(settings.networks)):
        state = draw(number)
        for turn in timed_steps(range(settings.turns)):
            if turn:
                state = local_sgd(
                    model,
                    state,
                    as_records(images, labels),
                    lr=settings.net_lr,
                    generator=keys.fold("net", number, turn).torch(),
                    epochs=settings.net_epochs,
                    batch_size=min(MOST_IMAGES_A_BATCH, len(labels)),
                )[0]
            for _ in timed_steps(range(settings.reads)):
                images = follow(state, read(state), images, labels)
    return images


def _generate_in_new_networks(
    images: Tensor,
    labels: Tensor,
    draw: Callable[[int], State],
    read: GradientQuery,
    settings: SetGeneration,
    follow: Callable[[State, Tensors, Tensor, Tensor], Tensor],
) -> Tensor:
    """Where no network learns from the images, no read depends on them. The reads come first: a
    test of what is released stops after the last one."""
    for first in timed_steps(range(0, settings.networks, NETWORKS_AT_ONCE)):
        network_range = range(first, min(first + NETWORKS_AT_ONCE, settings.networks))
        noised = [
            (state, [read(state) for _ in timed_steps(range(settings.reads))])
            for state in map(draw, timed_steps(network_range))
        ]
        for network in timed_steps(range(len(network_range))):
            # fewer were read where a price runs a part
            state, gradients = noised[network % len(noised)]
            for number in timed_steps(range(settings.reads)):
                images = follow(state, gradients[number % len(gradients)], images, labels)
    return images


def noised_gradient(model: nn.Module, records: Records, ctx: ClientContext) -> GradientQuery:
    """The records' gradient through ``ctx.mechanism``: of all weights that matching looks at, a
    Poisson sample a read."""
    loss = dp_sgd.cross_entropy_of(model)

    def query_gradient(state: Tensors) -> Tensors:
        def loss_of_record(weights: State, x: Tensor, y: Tensor) -> Tensor:
            return loss({**state, **weights}, x, y)

        positions = (
            ctx.sample(SET_GRADIENT_QUERY, len(records)).nonzero()[:, 0].to(records.y.device)
        )
        x = records.x[positions]
        y = records.y[positions]
        weights = compared_weights(model, state)
        released = ctx.mechanism(
            SET_GRADIENT_QUERY, dp_sgd.record_gradients(loss_of_record, weights, x, y)
        )
        return {name: value.to(state[name]) for name, value in released.items()}

    return query_gradient


def plain_gradient(model: nn.Module, records: Records) -> GradientQuery:
    """The gradient of the mean cross-entropy of all records, where nothing protects them."""
    return lambda state: weight_gradients(model, state, records.x, records.y)
