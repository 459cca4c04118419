"""BASE (Lassila et al. 2025): the target's log-probability against the shadows' log-mean-exp."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from attacks.membership.attack import (
    MembershipAttack,
    Queries,
    check_queries,
    check_shadow_signals,
    queried_log_odds,
    require_worlds,
    score_leave_one_out,
)
from attacks.tensors import accepts_numpy
from attacks.types import View
from attacks.validation import check_positive


@accepts_numpy
def base(
    log_probs: Tensor,
    masks: Tensor,
    target: Tensor,
    *,
    temperature: float = 1.0,
    online: bool = True,
) -> Tensor:
    """log p(y|x, target) - log mean_k p(y|x, shadow_k): score per record (n,), float64, larger =
    member.

    log_probs (K, n) of the true label under the shadow models (at most 0), masks (K, n) bool,
    target (n,). Log-probabilities are divided by ``temperature`` first. Online takes all shadow
    models; offline only those trained without the record (all, if there are none). ValueError: bad
    shapes, NaN, temperature."""
    x, mask, t = check_shadow_signals(log_probs, masks, target, 2, finite=False)
    if not temperature > 0:
        raise ValueError(f"temperature={temperature}: a positive number is needed")
    if x.max() > 1e-6 or t.max() > 1e-6:
        raise ValueError("log_probs and target must be logarithms of probabilities (at most 0)")
    if online or bool(mask.all()):
        return t / temperature - (x / temperature).logsumexp(0) + math.log(len(x))
    keep = ~mask | mask.all(0)
    kept = (x / temperature).masked_fill(~keep, -torch.inf)
    return t / temperature - kept.logsumexp(0) + keep.sum(0).double().log()


@dataclass(frozen=True)
class Base(MembershipAttack):
    """Lassila et al. (2025): cheap, and the best choice below 16 shadow models."""

    temperature: float = 2.0
    online: bool = True
    queries: Queries = "auto"
    name: ClassVar[str] = "base"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "temperature")
        check_queries(self.queries)

    def score(self, view: View, name: str, seed: int) -> Tensor:
        worlds = require_worlds(view)
        logp = torch.nn.functional.logsigmoid(queried_log_odds(worlds, name, self.queries))
        score = partial(base, temperature=self.temperature, online=self.online)
        each = [score_leave_one_out(score, one, worlds.masks) for one in logp.unbind(-1)]
        return torch.stack(each).mean(0)
