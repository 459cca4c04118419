"""What methods share in which every client keeps a network of its own that never travels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from privdd.core.device import to_device
from privdd.core.rng import Keys
from privdd.core.types import Problem, RecordShape, State, Tensors, pack, unpack
from privdd.methods.fedavg import FedAvg
from privdd.models import build_skeleton, initial
from privdd.training.sgd import ClientRound, split_state


@dataclass(frozen=True, kw_only=True)
class PersonalNetworks(FedAvg):
    """Every client starts from the same public initial network and keeps its own from then on."""

    accuracy_kind: ClassVar[Literal["global", "personal"]] = "personal"
    _stream: ClassVar[str]  # of the public initial network

    def init(self, problem: Problem, keys: Keys) -> State:
        state = self._initial_model(problem.shape, problem.classes, keys.seed)
        skeleton = build_skeleton(self.model, problem.shape, problem.classes)
        params, buffers = split_state(skeleton, state)
        return {**pack("model", params), **pack("buffers", buffers)}

    def start(self, turn: ClientRound) -> tuple[Tensors, Tensors]:
        kept = unpack("personal", turn.memory)
        state = kept or self._initial_model(
            turn.shard.shape, turn.shard.classes, turn.ctx.keys.seed
        )
        skeleton = build_skeleton(self.model, turn.shard.shape, turn.shard.classes)
        params, buffers = split_state(skeleton, state)
        device = turn.ctx.problem.device
        return to_device(params, device), to_device(buffers, device)

    def initial_classifier(self, problem: Problem, seed: int) -> State:
        """The public initial model; clients train copies of their own, which never travel."""
        return self._initial_model(problem.shape, problem.classes, seed)

    def _own_state(self, server: State, memory: State | None) -> State:
        """A client's own network; without a memory, the initial one."""
        common = {**unpack("model", server), **unpack("buffers", server)}
        return unpack("personal", memory or {}) or common

    def _initial_model(self, shape: RecordShape, classes: int, seed: int) -> State:
        keys = Keys(seed).fold("public", self._stream, "model")
        return initial(self.model, shape, classes, keys.torch())
