"""FedRD: a personal projection through the frozen task model, then matching of what it projects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privdd.core.rng import Keys
from privdd.core.types import Shard, State
from tests.reference.matching import Embed, distil, labels, real_start
from tests.reference.networks import fresh, network, projected
from tests.reference.parts import client, merged, under, values


def adam(
    parts: nn.Module,
    loss: Any,
    n: int,
    batch: int,
    epochs: float,
    lr: float,
    generator: torch.Generator,
) -> None:
    """Epochs of Adam in place; ``loss`` takes the positions of a batch."""
    optimiser = torch.optim.Adam(parts.parameters(), lr=lr)
    for _ in range(int(epochs)):
        for at in torch.randperm(n, generator=generator).split(batch):
            optimiser.zero_grad()
            loss(at).backward()
            optimiser.step()


def fedrd(m: Any, shards: Sequence[Shard], keys: Keys) -> State:
    shape = shards[0].shape
    classes = shards[0].classes
    inner = projected(m.projection, shape)
    task = network(
        m.model,
        inner,
        classes,
        fresh(m.model, inner, classes, keys.fold("public", "init", "model").torch()),
    )
    probe = network(m.model, inner, classes, task.state_dict()).requires_grad_(False)
    projections: list[nn.Module] = []
    settings = replace(
        m.matching,
        augment_synthetic=False,
        chunk=0 if m.model.norm == "batch" else m.matching.chunk,
    )
    for t in range(m.rounds):

        def new(i: int, t: int = t) -> Embed:
            state = fresh(m.model, inner, classes, keys.fold("public", t, "networks", i).torch())
            probe.load_state_dict(state)
            return probe.features  # type: ignore[return-value]

        xs = []
        ys = []
        for k, shard in enumerate(shards):
            if t == 0:
                law = client(keys, t, shard, "projection").torch()
                projections.append(
                    network(m.projection, shape, classes, fresh(m.projection, shape, classes, law))
                )
            project = projections[k]
            _fit(m, project, task, shard, client(keys, t, shard, "projection", "batch").torch())
            chosen = real_start(shard.train, client(keys, t, shard, "start"), m.dpc)
            with torch.no_grad():
                first = project(chosen.flatten(0, 1)).unflatten(0, chosen.shape[:2])
            streams = client(keys, t, shard, "batch"), keys.fold("public", t, "augment")
            xs.append(distil(settings, first, shard.train, new, *streams, project).flatten(0, 1))
            ys.append(labels(shard.train, m.dpc))
        _serve(
            m, task, torch.cat(xs), torch.cat(ys), keys.fold("round", t, "server", "batch").torch()
        )
    own = merged(
        [under(f"client/{k}/projection", values(net)) for k, net in enumerate(projections)]
    )
    names = {name for name, _ in task.named_parameters()}
    state = values(task)
    server = under("model", {n: v for n, v in state.items() if n in names})
    return {**server, **under("buffers", {n: v for n, v in state.items() if n not in names}), **own}


def _fit(
    m: Any, project: nn.Module, task: nn.Module, shard: Shard, generator: torch.Generator
) -> None:
    """Adam on the projection; the task model is frozen, in evaluation mode."""
    task.eval().requires_grad_(False)

    def loss(at: Tensor) -> Tensor:
        return F.cross_entropy(task(project(shard.train.x[at])), shard.train.y[at])

    adam(
        project,
        loss,
        len(shard.train),
        m.projection_batch,
        m.projection_epochs,
        m.projection_lr,
        generator,
    )


def _serve(m: Any, task: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
    """Adam on the task model over all clients' representations."""
    task.train().requires_grad_(True)
    adam(
        task,
        lambda at: F.cross_entropy(task(x[at]), y[at]),
        len(y),
        m.server.batch_size,
        m.server.epochs,
        m.server.lr,
        generator,
    )
