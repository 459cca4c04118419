"""From (K, n) membership scores to the figures of a finding, each with its interval or validity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attacks.epsilon import Bound, one_run_from_scores
from attacks.roc import Clusters, auc_interval, roc, thin, tpr_at_fpr
from attacks.types import Worlds

RATES = (0.001, 0.01, 0.1)
GUESS_SHARES = (0.1, 0.5, 1.0)  # fixed before any score is seen; they share alpha


def leave_one_out(score: Callable[[Tensor, Tensor, Tensor], Tensor], signals: Tensor, masks: Tensor) -> Tensor:
    """Each world once as the target, the others as its shadows: (K, n, ...) -> scores (K, n).

    ``score(signals, masks, target)`` never sees the target's own mask row. Masks must be independent
    coins: in a design with a fixed number of IN worlds per record the other rows give the target's
    mask away, and scores that feel it are biased even on a null. ValueError below 2 worlds.
    """
    if len(signals) < 2:
        raise ValueError(f"worlds={len(signals)}: at least 2 are needed, one as target and one as shadow")
    rows = torch.arange(len(signals))
    return torch.stack([score(signals[rows != k], masks[rows != k], signals[k]) for k in range(len(signals))])


def measure(
    scores: Tensor,
    worlds: Worlds,
    *,
    delta: float,
    generator: np.random.Generator,
    confidence: float = 0.95,
    targets: int = 1,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The measures and figures of a membership finding from ``scores`` (K, n).

    ROC, AUC and TPR pool all K leave-one-world-out targets. Their intervals are clustered two ways,
    by record and by world, because each world also serves as a shadow of the others. Epsilon is
    Steinke's one-run bound on the run that happened (row 0) and, with ``targets`` > 1, on the next
    rows too, sharing alpha. The blind control's AUC is pooled in the same way.
    """
    member, flat = worlds.masks.flatten().numpy(), scores.double().flatten().numpy()
    count, records = worlds.masks.shape
    clusters: Clusters = (np.tile(np.arange(records), count), np.repeat(np.arange(count), records))
    if count == 1:
        clusters = ()  # one world: its records are all there is to compare
    curve = roc(flat, member)
    bound = audited_epsilon(scores, worlds.masks, delta, generator, confidence, targets)
    measures = {
        "auc": curve.auc,
        "auc_ci": list(auc_interval(flat, member, confidence, clusters=clusters)),
        "tpr_at_fpr": {str(rate): _tpr(flat, member, rate, confidence, clusters) for rate in RATES},
        "blind_auc": roc(worlds.blind.double().expand(count, records).flatten(), member).auc,
        "epsilon_measured": bound.value,
        "epsilon_method": bound.method,
        "epsilon_validity": bound.validity,
        "confidence": confidence,
        "n": records,
        "worlds": count,
    }
    fpr, tpr = thin(curve)
    return measures, {"roc_fpr": fpr, "roc_tpr": tpr}


def audited_epsilon(
    scores: Tensor,
    masks: Tensor,
    delta: float,
    generator: np.random.Generator,
    confidence: float = 0.95,
    targets: int = 1,
) -> Bound:
    """The largest one-run bound over the first ``targets`` rows at confidence 1 - alpha / targets each."""
    if not 1 <= targets <= len(masks):
        raise ValueError(f"targets={targets}: between 1 and the {len(masks)} worlds")
    guesses = guess_counts(masks.shape[1])
    each = 1 - (1 - confidence) / targets
    bounds = [
        one_run_from_scores(s, m, delta=delta, generator=generator, guesses=guesses, confidence=each)
        for s, m in zip(scores[:targets].double().numpy(), masks[:targets].numpy())
    ]
    best = max(bounds, key=lambda bound: bound.value)
    return Bound(best.value, best.method, best.validity, delta, confidence)


def guess_counts(records: int, shares: Sequence[float] = GUESS_SHARES) -> list[tuple[int, int]]:
    """Pairs (k_in, k_out) that guess the given shares of ``records``, half of them in."""
    sides = sorted({max(int(records * share / 2), 1) for share in shares})
    return [(side, side) for side in sides if 2 * side <= records]


def _tpr(flat: np.ndarray, member: np.ndarray, rate: float, confidence: float, clusters: Clusters) -> dict[str, Any]:
    tpr, interval, resolvable = tpr_at_fpr(flat, member, rate, confidence, clusters=clusters)
    return {"tpr": tpr, "ci": list(interval), "resolvable": resolvable}
