"""The likelihood-ratio attack (Carlini et al. 2022), and the variants of it that other tools
report.

A world is one shadow model with its inclusion bits: IN for a record that it was trained on, OUT for
the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from scipy.stats import t as student
from torch import Tensor
from torch.special import log_ndtr

from attacks.membership.attack import (
    QueryAttack,
    check_shadow_signals,
    require_worlds,
    score_leave_one_out,
    select_queries,
)
from attacks.tensors import accepts_numpy
from attacks.types import View

Variance = Literal["auto", "bayes", "per_record", "pooled", "uncentred", "uncentred_in"]
MIN_STD = 1e-30
PRIOR_WEIGHT = 1.0  # shadow models that the prior of a record's centre counts for
# of the prior of a variance; so many mean that all records have one variance
MAX_PRIOR_DEGREES = 1000.0
NEWTON_STEPS = 20  # of the inverse trigamma function, which converges from either side


# The same attack under other tools' rules: lira(..., **CONVENTIONS[name]) gives their numbers.
CONVENTIONS: Mapping[str, Mapping[str, Any]] = {
    "paper": {"centre": "mean", "variance": "per_record", "offline_test": "logcdf"},
    "carlini-script": {"centre": "median", "variance": "per_record", "offline_test": "logpdf"},
    "carlini-script-fixed": {
        "centre": "median",
        "variance": "uncentred_in",
        "offline_test": "logpdf",
    },
    "tf-privacy": {"centre": "median", "variance": "pooled"},
    "leakpro-global": {"centre": "mean", "variance": "uncentred", "offline_test": "logcdf"},
}


@accepts_numpy
def lira(
    signals: Tensor,
    masks: Tensor,
    target: Tensor,
    *,
    online: bool = True,
    variance: Variance = "auto",
    centre: Literal["mean", "median"] = "mean",
    offline_test: Literal["logcdf", "logpdf"] = "logcdf",
) -> Tensor:
    """Log-likelihood ratio of membership per record (Carlini et al. 2022).

    A record with no IN (or OUT) world takes the other side's centre, shifted by the median gap of
    the other records.

    Args:
        signals: each shadow model's signal (K, n), or (K, n, q) for q queries a record; queries are
            scored one by one and their log-ratios averaged, as in the authors' script.
        masks: (K, n) inclusion bits of the shadow models.
        target: the signal of the model under attack, (n,) or (n, q).
        online: False takes OUT worlds only.
        variance: "auto" is "bayes", which measured best at 7 to 63 shadow models: Student's law
            for each record, whose centre and variance lean on those of all records, around means
            whatever ``centre`` says. "per_record" is numpy's std of each record's worlds; "pooled"
            pools the residuals around each record's own centre, IN and OUT apart; the uncentred
            ones serve CONVENTIONS.
        centre: of each side's signals.
        offline_test: "logcdf" is the paper's one-sided test, "logpdf" the script's two-sided one,
            for reproduction.

    Returns:
        (n,) float64, larger = member.

    Raises:
        ValueError: for bad shapes, NaN, or no world on a side that is needed.

    Example:
        >>> signals = torch.tensor([[2.0], [2.2], [0.0], [0.2]])
        >>> masks = torch.tensor([[True], [True], [False], [False]])
        >>> bool(lira(signals, masks, torch.tensor([2.1])) > 0)
        True
    """
    x, mask, t = check_shadow_signals(signals, masks, target, 2, 3)
    if x.ndim == 2:
        x = x.unsqueeze(-1)
        t = t.unsqueeze(-1)
    mask = mask.unsqueeze(-1).expand_as(x)
    if variance in ("auto", "bayes"):
        return _bayes_score(x, mask, t, online, offline_test)
    if online:
        return _online_score(x, mask, t, variance, centre)
    return _offline_score(x, mask, t, variance, centre, offline_test)


# Carlini et al. (2022), algorithm 1:
#     Lambda = ln N(t; mu_in, sigma_in^2) - ln N(t; mu_out, sigma_out^2)
def _online_score(x: Tensor, mask: Tensor, t: Tensor, variance: Variance, centre: str) -> Tensor:
    mu_out, std_out = _side_statistics(x, ~mask, variance, centre, "OUT")
    mu_in, std_in = _side_statistics(x, mask, variance, centre, "IN")
    if variance == "uncentred_in":
        std_out = std_in
    gap = (mu_in - mu_out).nanmedian().nan_to_num(0.0)  # of the records that have both sides
    filled_in = torch.where(mu_in.isnan(), mu_out + gap, mu_in)
    filled_out = torch.where(mu_out.isnan(), mu_in - gap, mu_out)
    return (_log_pdf(t, filled_in, std_in) - _log_pdf(t, filled_out, std_out)).mean(-1)


# The offline variant, for which no shadow model has the record:
#     "logcdf": ln Phi((t - mu_out) / sigma_out),   "logpdf": -ln N(t; mu_out, sigma_out^2).
def _offline_score(
    x: Tensor, mask: Tensor, t: Tensor, variance: Variance, centre: str, offline_test: str
) -> Tensor:
    mu_out, std_out = _side_statistics(x, ~mask, variance, centre, "OUT")
    mu = torch.where(mu_out.isnan(), mu_out.nanmedian(), mu_out)
    if offline_test == "logcdf":
        return log_ndtr((t - mu) / std_out).mean(-1)
    return (-_log_pdf(t, mu, std_out)).mean(-1)


def _side_statistics(
    x: Tensor, mask: Tensor, variance: Variance, centre: str, name: str
) -> tuple[Tensor, Tensor]:
    """Centre and standard deviation per record (n, q) over the worlds on one side; centres are NaN
    for records without one."""
    if not mask.any():
        raise ValueError(f"no shadow model has any record {name}: this test needs them")
    count = mask.sum(0)
    side = x.masked_fill(~mask, torch.nan)
    if centre == "median":
        middle = side.nanquantile(0.5, dim=0)  # averages the middle two, as numpy's median does
    else:
        middle = side.nanmean(0)
    if variance in ("uncentred", "uncentred_in"):
        spread = (x[mask] - x[mask].mean()).square().mean().sqrt()
        return middle, spread.expand_as(middle) + MIN_STD
    pooled = (side - middle).square().flatten(0, 1).nanmean(0).sqrt()  # (q,)
    if variance == "pooled":
        return middle, pooled.expand_as(middle) + MIN_STD
    if variance != "per_record":
        raise ValueError(f"variance={variance!r}: must be bayes, per_record or pooled")
    per_record = (side - side.nanmean(0)).square().nanmean(0).sqrt()
    return middle, torch.where(count >= 2, per_record, pooled) + MIN_STD


# BaVarIA (Brännvall 2026, arXiv 2603.11799): for each record and side, n signals x ~ N(mu, s2) with
# the conjugate prior
#     s2 ~ InvGamma(d / 2, d v / 2),   mu | s2 ~ N(m, s2 / w),
# predict the target's signal by Student's law (Murphy 2007, "Conjugate Bayesian analysis of the
# Gaussian", section 6):
#     centre (w m + n x-) / (w + n),   degrees of freedom d + n,
#     scale^2 (1 + 1 / (w + n)) / (d + n) * (d v + sum (x - x-)^2 + w n (x- - m)^2 / (w + n)).
# d and v are fitted to the variances of all records (Smyth 2004, section 6.2): with s_i^2 on n_i -
# 1 degrees of freedom,
#     e_i = log s_i^2 - psi((n_i - 1) / 2) + log((n_i - 1) / 2),
#     psi'(d / 2) = var(e) - mean psi'((n_i - 1) / 2),   log v = mean(e) + psi(d / 2) - log(d / 2).
# m is the other side's mean, shifted by the median gap of all records, and w = PRIOR_WEIGHT: a
# record without a world on one side takes it from the other.
def _bayes_score(x: Tensor, mask: Tensor, t: Tensor, online: bool, offline_test: str) -> Tensor:
    count_in, mean_in, squares_in = _count_mean_squares(x, mask)
    count_out, mean_out, squares_out = _count_mean_squares(x, ~mask)
    if not count_out.any():
        raise ValueError("no shadow model has any record OUT: this test needs them")
    if online and not count_in.any():
        raise ValueError("no shadow model has any record IN: this test needs them")
    if online:
        # of the records that have both sides
        gap = (mean_in - mean_out).nanmedian(0).values.nan_to_num(0.0)
        log_in, *_ = _student_law(t, count_in, mean_in, squares_in, mean_out + gap)
        log_out, *_ = _student_law(t, count_out, mean_out, squares_out, mean_in - gap)
        return (log_in - log_out).mean(-1)
    # a record that is IN in all worlds takes the median centre of the others
    prior_mean = torch.where(count_out > 0, torch.nan, mean_out.nanmedian(0).values)
    log_out, centre, scale, degrees = _student_law(t, count_out, mean_out, squares_out, prior_mean)
    if offline_test == "logpdf":
        return -log_out.mean(-1)
    below = student.logcdf(((t - centre) / scale).numpy(), degrees.numpy())
    return torch.from_numpy(below).mean(-1)


def _count_mean_squares(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The count of each record's signals on one side, their mean (NaN for none), and the sum of
    squares around it, (n, q) each."""
    count = mask.sum(0).double()
    mean = x.masked_fill(~mask, 0).sum(0) / count
    squares = (x - mean).masked_fill(~mask, 0).square().sum(0)
    return count, mean, squares


def _student_law(
    t: Tensor, count: Tensor, mean: Tensor, squares: Tensor, prior_mean: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log density of ``t`` under the predictive law of one side, and its centre, scale, degrees of
    freedom; (n, q) each.

    prior_mean: m, NaN for none.
    """
    prior_degrees, prior_variance = _fit_variance_prior(count, squares)
    weight = torch.where(prior_mean.isnan(), 0.0, PRIOR_WEIGHT)
    prior_mean = torch.where(prior_mean.isnan(), mean, prior_mean)
    mean = torch.where(mean.isnan(), prior_mean, mean)
    total = weight + count
    centre = (weight * prior_mean + count * mean) / total
    degrees = prior_degrees + count
    between = weight * count * (mean - prior_mean).square() / total
    scale = (
        (1 + 1 / total) * (prior_degrees * prior_variance + squares + between) / degrees
    ).sqrt() + MIN_STD
    norm = (
        torch.lgamma((degrees + 1) / 2)
        - torch.lgamma(degrees / 2)
        - (degrees * math.pi).log() / 2
        - scale.log()
    )
    distance = ((t - centre) / scale).square() / degrees
    return norm - (degrees + 1) / 2 * distance.log1p(), centre, scale, degrees


def _fit_variance_prior(count: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Degrees of freedom d and location v of the records' variances, (q,) each, from counts and
    squares (n, q)."""
    free = (count - 1).clamp_min(0)
    pooled = squares.sum(0) / free.sum(0).clamp_min(1)
    has_variance = (free > 0) & (squares > 0)
    half = torch.where(has_variance, free / 2, torch.nan)
    e = (squares / (2 * half)).log() - half.digamma() + half.log()
    number = has_variance.sum(0)
    mean = e.nanmean(0)
    variance = (e - mean).square().nansum(0) / (number - 1).clamp_min(1)
    spread = variance - torch.polygamma(1, half).nanmean(0)
    least = float(torch.polygamma(1, torch.tensor(MAX_PRIOR_DEGREES / 2, dtype=torch.float64)))
    fits = (number > 1) & (spread > least)
    degrees = 2 * _invert_trigamma(torch.where(fits, spread, least))
    fitted = (mean + (degrees / 2).digamma() - (degrees / 2).log()).exp()
    return degrees, torch.where(number > 1, fitted, pooled)


def _invert_trigamma(y: Tensor) -> Tensor:
    """x with psi'(x) = y > 0, by Newton's method on 1 / psi' (Smyth 2004, appendix)."""
    x = 0.5 + 1 / y
    for _ in range(NEWTON_STEPS):
        value = torch.polygamma(1, x)
        x = x + value * (1 - value / y) / torch.polygamma(2, x)
    return x


def _log_pdf(t: Tensor, mu: Tensor, std: Tensor) -> Tensor:
    return -((t - mu) / std).square() / 2 - std.log() - math.log(2 * math.pi) / 2


@dataclass(frozen=True)
class Lira(QueryAttack):
    """Carlini et al. (2022); see ``attacks.membership.lira``."""

    online: bool = True
    variance: Literal["auto", "bayes", "per_record", "pooled"] = "auto"
    centre: Literal["mean", "median"] = "mean"
    name: ClassVar[str] = "lira"

    def score(self, view: View, name: str, seed: int) -> Tensor:
        worlds = require_worlds(view)
        score = partial(lira, online=self.online, variance=self.variance, centre=self.centre)
        return score_leave_one_out(score, select_queries(worlds, name, self.queries), worlds.masks)
