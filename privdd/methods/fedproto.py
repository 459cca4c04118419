"""FedProto (Tan et al., AAAI 2022): clients share class prototypes only and keep their own
models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.types import Surface
from attacks.validation import check_non_negative
from privdd.core.device import to_device
from privdd.core.rng import Keys
from privdd.core.types import Problem, Received, Records, State, Tensors, pack, unpack
from privdd.federated.aggregation import sort_by_client
from privdd.methods.fedavg import FedAvg
from privdd.models import build_skeleton, initial
from privdd.models.networks import Classifier
from privdd.training.sgd import ClientRound, Loss, Replica, Trained, split_state


@torch.no_grad()
def compute_prototypes(
    model: nn.Module, state: Tensors, records: Records, classes: int, batch: int = 512
) -> State:
    """{"mean": (classes, d) mean features by class, 0 where empty; "count": (classes,)} in
    float32."""
    net = Replica(model, state).module.eval()
    z = torch.cat([net.features(x) for x in records.x.split(batch)])
    member = F.one_hot(records.y, classes).to(z)
    count = member.sum(0)
    return {"mean": member.T @ z / count.clamp(min=1)[:, None], "count": count}


@dataclass(frozen=True, kw_only=True)
class FedProto(FedAvg):
    """weight >= 0: lambda of the distance between a record's features and its class's global
    prototype.

    Every client starts from the same public initial model and keeps its own from then on;
    prediction is the nearest global prototype (the paper's section 4.4), before the first round the
    model's own head."""

    weight: float = 1.0

    uploads: ClassVar[Mapping[str, Surface]] = {"prototypes": Surface.PROTOTYPES}
    queries: ClassVar[Mapping[str, Surface]] = {}
    broadcasts: ClassVar[Mapping[str, Surface]] = {"prototypes": Surface.PROTOTYPES}
    accuracy_kind: ClassVar[Literal["global", "personal"]] = "personal"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_non_negative(self, "weight")

    def init(self, problem: Problem, keys: Keys) -> State:
        state = self._initial_model(problem.shape, problem.classes, keys.seed)
        width = state["head.weight"].shape[1]
        params, buffers = split_state(
            build_skeleton(self.model, problem.shape, problem.classes), state
        )
        empty = {"mean": torch.zeros(problem.classes, width), "count": torch.zeros(problem.classes)}
        return {**pack("model", params), **pack("buffers", buffers), **pack("prototypes", empty)}

    def start(self, turn: ClientRound) -> tuple[Tensors, Tensors]:
        kept = unpack("personal", turn.memory)
        state = kept or self._initial_model(
            turn.shard.shape, turn.shard.classes, turn.ctx.keys.seed
        )
        params, buffers = split_state(
            build_skeleton(self.model, turn.shard.shape, turn.shard.classes), state
        )
        return to_device(params, turn.ctx.problem.device), to_device(
            buffers, turn.ctx.problem.device
        )

    def loss(self, turn: ClientRound) -> Loss | None:
        mean = turn.broadcast["prototypes"]["mean"]
        known = turn.broadcast["prototypes"]["count"] > 0

        def prototype_loss(net: Classifier, x: Tensor, y: Tensor) -> Tensor:
            z = net.features(x)
            distance = ((z - mean[y]) ** 2).mean(1) * known[y]
            return F.cross_entropy(net.head(z), y) + self.weight * distance.mean()

        return prototype_loss

    def outcome(self, turn: ClientRound, trained: Trained) -> tuple[dict[str, Tensors], State]:
        state = {**trained.params, **trained.buffers}
        model = build_skeleton(self.model, turn.shard.shape, turn.shard.classes)
        own = compute_prototypes(model, state, turn.shard.train, turn.shard.classes)
        return {"prototypes": own}, {**turn.memory, **pack("personal", state)}

    def aggregate(self, server: State, inbox: Sequence[Received], keys: Keys) -> State:
        """Global prototype of a class: mean over the records of the clients that hold it (eq.
        6)."""
        sent = [received.values["prototypes"] for received in sort_by_client(inbox)]
        count = torch.stack([s["count"].double() for s in sent])
        mean = (torch.stack([s["mean"].double() for s in sent]) * count[:, :, None]).sum(0)
        total = count.sum(0)
        present = total > 0
        old = server["prototypes/mean"]
        fresh = (mean / total.clamp(min=1)[:, None]).to(old)
        mean = torch.where(present[:, None], fresh, old)
        count = torch.where(present, total.to(old), server["prototypes/count"])
        return {**server, **pack("prototypes", {"mean": mean, "count": count})}

    @torch.no_grad()
    def predict(self, server: State, memory: State | None, x: Tensor) -> Tensor:
        """Scores (n, C): minus the distance to each known prototype; without a memory, of the
        initial model."""
        common = {**unpack("model", server), **unpack("buffers", server)}
        state = unpack("personal", memory or {}) or common
        model = build_skeleton(self.model, tuple(x.shape[1:]), len(state["head.weight"]))
        net = Replica(model, to_device(state, x.device)).module.eval()
        z = torch.cat([net.features(part) for part in x.split(512)])
        known = server["prototypes/count"].to(x.device) > 0
        if not known.any():
            return net.head(z)
        return (-torch.cdist(z, server["prototypes/mean"].to(z))).masked_fill(~known, -torch.inf)

    def initial_classifier(self, problem: Problem, seed: int) -> State:
        """The public initial model; clients train copies of their own, which never travel."""
        return self._initial_model(problem.shape, problem.classes, seed)

    def _initial_model(self, shape: tuple[int, int, int], classes: int, seed: int) -> State:
        return initial(
            self.model, shape, classes, Keys(seed).fold("public", "fedproto", "model").torch()
        )
