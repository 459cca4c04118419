"""Membership signals: one number per record from an artifact, larger = more like a member.

Pure functions; leading dimensions (worlds) are carried along where the shapes say "...".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.arrays import arrays


@arrays
def logit_scaled(logits: Tensor, labels: Tensor) -> Tensor:
    """z_y - logsumexp of the other logits: logits (..., n, C), labels (n,) -> (..., n).

    Equals log p_y / (1 - p_y) (Carlini et al. 2022, section V.A) without its saturation: no epsilon
    is added and nothing is subtracted from one. Raises ValueError for fewer than two classes.
    """
    if logits.shape[-1] < 2 or labels.shape != logits.shape[-2:-1]:
        raise ValueError(f"logits {tuple(logits.shape)}, labels {tuple(labels.shape)}: (..., n, C >= 2) and (n,)")
    index = labels.long().expand(logits.shape[:-1]).unsqueeze(-1)
    own = logits.gather(-1, index).squeeze(-1)
    return own - logits.scatter(-1, index, -torch.inf).logsumexp(-1)


@arrays
def negative_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Log-probability of the true label: logits (..., n, C), labels (n,) -> (..., n), at most 0."""
    index = labels.long().expand(logits.shape[:-1]).unsqueeze(-1)
    return logits.log_softmax(-1).gather(-1, index).squeeze(-1)


@arrays
def output_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    """softmax - one-hot label, the gradient of each record's cross-entropy at the outputs: (..., n, C) -> (..., n, C).

    The gradient of a last layer's weights is this times the record's features, so it shrinks with their fit.
    """
    return logits.softmax(-1) - torch.nn.functional.one_hot(labels.long(), logits.shape[-1]).to(logits)


@arrays
def gradient_alignment(update: Tensor, gradients: Tensor, *, cosine: bool = True) -> Tensor:
    """How far ``update`` (..., p) points along each record's own descent step.

    gradients (n, p): each record's loss gradient at the broadcast model; update: local minus
    broadcast parameters. Returns (..., n): the cosine with -gradient, or the inner product.
    """
    return alignment(update, -gradients, cosine=cosine)


@arrays
def embedding_alignment(means: Tensor, embeddings: Tensor, labels: Tensor, *, cosine: bool = True) -> Tensor:
    """Alignment of class means (..., C, d) with each record's embedding (n, d) of class labels (n,) -> (..., n)."""
    own = means[..., labels.long(), :]
    product = (own * embeddings).sum(-1)
    return product / _norms(own, embeddings) if cosine else product


@arrays
def alignment(value: Tensor, directions: Tensor, *, cosine: bool = True) -> Tensor:
    """Inner product or cosine of ``value`` (..., p) with ``directions`` (n, p) -> (..., n)."""
    product = value @ directions.T
    return product / _norms(value.unsqueeze(-2), directions) if cosine else product


@arrays
def matched_filter(features: Tensor, clean: Tensor, noise_std: float, *, shared_noise: bool = False) -> Tensor:
    """Log-likelihood ratio that some released row is ``clean[i]`` plus Gaussian noise, against pure noise.

    features (..., m, d): released rows in unknown order; clean (n, d): what each record's row would
    be without noise; noise_std: per coordinate, > 0. Returns (..., n): the largest over the m rows
    of (<f, c> - |c|^2 / 2) / noise_std^2, the Neyman-Pearson statistic when one row stems from the
    record. shared_noise: one noise image was added to all m rows of a release, so the rows'
    differences are exact: both sides are centred by their own mean before matching.
    """
    if not noise_std > 0:
        raise ValueError(f"noise_std={noise_std}: a positive number is needed")
    if shared_noise:
        features, clean = features - features.mean(-2, keepdim=True), clean - clean.mean(0)
    energy = clean.square().sum(-1) / 2
    return ((features @ clean.T) - energy).amax(-2) / noise_std**2


@arrays
def averaged_copies(released: Tensor, stds: Sequence[float]) -> tuple[Tensor, float]:
    """Copies of the same n rows, each with its own noise, as one: (copies * n, d), copy after copy -> (n, d), its std.

    Weights are inverse variances: the mean then holds all that Gaussian copies say about a row, and the
    log-likelihood ratio of the mean is the sum of theirs. One copy is returned as it is.
    """
    if len(stds) == 1:
        return released, stds[0]
    precision = torch.tensor([std**-2 for std in stds], dtype=torch.float64)
    weights = (precision / precision.sum()).to(released)
    return torch.einsum("k,knd->nd", weights, released.unflatten(0, (len(stds), -1))), float(precision.sum() ** -0.5)


@arrays
def nearest_distance(records: Tensor, synthetic: Tensor, *, count: int = 1) -> Tensor:
    """Minus the mean Euclidean distance to the ``count`` nearest of a synthetic set.

    records (n, ...), synthetic (m, ...) or (K, m, ...) of the same record shape -> (n,) or (K, n).
    """
    flat = records.flatten(1)
    pool = synthetic.flatten(synthetic.ndim - records.ndim + 1)
    if pool.shape[-1] != flat.shape[-1] or not 1 <= count <= pool.shape[-2]:
        raise ValueError(f"records {tuple(records.shape)}, synthetic {tuple(synthetic.shape)}, count={count}")
    distance = torch.cdist(flat, pool, compute_mode="donot_use_mm_for_euclid_dist")
    return -distance.topk(count, dim=-1, largest=False).values.mean(-1)


@arrays
def class_statistics(mean: Tensor, std: Tensor, values: Tensor, labels: Tensor) -> Tensor:
    """Gaussian log-density of each record's own channel means under its class's released statistics.

    mean, std (..., C, c); values (n, c); labels (n,) -> (..., n). A floor of 1e-3 on std keeps
    empty or single-record classes finite.
    """
    at = labels.long()
    scale = std[..., at, :].clamp_min(1e-3)
    return -(((values - mean[..., at, :]) / scale).square() / 2 + scale.log()).sum(-1)


def _norms(a: Tensor, b: Tensor) -> Tensor:
    return (a.norm(dim=-1) * b.norm(dim=-1)).clamp_min(torch.finfo(a.dtype).tiny)
