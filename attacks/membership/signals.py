"""Membership signals: one number per record from an artifact, larger = more like a member.

Pure functions; leading dimensions (replays) are carried along where the shapes say "...".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.tensors import accepts_numpy

MAX_DISTANCES = 2**23  # distances in memory at a time
# of the contrast of a record's richest patch: flatter ones, as of a background, lie in any image
PATCH_CONTRAST = 0.5
FARTHEST_PATCH = 1e3  # distance to no patch at all, in units of the contrast
# of the linear readout that stands for a model trained on the shared synthetic set
READOUT_RIDGE = 1e-2
MAX_KERNEL_ROWS = 2000  # of a readout: the time of its kernel grows with their cube
# of the mean squared length of a candidate's vector; SMALL is enough for many numbers a record, as
# a model has
RIDGE_SHARE = 0.1
SMALL_RIDGE_SHARE = 0.01
# of the mean squared length of a replay's message, from which inclusion bits are predicted
INCLUSION_RIDGE = 0.1
LEAST_SPREAD = 1e-9  # of a number's size: one that varies less is the same in all replays


@accepts_numpy
def logit_scaled(logits: Tensor, labels: Tensor) -> Tensor:
    """The logit-scaled confidence, log p_y / (1 - p_y) (Carlini et al. 2022, section V.A).

    It is computed as z_y minus the logsumexp of the other logits, which does not saturate.

    Args:
        logits: (..., n, C).
        labels: (n,).

    Returns:
        (..., n), larger = member.

    Raises:
        ValueError: for fewer than two classes, and shapes that do not fit.

    Example:
        >>> logit_scaled(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        tensor([2.])
    """
    if logits.shape[-1] < 2 or labels.shape != logits.shape[-2:-1]:
        raise ValueError(
            f"logits {tuple(logits.shape)}, labels {tuple(labels.shape)}: must have "
            "shapes (..., n, C >= 2) and (n,)"
        )
    index = labels.long().expand(logits.shape[:-1]).unsqueeze(-1)
    true_logit = logits.gather(-1, index).squeeze(-1)
    return true_logit - logits.scatter(-1, index, -torch.inf).logsumexp(-1)


@accepts_numpy
def negative_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Log-probability of the true label, minus the cross-entropy loss (Yeom et al. 2018).

    Args:
        logits: (..., n, C).
        labels: (n,).

    Returns:
        (..., n), at most 0, larger = member.
    """
    index = labels.long().expand(logits.shape[:-1]).unsqueeze(-1)
    return logits.log_softmax(-1).gather(-1, index).squeeze(-1)


@accepts_numpy
def output_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    """softmax - one-hot label, the gradient of each record's cross-entropy at the outputs: (..., n,
    C) -> (..., n, C).

    The gradient of a last layer's weights is this times the record's features, so it shrinks with
    their fit."""
    return logits.softmax(-1) - F.one_hot(labels.long(), logits.shape[-1]).to(logits)


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
    class_mean = means[..., labels.long(), :]
    product = (class_mean * embeddings).sum(-1)
    if not cosine:
        return product
    return product / _norm_products(class_mean, embeddings)


@accepts_numpy
def direction_alignment(value: Tensor, directions: Tensor, *, cosine: bool = True) -> Tensor:
    """Inner product or cosine of ``value`` (..., p) with ``directions`` (n, p) -> (..., n)."""
    product = value @ directions.T
    if not cosine:
        return product
    return product / _norm_products(value.unsqueeze(-2), directions)


@accepts_numpy
def matched_filter(
    features: Tensor, clean: Tensor, noise_std: float, *, shared_noise: bool = False
) -> Tensor:
    """Log-likelihood ratio that some released row is ``clean[i]`` plus Gaussian noise, against pure
    noise: the Neyman-Pearson statistic if one row stems from the record.

    Args:
        features: released rows (..., m, d) in unknown order.
        clean: each record's row without noise (n, d).
        noise_std: per coordinate, above 0.
        shared_noise: one noise image was added to all m rows of a release, so that both sides are
            centred by their own mean.

    Returns:
        (..., n), larger = member.
    """
    # max over rows f of (<f, c_i> - |c_i|^2 / 2) / noise_std^2
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
    # mean = sum_k x_k / s_k^2 / sum_k 1 / s_k^2,   std = (sum_k 1 / s_k^2)^(-1/2)
    if len(stds) == 1:
        return released, stds[0]
    precision = torch.tensor([std**-2 for std in stds], dtype=torch.float64)
    weights = (precision / precision.sum()).to(released)
    copies = released.unflatten(0, (len(stds), -1))
    return torch.einsum("k,knd->nd", weights, copies), float(precision.sum() ** -0.5)


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
    nearest = []
    for block in flat.split(step):
        distances = torch.cdist(block, pool, compute_mode="donot_use_mm_for_euclid_dist")
        nearest.append(distances.amin(-1))
    return -torch.cat(nearest, -1)


@accepts_numpy
def generated_share(records: Tensor, generated: Tensor, radius: float) -> Tensor:
    """(n,): the share of generated rows within a radius of each record, a Monte-Carlo estimate of
    a generator's mass there (Hilprecht, Härterich and Bernau 2019, Monte-Carlo attack).

    Args:
        records: (n, ...).
        generated: (m, ...) drawn by the generator, m >= 1.
        radius: Euclidean, at least 0.

    Raises:
        ValueError: for no rows, or rows of another size.
    """
    # f(x) = 1 / m sum_i 1[|x - g_i| <= r]
    flat = records.flatten(1)
    pool = generated.flatten(1)
    if pool.shape[1] != flat.shape[1] or not len(pool):
        raise ValueError(f"records {tuple(records.shape)}, generated {tuple(generated.shape)}")
    step = max(1, MAX_DISTANCES // len(pool))
    shares = []
    for block in flat.split(step):
        distances = torch.cdist(block, pool, compute_mode="donot_use_mm_for_euclid_dist")
        shares.append((distances <= radius).to(flat).mean(1))
    return torch.cat(shares)


@accepts_numpy
def patch_distance(records: Tensor, synthetic: Tensor) -> Tensor:
    """(n,) minus the distance of each record's nearest patch to a patch of any image of a synthetic
    set.

    records (n, c, h, w), synthetic (m, c, h, w). Patches have half the height and width, nine of
    them in each image, at steps of half a patch. -FARTHEST_PATCH for a flat record or an empty
    set."""
    # min over q of the set, and over p of the record with |p - mean p| >= PATCH_CONTRAST times the
    # largest one, of   d(p, q) = |p - q| / |p - mean p|
    if records.ndim != 4 or synthetic.shape[1:] != records.shape[1:]:
        raise ValueError(
            f"records {tuple(records.shape)}, synthetic {tuple(synthetic.shape)}: (n, c, "
            "h, w) must agree"
        )
    farthest = records.new_full((len(records),), -FARTHEST_PATCH)
    if not len(synthetic) or not len(records):
        return farthest
    pool = _half_patches(synthetic).flatten(0, 1)
    step = max(1, MAX_DISTANCES // (9 * len(pool)))
    nearest = []
    for block in records.split(step):
        patches = _half_patches(block)
        contrast = (patches - patches.mean(-1, keepdim=True)).norm(dim=-1)
        is_rich = contrast >= PATCH_CONTRAST * contrast.amax(-1, keepdim=True).clamp_min(1e-6)
        distances = torch.cdist(patches.flatten(0, 1).double(), pool.double())
        gaps = distances.amin(-1).reshape(contrast.shape)
        relative = torch.where(is_rich, gaps / contrast.clamp_min(1e-12), FARTHEST_PATCH)
        nearest.append(-relative.amin(-1).to(records).clamp(max=FARTHEST_PATCH))
    return torch.cat(nearest)


def _half_patches(images: Tensor) -> Tensor:
    """(n, patches, c * h/2 * w/2) of images (n, c, h, w)."""
    height, width = images.shape[2:]
    size = (max(1, height // 2), max(1, width // 2))
    step = (max(1, size[0] // 2), max(1, size[1] // 2))
    return F.unfold(images, size, stride=step).transpose(1, 2)


@accepts_numpy
def single_record_means(mean: Tensor, count: Tensor | None = None) -> Tensor:
    """(m, ...): the class means (or sums) over a single record, of mean (C, ...) and count (C,);
    without counts, all."""
    if count is None:
        return mean
    return mean[count.flatten().round() == 1]


@accepts_numpy
def class_log_density(mean: Tensor, std: Tensor, values: Tensor, labels: Tensor) -> Tensor:
    """Gaussian log-density of each record's own channel means under its class's released
    statistics.

    mean, std (..., C, c); values (n, c); labels (n,) -> (..., n). A floor of 1e-3 on std keeps
    empty or single-record classes finite.
    """
    # -sum over channels of ((v - m_y) / s_y)^2 / 2 + ln s_y
    classes = labels.long()
    scale = std[..., classes, :].clamp_min(1e-3)
    return -(((values - mean[..., classes, :]) / scale).square() / 2 + scale.log()).sum(-1)


def _norm_products(a: Tensor, b: Tensor) -> Tensor:
    return (a.norm(dim=-1) * b.norm(dim=-1)).clamp_min(torch.finfo(a.dtype).tiny)


@accepts_numpy
def class_mean_embeddings(embeddings: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(C, d); zero for a class without examples."""
    one_hot = F.one_hot(labels.long(), classes).to(embeddings)
    return (one_hot.T @ embeddings) / one_hot.sum(0).clamp_min(1)[:, None]


@accepts_numpy
def ridge_readout(train: Tensor, labels: Tensor, query: Tensor, classes: int) -> Tensor:
    """Logits (n, C) for ``query`` (n, d) of a ridge regression of one-hot ``labels`` (m,) on
    ``train`` (m, d), in closed form; zeros for m = 0."""
    targets = F.one_hot(labels.long(), classes).to(train.dtype) - 1 / classes
    return ridge_student(train, targets, query)


@accepts_numpy
def ridge_student(train: Tensor, targets: Tensor, query: Tensor) -> Tensor:
    """Logits (n, C) for ``query`` (n, d) of a ridge regression of ``targets`` (m, C) on ``train``
    (m, d), in closed form, up to a constant factor; zeros for m = 0."""
    # X^T (X X^T + a I)^-1 T = (X^T X + a I)^-1 X^T T: m equations on the left, d on the right
    if not len(train):
        return query.new_zeros(len(query), targets.shape[1])
    scale = train.square().sum(1).mean().clamp_min(1e-12)
    ridge = READOUT_RIDGE * len(train) ** 0.5
    if len(train) > max(MAX_KERNEL_ROWS, train.shape[1]):
        x = train.double()
        gram = x.T @ x / scale + ridge * torch.eye(train.shape[1], device=train.device)
        weights = torch.linalg.solve(gram, x.T @ targets.double() / scale)
        return 10 * query @ weights.to(query.dtype)
    kernel = train @ train.T / scale + ridge * torch.eye(len(train), device=train.device)
    return 10 * (query @ train.T / scale) @ torch.linalg.solve(kernel, targets)


@accepts_numpy
def distance_to_synthetic(records: Tensor, synthetic: Tensor, farthest: float) -> Tensor:
    """(n,) minus the distance of each record to the nearest of ``synthetic``; minus ``farthest`` if
    there is none."""
    if not len(synthetic):
        return records.new_full((len(records),), -farthest)
    return nearest_distance(records, synthetic)


# Joint membership on sums over records: an update, a gradient, a class mean are nearly sums of one
# vector a record. The inner product with a record's own vector also picks up the records that
# resemble it; ridge regression on all takes those out.


@accepts_numpy
def ridge_solver(directions: Tensor, ridge: float = RIDGE_SHARE) -> Tensor:
    """W (n, p) float64 such that W v are the ridge coefficients of a release v on directions D (n,
    p).

    Zero directions, or none, give zero. Raises ValueError for a ridge that is not positive."""
    # W v = argmin_c |v - c D|^2 + ridge mean_i |D_i|^2 |c|^2, by the (n, n) dual form
    d = directions.double()
    return solve_ridge(d @ d.T, d, ridge)


@accepts_numpy
def solve_ridge(gram: Tensor, right: Tensor, ridge: float = RIDGE_SHARE) -> Tensor:
    """``ridge_solver`` from the inner products G = D D^T (n, n) float64 of the directions alone.

    right: D (n, p), or D v (n,) for the coefficients of a release v."""
    # (G + ridge mean_i G_ii I)^-1 right
    if not ridge > 0:
        raise ValueError(f"ridge={ridge}: a positive number is needed")
    if not len(gram):
        return torch.zeros_like(right)
    scale = gram.diagonal().mean()
    if not scale > 0:
        return torch.zeros_like(right)
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return torch.linalg.solve(gram + ridge * scale * identity, right)


@accepts_numpy
def ridge_coefficients(released: Tensor, directions: Tensor, ridge: float = RIDGE_SHARE) -> Tensor:
    """Each candidate's coefficient in ``released`` (..., p), for directions (n, p) -> (..., n)
    float64."""
    return released.double() @ ridge_solver(directions, ridge).T


@accepts_numpy
def predicted_inclusion(messages: Tensor, masks: Tensor, ridge: float = INCLUSION_RIDGE) -> Tensor:
    """How much each replay's message looks as if a record were in: (K, n) float64, by ridge
    regression of the other replays' inclusion bits on their messages.

    It needs to know nothing of what the numbers of a message mean.

    Args:
        messages: (K, p), row 0 that of the run itself.
        masks: (K, n) bool, True = in; row 0 is not read, and no row's own bits enter its
            prediction.
        ridge: > 0, of the messages' mean squared length.

    Raises:
        ValueError: for fewer than three replays beside the run.
    """
    # f = y - (y - H y) / (1 - diag H),   H = G (G + a I)^-1,   G = X X'     (Allen 1974, PRESS)
    if len(messages) < 4:
        raise ValueError(f"messages of {len(messages)} replays: at least 4 are needed")
    shadows = messages[1:].double()
    centre = shadows.mean(0)
    spread = shadows.std(0)
    varies = spread > LEAST_SPREAD * centre.abs().clamp_min(1e-30)
    x = (messages.double() - centre)[:, varies] / spread[varies]
    run = x[:1]
    rows = x[1:]
    bits = masks[1:].double() - 0.5
    gram = rows @ rows.T
    penalty = ridge * gram.diagonal().mean().clamp_min(1e-30)
    inverse = torch.linalg.inv(gram + penalty * torch.eye(len(gram)).to(gram))
    # y - H y = a (G + a I)^-1 y,   1 - diag H = a diag (G + a I)^-1
    left_out = bits - (inverse @ bits) / inverse.diagonal()[:, None]
    return torch.cat([run @ rows.T @ inverse @ bits, left_out])


@dataclass(frozen=True)
class LogitInfluence:
    """How logits on public rows change, to first order, when the last layer takes a step on one of
    n records.

    Attributes:
        overlap: (n, m) inner products of the records' features with the rows', plus one for the
            bias.
        residual: (n, C) one-hot labels minus the probabilities of the network before the step.
    """

    # W <- W - lr (p_i - e_{y_i}) phi_i',  b likewise, so that the logits of row j change by
    #   lr (<phi_j, phi_i> + 1) (e_{y_i} - p_i)                                               (1)
    # which is the neural tangent kernel of the last layer (Jacot et al. 2018, eq. 6).
    overlap: Tensor
    residual: Tensor

    @property
    def gram_matrix(self) -> Tensor:
        """(n, n) float64 inner products of the changes that two records make."""
        overlap = self.overlap.double()
        residual = self.residual.double()
        return (overlap @ overlap.T) * (residual @ residual.T)

    def inner_products(self, change: Tensor) -> Tensor:
        """(n,) float64 of each record's change (1) with an observed one (m, C)."""
        return ((self.overlap.double() @ change.double()) * self.residual.double()).sum(1)

    def signals(self, change: Tensor) -> dict[str, Tensor]:
        """ "alignment": the inner product over the length of the record's own change; "joint": the
        records' parts in the observed change, solved for together; (n,) each."""
        gram = self.gram_matrix
        product = self.inner_products(change)
        length = gram.diagonal().sqrt().clamp_min(torch.finfo(gram.dtype).tiny)
        return {
            "alignment": product / length,
            "joint": solve_ridge(gram, product, SMALL_RIDGE_SHARE),
        }


@accepts_numpy
def class_ridge_coefficients(
    means: Tensor, directions: Tensor, labels: Tensor, ridge: float = RIDGE_SHARE
) -> Tensor:
    """``ridge_coefficients`` within each class, relative to its candidates' mean, which all its
    records share: (n,) float64.

    means (C, d) as released, NaN for an absent class; directions (n, d) and labels (n,) of the
    candidates. A class with one candidate is not centred; in an absent one all coefficients are
    0."""
    coefficients = directions.new_zeros(len(directions), dtype=torch.float64)
    for label in labels.unique():
        mean = means[int(label)]
        if mean.isnan().any():
            continue
        in_class = labels == label
        vectors = directions[in_class]
        centre = torch.zeros_like(directions[0])
        if len(vectors) > 1:
            centre = vectors.mean(0)
        coefficients[in_class] = ridge_coefficients(mean - centre, vectors - centre, ridge)
    return coefficients


@accepts_numpy
def moment_alignment(
    moments: Tensor, count: Tensor, rows: Tensor, labels: Tensor, reference: Tensor
) -> Tensor:
    """Each record's outer product with the second moment of those that were sent, seen from public
    records.

        <r r^T, M / n - R> = r^T (M / n - R) r

    Tracing (Homer et al. 2008; Dwork et al. 2015) on second moments.

    Args:
        moments: M, (C, d, d) of each class, or (1, d, d) of all records together.
        count: n, (C,) or (1,), records behind each.
        rows: r, (n, d), of the candidates.
        labels: their classes (n,).
        reference: R, (d, d), the mean outer product of public records.

    Returns:
        (n,) float64.
    """
    products = rows.new_zeros(len(rows), dtype=torch.float64)
    for group, members in _moment_groups(moments, labels):
        mean = moments[group].double() / count[group].double().clamp_min(1)
        products[members] = _quadratic_forms(mean - reference.double(), rows[members].double())
    return products


@accepts_numpy
def moment_coefficients(
    moments: Tensor,
    count: Tensor,
    rows: Tensor,
    labels: Tensor,
    reference: Tensor,
    ridge: float = SMALL_RIDGE_SHARE,
) -> Tensor:
    """The candidates' parts in second moments, solved for together: 1 for a record that was summed
    and 0 for any other, as far as their outer products can be distinguished.

    By the inner products of centred outer products,

        <r r^T - R, s s^T - R> = (r^T s)^2 - r^T R r - s^T R s + |R|^2

    Args:
        moments: (C, d, d) of each class, or (1, d, d) of all records together.
        count: (C,) or (1,), records behind each.
        rows: (n, d), of the candidates.
        labels: their classes (n,).
        reference: R, (d, d), the mean outer product of public records.
        ridge: in units of the mean squared length of a centred outer product.

    Returns:
        (n,) float64.
    """
    coefficients = rows.new_zeros(len(rows), dtype=torch.float64)
    centre = reference.double()
    for group, members in _moment_groups(moments, labels):
        vectors = rows[members].double()
        shared = _quadratic_forms(centre, vectors)
        gram = (vectors @ vectors.T).square() - shared[:, None] - shared + centre.square().sum()
        centred = moments[group].double() - count[group].double() * centre
        products = _quadratic_forms(centred, vectors) - (centre * centred).sum()
        coefficients[members] = solve_ridge(gram, products, ridge)
    return coefficients


def _quadratic_forms(matrix: Tensor, vectors: Tensor) -> Tensor:
    """v^T A v (n,) of vectors (n, d)."""
    return ((vectors @ matrix) * vectors).sum(1)


def _moment_groups(moments: Tensor, labels: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The second moment that a record is part of, and which candidates (n,) these are."""
    groups = labels.long()
    if len(moments) == 1:
        groups = torch.zeros_like(groups)
    for group in groups.unique().tolist():
        yield group, groups == group
