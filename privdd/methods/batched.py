"""Local work of several clients, or of one client's worlds, as the training of one wide network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from privdd.core.types import Artifact, Shard, State, Tensors, Upload
from privdd.federated.channel import ClientContext
from privdd.federated.method import Method
from privdd.methods.fedavg import FedAvg, Trained, Turn
from privdd.models.build import skeleton
from privdd.training.ensemble import vectorised_sgd, vectorises
from privdd.training.local import local_sgd, placed

TRAINING = {"start", "loss", "correction", "local", "_train", "_shared"}  # what decides how a client trains


def alike(method: type) -> bool:
    """Whether a method's training has a wide form: the nearest class that changes it must say so itself."""
    for parent in method.__mro__:
        if "vectorised" in vars(parent):
            return bool(vars(parent)["vectorised"])
        if TRAINING & vars(parent).keys():
            return False
    return False


def turns_of(
    method: Method,
    broadcast: Mapping[str, Tensors],
    memories: Sequence[State],
    shards: Sequence[Shard],
    contexts: Sequence[ClientContext],
) -> list[Turn] | None:
    """K clients' turns where the method, its network and this round can be trained together, else None."""
    if not isinstance(method, FedAvg) or not alike(type(method)) or "features" in broadcast:
        return None
    if any(ctx.protected("dpsgd") for ctx in contexts):
        return None
    if not vectorises(skeleton(method.model, shards[0].shape, shards[0].classes)):
        return None
    device = contexts[0].problem.device
    sent = {name: placed(value, device) for name, value in broadcast.items()}
    return [Turn(sent, placed(m, device), shard, ctx) for m, shard, ctx in zip(memories, shards, contexts)]


def local_together(
    method: Method,
    broadcast: Mapping[str, Tensors],
    memories: Sequence[State],
    shards: Sequence[Shard],
    contexts: Sequence[ClientContext],
) -> list[tuple[Upload, State]] | None:
    """K calls of ``method.local``, equal up to rounding, or None where they have no wide form.

    Every client draws its own batches from its own streams; all get the same broadcast.
    """
    turns = turns_of(method, broadcast, memories, shards, contexts)
    if turns is None or not isinstance(method, FedAvg):
        return None
    done = [method.outcome(turn, trained) for turn, trained in zip(turns, train_together(method, turns))]
    return [({name: Artifact(v) for name, v in values.items()}, placed(memory, "cpu")) for values, memory in done]


def train_together(method: FedAvg, turns: Sequence[Turn], steps: int | None = None) -> list[Trained]:
    """Each turn for as long as it would train alone, or for ``steps``."""
    first, memories = turns[0], [turn.memory for turn in turns]
    model, start = skeleton(method.model, first.shard.shape, first.shard.classes), method.start(first)[0]
    stacked = {name: torch.stack([memory[name] for memory in memories]) for name in memories[0]}
    done = vectorised_sgd(
        model,
        start,
        [turn.shard.train for turn in turns],
        lr=method.lr,
        momentum=method.momentum,
        weight_decay=method.weight_decay,
        batch_size=method.batch_size,
        epochs=method.local_epochs if steps is None else None,
        steps=steps,
        generators=[turn.ctx.keys.fold("batch").torch() for turn in turns],
        correct=method.correction(replace(first, memory=stacked)),
    )
    return [Trained(start, params, {}, taken) for params, taken in done]


def train_alone(method: FedAvg, turn: Turn, steps: int) -> State:
    """What ``FedAvg`` does in a turn, for ``steps`` only: the other side of a comparison of speeds."""
    model, start = skeleton(method.model, turn.shard.shape, turn.shard.classes), method.start(turn)[0]
    return local_sgd(
        model,
        start,
        turn.shard.train.to(turn.ctx.problem.device),
        lr=method.lr,
        momentum=method.momentum,
        weight_decay=method.weight_decay,
        batch_size=method.batch_size,
        steps=steps,
        generator=turn.ctx.keys.fold("batch").torch(),
        correct=method.correction(turn),
    )[0]
