"""What was looked at, and what it says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal["refuted", "not refuted", "condition", "not looked at"]
Strength = Literal["finite_sample", "noise_law", "certain", ""]
SPENT = "the time was spent"  # how the note begins that says so
MADE = "all tests that share the error probability were made"  # the same
WORDS: dict[Strength, str] = {
    "finite_sample": "holds for any mechanism, at the stated confidence",
    "noise_law": "trusts the noise's law in its tails; the law was tested and not rejected",
    "certain": "a fact about the calls made, without statistics",
    "": "",
}


@dataclass(frozen=True)
class Looked:
    """One test. epsilon: the lower bound that it found, 0 if none; strength: under what condition it holds.

    says: one sentence; inputs: the neighbours that it was found on.
    """

    name: str
    outcome: str
    says: str
    epsilon: float = 0.0
    strength: Strength = ""
    inputs: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)
