"""The shadow classifier of Shokri et al. (2017) on top-k outputs: the attack that FedFed ran."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from attacks.membership.attack import MembershipAttack, require_worlds
from attacks.tensors import accepts_numpy
from attacks.types import View
from attacks.validation import check_counts

ClassifierKind = Literal["mlp", "logistic"]
# a network that is surer says p = 1 in float64, whose log-odds are infinite
MIN_LOG_PROBABILITY = -53 * math.log(2)
MAX_ROWS = 4000  # of features that the attack model is trained on


@accepts_numpy
def top_k_features(logits: Tensor, labels: Tensor, k: int = 3) -> Tensor:
    """Attack features (..., n, k + 2): the k largest log-probabilities, the true label's, and
    whether it leads."""
    logp = logits.double().log_softmax(-1)
    true = logp.gather(-1, labels.long().expand(logp.shape[:-1]).unsqueeze(-1))
    leading = logp.topk(min(k, logp.shape[-1]), dim=-1).values
    return torch.cat([leading, true, (true >= leading[..., :1]).double()], -1)


@accepts_numpy
def shadow_classifier(
    features: Tensor,
    masks: Tensor,
    target: Tensor,
    labels: Tensor,
    *,
    kind: ClassifierKind = "mlp",
    seed: int = 0,
) -> Tensor:
    """Log-odds of membership from a classifier that is trained on shadow models (Shokri et al.
    2017).

    One attack model has the class among its inputs; Shokri et al. train one for each class, which
    needs more shadow models.

    Args:
        features: (K, n, d) of the shadow models.
        masks: (K, n) inclusion bits of the shadow models.
        target: features (t, n, d) of the models under attack.
        labels: of the records (n,).
        kind: ``mlp`` or ``logistic``.
        seed: of the classifier, and of the draw of at most MAX_ROWS rows that it is trained on.

    Returns:
        (t, n) float64, larger = member.

    Raises:
        ValueError: for shadow models with members only or non-members only.
    """
    if masks.all() or not masks.any():
        raise ValueError("the shadow models have members only or non-members only")
    rows = _feature_rows(features, labels)
    is_member = masks.flatten().numpy()
    chosen = np.random.default_rng(seed).permutation(len(rows))[:MAX_ROWS]
    model = make_pipeline(StandardScaler(), _build_classifier(kind, seed, len(chosen)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # so few passes are intended
        model.fit(rows[chosen], is_member[chosen])
    with np.errstate(divide="ignore"):
        logp = model.predict_log_proba(_feature_rows(target, labels)).clip(min=MIN_LOG_PROBABILITY)
    return torch.from_numpy(logp[:, 1] - logp[:, 0]).reshape(target.shape[:-1])


def _feature_rows(features: Tensor, labels: Tensor) -> np.ndarray:
    classes = torch.nn.functional.one_hot(labels.long()).double()
    tiled = classes.expand(*features.shape[:-1], classes.shape[-1])
    return torch.cat([features.double(), tiled], -1).flatten(0, -2).numpy()


def _build_classifier(
    kind: ClassifierKind, seed: int, rows: int
) -> MLPClassifier | LogisticRegression:
    if kind == "logistic":
        return LogisticRegression(max_iter=1000, random_state=seed)
    if kind == "mlp":
        return MLPClassifier(
            (32,),
            max_iter=60,
            batch_size=min(200, rows),
            learning_rate_init=3e-3,
            random_state=seed,
        )
    raise ValueError(f"kind={kind!r}: must be mlp or logistic")


@dataclass(frozen=True)
class ShadowClassifier(MembershipAttack):
    """Shokri et al. (2017), FedFed's attack: top-k outputs if the view has logits, else the signal
    alone."""

    k: int = 3
    kind: ClassifierKind = "mlp"
    folds: int = 4
    name: ClassVar[str] = "shadow_classifier"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "folds", least=2)
        check_counts(self, "k")

    def read_signals(self, view: View) -> list[Tensor]:
        logits = require_worlds(view).logits
        if logits is None:
            return super().read_signals(view)
        return [logits]

    def score(self, view: View, name: str, seed: int) -> Tensor:
        replays = require_worlds(view)
        features = replays.signals[name].double().unsqueeze(-1)
        if replays.logits is not None:
            features = top_k_features(replays.logits, replays.labels, self.k)
        fit = partial(shadow_classifier, labels=replays.labels, kind=self.kind, seed=seed)
        return _cross_fit(fit, features, replays.masks, self.folds)


def _cross_fit(fit: Any, features: Tensor, masks: Tensor, folds: int) -> Tensor:
    """Scores (K, n): each fold of replays is scored by a model that was fitted on the other
    folds."""
    count = len(features)
    if count < 2 or not folds >= 2:
        raise ValueError(f"worlds={count}, folds={folds}: at least 2 of each are needed")
    fold_of = torch.arange(count) % min(folds, count)
    scores = torch.empty(masks.shape, dtype=torch.float64)
    for fold in range(min(folds, count)):
        held_out = fold_of == fold
        scores[held_out] = fit(features[~held_out], masks[~held_out], features[held_out])
    return scores
