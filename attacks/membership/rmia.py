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
    MembershipAttack,
    Queries,
    check_queries,
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
    """Score per record (n,), float64, larger = member.

    probs (K, n) true-label probabilities in [0, 1] of the shadow models, masks (K, n) bool, target
    (n,). Without z: the ratio p(x | target) / p(x), which every z only quantises for one target.
    With z_probs (K, m) and z_target (m,) of population records that no model was trained on: the
    fraction of z whose ratio is at most 1/gamma times the record's, in [0, 1); it makes scores of
    several targets comparable. Its ties are broken by the ratio (``tie_break=False``: the bare
    fraction, as the authors' code prints it). Online p(x) weighs the IN and OUT means equally;
    offline, and for records without an IN world, and for z, p = ((1 + a) p_out + 1 - a) / 2.
    ValueError: bad shapes or ranges."""
    p, mask, t = check_shadow_signals(probs, masks, target, 2)
    if not all(bool(((v >= 0) & (v <= 1)).all()) for v in (p, t)):
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
    """p(x): what the probability would be for a model that may or may not hold x, (n,)."""
    inside = (p * mask).sum(0) / mask.sum(0)
    outside = (p * ~mask).sum(0) / (~mask).sum(0)
    offline = ((1 + a) * outside + 1 - a) / 2
    if not online:
        return torch.where(outside.isnan(), p.mean(), offline)
    both = (inside + outside) / 2
    return torch.where(inside.isnan(), offline, torch.where(outside.isnan(), inside, both))


def _z_ratio(probs: Tensor, target: Tensor, worlds: int, a: float) -> Tensor:
    if probs.ndim != 2 or len(probs) != worlds or target.shape != probs.shape[1:]:
        raise ValueError(
            f"z_probs {tuple(probs.shape)}, z_target {tuple(target.shape)}: ({worlds}, m) and (m,)"
        )
    return target / (((1 + a) * probs.mean(0) + 1 - a) / 2).clamp_min(MIN_PROBABILITY)


@dataclass(frozen=True)
class Rmia(MembershipAttack):
    """Zarifzadeh et al. (2024) on the probabilities that the signal stands for; z where public
    logits exist."""

    gamma: float = 1.0
    a: float = 0.3
    online: bool = True
    queries: Queries = "auto"
    name: ClassVar[str] = "rmia"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "gamma")
        if not 0 <= self.a <= 1:
            raise ValueError(f"a={self.a!r}: a number in [0, 1] is needed")
        check_queries(self.queries)

    def score(self, view: View, name: str, seed: int) -> Tensor:
        count = len(require_worlds(view).masks)
        rest = [torch.arange(count)[torch.arange(count) != k] for k in range(count)]
        return _score_targets(
            view, name, rest, self.queries, gamma=self.gamma, a=self.a, online=self.online
        )


def _score_targets(
    view: View, name: str, shadows: Sequence[Tensor], queries: Queries, **options: Any
) -> Tensor:
    """Scores (K, n): each world as the target, with the worlds at ``shadows[k]`` as its shadow
    models.

    Of several queries: the geometric mean of their scores, which for ratios is the mean of their
        logarithms."""
    masks = require_worlds(view).masks
    public = _public_probs(view, name)
    probs = queried_log_odds(require_worlds(view), name, queries).sigmoid()
    scores = []
    for k, chosen in enumerate(shadows):
        z: dict[str, Any] = (
            {} if public is None else {"z_probs": public[chosen], "z_target": public[k]}
        )
        each = [
            rmia(one[chosen], masks[chosen], one[k], **z, **options) for one in probs.unbind(-1)
        ]
        scores.append(
            torch.stack(each).clamp_min(MIN_PROBABILITY).log().mean(0).exp()
            if len(each) > 1
            else each[0]
        )
    return torch.stack(scores)


def _public_probs(view: View, name: str) -> Tensor | None:
    """True-label probabilities (K, m) of the first m public records, where the worlds carry
    them."""
    logits = require_worlds(view).public_logits
    labels = view.knowledge.public_y
    if name != "confidence" or logits is None or not 0 < logits.shape[-2] <= len(labels):
        return None
    return logit_scaled(logits.double(), labels[: logits.shape[-2]]).sigmoid()


@dataclass(frozen=True)
class OfflineRmia(MembershipAttack):
    """Each target has the ``shadows`` worlds after it as its shadow models, and of these only those
    without the record.

    a in [0, 1]: how p_in follows from p_out (the paper's equation 9); gamma > 0: a record beats a
    public one at this ratio. A record that all its shadow models hold is compared with their mean
    over all records."""

    shadows: int = 4
    gamma: float = 1.0
    a: float = 0.3
    queries: Queries = "auto"
    name: ClassVar[str] = "rmia_offline"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "shadows")
        check_positive(self, "gamma")
        if not 0 <= self.a <= 1:
            raise ValueError(f"a={self.a!r}: a number in [0, 1] is needed")
        check_queries(self.queries)

    def score(self, view: View, name: str, seed: int) -> Tensor:
        count = len(require_worlds(view).masks)
        chosen = [shadow_indices(k, count, self.shadows) for k in range(count)]
        return _score_targets(
            view, name, chosen, self.queries, gamma=self.gamma, a=self.a, online=False
        )

    def _add_details(self, finding: Finding, evidence: Evidence, worlds: Worlds) -> Finding:
        return finding.with_measures(
            diagnostics={"shadow_models": min(self.shadows, len(worlds.masks) - 1)}
        )


def shadow_indices(target: int, worlds: int, count: int) -> Tensor:
    """The ``count`` worlds after ``target``, around the end; never the target itself. Fewer where
    there are fewer."""
    return (target + 1 + torch.arange(min(count, worlds - 1))) % worlds
