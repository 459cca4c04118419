"""The likelihood-ratio attack (Carlini et al. 2022), and the variants of it that other tools report.

A world is one shadow model with its coin flips: IN for a record that it was trained on, OUT for the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.special import log_ndtr

from attacks.arrays import accepts_numpy
from attacks.membership.attack import MembershipAttack, check_shadow_signals, require_worlds, score_leave_one_out
from attacks.types import View

Variance = Literal["per_record", "pooled", "auto", "uncentred", "uncentred_in"]
PER_RECORD_FROM = 63  # shadow models, of 64 replays; with fewer, pooled variances give better scores (measured)
MIN_STD = 1e-30


# The same attack under other tools' rules: lira(..., **CONVENTIONS[name]) gives their numbers.
CONVENTIONS: Mapping[str, Mapping[str, Any]] = {
    "paper": {"centre": "mean", "variance": "per_record", "offline_test": "logcdf"},
    "carlini-script": {"centre": "median", "variance": "per_record", "offline_test": "logpdf"},
    "carlini-script-fixed": {"centre": "median", "variance": "uncentred_in", "offline_test": "logpdf"},
    "tf-privacy": {"centre": "median", "variance": "pooled"},
    "leakpro-global": {"centre": "mean", "variance": "uncentred", "offline_test": "logcdf"},
}


@dataclass(frozen=True)
class SideStatistics:
    """Centre and standard deviation per record for the worlds on one side (n, q)."""

    centre: Tensor
    std: Tensor


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
    """Log-likelihood ratio of membership per record (n,), float64, larger = member.

    signals (K, n) or (K, n, q) for q queries a record: each shadow model's signal; masks (K, n) bool;
    target (n,) or (n, q). Queries are scored one by one and their log-ratios averaged, as the
    authors' script does. Offline takes OUT worlds only: log Phi((t - mu_out) / sigma_out), the
    paper's one-sided test ("logpdf": the script's two-sided one, for reproduction).
    variance: "per_record" is numpy's std of each record's worlds; "pooled" pools the residuals around
    each record's own centre, IN and OUT apart; "auto" is per record from 63 worlds up
    (64 replays, one of them the target), else pooled;
    the uncentred ones serve CONVENTIONS. A record with no IN (or OUT) world takes the other side's
    centre shifted by the median gap of the rest. Raises ValueError for bad shapes, NaN, or no world
    on a side that is needed.
    """
    x, mask, t = check_shadow_signals(signals, masks, target, 2, 3)
    if x.ndim == 2:
        x, t = x.unsqueeze(-1), t.unsqueeze(-1)
    mask = mask.unsqueeze(-1).expand_as(x)
    if variance == "auto":
        variance = "per_record" if len(x) >= PER_RECORD_FROM else "pooled"
    outside = _side_statistics(x, ~mask, variance, centre)
    if not online:
        _require_side(outside, "OUT")
        z = (t - _fill_with_median(outside.centre)) / outside.std
        score = (
            log_ndtr(z) if offline_test == "logcdf" else -_log_pdf(t, _fill_with_median(outside.centre), outside.std)
        )
        return score.mean(-1)
    inside = _side_statistics(x, mask, variance, centre)
    _require_side(inside, "IN")
    _require_side(outside, "OUT")
    if variance == "uncentred_in":
        outside = SideStatistics(outside.centre, inside.std)
    mu_in, mu_out = _fill_missing_sides(inside.centre, outside.centre)
    return (_log_pdf(t, mu_in, inside.std) - _log_pdf(t, mu_out, outside.std)).mean(-1)


def _side_statistics(x: Tensor, mask: Tensor, variance: Variance, centre: str) -> SideStatistics:
    """Centres are NaN for records without a world on this side."""
    count = mask.sum(0)
    kept = x.masked_fill(~mask, torch.nan)
    middle = _nan_median(kept) if centre == "median" else kept.nanmean(0)
    if variance in ("uncentred", "uncentred_in"):
        spread = (x[mask] - x[mask].mean()).square().mean().sqrt()
        return SideStatistics(middle, spread.expand_as(middle) + MIN_STD)
    pooled = (kept - middle).square().flatten(0, 1).nanmean(0).sqrt()  # (q,)
    if variance == "pooled":
        return SideStatistics(middle, pooled.expand_as(middle) + MIN_STD)
    if variance != "per_record":
        raise ValueError(f"variance={variance!r}: per_record, pooled or auto")
    own = (kept - kept.nanmean(0)).square().nanmean(0).sqrt()
    return SideStatistics(middle, torch.where(count >= 2, own, pooled) + MIN_STD)


def _nan_median(kept: Tensor) -> Tensor:
    """numpy's median (middle two averaged), NaN ignored; torch's own takes the lower one."""
    return kept.nanquantile(0.5, dim=0)


def _fill_missing_sides(mu_in: Tensor, mu_out: Tensor) -> tuple[Tensor, Tensor]:
    """Fill missing centres with the other side's, shifted by the median gap of the records that have both."""
    gap = (mu_in - mu_out).nanmedian().nan_to_num(0.0)
    filled_in = torch.where(mu_in.isnan(), mu_out + gap, mu_in)
    return filled_in, torch.where(mu_out.isnan(), mu_in - gap, mu_out)


def _fill_with_median(centre: Tensor) -> Tensor:
    return torch.where(centre.isnan(), centre.nanmedian(), centre)


def _require_side(side: SideStatistics, name: str) -> None:
    if side.centre.isnan().all():
        raise ValueError(f"no shadow model has any record {name}: this test needs them")


def _log_pdf(t: Tensor, mu: Tensor, std: Tensor) -> Tensor:
    return -((t - mu) / std).square() / 2 - std.log() - math.log(2 * math.pi) / 2


@dataclass(frozen=True)
class Lira(MembershipAttack):
    """Carlini et al. (2022); see ``attacks.membership.lira``."""

    online: bool = True
    variance: Literal["per_record", "pooled", "auto"] = "auto"
    centre: Literal["mean", "median"] = "mean"
    name: ClassVar[str] = "lira"

    def score(self, view: View, name: str, seed: int) -> Tensor:
        options: dict[str, Any] = {"online": self.online, "variance": self.variance, "centre": self.centre}
        worlds = require_worlds(view)
        return score_leave_one_out(lambda s, m, t: lira(s, m, t, **options), worlds.signals[name], worlds.masks)
