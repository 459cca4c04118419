"""FedAvg whose clip norm follows a private quantile of the update norms (Andrew, Thakkar, McMahan
and Ramaswamy 2021).

A client sends its change over the current clip norm, clipped to 1, and one more number: whether it
had to be clipped (b - 1/2 for their bit b). Both go through one Gaussian mechanism on the whole
vector, so that one multiplier z accounts for both; theorem 1 there: z**-2 = z_change**-2 + (2
sigma_bit)**-2. The server moves the clip norm by what the noised bits say (equation 1, geometric):
post-processing, like the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from attacks.types import Surface
from privdd.core.rng import Keys
from privdd.core.types import Problem, Received, State, Tensors, Values
from privdd.federated.aggregation import average
from privdd.methods.fedavg import FedAvg
from privdd.privacy.clipping import clip_factors, record_norms
from privdd.privacy.mechanism import Mechanism
from privdd.training.sgd import ClientRound, Trained

BIT = "within"  # the name of the added number in an update
# what noise alone may make of the clip norm
LEAST = 1e-6
MOST = 1e6


@dataclass(frozen=True, kw_only=True)
class FedAvgAdaptive(FedAvg):
    """clip_start: the first clip norm; quantile: share of the clients whose change shall not be
    clipped, in [0, 1];
    clip_lr: of the clip norm's logarithm; bit_share: how much of a unit vector is the bit's,
        squared its share of the budget. What is clipped is the change, so it needs
        ``update_is_delta``, which client-level privacy sets.
    """

    clip_start: float = 1.0
    quantile: float = 0.5
    clip_lr: float = 0.2
    bit_share: float = 0.2

    # changes are what is clipped, not the gradients of records
    queries: ClassVar[Mapping[str, Surface]] = {}
    vectorisable: ClassVar[bool] = True
    broadcasts: ClassVar[Mapping[str, Surface]] = {
        **FedAvg.broadcasts,
        "clip": Surface.GLOBAL_MODEL,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not LEAST <= self.clip_start <= MOST:
            raise ValueError(f"clip_start={self.clip_start!r}: a number in [{LEAST:g}, {MOST:g}]")
        if not 0 <= self.quantile <= 1:
            raise ValueError(f"quantile={self.quantile!r}: a share in [0, 1]")
        if not 0 <= self.clip_lr < math.inf:
            raise ValueError(f"clip_lr={self.clip_lr!r}: a finite number from 0")
        if not 0 < self.bit_share < 1:
            raise ValueError(f"bit_share={self.bit_share!r}: a share between 0 and 1")

    def check_mechanisms(self, mechanisms: Mapping[str, Mechanism]) -> None:
        """Raises ValueError where updates are not clipped to 1: they are sent in units of the clip
        norm."""
        clip = getattr(mechanisms.get("update"), "clip_norm", 1)
        if clip != 1:
            raise ValueError(
                f"privacy.clip_norm={clip}: fedavg_adaptive sends changes over its own "
                "clip norm, and needs privacy=client "
                "with privacy.clip_norm=1 (algo.clip_start is where its own starts)"
            )

    @property
    def _max_change_norm(self) -> float:
        """The longest change in what is sent: the rest of a unit vector is the bit's."""
        return math.sqrt(1 - self.bit_share**2)

    def init(self, problem: Problem, keys: Keys) -> State:
        return {**super().init(problem, keys), "clip/norm": torch.tensor([float(self.clip_start)])}

    def outcome(self, turn: ClientRound, trained: Trained) -> tuple[dict[str, Tensors], State]:
        """The change in units of the clip norm, and the bit; a client without any change sends
        zeros, the bit's too."""
        values, memory = super().outcome(turn, trained)
        if not self.update_is_delta:
            return values, memory
        clip = turn.broadcast["clip"]["norm"]
        change = {name: value / clip.to(value) for name, value in values["update"].items()}
        norm = record_norms({name: value.unsqueeze(0) for name, value in change.items()})
        factor = float(clip_factors(norm, 1.0)) * self._max_change_norm
        said = self.bit_share * float(norm != 0) * (1.0 if float(norm) <= 1 else -1.0)
        sent: dict[str, torch.Tensor] = {
            name: value.nan_to_num() * factor for name, value in change.items()
        }
        values["update"] = {**sent, BIT: torch.tensor([said]).to(next(iter(sent.values())))}
        return values, memory

    def pseudo_gradient(self, server: State, inbox: Sequence[Received]) -> State:
        gradient = super().pseudo_gradient(server, inbox)
        if not self.update_is_delta:
            return gradient
        unit = float(server["clip/norm"]) / self._max_change_norm
        return {name: value * unit for name, value in gradient.items() if name != BIT}

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        """The model's step, and C exp(-clip_lr (share of clients that were not clipped -
        quantile))."""
        new = super().aggregate(server, inbox, keys)
        if not self.update_is_delta:
            return new
        within = average(inbox, "update")[BIT] / (2 * self.bit_share) + 0.5
        moved = server["clip/norm"].double() * torch.exp(-self.clip_lr * (within - self.quantile))
        return {**new, "clip/norm": moved.clamp(LEAST, MOST).to(server["clip/norm"])}

    def aggregation_kind(
        self, mechanisms: Mapping[str, Mechanism]
    ) -> Literal["sum", "mean"] | None:
        if self.weighting == "uniform" and "dpsgd" not in mechanisms:
            return "mean"
        return None

    def model_state(self, name: str, value: Tensors, broadcast: Values) -> State | None:
        """The model that an update implies: what was clipped off is not known."""
        if name == "update" and self.update_is_delta:
            unit = broadcast["clip"]["norm"] / self._max_change_norm
            value = {n: change * unit.to(change) for n, change in value.items() if n != BIT}
        return super().model_state(name, value, broadcast)
