"""MOON, VHL and FedProto: local losses that look at features."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privdd.core.rng import Keys
from privdd.core.types import Shard, State
from tests.reference.averaging import sgd, start
from tests.reference.draws import anchors
from tests.reference.networks import fresh, network
from tests.reference.parts import (
    by_records,
    client,
    merged,
    supervised_contrast,
    under,
    values,
    weighted,
)


def moon(m: Any, shards: Sequence[Shard], keys: Keys) -> State:
    """Features are pulled to the global model's and pushed off the client's last."""
    model, state = start(m, shards, keys)
    towards, away = (copy.deepcopy(model).eval().requires_grad_(False) for _ in range(2))
    previous: list[State | None] = [None] * len(shards)

    def loss(net: Any, x: Tensor, y: Tensor) -> Tensor:
        z = net.features(x)
        with torch.no_grad():
            # type: ignore[operator]
            near = towards.features(x)
            far = away.features(x)
        cosines = torch.stack([F.cosine_similarity(z, near), F.cosine_similarity(z, far)], 1)
        contrast = F.cross_entropy(cosines / m.temperature, torch.zeros(len(x), dtype=torch.long))
        return F.cross_entropy(net.head(z), y) + m.mu * contrast

    for t in range(m.rounds):
        towards.load_state_dict(state)
        sent = []
        for k, shard in enumerate(shards):
            model.load_state_dict(state)
            away.load_state_dict(previous[k] or state)
            sgd(m, model, shard, client(keys, t, shard, "batch").torch(), loss)
            sent.append(values(model))
            previous[k] = sent[-1]
        state = weighted(sent, by_records(shards))
    return {
        **under("model", state),
        **merged([under(f"client/{k}/previous", p or {}) for k, p in enumerate(previous)]),
    }


def endless(n: int, batch: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches of one permutation after another."""
    while True:
        yield from torch.randperm(n, generator=generator).split(batch)


def vhl(m: Any, shards: Sequence[Shard], keys: Keys) -> State:
    """Each step also classifies noise images, and aligns records with them."""
    model, state = start(m, shards, keys)
    noise, of_class = anchors(
        shards[0].shape, shards[0].classes, m.per_class, keys.fold("public", "vhl")
    )
    for t in range(m.rounds):
        sent = []
        for shard in shards:
            drawn = endless(len(noise), m.batch_size, client(keys, t, shard, "anchors").torch())

            def loss(net: Any, x: Tensor, y: Tensor, drawn: Iterator[Tensor] = drawn) -> Tensor:
                at = next(drawn)
                z = net.features(x)
                z_noise = net.features(noise[at])
                tie = supervised_contrast(
                    torch.cat([z, z_noise]), torch.cat([y, of_class[at]]), m.temperature
                )
                virtual = F.cross_entropy(net.head(z_noise), of_class[at])
                return F.cross_entropy(net.head(z), y) + m.alpha * virtual + m.align * tie

            model.load_state_dict(state)
            sgd(m, model, shard, client(keys, t, shard, "batch").torch(), loss)
            sent.append(values(model))
        state = weighted(sent, by_records(shards))
    return under("model", state)


def fedproto(m: Any, shards: Sequence[Shard], keys: Keys) -> State:
    """Clients keep their models and share the mean features of each class."""
    shape = shards[0].shape
    classes = shards[0].classes
    first = fresh(m.model, shape, classes, keys.fold("public", "fedproto", "model").torch())
    models = [network(m.model, shape, classes, first) for _ in shards]
    width = first["head.weight"].shape[1]
    mean = torch.zeros(classes, width)
    count = torch.zeros(classes)
    for t in range(m.rounds):
        known = (count > 0).float()

        def loss(
            net: Any, x: Tensor, y: Tensor, mean: Tensor = mean, known: Tensor = known
        ) -> Tensor:
            z = net.features(x)
            distance = ((z - mean[y]) ** 2).mean(1) * known[y]
            return F.cross_entropy(net.head(z), y) + m.weight * distance.mean()

        for shard, model in zip(shards, models):
            sgd(m, model, shard, client(keys, t, shard, "batch").torch(), loss)
        sums, count = _sums(shards, models, width)
        mean = sums / count.clamp(min=1)[:, None]
    personal = merged([under(f"client/{k}/personal", values(net)) for k, net in enumerate(models)])
    return {**under("model", first), "prototypes/mean": mean, "prototypes/count": count, **personal}


@torch.no_grad()
def _sums(
    shards: Sequence[Shard], models: Sequence[nn.Module], width: int
) -> tuple[Tensor, Tensor]:
    """Sum of the features and number of records of each class over all clients."""
    classes = shards[0].classes
    sums = torch.zeros(classes, width)
    count = torch.zeros(classes)
    for shard, model in zip(shards, models):
        model.eval()
        z = torch.cat([model.features(x) for x in shard.train.x.split(512)])  # type: ignore[operator]
        model.train()
        sums.index_add_(0, shard.train.y, z)
        count += torch.bincount(shard.train.y, minlength=classes)
    return sums, count
