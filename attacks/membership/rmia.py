"""The relative membership test (Zarifzadeh, Liu and Shokri 2024), with the ratio itself as the score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attacks.arrays import arrays
from attacks.membership.attack import MembershipAttack, _worlds, log_odds
from attacks.membership.signals import logit_scaled
from attacks.ranges import check_positive
from attacks.types import View

TINY = 1e-300


@arrays
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
    With z_probs (K, m) and z_target (m,) of population records that no model was trained on: the fraction
    of z whose ratio is at most 1/gamma times the record's, in [0, 1); it makes scores of several
    targets comparable. Its ties are broken by the ratio (``tie_break=False``: the bare fraction,
    as the authors' code prints it). Online p(x) weighs the IN and OUT means equally; offline, and for
    records without an IN world, and for z, p = ((1 + a) p_out + 1 - a) / 2. ValueError: bad shapes
    or ranges.
    """
    p, t = torch.as_tensor(probs).double(), torch.as_tensor(target).double()
    mask = torch.as_tensor(masks)
    _check(p, mask, t, gamma, a)
    ratio = t / _average(p, mask, a, online).clamp_min(TINY)
    if z_probs is None or z_target is None:
        return ratio
    z = _z_ratio(torch.as_tensor(z_probs).double(), torch.as_tensor(z_target).double(), len(p), a)
    won = torch.searchsorted(z.sort().values * gamma, ratio, right=True).double()
    if not tie_break:
        return won / len(z)
    return (won + ratio / (1 + ratio)) / (len(z) + 1)


def _average(p: Tensor, mask: Tensor, a: float, online: bool) -> Tensor:
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
        raise ValueError(f"z_probs {tuple(probs.shape)}, z_target {tuple(target.shape)}: ({worlds}, m) and (m,)")
    return target / (((1 + a) * probs.mean(0) + 1 - a) / 2).clamp_min(TINY)


def _check(p: Tensor, mask: Tensor, t: Tensor, gamma: float, a: float) -> None:
    if p.ndim != 2 or mask.dtype != torch.bool or mask.shape != p.shape or t.shape != p.shape[1:]:
        raise ValueError(f"probs {tuple(p.shape)}, masks {tuple(mask.shape)}, target {tuple(t.shape)}")
    if not all(bool(((v >= 0) & (v <= 1)).all()) for v in (p, t)):
        raise ValueError("probs and target must lie in [0, 1]")
    if not gamma > 0 or not 0 <= a <= 1:
        raise ValueError(f"gamma={gamma}, a={a}: gamma > 0 and 0 <= a <= 1 are needed")


@dataclass(frozen=True)
class Rmia(MembershipAttack):
    """Zarifzadeh et al. (2024) on the probabilities that the signal stands for; z where public logits exist."""

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
        worlds, public = _worlds(view), _public_probs(view, name)
        probs = log_odds(worlds, name).sigmoid()
        rows, scores = torch.arange(len(probs)), []
        for k in range(len(probs)):
            z, z_target = (None, None) if public is None else (public[rows != k], public[k])
            options: dict[str, Any] = {"gamma": self.gamma, "a": self.a, "online": self.online}
            shadows, masks = probs[rows != k], worlds.masks[rows != k]
            scores.append(rmia(shadows, masks, probs[k], z_probs=z, z_target=z_target, **options))
        return torch.stack(scores)


def _public_probs(view: View, name: str) -> Tensor | None:
    """True-label probabilities (K, m) of the first m public records, where the worlds carry them."""
    logits, labels = _worlds(view).public_logits, view.knowledge.public_y
    if name != "confidence" or logits is None or not 0 < logits.shape[-2] <= len(labels):
        return None
    return logit_scaled(logits.double(), labels[: logits.shape[-2]]).sigmoid()
