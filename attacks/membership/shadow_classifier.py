"""The shadow classifier of Shokri et al. (2017) on top-k outputs: the attack that FedFed ran."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

Kind = Literal["mlp", "logistic"]


def top_k(logits: Tensor, labels: Tensor, k: int = 3) -> Tensor:
    """Attack features (..., n, k + 2): the k largest log-probabilities, the true label's, and whether it leads."""
    logp = logits.double().log_softmax(-1)
    own = logp.gather(-1, labels.long().expand(logp.shape[:-1]).unsqueeze(-1))
    leading = logp.topk(min(k, logp.shape[-1]), dim=-1).values
    return torch.cat([leading, own, (own >= leading[..., :1]).double()], -1)


def shadow_classifier(
    features: Tensor,
    masks: Tensor,
    target: Tensor,
    labels: Tensor,
    *,
    kind: Kind = "mlp",
    seed: int = 0,
    iterations: int = 60,
    limit: int = 4000,
) -> Tensor:
    """Log-odds of membership for target records (t, n, d) -> (t, n), learned on shadow worlds.

    features (K, n, d) and masks (K, n) bool of the shadows, labels (n,). Shokri et al. train one
    attack model a class; here one model sees the class as one-hot inputs, which needs fewer shadows.
    At most ``limit`` shadow rows are used, drawn by ``seed``. One side missing: ValueError.
    """
    if masks.all() or not masks.any():
        raise ValueError("the shadow worlds hold members only or non-members only")
    rows = _rows(features, labels)
    inside = masks.flatten().numpy()
    chosen = np.random.default_rng(seed).permutation(len(rows))[:limit]
    model = make_pipeline(StandardScaler(), _estimator(kind, seed, iterations, len(chosen)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a fixed, small number of passes is the recipe
        model.fit(rows[chosen], inside[chosen])
    logp = model.predict_log_proba(_rows(target, labels))
    return torch.from_numpy(logp[:, 1] - logp[:, 0]).reshape(target.shape[:-1])


def _rows(features: Tensor, labels: Tensor) -> np.ndarray:
    classes = torch.nn.functional.one_hot(labels.long()).double()
    tiled = classes.expand(*features.shape[:-1], classes.shape[-1])
    return torch.cat([features.double(), tiled], -1).flatten(0, -2).numpy()


def _estimator(kind: Kind, seed: int, iterations: int, rows: int) -> MLPClassifier | LogisticRegression:
    if kind == "logistic":
        return LogisticRegression(max_iter=1000, random_state=seed)
    if kind == "mlp":
        batch = min(200, rows)
        return MLPClassifier((32,), max_iter=iterations, batch_size=batch, learning_rate_init=3e-3, random_state=seed)
    raise ValueError(f"kind={kind!r}: mlp or logistic")
