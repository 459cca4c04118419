"""FedLGD: federated training on virtual data, distilled locally by clients and globally by the
server.

Huang et al., "Federated Learning on Virtual Heterogeneous Data with Local-Global Dataset
Distillation" (TMLR 2024), algorithm 1 and equations 1 to 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from attacks.types import Surface
from attacks.validation import (
    check_below_one,
    check_counts,
    check_epochs,
    check_non_negative,
    check_positive,
)
from privdd.core.rng import Keys
from privdd.core.types import (
    Artifact,
    ClientData,
    Problem,
    Received,
    Records,
    Shard,
    State,
    Tensors,
    Values,
    Work,
    pack,
    unpack,
)
from privdd.distillation.class_cells import (
    batched_cells,
    class_statistics,
    draw_noise_images,
    images_to_memory,
    labelled_images,
    memory_of_replay,
    scale_noise,
    single_client_cells,
)
from privdd.distillation.diagnostics import rows_in_memory
from privdd.distillation.gradient_matching import match_gradient
from privdd.distillation.virtual_images import MatchingStage, VirtualImages, as_records, tied_loss
from privdd.federated.aggregation import average, sort_by_client
from privdd.federated.audit_hooks import Distils, ImageMatching, RecordTransform
from privdd.federated.channel import ClientContext
from privdd.methods.base import ServerNetwork
from privdd.models import build, build_skeleton
from privdd.privacy.claims import Claim, ClaimedRun, fedlgd_attacks, fedlgd_no_extra_leakage
from privdd.privacy.mechanism import Mechanism
from privdd.training.sgd import local_sgd


@dataclass(frozen=True, kw_only=True)
class FedLGD(ServerNetwork, Distils, hooks=("is_selected_round", "refines_in_round")):
    """Clients train on virtual images; the server distils its own from their averaged updates.

    In the selected rounds (every ``tau_step``, ``tau`` of them) clients refine and train with
    cross-entropy alone on their own images; the server then matches the gradient of its images to
    the clients'. In the others clients train on both sets, with a regulariser (equations 2 to 4).

    With a mechanism for "embedding" all images come from noised reads of the records, and all that
    is sent from those. A client without records trains on the server's images if it may, and else
    sends the model back as it came.

    Attributes:
        rounds: of training.
        virtual: how clients distil and refine their images.
        tau: how many rounds are selected.
        tau_step: rounds from one selected round to the next.
        lr, batch_size, local_epochs: plain SGD of the clients.
        contrast: lambda, the weight of the regulariser.
        temperature: of the supervised contrastive term.
        regulariser: that term, or (figure 3a) the distance of class means.
        global_ipc: the server's images a class.
        global_iterations, global_lr, global_momentum: SGD of the server's images.
        target: "gradient": in selected rounds a client takes one full-batch step, so that its
            update is the gradient of equation 5; "displacement": a whole epoch, as released.
        server_start: "noise" (paper), or "statistics": the average of the clients' class
            statistics, which are sent in round 0 (released code).
        always_mixed: both sets in all rounds, the contrastive term in those without matching on
            the server, as released.
        refine_first: refine in the selected rounds; else one step later, as released.
        stale: a client that sat out the last round goes on from the model that it trained last, as
            released; else it takes the server's.
    """

    rounds: int
    virtual: VirtualImages
    tau: int = 10
    tau_step: int = 5
    lr: float = 0.01
    batch_size: int = 32
    local_epochs: float = 1
    contrast: float = 10.0
    temperature: float = 0.07
    regulariser: Literal["contrastive", "mmd"] = "contrastive"
    global_ipc: int = 10
    global_iterations: int = 500
    global_lr: float = 1.0
    global_momentum: float = 0.5
    target: Literal["gradient", "displacement"] = "gradient"
    server_start: Literal["noise", "statistics"] = "noise"
    always_mixed: bool = False
    refine_first: bool = True
    stale: bool = False

    why_images_only: ClassVar[str] = "clients and server distil images under image transforms"
    uploads: ClassVar[Mapping[str, Surface]] = {
        "update": Surface.UPDATE,
        "class_statistics": Surface.STATISTICS,
    }
    queries: ClassVar[Mapping[str, Surface]] = {
        "embedding": Surface.PROTOTYPES,
        "class_counts": Surface.COUNTS,
    }
    _images: ClassVar[Mapping[str, Surface]] = dict.fromkeys(
        ("images", "labels"), Surface.GLOBAL_IMAGES
    )
    broadcasts: ClassVar[Mapping[str, Surface]] = {"model": Surface.GLOBAL_MODEL, **_images}
    worlds_per_pass: ClassVar[int] = 16
    shares_work: ClassVar[bool] = True
    on_gpu = "matching and training on virtual images"

    def __post_init__(self) -> None:
        check_counts(self, "rounds", "tau_step", "batch_size", "global_ipc")
        check_counts(self, "tau", "global_iterations", least=0)
        check_non_negative(self, "contrast")
        if not isinstance(self.virtual, VirtualImages):
            why = "it cannot refine images; use distribution or unmatched"
            raise ValueError(f"algo.virtual={type(self.virtual).__name__}: {why}")
        check_positive(self, "lr", "temperature", "global_lr")
        check_epochs(self, "local_epochs")
        check_below_one(self, "global_momentum")
        choices = {
            "target": ("gradient", "displacement"),
            "server_start": ("noise", "statistics"),
            "regulariser": ("contrastive", "mmd"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: allowed are {', '.join(allowed)}"
                )
        super().__post_init__()

    def is_selected_round(self, round: int) -> bool:
        """Whether a round is one of the tau local-global distillation rounds."""
        return round % self.tau_step == 0 and round < self.tau * self.tau_step

    def refines_in_round(self, round: int) -> bool:
        """Whether clients refine their images: in selected rounds, as released one step later."""
        if self.refine_first:
            return self.is_selected_round(round)
        return round > 0 and round % self.tau_step == 0 and round <= self.tau * self.tau_step

    def timing_group(self, round: int) -> str:
        parts = [self.phase(round)]
        if self.is_selected_round(round):
            parts.append("selected")
        if self.refines_in_round(round):
            parts.append("refining")
        return ", ".join(parts)

    def init(self, problem: Problem, keys: Keys) -> State:
        labels = torch.arange(problem.classes)
        noise = draw_noise_images(labels, self.global_ipc, problem.shape, keys.fold("images"))
        server = {
            "images/x": noise.flatten(0, 1),
            "labels/y": labels.repeat_interleave(self.global_ipc),
        }
        return super().init(problem, keys) | server

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        """The plain average of the models; in selected rounds equation 5 at the old model.

        min over D_g of Dist(grad L_CE(D_g; theta), mean_c grad L_CE(D_c; theta))
        """
        before = unpack("model", server)
        clients = sort_by_client(inbox)
        uniform = torch.full((len(clients),), 1 / len(clients), dtype=torch.float64)
        after = {
            name: value.to(before[name])
            for name, value in average(inbox, "update", uniform).items()
        }
        images = server["images/x"]
        has_statistics = all("class_statistics" in client.values for client in clients)
        if self.server_start == "statistics" and has_statistics:
            mean = average(inbox, "class_statistics", uniform)
            noise = images.unflatten(0, (-1, self.global_ipc))
            images = scale_noise(noise, mean["mean"].float(), mean["std"].float()).flatten(0, 1)
        if self._server_matches(clients[0].round):
            target = {name: before[name] - after[name] for name in after}
            shape: Any = tuple(images.shape[1:])
            model = build(self.model, shape, len(before["head.weight"]), images.device)
            images = match_gradient(
                model,
                before,
                target,
                images,
                server["labels/y"],
                iterations=self.global_iterations,
                lr=self.global_lr,
                momentum=self.global_momentum,
            )
        return {**server, **pack("model", after), "images/x": images}

    def _server_matches(self, round: int) -> bool:
        """Selected rounds; the released code adds one at the end."""
        return self.is_selected_round(round) or self.refines_in_round(round)

    def local(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> Work:
        self.check_mechanisms(ctx.mechanisms)
        stages = self._matching_stages(broadcast, memory, shard, ctx)
        if ctx.protected("embedding"):
            images, labels = self.virtual.distil_protected(memory, stages, shard, ctx)
        else:
            cells = single_client_cells(shard.train, shard.classes)
            images = self.virtual.distil_cells(cells, memory, stages, shard, ctx)
            labels = cells.labels
        virtual = as_records(images.flatten(0, 1), labels.repeat_interleave(self.virtual.ipc))
        update = self._train_virtual(broadcast, memory, virtual, shard, ctx)
        upload = {"update": Artifact(update, private=ctx.protected("embedding"))}
        if self.server_start == "statistics" and ctx.round == 0:
            released = self.virtual.released_statistics
            mean, std = class_statistics(shard.train, shard.classes, released=released)
            upload["class_statistics"] = Artifact({"mean": mean, "std": std})
        return upload, images_to_memory(images, labels) | self._remember_model(update, ctx)

    def _remember_model(self, update: State, ctx: ClientContext) -> State:
        """The model trained last, and when, if a client goes on from it."""
        if not self.stale:
            return {}
        return pack("trained", update) | {"trained_in": torch.tensor([ctx.round])}

    def check_mechanisms(self, mechanisms: Mapping[str, Mechanism]) -> None:
        if "embedding" in mechanisms and self.server_start != "noise":
            raise ValueError(
                "server_start=statistics: it sends class statistics as they are; a "
                "guarantee needs noise"
            )

    def _matching_stages(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> list[MatchingStage]:
        return self.virtual.matching_stages(
            self.model,
            broadcast,
            shard,
            ctx,
            first="images/x" not in memory,
            refine=self.refines_in_round(ctx.round),
        )

    def needs_all_clients(self, round: int) -> bool:
        """All clients send their statistics in round 0, if the server's images start from them."""
        return round == 0 and self.server_start == "statistics"

    def _train_virtual(
        self,
        broadcast: Values,
        memory: State,
        virtual: Records,
        shard: ClientData,
        ctx: ClientContext,
    ) -> State:
        """Plain SGD on the client's images, or on both sets with the regulariser (equation 2).

        L_total = L_CE(D_g, D_c; theta) + lambda L_Con(D_g, D_c; psi)

        A single step on the whole set if (before - after) / lr has to be its gradient.
        """
        is_late = (
            self.stale and "trained_in" in memory and int(memory["trained_in"]) != ctx.round - 1
        )
        start: Tensors
        if is_late:
            start = unpack("trained", memory)
        else:
            start = broadcast["model"]
        records = virtual.to(start["head.weight"].device)
        loss = None
        is_selected = self.is_selected_round(ctx.round)
        if self.always_mixed or not is_selected:
            shared = as_records(
                broadcast["images"]["x"].to(records.x), broadcast["labels"]["y"].to(records.y)
            )
            # released code: cross-entropy alone in the rounds of matching
            is_plain = self.always_mixed and self._server_matches(ctx.round)
            weight = 0.0 if is_plain else self.contrast
            loss = tied_loss(shared, weight, self.temperature, self.regulariser)
            records = as_records(torch.cat([records.x, shared.x]), torch.cat([records.y, shared.y]))
        if not len(records):
            return dict(start)
        length: dict[str, Any] = {"epochs": self.local_epochs, "batch_size": self.batch_size}
        if is_selected and self.target == "gradient":
            length = {"steps": 1, "batch_size": len(records)}
        model = build_skeleton(self.model, shard.shape, shard.classes)
        generator = ctx.keys.fold("train").torch()
        state, _ = local_sgd(
            model, start, records, lr=self.lr, generator=generator, loss=loss, **length
        )
        return state

    def releases_per_round(self, round: int, mechanisms: Mapping[str, Mechanism]) -> dict[str, int]:
        """How often one client applies each mechanism to one class in one round (all clients in all
        rounds)."""
        reads = []
        if round == 0:
            reads.append(self.virtual.warmup_reads)
        if self.refines_in_round(round):
            reads.append(self.virtual.refine_reads)
        counts = {"embedding": sum(reads), "class_counts": len(reads)}
        return {name: count for name, count in counts.items() if name in mechanisms}

    def claims(self, plan: ClaimedRun, shards: Sequence[Shard]) -> list[Claim]:
        return [
            fedlgd_no_extra_leakage(statistics=self.server_start == "statistics"),
            fedlgd_attacks(),
        ]

    def distillation(self) -> ImageMatching | None:
        virtual = self.virtual.without_matching()
        if virtual is None:
            return None
        still = replace(self, virtual=virtual)
        return ImageMatching(still, self.model, lambda _, memory: rows_in_memory(memory))

    def surrogate_images(self, memory: State, problem: Problem) -> Tensor | None:
        images = memory.get("images/x")
        if images is None:
            return None
        return images.detach().reshape(-1, *problem.shape)

    def model_state(self, name: str, value: Tensors, broadcast: Values) -> State | None:
        return dict(value) if name == "update" else None

    def record_transform(self, problem: Problem) -> RecordTransform | None:
        """That of the distillation: the network is trained on images of transformed records."""
        return self.virtual.record_transform(problem.shape)

    def settings(self, shard_size: int) -> dict[str, Any]:
        return {
            "lr": self.lr,
            "momentum": 0.0,
            "batch_size": self.batch_size,
            "update_is_delta": False,
        }

    def upload_uses_memory(self, round: int, memory: State) -> bool:
        return round > 0

    def local_batched(
        self,
        broadcast: Values,
        memories: Sequence[State],
        shards: Sequence[ClientData],
        contexts: Sequence[ClientContext],
    ) -> Sequence[Work] | None:
        """First rounds at once: they share the first one's batches, but for what images start from
        and how they train.

        None later on (each client has its own images by then), under noise, and if statistics are
        sent or scaled by a client's number of records.
        """
        scaled = self.server_start == "statistics" or self.virtual.released_statistics
        if scaled or contexts[0].protected("embedding") or any(memories):
            return None
        cells = batched_cells(shards)
        start_keys = [ctx.keys for ctx in contexts]
        stages = self._matching_stages(broadcast, {}, shards[0], contexts[0])
        images = self.virtual.distil_cells(cells, {}, stages, shards[0], contexts[0], start_keys)
        results = []
        for world, (shard, ctx) in enumerate(zip(shards, contexts)):
            virtual = as_records(*labelled_images(cells, images, world))
            update = self._train_virtual(broadcast, {}, virtual, shard, ctx)
            memory = memory_of_replay(cells, images, world) | self._remember_model(update, ctx)
            results.append(({"update": Artifact(update)}, memory))
        return results
