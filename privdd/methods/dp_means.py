"""Class means in a public map, one noised release by every client: records go to the class of the
nearest mean.

Prototypes in a pre-trained map under differential privacy, as DPPL's (Papernot's group, 2024; there
one mean a class as well): a baseline that any distilled set which carries class means must reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.types import Surface
from privdd.core.rng import Keys
from privdd.core.types import Artifact, ClientData, Received, State, Values, Work, name_class_cell
from privdd.distillation.linear_head import nearest_mean_head
from privdd.federated.aggregation import sort_by_client
from privdd.federated.channel import ClientContext
from privdd.methods.base import PublicMap

QUERY = "class_sums"


@dataclass(frozen=True, kw_only=True)
class DPMeans(PublicMap):
    """least: classes of a smaller share of the counted records are left out, for their means would
    be noise.

    A client sends the sum of its rows of every class, how many they are (both noised, where a
    mechanism is set: a row ends with a constant, so that one release has both), and the public
    variance of the noise. One round."""

    least: float = 0.01

    uploads: ClassVar[Mapping[str, Surface]] = {"prototypes": Surface.PROTOTYPES}
    queries: ClassVar[Mapping[str, Surface]] = {QUERY: Surface.PROTOTYPES}
    rounds: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 0 <= self.least < 1:
            raise ValueError(f"least={self.least!r}: a share in [0, 1)")

    def from_rows(
        self, broadcast: Values, rows: Tensor, shard: ClientData, ctx: ClientContext
    ) -> Work:
        private = ctx.protected(QUERY)
        sums = []
        if private:
            sampled = ctx.sample(QUERY, len(rows)).to(rows.device)
        else:
            sampled = torch.ones(len(rows), dtype=torch.bool)
        rows = rows[sampled]
        y = shard.train.y[sampled]
        for label in ctx.problem.class_list:
            mine = {"sum": rows[y == label]}
            if private:
                release = ctx.mechanism(QUERY, mine, partition=name_class_cell(label))
            else:
                release = {"sum": mine["sum"].sum(0)}
            sums.append(release["sum"])
        total = torch.stack(sums)
        variance = float(ctx.mechanisms[QUERY].noise_std) ** 2 if private else 0.0  # type: ignore[attr-defined]
        value = {
            "sum": total,
            "count": total[:, -1] / self.rows.last_entry,
            "variance": torch.tensor([variance]),
        }
        return {"prototypes": Artifact(value, private=private)}, {}

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        sent = [received.values["prototypes"] for received in sort_by_client(inbox)]
        total, variance = (
            torch.stack([one[n].double() for one in sent]).sum(0) for n in ("sum", "variance")
        )
        head = nearest_mean_head(total, variance, self.rows.last_entry, self.least)
        return {**server, "model/head.weight": head.float()}
