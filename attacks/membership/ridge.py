"""Joint membership on sums over records: solve for all candidates' parts at once.

An update, a gradient, a class mean are nearly sums of one vector a record. The inner product with a record's own vector
(alignment) also picks up the records that resemble it; ridge regression on all candidates' vectors takes those out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.arrays import arrays

RIDGE = 0.1  # of the mean squared length of a candidate's vector; of many numbers a record (a model's), SMALL is enough
SMALL = 0.01


@arrays
def solver(directions: Tensor, ridge: float = RIDGE) -> Tensor:
    """W (n, p) float64, for directions D (n, p): W v = argmin_c |v - c D|^2 + ridge * mean_i |D_i|^2 * |c|^2.

    By the (n, n) dual form. Zero directions, or none, give zero. Raises ValueError for a ridge that is not positive.
    """
    d = directions.double()
    return solved(d @ d.T, d, ridge)


@arrays
def solved(gram: Tensor, right: Tensor, ridge: float = RIDGE) -> Tensor:
    """``solver`` for directions of which only the inner products G = D D^T (n, n) float64 are held.

    (G + ridge * mean G_ii * I)^-1 ``right``, which is D (n, p), or D v (n,) for the coefficients of a release v.
    """
    if not ridge > 0:
        raise ValueError(f"ridge={ridge}: a positive number is needed")
    scale = gram.diagonal().mean() if len(gram) else gram.new_zeros(())
    if not scale > 0:
        return torch.zeros_like(right)
    return torch.linalg.solve(gram + ridge * scale * torch.eye(len(gram), dtype=gram.dtype, device=gram.device), right)


@arrays
def coefficients(released: Tensor, directions: Tensor, ridge: float = RIDGE) -> Tensor:
    """Each candidate's part in ``released`` (..., p), for directions (n, p) -> (..., n) float64."""
    return released.double() @ solver(directions, ridge).T


@arrays
def class_coefficients(means: Tensor, own: Tensor, labels: Tensor, ridge: float = RIDGE) -> Tensor:
    """The same within each class, relative to its candidates' mean, which every record of the class shares.

    means (C, d) of what was released, NaN where a class is absent, own (n, d) of the candidates, labels (n,) -> (n,)
    float64. A class with one candidate is solved as it stands; in an absent one nobody has a part.
    """
    found = own.new_zeros(len(own), dtype=torch.float64)
    for c in labels.unique():
        mine = labels == c
        if means[int(c)].isnan().any():
            continue
        centre = own[mine].mean(0) if int(mine.sum()) > 1 else torch.zeros_like(own[0])
        found[mine] = coefficients(means[int(c)] - centre, own[mine] - centre, ridge)
    return found
