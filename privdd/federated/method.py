"""The contract of a federated method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from attacks.types import Surface
from privdd.core.keys import Keys
from privdd.core.types import Problem, Received, Shard, State, Tensors, Upload


@runtime_checkable
class Method(Protocol):
    """A federated method: hyper-parameters only; state in, state out.

    uploads: name -> surface of everything a client may send; queries: name -> surface of what goes
    through ``ctx.mechanism`` during local work; broadcasts: name -> surface of everything the server
    sends; rounds: how many rounds the whole method takes (phases included).
    """

    uploads: Mapping[str, Surface]
    queries: Mapping[str, Surface]
    broadcasts: Mapping[str, Surface]
    rounds: int

    def init(self, problem: Problem, keys: Keys) -> State: ...

    def broadcast(self, server: State) -> Mapping[str, Tensors]: ...

    def local(
        self, broadcast: Mapping[str, Tensors], memory: State, shard: Shard, ctx: Any
    ) -> tuple[Upload, State]: ...

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State: ...

    def predict(self, server: State, memory: State | None, x: Tensor) -> Tensor: ...
