"""ROC curves, exact with ties, and the intervals that belong beside them. Nothing is interpolated: a rate is one that a
deterministic threshold attains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import t
from torch import Tensor

from attacks.statistics import binomial_interval

Clusters = Sequence[Any]  # label arrays (n,), one per way in which scores may be correlated


@dataclass(frozen=True)
class Roc:
    """fpr, tpr (v,) float64, non-decreasing from 0 to 1; thresholds (v,) decreasing from infinity; auc in [0, 1].

    Vertex i is the rule "score >= thresholds[i] means member".
    """

    fpr: Tensor
    tpr: Tensor
    thresholds: Tensor
    auc: float


def roc(scores: Any, member: Any) -> Roc:
    """The exact ROC curve of ``scores`` (n,), larger = member, against ``member`` (n,) bool.

    AUC is the Mann-Whitney statistic with ties counted one half. Raises ValueError for NaN, for unequal lengths, and
    where members or non-members are missing.
    """
    values, inside = _check_scores_and_members(scores, member)
    order = np.argsort(-values, kind="stable")
    ordered = values[order]
    last = np.append(ordered[1:] != ordered[:-1], True)
    tp = np.cumsum(inside[order])[last]
    fp = np.cumsum(~inside[order])[last]
    tp, fp = np.insert(tp, 0, 0), np.insert(fp, 0, 0)
    twice = int(np.sum(np.diff(fp) * (tp[1:] + tp[:-1])))
    thresholds = np.insert(ordered[last], 0, np.inf)
    area = twice / (2 * int(tp[-1]) * int(fp[-1]))
    return Roc(torch.from_numpy(fp / fp[-1]), torch.from_numpy(tp / tp[-1]), torch.from_numpy(thresholds), area)


def thin_curve(curve: Roc, points: int = 200) -> tuple[Tensor, Tensor]:
    """(fpr, tpr) with at most ``points`` + 2 vertices for a log-log figure: each the last at or below a log-spaced FPR."""
    grid = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, points)])
    at = np.searchsorted(curve.fpr.numpy(), grid, side="right") - 1
    keep = torch.from_numpy(np.unique(np.append(at, len(curve.fpr) - 1)))
    return curve.fpr[keep], curve.tpr[keep]


def tpr_at_fpr(
    scores: Any,
    member: Any,
    fpr: float,
    confidence: float = 0.95,
    *,
    clusters: Clusters = (),
    curve: Roc | None = None,
) -> tuple[float, tuple[float, float], bool]:
    """The largest true-positive rate at a false-positive rate of at most ``fpr``: (tpr, (lo, hi), resolvable).

    The interval is Clopper and Pearson's (1934) on the members at that threshold; it does not count the threshold's own
    randomness. With ``clusters`` it stands on the effective sample size (Korn and Graubard 1998). Not resolvable: fewer
    than 1/fpr non-members. curve: ``roc`` of these very scores, where it is known.
    """
    if not 0 < fpr <= 1:
        raise ValueError(f"fpr={fpr}: a rate in (0, 1] is needed")
    values, inside = _check_scores_and_members(scores, member)
    curve = roc(values, inside) if curve is None else curve
    at = int(np.searchsorted(curve.fpr.numpy(), fpr + 1e-12, side="right")) - 1
    rate = float(curve.tpr[at])
    hit = (values[inside] >= float(curve.thresholds[at])) - rate
    effect = _design_effect(hit, [np.asarray(c)[inside] for c in clusters], rate)
    resolvable = int((~inside).sum()) * fpr >= 1 - 1e-9
    return rate, binomial_interval(rate * len(hit) / effect, len(hit) / effect, confidence), resolvable


def auc_interval(scores: Any, member: Any, confidence: float = 0.95, *, clusters: Clusters = ()) -> tuple[float, float]:
    """An interval for the AUC from DeLong's (1988) structural components, cut to [0, 1].

    ``clusters``: label arrays (n,), e.g. (record, world) of pooled leave-one-world-out scores, within which scores may depend
    on each other: the variance is the sum of each way's cluster variance (Cameron, Gelbach and Miller 2011, without
    subtracting their overlap, which errs on the wide side), with Student's t at the smallest number of clusters less one.
    Where one class wholly outranks the other the variance is zero; the limit is then exact, (alpha/2)^(1/m) for m
    disjoint pairs.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: a number in (0, 1) is needed")
    values, inside = _check_scores_and_members(scores, member)
    influence, area = _auc_influence(values, inside)
    groups = [number_labels(c) for c in clusters]
    half = (1 - confidence) / 2
    smallest = min([g.max() + 1 for g in groups] + [int(inside.sum()), int((~inside).sum())])
    if area in (0.0, 1.0):
        edge = half ** (1 / smallest)
        return (float(edge), 1.0) if area == 1.0 else (0.0, float(1 - edge))
    if groups:
        variance = _clustered_variance(influence, groups)
    else:
        sides = [influence[side] for side in (inside, ~inside)]
        variance = sum(float((s**2).sum()) * len(s) / max(len(s) - 1, 1) for s in sides)
    spread = float(np.sqrt(variance))
    reach = float(t.ppf(1 - half, max(smallest - 1, 1))) * spread
    return max(0.0, area - reach), min(1.0, area + reach)


def _auc_influence(values: np.ndarray, inside: np.ndarray) -> tuple[np.ndarray, float]:
    """Each score's share of the AUC's error: centred placement values over the class size, (n,)."""
    order = np.argsort(values, kind="stable")
    new = np.append(True, values[order][1:] != values[order][:-1])  # where a run of equal scores begins
    run, starts = np.cumsum(new) - 1, np.append(np.flatnonzero(new), len(values))
    members = np.append(0, np.cumsum(inside[order]))
    positive, negative = int(members[-1]), len(values) - int(members[-1])
    lower, higher = starts[run], starts[run + 1]  # how many scores are below each, and how many are not above it
    under, below = np.empty(len(values)), np.empty(len(values))
    under[order] = (members[lower] + members[higher]) / 2
    below[order] = (lower - members[lower] + higher - members[higher]) / 2
    placement = np.where(inside, below / negative, 1 - under / positive)
    area = float(placement[inside].mean())
    return (placement - area) / np.where(inside, positive, negative), area


def _clustered_variance(influence: np.ndarray, groups: Sequence[np.ndarray]) -> float:
    """Cluster-robust variance of the influences' sum: one term a way, never below independence."""
    ways = 0.0
    for group in groups:
        count = int(group.max()) + 1
        ways += float((np.bincount(group, influence) ** 2).sum()) * count / max(count - 1, 1)
    return max(ways, float((influence**2).sum()))


def _design_effect(residual: np.ndarray, clusters: Sequence[np.ndarray], rate: float) -> float:
    """How many times the clustered variance of a rate exceeds the binomial one, at least 1."""
    groups = [number_labels(c) for c in clusters]
    plain = len(residual) * rate * (1 - rate)
    return max(1.0, _clustered_variance(residual, groups) / plain) if groups and plain > 0 else 1.0


def number_labels(labels: Any) -> np.ndarray:
    """Labels (n,) as 0, 1, ... in their order, without gaps."""
    known = np.asarray(labels)
    if known.dtype.kind not in "iu" or not len(known) or known.min() < 0 or known.max() > 4 * len(known):
        return np.unique(known, return_inverse=True)[1]
    return (np.cumsum(np.bincount(known) > 0) - 1)[known]  # the same without sorting


def _check_scores_and_members(scores: Any, member: Any) -> tuple[np.ndarray, np.ndarray]:
    values = _to_array(scores).astype(np.float64)
    inside = _to_array(member)
    if values.ndim != 1 or inside.shape != values.shape:
        raise ValueError(f"scores {values.shape} and member {inside.shape} must be one-dimensional and equally long")
    if inside.dtype != bool and not np.isin(inside, (0, 1)).all():
        raise ValueError("member must hold booleans (or 0 and 1)")
    if np.isnan(values).any():
        raise ValueError("scores hold NaN")
    inside = inside.astype(bool)
    if inside.all() or not inside.any():
        raise ValueError(f"both members and non-members are needed, got {int(inside.sum())} of {len(inside)} members")
    return values, inside


def _to_array(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
