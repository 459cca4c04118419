"""FedAvgM (Hsu, Qi and Brown 2019): heavy-ball momentum on the server."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from privdd.core.keys import Keys
from privdd.core.state import pack, unpack
from privdd.core.types import Problem, State
from privdd.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedAvgM(FedAvg):
    """server_momentum in [0, 1): v = server_momentum v + pseudo-gradient, w -= server_lr v; 0 is FedAvg."""

    server_momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.server_momentum < 1:
            raise ValueError(f"server_momentum={self.server_momentum!r}: a number in [0, 1)")

    def init(self, problem: Problem, keys: Keys) -> State:
        state = super().init(problem, keys)
        return {**state, **pack("velocity", {n: torch.zeros_like(t) for n, t in unpack("model", state).items()})}

    def server_step(self, server: State, gradient: State) -> State:
        moving = {n: self.server_momentum * server[f"velocity/{n}"].double() + g for n, g in gradient.items()}
        kept = {n: v.to(server[f"velocity/{n}"]) for n, v in moving.items()}
        return {**super().server_step(server, moving), **pack("velocity", kept)}
