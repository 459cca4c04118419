"""FedFed: generator and classifier together, one release of noised features, then FedAvg on both
sets in one pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privdd.core.rng import Keys
from privdd.core.types import Shard, State
from tests.reference.averaging import sgd, start
from tests.reference.draws import normal
from tests.reference.networks import fresh, network
from tests.reference.parts import by_records, client, under, values, weighted

# of the released noise; of the norm that a record is clipped to
VARIANCE = 0.15
RHO = 0.1


def bounded(features: Tensor, x: Tensor, rho: float) -> Tensor:
    limit = rho * x.flatten(1).norm(dim=1) / features.flatten(1).norm(dim=1).clamp_min(1e-12)
    return features * limit.clamp(max=1)[:, None, None, None]


def fedfed(m: Any, shards: Sequence[Shard], keys: Keys) -> State:
    shape = shards[0].shape
    classes = shards[0].classes
    init = keys.fold("public", "init")
    base = m.base
    pair = nn.ModuleDict(
        {
            "generator": network(
                m.generator,
                shape,
                classes,
                fresh(m.generator, shape, classes, init.fold("generator").torch()),
            ),
            "classifier": network(
                base.model,
                shape,
                classes,
                fresh(base.model, shape, classes, init.fold("classifier").torch()),
            ),
        }
    )
    state = values(pair)
    for t in range(m.distill_rounds):
        sent = []
        for shard in shards:
            pair.load_state_dict(state)
            _split(m, pair, shard, client(keys, t, shard, "distill").torch())
            sent.append(values(pair))
        state = weighted(sent, by_records(shards))
    pair.load_state_dict(state)
    x = torch.cat(
        [
            _released(m, pair["generator"], s, client(keys, m.distill_rounds, s, "secret", "noise"))
            for s in shards
        ]
    )
    y = torch.cat([shard.train.y for shard in shards])
    model = _both_sets(m, shards, keys, x, y)
    return {
        **under("generator", state),
        **under("base/model", model),
        "features/x": x,
        "labels/y": y,
    }


def _split(m: Any, pair: nn.ModuleDict, shard: Shard, generator: torch.Generator) -> None:
    """AdamW on the joint loss."""
    optimiser = torch.optim.AdamW(
        pair.parameters(), lr=m.distill_lr, weight_decay=m.distill_weight_decay
    )
    w = m.loss
    vae = pair["generator"]
    classifier = pair["classifier"]
    for _ in range(m.distill_epochs):
        for at in torch.randperm(len(shard.train), generator=generator).split(m.distill_batch):
            x = shard.train.x[at]
            y = shard.train.y[at]
            q, mu, logvar = vae(x, torch.randn(len(x), vae.latent, generator=generator))
            noisy = bounded(x - q, x, w.rho) + w.stds[0] * torch.randn(x.shape, generator=generator)
            feature, image = classifier(torch.cat([noisy, x])).split(len(x))
            kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean() / (3 * mu.shape[1])
            loss = (
                w.reconstruction * F.mse_loss(q, x)
                + w.feature_ce * F.cross_entropy(feature, y)
                + w.kl * kl
            )
            optimiser.zero_grad()
            (loss + w.image_ce * F.cross_entropy(image, y)).backward()
            optimiser.step()


@torch.no_grad()
def _released(m: Any, vae: nn.Module, shard: Shard, keys: Keys) -> Tensor:
    """Every record's features, clipped and noised, on the lattice of 2**-16 of the noise."""
    x = shard.train.x
    vae.eval()
    features = torch.cat(
        [bounded(part - vae(part, None)[0], part, m.loss.rho) for part in x.split(256)]
    )
    vae.train()
    norms = features.flatten(1).norm(dim=1)
    features = features * (RHO * math.sqrt(x[0].numel()) / norms).clamp(max=1)[:, None, None, None]
    grid = 2.0 ** (math.floor(math.log2(math.sqrt(VARIANCE))) - 16)
    noise = math.sqrt(VARIANCE) * normal(x.shape, keys.torch()).to(x)
    return grid * ((features / grid).trunc() + (noise / grid).round())


def _both_sets(m: Any, shards: Sequence[Shard], keys: Keys, x: Tensor, y: Tensor) -> State:
    """FedAvg whose every step adds the cross-entropy of a batch of shared features."""
    base = m.base
    model, state = start(base, shards, keys)
    for t in range(m.distill_rounds + 1, m.rounds):
        sent = []
        for shard in shards:
            drawn = _even(
                y, len(shard.train), base.batch_size, client(keys, t, shard, "shared").torch()
            )

            def loss(net: nn.Module, own: Tensor, labels: Tensor, drawn: Any = drawn) -> Tensor:
                at = next(drawn)
                outputs = net(torch.cat([own, x[at]]))
                return F.cross_entropy(outputs[: len(own)], labels) + F.cross_entropy(
                    outputs[len(own) :], y[at]
                )

            model.load_state_dict(state)
            sgd(base, model, shard, client(keys, t, shard, "batch").torch(), loss)
            sent.append(values(model))
        state = weighted(sent, by_records(shards))
    return state


def _even(y: Tensor, size: int, batch: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Passes of ``size`` rows, as many of each class as of any other, the rest from all; in
    batches."""
    members = {int(c): torch.arange(len(y))[y == c] for c in sorted(set(y.tolist()))}
    share = size // len(members)
    while True:
        rows: list[int] = []
        for own in members.values():
            if share <= len(own):
                rows += own[torch.randperm(len(own), generator=generator)].tolist()[:share]
            else:
                rows += own[torch.randint(len(own), (share,), generator=generator)].tolist()
        rows += torch.randint(len(y), (size - len(rows),), generator=generator).tolist()
        order = torch.randperm(size, generator=generator).tolist()
        shuffled = torch.tensor([rows[i] for i in order])
        for at in range(0, size, batch):
            yield shuffled[at : at + batch]
