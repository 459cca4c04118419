"""The blind baseline: can members be told from others without the target? Then a membership attack measures how the two sets differ.

Das, Zhang and Tramer, "Blind baselines beat membership inference attacks for foundation models" (2024): where members and
non-members were not drawn from one distribution, a classifier that never sees the model separates them, and no attack's
numbers speak of the model alone.
"""

from __future__ import annotations

import torch
from scipy.stats import mannwhitneyu
from torch import Tensor
from torch.nn import functional as F

from attacks.arrays import accepts_numpy

BLIND_FOLDS = 5
BLIND_COMPONENTS = 24  # principal components of the records; their squares are used as well
UNFAIR_P_VALUE = 1e-6  # p-value below which the control counts: cross-fitted scores vary up to 1.5 times as much as the test assumes,
# as measured on records without any difference, so that this is below 1 in 1 000 of them


@accepts_numpy
def blind_record_scores(x: Tensor, labels: Tensor, member: Tensor, generator: torch.Generator) -> Tensor:
    """Scores (n,) float64 of a ridge classifier on records x (n, ...) and labels (n,), each by one fitted without it.

    member (n,) bool. Features: principal components, their squares, and the class. No intercept, and each fold is
    centred: else a fold with fewer members would be foretold by the others having more (Stone 1974).
    """
    flat = x.flatten(1).double()
    flat = (flat - flat.mean(0)) / flat.std(0).clamp_min(1e-12)
    if flat.shape[1] > BLIND_COMPONENTS:
        flat = flat @ _principal_axes(flat)
    features = torch.cat([flat, flat.square(), F.one_hot(labels.long()).double()], 1)
    features = (features - features.mean(0)) / features.std(0).clamp_min(1e-12)
    fold = torch.randperm(len(x), generator=generator) % BLIND_FOLDS
    target, scores = member.double() - 0.5, torch.zeros(len(x), dtype=torch.float64)
    for at in range(BLIND_FOLDS):
        inside, asked = fold != at, fold == at
        known = features[inside]
        gram = known.T @ known + len(known) * 0.1 * torch.eye(known.shape[1], dtype=torch.float64)
        found = features[asked] @ torch.linalg.solve(gram, known.T @ (target[inside] - target[inside].mean()))
        scores[asked] = found - found.mean() if len(found) else found
    return scores


@accepts_numpy
def is_separable(blind: Tensor, member: Tensor) -> bool:
    """Whether scores (n,) that saw no target rank members (n,) bool above others (Mann and Whitney 1947, one-sided)."""
    inside, outside = blind[member].double().numpy(), blind[~member].double().numpy()
    if not len(inside) or not len(outside):
        return False
    return bool(mannwhitneyu(inside, outside, alternative="greater").pvalue < UNFAIR_P_VALUE)


def _principal_axes(flat: Tensor) -> Tensor:
    """(d, COMPONENTS) of the largest variance, by the smaller of the two Gram matrices."""
    if flat.shape[1] <= len(flat):
        return torch.linalg.eigh(flat.T @ flat).eigenvectors[:, -BLIND_COMPONENTS:]
    vectors = torch.linalg.eigh(flat @ flat.T).eigenvectors[:, -BLIND_COMPONENTS:]
    return F.normalize(flat.T @ vectors, dim=0)
