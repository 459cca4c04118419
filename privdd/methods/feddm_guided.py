"""FedDM's idea with more than class means: a data set of images and soft labels out of three noised
reads.

Clients release noised class sums and second moments of how their records look, and noised gradients
of a linear head in a public map. From them, which is post-processing, the server draws images, fits
some of them to the gradients, pushes each to where the head knows its class, mixes them, labels
them by the head, trains a network on them, and publishes all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attacks.types import Surface
from privdd.core.rng import Keys
from privdd.core.types import (
    Artifact,
    ClientData,
    Problem,
    Received,
    Records,
    RecordShape,
    State,
    Values,
    Work,
    name_class_cell,
    pack,
    unpack,
)
from privdd.distillation.image_fitting import (
    ClassModel,
    CoarsePixels,
    GradientPath,
    GuidanceSettings,
    build_guided_set,
    estimate_class_model,
    fit_to_gradients,
)
from privdd.distillation.private_matching import check_no_batch_norm
from privdd.federated.aggregation import sort_by_client
from privdd.federated.channel import ClientContext
from privdd.methods.dp_head import COUNTED as HEAD_COUNTED
from privdd.methods.dp_head import DPHead
from privdd.models import ModelSpec, build_skeleton, initial
from privdd.privacy.batch_invariance import compute_rows
from privdd.privacy.clipping import FactoredRows, OuterProducts, Part, scale_records
from privdd.privacy.mechanism import Mechanism
from privdd.training.server import ServerTraining, train_on_soft_labels
from privdd.training.sgd import predict_images

SUMS = "class_sums"
MOMENTS = "second_moments"
COUNTED = 0.3  # of a record's length, how much counts it


@dataclass(frozen=True, kw_only=True)
class FedDMGuided(DPHead):
    """model: the network that is trained on the images (no batch norm); looks: the public map in
    which classes are modelled and images drawn; varied: the coarser one in which records differ
    within a class; by_class: second moments of each class, which hold more about it and more noise,
    instead of all records' together; reach: looks longer than this are shortened; read_rounds,
    varied_rounds: the first rounds, in which class sums and second moments are released beside the
        head's gradients; clip_norm: of the released gradients, in which a record is counted as well
        (None: they are not clipped); guiding: how images are drawn, fitted and labelled; server:
        the network's training.
    """

    model: ModelSpec
    looks: CoarsePixels
    varied: CoarsePixels
    guiding: GuidanceSettings
    server: ServerTraining
    read_rounds: int = 1
    varied_rounds: int = 1
    by_class: bool = False
    reach: float = 0.4
    clip_norm: float | None = None

    why_images_only: ClassVar[str] = "its images begin as silhouettes"
    uploads: ClassVar[Mapping[str, Surface]] = {**DPHead.uploads, "prototypes": Surface.PROTOTYPES}
    queries: ClassVar[Mapping[str, Surface]] = {
        **DPHead.queries,
        SUMS: Surface.PROTOTYPES,
        MOMENTS: Surface.PROTOTYPES,
    }
    broadcasts: ClassVar[Mapping[str, Surface]] = {
        "model": Surface.GLOBAL_MODEL,
        "images": Surface.GLOBAL_IMAGES,
        "labels": Surface.GLOBAL_IMAGES,
        "network": Surface.GLOBAL_MODEL,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, most in (("read_rounds", "rounds"), ("varied_rounds", "read_rounds")):
            if not 1 <= getattr(self, name) <= getattr(self, most):
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: at least 1, and at most "
                    f"{most}={getattr(self, most)}"
                )
        if not 0 < self.reach < float("inf"):
            raise ValueError(f"reach={self.reach!r}: a finite number above 0")
        if self.clip_norm is not None and not 0 < self.clip_norm < float("inf"):
            raise ValueError(f"clip_norm={self.clip_norm!r}: a finite number above 0, or null")
        if self.varied.side > self.looks.side:
            raise ValueError(
                f"varied.side={self.varied.side}: at most looks.side={self.looks.side}"
            )
        check_no_batch_norm(self.model.norm, "model")

    def released_through(
        self, mechanisms: Mapping[str, Mechanism], problem: Problem
    ) -> FedDMGuided:
        """Itself, where every class is drawn. Raises ValueError, one line."""
        if self.guiding.drawn < problem.classes:
            raise ValueError(
                f"algo.guiding.drawn={self.guiding.drawn}: at least {problem.classes}, "
                "one for each class of the data"
            )
        return self

    def _queries_of_round(self, round: int) -> list[str]:
        """The queries besides the head's in a round."""
        return [
            name
            for name, reads in ((SUMS, self.read_rounds), (MOMENTS, self.varied_rounds))
            if round < reads
        ]

    def from_rows(
        self, broadcast: Values, rows: Tensor, shard: ClientData, ctx: ClientContext
    ) -> Work:
        upload = dict(super().from_rows(broadcast, rows, shard, ctx)[0])
        read = {SUMS: self._release_class_sums, MOMENTS: self._release_moments}
        parts = [
            read[name](self._sample_records(name, shard.train, ctx), ctx)
            for name in self._queries_of_round(ctx.round)
        ]
        if parts:
            private = all(ctx.protected(name) for name in self._queries_of_round(ctx.round))
            upload["prototypes"] = Artifact(
                {k: t for part in parts for k, t in part.items()}, private=private
            )
        return upload, {}

    def _sample_records(self, name: str, records: Records, ctx: ClientContext) -> Records:
        if ctx.protected(name):
            return records.take(ctx.sample(name, len(records)).to(records.y.device))
        return records

    def _release_class_sums(self, records: Records, ctx: ClientContext) -> State:
        """For each class, the sum of its records' contributions (``_look_contributions``), and
        their number."""
        part = _alone(self._counted_contributions, records.x)
        rows = torch.cat([part, torch.full_like(part[:, :1], COUNTED)], 1)
        made = [
            _release_sum(SUMS, rows[records.y == label], ctx, name_class_cell(label))
            for label in ctx.problem.class_list
        ]
        total = torch.stack([sums for sums, _ in made])
        return {
            "sum": total[:, :-1],
            "count": total[:, -1] / COUNTED,
            "variance": torch.tensor([made[0][1]]),
        }

    def _release_moments(self, records: Records, ctx: ClientContext) -> State:
        """The sum of a a' over what records add, of all (1, q, q) or of each class (C, q, q): as
        long as a is, squared."""
        added = _alone(self._look_contributions, records.x)[
            :, self.varied.positions_in(self.looks, ctx.problem.shape)
        ]
        cells = [
            (name_class_cell(label), added[records.y == label]) for label in ctx.problem.class_list
        ]
        made = [
            _release_sum(MOMENTS, OuterProducts(rows, rows), ctx, cell)
            for cell, rows in (cells if self.by_class else [(None, added)])
        ]
        total = torch.stack([moments for moments, _ in made])
        return {"moments": (total + total.mT) / 2, "moments_variance": torch.tensor([made[0][1]])}

    def _look_contributions(self, x: Tensor) -> Tensor:
        """The contributions of records (n, c, h, w) to a sum: their looks over their norm, or over
        ``reach`` if that is larger."""
        looks = self.looks(x)
        return looks / looks.norm(dim=1, keepdim=True).clamp_min(self.reach)

    def _counted_contributions(self, x: Tensor) -> Tensor:
        """The contributions scaled to leave room for the number that counts the record."""
        return self._look_contributions(x) * math.sqrt(1 - COUNTED**2)

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        """The head's next step; after the last round, the data set and a network that is trained on
        it."""
        clients = sort_by_client(inbox)
        before = server
        server = super().aggregate(server, inbox, keys)
        gradient = server["velocity/head.weight"] - self.momentum * before["velocity/head.weight"]
        for name, new in (("weights", before["model/head.weight"]), ("gradients", gradient)):
            if f"path/{name}" in before:
                past = [before[f"path/{name}"]]
            else:
                past = []
            server[f"path/{name}"] = torch.cat([*past, new[None]])
        sent = [one.values["prototypes"] for one in clients if "prototypes" in one.values]
        for name in sent[0] if sent else ():
            total = torch.stack([one[name].double() for one in sent]).sum(0)
            server[f"sums/{name}"] = server.get(f"sums/{name}", 0.0) + total
        if clients[0].round + 1 == self.rounds:
            server |= self._publish_dataset(server, keys)
        return server

    def _publish_dataset(self, server: State, keys: Keys) -> State:
        shape = tuple(server["seen/shape"].tolist())
        weight = server["model/head.weight"]
        classes = len(server["model/head.weight"])

        def score_images(x: Tensor) -> Tensor:
            return self.rows(x) @ weight.T

        if self.clip_norm is None:
            longest = None
        else:
            longest = self.clip_norm * math.sqrt(1 - HEAD_COUNTED**2)
        path = GradientPath(
            server["path/weights"], server["path/gradients"], server["sums/count"], longest
        )

        def fit_images(images: Tensor, y: Tensor) -> Tensor:
            return fit_to_gradients(images, y, self.rows, path, self.guiding.fitting)

        x, soft = build_guided_set(
            self._estimate_classes(server, shape),
            self.looks,
            score_images,
            shape,
            self.guiding,
            keys,
            fit_images,
        )
        start = initial(self.model, shape, classes, keys.fold("network").torch())
        trained = train_on_soft_labels(
            build_skeleton(self.model, shape, classes),
            start,
            x,
            soft,
            self.server,
            keys.fold("batch"),
        )
        labels = {"y": soft.argmax(1), "soft": soft}
        return {"images/x": x, **pack("labels", labels), **pack("network", trained)}

    def _estimate_classes(self, server: State, shape: RecordShape) -> ClassModel:
        """How the records of each class look, by the mean of all reads."""
        at = self.varied.positions_in(self.looks, shape)
        unit = self.reach / math.sqrt(1 - COUNTED**2)
        sums = unpack("sums", server)
        twice = self.varied_rounds
        given = {
            "sum": sums["sum"] * unit / self.read_rounds,
            "count": sums["count"] / self.read_rounds,
            "variance": sums["variance"] * (unit / self.read_rounds) ** 2,
            "moments": sums["moments"] * self.reach**2 / twice,
            "moments_variance": sums["moments_variance"] * (self.reach**2 / twice) ** 2,
        }
        return estimate_class_model(given, self.looks.frequency_bands(shape), at)

    def init(self, problem: Problem, keys: Keys) -> State:
        return {**super().init(problem, keys), "seen/shape": torch.tensor(problem.shape)}

    def predict(self, server: State, memory: State | None, x: Tensor) -> Tensor:
        """Logits (n, C) of the network that was trained on the data set; of the head until there is
        one."""
        state = unpack("network", server)
        if not state:
            return super().predict(server, memory, x)
        return predict_images(self.model, state, x)

    def releases_per_round(self, round: int, mechanisms: Mapping[str, Mechanism]) -> dict[str, int]:
        read = {name: 1 for name in self._queries_of_round(round) if name in mechanisms}
        return {**super().releases_per_round(round, mechanisms), **read}

    def maps(self, broadcast: Values, memory: State, problem: Problem) -> dict[str, Any]:
        """A record to what it adds to its class's sum."""
        return {"embedding": self._counted_contributions, "public": self._counted_contributions}


def _alone(look: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``look`` at records (n, ...): each row from its own record alone, in every bit."""
    return compute_rows(lambda _, part: {"": look(part)}, {}, x)[""]


def _release_sum(
    name: str, rows: Part, ctx: ClientContext, cell: str | None = None
) -> tuple[Tensor, float]:
    """(the sum of the rows (n, ...), each at most 1 long; the variance of the noise in it): noised
    where that is set."""
    if not ctx.protected(name):
        return (rows.sum(0) if isinstance(rows, Tensor) else rows.left.T @ rows.right), 0.0
    mechanism = ctx.mechanisms[name]
    clip = float(mechanism.clip_norm)  # type: ignore[attr-defined]
    std = float(mechanism.noise_std)  # type: ignore[attr-defined]
    scaled = scale_records(FactoredRows({"sum": rows}), torch.full(rows.shape[:1], clip))
    return ctx.mechanism(name, scaled, partition=cell)["sum"] / clip, (std / clip) ** 2
