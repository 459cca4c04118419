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
    """An exact ROC curve: vertex i is the rule "score >= thresholds[i] means member".

    Attributes:
        fpr: (v,) float64, non-decreasing from 0 to 1.
        tpr: (v,) float64, non-decreasing from 0 to 1.
        thresholds: (v,), decreasing from infinity.
        auc: in [0, 1].
    """

    fpr: Tensor
    tpr: Tensor
    thresholds: Tensor
    auc: float


def roc(scores: Any, member: Any) -> Roc:
    """The exact ROC curve of membership scores.

    Args:
        scores: (n,), larger = member; array, tensor or list.
        member: (n,) booleans.

    Returns:
        The curve; its AUC is the Mann-Whitney statistic with ties counted one half.

    Raises:
        ValueError: for NaN, unequal lengths, and if members or non-members are missing.

    Example:
        >>> from attacks import roc_curve
        >>> roc_curve([3.0, 2.0, 1.0, 0.0], [True, False, True, False]).auc
        0.75
    """
    # AUC = sum over vertices of (fp_i - fp_(i-1)) (tp_i + tp_(i-1)) / (2 m n), in whole numbers
    values, is_member = _check_scores_and_members(scores, member)
    order = np.argsort(-values, kind="stable")
    ordered = values[order]
    last = np.append(ordered[1:] != ordered[:-1], True)
    tp = np.insert(np.cumsum(is_member[order])[last], 0, 0)
    fp = np.insert(np.cumsum(~is_member[order])[last], 0, 0)
    twice_area = int(np.sum(np.diff(fp) * (tp[1:] + tp[:-1])))
    thresholds = np.insert(ordered[last], 0, np.inf)
    area = twice_area / (2 * int(tp[-1]) * int(fp[-1]))
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
    vertices = np.searchsorted(curve.fpr.numpy(), grid, side="right") - 1
    positions = torch.from_numpy(np.unique(np.append(vertices, len(curve.fpr) - 1)))
    return curve.fpr[positions], curve.tpr[positions]


def tpr_at_fpr(
    scores: Any,
    member: Any,
    fpr: float,
    confidence: float = 0.95,
    *,
    clusters: Clusters = (),
    curve: Roc | None = None,
) -> tuple[float, tuple[float, float], bool]:
    """The largest true-positive rate at a false-positive rate of at most ``fpr``.

    The interval is for the rate at the threshold whose true FPR is ``fpr``. It covers the
    randomness of the members, and of the threshold, which the non-members set.

    Args:
        scores: (n,), larger = member; array, tensor or list.
        member: (n,) booleans.
        fpr: in (0, 1].
        confidence: of the interval, in (0, 1).
        clusters: label arrays (n,), e.g. (record, replay), within which scores may depend on each
            other.
        curve: ``roc_curve`` of the same scores, if it is at hand.

    Returns:
        (tpr, (low, high), resolvable): the rate, its interval, and whether there are at least
        1 / fpr non-members.

    Raises:
        ValueError: for a rate or confidence out of its range, NaN, unequal lengths, and if members
            or non-members are missing.

    Example:
        >>> from attacks import tpr_at_fpr
        >>> tpr, interval, resolvable = tpr_at_fpr([3.0, 2.0, 1.0, 0.0], [1, 1, 0, 0], 0.01)
        >>> tpr, resolvable
        (1.0, False)
    """
    if not 0 < fpr <= 1:
        raise ValueError(f"fpr={fpr}: a rate in (0, 1] is needed")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: a number in (0, 1) is needed")
    values, is_member = _check_scores_and_members(scores, member)
    if curve is None:
        curve = roc(values, is_member)
    vertex = _last_vertex(curve, fpr)
    rate = float(curve.tpr[vertex])
    is_flagged = values >= float(curve.thresholds[vertex])
    groups = [number_labels(labels) for labels in clusters]
    low, high = _rate_interval(curve, is_flagged, is_member, fpr, confidence, groups)
    resolvable = int((~is_member).sum()) * fpr >= 1 - 1e-9
    return rate, (min(low, rate), max(high, rate)), resolvable


# The interval of a rate T at the false-positive rate f. Of m members a share T^ lies above the
# threshold; the threshold is the (k + 1)-th highest of n non-members, so that its true
# false-positive rate u ~ Beta(k + 1, n - k). To first order, with the slope b of the ROC curve at
# f,
#     T^ - T = (mean over members of 1{flagged} - T) - b (mean over non-members of 1{flagged} - f),
# with variance (Hsieh and Turnbull 1996, theorem 2.2)
#     V = D (T (1 - T) / m + b^2 f (1 - f) / n),
# D the design effect of the clusters on the sum of these terms, at least 1. The mean of u lies
# above f, so T^ is lowered by b ((k + 1) / (n + 1) - f). The interval is Jeffreys' (Brown, Cai and
# DasGupta 2001) at the effective sample size N = T (1 - T) / V (Korn and Graubard 1998), widened by
# (t / z)^2 for few clusters:
#     Beta(N T^ + 1/2, N (1 - T^) + 1/2)  at (1 - confidence) / 2 and (1 + confidence) / 2.
# Of a T^ of 0, V takes T as f, as a rate of 0 has no variance of its own.
def _rate_interval(
    curve: Roc,
    is_flagged: np.ndarray,
    is_member: np.ndarray,
    fpr: float,
    confidence: float,
    groups: Sequence[np.ndarray],
) -> tuple[float, float]:
    """The two-sided interval of the true-positive rate at ``fpr``; is_flagged (n,) bool: scores
    above the threshold."""
    members = int(is_member.sum())
    non_members = len(is_member) - members
    hit_rate = float(is_flagged[is_member].mean())
    false_rate = float(is_flagged[~is_member].mean())
    rate = min(max(hit_rate, fpr), 1 - 1 / (2 * members))
    slope = _roc_slope(curve, fpr, rate, non_members)
    plain = rate * (1 - rate) / members + slope**2 * fpr * (1 - fpr) / non_members
    member_influence = (is_flagged - hit_rate) / members
    threshold_influence = -slope * (is_flagged - false_rate) / non_members
    influence = np.where(is_member, member_influence, threshold_influence)
    variance = plain * _design_effect(influence, groups)
    half = (1 - confidence) / 2
    effective = rate * (1 - rate) / variance * (norm.ppf(half) / _t_quantile(half, groups)) ** 2
    allowed = int(fpr * non_members + 1e-9)
    excess = max(0.0, (allowed + 1) / (non_members + 1) - fpr)
    centre = hit_rate
    if round(false_rate * non_members) == allowed:  # else ties keep the threshold from moving
        centre = max(0.0, hit_rate - slope * excess)
    successes = effective * centre
    failures = effective * (1 - centre)
    low = 0.0
    high = 1.0
    if hit_rate > 0:
        low = float(betaincinv(successes + 0.5, failures + 0.5, half))
    if hit_rate < 1:
        high = float(betaincinv(successes + 0.5, failures + 0.5, 1 - half))
    return low, high


# The slope b of the ROC curve at (f, T) is the mean of two: of the curve's secant over the central
# 95 % of u ~ Beta(k + 1, n - k), which is right for any curve and noisy, and of the equal-variance
# Gaussian curve through (f, T),   b = phi(Phi^-1(T)) / phi(Phi^-1(f)).
def _roc_slope(curve: Roc, fpr: float, rate: float, non_members: int) -> float:
    """The slope of the ROC curve at (``fpr``, ``rate``), for a threshold that so many non-members
    set."""
    gaussian = 0.0
    if 0 < rate < 1 and fpr < 1:
        gaussian = float(norm.pdf(ndtri(rate)) / norm.pdf(ndtri(fpr)))
    allowed = int(fpr * non_members + 1e-9)
    if allowed >= non_members:
        return gaussian
    low, high = beta.ppf([0.025, 0.975], allowed + 1, non_members - allowed)
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

    Args:
        scores: (n,), larger = member; array, tensor or list.
        member: (n,) booleans.
        confidence: in (0, 1).
        clusters: label arrays (n,), e.g. (record, replay) of pooled leave-one-replay-out scores,
            within which scores may depend on each other. The variance is then clustered in all
            ways (Cameron, Gelbach and Miller 2011), with Student's t at the smallest number of
            clusters less one.

    Returns:
        (low, high). If one class outranks the other altogether, the variance is zero, and the limit
        is the exact one of m disjoint pairs, (alpha/2)^(1/m).

    Raises:
        ValueError: for a confidence out of its range, NaN, unequal lengths, and if members or
            non-members are missing.
    """
    # V = S_10 / m + S_01 / n, with the sample variances of the placement values of members and of
    # non-members; the interval is AUC +- t sqrt(V).
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: a number in (0, 1) is needed")
    values, is_member = _check_scores_and_members(scores, member)
    influence, area = _auc_influence(values, is_member)
    groups = [number_labels(labels) for labels in clusters]
    half = (1 - confidence) / 2
    sizes = [group.max() + 1 for group in groups]
    smallest = min(*sizes, int(is_member.sum()), int((~is_member).sum()))
    edge = half ** (1 / smallest)
    if area == 1.0:
        return float(edge), 1.0
    if area == 0.0:
        return 0.0, float(1 - edge)
    if groups:
        variance = _clustered_variance(influence, groups)
    else:
        sides = [influence[is_member], influence[~is_member]]
        variance = sum(float((s**2).sum()) * len(s) / max(len(s) - 1, 1) for s in sides)
    spread = float(np.sqrt(variance))
    reach = float(t.ppf(1 - half, max(smallest - 1, 1))) * spread
    return max(0.0, area - reach), min(1.0, area + reach)


def _auc_influence(values: np.ndarray, is_member: np.ndarray) -> tuple[np.ndarray, float]:
    """Each score's share of the AUC's error (n,): centred placement values over the class size."""
    # A member's placement value is the share of non-members below it, a non-member's the share of
    # members above it; ties count one half (DeLong, DeLong and Clarke-Pearson 1988, equation 4).
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts_run = np.append(True, ordered[1:] != ordered[:-1])  # a run of equal scores
    run = np.cumsum(starts_run) - 1
    starts = np.append(np.flatnonzero(starts_run), len(values))
    members = np.append(0, np.cumsum(is_member[order]))  # below each position
    positive = int(members[-1])
    negative = len(values) - int(members[-1])
    lower = starts[run]  # scores below each
    higher = starts[run + 1]  # scores not above it
    members_below = np.empty(len(values))
    non_members_below = np.empty(len(values))
    members_below[order] = (members[lower] + members[higher]) / 2
    non_members_below[order] = (lower - members[lower] + higher - members[higher]) / 2
    placement = np.where(is_member, non_members_below / negative, 1 - members_below / positive)
    area = float(placement[is_member].mean())
    return (placement - area) / np.where(is_member, positive, negative), area


def _clustered_variance(influence: np.ndarray, groups: Sequence[np.ndarray]) -> float:
    """Cluster-robust variance of the influences' sum, never below independence (Cameron, Gelbach
    and Miller 2011)."""
    # With ways w of clustering into G_w clusters c, and the influences psi_i,
    #     V = sum_w G_w / (G_w - 1) sum_c (sum_(i in c) psi_i)^2 - (W - 1) sum_i psi_i^2.
    # The last term takes off what W ways count more than once: two scores share a cluster in one
    # way at most, as a record occurs once in a replay.
    independent = float((influence**2).sum())
    clustered = 0.0
    for group in groups:
        count = int(group.max()) + 1
        between = float((np.bincount(group, influence) ** 2).sum())
        clustered += between * count / max(count - 1, 1)
    return max(independent, clustered - (len(groups) - 1) * independent)


def _design_effect(influence: np.ndarray, groups: Sequence[np.ndarray]) -> float:
    """How many times the clustered variance of the influences' sum exceeds that of independent
    ones, at least 1."""
    independent = float((influence**2).sum())
    if not groups or independent <= 0:
        return 1.0
    return _clustered_variance(influence, groups) / independent


def number_labels(labels: Any) -> np.ndarray:
    """Labels (n,) as 0, 1, ... in their order, without gaps."""
    array = np.asarray(labels)
    if (
        array.dtype.kind not in "iu"
        or not len(array)
        or array.min() < 0
        or array.max() > 4 * len(array)
    ):
        return np.unique(array, return_inverse=True)[1]
    return (np.cumsum(np.bincount(array) > 0) - 1)[array]  # the same without sorting


def _check_scores_and_members(scores: Any, member: Any) -> tuple[np.ndarray, np.ndarray]:
    values = _to_array(scores).astype(np.float64)
    labels = _to_array(member)
    if values.ndim != 1 or labels.shape != values.shape:
        raise ValueError(
            f"scores {values.shape} and member {labels.shape} must be one-dimensional and "
            "equally long"
        )
    if labels.dtype != bool and not np.isin(labels, (0, 1)).all():
        raise ValueError("member must hold booleans (or 0 and 1)")
    if np.isnan(values).any():
        raise ValueError("scores hold NaN")
    is_member = labels.astype(bool)
    if is_member.all() or not is_member.any():
        raise ValueError(
            f"both members and non-members are needed, got {int(is_member.sum())} of "
            f"{len(is_member)} members"
        )
    return values, is_member


def _to_array(value: Any) -> np.ndarray:
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    return np.asarray(value)
