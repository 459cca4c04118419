"""ROC curves, exact with ties, and the intervals that belong beside them. Nothing is interpolated:
a rate is one that a deterministic threshold attains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import betaincinv, ndtri
from scipy.stats import beta, norm, t
from torch import Tensor

Clusters = Sequence[Any]  # label arrays (n,), one per way in which scores may be correlated


@dataclass(frozen=True)
class Roc:
    """fpr, tpr (v,) float64, non-decreasing from 0 to 1; thresholds (v,) decreasing from infinity;
    auc in [0, 1].

    Vertex i is the rule "score >= thresholds[i] means member".
    """

    fpr: Tensor
    tpr: Tensor
    thresholds: Tensor
    auc: float


def roc(scores: Any, member: Any) -> Roc:
    """The exact ROC curve of ``scores`` (n,), larger = member, against ``member`` (n,) bool.

    AUC is the Mann-Whitney statistic with ties counted one half. Raises ValueError for NaN, for
    unequal lengths, and where members or non-members are missing.
    """
    values, inside = _check_scores_and_members(scores, member)
    order = np.argsort(-values, kind="stable")
    ordered = values[order]
    last = np.append(ordered[1:] != ordered[:-1], True)
    tp = np.cumsum(inside[order])[last]
    fp = np.cumsum(~inside[order])[last]
    tp = np.insert(tp, 0, 0)
    fp = np.insert(fp, 0, 0)
    twice = int(np.sum(np.diff(fp) * (tp[1:] + tp[:-1])))
    thresholds = np.insert(ordered[last], 0, np.inf)
    area = twice / (2 * int(tp[-1]) * int(fp[-1]))
    return Roc(
        torch.from_numpy(fp / fp[-1]),
        torch.from_numpy(tp / tp[-1]),
        torch.from_numpy(thresholds),
        area,
    )


def thin_curve(curve: Roc, points: int = 200) -> tuple[Tensor, Tensor]:
    """(fpr, tpr) with at most ``points`` + 2 vertices for a log-log figure: each the last at or
    below a log-spaced FPR."""
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
    """The largest true-positive rate at a false-positive rate of at most ``fpr``: (tpr, (lo, hi),
    resolvable).

    The interval is for the rate at the threshold whose true false-positive rate is ``fpr``; it
    holds the randomness of the members and of the threshold, which the non-members set
    (``_rate_interval``). ``clusters``: label arrays (n,), e.g. (record, replay), within which
    scores may depend on each other. Not resolvable: fewer than 1/fpr non-members.
    curve: ``roc`` of these very scores, where it is known.
    """
    if not 0 < fpr <= 1:
        raise ValueError(f"fpr={fpr}: a rate in (0, 1] is needed")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: a number in (0, 1) is needed")
    values, inside = _check_scores_and_members(scores, member)
    curve = roc(values, inside) if curve is None else curve
    at = _last_vertex(curve, fpr)
    rate = float(curve.tpr[at])
    named = values >= float(curve.thresholds[at])
    interval = _rate_interval(
        curve, named, inside, fpr, confidence, [number_labels(c) for c in clusters]
    )
    resolvable = int((~inside).sum()) * fpr >= 1 - 1e-9
    return rate, (min(interval[0], rate), max(interval[1], rate)), resolvable


# The interval of a rate T at the false-positive rate f. Of m members a share T^ lies above the
# threshold; the threshold is the (k + 1)-th highest of n non-members, so that its true
# false-positive rate u ~ Beta(k + 1, n - k). To first order, with the slope b of the ROC curve at
# f,     T^ - T = (mean over members of 1{named} - T) - b (mean over non-members of 1{named} - f),
# variance V = D (T (1 - T) / m + b^2 f (1 - f) / n),       (Hsieh and Turnbull 1996, theorem 2.2)
# with the design effect D of the clusters on the sum of these terms, at least 1. The mean of u lies
# above f, so T^ is lowered by b ((k + 1) / (n + 1) - f). The interval is Jeffreys' (Brown, Cai and
# DasGupta 2001) at the effective sample size N = T (1 - T) / V (Korn and Graubard 1998), widened by
# (t / z)^2 for few clusters:     Beta(N T^ + 1/2, N (1 - T^) + 1/2) at (1 - confidence) / 2 and (1
# + confidence) / 2.
# b is the mean of two: of the curve's secant over the central 95 % of u, which is right for any
# curve and noisy, and of the equal-variance Gaussian curve through (f, T), b = phi(z(T)) /
# phi(z(f)). V takes T as at least f: a T^ of 0 has no variance of its own.
def _rate_interval(
    curve: Roc,
    named: np.ndarray,
    inside: np.ndarray,
    fpr: float,
    confidence: float,
    groups: Sequence[np.ndarray],
) -> tuple[float, float]:
    """The two-sided interval of the true-positive rate at ``fpr``; named (n,) bool: scores above
    the threshold."""
    members = int(inside.sum())
    others = len(inside) - members
    hit_rate = float(named[inside].mean())
    false_rate = float(named[~inside].mean())
    rate = min(max(hit_rate, fpr), 1 - 1 / (2 * members))
    slope = _roc_slope(curve, fpr, rate, others)
    plain = rate * (1 - rate) / members + slope**2 * fpr * (1 - fpr) / others
    influence = np.where(
        inside, (named - hit_rate) / members, -slope * (named - false_rate) / others
    )
    variance = plain * _design_effect(influence, groups)
    half = (1 - confidence) / 2
    effective = rate * (1 - rate) / variance * (norm.ppf(half) / _t_quantile(half, groups)) ** 2
    allowed = int(fpr * others + 1e-9)
    excess = max(0.0, (allowed + 1) / (others + 1) - fpr)
    is_full = round(false_rate * others) == allowed  # else ties keep the threshold from moving
    centre = max(0.0, hit_rate - slope * excess) if is_full else hit_rate
    successes = effective * centre
    failures = effective * (1 - centre)
    low = float(betaincinv(successes + 0.5, failures + 0.5, half))
    high = float(betaincinv(successes + 0.5, failures + 0.5, 1 - half))
    return (low if hit_rate > 0 else 0.0), (high if hit_rate < 1 else 1.0)


def _roc_slope(curve: Roc, fpr: float, rate: float, others: int) -> float:
    """The slope of the ROC curve at (``fpr``, ``rate``), for a threshold that ``others``
    non-members set."""
    allowed = int(fpr * others + 1e-9)
    gaussian = (
        float(norm.pdf(ndtri(rate)) / norm.pdf(ndtri(fpr))) if 0 < rate < 1 and fpr < 1 else 0.0
    )
    if allowed >= others:
        return gaussian
    low, high = beta.ppf([0.025, 0.975], allowed + 1, others - allowed)
    rise = float(curve.tpr[_last_vertex(curve, high)]) - float(curve.tpr[_last_vertex(curve, low)])
    return (rise / float(high - low) + gaussian) / 2


def _last_vertex(curve: Roc, fpr: float) -> int:
    """The place of the last vertex with a false-positive rate of at most ``fpr``."""
    return int(np.searchsorted(curve.fpr.numpy(), fpr + 1e-12, side="right")) - 1


def _t_quantile(half: float, groups: Sequence[np.ndarray]) -> float:
    """Student's quantile at the smallest number of clusters less one, the normal one without
    clusters."""
    if not groups:
        return float(norm.ppf(half))
    smallest = min(int(group.max()) + 1 for group in groups)
    return float(t.ppf(half, max(smallest - 1, 1)))


def auc_interval(
    scores: Any, member: Any, confidence: float = 0.95, *, clusters: Clusters = ()
) -> tuple[float, float]:
    """An interval for the AUC from DeLong's (1988) structural components, cut to [0, 1].

    ``clusters``: label arrays (n,), e.g. (record, replay) of pooled leave-one-replay-out scores,
        within which scores may
    depend on each other: the variance is clustered in all ways (``_clustered_variance``), with
        Student's t at the smallest number of clusters less one. Where one class wholly outranks the
        other the variance is zero; the limit is
    then exact, (alpha/2)^(1/m) for m disjoint pairs.
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
    new = np.append(
        True, values[order][1:] != values[order][:-1]
    )  # where a run of equal scores begins
    run = np.cumsum(new) - 1
    starts = np.append(np.flatnonzero(new), len(values))
    members = np.append(0, np.cumsum(inside[order]))
    positive = int(members[-1])
    negative = len(values) - int(members[-1])
    # how many scores are below each, and how many are not above it
    lower = starts[run]
    higher = starts[run + 1]
    under = np.empty(len(values))
    below = np.empty(len(values))
    under[order] = (members[lower] + members[higher]) / 2
    below[order] = (lower - members[lower] + higher - members[higher]) / 2
    placement = np.where(inside, below / negative, 1 - under / positive)
    area = float(placement[inside].mean())
    return (placement - area) / np.where(inside, positive, negative), area


def _clustered_variance(influence: np.ndarray, groups: Sequence[np.ndarray]) -> float:
    """Cluster-robust variance of the influences' sum, never below independence (Cameron, Gelbach
    and Miller 2011).

    Two ways count what lies in both twice, so it is subtracted: sum over ways of their variance,
    less (ways - 1) times the variance under independence, as two scores share a cluster in one way
    at most (a record in a replay is one)."""
    plain = float((influence**2).sum())
    ways = 0.0
    for group in groups:
        count = int(group.max()) + 1
        ways += float((np.bincount(group, influence) ** 2).sum()) * count / max(count - 1, 1)
    return max(plain, ways - (len(groups) - 1) * plain)


def _design_effect(influence: np.ndarray, groups: Sequence[np.ndarray]) -> float:
    """How many times the clustered variance of the influences' sum exceeds that of independent
    ones, at least 1."""
    plain = float((influence**2).sum())
    return _clustered_variance(influence, groups) / plain if groups and plain > 0 else 1.0


def number_labels(labels: Any) -> np.ndarray:
    """Labels (n,) as 0, 1, ... in their order, without gaps."""
    known = np.asarray(labels)
    if (
        known.dtype.kind not in "iu"
        or not len(known)
        or known.min() < 0
        or known.max() > 4 * len(known)
    ):
        return np.unique(known, return_inverse=True)[1]
    return (np.cumsum(np.bincount(known) > 0) - 1)[known]  # the same without sorting


def _check_scores_and_members(scores: Any, member: Any) -> tuple[np.ndarray, np.ndarray]:
    values = _to_array(scores).astype(np.float64)
    inside = _to_array(member)
    if values.ndim != 1 or inside.shape != values.shape:
        raise ValueError(
            f"scores {values.shape} and member {inside.shape} must be one-dimensional and "
            "equally long"
        )
    if inside.dtype != bool and not np.isin(inside, (0, 1)).all():
        raise ValueError("member must hold booleans (or 0 and 1)")
    if np.isnan(values).any():
        raise ValueError("scores hold NaN")
    inside = inside.astype(bool)
    if inside.all() or not inside.any():
        raise ValueError(
            f"both members and non-members are needed, got {int(inside.sum())} of "
            f"{len(inside)} members"
        )
    return values, inside


def _to_array(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
