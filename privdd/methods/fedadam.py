"""FedAdam (Reddi et al., ICLR 2021, algorithm 2): Adam on the server, without bias correction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from attacks.validation import check_below_one
from privdd.core.rng import Keys
from privdd.core.types import Problem, State, pack, unpack
from privdd.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedAdam(FedAvg):
    """m = b1 m + (1-b1) g, v = b2 v + (1-b2) g^2, w -= server_lr m / (sqrt(v) + tau).

    g is the pseudo-gradient; beta1, beta2 in [0, 1); tau > 0 is the degree of adaptivity (large =
    less), and v starts at tau^2, as the algorithm's initialisation asks.
    """

    server_lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    vectorisable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_below_one(self, "beta1", "beta2")
        if not 1e-18 <= self.tau <= 1e18:  # its square is a float32
            raise ValueError(f"tau={self.tau!r}: a number from 1e-18 to 1e18 is needed")

    def init(self, problem: Problem, keys: Keys) -> State:
        state = super().init(problem, keys)
        model = unpack("model", state)
        first = {name: torch.zeros_like(t) for name, t in model.items()}
        second = {name: torch.full_like(t, float(self.tau) ** 2) for name, t in model.items()}
        return {**state, **pack("first", first), **pack("second", second)}

    def server_step(self, server: State, gradient: State) -> State:
        first = unpack("first", server)
        second = unpack("second", server)
        m = {n: self.beta1 * first[n].double() + (1 - self.beta1) * g for n, g in gradient.items()}
        v = {
            n: self.beta2 * second[n].double() + (1 - self.beta2) * g * g
            for n, g in gradient.items()
        }
        step = {n: m[n] / (v[n].sqrt() + self.tau) for n in gradient}
        moments = {**pack("first", m), **pack("second", v)}
        return {
            **super().server_step(server, step),
            **{n: t.to(server[n]) for n, t in moments.items()},
        }
