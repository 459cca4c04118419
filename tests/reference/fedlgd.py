"""FedLGD: local virtual images, and the server's by gradient matching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privdd.core.rng import Keys
from privdd.core.types import Shard, State
from tests.reference.matching import Embed, classes_of, distil, labels
from tests.reference.networks import fresh, network
from tests.reference.parts import client, supervised_contrast, under, values, weighted


def noise(held: Sequence[int], ipc: int, shape: Sequence[int], keys: Keys) -> Tensor:
    return torch.stack(
        [torch.randn((ipc, *shape), generator=keys.fold("noise", c).torch()) for c in held]
    )


def fedlgd(m: Any, shards: Sequence[Shard], keys: Keys) -> State:
    shape = shards[0].shape
    classes = shards[0].classes
    state = fresh(m.model, shape, classes, keys.fold("public", "init", "model").torch())
    model = network(m.model, shape, classes, state)
    probe = network(m.model, shape, classes, state).requires_grad_(False)
    shared = noise(
        range(classes), m.global_ipc, shape, keys.fold("public", "init", "images")
    ).flatten(0, 1)
    shared_y = torch.arange(classes).repeat_interleave(m.global_ipc)
    virtual = [_start(m, shard, keys) for shard in shards]
    for t in range(m.rounds):
        chosen = t % m.tau_step == 0 and t < m.tau * m.tau_step
        sent = []
        for k, shard in enumerate(shards):
            if t == 0:
                virtual[k] = _match(
                    m, m.virtual.warmup, virtual[k], shard, probe, keys, t, "warmup"
                )
            if chosen:
                probe.load_state_dict(state)
                virtual[k] = _match(
                    m, m.virtual.refine, virtual[k], shard, probe, keys, t, "refine"
                )
            x = virtual[k].flatten(0, 1)
            y = labels(shard.train, m.virtual.ipc)
            model.load_state_dict(state)
            generator = client(keys, t, shard, "train").torch()
            if chosen:
                _one_step(m, model, x, y, generator)
            else:
                _mixed(m, model, x, y, shared, shared_y, generator)
            sent.append(values(model))
        after = weighted(sent, [1 / len(shards)] * len(shards))
        if chosen:
            model.load_state_dict(state)
            shared = _match_gradient(
                m, model, {n: state[n] - after[n] for n in state}, shared, shared_y
            )
        state = after
    kept = {f"client/{k}/images/x": images for k, images in enumerate(virtual)}
    kept |= {f"client/{k}/images/label": labels(shard.train, 1) for k, shard in enumerate(shards)}
    return {**under("model", state), "images/x": shared, "labels/y": shared_y, **kept}


def _start(m: Any, shard: Shard, keys: Keys) -> Tensor:
    """Noise with the channel means and deviations of each class."""
    held = classes_of(shard.train)
    images = noise(
        [c for c, _ in held], m.virtual.ipc, shard.shape, client(keys, 0, shard, "start")
    )
    for image, (_, at) in zip(images, held):
        x = shard.train.x[at]
        std, mean = torch.std_mean(x, (0, 2, 3), correction=0)
        image.mul_(std[:, None, None]).add_(mean[:, None, None])
    return images


def _match(
    m: Any, settings: Any, images: Tensor, shard: Shard, probe: Any, keys: Keys, t: int, part: str
) -> Tensor:
    """Distribution matching: in new networks to warm up, in the global model to refine."""

    def network_at(i: int) -> Embed:
        if part == "warmup":
            law = keys.fold("public", t, part, "networks", i).torch()
            probe.load_state_dict(fresh(m.model, shard.shape, shard.classes, law))
        return probe.features

    streams = client(keys, t, shard, part, "batch"), keys.fold("public", t, part, "augment")
    return distil(settings, images, shard.train, network_at, *streams)


def _one_step(m: Any, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=m.lr)
    at = torch.randperm(len(y), generator=generator)
    optimiser.zero_grad()
    F.cross_entropy(model(x[at]), y[at]).backward()
    optimiser.step()


def _mixed(
    m: Any,
    model: Any,
    x: Tensor,
    y: Tensor,
    more: Tensor,
    more_y: Tensor,
    generator: torch.Generator,
) -> None:
    """Cross-entropy on batches of both sets, and contrast between a batch and all of the server's
    images."""
    optimiser = torch.optim.SGD(model.parameters(), lr=m.lr)
    both = torch.cat([x, more])
    both_y = torch.cat([y, more_y])
    for _ in range(int(m.local_epochs)):
        for at in torch.randperm(len(both_y), generator=generator).split(m.batch_size):
            optimiser.zero_grad()
            z = model.features(both[at])
            anchors = model.features(more)
            tie = supervised_contrast(
                torch.cat([z, anchors]), torch.cat([both_y[at], more_y]), m.temperature
            )
            (F.cross_entropy(model.head(z), both_y[at]) + m.contrast * tie).backward()
            optimiser.step()


def _match_gradient(m: Any, model: nn.Module, target: State, images: Tensor, y: Tensor) -> Tensor:
    """Images whose gradient at ``model`` points along ``target``, output unit by output unit."""
    weights = {n: p for n, p in model.named_parameters() if p.ndim > 1}
    model.requires_grad_(False)
    for p in weights.values():
        p.requires_grad_(True)
    images = images.clone().requires_grad_(True)
    optimiser = torch.optim.SGD([images], lr=m.global_lr, momentum=m.global_momentum)
    for _ in range(m.global_iterations):
        slopes = torch.autograd.grad(
            F.cross_entropy(model(images), y), list(weights.values()), create_graph=True
        )
        distance = torch.zeros(())
        for slope, name in zip(slopes, weights):
            a = slope.flatten(1)
            b = target[name].flatten(1)
            distance = (
                distance + (1 - (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1) + 1e-6)).sum()
            )
        images.grad = torch.autograd.grad(distance, images)[0]
        optimiser.step()
    model.requires_grad_(True)
    return images.detach()
