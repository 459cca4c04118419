"""Membership signals: one number per record from an artifact, larger = more like a member.

Pure functions; leading dimensions (replays) are carried along where the shapes say "...".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.tensors import accepts_numpy


@accepts_numpy
def logit_scaled(logits: Tensor, labels: Tensor) -> Tensor:
    """z_y - logsumexp of the other logits: logits (..., n, C), labels (n,) -> (..., n).

    Equals log p_y / (1 - p_y) (Carlini et al. 2022, section V.A) without its saturation. Raises
    ValueError for fewer than two classes.
    """
    if logits.shape[-1] < 2 or labels.shape != logits.shape[-2:-1]:
        raise ValueError(
            f"logits {tuple(logits.shape)}, labels {tuple(labels.shape)}: (..., n, C >= 2) and (n,)"
        )
    index = labels.long().expand(logits.shape[:-1]).unsqueeze(-1)
    own = logits.gather(-1, index).squeeze(-1)
    return own - logits.scatter(-1, index, -torch.inf).logsumexp(-1)


@accepts_numpy
def negative_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Log-probability of the true label: logits (..., n, C), labels (n,) -> (..., n), at most 0."""
    index = labels.long().expand(logits.shape[:-1]).unsqueeze(-1)
    return logits.log_softmax(-1).gather(-1, index).squeeze(-1)


@accepts_numpy
def output_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    """softmax - one-hot label, the gradient of each record's cross-entropy at the outputs: (..., n,
    C) -> (..., n, C).

    The gradient of a last layer's weights is this times the record's features, so it shrinks with
    their fit."""
    return logits.softmax(-1) - torch.nn.functional.one_hot(labels.long(), logits.shape[-1]).to(
        logits
    )


@accepts_numpy
def gradient_alignment(update: Tensor, gradients: Tensor, *, cosine: bool = True) -> Tensor:
    """How far ``update`` (..., p) points along each record's own descent step.

    gradients (n, p): each record's loss gradient at the broadcast model; update: local minus
        broadcast parameters."""
    return direction_alignment(update, -gradients, cosine=cosine)


@accepts_numpy
def embedding_alignment(
    means: Tensor, embeddings: Tensor, labels: Tensor, *, cosine: bool = True
) -> Tensor:
    """Alignment of class means (..., C, d) with each record's embedding (n, d) of class labels (n,)
    -> (..., n)."""
    own = means[..., labels.long(), :]
    product = (own * embeddings).sum(-1)
    return product / _norm_products(own, embeddings) if cosine else product


@accepts_numpy
def direction_alignment(value: Tensor, directions: Tensor, *, cosine: bool = True) -> Tensor:
    """Inner product or cosine of ``value`` (..., p) with ``directions`` (n, p) -> (..., n)."""
    product = value @ directions.T
    return product / _norm_products(value.unsqueeze(-2), directions) if cosine else product


@accepts_numpy
def matched_filter(
    features: Tensor, clean: Tensor, noise_std: float, *, shared_noise: bool = False
) -> Tensor:
    """Log-likelihood ratio that some released row is ``clean[i]`` plus Gaussian noise, against pure
    noise.

    features (..., m, d): released rows in unknown order; clean (n, d): what each record's row would
    be without noise; noise_std: per coordinate, > 0. Returns (..., n): the largest over the m rows
    of (<f, c> - |c|^2 / 2) / noise_std^2, the Neyman-Pearson statistic when one row stems from the
    record. shared_noise: one noise image was added to all m rows of a release, so both sides are
        centred by their own mean."""
    if not noise_std > 0:
        raise ValueError(f"noise_std={noise_std}: a positive number is needed")
    if shared_noise:
        features = features - features.mean(-2, keepdim=True)
        clean = clean - clean.mean(0)
    energy = clean.square().sum(-1) / 2
    return ((features @ clean.T) - energy).amax(-2) / noise_std**2


@accepts_numpy
def average_noisy_copies(released: Tensor, stds: Sequence[float]) -> tuple[Tensor, float]:
    """Copies of the same n rows, each with its own noise, as one: (copies * n, d), copy after copy
    -> (n, d), its std.

    Weights are inverse variances: the log-likelihood ratio of the mean is the sum of theirs.
    """
    if len(stds) == 1:
        return released, stds[0]
    precision = torch.tensor([std**-2 for std in stds], dtype=torch.float64)
    weights = (precision / precision.sum()).to(released)
    return torch.einsum("k,knd->nd", weights, released.unflatten(0, (len(stds), -1))), float(
        precision.sum() ** -0.5
    )


MAX_DISTANCES = 2**23  # distances that are held at once


@accepts_numpy
def nearest_distance(records: Tensor, synthetic: Tensor) -> Tensor:
    """Minus the Euclidean distance to the nearest of a synthetic set.

    records (n, ...), synthetic (m, ...) or (K, m, ...) of the same record shape -> (n,) or (K, n).
    """
    flat = records.flatten(1)
    pool = synthetic.flatten(synthetic.ndim - records.ndim + 1)
    if pool.shape[-1] != flat.shape[-1] or not pool.shape[-2]:
        raise ValueError(f"records {tuple(records.shape)}, synthetic {tuple(synthetic.shape)}")
    step = max(1, MAX_DISTANCES // pool[..., 0].numel())
    parts = [
        torch.cdist(part, pool, compute_mode="donot_use_mm_for_euclid_dist")
        for part in flat.split(step)
    ]
    return -torch.cat([part.amin(-1) for part in parts], -1)


PATCH_CONTRAST = (
    0.5  # of a record's richest patch: flatter ones, as of a background, lie in any image
)
FARTHEST_PATCH = 1e3  # distance to no patch at all, in units of the contrast


@accepts_numpy
def patch_distance(records: Tensor, synthetic: Tensor) -> Tensor:
    """(n,) minus the distance of each record's nearest patch to a patch of any image of a synthetic
    set.

    records (n, c, h, w), synthetic (m, c, h, w). Patches have half the height and width, nine of
    them in each image, at steps of half a patch. d(p, q) = |p - q| / |p - mean(p)|, the least over
    q in the set and over the record's own p with at least PATCH_CONTRAST of the largest |p -
    mean(p)| among them. -FARTHEST_PATCH for a flat record or an empty set."""
    if records.ndim != 4 or synthetic.shape[1:] != records.shape[1:]:
        raise ValueError(
            f"records {tuple(records.shape)}, synthetic {tuple(synthetic.shape)}: (n, c, "
            "h, w) alike"
        )
    farthest = records.new_full((len(records),), -FARTHEST_PATCH)
    if not len(synthetic) or not len(records):
        return farthest
    pool = _half_patches(synthetic).flatten(0, 1)
    step = max(1, MAX_DISTANCES // (9 * len(pool)))
    found = []
    for part in records.split(step):
        own = _half_patches(part)
        contrast = (own - own.mean(-1, keepdim=True)).norm(dim=-1)
        rich = contrast >= PATCH_CONTRAST * contrast.amax(-1, keepdim=True).clamp_min(1e-6)
        gaps = (
            torch.cdist(own.flatten(0, 1).double(), pool.double()).amin(-1).reshape(contrast.shape)
        )
        relative = torch.where(rich, gaps / contrast.clamp_min(1e-12), FARTHEST_PATCH)
        found.append(-relative.amin(-1).to(records).clamp(max=FARTHEST_PATCH))
    return torch.cat(found)


def _half_patches(images: Tensor) -> Tensor:
    """(n, patches, c * h/2 * w/2) of images (n, c, h, w)."""
    height, width = images.shape[2:]
    size = (max(1, height // 2), max(1, width // 2))
    step = (max(1, size[0] // 2), max(1, size[1] // 2))
    return F.unfold(images, size, stride=step).transpose(1, 2)


@accepts_numpy
def single_record_means(mean: Tensor, count: Tensor | None = None) -> Tensor:
    """(m, ...): the class means (or sums) that are of one record, of mean (C, ...) and count (C,);
    all without counts."""
    return mean if count is None else mean[count.flatten().round() == 1]


@accepts_numpy
def class_log_density(mean: Tensor, std: Tensor, values: Tensor, labels: Tensor) -> Tensor:
    """Gaussian log-density of each record's own channel means under its class's released
    statistics.

    mean, std (..., C, c); values (n, c); labels (n,) -> (..., n). A floor of 1e-3 on std keeps
    empty or single-record classes finite.
    """
    at = labels.long()
    scale = std[..., at, :].clamp_min(1e-3)
    return -(((values - mean[..., at, :]) / scale).square() / 2 + scale.log()).sum(-1)


def _norm_products(a: Tensor, b: Tensor) -> Tensor:
    return (a.norm(dim=-1) * b.norm(dim=-1)).clamp_min(torch.finfo(a.dtype).tiny)


READOUT_RIDGE = (
    1e-2  # of the linear readout that stands for "a model trained on the shared synthetic set"
)
MAX_KERNEL_ROWS = 2000  # of a readout, whose kernel takes time that grows with their cube


@accepts_numpy
def class_mean_embeddings(embeddings: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(C, d); zero for a class without examples."""
    one_hot = F.one_hot(labels.long(), classes).to(embeddings)
    return (one_hot.T @ embeddings) / one_hot.sum(0).clamp_min(1)[:, None]


@accepts_numpy
def ridge_readout(inside: Tensor, labels: Tensor, own: Tensor, classes: int) -> Tensor:
    """Ridge regression of one-hot ``labels`` (m,) on ``inside`` (m, d), in closed form: (n, C)
    logits for ``own``; zeros where m = 0.

    X^T (X X^T + a I)^-1 T = (X^T X + a I)^-1 X^T T,  whose right side takes (d, d) numbers and the
    left side (m, m)"""
    if not len(inside):
        return own.new_zeros(len(own), classes)
    scale = inside.square().sum(1).mean().clamp_min(1e-12)
    ridge = READOUT_RIDGE * len(inside) ** 0.5
    targets = F.one_hot(labels.long(), classes).to(inside.dtype) - 1 / classes
    if len(inside) > max(MAX_KERNEL_ROWS, inside.shape[1]):
        features = inside.double()
        gram = features.T @ features / scale + ridge * torch.eye(
            inside.shape[1], device=inside.device
        )
        weights = torch.linalg.solve(gram, features.T @ targets.double() / scale)
        return 10 * own @ weights.to(own.dtype)
    kernel = inside @ inside.T / scale + ridge * torch.eye(len(inside), device=inside.device)
    return 10 * (own @ inside.T / scale) @ torch.linalg.solve(kernel, targets)


@accepts_numpy
def distance_to_synthetic(records: Tensor, synthetic: Tensor, farthest: float) -> Tensor:
    """(n,) minus the distance of each record to the nearest of ``synthetic``; minus ``farthest``
    where it is empty."""
    return (
        nearest_distance(records, synthetic)
        if len(synthetic)
        else records.new_full((len(records),), -farthest)
    )


# Joint membership on sums over records: an update, a gradient, a class mean are nearly sums of one
# vector a record. The inner product with a record's own vector also picks up the records that
# resemble it; ridge regression on all takes those out.

# of the mean squared length of a candidate's vector; of many numbers a record (a model's), SMALL is
# enough
RIDGE_SHARE = 0.1
SMALL_RIDGE_SHARE = 0.01


@accepts_numpy
def ridge_solver(directions: Tensor, ridge: float = RIDGE_SHARE) -> Tensor:
    """W (n, p) float64, for directions D (n, p): W v = argmin_c |v - c D|^2 + ridge * mean_i
    |D_i|^2 * |c|^2.

    By the (n, n) dual form. Zero directions, or none, give zero. Raises ValueError for a ridge that
    is not positive."""
    d = directions.double()
    return solve_ridge(d @ d.T, d, ridge)


@accepts_numpy
def solve_ridge(gram: Tensor, right: Tensor, ridge: float = RIDGE_SHARE) -> Tensor:
    """``ridge_solver`` for directions of which only the inner products G = D D^T (n, n) float64 are
    held.

    (G + ridge * mean G_ii * I)^-1 ``right``, which is D (n, p), or D v (n,) for the coefficients of
    a release v."""
    if not ridge > 0:
        raise ValueError(f"ridge={ridge}: a positive number is needed")
    scale = gram.diagonal().mean() if len(gram) else gram.new_zeros(())
    if not scale > 0:
        return torch.zeros_like(right)
    return torch.linalg.solve(
        gram + ridge * scale * torch.eye(len(gram), dtype=gram.dtype, device=gram.device), right
    )


@accepts_numpy
def ridge_coefficients(released: Tensor, directions: Tensor, ridge: float = RIDGE_SHARE) -> Tensor:
    """Each candidate's part in ``released`` (..., p), for directions (n, p) -> (..., n) float64."""
    return released.double() @ ridge_solver(directions, ridge).T


@accepts_numpy
def class_ridge_coefficients(
    means: Tensor, own: Tensor, labels: Tensor, ridge: float = RIDGE_SHARE
) -> Tensor:
    """The same within each class, relative to its candidates' mean, which every record of the class
    shares.

    means (C, d) of what was released, NaN where a class is absent, own (n, d) of the candidates,
    labels (n,) -> (n,) float64. A class with one candidate is solved as it stands; in an absent one
    nobody has a part."""
    found = own.new_zeros(len(own), dtype=torch.float64)
    for c in labels.unique():
        mine = labels == c
        if means[int(c)].isnan().any():
            continue
        centre = own[mine].mean(0) if int(mine.sum()) > 1 else torch.zeros_like(own[0])
        found[mine] = ridge_coefficients(means[int(c)] - centre, own[mine] - centre, ridge)
    return found
