"""What a test of a sentence is given, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

HERE, NOT, OPEN = "holds here", "does not hold", "undecided"


class Grounds(Protocol):
    """What a test may ask for."""

    def findings(self, name: str) -> dict[str, Any]:
        """findings.json of one of the small audits (``audit_runs.AUDITS``)."""

    def results(self, entry: str) -> dict[str, Any]:
        """results.json of an entry, at scale=small."""


@dataclass(frozen=True)
class Decided:
    """verdict: ``HERE``, ``NOT`` or ``OPEN``; because: the numbers that decide, in words."""

    verdict: str
    because: tuple[str, ...]
