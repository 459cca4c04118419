"""Training a network on images with soft labels."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privdd.core.keys import Keys
from privdd.core.types import Records, State, Tensors
from privdd.training.local import outputs
from privdd.training.server import ServerTraining, train_on

TRIES = 4
PHASES = ((0.6, 1.0), (0.25, 0.25), (0.15, 0.0625))  # shares of the epochs, and of the learning rate


def learned(network: nn.Module, start: Tensors, x: Tensor, soft: Tensor, training: ServerTraining, keys: Keys) -> State:
    """The state after training on images x (n, c, h, w) and labels soft (n, C), at a rate that falls in ``PHASES``.

    A network without norm layers can diverge, or die with all its outputs constant. Then it is trained again from
    ``start`` with half the learning rate, at most three times.
    """
    at = torch.arange(len(x))

    def loss(net: nn.Module, images: Tensor, at: Tensor) -> Tensor:
        return -(soft[at] * F.log_softmax(net(images), 1)).sum(1).mean()

    for tried in range(TRIES):
        state, generator = dict(start), keys.torch()
        for part, rate in PHASES:
            phase = replace(training, lr=rate * training.lr / 2**tried, epochs=part * training.epochs)
            state = train_on(network, state, Records(x, at, at), phase, generator, loss)
        if better_than_constant(outputs(network, state, x), soft):
            break
    return state


def better_than_constant(logits: Tensor, soft: Tensor) -> bool:
    """Whether the outputs (n, C) fit the labels (n, C) better than the same outputs for all; False for NaN."""
    mean = soft.double().mean(0)
    constant = float(-(mean * mean.clamp_min(1e-30).log()).sum())
    return float(-(soft * logits.double().log_softmax(1)).sum(1).mean()) < 0.99 * constant
