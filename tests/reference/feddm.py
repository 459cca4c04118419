"""FedDM: matching in networks around the server's model, server training inside the same ball."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privdd.core.rng import Keys
from privdd.core.types import Shard, State
from tests.reference.matching import Embed, distil, labels, real_start
from tests.reference.networks import fresh, network
from tests.reference.parts import client, under, values


def feddm(m: Any, shards: Sequence[Shard], keys: Keys) -> State:
    shape = shards[0].shape
    classes = shards[0].classes
    state = fresh(m.model, shape, classes, keys.fold("public", "init", "model").torch())
    probe = network(m.model, shape, classes, state).requires_grad_(False)
    server = network(m.model, shape, classes, state)
    for t in range(m.rounds):
        centre = list(state.values())

        def nearby(i: int, centre: list[Tensor] = centre, t: int = t) -> Embed:
            generator = keys.fold("public", t, "networks", i).torch()
            noise = [torch.randn(c.shape, generator=generator) for c in centre]
            scale = m.rho / torch.cat([n.flatten() for n in noise]).norm()
            for p, c, n in zip(probe.parameters(), centre, noise):
                p.copy_(c + n * scale)
            return both

        def both(x: Tensor) -> Tensor:
            z = probe.features(x)  # type: ignore[operator]
            return torch.cat([z, probe.head(z)], 1) if m.logits else z  # type: ignore[operator]

        xs = []
        ys = []
        for shard in shards:
            first = real_start(shard.train, client(keys, t, shard, "start"), m.ipc)
            own = client(keys, t, shard, "batch")
            images = distil(
                m.matching, first, shard.train, nearby, own, keys.fold("public", t, "augment")
            )
            xs.append(images.flatten(0, 1))
            ys.append(labels(shard.train, m.ipc))
        _train(
            m,
            server,
            torch.cat(xs),
            torch.cat(ys),
            keys.fold("round", t, "server", "batch").torch(),
        )
        state = values(server)
    return under("model", state)


def _train(m: Any, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
    """Projected SGD on the union, in place, within rho of where the model stood."""
    s = m.server
    centre = [p.detach().clone() for p in model.parameters()]
    optimiser = torch.optim.SGD(
        model.parameters(), lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay
    )
    for _ in range(int(s.epochs)):
        for at in torch.randperm(len(y), generator=generator).split(s.batch_size):
            optimiser.zero_grad()
            F.cross_entropy(model(x[at]), y[at]).backward()
            optimiser.step()
            _project(model, centre, m.rho)


@torch.no_grad()
def _project(model: nn.Module, centre: list[Tensor], rho: float) -> None:
    gaps = [p - c for p, c in zip(model.parameters(), centre)]
    norm = float(torch.stack([g.square().sum() for g in gaps]).sum().sqrt())
    if norm > rho:
        for p, c, g in zip(model.parameters(), centre, gaps):
            p.copy_(c + g * (rho / norm))
