"""Types of settings that need no torch: neighbouring relations, privacy units, and how many audited records are made hard to fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Relation = Literal["add_remove", "zero_out", "replace"]
RELATIONS: tuple[str, ...] = get_args(Relation)
UNITS = ("record", "client")


@dataclass(frozen=True)
class HardExamples:
    """How many audited records get another label, and how many become a near-duplicate, with another label, of a record
    that the client always trains on. 0 and more; none by default."""

    mislabelled: int = 0
    near_duplicates: int = 0

    @property
    def size(self) -> int:
        return self.mislabelled + self.near_duplicates
