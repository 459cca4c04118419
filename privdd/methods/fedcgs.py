"""FedCGS (Guan, Zhou and Gu, AAAI 2025): class counts, class sums and second moments in a public
map, sent once without noise; the server computes a classifier in closed form.

The open twin of ``dp_means`` and ``dp_moments``, which send the same statistics with noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.types import Surface
from attacks.validation import check_non_negative
from privdd.core.rng import Keys
from privdd.core.types import Artifact, ClientData, Problem, Received, State, Values, Work
from privdd.distillation.gaussian_heads import (
    QuadraticPublicHead,
    lda_head,
    qda_head,
    score_rows,
)
from privdd.distillation.linear_head import nearest_mean_head
from privdd.distillation.public_map import PublicHead
from privdd.federated.aggregation import sort_by_client
from privdd.federated.channel import ClientContext
from privdd.methods.base import PublicMap

Head = Literal["means", "lda", "qda"]
ABSENT = 1e-9  # share of all records below which a class has none


@dataclass(frozen=True, kw_only=True)
class FedCGS(PublicMap):
    """head: means = the class of the nearest mean; lda = classes share a covariance, which is
    FedCGS itself; qda = each class has its own. ridge: added to a covariance's diagonal, in units
    of its mean. shrinkage: of each class's covariance to that within all classes (qda).

    A client sends the sum of its rows of each class and how many they are; beside them the sum of
    the outer products of all rows (lda), or of each class's (qda). One round."""

    head: Head = "lda"
    ridge: float = 0.01
    shrinkage: float = 0.5

    uploads: ClassVar[Mapping[str, Surface]] = {"prototypes": Surface.PROTOTYPES}
    queries: ClassVar[Mapping[str, Surface]] = {}
    rounds: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.head not in ("means", "lda", "qda"):
            raise ValueError(f"head={self.head!r}: means, lda or qda")
        check_non_negative(self, "ridge")
        if not 0 <= self.shrinkage <= 1:
            raise ValueError(f"shrinkage={self.shrinkage!r}: a share in [0, 1]")

    def init(self, problem: Problem, keys: Keys) -> State:
        size = self.rows.width + 1
        if self.head == "qda":
            return {"model/head.weight": torch.zeros(problem.classes, size, size)}
        return {"model/head.weight": torch.zeros(problem.classes, size)}

    def from_rows(
        self, broadcast: Values, rows: Tensor, shard: ClientData, ctx: ClientContext
    ) -> Work:
        label = F.one_hot(shard.train.y, ctx.problem.classes).to(rows)
        value = {"sum": label.T @ rows, "count": label.sum(0)}
        if self.head == "lda":
            value["second"] = rows.T @ rows
        elif self.head == "qda":
            members = [rows[shard.train.y == c] for c in range(ctx.problem.classes)]
            value["second"] = torch.stack([x.T @ x for x in members])
        return {"prototypes": Artifact(value)}, {}

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        sent = [received.values["prototypes"] for received in sort_by_client(inbox)]
        total = {
            name: torch.stack([value[name].double() for value in sent]).sum(0) for name in sent[0]
        }
        last = self.rows.last_entry
        if self.head == "means":
            head = nearest_mean_head(total["sum"], torch.zeros(1), last, ABSENT)
        elif self.head == "lda":
            head = lda_head(total["sum"], total["count"], total["second"], last, self.ridge)
        else:
            head = qda_head(
                total["sum"], total["count"], total["second"], last, self.ridge, self.shrinkage
            )
        return {**server, "model/head.weight": head.float()}

    def predict(self, server: State, memory: State | None, x: Tensor) -> Tensor:
        rows = self.rows.embed_rows(x)
        return score_rows(server["model/head.weight"].to(rows), rows)

    def classifier(self, problem: Problem) -> nn.Module:
        if self.head == "qda":
            return QuadraticPublicHead(self.rows, problem.shape, problem.classes)
        return PublicHead(self.rows, problem.shape, problem.classes)
