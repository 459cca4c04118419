"""The global threshold (Yeom et al. 2018): one cut for all records, no shadow worlds."""

from __future__ import annotations

import torch
from torch import Tensor


def loss_threshold(signal: Tensor) -> Tensor:
    """The signal itself as the score, (n,) float64, larger = member; for a loss pass minus the loss."""
    score = torch.as_tensor(signal).double()
    if score.ndim != 1 or not torch.isfinite(score).all():
        raise ValueError(f"signal {tuple(score.shape)}: one finite number per record is needed")
    return score


def average_loss_rule(loss: Tensor, training_loss: float) -> Tensor:
    """Yeom et al.'s decision, (n,) bool: member where the loss is at most the model's average training loss."""
    if not training_loss >= 0:
        raise ValueError(f"training_loss={training_loss}: a number of at least 0 is needed")
    return torch.as_tensor(loss) <= training_loss
