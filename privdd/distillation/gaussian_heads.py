"""Gaussian classifiers over public rows, in closed form from class counts, class sums and second
moments."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from privdd.core.types import RecordShape
from privdd.distillation.linear_head import FAR_BELOW
from privdd.distillation.public_map import PublicHead, PublicRows


def lda_head(sums: Tensor, count: Tensor, second: Tensor, last: float, ridge: float) -> Tensor:
    """The linear head of classes that share one covariance.

        Sigma = (B - N mu mu^T) / (N - 1)
        w_c = Sigma^-1 mu_c,   b_c = log(n_c / N) - mu_c^T Sigma^-1 mu_c / 2

    (Guan, Zhou and Gu, AAAI 2025, FedCGS: the covariance is that of all records around their common
    mean mu, as in the paper.)

    Args:
        sums: (C, d), of the rows of each class, which end with ``last``.
        count: n, (C,), records of each class; a class without records is never chosen.
        second: B, (d, d), the sum of the outer products of all rows.
        last: the last number of every row.
        ridge: added to the covariance's diagonal, in units of its mean.

    Returns:
        (C, d), float64.
    """
    count = count.double()
    total = count.sum()
    directions = sums.double()[:, :-1]
    centre = directions.sum(0) / total
    scatter = second.double()[:-1, :-1] - total * torch.outer(centre, centre)
    precision = torch.linalg.inv(_add_ridge(scatter / (total - 1).clamp_min(1), ridge))
    mean = directions / count.clamp_min(1)[:, None]
    weight = mean @ precision
    offset = (count / total).log() - (weight * mean).sum(1) / 2
    offset = torch.where(count > 0, offset, -FAR_BELOW)
    return torch.cat([weight, offset[:, None] / last], 1)


def qda_head(
    sums: Tensor, count: Tensor, second: Tensor, last: float, ridge: float, shrinkage: float
) -> Tensor:
    """The quadratic head of classes with a covariance each.

        S_c = (B_c - n_c mu_c mu_c^T) / (n_c - 1),   P_c = ((1 - s) S_c + s S)^-1
        score_c(x) = log(n_c / N) + log det(P_c) / 2 - (x - mu_c)^T P_c (x - mu_c) / 2

    S is the covariance within all classes, s the shrinkage (Friedman 1989; Turazza, Picone and
    Mamei, ICLR 2026, from federated sums).

    Args:
        sums: (C, d), of the rows of each class, which end with ``last``.
        count: n, (C,), records of each class; a class without records is never chosen.
        second: B, (C, d, d), the sum of the outer products of each class's rows.
        last: the last number of every row.
        ridge: added to each covariance's diagonal, in units of its mean.
        shrinkage: s, in [0, 1].

    Returns:
        (C, d, d), float64: the score of a row r is r^T Q_c r.
    """
    count = count.double()
    classes, width = sums.shape
    directions = sums.double()[:, :-1]
    mean = directions / count.clamp_min(1)[:, None]
    scatter = second.double()[:, :-1, :-1] - directions[:, :, None] * mean[:, None, :]
    degrees = (count.sum() - (count > 0).sum()).clamp_min(1)
    within = scatter.sum(0) / degrees
    head = torch.zeros(classes, width, width, dtype=torch.float64)
    head[:, -1, -1] = -FAR_BELOW / last**2
    for label in (count > 0).nonzero()[:, 0].tolist():
        sample = scatter[label] / (count[label] - 1).clamp_min(1)
        covariance = _add_ridge((1 - shrinkage) * sample + shrinkage * within, ridge)
        precision = torch.linalg.inv(covariance)
        slope = precision @ mean[label]
        offset = (
            (count[label] / count.sum()).log()
            - torch.linalg.slogdet(covariance).logabsdet / 2
            - slope @ mean[label] / 2
        )
        head[label, :-1, :-1] = -precision / 2
        head[label, :-1, -1] = slope / (2 * last)
        head[label, -1, :-1] = slope / (2 * last)
        head[label, -1, -1] = offset / last**2
    return head


def _add_ridge(covariance: Tensor, ridge: float) -> Tensor:
    """The covariance (d, d) plus ``ridge`` times the mean of its diagonal, in every direction."""
    level = covariance.diagonal().mean().clamp_min(torch.finfo(covariance.dtype).tiny)
    return covariance + ridge * level * torch.eye(len(covariance), dtype=covariance.dtype)


def score_rows(weight: Tensor, rows: Tensor) -> Tensor:
    """(n, C) scores of rows (n, d) under a linear head (C, d) or a quadratic one (C, d, d)."""
    if weight.ndim == 2:
        return rows @ weight.T
    return torch.einsum("nd,cde,ne->nc", rows, weight, rows)


class QuadraticHead(nn.Module):
    """weight (C, d, d): the scores r^T Q_c r of rows r."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(classes, width, width))

    def forward(self, rows: Tensor) -> Tensor:
        return score_rows(self.weight, rows)


class QuadraticPublicHead(PublicHead):
    """A quadratic head over the public map."""

    def __init__(self, rows: PublicRows, shape: RecordShape, classes: int) -> None:
        super().__init__(rows, shape, classes)
        self.head = QuadraticHead(rows.width + 1, classes)  # type: ignore[assignment]
