"""FedNova (Wang et al., NeurIPS 2020): average directions, not endpoints, where clients step
unequally."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.types import Surface
from privdd.core.types import Received, State, Tensors
from privdd.federated.aggregation import average, client_weights, sort_by_client
from privdd.methods.fedavg import FedAvg
from privdd.training.sgd import ClientRound, Trained


def step_mass(steps: Tensor, momentum: float) -> Tensor:
    """Gradients that ``steps`` heavy-ball steps add up to, each counted by its weight in the
    endpoint.

    a = (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho), the 1-norm of the paper's a_i (section
    4.1)."""
    rho = momentum
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


@dataclass(frozen=True, kw_only=True)
class FedNova(FedAvg):
    """Uploads the number of local steps beside the parameters; equal steps everywhere give
    FedAvg."""

    uploads: ClassVar[Mapping[str, Surface]] = {**FedAvg.uploads, "steps": Surface.COUNTS}
    vectorisable: ClassVar[bool] = True

    def outcome(self, turn: ClientRound, trained: Trained) -> tuple[dict[str, Tensors], State]:
        values, memory = super().outcome(turn, trained)
        return {**values, "steps": {"n": torch.tensor([float(trained.steps)])}}, memory

    def pseudo_gradient(self, server: State, inbox: Sequence[Received]) -> State:
        """(sum_i p_i a_i) sum_i p_i (w - w_i) / a_i, in float64."""
        steps = torch.stack([r.values["steps"]["n"].double().sum() for r in sort_by_client(inbox)])
        weights = client_weights(inbox)
        mass = step_mass(steps, self.momentum)
        by_step = weights / mass
        effective = (weights * mass).sum()
        if self.update_is_delta:
            return {name: -effective * d for name, d in average(inbox, "update", by_step).items()}
        return {
            name: effective * (by_step.sum() * server[f"model/{name}"].double() - endpoints)
            for name, endpoints in average(inbox, "update", by_step).items()
        }
