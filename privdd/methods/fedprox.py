"""FedProx (Li et al., MLSys 2020, eq. 2): a proximal term holds clients near the global model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attacks.validation import check_non_negative
from privdd.core.types import State, Tensors
from privdd.methods.fedavg import FedAvg
from privdd.training.sgd import ClientRound, Correction


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """mu >= 0: weight of mu/2 ||w - w_global||^2; 0 is FedAvg."""

    mu: float = 0.01
    vectorisable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_non_negative(self, "mu")

    def settings(self, shard_size: int) -> dict[str, float]:
        return {**super().settings(shard_size), "mu": self.mu}

    def correction(self, turn: ClientRound) -> Correction | None:
        centre = self.start(turn)[0]

        def add_proximal_term(params: Tensors, grads: Tensors) -> State:
            return {name: g + self.mu * (params[name] - centre[name]) for name, g in grads.items()}

        return add_proximal_term
