"""Results of single tests, and what all stages of a check write."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

Strength = Literal["finite_sample", "noise_law", "declared", "certain", ""]

# beginnings of notes on a check that was cut short
SPENT = "the time was spent"
CALLS_SPENT = "the calls were spent"
MADE = "all tests that share the error probability were made"
CURSORY = "as closely as planned"  # end of a note on a look at fewer transcripts
WORDS: dict[Strength, str] = {
    "finite_sample": "holds for any mechanism, at the stated confidence",
    "noise_law": "trusts the noise's law in its tails; the law was tested and not rejected",
    "declared": "follows from the noise and the batches that are declared",
    "certain": "a fact about the calls made, without statistics",
    "": "",
}


@dataclass(frozen=True)
class SingleTestResult:
    """The result of one look.

    Attributes:
        name: of the look.
        outcome: refuted, not refuted, condition, depends on the record, or not looked at.
        says: the result in words.
        epsilon: the lower bound, 0 if there is none.
        strength: what the bound rests on (``WORDS``).
        inputs: words for the neighbours.
        numbers: further figures of the look.
    """

    name: str
    outcome: str
    says: str
    epsilon: float = 0.0
    strength: Strength = ""
    inputs: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExactEpsilon:
    """Epsilon at the stated delta by the tested law of the noise and the largest shift of several
    neighbours: no proof, as another input may be shifted further.

    Attributes:
        law: of the noise.
        epsilon: the best guess; low: a lower bound at the stated confidence.
        shift_l1: L1 norm of the shift; shift_l2: L2 norm.
        transcripts: that the law was told from.
        pairs: neighbours that were compared.
        inputs: words for those with the largest shift.
    """

    law: str
    epsilon: float
    low: float
    shift_l1: float
    shift_l2: float
    transcripts: int
    pairs: int
    inputs: str

    @property
    def says(self) -> str:
        """The result in words."""
        return (
            f"by its {self.law} law and the largest shift of {self.pairs} pairs of neighbours "
            f"(L1 {self.shift_l1:.4g}, L2 {self.shift_l2:.4g}) epsilon is {self.epsilon:.4g}"
        )


@dataclass
class CheckReport:
    """What the stages of a check write.

    Attributes:
        looks: results of single tests.
        kappa: shift over noise, over what is stated; None if it is not known.
        kappa_bound: the lower bound on epsilon that kappa was read with.
        about: best guess of epsilon, under the noise's law; None if it has none.
        law: of the noise.
        worst: words for the neighbours of kappa.
        exact: epsilon by the exact shift.
        notes: what else there is to say.
        undecided: looks that fit and were not made, with the reason: nothing decides without them,
            unless it refutes.
        first: numbers of the first calls.
    """

    looks: list[SingleTestResult] = field(default_factory=list)
    kappa: float | None = None
    kappa_bound: float = 0.0
    about: float | None = None
    law: str = ""
    worst: str = ""
    exact: ExactEpsilon | None = None
    notes: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)

    @property
    def is_refuted(self) -> bool:
        """Whether any look refutes the statement."""
        return any(result.outcome == "refuted" for result in self.looks)

    @property
    def is_certain(self) -> bool:
        """Whether every finite epsilon is refuted."""
        return any(
            result.outcome == "refuted" and math.isinf(result.epsilon) for result in self.looks
        )
