"""FedAvgM (Hsu, Qi and Brown 2019): heavy-ball momentum on the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from attacks.validation import check_below_one
from privdd.core.rng import Keys
from privdd.core.types import Problem, State, pack, unpack
from privdd.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedAvgM(FedAvg):
    """server_momentum in [0, 1): v = server_momentum v + pseudo-gradient, w -= server_lr v; 0 is
    FedAvg."""

    server_momentum: float = 0.9

    vectorisable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_below_one(self, "server_momentum")

    def init(self, problem: Problem, keys: Keys) -> State:
        state = super().init(problem, keys)
        return {
            **state,
            **pack("velocity", {n: torch.zeros_like(t) for n, t in unpack("model", state).items()}),
        }

    def server_step(self, server: State, gradient: State) -> State:
        moving = {
            n: self.server_momentum * server[f"velocity/{n}"].double() + g
            for n, g in gradient.items()
        }
        kept = {n: v.to(server[f"velocity/{n}"]) for n, v in moving.items()}
        return {**super().server_step(server, moving), **pack("velocity", kept)}
