"""MOON (Li, He and Song, CVPR 2021): features are pulled to the global model's, off the client's
last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.types import Surface
from attacks.validation import check_non_negative, check_positive
from privdd.core.types import State, Tensors, pack, unpack
from privdd.methods.fedavg import FedAvg
from privdd.models import build_skeleton
from privdd.models.networks import Classifier
from privdd.training.sgd import ClientRound, Loss, Replica, Trained


def model_contrastive_loss(z: Tensor, towards: Tensor, away: Tensor, temperature: float) -> Tensor:
    """Model-contrastive loss (the paper's eq. 3) of features z (b, d): mean over the batch."""
    cosines = torch.stack([F.cosine_similarity(z, towards), F.cosine_similarity(z, away)], dim=1)
    return F.cross_entropy(
        cosines / temperature, torch.zeros(len(z), dtype=torch.int64, device=z.device)
    )


@dataclass(frozen=True, kw_only=True)
class Moon(FedAvg):
    """mu >= 0: weight of the contrastive term, 0 is FedAvg; temperature > 0.

    Features are the penultimate ones (no projection head); the two reference networks run in
    evaluation mode. A client remembers its last model and begins with the global one in its place.
    """

    mu: float = 5.0
    temperature: float = 0.5

    queries: ClassVar[Mapping[str, Surface]] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_non_negative(self, "mu")
        check_positive(self, "temperature")

    def loss(self, turn: ClientRound) -> Loss | None:
        model = build_skeleton(self.model, turn.shard.shape, turn.shard.classes)
        params, buffers = self.start(turn)
        present = {**params, **buffers}
        references = [
            Replica(model, s).module.eval()
            for s in (present, unpack("previous", turn.memory) or present)
        ]

        def moon_loss(net: Classifier, x: Tensor, y: Tensor) -> Tensor:
            z = net.features(x)
            with torch.no_grad():
                towards, away = (reference.features(x) for reference in references)
            return F.cross_entropy(net.head(z), y) + self.mu * model_contrastive_loss(
                z, towards, away, self.temperature
            )

        return moon_loss

    def outcome(self, turn: ClientRound, trained: Trained) -> tuple[dict[str, Tensors], State]:
        values, memory = super().outcome(turn, trained)
        return values, {**memory, **pack("previous", {**trained.params, **trained.buffers})}
