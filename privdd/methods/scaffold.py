"""SCAFFOLD (Karimireddy et al., ICML 2020, algorithm 1, option II): control variates against
drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.types import Surface
from privdd.core.rng import Keys
from privdd.core.types import Problem, Received, State, Tensors, pack, unpack
from privdd.federated.aggregation import average
from privdd.methods.fedavg import FedAvg
from privdd.training.sgd import ClientRound, Correction, Trained


@dataclass(frozen=True, kw_only=True)
class Scaffold(FedAvg):
    """Local steps follow g - c_k + c; afterwards c_k becomes c_k - c + (w - w_k) / (steps lr).

    Touches parameters only, starts every control variate at zero, and insists on plain SGD:
    momentum inflates the estimate in c_k by up to 1 / (1 - momentum). Uploads the change of c_k as
    "control"."""

    momentum: float = 0.0

    uploads: ClassVar[Mapping[str, Surface]] = {
        **FedAvg.uploads,
        "control": Surface.CONTROL_VARIATE,
    }
    broadcasts: ClassVar[Mapping[str, Surface]] = {
        **FedAvg.broadcasts,
        "control": Surface.CONTROL_VARIATE,
    }

    vectorisable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum != 0:
            raise ValueError(
                f"momentum={self.momentum!r}: only 0 is allowed, SCAFFOLD's estimate "
                "needs plain SGD"
            )

    def init(self, problem: Problem, keys: Keys) -> State:
        state = super().init(problem, keys)
        zeros = {name: torch.zeros_like(value) for name, value in unpack("model", state).items()}
        return {
            **state,
            **pack("control", zeros),
            "clients": torch.tensor([float(problem.clients)]),
        }

    def correction(self, turn: ClientRound) -> Correction | None:
        common = turn.broadcast["control"]
        own = self._own_control(turn)
        shift = {name: c - own[name] for name, c in common.items()}

        def add_control_variates(params: Tensors, grads: Tensors) -> State:
            return {name: g + shift[name] for name, g in grads.items()}

        return add_control_variates

    def outcome(self, turn: ClientRound, trained: Trained) -> tuple[dict[str, Tensors], State]:
        values, memory = super().outcome(turn, trained)
        common = turn.broadcast["control"]
        own = self._own_control(turn)
        scale = trained.steps * self.lr
        change = {n: (trained.start[n] - w) / scale - common[n] for n, w in trained.params.items()}
        mine = {name: own[name] + c for name, c in change.items()}
        return {**values, "control": change}, {**memory, **pack("control", mine)}

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        """FedAvg's step, and c += (sum of the changes) / (number of all clients)."""
        new = super().aggregate(server, inbox, keys)
        share = len(inbox) / server["clients"].double()
        uniform = torch.full((len(inbox),), 1 / len(inbox), dtype=torch.float64)
        for name, change in average(inbox, "control", uniform).items():
            old: Tensor = server[f"control/{name}"]
            new[f"control/{name}"] = (old.double() + share * change).to(old)
        return new

    def _own_control(self, turn: ClientRound) -> Tensors:
        zeros = {name: torch.zeros_like(c) for name, c in turn.broadcast["control"].items()}
        return unpack("control", turn.memory) or zeros
