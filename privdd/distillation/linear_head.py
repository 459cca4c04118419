"""A linear classifier over public rows: its gradients, and its solutions from noised sums."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from privdd.core.types import State, Tensors
from privdd.privacy.batch_invariance import compute_rows
from privdd.privacy.clipping import OuterProducts

TINY = 1e-9
FAR_BELOW = 1e6  # below any score
# columns of a product: with fewer, a row's last bits depend on its place among the others
MULTIPLE = 16
MIN_PENALTY = 1e-3  # penalty without noise
ROWS_AT_ONCE = 4096  # in a pass


def head_gradients(
    weight: Tensor, rows: Tensor, y: Tensor, longest: float | None = None
) -> OuterProducts:
    """Each record's gradient of the cross-entropy of a linear head.

        g_i = (softmax(W r_i) - e_{y_i}) r_i^T

    Args:
        weight: W, (C, d).
        rows: r, (n, d).
        y: labels (n,).
        longest: gradients that are longer are scaled to it; None: as they are.

    Returns:
        (n, C, d), as outer products.
    """

    def residuals_of(params: Tensors, rows: Tensor, y: Tensor) -> State:
        return {"": _head_residuals(params["weight"], rows, y, longest)}

    residuals = compute_rows(residuals_of, {"weight": weight}, rows, y, at_most=ROWS_AT_ONCE)
    return OuterProducts(residuals[""], rows)


def _head_residuals(weight: Tensor, rows: Tensor, y: Tensor, longest: float | None) -> Tensor:
    """softmax(W r) - e_y, (n, C): what the gradients multiply the rows with."""
    classes = len(weight)
    padded = F.pad(weight, (0, 0, 0, -classes % MULTIPLE))
    probabilities = torch.softmax((rows @ padded.T)[:, :classes], 1)
    residual = probabilities - F.one_hot(y, classes).to(rows)
    if longest is not None:
        norm = residual.norm(dim=1, keepdim=True) * rows.norm(dim=1, keepdim=True)
        residual = residual * (longest / norm.clamp_min(TINY)).clamp_max(1)
    return residual


def record_ballots(rows: Tensor, images: Tensor, y: Tensor, classes: int) -> OuterProducts:
    """Each record's votes for its class on public images, by how much it resembles each of them.

        b_i = v_i / |v_i| e_{y_i}^T,  v_ij = <r_i - c, p_j - c>,  c the mean of the p_j

    A record votes against its class on images that it resembles less than their mean.

    Args:
        rows: r, of the records (n, d).
        images: p, rows of the public images (m, d).
        y: labels (n,).
        classes: C.

    Returns:
        (n, m, C) of norm 1 a record, as outer products.
    """
    centre = images.mean(0)
    centred = F.pad((images - centre).T, (0, -len(images) % MULTIPLE))

    def votes_of(params: Tensors, rows: Tensor) -> State:
        return {"": F.normalize((rows - params["centre"]) @ params["images"], dim=1)}

    known = {"centre": centre, "images": centred}
    votes = compute_rows(votes_of, known, rows, at_most=ROWS_AT_ONCE)[""]
    return OuterProducts(votes[:, : len(images)], F.one_hot(y, classes).to(rows))


def voted_head(votes: Tensor, images: Tensor, ridge: float) -> Tensor:
    """The head of ridge regression on what public images were voted to be.

        W = T^T P (P^T P + lambda I)^-1,  P the centred rows, T the centred votes,
        lambda = ridge times the mean eigenvalue of P^T P

    Args:
        votes: (m, C), noised.
        images: rows of the public images (m, d), which end with a constant above 0.
        ridge: above 0.

    Returns:
        (C, d).
    """
    centre = images.mean(0)
    rows = images - centre
    targets = votes - votes.mean(1, keepdim=True)
    moments = rows.T @ rows
    penalty = ridge * moments.diagonal().mean().clamp_min(TINY)
    solved = torch.linalg.solve(
        moments + penalty * torch.eye(len(moments)).to(moments),
        rows.T @ (targets - targets.mean(0)),
    )
    weight = solved.T.clone()
    weight[:, -1] += (targets.mean(0) - weight @ centre) / centre[-1]
    return weight


def nearest_mean_head(sums: Tensor, variance: Tensor, last: float, least: float) -> Tensor:
    """The head that gives a row the class of the nearest mean.

        argmin_c |r - m_c|^2 = argmax_c m_c . r - |m_c|^2 / 2

    Args:
        sums: (C, d), of the rows of each class, which end with ``last``.
        variance: (1,), of the noise in every number of a sum, whose part in the length of a mean is
            taken off.
        last: the last number of every row.
        least: classes of a smaller share of all records are never chosen.

    Returns:
        (C, d).
    """
    count = sums[:, -1] / last
    mean = (sums / count.clamp_min(1)[:, None])[:, :-1]
    noise = mean.shape[1] * variance / count.clamp_min(1).square()
    offset = -(mean.square().sum(1) - noise).clamp_min(0) / 2
    offset[count < least * count.clamp_min(0).sum()] = -FAR_BELOW
    return torch.cat([mean, offset[:, None] / last], 1)


def record_moments(rows: Tensor, y: Tensor, classes: int, share: float) -> dict[str, Tensor]:
    """Each record's part of the second moments and of the class sums.

    Together they are of norm 1 for rows of norm 1.

    Args:
        rows: (n, d).
        y: labels (n,).
        classes: C.
        share: the moments' part of the squared norm, in (0, 1).

    Returns:
        "xx" (n, d (d + 1) / 2): the upper triangle of r r^T, off its diagonal times sqrt(2);
        "xy" (n, C, d): e_y r^T.
    """
    row_index, right = torch.triu_indices(rows.shape[1], rows.shape[1])
    weight = torch.where(row_index == right, 1.0, math.sqrt(2.0)) * math.sqrt(share)
    label = F.one_hot(y, classes).to(rows) * math.sqrt(1 - share)
    moments = rows[:, row_index] * rows[:, right] * weight
    return {"xx": moments, "xy": label[:, :, None] * rows[:, None, :]}


def ridge_head(sums: Mapping[str, Tensor], ridge: float, share: float) -> Tensor:
    """The head of ridge regression on the labels, from noised ``record_moments``.

        W = Y^T X (X^T X + lambda I)^-1,  lambda = ridge sqrt(d variance / share)

    The noise's largest eigenvalue is about sqrt(2) times that root. Eigenvalues that noise made
    negative count as 0.

    Args:
        sums: "xx" and "xy" over all records, and "variance" (1,) of their noise.
        ridge: the penalty in units of the noise.
        share: as in ``record_moments``.

    Returns:
        (C, d).
    """
    width = sums["xy"].shape[1]
    row_index, right = torch.triu_indices(width, width)
    upper = sums["xx"].new_zeros(width, width)
    weight = torch.where(row_index == right, 1.0, math.sqrt(2.0)) * math.sqrt(share)
    upper[row_index, right] = sums["xx"] / weight.to(upper)
    values, vectors = torch.linalg.eigh(torch.where(upper != 0, upper, upper.T))
    penalty = ridge * (width * sums["variance"] / share).sqrt() + MIN_PENALTY
    inverse = vectors / (values.clamp_min(0) + penalty)
    return (sums["xy"] / math.sqrt(1 - share)) @ inverse @ vectors.T
