"""Audited records that are made hard to fit. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HardExamples:
    """How many audited records get another label, and how many become a near-duplicate, with
    another label, of a record that the client always trains on. 0 and more; none by default."""

    mislabelled: int = 0
    near_duplicates: int = 0

    @property
    def size(self) -> int:
        return self.mislabelled + self.near_duplicates
