"""Second moments and class sums in a public map, one noised release by every client: ridge
regression on the labels.

Sufficient statistics under the Gaussian mechanism (Dwork et al. STOC 2014, "Analyze Gauss"; Wang,
UAI 2018: the ridge grows with the noise): a baseline on equal terms for what a distilled set in the
same map carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.types import Surface
from privdd.core.rng import Keys
from privdd.core.types import Artifact, ClientData, Received, State, Tensors, Values, Work
from privdd.distillation.linear_head import record_moments, ridge_head
from privdd.federated.aggregation import sort_by_client
from privdd.federated.channel import ClientContext
from privdd.methods.base import PublicMap

QUERY = "second_moments"


@dataclass(frozen=True, kw_only=True)
class DPMoments(PublicMap):
    """ridge: the penalty, in units of the size of the noise's eigenvalues; share: of each record's
    squared length that goes to the second moments, the rest to its class's sum.

    In one round a client sends the sum of its rows x by class, the public variance of the noise,
    and the upper triangle of the sum of x x'. Entries off the diagonal are multiplied by the square
    root of two, so that the norm is the matrix's."""

    ridge: float = 1.0
    share: float = 0.5

    uploads: ClassVar[Mapping[str, Surface]] = {"moments": Surface.STATISTICS}
    queries: ClassVar[Mapping[str, Surface]] = {QUERY: Surface.STATISTICS}
    rounds: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 0 <= self.ridge < float("inf"):
            raise ValueError(f"ridge={self.ridge!r}: a finite number from 0")
        if not 0 < self.share < 1:
            raise ValueError(f"share={self.share!r}: a share in (0, 1)")

    def from_rows(
        self, broadcast: Values, rows: Tensor, shard: ClientData, ctx: ClientContext
    ) -> Work:
        private = ctx.protected(QUERY)
        variance = 0.0
        if private:
            mechanism = ctx.mechanisms[QUERY]
            taken = ctx.sample(QUERY, len(rows)).to(rows.device)
            clip = float(mechanism.clip_norm)  # type: ignore[attr-defined]
            variance = float(mechanism.noise_std) ** 2  # type: ignore[attr-defined]
            own = record_moments(rows[taken], shard.train.y[taken], ctx.problem.classes, self.share)
            sums = ctx.mechanism(QUERY, {name: clip * value for name, value in own.items()})
            sums = {name: value / clip for name, value in sums.items()}
            variance = variance / clip**2
        else:
            own = record_moments(rows, shard.train.y, ctx.problem.classes, self.share)
            sums = {name: value.sum(0) for name, value in own.items()}
        value = {**sums, "variance": torch.tensor([variance])}
        return {"moments": Artifact(value, private=private)}, {}

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        sent = [received.values["moments"] for received in sort_by_client(inbox)]
        total = {name: torch.stack([one[name].double() for one in sent]).sum(0) for name in sent[0]}
        return {**server, "model/head.weight": ridge_head(total, self.ridge, self.share).float()}

    def model_state(self, name: str, value: Tensors, broadcast: Values) -> State | None:
        """The head that one client's moments alone give."""
        alone = {key: tensor.double() for key, tensor in value.items()}
        return {"head.weight": ridge_head(alone, self.ridge, self.share).float()}
