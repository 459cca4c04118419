"""The likelihood-ratio attack (Carlini et al. 2022), and the variants of it that other tools report.

A world is one shadow model with its coin flips: IN for a record that it was trained on, OUT for the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.special import log_ndtr

from attacks.membership.attack import MembershipAttack, check_shadow_signals, require_worlds, score_leave_one_out
from attacks.tensors import accepts_numpy
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
    each record's own centre, IN and OUT apart; "auto" is per record from 63 worlds up, else pooled;
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
    mu_out, std_out = _side_statistics(x, ~mask, variance, centre, "OUT")
    if not online:
        mu = torch.where(mu_out.isnan(), mu_out.nanmedian(), mu_out)
        score = log_ndtr((t - mu) / std_out) if offline_test == "logcdf" else -_log_pdf(t, mu, std_out)
        return score.mean(-1)
    mu_in, std_in = _side_statistics(x, mask, variance, centre, "IN")
    if variance == "uncentred_in":
        std_out = std_in
    gap = (mu_in - mu_out).nanmedian().nan_to_num(0.0)  # of the records that have both sides
    filled_in, filled_out = (
        torch.where(mu_in.isnan(), mu_out + gap, mu_in),
        torch.where(mu_out.isnan(), mu_in - gap, mu_out),
    )
    return (_log_pdf(t, filled_in, std_in) - _log_pdf(t, filled_out, std_out)).mean(-1)


def _side_statistics(x: Tensor, mask: Tensor, variance: Variance, centre: str, name: str) -> tuple[Tensor, Tensor]:
    """Centre and standard deviation per record (n, q) over the worlds on one side; centres are NaN for records without one."""
    if not mask.any():
        raise ValueError(f"no shadow model has any record {name}: this test needs them")
    count = mask.sum(0)
    kept = x.masked_fill(~mask, torch.nan)
    # numpy's median (middle two averaged); torch's own takes the lower one
    middle = kept.nanquantile(0.5, dim=0) if centre == "median" else kept.nanmean(0)
    if variance in ("uncentred", "uncentred_in"):
        spread = (x[mask] - x[mask].mean()).square().mean().sqrt()
        return middle, spread.expand_as(middle) + MIN_STD
    pooled = (kept - middle).square().flatten(0, 1).nanmean(0).sqrt()  # (q,)
    if variance == "pooled":
        return middle, pooled.expand_as(middle) + MIN_STD
    if variance != "per_record":
        raise ValueError(f"variance={variance!r}: per_record, pooled or auto")
    own = (kept - kept.nanmean(0)).square().nanmean(0).sqrt()
    return middle, torch.where(count >= 2, own, pooled) + MIN_STD


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
        worlds = require_worlds(view)
        score = partial(lira, online=self.online, variance=self.variance, centre=self.centre)
        return score_leave_one_out(score, worlds.signals[name], worlds.masks)
