"""One client's round of local training: what it starts from, and what it ends with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from privdd.core.types import Shard, State, Tensors
from privdd.federated.channel import ClientContext


@dataclass(frozen=True)
class ClientRound:
    """What a client was sent, what it remembers, and its data: everything that its local training starts from."""

    broadcast: Mapping[str, Tensors]
    memory: State
    shard: Shard
    ctx: ClientContext


@dataclass(frozen=True)
class Trained:
    """What local training ended with, and the parameters that it began with."""

    start: Tensors
    params: State
    buffers: State
    steps: int
