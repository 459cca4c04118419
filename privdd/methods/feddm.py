"""FedDM: clients send distilled images, the server trains on their union.

Xiong, Wang, Cheng, Yu and Hsieh, "FedDM: Iterative Distribution Matching for Communication-Efficient
Federated Learning" (CVPR 2023), algorithm 1 and equations 8, 9 and 15.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from attacks.ranges import check_counts, check_positive
from attacks.types import Surface
from privdd.core.keys import Keys
from privdd.core.state import pack, unpack
from privdd.core.types import Artifact, Problem, Received, Shard, State, Values, Work
from privdd.distillation.class_subsets import Cells, batched_cells, one_world, uploads
from privdd.distillation.distribution_matching import Matching, Streams, match
from privdd.distillation.fitting import Fitting
from privdd.distillation.initial_images import (
    PUBLIC,
    carried,
    check_init,
    initial_images,
    kept,
    public_start,
    remembered,
    starts,
    warn_short,
)
from privdd.distillation.networks import Networks, ball, embedder, to_ball
from privdd.distillation.private_matching import (
    Steps,
    fit_embeddings,
    is_protected,
    match_embeddings,
    match_protected,
    public_views,
    refuse_batch_norm,
    refuse_ignored,
    seen_maps,
    spent,
)
from privdd.distillation.public_features import AlexNet
from privdd.distillation.random_features import RandomCosine
from privdd.federated.channel import ClientContext
from privdd.federated.method import Method
from privdd.models import ModelSpec, build, initial
from privdd.models.build import skeleton
from privdd.privacy.claims import Claim, feddm_3_1, feddm_3_2, feddm_membership, matching_claims
from privdd.privacy.mechanism import Mechanism
from privdd.training.local import outputs
from privdd.training.server import ServerTraining, inside_ball, train_on, union


@dataclass(frozen=True, kw_only=True)
class FedDM(Method):
    """Images per class are matched in networks around the server's model, then pooled by the server.

    model: must treat each image alone (no batch norm); ipc: images per class; start: real | noise | smooth |
    statistics, what images start from each round; carry_over: go on from last
    round's images instead; rho: radius of the ball around the server's model for client and server;
    logits: match them beside the features; matching: the clients' steps; server: the server's
    training; reads: noised reads of the records a round, where a mechanism is set for "embedding".

    extractor: a public pre-trained map to match in, instead of networks in the ball (pre-training that the
    paper does not use). It never changes, so that one noised read a round is all it takes; fitting: how images
    then follow what was read (None: as ``matching`` says), with a mechanism for "embedding" only; least: classes
    whose noised count is below are not sent, with one for "class_counts" only.

    Without a mechanism a client sends the classes it holds: a class with fewer records than ``ipc``
    starts from its records over again, a client without records sends an empty set. With one, all
    classes of the public list are sent, and they start from noise.
    """

    model: ModelSpec
    rounds: int
    matching: Matching
    server: ServerTraining
    ipc: int = 10
    start: Literal["real", "noise", "smooth", "statistics"] = "real"
    carry_over: bool = False
    rho: float = 5.0
    logits: bool = True
    reads: int = 4
    extractor: AlexNet | RandomCosine | None = None
    fitting: Fitting | None = None
    least: float = 0.0

    uploads: ClassVar[Mapping[str, Surface]] = {"images": Surface.SYNTHETIC_IMAGES, "labels": Surface.LABELS}
    queries: ClassVar[Mapping[str, Surface]] = {
        "embedding": Surface.PROTOTYPES,
        "synthetic_gradient": Surface.GRADIENT,
        "class_counts": Surface.COUNTS,
    }
    broadcasts: ClassVar[Mapping[str, Surface]] = {"model": Surface.GLOBAL_MODEL}

    worlds_per_pass: ClassVar[int] = 16
    shares_work: ClassVar[bool] = True
    on_gpu = "matching"

    def __post_init__(self) -> None:
        check_counts(self, "rounds", "ipc", "reads")
        check_positive(self, "rho")
        check_init(self.start)
        if self.carry_over and self.start == "real":
            raise ValueError("carry_over=True: not with start=real, which draws new records each round")
        refuse_batch_norm(self.model.norm, "model")
        if self.extractor is not None and self.reads != 1:
            raise ValueError(f"reads={self.reads}: 1 with an extractor, which shows the same at every read")
        if self.fitting is not None and self.extractor is None:
            raise ValueError("fitting: needs an extractor, for it follows one fixed map")
        if not 0 <= self.least < float("inf") or (self.least and self.fitting is None):
            raise ValueError(f"least={self.least!r}: a finite number from 0, above 0 with fitting only")

    # --- the method protocol ------------------------------------------------------------------

    def init(self, problem: Problem, keys: Keys) -> State:
        return pack("model", initial(self.model, problem.shape, problem.classes, keys.fold("model").torch()))

    def local(self, broadcast: Values, memory: State, shard: Shard, ctx: ClientContext) -> Work:
        if is_protected(ctx.mechanisms):
            return self._protected(broadcast, memory, shard, ctx)
        if self.start == "real" and ctx.round == 0:
            warn_short(shard, self.ipc, ctx.keys)
        cells = one_world(shard.train, shard.classes)
        images = self._distil(cells, broadcast, memory, shard, ctx)
        return uploads(cells, images)[0], remembered(images, cells.labels) if self.carry_over else {}

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        """Train the model on the union, inside the ball around where it stood."""
        before, pooled = unpack("model", server), union(inbox, "images")
        model = skeleton(self.model, tuple(pooled.x.shape[1:]), len(before["head.weight"]))  # type: ignore[arg-type]
        generator = keys.fold("batch").torch()
        after = train_on(model, before, pooled, self.server, generator, inside_ball(before, self.rho))
        return {**server, **pack("model", to_ball(after, before, self.rho))}

    def predict(self, server: State, memory: State | None, x: Tensor) -> Tensor:
        """Logits (n, C) of the global model."""
        state = unpack("model", server)
        return outputs(skeleton(self.model, tuple(x.shape[1:]), len(state["head.weight"])), state, x)  # type: ignore[arg-type]

    def check_mechanisms(self, mechanisms: Mapping[str, Mechanism]) -> None:
        refuse_ignored(self.fitting, self.least, mechanisms)
        if is_protected(mechanisms) and self.start not in PUBLIC:
            raise ValueError(f"start={self.start!r}: a guarantee needs start=noise or smooth, others read the records")

    def spends(self, round: int, mechanisms: Mapping[str, Mechanism]) -> dict[str, int]:
        """How often one client applies each mechanism to one class in one round."""
        return spent(mechanisms, self.reads, self.matching.iterations)

    # --- what an auditor needs ----------------------------------------------------------------

    def classifier(self, problem: Problem) -> nn.Module:
        """The architecture that the server trains."""
        return build(self.model, problem.shape, problem.classes)

    def sent_state(self, broadcast: Values) -> State | None:
        """The model as the server sent it; a synthetic set implies no model by itself."""
        return dict(broadcast["model"])

    def images_per_class(self) -> int:
        return self.ipc

    def with_images_per_class(self, count: int) -> FedDM:
        return replace(self, ipc=count)

    def settings(self, shard_size: int) -> dict[str, Any]:
        """The protocol's public numbers."""
        m = self.matching
        return {"lr": m.lr, "momentum": m.momentum, "batch_size": m.batch, "local_steps": m.iterations, "ipc": self.ipc}

    def maps(self, broadcast: Values, memory: State, problem: Problem) -> dict[str, Callable[[Tensor], Tensor]]:
        """What is matched: images -> features (and logits) at the centre of the ball, or the extractor's (public)."""
        if self.extractor is not None:
            return {"embedding": self.extractor, "public": self.extractor}
        return {"embedding": embedder(self.classifier(problem), broadcast["model"], logits=self.logits)}

    def remembers(self, round: int, memory: State) -> bool:
        """Whether a round's upload reads what the client kept."""
        return self.carry_over and round > 0

    def claims(self, plan: Any, shards: Sequence[Shard]) -> list[Claim]:
        """Theorems 3.1 and 3.2 as printed, where the matching gradients are noised; what is said in words."""
        m, public = self.matching, self.start in PUBLIC
        theorems = (feddm_3_2, feddm_3_1)
        printed = matching_claims(theorems, plan, shards, iterations=m.iterations, batch=m.batch, noise_init=public)
        return [*printed, feddm_membership()]

    def steps(self, broadcast: Values, shard: Shard, ctx: ClientContext) -> Steps:
        """What everyone knows of a round's noised steps."""
        networks, streams = (
            self._networks(broadcast, shard, ctx),
            Streams(ctx.keys.fold("batch"), ctx.public("augment")),
        )
        return Steps(seen_maps(networks, self.matching, streams, shard.shape), self.matching)

    def local_batched(
        self, broadcast: Values, memories: Sequence[State], shards: Sequence[Shard], contexts: Sequence[ClientContext]
    ) -> Sequence[Work] | None:
        """The rounds share the first one's batches, so each real record is embedded once for all of them.

        Where images start is each context's own. None under noise, or where something is remembered.
        """
        if is_protected(contexts[0].mechanisms) or any(memories):
            return None
        cells, own = batched_cells(shards), [ctx.keys for ctx in contexts]
        images = self._distil(cells, broadcast, {}, shards[0], contexts[0], own)
        states = [kept(cells, images, world) if self.carry_over else {} for world in range(len(shards))]
        return list(zip(uploads(cells, images), states))

    # --- distillation -------------------------------------------------------------------------

    def _networks(self, broadcast: Values, shard: Shard, ctx: ClientContext) -> Networks:
        if (extractor := self.extractor) is not None:
            return lambda t: extractor
        model, state = skeleton(self.model, shard.shape, shard.classes), broadcast["model"]
        return ball(model, state, state, self.rho, ctx.public("networks"), logits=self.logits)

    def _distil(
        self,
        cells: Cells,
        broadcast: Values,
        memory: State,
        shard: Shard,
        ctx: ClientContext,
        own: Sequence[Keys] | None = None,
    ) -> Tensor:
        start = initial_images(self.start, cells, self.ipc, shard.shape, starts(cells, ctx.keys, own))
        images = carried(start, cells.labels, memory)
        streams = Streams(ctx.keys.fold("batch"), ctx.public("augment"))
        return match(cells, images, self._networks(broadcast, shard, ctx), self.matching, streams)

    def _protected(self, broadcast: Values, memory: State, shard: Shard, ctx: ClientContext) -> Work:
        """Images of every class, from noise and what the mechanisms released."""
        self.check_mechanisms(ctx.mechanisms)
        labels = torch.tensor(ctx.problem.class_list)
        start = public_start(self.start, labels, self.ipc, shard.shape, ctx.keys.fold("start")).to(
            broadcast["model"]["head.weight"]
        )
        images = carried(start, labels, memory)
        networks, streams = (
            self._networks(broadcast, shard, ctx),
            Streams(ctx.keys.fold("batch"), ctx.public("augment")),
        )
        if ctx.protected("embedding") and self.fitting is not None:
            images, kept = fit_embeddings(images, networks(0), shard.train, self.fitting, ctx, least=self.least)
            labels = labels[kept]
        elif ctx.protected("embedding"):
            views = public_views(networks, self.reads, shard.shape, self.matching, streams)
            images = match_embeddings(images, views, shard.train, self.matching, ctx)
        else:
            images = match_protected(images, networks, shard.train, self.matching, streams, ctx)
        upload = {
            "images": Artifact({"x": images.flatten(0, 1)}, private=True),
            "labels": Artifact({"y": labels.repeat_interleave(self.ipc)}, private=True),
        }
        return upload, remembered(images, labels) if self.carry_over else {}
