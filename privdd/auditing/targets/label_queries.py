"""Membership from predicted labels alone, for records of any shape (Choquette-Choo et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.membership.attack import MembershipAttack, _worlds
from attacks.membership.label_only import LEVELS, robustness
from attacks.types import Evidence, View


@dataclass(frozen=True)
class LabelQueries(MembershipAttack):
    """The share of a record's disturbed copies that keep its label; the target alone is asked.

    labels_of: records (b, ...) -> predicted labels (b,). Pictures are shifted and noised as in
    ``attacks.membership.label_only``, other records noised, in units of each coordinate's spread.
    """

    labels_of: Callable[[Tensor], Tensor] = lambda x: x
    pictures: bool = False
    copies: int = 8
    name: ClassVar[str] = "label_only"
    least_worlds: ClassVar[int] = 1

    def nothing_to_read(self, view: View) -> str:
        return "the audited records are not known" if _worlds(view).records is None else ""

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """Scores (1, n): of the target."""
        worlds = _worlds(view)
        if worlds.records is None:
            raise ValueError(f"{self.name}: the view holds no records")
        seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
        own = torch.Generator().manual_seed(seed)
        ask = robustness if self.pictures else noised
        scores = ask(self.labels_of, worlds.records, worlds.labels, self.copies, own)
        return Evidence(scores=scores[None], notes={"signal": "labels", "seed": seed})


def noised(
    labels_of: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, copies: int, generator: torch.Generator
) -> Tensor:
    """(n,) in [0, 1]: the share of copies of each record (n, ...) with noise at LEVELS spreads that get its label (n,)."""
    values = x.double()
    spread = values.std(0)
    right = [(labels_of(x) == y).double()]
    for level in LEVELS:
        for _ in range(copies):
            noise = torch.randn(x.shape[1:], generator=generator, dtype=torch.float64)
            right.append((labels_of((values + level * spread * noise).to(x.dtype)) == y).double())
    return torch.stack(right).mean(0)
