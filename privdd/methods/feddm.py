"""FedDM: clients send distilled images, the server trains on their union.

Xiong, Wang, Cheng, Yu and Hsieh, "FedDM: Iterative Distribution Matching for
Communication-Efficient Federated Learning" (CVPR 2023), algorithm 1 and equations 8, 9 and 15.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from attacks.types import Surface
from attacks.validation import check_counts, check_positive
from privdd.core.rng import Keys
from privdd.core.types import (
    ClientData,
    Problem,
    Received,
    Shard,
    State,
    Values,
    Work,
    pack,
    unpack,
)
from privdd.distillation.class_cells import (
    PUBLIC_STARTS,
    ClassCells,
    batched_cells,
    build_set_upload,
    build_uploads,
    carry_over_images,
    check_init,
    draw_initial_images,
    draw_public_start,
    images_to_memory,
    memory_of_replay,
    single_client_cells,
    start_streams,
    warn_short_classes,
)
from privdd.distillation.diagnostics import rows_in_message
from privdd.distillation.distribution_matching import (
    MatchingSettings,
    MatchingStreams,
    Networks,
    build_embedder,
    match_distributions,
    networks_in_ball,
    project_to_ball,
    record_transform_of,
)
from privdd.distillation.image_fitting import FittingSettings
from privdd.distillation.private_matching import (
    MatchingSteps,
    check_fitting_settings,
    count_queries,
    draw_public_maps,
    fit_embeddings,
    is_protected,
    match_embeddings,
    match_noised_gradients,
    restrict_as_printed,
    step_maps,
)
from privdd.distillation.public_map import PublicExtractor
from privdd.federated.audit_hooks import Distils, ImageMatching, RecordTransform
from privdd.federated.channel import ClientContext
from privdd.methods.base import ServerNetwork
from privdd.models import build_skeleton
from privdd.privacy.claims import (
    Claim,
    ClaimedRun,
    feddm_3_1,
    feddm_3_2,
    feddm_membership,
    matching_claims,
)
from privdd.privacy.mechanism import Mechanism
from privdd.training.server import ServerTraining, ball_projected_loss, train_on_uploads


@dataclass(frozen=True, kw_only=True)
class FedDM(ServerNetwork, Distils):
    """Images per class are matched in networks around the server's model, then pooled by the
    server.

    Without a mechanism a client sends the classes it holds: a class with fewer records than ``ipc``
    starts from its records over again, a client without records sends an empty set. With one, all
    classes of the public list are sent, and they start from noise.

    Attributes:
        rounds: how often clients distil and the server trains.
        matching: the clients' steps.
        server: the server's training.
        ipc: images per class.
        start: what images start from each round.
        carry_over: go on from the last round's images instead.
        rho: radius of the ball around the server's model, for client and server.
        logits: match them beside the features.
        reads: noised reads of the records a round, with a mechanism for "embedding".
        extractor: a public pre-trained map to match in, instead of networks in the ball
            (pre-training that the paper does not use). It never changes, so that one noised read a
            round is all it takes.
        fitting: how images then follow what was read, with a mechanism for "embedding" only; None:
            as ``matching`` says.
        least: classes of a smaller noised count are not sent, with a mechanism for "class_counts"
            only.
    """

    rounds: int
    matching: MatchingSettings
    server: ServerTraining
    ipc: int = 10
    start: Literal["real", "noise", "smooth", "statistics"] = "real"
    carry_over: bool = False
    rho: float = 5.0
    logits: bool = True
    reads: int = 4
    extractor: PublicExtractor | None = None
    fitting: FittingSettings | None = None
    least: float = 0.0

    uploads: ClassVar[Mapping[str, Surface]] = {
        "images": Surface.SYNTHETIC_IMAGES,
        "labels": Surface.LABELS,
    }
    queries: ClassVar[Mapping[str, Surface]] = {
        "embedding": Surface.PROTOTYPES,
        "synthetic_gradient": Surface.GRADIENT,
        "class_counts": Surface.COUNTS,
    }
    worlds_per_pass: ClassVar[int] = 16
    shares_work: ClassVar[bool] = True
    on_gpu = "matching"

    def __post_init__(self) -> None:
        check_counts(self, "rounds", "ipc", "reads")
        check_positive(self, "rho")
        check_init(self.start)
        if self.carry_over and self.start == "real":
            raise ValueError(
                "carry_over=True: not with start=real, which draws new records each round"
            )
        super().__post_init__()
        if self.extractor is not None and self.reads != 1:
            raise ValueError(
                f"reads={self.reads}: 1 with an extractor, which shows the same at every read"
            )
        if self.fitting is not None and self.extractor is None:
            raise ValueError("fitting: needs an extractor, for it follows one fixed map")
        if not 0 <= self.least < float("inf") or (self.least and self.fitting is None):
            raise ValueError(
                f"least={self.least!r}: a finite number from 0, above 0 with fitting only"
            )

    def local(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> Work:
        if is_protected(ctx.mechanisms):
            return self._distil_protected(broadcast, memory, shard, ctx)
        if self.start == "real" and ctx.round == 0:
            warn_short_classes(shard, self.ipc, ctx.keys)
        cells = single_client_cells(shard.train, shard.classes)
        images = self._distil_cells(cells, broadcast, memory, shard, ctx)
        if self.carry_over:
            memory = images_to_memory(images, cells.labels)
        else:
            memory = {}
        return build_uploads(cells, images)[0], memory

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        """Train the model on the union, inside the ball around where it stood (equations 3, 9).

        w_{r+1} = argmin over w in B_rho(w_r) of sum_k (n_k^S / n) f_{r,k}(S_k; w)
        """
        before = unpack("model", server)
        loss = ball_projected_loss(before, self.rho)
        after = train_on_uploads(self.model, before, inbox, "images", self.server, keys, loss)
        return {**server, **pack("model", project_to_ball(after, before, self.rho))}

    def check_mechanisms(self, mechanisms: Mapping[str, Mechanism]) -> None:
        check_fitting_settings(self.fitting, self.least, mechanisms)
        if is_protected(mechanisms) and self.start not in PUBLIC_STARTS:
            raise ValueError(
                f"start={self.start!r}: a guarantee needs start=noise or smooth, others "
                "read the records"
            )

    def releases_per_round(self, round: int, mechanisms: Mapping[str, Mechanism]) -> dict[str, int]:
        return count_queries(mechanisms, self.reads, self.matching.iterations)

    def record_transform(self, problem: Problem) -> RecordTransform | None:
        return record_transform_of(self.matching.augment, problem.shape)

    def distillation(self) -> ImageMatching:
        still = replace(
            self, matching=replace(self.matching, iterations=0), fitting=None, least=0.0
        )
        network = "_mlp" if self.model.name == "mlp" else ""
        return ImageMatching(
            still,
            self.model,
            lambda sent, _: rows_in_message(sent, "images"),
            self.matching.lr,
            f"matching_{self.start}{network}",
        )

    def images_per_class(self) -> int:
        return self.ipc

    def with_images_per_class(self, count: int) -> FedDM:
        return replace(self, ipc=count)

    def settings(self, shard_size: int) -> dict[str, Any]:
        return {
            "lr": self.matching.lr,
            "momentum": self.matching.momentum,
            "batch_size": self.matching.batch,
            "local_steps": self.matching.iterations,
            "ipc": self.ipc,
        }

    def maps(
        self, broadcast: Values, memory: State, problem: Problem
    ) -> dict[str, Callable[[Tensor], Tensor]]:
        """The matched maps: images -> features (and logits) at the centre of the ball, or the
        extractor's (public)."""
        if self.extractor is not None:
            return {"embedding": self.extractor, "public": self.extractor}
        network = self.classifier(problem)
        return {"embedding": build_embedder(network, broadcast["model"], logits=self.logits)}

    def upload_uses_memory(self, round: int, memory: State) -> bool:
        return self.carry_over and round > 0

    def claims(self, plan: ClaimedRun, shards: Sequence[Shard]) -> list[Claim]:
        public = self.start in PUBLIC_STARTS
        theorems = (feddm_3_2, feddm_3_1)
        printed = matching_claims(theorems, plan, shards, self.matching, noise_init=public)
        return [*printed, feddm_membership()]

    def matching_steps(
        self, broadcast: Values, shard: ClientData, ctx: ClientContext
    ) -> MatchingSteps:
        networks = self._matching_networks(broadcast, shard, ctx)
        streams = MatchingStreams.of_round(ctx)
        maps = step_maps(networks, self.matching, streams, shard.shape)
        return MatchingSteps(maps, self.matching)

    def local_batched(
        self,
        broadcast: Values,
        memories: Sequence[State],
        shards: Sequence[ClientData],
        contexts: Sequence[ClientContext],
    ) -> Sequence[Work] | None:
        """The rounds share the first one's batches, so each record is embedded once for all.

        What images start from is each context's own. None under noise, and if something is
        remembered."""
        if is_protected(contexts[0].mechanisms) or any(memories):
            return None
        cells = batched_cells(shards)
        start_keys = [ctx.keys for ctx in contexts]
        images = self._distil_cells(cells, broadcast, {}, shards[0], contexts[0], start_keys)
        if self.carry_over:
            states = [memory_of_replay(cells, images, world) for world in range(len(shards))]
        else:
            states = [{} for _ in shards]
        return list(zip(build_uploads(cells, images), states))

    def _matching_networks(
        self, broadcast: Values, shard: ClientData, ctx: ClientContext
    ) -> Networks:
        """Step -> the map to match in: w ~ Clip(N(w_r, 1), rho) (equation 15), or the extractor."""
        extractor = self.extractor
        if extractor is not None:
            return lambda t: extractor
        model = build_skeleton(self.model, shard.shape, shard.classes)
        state = broadcast["model"]
        return networks_in_ball(
            model, state, state, self.rho, ctx.public("networks"), logits=self.logits
        )

    def _distil_cells(
        self,
        cells: ClassCells,
        broadcast: Values,
        memory: State,
        shard: ClientData,
        ctx: ClientContext,
        start_keys: Sequence[Keys] | None = None,
    ) -> Tensor:
        """Images that minimise equation 8 in each class, h_w the features and z_w the logits.

        L_DM = E_{w in B_rho(w_r)} || mean_D h_w(x) - mean_S h_w(s) ||^2
             + E_{w in B_rho(w_r)} || mean_D z_w(x) - mean_S z_w(s) ||^2
        """
        streams = start_streams(cells, ctx.keys, start_keys)
        start = draw_initial_images(self.start, cells, self.ipc, shard.shape, streams)
        images = carry_over_images(start, cells.labels, memory)
        networks = self._matching_networks(broadcast, shard, ctx)
        streams_of_round = MatchingStreams.of_round(ctx)
        return match_distributions(cells, images, networks, self.matching, streams_of_round)

    def _distil_protected(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> Work:
        """Images of every class (as printed: of those held), from noise and what the mechanisms
        released."""
        self.check_mechanisms(ctx.mechanisms)
        sound = ctx
        ctx = restrict_as_printed(shard, ctx)
        labels = torch.tensor(ctx.problem.class_list)
        start = draw_public_start(
            self.start, labels, self.ipc, shard.shape, ctx.keys.fold("start")
        ).to(broadcast["model"]["head.weight"])
        images = carry_over_images(start, labels, memory)
        networks = self._matching_networks(broadcast, shard, ctx)
        streams = MatchingStreams.of_round(ctx)
        if ctx.protected("embedding") and self.fitting is not None:
            images, kept = fit_embeddings(
                images, networks(0), shard.train, self.fitting, ctx, least=self.least
            )
            labels = labels[kept]
        elif ctx.protected("embedding"):
            views = draw_public_maps(networks, self.reads, shard.shape, self.matching, streams)
            images = match_embeddings(images, views, shard.train, self.matching, ctx)
        else:
            images = match_noised_gradients(
                images, networks, shard.train, self.matching, streams, ctx
            )
        upload = build_set_upload(images, labels, private=ctx is sound)
        return upload, images_to_memory(images, labels) if self.carry_over else {}
