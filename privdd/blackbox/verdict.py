"""Results of single tests, and the conclusion of a check: a value, JSON, one sentence, a page,
limits, and ``reproduce.py``."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from privdd.blackbox import counterexample
from privdd.blackbox.mechanism import CheckedClaim, Data, plain_number
from privdd.reporting.policy import LimitResult, Outcome, Policy
from privdd.runtime.files import DamagedRun, read_json, to_plain_json, write_bytes, write_json

Strength = Literal["finite_sample", "noise_law", "declared", "certain", ""]
SPENT = "the time was spent"  # how the note begins that says so
CALLS_SPENT = "the calls were spent"  # the same
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
    """epsilon: the lower bound that it found, 0 if none; strength: its condition (``WORDS``);
    inputs: neighbours it was found on."""

    name: str
    outcome: str
    says: str
    epsilon: float = 0.0
    strength: Strength = ""
    inputs: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExactEpsilon:
    """Epsilon at the stated delta by the tested law of the noise and the largest shift (norms
    shift_l1, shift_l2) of
    ``pairs`` neighbours: no proof, as another input may be shifted further. low: at the stated
        confidence."""

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
    """looks, and what was found out about the mechanism on the way. undecided: looks that fit and
    were not made, with the
    reason: nothing that was seen decides without them, unless it refutes."""

    looks: list[SingleTestResult] = field(default_factory=list)
    kappa: float | None = None
    about: float | None = None  # best guess of epsilon, under the noise's law
    law: str = ""
    worst: str = ""
    exact: ExactEpsilon | None = None
    notes: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)

    @property
    def is_refuted(self) -> bool:
        return any(look.outcome == "refuted" for look in self.looks)


FORMAT = 1
KEEPS = "not refuted"
CONDITIONS = "not refuted, under conditions"
BREAKS = "refuted"
UNDECIDED = "not decided"


@dataclass(frozen=True)
class Checked:
    """certified: largest lower bound on epsilon; certified_any: of those that hold for any
    mechanism; kappa: shift over noise, over what is stated; about: best guess of epsilon under the
    noise's law (None where none fits); undecided: why nothing is decided, where it is not."""

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
    case: Mapping[str, Any] | None = field(
        default=None, compare=False
    )  # what ``write_reproduction`` writes
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
        head = f"{self.mechanism}: {self.stated.says}: {self._verdict_words}"
        refuting = [look for look in self.looks if look.outcome == "refuted"]
        shown = ""
        if refuting:
            best = max(refuting, key=lambda look: look.epsilon)
            shown = best.says
            if 0 < best.epsilon < math.inf:
                shown = f"epsilon is above {best.epsilon:.4g} ({WORDS[best.strength]}): {best.says}"
        if self.refuted:
            return f"{head}: {shown}"
        if refuting:
            return f"{head}: {'; '.join(self.undecided)}; under it {shown}"
        tail = "; ".join(
            [
                *self.conditions,
                *self._shortened(self.undecided),
                *self._shortened(self._cursory_notes),
            ]
        )
        exact = f"; {self.exact.says}" if self.exact else ""
        bound = f"largest bound {self.certified:.4g} at confidence {self.confidence:g}"
        return f"{head}{': ' + tail if tail else ''}{exact}; {bound}"

    @property
    def _verdict_words(self) -> str:
        return self.verdict.upper() if self.refuted or self.is_undecided else self.verdict

    @property
    def _cursory_notes(self) -> list[str]:
        return [note for note in self.notes if note.endswith(CURSORY)]

    @staticmethod
    def _shortened(notes: Sequence[str]) -> list[str]:
        """The last of them, and how many there are beside it."""
        more = [f"{len(notes) - 1} other looks were cut short too"] if len(notes) > 1 else []
        return [*notes[-1:], *more]

    def as_json(self) -> dict[str, Any]:
        kept = asdict(replace(self, case=None))
        del kept["case"]
        return {"format": FORMAT, **kept, "says": self.says}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Checked:
        """The inverse of ``as_json``. Raises ValueError."""
        values = {k: v for k, v in data.items() if k not in ("format", "says")}
        for part, known in ((values, Checked), (values.get("stated"), CheckedClaim)):
            if isinstance(part, Mapping) and (
                unknown := set(part) - {one.name for one in fields(known)}
            ):
                raise ValueError(f"unknown keys: {', '.join(sorted(map(str, unknown)))}")
        return TypeAdapter(Checked).validate_python(values)


GUESSED = (
    "kind={kind} was guessed from the names of the arguments, and a guess accuses "
    "nobody: if that is what the mechanism takes, say "
    "kind={kind}, else another"
)


def _verdict(
    found: ExaminationResult,
    stated: CheckedClaim,
    undecided: Sequence[str],
    conditions: Sequence[str],
) -> str:
    if found.is_refuted and not stated.kind_is_guessed:
        return BREAKS
    if undecided:
        return UNDECIDED
    return CONDITIONS if conditions else KEEPS


def conclude_check(
    name: str, stated: CheckedClaim, found: ExaminationResult, **spent: Any
) -> Checked:
    """The verdict of an examination; spent: its confidence, calls and seconds."""
    conditions = tuple(look.says for look in found.looks if look.outcome == "condition")
    bounds = [look for look in found.looks if look.outcome in ("refuted", "not refuted")]
    free = [look.epsilon for look in bounds if look.strength not in ("noise_law", "declared")]
    undecided = tuple(found.undecided)
    if found.is_refuted and stated.kind_is_guessed:
        undecided = (GUESSED.format(kind=stated.kind),)
    return Checked(
        name,
        stated,
        verdict=_verdict(found, stated, undecided, conditions),
        certified=max((look.epsilon for look in bounds), default=0.0),
        certified_any=max(free, default=0.0),
        kappa=found.kappa,
        about=found.about,
        law=found.law,
        worst=found.worst,
        looks=tuple(found.looks),
        notes=tuple(found.notes),
        conditions=conditions,
        undecided=undecided,
        exact=found.exact,
        **spent,
    )


UNITS = {
    "update": "update",
    "aggregate": "client",
    "records": "record",
}  # kind of mechanism -> whose data may change
NO_RECORDS = "a check calls a mechanism, and looks at no records and no surfaces"


def read_check(folder: Path) -> Checked | None:
    """What ``privdd.check ... out=FOLDER`` found; None for a folder of anything else. Raises
    DamagedRun, one line."""
    found = read_json(folder / "findings.json")
    if not isinstance(found, dict) or "mechanism" not in found:
        return None
    try:
        return Checked.from_json(found)
    except ValueError as error:
        said = " ".join(str(error).split())[:200]
        raise DamagedRun(f"{folder / 'findings.json'}: not what a check writes: {said}") from None


def judge_check(policy: Policy, found: Checked) -> list[LimitResult]:
    """The outcome of every limit that the policy sets; where none of them applies to a check, none
    is decided."""
    stated = found.stated
    results = list[LimitResult]()
    terms = f"delta {stated.delta:g}, one {UNITS[stated.kind]}, {stated.relation}"
    if (limit := policy.epsilon_proven) is not None:
        broken = stated.epsilon > limit or found.refuted
        text = "refuted" if found.refuted else "a check proves no upper bound"
        line = f"{stated.epsilon:g} is stated ({terms}), {text}; limit {limit:g}"
        results.append(
            LimitResult("epsilon_proven", "broken" if broken else "does not apply", line)
        )
    if (limit := policy.epsilon_shown) is not None:
        outcome: Outcome = (
            "broken"
            if found.certified > limit
            else "not decided"
            if found.is_undecided
            else "holds"
        )
        line = (
            f"shown at least {found.certified:.4g} ({terms}) at confidence "
            f"{found.confidence:g}; limit {limit:g}"
        )
        results.append(LimitResult("epsilon_shown", outcome, line))
    if policy.verdicts:
        verdict = (
            "contradiction" if found.refuted else "untested" if found.is_undecided else "consistent"
        )
        missed: Outcome = "not decided" if verdict == "untested" else "broken"
        line = (
            f"{found.mechanism} is {verdict} ({found.verdict}); allowed: "
            f"{', '.join(policy.verdicts)}"
        )
        results.append(
            LimitResult("verdicts", "holds" if verdict in policy.verdicts else missed, line)
        )
    of_records = [f"tpr_at_fpr.{rate:g}" for rate in policy.tpr_at_fpr]
    of_records += [
        name
        for name in ("auc", "identified_records", "psnr_gain")
        if getattr(policy, name) is not None
    ]
    of_records += [f"attacked.{surface}" for surface in policy.attacked]
    results += [LimitResult(name, "does not apply", NO_RECORDS) for name in of_records]
    if all(one.outcome == "does not apply" for one in results):
        return [replace(one, outcome="not decided") for one in results]
    return results


TONES = {BREAKS: "contradiction", KEEPS: "consistent", UNDECIDED: "untested"}


def write_check_page(result: Checked, folder: Path) -> Path:
    """``findings.json``, ``check.html`` and, of a refuted statement, ``reproduce.py`` in ``folder``
    -> the page."""
    from privdd.reporting.page import template_environment

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "findings.json", result.as_json())
    title = _page_title(result)
    template = template_environment().get_template("check.html.jinja")
    page = template.render(
        c=result, tone=TONES.get(result.verdict, "unprotected"), strengths=WORDS, title=title
    )
    write_bytes(folder / "check.html", page.encode())
    write_reproduction(result, folder)
    return folder / "check.html"


def _page_title(result: Checked) -> str:
    stated = (
        f"the stated epsilon {result.stated.epsilon:.4g} at delta "
        f"{plain_number(result.stated.delta)}"
    )
    if result.refuted:
        return f"T{stated[1:]} is refuted"
    if result.is_undecided:
        return f"Not decided: {stated}"
    return f"Nothing found refutes {stated}"


EMPTY_CASE = 'json.loads(r"""{}""")'
MOST_CALLS = 300
MOST = 200_000  # numbers of both inputs: more are no file to read


def describe_case(
    found: Checked,
    place: str,
    torch: bool,
    arguments: Mapping[str, Any],
    example: tuple[str, Sequence[Data], Sequence[Data]] | None,
) -> dict[str, Any] | None:
    """What ``counterexample`` is told; None without an example (words, calls with the record,
    without it), or too large for a file."""
    if example is None or len(example[1]) > MOST_CALLS:
        return None
    stated, (words, present, absent) = found.stated, example
    case = {
        "mechanism": place,
        "kind": stated.kind,
        "relation": stated.relation,
        "epsilon": stated.epsilon_by_law(found.law),
        "delta": stated.delta,
        "law": found.law,
        "inputs": words,
        "torch": torch,
        "arguments": dict(arguments),
        "present": [_plain_data(one) for one in present],
        "absent": [_plain_data(one) for one in absent],
    }
    try:
        small = (
            sum(
                json.dumps(case[side], allow_nan=False).count(",") for side in ("present", "absent")
            )
            < MOST
        )
        json.dumps(case["arguments"])
    except (TypeError, ValueError):
        return None
    return case if small else None


def _plain_data(data: Any) -> Any:
    if isinstance(data, np.ndarray):
        return {"shape": list(data.shape), "values": data.ravel().tolist()}
    return (
        [_plain_data(part) for part in data]
        if isinstance(data, list | tuple)
        else to_plain_json(data)
    )


def write_reproduction(found: Checked, folder: Path) -> Path | None:
    """``folder/reproduce.py``; None where the check holds no case that could be shown."""
    if found.case is None:
        return None
    case = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.case.items()
    )
    text = inspect.getsource(counterexample).replace(
        EMPTY_CASE, f'json.loads(r"""{{\n{case}\n}}""")', 1
    )
    write_bytes(folder / "reproduce.py", text.encode())
    return folder / "reproduce.py"
