"""Training a classifier on virtual (distilled) images: a client's own, with or without the server's."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privdd.core.device import to_device
from privdd.core.types import Records, State, Tensors
from privdd.training.sgd import Loss, local_sgd


def as_records(x: Tensor, y: Tensor) -> Records:
    """Images (m, c, h, w) and labels (m,) as records with ids of their own."""
    return Records(x, y, torch.arange(len(y), device=y.device))


def contrastive_loss(shared: Records, weight: float, temperature: float) -> Loss:
    """Equation 2: cross-entropy of a batch + weight * supervised contrast of batch and all of ``shared``."""

    def batch_loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        features = net.features(x)  # type: ignore[operator]
        anchors = net.features(shared.x)  # type: ignore[operator]
        tie = supervised_contrastive(torch.cat([features, anchors]), torch.cat([y, shared.y]), temperature)
        return F.cross_entropy(net.head(features), y) + weight * tie  # type: ignore[operator]

    return batch_loss


def mean_matching_loss(shared: Records, weight: float) -> Loss:
    """Figure 3a's alternative: cross-entropy of a batch + weight * MMD between batch and all of ``shared``."""

    def batch_loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        features, anchors = net.features(x), net.features(shared.x)  # type: ignore[operator]
        return F.cross_entropy(net.head(features), y) + weight * class_mmd(features, y, anchors, shared.y)  # type: ignore[operator]

    return batch_loss


def class_mmd(a: Tensor, a_labels: Tensor, b: Tensor, b_labels: Tensor) -> Tensor:
    """Mean over common classes of the squared MMD (Gretton et al. 2012, biased, at most 2) with a Gaussian kernel as wide as
    the mean distance, as the released code bounds it; features (n, d) -> scalar; 0 with none."""
    common = [c for c in a_labels.unique().tolist() if bool((b_labels == c).any())]
    gaps = [gaussian_mmd(a[a_labels == c], b[b_labels == c]) for c in common]
    return torch.stack(gaps).mean() if gaps else a.sum() * 0


def gaussian_mmd(a: Tensor, b: Tensor) -> Tensor:
    """Squared MMD of two samples (n, d), (m, d), in [0, 2]."""
    rows = torch.cat([a, b])
    distances = (rows[:, None] - rows[None, :]).square().sum(2)
    kernel = torch.exp(-distances / distances.detach().mean().clamp_min(1e-12))
    n = len(a)
    return kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()


def train_virtual(
    model: nn.Module,
    params: Tensors,
    own: Records,
    shared: Records | None,
    *,
    lr: float,
    batch_size: int,
    epochs: float,
    contrast: float,
    temperature: float,
    generator: torch.Generator,
    regulariser: str = "contrastive",
    one_step: bool = False,
) -> State:
    """Plain SGD on ``own``, or on both sets with the regulariser (contrastive | mmd) where ``shared`` is given.

    one_step: a single step on the whole set, so that (before - after) / lr is its gradient. Without
    any record the parameters come back as they are.
    """
    own, shared = to_device((own, shared), next(iter(params.values())).device)
    records = own if shared is None else Records(*(torch.cat([a, b]) for a, b in _join_pairs(own, shared)))
    if not len(records):
        return dict(params)
    length = {"steps": 1, "batch_size": len(records)} if one_step else {"epochs": epochs, "batch_size": batch_size}
    loss = None
    if shared is not None:
        tied = regulariser == "contrastive"
        loss = contrastive_loss(shared, contrast, temperature) if tied else mean_matching_loss(shared, contrast)
    return local_sgd(model, params, records, lr=lr, generator=generator, loss=loss, **length)[0]  # type: ignore[arg-type]


def _join_pairs(own: Records, shared: Records) -> list[tuple[Tensor, Tensor]]:
    return [(own.x, shared.x.to(own.x)), (own.y, shared.y), (own.ids, shared.ids + len(own))]


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
