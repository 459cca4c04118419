"""A linear head over a public map, trained by full-batch gradient descent on clipped, noised sums
of gradients.

DP-SGD (Abadi et al. 2016, algorithm 1) at sampling probability 1 on the last layer alone, as
transfer learning under privacy does it (Tramer and Boneh, ICLR 2021; De et al. 2022): the baseline
that a distilled set in the same map is up against.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attacks.types import Surface
from attacks.validation import check_below_one, check_counts, check_positive
from privdd.core.loop_timing import timed_steps
from privdd.core.rng import Keys
from privdd.core.types import (
    Artifact,
    ClientData,
    Problem,
    Received,
    Records,
    State,
    Tensors,
    Values,
    Work,
)
from privdd.distillation.linear_head import head_gradients
from privdd.federated.aggregation import sort_by_client
from privdd.federated.channel import ClientContext
from privdd.methods.base import PublicMap
from privdd.privacy.clipping import FactoredRows, Part
from privdd.privacy.mechanism import Mechanism

QUERY = "head_gradient"
COUNTED = 0.25  # share of the clip norm with which a record is counted: the rest is its gradient's


@dataclass(frozen=True, kw_only=True)
class DPHead(PublicMap):
    """rounds: steps, each of which is one noised release by every client; lr: of a step along the
    sum of what the clients sent over the number of records; noisiest: the server's step is made so
    much shorter that the noise in it has at most this standard deviation in every number (None:
    never); momentum: heavy ball, of the server; local_steps: noised steps that a client takes by
    itself between two rounds (1: gradient descent; more: DP-FedAvg).

    Each record adds its gradient and, beside it, a constant: so the number of records is known as
    well, noised, and averaged over the rounds. Without a mechanism nothing is clipped or noised.
    """

    rounds: int
    lr: float = 40.0
    noisiest: float | None = None
    momentum: float = 0.9
    local_steps: int = 1

    uploads: ClassVar[Mapping[str, Surface]] = {"gradient": Surface.GRADIENT}
    queries: ClassVar[Mapping[str, Surface]] = {QUERY: Surface.GRADIENT}

    def __post_init__(self) -> None:
        check_counts(self, "rounds", "local_steps")
        check_positive(self, "lr")
        if self.noisiest is not None and not 0 < self.noisiest < float("inf"):
            raise ValueError(f"noisiest={self.noisiest!r}: a finite number above 0, or null")
        check_below_one(self, "momentum")

    def init(self, problem: Problem, keys: Keys) -> State:
        state = super().init(problem, keys)
        return {
            **state,
            "velocity/head.weight": torch.zeros_like(state["model/head.weight"]),
            "seen/count": torch.zeros(1),
            "seen/rounds": torch.zeros(1),
        }

    def from_rows(
        self, broadcast: Values, rows: Tensor, shard: ClientData, ctx: ClientContext
    ) -> Work:
        private = ctx.protected(QUERY)
        weight = broadcast["model"]["head.weight"]
        total = torch.zeros(())
        count = torch.zeros(())
        for _ in timed_steps(range(self.local_steps)):
            sums = _release_sums(weight, rows, shard.train, ctx)
            total = total + sums["head.weight"]
            count = count + sums["count"]
            weight = weight - self.lr / self.local_steps * sums["head.weight"] / sums[
                "count"
            ].clamp_min(1)
        std = float(ctx.mechanisms[QUERY].noise_std) if private else 0.0  # type: ignore[attr-defined]
        variance = torch.tensor([std**2 / self.local_steps])
        value = {
            "head.weight": total / self.local_steps,
            "count": count / self.local_steps,
            "variance": variance,
        }
        return {"gradient": Artifact(value, private=private)}, {}

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        """One step; records are counted by the mean of all rounds so far."""
        sent = [received.values["gradient"] for received in sort_by_client(inbox)]
        count = server["seen/count"] + torch.stack([s["count"] for s in sent]).sum(0)
        rounds = server["seen/rounds"] + 1
        total = torch.stack([s["head.weight"].double() for s in sent]).sum(0).float()
        records = (count / rounds).clamp_min(1)
        gradient = total / records
        velocity = self.momentum * server["velocity/head.weight"] + gradient
        noise = torch.stack([s["variance"] for s in sent]).sum(0).sqrt() / records
        step = torch.full_like(noise, self.lr)
        if self.noisiest is not None:
            step = step.minimum(self.noisiest / noise.clamp_min(1e-30))
        weight = server["model/head.weight"] - step * velocity
        return {
            **server,
            "model/head.weight": weight,
            "velocity/head.weight": velocity,
            "seen/count": count,
            "seen/rounds": rounds,
            "seen/noise": noise,
        }

    def aggregation_kind(
        self, mechanisms: Mapping[str, Mechanism]
    ) -> Literal["sum", "mean"] | None:
        """Sums suffice if a client takes one step between two rounds; later steps depend on earlier
        ones and do not add."""
        return "sum" if self.local_steps == 1 else None

    def releases_per_round(self, round: int, mechanisms: Mapping[str, Mechanism]) -> dict[str, int]:
        return {name: self.local_steps for name in mechanisms if name == QUERY}

    def settings(self, shard_size: int) -> dict[str, float]:
        return {
            "lr": self.lr,
            "momentum": 0.0,
            "batch_size": max(1, shard_size),
            "local_steps": self.local_steps,
        }


def _release_sums(weight: Tensor, rows: Tensor, records: Records, ctx: ClientContext) -> Tensors:
    """Sums over the records: of their gradients, and of one each; through the mechanism where there
    is one."""
    if not ctx.protected(QUERY):
        own = head_gradients(weight, rows.to(weight), records.y)
        return {"head.weight": own.left.T @ own.right, "count": torch.tensor([float(len(rows))])}
    clip = float(ctx.mechanisms[QUERY].clip_norm)  # type: ignore[attr-defined]
    taken = ctx.sample(QUERY, len(rows)).to(rows.device)
    rows = rows[taken].to(weight)
    y = records.y[taken]
    gradient = head_gradients(weight, rows, y, clip * (1 - COUNTED**2) ** 0.5)
    parts: dict[str, Part] = {
        "head.weight": gradient,
        "count": torch.full((len(y), 1), clip * COUNTED),
    }
    sums = ctx.mechanism(QUERY, FactoredRows(parts))
    return {"head.weight": sums["head.weight"], "count": sums["count"] / (clip * COUNTED)}
