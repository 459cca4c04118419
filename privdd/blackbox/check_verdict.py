"""The conclusion of a check: a value, JSON, and one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from pydantic import TypeAdapter

from privdd.blackbox.check_report import (
    CURSORY,
    WORDS,
    CheckReport,
    ExactEpsilon,
    SingleTestResult,
)
from privdd.blackbox.claims import CheckedClaim

FORMAT = 1
# verdicts
KEEPS = "not refuted"
CONDITIONS = "not refuted, under conditions"
BREAKS = "refuted"
UNDECIDED = "not decided"
GUESSED = (
    "kind={kind} was guessed from the names of the arguments, and a guess cannot "
    "refute: if the mechanism takes it, set "
    "kind={kind}, else another"
)


@dataclass(frozen=True)
class Checked:
    """The result of a check.

    Attributes:
        mechanism: its name.
        stated: the statement.
        verdict: refuted, not refuted, the same under conditions, or not decided.
        certified: largest lower bound on epsilon; certified_any: of those that hold for any
            mechanism.
        kappa: shift over noise, over what is stated; None if it is not known.
        about: best guess of epsilon under the noise's law; None if none fits.
        law: of the noise.
        worst: words for the neighbours of kappa.
        looks: results of single tests.
        notes: what else there is to say.
        confidence: of all bounds together.
        calls: of the mechanism.
        seconds: of processor time.
        command: that was typed.
        conditions: under which the statement was not refuted.
        undecided: why nothing is decided, if it is not.
        case: what ``write_reproduction`` writes.
        exact: epsilon by the exact shift.
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
    undecided: tuple[str, ...] = field(default=())
    case: Mapping[str, Any] | None = field(default=None, compare=False)
    exact: ExactEpsilon | None = None

    @property
    def refuted(self) -> bool:
        return self.verdict == BREAKS

    @property
    def is_undecided(self) -> bool:
        """Whether a look that fits was not made, and nothing was refuted."""
        return self.verdict == UNDECIDED

    @property
    def says(self) -> str:
        """The conclusion in one line."""
        head = self._head
        refuting = [result for result in self.looks if result.outcome == "refuted"]
        if not refuting and not self.refuted:
            return head + self._sound_words()
        if refuting:
            demonstrated = _words_for_bound(max(refuting, key=lambda result: result.epsilon))
        else:
            demonstrated = ""
        if self.refuted:
            return f"{head}: {demonstrated}"
        return f"{head}: {'; '.join(self.undecided)}; under it {demonstrated}"

    @property
    def reason(self) -> str:
        """The conclusion without mechanism, statement and verdict."""
        reason = self.says.removeprefix(self._head).lstrip(":; ")
        return f"{reason[:1].upper()}{reason[1:]}."

    @property
    def _head(self) -> str:
        verdict = self.verdict
        if self.refuted or self.is_undecided:
            verdict = verdict.upper()
        return f"{self.mechanism}: {self.stated.says}: {verdict}"

    def _sound_words(self) -> str:
        """The rest of the conclusion if no look refutes the statement."""
        cursory = [note for note in self.notes if note.endswith(CURSORY)]
        reasons = [*self.conditions, *_shorten(self.undecided), *_shorten(cursory)]
        words = f": {'; '.join(reasons)}" if reasons else ""
        if self.exact is not None:
            words += f"; {self.exact.says}"
        return f"{words}; largest bound {self.certified:.4g} at confidence {self.confidence:g}"

    def as_json(self) -> dict[str, Any]:
        """The result without its case, as JSON takes it."""
        values = asdict(replace(self, case=None))
        del values["case"]
        return {"format": FORMAT, **values, "says": self.says}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Checked:
        """The inverse of ``as_json``. Raises ValueError."""
        values = {key: value for key, value in data.items() if key not in ("format", "says")}
        _check_keys(values, Checked)
        if isinstance(values.get("stated"), Mapping):
            _check_keys(values["stated"], CheckedClaim)
        return TypeAdapter(Checked).validate_python(values)


def _check_keys(values: Mapping[str, Any], known: type) -> None:
    """Raises ValueError for a key that is no field."""
    unknown = set(values) - {item.name for item in fields(known)}
    if unknown:
        raise ValueError(f"unknown keys: {', '.join(sorted(map(str, unknown)))}")


def _words_for_bound(result: SingleTestResult) -> str:
    if 0 < result.epsilon < math.inf:
        return f"epsilon is above {result.epsilon:.4g} ({WORDS[result.strength]}): {result.says}"
    return result.says


def _shorten(notes: Sequence[str]) -> list[str]:
    """The last of them, and how many more there are."""
    if len(notes) <= 1:
        return list(notes)
    return [notes[-1], f"{len(notes) - 1} other tests were cut short too"]


def conclude_check(name: str, claim: CheckedClaim, report: CheckReport, **spent: Any) -> Checked:
    """The verdict of an examination.

    Args:
        name: of the mechanism.
        claim: the statement.
        report: of all stages.
        **spent: confidence, calls and seconds.
    """
    conditions = tuple(result.says for result in report.looks if result.outcome == "condition")
    bounds = [result for result in report.looks if result.outcome in ("refuted", "not refuted")]
    for_any = [
        result.epsilon for result in bounds if result.strength not in ("noise_law", "declared")
    ]
    undecided = tuple(report.undecided)
    if report.is_refuted and claim.kind_is_guessed:
        undecided = (GUESSED.format(kind=claim.kind),)
    return Checked(
        name,
        claim,
        verdict=_verdict(report, claim, undecided, conditions),
        certified=max((result.epsilon for result in bounds), default=0.0),
        certified_any=max(for_any, default=0.0),
        kappa=report.kappa,
        about=report.about,
        law=report.law,
        worst=report.worst,
        looks=tuple(report.looks),
        notes=tuple(report.notes),
        conditions=conditions,
        undecided=undecided,
        exact=report.exact,
        **spent,
    )


def _verdict(
    report: CheckReport,
    claim: CheckedClaim,
    undecided: Sequence[str],
    conditions: Sequence[str],
) -> str:
    if report.is_refuted and not claim.kind_is_guessed:
        return BREAKS
    if undecided:
        return UNDECIDED
    return CONDITIONS if conditions else KEEPS
