"""The relative membership test RMIA (Zarifzadeh, Liu and Shokri 2024), with the ratio itself as the
score.

``OfflineRmia`` is the same with few shadow models, none of them trained on the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attacks.membership.attack import (
    Queries,
    QueryAttack,
    check_shadow_signals,
    queried_log_odds,
    require_worlds,
)
from attacks.membership.signals import logit_scaled
from attacks.tensors import accepts_numpy
from attacks.types import Evidence, Finding, View, Worlds
from attacks.validation import check_counts, check_positive

MIN_PROBABILITY = 1e-300


@accepts_numpy
def rmia(
    probs: Tensor,
    masks: Tensor,
    target: Tensor,
    *,
    z_probs: Tensor | None = None,
    z_target: Tensor | None = None,
    gamma: float = 1.0,
    a: float = 0.3,
    online: bool = True,
    tie_break: bool = True,
) -> Tensor:
    """The relative membership score per record (Zarifzadeh, Liu and Shokri 2024).

    Without population records z, it is the ratio p(x | target) / p(x), which every z only quantises
    for one target. With z, it is the fraction of z whose ratio is at most 1/gamma times the
    record's, in [0, 1), which makes scores of several targets comparable.

    Args:
        probs: true-label probabilities (K, n) in [0, 1] of the shadow models.
        masks: (K, n) inclusion bits of the shadow models.
        target: (n,) of the model under attack.
        z_probs: (K, m) of population records that no model was trained on.
        z_target: (m,) of these under the model under attack.
        gamma: above 0.
        a: in [0, 1], of the offline p(x).
        online: p(x) weighs the means of shadow models with the record and without it equally;
            offline, for records in no shadow model, and for z, p = ((1 + a) p_out + 1 - a) / 2.
        tie_break: breaks ties of the fraction by the ratio; False gives the bare fraction, which
            the authors' code prints.

    Returns:
        (n,) float64, larger = member.

    Raises:
        ValueError: for bad shapes, NaN, or numbers out of their ranges.
    """
    # LR(x, z) = (p(x | target) / p(x)) / (p(z | target) / p(z)),   score = P_z[LR(x, z) >= gamma]
    p, mask, t = check_shadow_signals(probs, masks, target, 2)
    for values in (p, t):
        if not bool(((values >= 0) & (values <= 1)).all()):
            raise ValueError("probs and target must lie in [0, 1]")
    if not gamma > 0 or not 0 <= a <= 1:
        raise ValueError(f"gamma={gamma}, a={a}: gamma > 0 and 0 <= a <= 1 are needed")
    ratio = t / _average_probability(p, mask, a, online).clamp_min(MIN_PROBABILITY)
    if z_probs is None or z_target is None:
        return ratio
    z = _z_ratio(torch.as_tensor(z_probs).double(), torch.as_tensor(z_target).double(), len(p), a)
    won = torch.searchsorted(z.sort().values * gamma, ratio, right=True).double()
    if not tie_break:
        return won / len(z)
    return (won + ratio / (1 + ratio)) / (len(z) + 1)


def _average_probability(p: Tensor, mask: Tensor, a: float, online: bool) -> Tensor:
    """p(x) (n,): the mean probability over models that may or may not include x."""
    mean_in = (p * mask).sum(0) / mask.sum(0)
    mean_out = (p * ~mask).sum(0) / (~mask).sum(0)
    offline = ((1 + a) * mean_out + 1 - a) / 2
    if not online:
        return torch.where(mean_out.isnan(), p.mean(), offline)
    mean = torch.where(mean_out.isnan(), mean_in, (mean_in + mean_out) / 2)
    return torch.where(mean_in.isnan(), offline, mean)


def _z_ratio(probs: Tensor, target: Tensor, replays: int, a: float) -> Tensor:
    if probs.ndim != 2 or len(probs) != replays or target.shape != probs.shape[1:]:
        raise ValueError(
            f"z_probs {tuple(probs.shape)}, z_target {tuple(target.shape)}: must have "
            f"shapes ({replays}, m) and (m,)"
        )
    return target / (((1 + a) * probs.mean(0) + 1 - a) / 2).clamp_min(MIN_PROBABILITY)


@dataclass(frozen=True)
class Rmia(QueryAttack):
    """Zarifzadeh et al. (2024) on the probabilities that the signal stands for; with z if there are
    public logits."""

    gamma: float = 1.0
    a: float = 0.3
    online: bool = True
    name: ClassVar[str] = "rmia"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "gamma")
        if not 0 <= self.a <= 1:
            raise ValueError(f"a={self.a!r}: a number in [0, 1] is needed")

    def score(self, view: View, name: str, seed: int) -> Tensor:
        count = len(require_worlds(view).masks)
        replays = torch.arange(count)
        shadows = [replays[replays != k] for k in range(count)]
        return _score_targets(
            view, name, shadows, self.queries, gamma=self.gamma, a=self.a, online=self.online
        )


def _score_targets(
    view: View, name: str, shadows: Sequence[Tensor], queries: Queries, **options: Any
) -> Tensor:
    """Scores (K, n): each replay as the target, with those at ``shadows[k]`` as its shadow models.

    Of several queries, the geometric mean of their scores, which for ratios is the mean of their
    logarithms."""
    masks = require_worlds(view).masks
    public = _public_probs(view, name)
    probs = queried_log_odds(require_worlds(view), name, queries).sigmoid()
    scores = []
    for k, chosen in enumerate(shadows):
        z: dict[str, Any] = {}
        if public is not None:
            z = {"z_probs": public[chosen], "z_target": public[k]}
        queries_scores = []
        for query in probs.unbind(-1):
            queries_scores.append(rmia(query[chosen], masks[chosen], query[k], **z, **options))
        if len(queries_scores) > 1:
            logs = torch.stack(queries_scores).clamp_min(MIN_PROBABILITY).log()
            scores.append(logs.mean(0).exp())
        else:
            scores.append(queries_scores[0])
    return torch.stack(scores)


def _public_probs(view: View, name: str) -> Tensor | None:
    """True-label probabilities (K, m) of the first m public records, if the replays carry them."""
    logits = require_worlds(view).public_logits
    labels = view.knowledge.public_y
    if name != "confidence" or logits is None or not 0 < logits.shape[-2] <= len(labels):
        return None
    return logit_scaled(logits.double(), labels[: logits.shape[-2]]).sigmoid()


@dataclass(frozen=True)
class OfflineRmia(QueryAttack):
    """RMIA with few shadow models: the ``shadows`` replays after the target, and of these only
    those without the record.

    a in [0, 1]: how p_in follows from p_out (the paper's equation 9); gamma > 0: the ratio at which
    a record dominates a public one. A record that all its shadow models include is compared with
    their mean over all records.
    """

    shadows: int = 4
    gamma: float = 1.0
    a: float = 0.3
    name: ClassVar[str] = "rmia_offline"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "shadows")
        check_positive(self, "gamma")
        if not 0 <= self.a <= 1:
            raise ValueError(f"a={self.a!r}: a number in [0, 1] is needed")

    def score(self, view: View, name: str, seed: int) -> Tensor:
        count = len(require_worlds(view).masks)
        shadows = [shadow_indices(k, count, self.shadows) for k in range(count)]
        return _score_targets(
            view, name, shadows, self.queries, gamma=self.gamma, a=self.a, online=False
        )

    def _add_details(self, finding: Finding, evidence: Evidence, replays: Worlds) -> Finding:
        shadow_models = min(self.shadows, len(replays.masks) - 1)
        return finding.with_measures(diagnostics={"shadow_models": shadow_models})


def shadow_indices(target: int, replays: int, count: int) -> Tensor:
    """The ``count`` replays after ``target``, around the end, or all others if they are fewer."""
    return (target + 1 + torch.arange(min(count, replays - 1))) % replays
