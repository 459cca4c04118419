"""FedAvg and the methods that change its gradients or its server step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privdd.core.rng import Keys
from privdd.core.types import Shard, State
from tests.reference.networks import fresh, network
from tests.reference.parts import by_records, client, merged, under, values, weighted

Loss = Callable[[Any, Tensor, Tensor], Tensor]
Hook = Callable[[nn.Module], None]


def cross_entropy(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net(x), y)


def sgd(
    m: Any,
    model: nn.Module,
    shard: Shard,
    generator: torch.Generator,
    loss: Loss = cross_entropy,
    hook: Hook | None = None,
) -> int:
    """Local epochs of SGD in place; ``hook`` may change the gradients before each step. Returns the
    steps."""
    optimiser = torch.optim.SGD(
        model.parameters(), lr=m.lr, momentum=m.momentum, weight_decay=m.weight_decay
    )
    steps = 0
    x = shard.train.x
    y = shard.train.y
    for _ in range(int(m.local_epochs)):
        for at in torch.randperm(len(y), generator=generator).split(m.batch_size):
            optimiser.zero_grad()
            loss(model, x[at], y[at]).backward()
            if hook is not None:
                hook(model)
            optimiser.step()
            steps += 1
    return steps


def start(m: Any, shards: Sequence[Shard], keys: Keys) -> tuple[nn.Module, State]:
    """A working network and the initial global model."""
    shape = shards[0].shape
    classes = shards[0].classes
    state = fresh(m.model, shape, classes, keys.fold("public", "init", "model").torch())
    return network(m.model, shape, classes, state), state


def averaged(
    m: Any,
    shards: Sequence[Shard],
    keys: Keys,
    step: Callable[[State, State], State],
    proximal: float = 0.0,
) -> State:
    """Rounds of local SGD; ``step`` makes the next global model from the old one and the clients'
    mean."""
    model, state = start(m, shards, keys)
    for t in range(m.rounds):
        sent = []
        for shard in shards:
            model.load_state_dict(state)

            def pull(net: nn.Module, centre: State = state) -> None:
                for name, p in net.named_parameters():
                    p.grad.add_(p.detach() - centre[name], alpha=proximal)  # type: ignore[union-attr]

            sgd(
                m,
                model,
                shard,
                client(keys, t, shard, "batch").torch(),
                hook=pull if proximal else None,
            )
            sent.append(values(model))
        state = step(state, weighted(sent, by_records(shards)))
    return under("model", state)


def fedavg(m: Any, shards: Sequence[Shard], keys: Keys) -> State:
    return averaged(m, shards, keys, lambda old, mean: mean)


def fedprox(m: Any, shards: Sequence[Shard], keys: Keys) -> State:
    return averaged(m, shards, keys, lambda old, mean: mean, proximal=m.mu)


def fedavgm(m: Any, shards: Sequence[Shard], keys: Keys) -> State:
    velocity: State = {}

    def step(old: State, mean: State) -> State:
        for name in old:
            velocity[name] = m.server_momentum * velocity.get(name, 0.0) + old[name] - mean[name]
        return {name: old[name] - m.server_lr * velocity[name] for name in old}

    return {**averaged(m, shards, keys, step), **under("velocity", velocity)}


def fedadam(m: Any, shards: Sequence[Shard], keys: Keys) -> State:
    first: State = {}
    second: State = {}

    def step(old: State, mean: State) -> State:
        for name in old:
            g = old[name] - mean[name]
            first[name] = m.beta1 * first.get(name, 0.0) + (1 - m.beta1) * g
            second[name] = m.beta2 * second.get(name, m.tau**2) + (1 - m.beta2) * g * g
        return {
            name: old[name] - m.server_lr * first[name] / (second[name].sqrt() + m.tau)
            for name in old
        }

    return {**averaged(m, shards, keys, step), **under("first", first), **under("second", second)}


def fednova(m: Any, shards: Sequence[Shard], keys: Keys) -> State:
    """Clients' changes are divided by the gradients that their steps add up to."""
    model, state = start(m, shards, keys)
    for t in range(m.rounds):
        changes = []
        masses = []
        for shard in shards:
            model.load_state_dict(state)
            steps = sgd(m, model, shard, client(keys, t, shard, "batch").torch())
            rho = m.momentum
            masses.append((steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho))
            changes.append({name: state[name] - value for name, value in values(model).items()})
        shares = by_records(shards)
        effective = sum(p * a for p, a in zip(shares, masses))
        gradient = weighted(changes, [effective * p / a for p, a in zip(shares, masses)])
        state = {name: state[name] - g for name, g in gradient.items()}
    return under("model", state)


def scaffold(m: Any, shards: Sequence[Shard], keys: Keys) -> State:
    """Gradients are shifted by the common minus the own control variate (option II)."""
    model, state = start(m, shards, keys)
    common = {name: torch.zeros_like(value) for name, value in state.items()}
    own = [dict(common) for _ in shards]
    for t in range(m.rounds):
        sent = []
        changes = []
        for k, shard in enumerate(shards):
            model.load_state_dict(state)
            shift = {name: common[name] - own[k][name] for name in common}

            def move(net: nn.Module, by: State = shift) -> None:
                for name, p in net.named_parameters():
                    p.grad.add_(by[name])  # type: ignore[union-attr]

            steps = sgd(m, model, shard, client(keys, t, shard, "batch").torch(), hook=move)
            sent.append(values(model))
            changes.append(
                {n: (state[n] - w) / (steps * m.lr) - common[n] for n, w in sent[-1].items()}
            )
            own[k] = {n: own[k][n] + change for n, change in changes[-1].items()}
        state = weighted(sent, by_records(shards))
        mean = weighted(changes, [1 / len(shards)] * len(shards))
        common = {name: common[name] + mean[name] for name in common}
    memories = [under(f"client/{k}/control", control) for k, control in enumerate(own)]
    return {**under("model", state), **under("control", common), **merged(memories)}
