"""RMIA with few shadow models, none of them trained on the record (Zarifzadeh, Liu and Shokri 2024, offline attack).

A shadow model that never saw a record can be trained before the record is known, and a handful is enough: RMIA compares
the record's ratio with those of public records instead of fitting a distribution to each record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.membership.attack import MembershipAttack, _worlds, log_odds
from attacks.membership.rmia import _public_probs, rmia
from attacks.ranges import check_counts, check_positive
from attacks.types import Evidence, Finding, Truth, View


@dataclass(frozen=True)
class FewShadowRmia(MembershipAttack):
    """Each target has the ``shadows`` worlds after it as its shadow models, and of these only those without the record.

    a in [0, 1]: how p_in follows from p_out (the paper's equation 9); gamma > 0: a record beats a public one at this
    ratio. A record that all its shadow models hold is compared with their mean over all records.
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
        worlds, public = _worlds(view), _public_probs(view, name)
        probs, scores = log_odds(worlds, name).sigmoid(), []
        for k in range(len(probs)):
            chosen = shadows_of(k, len(probs), self.shadows)
            z, z_target = (None, None) if public is None else (public[chosen], public[k])
            kept = (probs[chosen], worlds.masks[chosen], probs[k])
            scores.append(rmia(*kept, z_probs=z, z_target=z_target, gamma=self.gamma, a=self.a, online=False))
        return torch.stack(scores)

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        finding = super().judge(evidence, view, truth)
        if finding.measures.get("status") == "nothing_to_read":
            return finding
        used = min(self.shadows, len(_worlds(view).masks) - 1)
        return finding.with_measures(diagnostics={"shadow_models": used})


def shadows_of(target: int, worlds: int, count: int) -> Tensor:
    """The ``count`` worlds after ``target``, around the end; never the target itself. Fewer where there are fewer."""
    return (target + 1 + torch.arange(min(count, worlds - 1))) % worlds
