"""FedProto (Tan et al., AAAI 2022): clients share class prototypes only and keep their own
models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.types import Surface
from attacks.validation import check_non_negative
from privdd.core.device import to_device
from privdd.core.rng import Keys
from privdd.core.types import Problem, Received, Records, State, Tensors, pack
from privdd.federated.aggregation import sort_by_client
from privdd.methods.personal import PersonalNetworks
from privdd.models import build_skeleton
from privdd.models.networks import Classifier
from privdd.training.sgd import ClientRound, Loss, Replica, Trained


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
class FedProto(PersonalNetworks):
    """weight >= 0: lambda of the distance between a record's features and its class's global
    prototype.

    Prediction is the nearest global prototype (the paper's section 4.4), before the first round the
    model's own head."""

    weight: float = 1.0

    uploads: ClassVar[Mapping[str, Surface]] = {"prototypes": Surface.PROTOTYPES}
    queries: ClassVar[Mapping[str, Surface]] = {}
    broadcasts: ClassVar[Mapping[str, Surface]] = {"prototypes": Surface.PROTOTYPES}
    _stream: ClassVar[str] = "fedproto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_non_negative(self, "weight")

    def init(self, problem: Problem, keys: Keys) -> State:
        state = super().init(problem, keys)
        width = state["model/head.weight"].shape[1]
        empty = {"mean": torch.zeros(problem.classes, width), "count": torch.zeros(problem.classes)}
        return {**state, **pack("prototypes", empty)}

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
        state = self._own_state(server, memory)
        model = build_skeleton(self.model, tuple(x.shape[1:]), len(state["head.weight"]))
        net = Replica(model, to_device(state, x.device)).module.eval()
        z = torch.cat([net.features(part) for part in x.split(512)])
        known = server["prototypes/count"].to(x.device) > 0
        if not known.any():
            return net.head(z)
        return (-torch.cdist(z, server["prototypes/mean"].to(z))).masked_fill(~known, -torch.inf)
