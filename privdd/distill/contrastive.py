"""The supervised contrastive loss that ties local and global virtual data together in FedLGD."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def supervised_contrastive(features: Tensor, labels: Tensor, temperature: float = 0.07) -> Tensor:
    """Khosla et al. 2020, equation 2, mean over anchors; features (b, d), labels (b,) -> scalar.

    Features are normalised to length 1. An anchor without another example of its class counts
    nothing; with no such pair at all the loss is 0.
    """
    z = F.normalize(features, dim=1)
    logits = z @ z.T / temperature
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    log_p = logits - torch.logsumexp(logits.masked_fill(itself, -torch.inf), 1, keepdim=True)
    positive = (labels[:, None] == labels[None, :]) & ~itself
    pairs = positive.sum(1)
    anchors = pairs > 0
    if not bool(anchors.any()):
        return features.sum() * 0
    return -((log_p * positive).sum(1)[anchors] / pairs[anchors]).mean()
