"""The blind baseline: can members be identified without the target?

If members and non-members were not drawn from one distribution, a classifier that never sees the
model separates them, and no attack's numbers speak of the model alone (Das, Zhang and Tramer,
"Blind baselines beat membership inference attacks for foundation models", 2024)."""

from __future__ import annotations

import torch
from scipy.stats import mannwhitneyu
from torch import Tensor
from torch.nn import functional as F

from attacks.tensors import accepts_numpy

BLIND_FOLDS = 5
BLIND_COMPONENTS = 24  # principal components of the records; their squares are used as well
BLIND_RIDGE = 0.1  # a record
# p-value below which the control counts: cross-fitted scores vary up to 1.5 times as much as the
# test assumes (measured), so that this is below 1 in 1 000 of records without any difference
UNFAIR_P_VALUE = 1e-6


@accepts_numpy
def blind_record_scores(
    x: Tensor, labels: Tensor, member: Tensor, generator: torch.Generator
) -> Tensor:
    """Scores of a ridge classifier that sees the records alone, each by one fitted without it.

    Features are principal components, their squares, and the class. There is no intercept, and each
    fold is centred: else a fold with fewer members could be predicted from the others, which have
    more (Stone 1974).

    Args:
        x: records (n, ...).
        labels: (n,).
        member: (n,) booleans.
        generator: draws the folds.

    Returns:
        (n,) float64, larger = member.
    """
    # Of each fold, with the features Z (m, d) and centred targets y of the records outside it:
    #     w = (Z^T Z + 0.1 m I)^-1 Z^T y,   scores = z w - mean over the fold.
    flat = x.flatten(1).double()
    flat = (flat - flat.mean(0)) / flat.std(0).clamp_min(1e-12)
    if flat.shape[1] > BLIND_COMPONENTS:
        flat = flat @ _principal_axes(flat)
    features = torch.cat([flat, flat.square(), F.one_hot(labels.long()).double()], 1)
    features = (features - features.mean(0)) / features.std(0).clamp_min(1e-12)
    folds = torch.randperm(len(x), generator=generator) % BLIND_FOLDS
    target = member.double() - 0.5
    scores = torch.zeros(len(x), dtype=torch.float64)
    for fold in range(BLIND_FOLDS):
        is_fitted = folds != fold
        fitted = features[is_fitted]
        ridge = len(fitted) * BLIND_RIDGE * torch.eye(fitted.shape[1], dtype=torch.float64)
        gram = fitted.T @ fitted + ridge
        centred = target[is_fitted] - target[is_fitted].mean()
        predictions = features[~is_fitted] @ torch.linalg.solve(gram, fitted.T @ centred)
        if len(predictions):
            predictions = predictions - predictions.mean()
        scores[~is_fitted] = predictions
    return scores


@accepts_numpy
def is_separable(blind: Tensor, member: Tensor) -> bool:
    """Whether scores (n,) that saw no target rank members (n,) bool above non-members (Mann and
    Whitney 1947, one-sided)."""
    # U = number of pairs (member, non-member) in which the member's score is larger
    members = blind[member].double().numpy()
    non_members = blind[~member].double().numpy()
    if not len(members) or not len(non_members):
        return False
    return bool(mannwhitneyu(members, non_members, alternative="greater").pvalue < UNFAIR_P_VALUE)


def _principal_axes(flat: Tensor) -> Tensor:
    """(d, BLIND_COMPONENTS) of the largest variance, by the smaller of the two Gram matrices."""
    if flat.shape[1] <= len(flat):
        return torch.linalg.eigh(flat.T @ flat).eigenvectors[:, -BLIND_COMPONENTS:]
    vectors = torch.linalg.eigh(flat @ flat.T).eigenvectors[:, -BLIND_COMPONENTS:]
    return F.normalize(flat.T @ vectors, dim=0)
