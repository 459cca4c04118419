"""Results of single tests, and the conclusion of a check: as a value, as JSON and in one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from privdd.blackbox.claim import CheckedClaim

Outcome = Literal["refuted", "not refuted", "condition", "depends on the record", "not looked at"]
Strength = Literal["finite_sample", "noise_law", "declared", "certain", ""]
SPENT = "the time was spent"  # how the note begins that says so
CURSORY = "as closely as planned"  # how a note ends where a look was made on fewer transcripts
MADE = "all tests that share the error probability were made"  # the same
WORDS: dict[Strength, str] = {
    "finite_sample": "holds for any mechanism, at the stated confidence",
    "noise_law": "trusts the noise's law in its tails; the law was tested and not rejected",
    "declared": "follows from the noise and the batches that are declared",
    "certain": "a fact about the calls made, without statistics",
    "": "",
}


@dataclass(frozen=True)
class SingleTestResult:
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


@dataclass(frozen=True)
class ExactEpsilon:
    """Epsilon at the stated delta by the law of the noise and the largest shift that was seen: no proof, as another input may be
    shifted further.

    epsilon: from the best estimate of the noise's scale; low: from its largest at the stated confidence. law was not rejected
    among the numbers of ``transcripts``; shift_l1, shift_l2: norms of what the record adds, measured under the same noise on both
    sides; pairs: neighbours that were compared; inputs: those with the largest shift.
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
        return (
            f"by its {self.law} law and the largest shift of {self.pairs} pairs of neighbours "
            f"(L1 {self.shift_l1:.4g}, L2 {self.shift_l2:.4g}) epsilon is {self.epsilon:.4g}"
        )


@dataclass
class ExaminationResult:
    """looks, and what was found out about the mechanism on the way."""

    looks: list[SingleTestResult] = field(default_factory=list)
    kappa: float | None = None
    about: float | None = None  # best guess of epsilon, under the noise's law
    law: str = ""
    worst: str = ""
    exact: ExactEpsilon | None = None
    notes: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)

    @property
    def is_refuted(self) -> bool:
        return any(look.outcome == "refuted" for look in self.looks)


FORMAT = 1
KEEPS, CONDITIONS, BREAKS = "not refuted", "not refuted, under conditions", "refuted"


@dataclass(frozen=True)
class Checked:
    """verdict: refuted; not refuted; not refuted, under conditions. certified: the largest lower bound on epsilon.

    certified_any: the largest that holds for any mechanism; kappa: shift over noise, over what the statement allows;
    about: best guess of epsilon under the noise's law (both None where no law fits).
    """

    mechanism: str
    stated: CheckedClaim
    verdict: str
    certified: float
    certified_any: float
    kappa: float | None
    about: float | None
    law: str
    worst: str
    looks: tuple[SingleTestResult, ...]
    notes: tuple[str, ...]
    confidence: float
    calls: int
    seconds: float
    command: str = ""
    conditions: tuple[str, ...] = field(default=())
    # what ``reproduction.write_reproduction`` writes
    case: Mapping[str, Any] | None = field(default=None, compare=False)
    exact: ExactEpsilon | None = None

    @property
    def refuted(self) -> bool:
        return self.verdict == BREAKS

    @property
    def is_unfinished(self) -> bool:
        """Whether the time or the tests were spent before every look was made, closely or not, and nothing was refuted."""
        return not self.refuted and not all(note.endswith(CURSORY) for note in self._budget_notes)

    @property
    def _budget_notes(self) -> list[str]:
        return [note for note in self.notes if note.startswith((SPENT, MADE))]

    @property
    def says(self) -> str:
        """The conclusion in one line."""
        claim = f"({self.stated.epsilon:g}, {self.stated.delta:g})-DP under {self.stated.relation}"
        over = f" over {self.stated.calls} calls" if self.stated.calls > 1 else ""
        head = f"{self.mechanism}: {claim}{over}: {self.verdict.upper() if self.refuted else self.verdict}"
        if self.refuted:
            best = max((look for look in self.looks if look.outcome == "refuted"), key=lambda look: look.epsilon)
            shown = f"epsilon is above {best.epsilon:.4g} ({WORDS[best.strength]}): {best.says}"
            return f"{head}: {shown if 0 < best.epsilon < math.inf else best.says}"
        spent = [note for note in self._budget_notes if note.startswith(SPENT)]
        more = [f"{len(spent) - 1} other looks were cut short too"] if len(spent) > 1 else []
        tail = "; ".join(
            [*self.conditions, *(note for note in self._budget_notes if note not in spent), *spent[-1:], *more]
        )
        exact = f"; {self.exact.says}" if self.exact else ""
        return (
            f"{head}{': ' + tail if tail else ''}{exact}; "
            f"largest bound {self.certified:.4g} at confidence {self.confidence:g}"
        )

    def as_json(self) -> dict[str, Any]:
        kept = {name: value for name, value in asdict(replace(self, case=None)).items() if name != "case"}
        return {"format": FORMAT, **kept, "says": self.says}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Checked:
        """The inverse of ``as_json``."""
        looks = tuple(SingleTestResult(**{**look, "epsilon": float(look["epsilon"])}) for look in data["looks"])
        rest = {k: v for k, v in data.items() if k not in ("format", "says", "looks", "stated", "notes", "conditions")}
        rest |= {key: float(rest[key]) for key in ("certified", "certified_any")}
        rest |= {key: None if rest[key] is None else float(rest[key]) for key in ("kappa", "about")}
        rest["exact"] = ExactEpsilon(**rest["exact"]) if rest.get("exact") else None
        return Checked(
            stated=CheckedClaim(**data["stated"]),
            looks=looks,
            notes=tuple(data["notes"]),
            conditions=tuple(data["conditions"]),
            **rest,
        )


def conclude_check(name: str, stated: CheckedClaim, found: ExaminationResult, **spent: float) -> Checked:
    """The verdict of an examination; spent: its confidence, calls and seconds."""
    conditions = tuple(look.says for look in found.looks if look.outcome == "condition")
    verdict = BREAKS if found.is_refuted else CONDITIONS if conditions else KEEPS
    bounds = [look.epsilon for look in found.looks if look.outcome in ("refuted", "not refuted")]
    free = [
        look.epsilon
        for look in found.looks
        if look.strength not in ("noise_law", "declared") and look.outcome in ("refuted", "not refuted")
    ]
    certified = max(bounds, default=0.0), max(free, default=0.0)
    seen = found.kappa, found.about, found.law, found.worst, tuple(found.looks), tuple(found.notes)
    made = Checked(name, stated, verdict, *certified, *seen, **spent, conditions=conditions)  # type: ignore[arg-type]
    return replace(made, exact=found.exact)
