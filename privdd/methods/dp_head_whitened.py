"""A private head over rows whose directions are brought to equal length first, by second moments that are released as well.

Full-batch gradient descent learns along weak directions last, and noise stops it before. Tramer and Boneh (ICLR 2021)
normalise each feature by private statistics; here the whole second moment of the rows is one noised release ("Analyze
Gauss", Dwork et al., STOC 2014), and gradients are those of a head over rows times a power of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.types import Surface
from privdd.core.rng import Keys
from privdd.core.types import Artifact, Problem, Received, Shard, State, Tensors, Values, Work
from privdd.distillation.public_features import whitening_matrix
from privdd.federated.aggregation import sort_by_client
from privdd.federated.channel import ClientContext
from privdd.methods.dp_head import DPHead
from privdd.privacy.clipping import FactoredRows, OuterProducts
from privdd.privacy.mechanism import Mechanism

MOMENTS = "second_moments"


@dataclass(frozen=True, kw_only=True)
class DPHeadWhitened(DPHead):
    """whitening: 0 leaves the rows as they are, 1 brings all directions that the noise does not hide to equal length.

    The first round releases the sum of x x' over a client's rows x, all others the head's gradients.
    """

    whitening: float = 0.8

    uploads: ClassVar[Mapping[str, Surface]] = {**DPHead.uploads, "moments": Surface.STATISTICS}
    queries: ClassVar[Mapping[str, Surface]] = {**DPHead.queries, MOMENTS: Surface.STATISTICS}
    broadcasts: ClassVar[Mapping[str, Surface]] = {**DPHead.broadcasts, "whitening": Surface.GLOBAL_MODEL}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.whitening <= 1:
            raise ValueError(f"whitening={self.whitening!r}: a number in [0, 1]")
        if self.rounds < 2:
            raise ValueError(f"rounds={self.rounds}: at least 2, of which the first releases second moments")

    def init(self, problem: Problem, keys: Keys) -> State:
        return {**super().init(problem, keys), "whitening/matrix": torch.eye(self.rows.width + 1)}

    def from_rows(self, broadcast: Values, rows: Tensor, shard: Shard, ctx: ClientContext) -> Work:
        if ctx.round:
            return super().from_rows(broadcast, rows, shard, ctx)
        variance, private = 0.0, ctx.protected(MOMENTS)
        if private:
            mechanism = ctx.mechanisms[MOMENTS]
            clip, variance = float(mechanism.clip_norm), float(mechanism.noise_std) ** 2  # type: ignore[attr-defined]
            own = rows[ctx.sample(MOMENTS, len(rows)).to(rows.device)]
            moments = ctx.mechanism(MOMENTS, FactoredRows({"xx": OuterProducts(clip * own, own)}))["xx"] / clip
            variance /= clip**2
        else:
            moments = rows.T @ rows
        return {"moments": Artifact({"xx": moments, "variance": torch.tensor([variance])}, private=private)}, {}

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        if "moments" not in inbox[0].values:
            return super().aggregate(server, inbox, keys)
        sent = [received.values["moments"] for received in sort_by_client(inbox)]
        total, variance = (torch.stack([one[name].double() for one in sent]).sum(0) for name in ("xx", "variance"))
        return {**server, "whitening/matrix": whitening_matrix(total, variance, self.whitening, self.rows.last_entry)}

    def record_loss(
        self, name: str, value: Tensors, broadcast: Values, problem: Problem
    ) -> Callable[[Tensor, Tensor], Tensor] | None:
        """For second moments: less, the more of them there is in a record's direction."""
        if name != "moments":
            return super().record_loss(name, value, broadcast, problem)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            rows = self.rows.embed_rows(x)
            return -(rows @ value["xx"].to(rows) * rows).sum(1)

        return loss

    def spends(self, round: int, mechanisms: Mapping[str, Mechanism]) -> dict[str, int]:
        planned = {MOMENTS: 1} if round == 0 else super().spends(round, mechanisms)
        return {name: times for name, times in planned.items() if name in mechanisms}
