"""Votes on public images, one noised release by every client: a head learns from what the records
agree on.

PATE (Papernot et al., ICLR 2018: Gaussian noise on the histogram of the teachers' votes) whose
teachers are single records that vote on what resembles them, as neighbours do in Private-kNN (Zhu
et al., CVPR 2020). What teachers trained on many records would add is given up for a bound that
holds record by record: a record's votes, over all images and classes, are 1 long together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attacks.types import Surface
from attacks.validation import check_counts, check_positive
from privdd.core.rng import Keys
from privdd.core.types import Artifact, ClientData, Problem, Received, State, Values, Work
from privdd.distillation.linear_head import record_ballots, voted_head
from privdd.federated.aggregation import sort_by_client
from privdd.federated.channel import ClientContext
from privdd.methods.base import PublicMap
from privdd.methods.fedmd import draw_public_images
from privdd.privacy.clipping import FactoredRows, OuterProducts

QUERY = "votes"


@dataclass(frozen=True, kw_only=True)
class DPVotes(PublicMap):
    """One round: a client sends the sum of its records' votes, noised if a mechanism is set; the
    server adds them up and fits a linear head to them.

    Attributes:
        images: how many public images are voted on.
        ridge: penalty of the head, in units of the mean eigenvalue of the images' second moments.
    """

    images: int = 200
    ridge: float = 1.0

    uploads: ClassVar[Mapping[str, Surface]] = {"logits": Surface.LOGITS}
    queries: ClassVar[Mapping[str, Surface]] = {QUERY: Surface.LOGITS}
    rounds: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_counts(self, "images")
        check_positive(self, "ridge")

    def init(self, problem: Problem, keys: Keys) -> State:
        rows = self._image_rows(problem, keys.seed)
        return {**super().init(problem, keys), "images/rows": rows}

    def from_rows(
        self, broadcast: Values, rows: Tensor, shard: ClientData, ctx: ClientContext
    ) -> Work:
        private = ctx.protected(QUERY)
        images = self._image_rows(ctx.problem, ctx.keys.seed).to(rows)
        classes = ctx.problem.classes
        if private:
            clip = float(ctx.mechanisms[QUERY].clip_norm)  # type: ignore[attr-defined]
            taken = ctx.sample(QUERY, len(rows)).to(rows.device)
            own = record_ballots(rows[taken], images, shard.train.y[taken], classes)
            parts = FactoredRows({"votes": OuterProducts(clip * own.left, own.right)})
            votes = ctx.mechanism(QUERY, parts)["votes"] / clip
        else:
            own = record_ballots(rows, images, shard.train.y, classes)
            votes = own.left.T @ own.right
        return {"logits": Artifact({"logits": votes}, private=private)}, {}

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        sent = [received.values["logits"]["logits"] for received in sort_by_client(inbox)]
        votes = torch.stack([one.double() for one in sent]).sum(0)
        head = voted_head(votes, server["images/rows"].double(), self.ridge)
        return {**server, "model/head.weight": head.float()}

    def settings(self, shard_size: int) -> Mapping[str, Any]:
        return {**super().settings(shard_size), "votes": True}

    def public_images(self, problem: Problem, seed: int) -> Tensor:
        return draw_public_images(self.images, problem.shape, seed)

    def _image_rows(self, problem: Problem, seed: int) -> Tensor:
        return self.rows.embed_rows(self.public_images(problem, seed))
