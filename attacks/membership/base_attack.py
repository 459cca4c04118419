"""BASE (Lassila et al. 2025): the target's log-probability against the shadows' log-mean-exp."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from attacks.membership.attack import (
    QueryAttack,
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
    """The BASE score of membership per record (Lassila et al. 2025).

    Args:
        log_probs: (K, n) of the true label under the shadow models, at most 0.
        masks: (K, n) inclusion bits of the shadow models.
        target: (n,) of the model under attack.
        temperature: by which log-probabilities are divided first, above 0.
        online: True takes all shadow models; False those trained without the record, or all if
            there are none.

    Returns:
        (n,) float64, larger = member.

    Raises:
        ValueError: for bad shapes, NaN, positive log-probabilities, or a temperature that is not
            positive.
    """
    # log p(y|x, target) / T - log((1 / K) sum_k p(y|x, shadow_k)^(1 / T))
    x, mask, t = check_shadow_signals(log_probs, masks, target, 2, finite=False)
    if not temperature > 0:
        raise ValueError(f"temperature={temperature}: a positive number is needed")
    if x.max() > 1e-6 or t.max() > 1e-6:
        raise ValueError("log_probs and target must be logarithms of probabilities (at most 0)")
    if online or bool(mask.all()):
        return t / temperature - (x / temperature).logsumexp(0) + math.log(len(x))
    is_used = ~mask | mask.all(0)
    scaled = (x / temperature).masked_fill(~is_used, -torch.inf)
    return t / temperature - scaled.logsumexp(0) + is_used.sum(0).double().log()


@dataclass(frozen=True)
class Base(QueryAttack):
    """Lassila et al. (2025): cheap, and the best choice below 16 shadow models."""

    temperature: float = 2.0
    online: bool = True
    name: ClassVar[str] = "base"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "temperature")

    def score(self, view: View, name: str, seed: int) -> Tensor:
        worlds = require_worlds(view)
        logp = torch.nn.functional.logsigmoid(queried_log_odds(worlds, name, self.queries))
        score = partial(base, temperature=self.temperature, online=self.online)
        queries = [score_leave_one_out(score, query, worlds.masks) for query in logp.unbind(-1)]
        return torch.stack(queries).mean(0)
