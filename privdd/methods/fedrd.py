"""FedRD: clients send distilled representations of a personal projection, the server trains on
them.

"Federated Learning via Representation Distillation" (FedRD), algorithm 1 and equations 2, 5 and 7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from attacks.types import Surface
from attacks.validation import check_counts, check_positive
from privdd.core.device import to_device
from privdd.core.rng import Keys
from privdd.core.types import (
    Artifact,
    ClientData,
    Problem,
    Received,
    RecordShape,
    Shard,
    State,
    Tensors,
    Upload,
    Values,
    Work,
    pack,
    unpack,
)
from privdd.distillation.class_cells import (
    build_set_upload,
    build_uploads,
    check_init,
    draw_initial_images,
    draw_noise_images,
    single_client_cells,
    warn_short_classes,
)
from privdd.distillation.diagnostics import rows_in_message
from privdd.distillation.distribution_matching import (
    Embed,
    MatchingSettings,
    MatchingStreams,
    Networks,
    embed_images,
    fresh_networks,
    match_distributions,
    record_embeddings,
    record_transform_of,
)
from privdd.distillation.private_matching import (
    GRADIENT_QUERY,
    MatchingSteps,
    check_no_batch_norm,
    count_queries,
    draw_public_maps,
    is_protected,
    match_embeddings,
    match_noised_gradients,
    restrict_as_printed,
)
from privdd.federated.audit_hooks import (
    Distils,
    FastReplay,
    ImageMatching,
    ReadsUploads,
    RecordTransform,
    StatesClaims,
)
from privdd.federated.channel import ClientContext
from privdd.federated.method import Method
from privdd.models import ModelSpec, build, build_skeleton, initial, projected_shape
from privdd.privacy.claims import (
    Claim,
    ClaimedRun,
    fedrd_1,
    fedrd_not_real,
    fedrd_secret_projection,
    fedrd_table_2,
    matching_claims,
)
from privdd.privacy.mechanism import Mechanism
from privdd.training.dp_sgd import QUERY, count_private_steps, dp_local_sgd
from privdd.training.server import ServerTraining, pool_uploads, train_on_records
from privdd.training.sgd import local_adam, predict_images, split_state

Shape = RecordShape
UPLOAD_NAME = "representations"
PRINTED = (
    "the projection is trained on the records and batch norm couples them, so no record has "
    "a gradient of its own"
)


@dataclass(frozen=True, kw_only=True)
class FedRD(Method, ReadsUploads, StatesClaims, FastReplay, Distils):
    """A client trains its own projection through the frozen task model, then distils what it
    projects.

    A guarantee needs a public projection (``frozen_projection``), or a personal one that is itself
    trained by DP-SGD, through a mechanism for "dpsgd" beside that for the representations: whoever
    trains a projection on the records otherwise lets one record move all representations. The
    ledger composes both. Clients without records, and classes with fewer records than ``dpc``, are
    treated as in FedDM.

    Attributes:
        model: task model on projected images (1, h', w'), also the law of the networks to match in,
            which are new at each step and, with batch norm, in train mode.
        rounds: how often clients distil and the server trains.
        matching: the distillation, its augmentation on real records only (equation 5).
        server: the server's training.
        projection: the personal map, kept by the client and trained on over rounds.
        dpc: representations per class.
        start: what representations start from, in their own space.
        projection_lr, projection_epochs, projection_batch: Adam on the projection.
        private_lr: of the projection by DP-SGD, for ``projection_epochs``.
        frozen_projection: a public projection that the server sends makes the representations, and
            the client's own serves its predictions alone.
        reads: noised reads a round.
        printed: equation 7 and table II as printed, with the personal projection, batch norm and
            augmentation, under a mechanism that clips the batch's mean: no guarantee comes of it.
    """

    model: ModelSpec
    rounds: int
    matching: MatchingSettings
    server: ServerTraining
    projection: ModelSpec = ModelSpec(name="projection")
    dpc: int = 10
    start: Literal["real", "noise", "statistics"] = "real"
    projection_lr: float = 0.01
    projection_epochs: float = 10
    projection_batch: int = 256
    private_lr: float = 1.0
    frozen_projection: bool = False
    reads: int = 4
    printed: bool = False

    uploads: ClassVar[Mapping[str, Surface]] = {
        "representations": Surface.SYNTHETIC_REPRESENTATIONS,
        "labels": Surface.LABELS,
    }
    queries: ClassVar[Mapping[str, Surface]] = {
        "embedding": Surface.PROTOTYPES,
        "synthetic_gradient": Surface.GRADIENT,
        "class_counts": Surface.COUNTS,
        QUERY: Surface.GRADIENT,
    }
    on_gpu = "training of the projection, matching"
    broadcasts: ClassVar[Mapping[str, Surface]] = {
        "model": Surface.GLOBAL_MODEL,
        "buffers": Surface.GLOBAL_MODEL,
        "projection": Surface.GLOBAL_MODEL,
    }
    accuracy_kind: ClassVar[Literal["global", "personal"]] = "personal"

    def __post_init__(self) -> None:
        check_counts(self, "rounds", "dpc", "projection_batch", "reads")
        check_positive(self, "projection_lr", "projection_epochs", "private_lr")
        check_init(self.start)
        if self.printed and (self.frozen_projection or self.start != "noise"):
            raise ValueError(
                "printed=True: table II has a personal projection and starts from noise"
            )
        if self.projection.name != "projection":
            raise ValueError(f"projection.name={self.projection.name!r}: must be projection")

    def init(self, problem: Problem, keys: Keys) -> State:
        shape = projected_shape(self.projection, problem.shape)
        state = initial(self.model, shape, problem.classes, keys.fold("model").torch())
        params, buffers = split_state(build_skeleton(self.model, shape, problem.classes), state)
        server = pack("model", params) | pack("buffers", buffers)
        if self.frozen_projection:
            server |= pack("projection", self._new_projection(problem.shape, problem.classes, keys))
        return server

    def local(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> Work:
        projection = self._train_projection(broadcast, memory, shard, ctx)
        if self.start == "real" and ctx.round == 0:
            warn_short_classes(shard, self.dpc, ctx.keys)
        upload = self._build_upload(broadcast, projection, shard, ctx)
        return upload, self._client_memory(broadcast, projection)

    def memory_after(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> State:
        """The memory that ``local`` would keep, without distilling an upload: a fifth of its
        work."""
        projection = self._train_projection(broadcast, memory, shard, ctx)
        return self._client_memory(broadcast, projection)

    def _client_memory(self, broadcast: Values, projection: Tensors) -> State:
        memory = pack("projection", projection)
        if self.frozen_projection:  # the next task model will not know this projection
            memory |= pack("task", {**broadcast["model"], **broadcast.get("buffers", {})})
        return memory

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        before = unpack("model", server) | unpack("buffers", server)
        pooled = pool_uploads(inbox, "representations")
        shape: Any = tuple(pooled.x.shape[1:])
        model = build_skeleton(self.model, shape, len(before["head.weight"]))
        trained = train_on_records(model, before, pooled, self.server, keys.fold("batch").torch())
        params, buffers = split_state(model, trained)
        return {**server, **pack("model", params), **pack("buffers", buffers)}

    def predict(self, server: State, memory: State | None, x: Tensor) -> Tensor:
        """Logits (n, C) of the task model on a client's own projection.

        If the shared projection is frozen, the task model is the one that the client's own was
        trained through.

        Raises:
            ValueError: without the client's memory: there is no global model of images.
        """
        projection = unpack("projection", memory or {})
        if not projection:
            raise ValueError(
                "memory={}: FedRD predicts with a client's own projection, which is in its memory"
            )
        state = unpack("task", memory or {}) or unpack("model", server) | unpack("buffers", server)
        shape: Any = tuple(x.shape[1:])
        with torch.no_grad():
            z = self._build_projector(projection, shape, len(state["head.weight"]))(x)
        return predict_images(self.model, state, z)

    def releases_per_round(self, round: int, mechanisms: Mapping[str, Mechanism]) -> dict[str, int]:
        counts = count_queries(mechanisms, self.reads, self.matching.iterations)
        if QUERY in mechanisms:
            counts[QUERY] = count_private_steps(mechanisms[QUERY], self.projection_epochs)
        return counts

    def classifier(self, problem: Problem) -> nn.Module:
        return build(self.model, projected_shape(self.projection, problem.shape), problem.classes)

    def settings(self, shard_size: int) -> dict[str, Any]:
        return {
            "lr": self.matching.lr,
            "momentum": self.matching.momentum,
            "batch_size": self.matching.batch,
            "local_steps": self.matching.iterations,
            "ipc": self.dpc,
        }

    def maps(
        self, broadcast: Values, memory: State, problem: Problem
    ) -> dict[str, Callable[[Tensor], Tensor]]:
        """The projection behind the representations: the public one, else the client's own if that
        is known."""
        state = broadcast.get("projection") or unpack("projection", memory)
        if not state:
            return {}
        return {"projection": self._build_projector(state, problem.shape, problem.classes)}

    def record_transform(self, problem: Problem) -> RecordTransform | None:
        """Equation 5: records are transformed before the projection, representations are not."""
        return record_transform_of(self.matching.augment, problem.shape)

    def granted_knowledge(self, surface: Surface) -> str:
        if surface != Surface.SYNTHETIC_REPRESENTATIONS or self.frozen_projection:
            return ""
        return (
            "the adversary is granted the audited client's own projection (kept by the "
            "client, never sent)"
        )

    def distillation(self) -> ImageMatching:
        still = replace(self, matching=replace(self.matching, iterations=0))
        return ImageMatching(
            still,
            self.model,
            lambda sent, _: rows_in_message(sent, UPLOAD_NAME),
            self.matching.lr,
        )

    def images_per_class(self) -> int:
        return self.dpc

    def with_images_per_class(self, count: int) -> FedRD:
        return replace(self, dpc=count)

    def upload_uses_memory(self, round: int, memory: State) -> bool:
        return round > 0 and not self.frozen_projection

    def claims(self, plan: ClaimedRun, shards: Sequence[Shard]) -> list[Claim]:
        frozen = self.frozen_projection
        printed = matching_claims(
            (fedrd_1, fedrd_table_2),
            plan,
            shards,
            self.matching,
            noise_init=self.start == "noise",
            private_map=not frozen,
        )
        return [
            *printed,
            fedrd_not_real(real_start=self.start == "real"),
            fedrd_secret_projection(frozen=frozen),
        ]

    def matching_steps(
        self, broadcast: Values, shard: ClientData, ctx: ClientContext
    ) -> MatchingSteps:
        """The public facts of a round's noised steps; none with a projection that is not public."""
        if "projection" not in broadcast:
            return MatchingSteps(lambda t: lambda x: x, self.matching, untestable=PRINTED)
        shape = projected_shape(self.projection, shard.shape)
        device = broadcast["model"]["head.weight"].device
        networks = self._matching_networks(shape, shard.classes, ctx, device)
        project = self._build_projector(broadcast["projection"], shard.shape, shard.classes)

        def project_noise(noise: Tensor) -> Tensor:
            return project(noise.abs().clamp(max=1)).detach()

        return MatchingSteps(networks, self.matching, project, project_noise)

    def protected_upload(self, broadcast: Values, shard: ClientData, ctx: ClientContext) -> Upload:
        """A client's releases under a guarantee, without the training of its own projection: one
        that is noised may be any."""
        projection = dict(broadcast.get("projection", {}))
        if not projection and ctx.protected(QUERY):
            projection = self._new_projection(shard.shape, shard.classes, ctx.keys)
        if not projection:
            return self.local(broadcast, {}, shard, ctx)[0]
        projection = to_device(projection, shard.train.x.device)
        return self._build_upload(broadcast, projection, shard, ctx)

    def _new_projection(self, shape: Shape, classes: int, keys: Keys) -> State:
        return initial(self.projection, shape, classes, keys.fold("projection").torch())

    def _build_projector(
        self, state: Tensors, shape: Shape, classes: int
    ) -> Callable[[Tensor], Tensor]:
        model = build_skeleton(self.projection, shape, classes)
        fixed = {n: t.detach() for n, t in state.items()}
        return lambda x: functional_call(model, fixed, (x,))

    def _train_projection(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> State:
        """Equation 2: cross-entropy through the frozen task model phi, from where the client left
        off; by DP-SGD if it is protected.

        L = E_{(x, y) ~ D_k} l(phi_theta(varphi_{w_k}(x)), y)
        """
        state: Tensors = unpack("projection", memory) or dict(broadcast.get("projection", {}))
        state = state or self._new_projection(shard.shape, shard.classes, ctx.keys)
        state = to_device(state, shard.train.x.device)
        task = self.classifier(ctx.problem).eval().requires_grad_(False)
        frozen = {**broadcast["model"], **broadcast.get("buffers", {})}
        net = build_skeleton(self.projection, shard.shape, shard.classes)
        if ctx.protected(QUERY):

            def record_loss(params: Tensors, x: Tensor, y: Tensor) -> Tensor:
                projected = functional_call(net, dict(params), (x,))
                return F.cross_entropy(functional_call(task, frozen, (projected,)), y)

            steps = count_private_steps(ctx.mechanisms[QUERY], self.projection_epochs)
            return dp_local_sgd(
                net, state, shard.train, lr=self.private_lr, steps=steps, ctx=ctx, loss=record_loss
            )
        if not len(shard.train):
            return dict(state)

        def batch_loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(task, frozen, (net(x),)), y)

        return local_adam(
            net,
            state,
            shard.train,
            lr=self.projection_lr,
            batch_size=self.projection_batch,
            epochs=self.projection_epochs,
            generator=ctx.keys.fold("projection", "batch").torch(),
            loss=batch_loss,
        )

    def _matching_networks(
        self, shape: Shape, classes: int, ctx: ClientContext, device: torch.device
    ) -> Networks:
        """New networks of the task model's kind, without its last layer."""
        law = partial(initial, self.model, shape, classes)
        model = build_skeleton(self.model, shape, classes)
        return fresh_networks(model, law, ctx.public("networks"), device=device)

    def _build_upload(
        self, broadcast: Values, projection: Tensors, shard: ClientData, ctx: ClientContext
    ) -> Upload:
        """Representations that minimise equation 5 in each class c, A the augmentation.

        L_k = sum_c E_psi || mean_{B_c of D_k} psi(varphi(A(x))) - mean_{B_c of S_k} psi(s) ||^2
        """
        shape = projected_shape(self.projection, shard.shape)
        shared = broadcast.get("projection", projection)
        project = self._build_projector(shared, shard.shape, shard.classes)
        device = broadcast["model"]["head.weight"].device
        networks = self._matching_networks(shape, shard.classes, ctx, device)
        # real records are transformed, projected and embedded, representations are embedded as they
        # are
        settings = replace(self.matching, augment_synthetic=False)
        if self.model.norm == "batch":
            settings = replace(settings, chunk=0)
        if not is_protected(ctx.mechanisms):
            return self._distil_held_classes(project, networks, shard, settings, ctx)
        if self.printed:
            return self._distil_as_printed(project, networks, shard, settings, ctx)
        self.check_mechanisms(ctx.mechanisms)
        return self._distil_protected(project, networks, shard, settings, ctx)

    def _distil_held_classes(
        self,
        project: Embed,
        networks: Networks,
        shard: ClientData,
        settings: MatchingSettings,
        ctx: ClientContext,
    ) -> Upload:
        """Representations (m, *shape) of the classes that the client holds, with their labels."""
        cells = single_client_cells(shard.train, shard.classes)
        shape = projected_shape(self.projection, shard.shape)
        images = torch.zeros(0, self.dpc, *shape)
        if len(cells):
            projected = cells.with_images(embed_images(project, shard.train.x))
            start_keys = ctx.keys.fold("start")
            start = draw_initial_images(self.start, projected, self.dpc, shape, start_keys)
            streams = MatchingStreams.of_round(ctx)
            start = start.to(shard.train.x)
            images = match_distributions(
                cells, start, networks, settings, streams, real_map=project
            )
        return build_uploads(cells, images, UPLOAD_NAME)[0]

    def _distil_protected(
        self,
        project: Embed,
        networks: Networks,
        shard: ClientData,
        settings: MatchingSettings,
        ctx: ClientContext,
    ) -> Upload:
        """Representations of every class of the public list, from noise and what the mechanisms
        released.

        ``project`` must be public: drawn without the records, or trained under a guarantee.
        Representations start as projected noise images, which have the scale of projected records;
        N(0, 1) may not.
        """
        labels = torch.tensor(ctx.problem.class_list)
        streams = MatchingStreams.of_round(ctx)
        noise = draw_noise_images(labels, self.dpc, shard.shape, ctx.keys.fold("start"))
        noise = noise.to(shard.train.x)
        pixels = noise.flatten(0, 1).abs().clamp(max=1)
        images = embed_images(project, pixels).unflatten(0, noise.shape[:2])
        if ctx.protected("embedding"):
            views = draw_public_maps(networks, self.reads, shard.shape, settings, streams, project)
            images = match_embeddings(images, views, shard.train, settings, ctx)
        else:
            projected = replace(shard.train, x=record_embeddings(project, shard.train.x))
            plain = replace(settings, augment="none")
            images = match_noised_gradients(images, networks, projected, plain, streams, ctx)
        return build_set_upload(images, labels, UPLOAD_NAME, private=True)

    def _distil_as_printed(
        self,
        project: Embed,
        networks: Networks,
        shard: ClientData,
        settings: MatchingSettings,
        ctx: ClientContext,
    ) -> Upload:
        """Equation 7 as FedRD prints it: representations from N(0, 1), each step's clipped mean
        gradient noised.

        g <- g / max(1, ||g|| / C),  g <- g + N(0, sigma^2 C^2 I) / |B_c|,  g the gradient of L_k^c

        ``project`` is the client's own map, trained on its records without protection, and real
        records are transformed before it: what is sent is no function of the mechanism's outputs
        alone, and nothing about it is private.

        Raises:
            ValueError: for a mechanism that clips records.
        """
        if not ctx.protected(GRADIENT_QUERY) or ctx.mechanisms[GRADIENT_QUERY].per_record:
            raise ValueError(
                "printed=True: equation 7 clips the batch's mean gradient; set "
                f"privacy=aggregate_clip, not {GRADIENT_QUERY}"
            )
        ctx = restrict_as_printed(shard, ctx)
        shape = projected_shape(self.projection, shard.shape)
        labels = torch.tensor(ctx.problem.class_list)
        streams = MatchingStreams.of_round(ctx)
        start = draw_noise_images(labels, self.dpc, shape, ctx.keys.fold("start")).to(shard.train.x)
        images = match_noised_gradients(
            start, networks, shard.train, settings, streams, ctx, project
        )
        held_classes = labels.repeat_interleave(self.dpc)
        return {
            UPLOAD_NAME: Artifact({"x": images.flatten(0, 1)}, flags={"public_map": False}),
            "labels": Artifact({"y": held_classes}),
        }

    def check_mechanisms(self, mechanisms: Mapping[str, Mechanism]) -> None:
        if QUERY in mechanisms and (
            self.frozen_projection or self.printed or not is_protected(mechanisms)
        ):
            raise ValueError(
                f"privacy sets a mechanism for {QUERY!r}: it protects a personal "
                "projection (algo.frozen_projection=false, "
                "algo.printed=false), together with a mechanism for the projected "
                "records, as in privacy=private_projection"
            )
        if self.printed or not is_protected(mechanisms):
            return
        check_no_batch_norm(self.model.norm, "model")
        if not self.frozen_projection and QUERY not in mechanisms:
            raise ValueError(
                "frozen_projection=False: a projection trained on the records lets one "
                "record move every "
                "representation; set algo.frozen_projection=true, or train it by DP-SGD "
                "(algo=fedrd_personal_dp); "
                "algo=fedrd_printed runs it as printed, without a guarantee"
            )
        if self.start != "noise":
            raise ValueError(
                f"start={self.start!r}: a guarantee needs start=noise, any other start "
                "reads the records"
            )
