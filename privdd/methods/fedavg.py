"""Federated averaging (McMahan et al. 2017, algorithm 1) and the hooks that its relatives
override."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

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
    State,
    Tensors,
    Values,
    Work,
    pack,
    unpack,
)
from privdd.federated.aggregation import average, client_weights
from privdd.federated.audit_hooks import FastReplay, ReadsUploads
from privdd.federated.channel import ClientContext
from privdd.federated.method import Method
from privdd.models import ModelSpec, build, build_skeleton, initial
from privdd.privacy.mechanism import Mechanism
from privdd.training.dp_sgd import count_private_steps, dp_local_sgd
from privdd.training.sgd import (
    ClientRound,
    Correction,
    Loss,
    SharedBatches,
    Trained,
    count_steps,
    is_vectorisable,
    local_sgd,
    predict_images,
    split_state,
    vectorised_sgd,
)

# what decides what is sent, and how it is combined
COMBINING_HOOKS = ("outcome", "aggregate", "pseudo_gradient", "uploads")


@dataclass(frozen=True, kw_only=True)
class FedAvg(
    Method,
    ReadsUploads,
    FastReplay,
    hooks=(
        "start",
        "loss",
        "correction",
        "outcome",
        "pseudo_gradient",
        "server_step",
        "sees_features",
        "vectorisable",
    ),
):
    """Each client trains the global model on its records; the server averages the results.

    rounds, local_epochs (fractions allowed), batch_size: lengths; lr, momentum, weight_decay: the
    client's SGD, fresh each round; server_lr: step along the averaged change, 1 = plain average;
    weighting: "records" uploads each client's record count and weighs by it, "uniform" does not.

    Uploads parameters after training, or their change where ``update_is_delta``: a mechanism set on
    "update" (client-level privacy) must clip changes, so such a run uses ``client_private()``.
    With a mechanism for "dpsgd" training is DP-SGD, every upload is post-processing of it, and no
    record count leaves; relatives whose loss DP-SGD cannot protect declare no such query.
    Where the broadcast holds "features" and "labels", every step adds a batch of them (FedFed),
    balanced: in passes of as many as the client's records, equally many of every class. A relative
        that would not see them has ``sees_features = False``.
    """

    model: ModelSpec
    rounds: int
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-5
    batch_size: int = 64
    local_epochs: float = 10
    weighting: Literal["records", "uniform"] = "records"
    server_lr: float = 1.0
    update_is_delta: bool = False
    balanced: bool = False

    on_gpu = "local training"
    sees_features: ClassVar[bool] = True
    # K clients can be trained as one wide network: ``start`` is the server's model, there is no
    # ``loss``, and ``correction`` acts on each entry by itself. Each relative says so for itself.
    vectorisable: ClassVar[bool] = True
    uploads: ClassVar[Mapping[str, Surface]] = {
        "update": Surface.UPDATE,
        "buffers": Surface.STATISTICS,
        "count": Surface.COUNTS,
    }
    queries: ClassVar[Mapping[str, Surface]] = {"dpsgd": Surface.GRADIENT}
    broadcasts: ClassVar[Mapping[str, Surface]] = {
        "model": Surface.GLOBAL_MODEL,
        "buffers": Surface.GLOBAL_MODEL,
    }

    def __post_init__(self) -> None:
        check_counts(self, "rounds", "batch_size")
        check_positive(self, "lr", "server_lr")
        check_epochs(self, "local_epochs")
        check_below_one(self, "momentum")
        check_non_negative(self, "weight_decay")
        if self.weighting not in ("records", "uniform"):
            raise ValueError(f"weighting={self.weighting!r}: allowed are records, uniform")

    def __init_subclass__(cls, **more: Any) -> None:
        """A relative is not vectorisable unless it says so itself: it may train in another way."""
        super().__init_subclass__(**more)
        cls.vectorisable = vars(cls).get("vectorisable", False)

    def client_private(self) -> Self:
        return replace(self, update_is_delta=True, weighting="uniform")

    def aggregation_kind(
        self, mechanisms: Mapping[str, Mechanism]
    ) -> Literal["sum", "mean"] | None:
        """The mean suffices if all clients weigh alike and no noise is added inside local
        training."""
        changed = any(
            getattr(type(self), name) is not getattr(FedAvg, name) for name in COMBINING_HOOKS
        )
        if changed or self.weighting != "uniform" or "dpsgd" in mechanisms:
            return None
        return "mean"

    def start(self, turn: ClientRound) -> tuple[Tensors, Tensors]:
        """(parameters, buffers) that local training begins with."""
        return turn.broadcast["model"], turn.broadcast.get("buffers", {})

    def loss(self, turn: ClientRound) -> Loss | None:
        return None

    def correction(self, turn: ClientRound) -> Correction | None:
        """What is done to each gradient; None is nothing.

        In a ``vectorisable`` method it is also asked for K clients at once, whose parameters,
        gradients and memory then have a first axis over the clients.
        """
        return None

    def outcome(self, turn: ClientRound, trained: Trained) -> tuple[dict[str, Tensors], State]:
        """(what is sent, by name, what the client remembers) after local training."""
        update: Tensors = trained.params
        if self.update_is_delta:
            update = {name: value - trained.start[name] for name, value in update.items()}
        values: dict[str, Tensors] = {"update": update}
        if trained.buffers:
            values["buffers"] = trained.buffers
        if self.weighting == "records" and not turn.ctx.protected("dpsgd"):
            values["count"] = {"n": torch.tensor([float(len(turn.shard.train))])}
        return values, turn.memory

    def pseudo_gradient(self, server: State, inbox: Sequence[Received]) -> State:
        """Global model minus the average of the clients' models, in float64 (Reddi et al. 2021)."""
        mean = average(inbox, "update")
        if self.update_is_delta:
            return {name: -change for name, change in mean.items()}
        return {name: server[f"model/{name}"].double() - value for name, value in mean.items()}

    def server_step(self, server: State, gradient: State) -> State:
        """New server entries from the pseudo-gradient (float64): model -= server_lr * gradient."""
        model = {n: server[f"model/{n}"].double() - self.server_lr * g for n, g in gradient.items()}
        return pack("model", {n: value.to(server[f"model/{n}"]) for n, value in model.items()})

    def init(self, problem: Problem, keys: Keys) -> State:
        state = initial(self.model, problem.shape, problem.classes, keys.fold("model").torch())
        params, buffers = split_state(
            build_skeleton(self.model, problem.shape, problem.classes), state
        )
        return {**pack("model", params), **pack("buffers", buffers)}

    def local(
        self, broadcast: Values, memory: State, shard: ClientData, ctx: ClientContext
    ) -> Work:
        private = ctx.protected("dpsgd")
        turn = ClientRound(broadcast, memory, shard, ctx)
        if private:
            trained = self._train_privately(turn)
        else:
            trained = self._train_client(turn)
        values, memory = self.outcome(turn, trained)
        return {name: Artifact(value, private=private) for name, value in values.items()}, memory

    def local_batched(
        self,
        broadcast: Values,
        memories: Sequence[State],
        shards: Sequence[ClientData],
        contexts: Sequence[ClientContext],
    ) -> Sequence[Work] | None:
        """Train all clients as one wide network, each with its own batches; None for methods and
        layers without such a form, under DP-SGD, and if records are mixed with shared features."""
        model = build_skeleton(self.model, shards[0].shape, shards[0].classes)
        if (
            not self.vectorisable
            or "features" in broadcast
            or any(ctx.protected("dpsgd") for ctx in contexts)
            or not is_vectorisable(model)
        ):
            return None
        if not all(
            len(shard.train) for shard in shards
        ):  # who has nothing to train on does not train
            return None
        turns = [
            ClientRound(broadcast, m, shard, ctx)
            for m, shard, ctx in zip(memories, shards, contexts)
        ]
        done = [
            self.outcome(turn, trained) for turn, trained in zip(turns, self._train_batched(turns))
        ]
        return [({name: Artifact(v) for name, v in values.items()}, kept) for values, kept in done]

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        new = {**server, **self.server_step(server, self.pseudo_gradient(server, inbox))}
        if all("buffers" in received.values for received in inbox):
            buffers = average(inbox, "buffers", client_weights(inbox))
            new |= pack(
                "buffers",
                {name: value.to(server[f"buffers/{name}"]) for name, value in buffers.items()},
            )
        return new

    def predict(self, server: State, memory: State | None, x: Tensor) -> Tensor:
        state = {**unpack("model", server), **unpack("buffers", server)}
        return predict_images(self.model, state, x)

    def releases_per_round(self, round: int, mechanisms: Mapping[str, Mechanism]) -> dict[str, int]:
        counts = {name: 1 for name in mechanisms if name in self.uploads}
        if "dpsgd" in mechanisms:
            counts["dpsgd"] = count_private_steps(mechanisms["dpsgd"], self.local_epochs)
        return counts

    def classifier(self, problem: Problem) -> nn.Module:
        return build(self.model, problem.shape, problem.classes)

    def sent_state(self, broadcast: Values) -> State | None:
        if "model" in broadcast:
            return {**broadcast.get("buffers", {}), **broadcast["model"]}
        return None

    def model_state(self, name: str, value: Tensors, broadcast: Values) -> State | None:
        if name == "buffers":
            return {**broadcast["model"], **value}
        if name != "update":
            return None
        if self.update_is_delta:
            value = {key: broadcast["model"][key] + change for key, change in value.items()}
        return {**broadcast.get("buffers", {}), **value}

    def settings(self, shard_size: int) -> dict[str, float]:
        own = {"batch_size": self.batch_size, "update_is_delta": self.update_is_delta}
        return {
            **self._sgd_settings,
            **own,
            "local_steps": count_steps(shard_size, self.batch_size, self.local_epochs),
        }

    @property
    def _sgd_settings(self) -> dict[str, Any]:
        return {"lr": self.lr, "momentum": self.momentum, "weight_decay": self.weight_decay}

    def _train_client(self, turn: ClientRound) -> Trained:
        model = build_skeleton(self.model, turn.shard.shape, turn.shard.classes)
        params, buffers = self.start(turn)
        # as under client-level privacy
        hides_counts = self.update_is_delta and self.weighting == "uniform"
        if (
            not len(turn.shard.train) and hides_counts
        ):  # no change, clipped and noised like any other
            return Trained(params, dict(params), dict(buffers), 1)
        state, steps = local_sgd(
            model,
            {**params, **buffers},
            turn.shard.train,
            batch_size=self.batch_size,
            generator=turn.ctx.keys.fold("batch").torch(),
            loss=self.loss(turn),
            epochs=self.local_epochs,
            correct=self.correction(turn),
            extra=self._shared_batches(turn),
            **self._sgd_settings,
        )
        return Trained(params, *split_state(model, state), steps)

    def _train_batched(self, turns: Sequence[ClientRound]) -> list[Trained]:
        """Each client for as many steps as it would train alone."""
        first = turns[0]
        memories = [turn.memory for turn in turns]
        model = build_skeleton(self.model, first.shard.shape, first.shard.classes)
        start = self.start(first)[0]
        stacked = {name: torch.stack([memory[name] for memory in memories]) for name in memories[0]}
        done = vectorised_sgd(
            model,
            start,
            [turn.shard.train for turn in turns],
            batch_size=self.batch_size,
            generators=[turn.ctx.keys.fold("batch").torch() for turn in turns],
            epochs=self.local_epochs,
            correct=self.correction(replace(first, memory=stacked)),
            **self._sgd_settings,
        )
        return [Trained(start, params, {}, taken) for params, taken in done]

    def _train_privately(self, turn: ClientRound) -> Trained:
        params, buffers = self.start(turn)
        if buffers:
            held = ", ".join(sorted(buffers)[:3])
            raise ValueError(
                f"model.norm=batch: DP-SGD needs per-record gradients, and {held} mix the "
                "records of a batch; "
                "use norm=instance, group or none"
            )
        model = build(self.model, turn.shard.shape, turn.shard.classes)
        steps = count_private_steps(turn.ctx.mechanisms["dpsgd"], self.local_epochs)
        more: dict[str, Any] = {
            "correct": self.correction(turn),
            "extra": self._shared_batches(turn),
            **self._sgd_settings,
        }
        trained = dp_local_sgd(model, params, turn.shard.train, steps=steps, ctx=turn.ctx, **more)
        return Trained(params, trained, {}, steps)

    def _shared_batches(self, turn: ClientRound) -> SharedBatches | None:
        if "features" not in turn.broadcast:
            return None
        x = turn.broadcast["features"]["x"]
        y = turn.broadcast["labels"]["y"]
        records = Records(x, y, torch.arange(len(y)))
        generator = turn.ctx.keys.fold("shared").torch()
        # no noise covers a count
        if turn.ctx.protected("dpsgd"):
            own = len(y)
        else:
            own = len(turn.shard.train)
        return SharedBatches(
            records, generator, self.batch_size, balanced=own if self.balanced else None
        )
