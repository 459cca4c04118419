"""Membership without shadow models: what score would a model give a record that it was not trained
on?

Bertran, Tang, Roth, Kearns, Morgenstern and Wu, "Scalable Membership Inference Attacks via Quantile
Regression" (NeurIPS 2023): regress the target model's scores on public records, which it never saw,
on the records themselves; at each false-positive rate one quantile is the threshold. With their
Gaussian quantiles all of these are one ranking: (score - mean) / standard deviation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.membership.attack import MembershipAttack, require_worlds
from attacks.membership.signals import logit_scaled
from attacks.types import Surface, View
from attacks.validation import check_counts, check_positive

# minus the mean of ln X, X chi-squared with one degree of freedom: ln 2 + the Euler constant
LOG_CHI_SQUARE_MEAN = 1.2704
MIN_STD_SHARE = 1e-3  # of a predicted standard deviation, in units of the scores' own


def standardise_scores(
    public_scores: Tensor,
    public_features: Tensor,
    features: Tensor,
    scores: Tensor,
    ridge: float = 1.0,
) -> Tensor:
    """(q,) float64: by how many standard deviations each score exceeds the prediction from its
    record's features.

    Mean and log variance are ridge regressions on the features; the variance is fitted to the
    residuals of each public record when it is left out (Allen 1974).

    Args:
        public_scores: (m,) of records that were not trained on.
        public_features: theirs, (m, d).
        features: of the records in question, (q, d).
        scores: theirs, (q,).
        ridge: above 0, in records.

    Raises:
        ValueError: for unequal lengths, fewer than 2 public records, or a ridge that is not
            positive.
    """
    # (s - m(x)) / exp((v(x) + LOG_CHI_SQUARE_MEAN) / 2),   v regresses ln(residual^2): for a normal
    # residual, E ln(residual^2) = ln variance - LOG_CHI_SQUARE_MEAN
    lengths_fit = len(public_scores) == len(public_features) and len(scores) == len(features)
    if not lengths_fit or len(public_scores) < 2 or not ridge > 0:
        tensors = (public_scores, public_features, features, scores)
        raise ValueError(
            f"public scores, public features, features, scores {[tuple(t.shape) for t in tensors]}"
            f", ridge={ridge}: equal lengths, 2 public records and a positive ridge are needed"
        )
    s = public_scores.double()
    x = public_features.double()
    q = features.double()
    centre = x.mean(0)
    spread = x.std(0).clamp_min(1e-12)
    x = (x - centre) / spread
    q = (q - centre) / spread
    mean, left_out = _ridge_predictions(s, x, q, ridge)
    residual = (s - left_out).square()
    floor = (MIN_STD_SHARE**2 * s.var()).clamp_min(1e-300)
    # a second moment is harder to learn than a first
    log_variance, _ = _ridge_predictions((residual + floor).log(), x, q, 10 * ridge)
    return (scores.double() - mean) / ((log_variance + LOG_CHI_SQUARE_MEAN) / 2).exp()


def _ridge_predictions(
    y: Tensor, x: Tensor, queries: Tensor, ridge: float
) -> tuple[Tensor, Tensor]:
    """Predictions (q,) for ``queries``, and for each row of ``x`` (m, d) from the other rows; the
    intercept is not shrunk."""
    # w = (X^T X + r I)^-1 X^T (y - mean y); left out, y_i - (y_i - fit_i) / (1 - h_ii) (Allen 1974)
    gram = x.T @ x + ridge * torch.eye(x.shape[1], dtype=x.dtype)
    weights = torch.linalg.solve(gram, x.T)  # (d, m)
    slope = weights @ (y - y.mean())
    middle = y.mean()
    leverage = ((x * weights.T).sum(1) + 1 / len(y)).clamp(max=0.99)
    fitted = middle + x @ slope
    return middle + queries @ slope, y - (y - fitted) / (1 - leverage)


def regression_features(x: Tensor, labels: Tensor, axes: Tensor, classes: int) -> Tensor:
    """Coordinates (n, d + classes) of images (n, c, h, w) along ``axes`` (p, d), and their
    class."""
    return torch.cat([x.flatten(1) @ axes, F.one_hot(labels.long(), classes).to(axes)], 1)


@dataclass(frozen=True)
class QuantileRegression(MembershipAttack):
    """Bertran et al. (2023) on the model's confidence; features are the records' principal
    components and their class.

    components: of the public records' pixels; ridge: of the regression, in records.
    """

    components: int = 12
    ridge: float = 1.0
    name: ClassVar[str] = "quantile_regression"
    surfaces: ClassVar[frozenset[Surface]] = frozenset(
        {
            Surface.UPDATE,
            Surface.SYNTHETIC_IMAGES,
            Surface.SYNTHETIC_REPRESENTATIONS,
            Surface.GLOBAL_MODEL,
            Surface.GLOBAL_IMAGES,
        }
    )
    least_worlds: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "components")
        check_positive(self, "ridge")

    def nothing_to_read(self, view: View) -> str:
        replays = require_worlds(view)
        if replays.public_logits is None or replays.logits is None or replays.records is None:
            return "no model's outputs for public records were kept"
        return super().nothing_to_read(view)

    def score(self, view: View, name: str, seed: int) -> Tensor:
        replays = require_worlds(view)
        public = view.knowledge
        if replays.public_logits is None or replays.logits is None or replays.records is None:
            raise ValueError(f"{self.name}: the replays carry no outputs for public records")
        count, classes = replays.public_logits.shape[-2:]
        x = public.public_x[:count]
        y = public.public_y[:count]
        flat = x.flatten(1) - x.flatten(1).mean(0)
        axes = torch.linalg.svd(flat, full_matrices=False).Vh[: self.components].T
        public_features = regression_features(x, y, axes, classes)
        features = regression_features(replays.records, replays.labels, axes, classes)
        public_scores = logit_scaled(replays.public_logits, y)
        scores = logit_scaled(replays.logits, replays.labels)
        rows = []
        for public_row, row in zip(public_scores, scores):
            rows.append(standardise_scores(public_row, public_features, features, row, self.ridge))
        return torch.stack(rows)
