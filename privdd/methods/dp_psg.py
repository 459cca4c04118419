"""Private set generation at every client: images that follow noised gradients of its records,
pooled by the server.

Chen, Kerkouche and Fritz, "Private Set Generation with Discriminative Information" (NeurIPS 2022),
whose one holder of all data is here each client: a baseline for distilled data sets with a
guarantee. One round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch

from attacks.types import Surface
from attacks.validation import check_counts
from privdd.core.rng import Keys
from privdd.core.types import Artifact, ClientData, Received, State, Values, Work, pack, unpack
from privdd.distillation.class_cells import PUBLIC_STARTS, draw_public_start
from privdd.distillation.gradient_matching import (
    SET_GRADIENT_QUERY,
    SetGeneration,
    generate_set,
    noised_gradient,
    plain_gradient,
)
from privdd.federated.channel import ClientContext
from privdd.methods.base import ServerNetwork
from privdd.models import build_skeleton, initial
from privdd.privacy.mechanism import Mechanism
from privdd.training.server import ServerTraining, train_on_uploads


@dataclass(frozen=True, kw_only=True)
class DPPSG(ServerNetwork):
    """model: also that of the networks whose gradients are matched; generation: how images learn;
    ipc: images per class;
    start: what they start as; server: its training.

    With a mechanism for "set_gradient" every class of the public list is sent. Without one nothing
    is clipped or noised, the gradient is that of all records (dataset condensation), and a client
    sends the classes that it holds."""

    generation: SetGeneration
    server: ServerTraining
    ipc: int = 10
    start: Literal["noise", "smooth"] = "noise"

    uploads: ClassVar[Mapping[str, Surface]] = {
        "images": Surface.SYNTHETIC_IMAGES,
        "labels": Surface.LABELS,
    }
    queries: ClassVar[Mapping[str, Surface]] = {SET_GRADIENT_QUERY: Surface.GRADIENT}
    rounds: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_counts(self, "ipc")
        if self.start not in PUBLIC_STARTS:
            raise ValueError(
                f"start={self.start!r}: allowed are {', '.join(PUBLIC_STARTS)}, which "
                "read no record"
            )
        super().__post_init__()

    def local(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> Work:
        private = ctx.protected(SET_GRADIENT_QUERY)
        train = shard.train
        like = broadcast["model"]["head.weight"]
        if private:
            held = ctx.problem.class_list
        else:
            held = train.y.unique().tolist()
        labels = torch.tensor(held, dtype=torch.long).repeat_interleave(self.ipc)
        start = draw_public_start(
            self.start, torch.tensor(held), self.ipc, shard.shape, ctx.keys.fold("start")
        )
        images = start.flatten(0, 1).to(like)
        y = labels.to(like.device)
        if len(y):
            model = build_skeleton(self.model, shard.shape, shard.classes)
            if private:
                read = noised_gradient(model, train, ctx)
            else:
                read = plain_gradient(model, train)

            def draw_state(number: int) -> State:  # the same for all clients
                generator = ctx.public("networks", number).torch()
                return {
                    n: t.to(like)
                    for n, t in initial(self.model, shard.shape, shard.classes, generator).items()
                }

            images = generate_set(images, y, model, draw_state, read, self.generation, ctx.keys)
        return {
            "images": Artifact({"x": images}, private=private),
            "labels": Artifact({"y": labels}, private=private),
        }, {}

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        after = train_on_uploads(
            self.model, unpack("model", server), inbox, "images", self.server, keys
        )
        return {**server, **pack("model", after)}

    def releases_per_round(self, round: int, mechanisms: Mapping[str, Mechanism]) -> dict[str, int]:
        return {
            name: self.generation.release_count for name in mechanisms if name == SET_GRADIENT_QUERY
        }

    def images_per_class(self) -> int:
        return self.ipc

    def with_images_per_class(self, count: int) -> DPPSG:
        return replace(self, ipc=count)

    def settings(self, shard_size: int) -> Mapping[str, Any]:
        g = self.generation
        return {
            "lr": g.lr,
            "momentum": g.momentum,
            "batch_size": max(1, shard_size),
            "local_steps": g.release_count,
            "ipc": self.ipc,
        }
