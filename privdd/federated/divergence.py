"""Whether training still has a model: a run whose numbers are no longer finite has no accuracy to speak of."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from privdd.core.types import State


def finite(state: State) -> bool:
    """Whether no tensor holds NaN or infinity."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in state.values())


def share_right(logits: Tensor, y: Tensor) -> float:
    """Accuracy in [0, 1] of logits (n, C) for labels y (n,); NaN where they are none, and so the loss is not finite.

    A logit of minus infinity is one: a class that the model rules out (FedProto before it has seen all).
    """
    if bool((logits.isnan() | logits.isposinf()).any()):
        return math.nan
    return float((logits.argmax(1) == y).float().mean())


def words(round: int) -> str:
    """One line for the user."""
    return f"training diverged in round {round}: the model is not finite and has no accuracy (lower the learning rate)"
