"""FedFed (Yang et al., NeurIPS 2023): share noised performance-sensitive features, then train on
both.

Phase A, ``distill_rounds`` rounds: clients train generator and classifier together, the server
averages both (Algorithm 1). Release, one round: every client sends x_p = x - q(x) + noise of every
record with its label; the union goes to all. Phase B: any model-averaging method, each step on a
private batch and a shared batch (Eq. 10).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attacks.types import Surface
from attacks.validation import check_below_one, check_counts, check_non_negative, check_positive
from privdd.core.rng import Keys
from privdd.core.types import (
    Artifact,
    ClientData,
    Problem,
    Received,
    Records,
    RecordShape,
    Shard,
    State,
    Tensors,
    Upload,
    Values,
    Work,
    is_remote_memory,
    pack,
    unpack,
)
from privdd.distillation.diagnostics import share_at_bound
from privdd.distillation.feature_split import (
    CLASSIFIER,
    GENERATOR,
    FeatureSplit,
    SplitLoss,
    build_split_skeleton,
    can_train_together,
    feature_map,
    inner_state,
    sent_networks,
    train_split,
    train_split_privately,
    train_splits,
)
from privdd.federated.aggregation import average, sort_by_client
from privdd.federated.audit_hooks import Distils, FastReplay, ReadsUploads, StatesClaims
from privdd.federated.channel import ClientContext
from privdd.federated.method import Method
from privdd.methods.fedavg import FedAvg
from privdd.models import ModelSpec, initial
from privdd.privacy.claims import FEATURE_THEOREMS, Claim, ClaimedRun, feature_run
from privdd.privacy.mechanism import Mechanism
from privdd.training.dp_sgd import count_private_steps
from privdd.training.sgd import split_state

LABELS_PUBLIC = "declared public: zero-out adjacency removes a record's image and keeps its label"
UNSEEN = (
    "its clients would not see the shared features; allowed are FedAvg, FedProx, FedNova, Scaffold"
)


@dataclass(frozen=True, kw_only=True)
class FedFed(Method, ReadsUploads, StatesClaims, FastReplay, Distils):
    """Clients split images into features that matter and the rest, and share the former noised.

    The noise on the released features, their bound rho and the number of copies belong to the
    mechanism set for the upload "features"; phase A trains under the same (``released_through``).

    Attributes:
        base: the method of phase B.
        generator: q, or ModelSpec("zero") to share whole images.
        loss: weights of phase A.
        distill_rounds, distill_epochs, distill_lr, distill_weight_decay, distill_batch: of phase A
            by AdamW.
        private_lr, private_momentum: of phase A by DP-SGD.
        keep_moments: AdamW's moments stay on the client between rounds (the released code).
        shared_only: phase B trains on shared features alone, so that it is post-processing (the
            sound profile).
        shared_per_round: how many of them a round and client, a public constant.
    """

    base: FedAvg
    generator: ModelSpec
    loss: SplitLoss
    distill_rounds: int = 15
    distill_epochs: int = 1
    distill_lr: float = 1e-3
    distill_weight_decay: float = 1e-6
    distill_batch: int = 64
    private_lr: float = 0.1
    private_momentum: float = 0.9
    keep_moments: bool = False
    shared_only: bool = False
    shared_per_round: int = 512

    on_gpu = "the split into features, their release, local training"
    queries: ClassVar[Mapping[str, Surface]] = {"dpsgd": Surface.GRADIENT}
    visible_to: ClassVar[Mapping[str, tuple[str, ...]]] = dict.fromkeys(
        ("features", "labels"), ("server", "peer")
    )
    _own_uploads: ClassVar[Mapping[str, Surface]] = {
        "features": Surface.FEATURES,
        "labels": Surface.LABELS,
        "update": Surface.UPDATE,
        "buffers": Surface.STATISTICS,
        "count": Surface.COUNTS,
    }
    uploads: Mapping[str, Surface] = field(init=False)
    broadcasts: Mapping[str, Surface] = field(init=False)

    def __post_init__(self) -> None:
        check_counts(self, "distill_rounds", least=0, under="algo.")
        check_counts(self, "distill_epochs", "distill_batch", "shared_per_round", under="algo.")
        check_positive(self, "distill_lr", "private_lr", under="algo.")
        check_non_negative(self, "distill_weight_decay", under="algo.")
        check_below_one(self, "private_momentum", under="algo.")
        if not isinstance(self.base, FedAvg):
            raise ValueError(
                f"algo.base={type(self.base).__name__}: a model-averaging method is needed"
            )
        if not self.base.sees_features:
            raise ValueError(f"algo.base={type(self.base).__name__}: {UNSEEN}")
        shared = {"features": Surface.SHARED_FEATURES, "labels": Surface.SHARED_FEATURES}
        networks = {"generator": Surface.GLOBAL_MODEL, "generator_buffers": Surface.GLOBAL_MODEL}
        object.__setattr__(self, "uploads", {**self.base.uploads, **self._own_uploads})
        object.__setattr__(self, "broadcasts", {**self.base.broadcasts, **networks, **shared})

    @property
    def rounds(self) -> int:
        return self.distill_rounds + 1 + self.base.rounds

    def needs_all_clients(self, round: int) -> bool:
        """The features of all clients are collected (Algorithm 1, line 12)."""
        return round == self.distill_rounds

    def released_through(self, mechanisms: Mapping[str, Mechanism], problem: Problem) -> FedFed:
        """Phase A under the noise, the bound and the copies of the mechanism that releases the
        features."""
        return replace(
            self, loss=self.loss.for_mechanism(mechanisms.get("features"), math.prod(problem.shape))
        )

    def _split_skeleton(self, shape: RecordShape, classes: int) -> FeatureSplit:
        return build_split_skeleton(self.generator, self.base.model, shape, classes)

    def init(self, problem: Problem, keys: Keys) -> State:
        shape = problem.shape
        classes = problem.classes
        generator = initial(self.generator, shape, classes, keys.fold("generator").torch())
        classifier = initial(self.base.model, shape, classes, keys.fold("classifier").torch())
        networks = {GENERATOR + name: value for name, value in generator.items()}
        networks |= {CLASSIFIER + name: value for name, value in classifier.items()}
        params, buffers = split_state(self._split_skeleton(shape, classes), networks)
        state = pack("generator", params) | pack("generator_buffers", buffers)
        state["round"] = torch.zeros(1)
        return state | pack("base", self.base.init(problem, keys))

    def broadcast(self, server: State) -> dict[str, Tensors]:
        t = int(server["round"])
        if t <= self.distill_rounds:
            groups = {name: unpack(name, server) for name in ("generator", "generator_buffers")}
            return {name: group for name, group in groups.items() if group}
        shared = {"features": unpack("features", server), "labels": unpack("labels", server)}
        return {**self.base.broadcast(unpack("base", server)), **shared}

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        t = int(server["round"])
        new = {**server, "round": server["round"] + 1}
        if t < self.distill_rounds:
            for upload, group in (("update", "generator"), ("buffers", "generator_buffers")):
                if all(upload in received.values for received in inbox):
                    mean = average(inbox, upload).items()
                    new |= pack(group, {n: v.to(server[f"{group}/{n}"]) for n, v in mean})
        elif t == self.distill_rounds:
            clients = sort_by_client(inbox)
            new["features/x"] = torch.cat([r.values["features"]["x"] for r in clients])
            new["labels/y"] = torch.cat([r.values["labels"]["y"] for r in clients])
        else:
            new |= pack("base", self.base.aggregate(unpack("base", server), inbox, keys))
        return new

    def predict(self, server: State, memory: State | None, x: Tensor) -> Tensor:
        """Logits: of the classifier that phase A trains until phase B begins, then of the global
        model."""
        if int(server["round"]) > self.distill_rounds:
            return self.base.predict(unpack("base", server), memory, x)
        state = {**unpack("generator", server), **unpack("generator_buffers", server)}
        inner = inner_state(CLASSIFIER, state)
        shape: Any = tuple(x.shape[1:])
        model = self._split_skeleton(shape, len(inner["head.weight"])).classifier.eval()
        return functional_call(model, inner, (x,))

    def local(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> Work:
        if ctx.round < self.distill_rounds:
            return self._distill_features(broadcast, memory, shard, ctx)
        if ctx.round == self.distill_rounds:
            return self._release_features(broadcast, shard, ctx), memory
        upload, inner = self._train_on_shared(broadcast, unpack("base", memory), shard, ctx)
        return upload, pack("base", inner)

    def _distill_features(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> Work:
        """Phase A: generator q and classifier f together (equation 9), x_s = x - q(x).

        min E l(f(x_s), y)  such that  ||x_s||_2^2 <= rho
        """
        model = self._split_skeleton(shard.shape, shard.classes)
        state = sent_networks(broadcast)
        if ctx.protected("dpsgd"):
            trained = train_split_privately(
                model,
                state,
                shard.train,
                self.loss,
                ctx=ctx,
                lr=self.private_lr,
                momentum=self.private_momentum,
                epochs=self.distill_epochs,
            )
            return {"update": Artifact(trained, private=True)}, memory
        new, moments = train_split(
            model,
            state,
            unpack("adam", memory) if self.keep_moments else {},
            shard.train,
            self.loss,
            lr=self.distill_lr,
            weight_decay=self.distill_weight_decay,
            batch_size=self.distill_batch,
            epochs=self.distill_epochs,
            generator=ctx.keys.fold("distill").torch(),
        )
        params, buffers = split_state(model, new)
        upload = {
            "update": Artifact(params),
            "count": Artifact({"n": torch.tensor([float(len(shard.train))])}),
        }
        if buffers:
            upload["buffers"] = Artifact(buffers)
        return upload, pack("adam", moments) if self.keep_moments else {}

    def _release_features(self, broadcast: Values, shard: ClientData, ctx: ClientContext) -> Upload:
        """x_s of every record, in order; the channel's mechanism noises (and repeats) it.

        x_p = x_s + n,  n ~ N(0, sigma_s^2 I)

        Zeroed-out records are released as zeros with their labels: that is what the relation means.
        """
        with torch.no_grad():
            features = self.maps(broadcast, {}, ctx.problem)["feature"](shard.train.x)
        y = shard.train.y
        ids = shard.train.ids
        if shard.nulls is not None:
            features = torch.cat([features, torch.zeros_like(shard.nulls.x)])
            y = torch.cat([y, shard.nulls.y])
            ids = torch.cat([ids, shard.nulls.ids])
        order = ids.argsort()
        labels = y[order].repeat(len(self.loss.stds))
        if ctx.relation == "zero_out" and self.shared_only:
            public = LABELS_PUBLIC
        else:
            public = ""
        flags = {"public_map": ctx.protected("dpsgd")}
        return {
            "features": Artifact({"x": features[order]}, flags=flags),
            "labels": Artifact({"y": labels}, public=public),
        }

    def _train_on_shared(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> Work:
        """Phase B (equation 10): E l(f(x), y) + E l(f(x_p), y), or the second term alone."""
        if not self.shared_only:
            return self.base.local(broadcast, memory, shard, ctx)
        x = broadcast["features"]["x"]
        y = broadcast["labels"]["y"]
        generator = ctx.keys.fold("shared").torch()
        rows = torch.randint(len(y), (self.shared_per_round,), generator=generator)
        public = shard.with_train(Records(x[rows], y[rows], rows))
        inner = {name: broadcast[name] for name in broadcast if name not in ("features", "labels")}
        upload, memory = self.base.local(inner, memory, public, replace(ctx, mechanisms={}))
        private = {name: Artifact(upload[name].value, private=True) for name in upload}
        private.pop("count", None)  # of rows that are shared: a public constant
        return private, memory

    def local_batched(
        self,
        broadcast: Values,
        memories: Sequence[State],
        shards: Sequence[ClientData],
        contexts: Sequence[ClientContext],
    ) -> Sequence[Work] | None:
        """Phase A with all replays as one wide network; None for the other phases, under DP-SGD,
        for moments that stay on the client, for networks without a wide form, and for a relative
        that trains in another way.

        Phase B takes as long side by side as one by one: the shared batch fills its steps."""
        kind = type(self)
        trains_alike = (
            kind.local is FedFed.local and kind._distill_features is FedFed._distill_features
        )
        if not trains_alike or contexts[0].round >= self.distill_rounds:
            return None
        model = self._split_skeleton(shards[0].shape, shards[0].classes)
        sizes = [len(shard.train) for shard in shards]
        private = any(ctx.protected("dpsgd") for ctx in contexts)
        if private or self.keep_moments or not all(sizes) or not can_train_together(model):
            return None
        trained = train_splits(
            model,
            sent_networks(broadcast),
            [shard.train for shard in shards],
            self.loss,
            lr=self.distill_lr,
            weight_decay=self.distill_weight_decay,
            batch_size=self.distill_batch,
            epochs=self.distill_epochs,
            generators=[ctx.keys.fold("distill").torch() for ctx in contexts],
        )
        return [
            (
                {"update": Artifact(params), "count": Artifact({"n": torch.tensor([float(size)])})},
                {},
            )
            for params, size in zip(trained, sizes)
        ]

    def releases_per_round(self, round: int, mechanisms: Mapping[str, Any]) -> dict[str, int]:
        if round < self.distill_rounds and "dpsgd" in mechanisms:
            return {"dpsgd": count_private_steps(mechanisms["dpsgd"], self.distill_epochs)}
        if round == self.distill_rounds and "features" in mechanisms:
            return {"features": 1}
        if round > self.distill_rounds and not self.shared_only:
            return self.base.releases_per_round(round, mechanisms)
        return {}

    def claims(self, plan: ClaimedRun, shards: Sequence[Shard]) -> list[Claim]:
        """The theorems on shared features, evaluated for this run's noise; R is the rounds that
        read the features."""
        mechanism = plan.mechanisms.get("features")
        if mechanism is None:
            return []
        is_raw = self.generator.name == "zero"
        run = feature_run(mechanism, plan.problem, rounds=self.base.rounds, raw=is_raw)
        return [theorem(run) for theorem in FEATURE_THEOREMS]

    def classifier(self, problem: Problem) -> nn.Module:
        return self.base.classifier(problem)

    def model_state(self, name: str, value: Tensors, broadcast: Values) -> State | None:
        if "generator" in broadcast:
            if not inner_state(CLASSIFIER, value):
                return None
            return inner_state(CLASSIFIER, {**sent_networks(broadcast), **value})
        return self.base.model_state(name, value, broadcast)

    def sent_state(self, broadcast: Values) -> State | None:
        """The classifier of phase A, the global model afterwards."""
        if "generator" in broadcast:
            return inner_state(CLASSIFIER, sent_networks(broadcast))
        return self.base.sent_state(broadcast)

    def record_loss(
        self, name: str, value: Tensors, broadcast: Values, problem: Problem
    ) -> Callable[[Tensor, Tensor], Tensor] | None:
        """How far a record is from its reconstruction: buffers of phase A may be the generator's
        alone."""
        inner = inner_state(GENERATOR, {**sent_networks(broadcast), **value})
        model = self._split_skeleton(problem.shape, problem.classes).generator.eval()

        def reconstruction_error(x: Tensor, y: Tensor) -> Tensor:
            reconstruction = functional_call(model, inner, (x, None))[0]
            return (reconstruction - x).square().flatten(1).mean(1)

        return reconstruction_error

    def upload_uses_memory(self, round: int, memory: State) -> bool:
        if round <= self.distill_rounds:
            return self.keep_moments and 0 < round < self.distill_rounds
        return is_remote_memory(memory) or self.base.upload_uses_memory(
            round, unpack("base", memory)
        )

    def phase(self, round: int) -> str:
        if round < self.distill_rounds:
            return "distill"
        return "release" if round == self.distill_rounds else "train"

    def settings(self, shard_size: int) -> dict[str, Any]:
        return {
            **self.base.settings(shard_size),
            "copies": len(self.loss.stds),
            "noise_stds": self.loss.stds,
        }

    def share_at_bound(
        self, broadcast: Values, memory: State, x: Tensor, problem: Problem
    ) -> float | None:
        """Of records whose x - q(x) is as long as rho allows, or longer: x_s is that, scaled down
        to rho ||x||."""
        if "generator" not in broadcast or self.loss.rho is None:
            return None
        unbounded = replace(self, loss=replace(self.loss, rho=None))
        with torch.no_grad():
            features = unbounded.maps(broadcast, memory, problem)["feature"](x)
        limits = self.loss.rho * x.flatten(1).norm(dim=1)
        return share_at_bound(features.flatten(1).norm(dim=1), limits)

    def maps(
        self, broadcast: Values, memory: State, problem: Problem
    ) -> dict[str, Callable[[Tensor], Tensor]]:
        """The feature map x -> x_s under the generator that the server sent (everyone knows it)."""
        if "generator" not in broadcast:
            return {}
        inner = inner_state(GENERATOR, sent_networks(broadcast))
        generator = self._split_skeleton(problem.shape, problem.classes).generator
        return {"feature": feature_map(generator, inner, self.loss.rho)}
