"""What the server of a distilling method does: pool the synthetic sets and train on them, with hard
or soft labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privdd.core.rng import Keys
from privdd.core.types import Received, Records, State, Tensors
from privdd.federated.aggregation import sort_by_client
from privdd.models import ModelSpec, build_skeleton
from privdd.training.sgd import Loss, batch_cross_entropy, local_adam, local_sgd, predict_logits

MAX_TRIES = 4
# shares of the epochs, and of the learning rate
PHASES = ((0.6, 1.0), (0.25, 0.25), (0.15, 0.0625))


@dataclass(frozen=True)
class ServerTraining:
    """Length and optimiser of the server's training; momentum and weight_decay apply to sgd
    only."""

    epochs: float = 500
    batch_size: int = 256
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimiser: Literal["sgd", "adam"] = "sgd"

    def __post_init__(self) -> None:
        if self.optimiser not in ("sgd", "adam"):
            raise ValueError(f"server.optimiser={self.optimiser!r}: allowed are sgd, adam")
        for name in ("epochs", "batch_size", "lr"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"server.{name}={getattr(self, name)!r}: a finite number above 0")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"server.momentum={self.momentum!r}: a number in [0, 1)")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"server.weight_decay={self.weight_decay!r}: a finite number from 0")


def pool_uploads(inbox: Sequence[Received], name: str) -> Records:
    """All synthetic examples under ``name`` with their labels, in the order of the clients.

    FedDM's weights n_k^S / n (equation 9) are those of the plain union.
    """
    clients = sort_by_client(inbox)
    x = torch.cat([received.values[name]["x"] for received in clients])
    y = torch.cat([received.values["labels"]["y"] for received in clients])
    return Records(x, y, torch.arange(len(y)))


def train_on_records(
    model: nn.Module,
    params: Tensors,
    records: Records,
    training: ServerTraining,
    generator: torch.Generator,
    loss: Loss | None = None,
) -> State:
    """The state after training ``params`` on ``records``; unchanged where there are none."""
    if not len(records):
        return dict(params)
    common = {
        "lr": training.lr,
        "batch_size": training.batch_size,
        "epochs": training.epochs,
        "generator": generator,
    }
    if training.optimiser == "adam":
        return local_adam(model, params, records, loss=loss, **common)  # type: ignore[arg-type]
    optimiser_settings = {"momentum": training.momentum, "weight_decay": training.weight_decay}
    return local_sgd(model, params, records, loss=loss, **common, **optimiser_settings)[0]  # type: ignore[arg-type]


def train_on_uploads(
    spec: ModelSpec,
    before: Tensors,
    inbox: Sequence[Received],
    name: str,
    training: ServerTraining,
    keys: Keys,
    loss: Loss | None = None,
) -> State:
    """The state of the network ``spec`` after training on the pooled uploads under ``name``."""
    pooled = pool_uploads(inbox, name)
    model = build_skeleton(spec, tuple(pooled.x.shape[1:]), len(before["head.weight"]))  # type: ignore[arg-type]
    return train_on_records(model, before, pooled, training, keys.fold("batch").torch(), loss)


def ball_projected_loss(centre: Tensors, rho: float) -> Loss:
    """Cross-entropy at the nearest point of the ball around ``centre``: projected SGD (FedDM, 4.5).

    The parameters are moved there before each step; the caller projects once more after the last.
    """

    def projected_loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            pairs = [
                (parameter, centre[name].to(parameter))
                for name, parameter in net.named_parameters()
            ]
            norm = torch.stack([(p - c).square().sum() for p, c in pairs]).sum().sqrt()
            # 0 inside: nothing is read, so that no GPU is waited for
            beyond = (1 - rho / norm.double()).clamp_min(0)
            for parameter, origin in pairs:
                parameter.lerp_(origin, beyond.to(parameter))
        return batch_cross_entropy(net, x, y)

    return projected_loss


def train_on_soft_labels(
    network: nn.Module,
    start: Tensors,
    x: Tensor,
    soft: Tensor,
    training: ServerTraining,
    keys: Keys,
) -> State:
    """The state after training on images x (n, c, h, w) and labels soft (n, C), at a rate that
    falls in ``PHASES``.

    A network without norm layers can diverge, or die with all its outputs constant. Then it is
    trained again from ``start`` with half the learning rate, at most three times.
    """
    positions = torch.arange(len(x))

    def soft_cross_entropy(net: nn.Module, images: Tensor, positions: Tensor) -> Tensor:
        return -(soft[positions] * F.log_softmax(net(images), 1)).sum(1).mean()

    for tried in range(MAX_TRIES):
        state = dict(start)
        generator = keys.torch()
        for part, rate in PHASES:
            phase = replace(
                training, lr=rate * training.lr / 2**tried, epochs=part * training.epochs
            )
            state = train_on_records(
                network,
                state,
                Records(x, positions, positions),
                phase,
                generator,
                soft_cross_entropy,
            )
        if is_better_than_constant(predict_logits(network, state, x), soft):
            break
    return state


def is_better_than_constant(logits: Tensor, soft: Tensor) -> bool:
    """Whether the outputs (n, C) fit the labels (n, C) better than the same outputs for all; False
    for NaN."""
    mean = soft.double().mean(0)
    constant = float(-(mean * mean.clamp_min(1e-30).log()).sum())
    return float(-(soft * logits.double().log_softmax(1)).sum(1).mean()) < 0.99 * constant
