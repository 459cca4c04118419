"""All planted faults, with names of their own or at points of a grid that a seed draws; one run
with a fault planted in it, or without one, audited as usual; and the outcomes counted, as a table
and as a file that can be gone on with.

A point of the grid is called what:kind/round/call/client/numbers (``FaultScope``), so that one can
be planted again."""

from __future__ import annotations

import io
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from privdd.auditing.dp_tests.interference_audit import INTERFERENCE_TEST
from privdd.auditing.method_contract import BrokenContract, check_method
from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.core.rng import Keys
from privdd.core.validation import BadConfig
from privdd.federated.experiment import Experiment
from privdd.privacy.ledger import Ledger
from privdd.runtime.files import SCHEMA, read_json, write_json
from privdd.runtime.run_folder import RunFolder
from privdd.selftest_faults.client_faults import (
    DATA_KINDS,
    DECISION_FAULTS,
    FORM_KINDS,
    MEMORY_KINDS,
    WIRE_FAULTS,
    WIRE_KINDS,
)
from privdd.selftest_faults.command_trial import CommandResult, run_audit_command
from privdd.selftest_faults.fault import (
    PROFILE_TRAITS,
    SCOPE_AXES,
    Fault,
    FaultKind,
    FaultMoment,
    FaultProfile,
    FaultScope,
)
from privdd.selftest_faults.mechanism_faults import (
    ACCOUNTING_FAULTS,
    CLIP_KINDS,
    CLIPPING_FAULTS,
    CONTRIBUTION_KINDS,
)
from privdd.selftest_faults.noise_faults import (
    NOISE_FAULTS,
    NOISE_KINDS,
    SAMPLE_KINDS,
    SAMPLING_FAULTS,
)
from privdd.verification.file_checks import check_sent_values

FAULT_GROUPS: Mapping[str, tuple[Fault, ...]] = {
    "noise": NOISE_FAULTS,
    "sampling": SAMPLING_FAULTS,
    "clipping and contributions": CLIPPING_FAULTS,
    "accounting": ACCOUNTING_FAULTS,
    "what travels": WIRE_FAULTS,
    "decisions": DECISION_FAULTS,
}
NAMED_FAULTS: Mapping[str, Fault] = {
    fault.key: fault for fault in chain.from_iterable(FAULT_GROUPS.values())
}
FAULT_GRID: Mapping[str, Mapping[str, FaultKind]] = {
    "noise": NOISE_KINDS,
    "sample": SAMPLE_KINDS,
    "clip": CLIP_KINDS,
    "contribution": CONTRIBUTION_KINDS,
    "memory": MEMORY_KINDS,
    "wire": WIRE_KINDS,
    "data": DATA_KINDS,
    "form": FORM_KINDS,
}
DRAWN_NAME = "drawn"
WIRE_TIER = "wire"
METHOD_TIER = "method check"
MESSAGES_TIER = "T1 messages"
REFUSED_TIER = "refused"
UNTESTED_VERDICT = "untested"
ERROR_PREFIX = "privdd: error: "  # of the command's last line
TOO_SMALL = "too small"  # a fault that was hardly in force, or not at all, and that nothing saw
# The faults by which any verdict is checked, and settings as small as they still show in.
NOISE_PLANTS: Mapping[str, str] = {
    "no noise": "noise:missing/all/every/all/all",
    "half the noise": "noise:half/all/every/all/all",
}
SMALLEST_RUN = ("data.limit=60", "data.test_limit=20", "partition.clients=2", "audit.records=8")
MISSED_CELL = "MISSED"
ERROR_CELL = "ERROR"
ABSENT_CELL = "–"
UNTRIED_CELL = ""


def fault_at_point(key: str) -> Fault | None:
    """The fault that a point of the grid is; None for a name of another form, or of a point that is
    not there."""
    what, _, rest = key.partition(":")
    name, *place = rest.split("/")
    kind = FAULT_GRID.get(what, {}).get(name)
    if kind is None or len(place) != 4:
        return None
    if any(value not in allowed for value, allowed in zip(place, _allowed_values(kind))):
        return None
    return kind.fault_at(key, FaultScope(*place))


def _allowed_values(kind: FaultKind) -> list[tuple[str, ...]]:
    """The values that each part of a kind's place can have."""
    rounds = next(
        (SCOPE_AXES[axis] for axis in ("start", "round") if axis in kind.axes),
        SCOPE_AXES["round"][:1],
    )
    return [
        rounds,
        *(
            SCOPE_AXES[axis] if axis in kind.axes else SCOPE_AXES[axis][:1]
            for axis in ("call", "client", "numbers")
        ),
    ]


def _axes_count(kinds: Mapping[str, FaultKind]) -> int:
    """How many ways the kind with most of them can be changed in."""
    return max(len(kind.axes) for kind in kinds.values())


def draw_faults(
    seed: int, count: int, profiles: Sequence[FaultProfile]
) -> list[tuple[FaultProfile, Fault]]:
    """Different points of the grid, each in a profile that has the part: what, kind, place and
    profile, one after the other."""
    rng = Keys(seed).fold("selftest").numpy()
    faults = dict[str, tuple[FaultProfile, Fault]]()
    axes = np.array([_axes_count(kinds) for kinds in FAULT_GRID.values()])
    for _ in range(100 * count if profiles else 0):
        if len(faults) == count:
            break
        # the more, the more ways there are
        what = str(rng.choice(list(FAULT_GRID), p=axes / axes.sum()))
        name = str(rng.choice(list(FAULT_GRID[what])))
        place = [str(rng.choice(allowed)) for allowed in _allowed_values(FAULT_GRID[what][name])]
        fault = fault_at_point(f"{what}:{name}/{'/'.join(place)}")
        fitting = [p for p in profiles if fault and not fault.not_applicable(p)]
        if fault and fitting:
            faults.setdefault(fault.key, (fitting[int(rng.integers(len(fitting)))], fault))
    return list(faults.values())


def select_faults(names: str) -> list[Fault]:
    """The faults of "all" (that have a name), "none" or "drawn", or of names and grid points
    separated by commas. Raises BadConfig for one that is not there."""
    if names == "all":
        wanted = list(NAMED_FAULTS)
    elif names in ("none", DRAWN_NAME):
        wanted = []
    else:
        wanted = names.split(",")
    selected = {name: NAMED_FAULTS.get(name) or fault_at_point(name) for name in wanted}
    unknown = sorted(name for name, fault in selected.items() if fault is None)
    if unknown:
        raise BadConfig(
            f"fault={','.join(unknown)}: allowed are all, none, {DRAWN_NAME}, "
            f"{', '.join(NAMED_FAULTS)}"
        )
    return [fault for fault in selected.values() if fault is not None]


@dataclass(frozen=True)
class TrialOutcome:
    """verdict: the audit's, or ``TOO_SMALL``; tiers: what says that something is wrong, the tests
    as the page lists them; says: the first of them, in words; error: of a run that broke down in a
    way that no check foresees (it catches nothing);
    touched: how often the fault was in force, where its plant counts that, -1 elsewhere; status:
        the command's exit status;
    first_line: of its terminal; surfaces: "surface (sender)" -> verdict."""

    fault: str
    profile: str
    seed: int
    verdict: str = ""
    tiers: tuple[str, ...] = ()
    says: str = ""
    error: str = ""
    seconds: float = 0.0
    touched: int = -1
    status: int = 0
    first_line: str = ""
    surfaces: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_caught(self) -> bool:
        return bool(self.tiers)

    @property
    def is_as_expected(self) -> bool:
        """A planted fault is caught; a healthy run is consistent."""
        if self.fault:
            return self.is_caught
        return not self.is_caught and not self.error and self.verdict == "consistent"


def run_trial(profile: FaultProfile, fault: Fault | None, seed: int) -> TrialOutcome:
    """One audit by the command, in a folder that is deleted afterwards, judged by what a person
    gets of it. The fault is in force all the time, in this process."""
    began = time.monotonic()
    name = ""
    settings: tuple[str, ...] = ()
    plant: AbstractContextManager[Any] = nullcontext()
    if fault:
        name = fault.key
        settings = (*fault.settings, *profile.settings_for_rounds(fault.rounds))
        plant = fault.plant()
    plan = TrialPlan(profile, fault, tuple(profile.settings_of_run(seed, *settings)))
    with (
        tempfile.TemporaryDirectory() as folder,
        redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
        plant as moment,
    ):
        warnings.simplefilter("ignore")
        try:
            outcome = plan.judge(run_audit_command(Path(folder) / "run", plan.settings))
        except Exception as problem:  # the plant broke the run; that is no detection
            error = f"{type(problem).__name__}: {' '.join(str(problem).split())}"[:300]
            outcome = TrialOutcome(name, profile.name, seed, "error", error=error)
    if isinstance(moment, FaultMoment):
        touched = moment.touched
    else:
        touched = -1
    verdict = outcome.verdict
    if fault and not outcome.is_caught and not outcome.error and -1 < touched < fault.least:
        verdict = TOO_SMALL
    seconds = round(time.monotonic() - began, 1)
    return replace(outcome, seed=seed, verdict=verdict, seconds=seconds, touched=touched)


@dataclass(frozen=True)
class TrialPlan:
    """One run of a profile: the fault in it (None: healthy), and the settings of its command
    line."""

    profile: FaultProfile
    fault: Fault | None
    settings: tuple[str, ...]

    def judge(self, result: CommandResult) -> TrialOutcome:
        """The outcome, by exit status, verdicts and first line; of a run that the audit does not
        contradict, also by what travelled and by ``check_method``."""
        noticed = list[tuple[str, str]]()
        error = ""
        verdict = str(result.verdict)
        if result.folder is None:
            text = result.error.removeprefix(ERROR_PREFIX)
            is_refused = bool(self.fault and self.fault.refusal and self.fault.refusal in text)
            if is_refused:
                verdict = REFUSED_TIER
                noticed = [(REFUSED_TIER, text)]
            else:
                verdict = "error"
                error = text[:300]
        elif result.disagreement:
            error = f"the outputs differ: {result.disagreement}"
        elif result.is_contradicted:
            noticed = [(_tier_of_test(test), note) for test, _, note in result.refuting]
        else:
            noticed = self._find_other_errors(result.folder)
        return TrialOutcome(
            self.fault.key if self.fault else "",
            self.profile.name,
            0,
            verdict,
            tuple(dict.fromkeys(tier for tier, _ in noticed)),
            noticed[0][1][:300] if noticed else "",
            error,
            status=result.status,
            first_line=result.first_line,
            surfaces=result.surfaces,
        )

    def _find_other_errors(self, folder: Path) -> list[tuple[str, str]]:
        """(tier, note) of what other commands than the audit see of a run."""
        ledger = Ledger.from_json(read_json(RunFolder(folder).ledger_file))
        wire = [(WIRE_TIER, str(error)) for error in check_sent_values(folder, ledger)]
        return wire or _method_errors(build_experiment(compose_config("audit", self.settings)))


def audit_with_plant(profile: FaultProfile, plant: str, folder: Path) -> CommandResult:
    """The smallest audit of a profile by the command, with one of ``NOISE_PLANTS`` in force; plant:
    "" for none."""
    settings = (*profile.settings_of_run(0), *SMALLEST_RUN)
    if not plant:
        return run_audit_command(folder, settings)
    (fault,) = select_faults(NOISE_PLANTS[plant])
    with fault.plant():
        return run_audit_command(folder, settings)


def _tier_of_test(test: str) -> str:
    """t1_sensitivity -> "T1 sensitivity"."""
    if test == INTERFERENCE_TEST:
        return MESSAGES_TIER
    tier, _, name = test.partition("_")
    return f"{tier.upper()} {name.replace('_', ' ')}"


def _method_errors(experiment: Experiment) -> list[tuple[str, str]]:
    """``privdd.api.check_method`` on the run's own method and mechanisms."""
    plan = experiment.plan
    try:
        check_method(
            plan.method,
            mechanisms=plan.mechanisms,
            shape=plan.problem.shape,
            classes=plan.problem.classes,
        )
    except BrokenContract as broken:
        return [(METHOD_TIER, str(broken).splitlines()[0])]
    return []


def outcome_word(outcome: TrialOutcome) -> str:
    """The text of a cell: the tier that caught the fault, or that none did."""
    if outcome.is_caught:
        return outcome.tiers[0]
    if outcome.error:
        return ERROR_CELL
    if outcome.verdict == TOO_SMALL:
        return f"{TOO_SMALL} ({outcome.touched})"
    if outcome.verdict == UNTESTED_VERDICT:
        return f"{MISSED_CELL} ({UNTESTED_VERDICT})"
    return MISSED_CELL


def score_to_json(outcomes: Sequence[TrialOutcome]) -> dict[str, Any]:
    planted, healthy = split_outcomes(outcomes)
    score = {"planted": len(planted), "caught": sum(o.is_caught for o in planted)}
    controls = {"runs": len(healthy), "false_alarms": sum(not o.is_as_expected for o in healthy)}
    return {
        "schema": SCHEMA,
        "score": score,
        "controls": controls,
        "trials": [asdict(o) for o in outcomes],
    }


def split_outcomes(
    outcomes: Iterable[TrialOutcome],
) -> tuple[list[TrialOutcome], list[TrialOutcome]]:
    """(runs with a fault that was in force, healthy ones)."""
    judged = list(outcomes)
    return [o for o in judged if o.fault and o.verdict != TOO_SMALL], [
        o for o in judged if not o.fault
    ]


def save_outcomes(file: Path, outcomes: Sequence[TrialOutcome]) -> None:
    write_json(file, score_to_json(outcomes))


def load_outcomes(file: Path) -> list[TrialOutcome]:
    """The outcomes of an earlier self-test. Raises BadConfig for a file that is none of its own."""
    data = read_json(file)
    try:
        names = {f.name for f in fields(TrialOutcome)}
        if data["schema"] != SCHEMA or any(set(trial) != names for trial in data["trials"]):
            raise ValueError("other fields")
        return [
            TrialOutcome(**{**trial, "tiers": tuple(trial["tiers"])}) for trial in data["trials"]
        ]
    except (KeyError, TypeError, ValueError) as wrong:
        raise BadConfig(f"resume={file}: no results of a self-test ({wrong})") from None


def summarise_score(outcomes: Sequence[TrialOutcome]) -> str:
    """Two sentences: how many faults were caught, and how many healthy runs were contradicted."""
    planted, healthy = split_outcomes(outcomes)
    caught = sum(o.is_caught for o in planted)
    wrong = sum(not o.is_as_expected for o in healthy)
    kinds = len({o.fault for o in planted})
    if planted:
        text = f"{caught} of {len(planted)} planted faults caught ({kinds} kinds)"
    else:
        text = "no fault was planted"
    return f"{text}; {wrong} of {len(healthy)} healthy runs with a false alarm."


def format_score_table(
    outcomes: Sequence[TrialOutcome], faults: Sequence[Fault], profiles: Sequence[FaultProfile]
) -> Iterator[str]:
    """Lines of Markdown: one table for each group of faults, which also reads well as text."""
    cells: dict[tuple[str, str], list[TrialOutcome]] = {}
    for outcome in outcomes:
        cells.setdefault((outcome.fault, outcome.profile), []).append(outcome)
    for group, members in FAULT_GROUPS.items():
        listed = [fault for fault in members if fault in faults]
        if not listed:
            continue
        yield from ("", f"### Faults of {group}", "")
        rows = [["fault", "defect", *(p.name for p in profiles)]]
        for fault in listed:
            texts = [_cell_text(cells, fault, profile) for profile in profiles]
            rows.append([fault.key, fault.says, *texts])
        yield from format_aligned_table(rows)
    yield from _format_grid_table([o for o in outcomes if o.fault and o.fault not in NAMED_FAULTS])


def _format_grid_table(outcomes: Sequence[TrialOutcome]) -> Iterator[str]:
    """Points of the grid, each where it was tried."""
    if outcomes:
        yield from (
            "",
            "### Points of the grid",
            "",
            "Called what:kind/round/call/client/numbers.",
            "",
        )
        rows = [["fault", "defect", "profile", "outcome"]]
        for o in outcomes:
            fault = fault_at_point(o.fault)
            defect = fault.says.partition(" (")[0] if fault else ""
            rows.append([o.fault, defect, o.profile, outcome_word(o)])
        yield from format_aligned_table(rows)


def _cell_text(
    cells: Mapping[tuple[str, str], list[TrialOutcome]], fault: Fault, profile: FaultProfile
) -> str:
    if fault.not_applicable(profile):
        return ABSENT_CELL
    outcomes = cells.get((fault.key, profile.name), [])
    words = sorted(
        {outcome_word(o) for o in outcomes},
        key=lambda w: not w.startswith((MISSED_CELL, ERROR_CELL)),
    )
    return ", ".join(words) or UNTRIED_CELL


def format_aligned_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table whose columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        yield f"| {' | '.join(text.ljust(width) for text, width in zip(row, widths))} |"
        if not number:
            yield f"|{'|'.join('-' * (width + 2) for width in widths)}|"


def unexpected_outcomes(outcomes: Sequence[TrialOutcome]) -> Iterator[str]:
    """One line for each trial that did not end as it should."""
    for o in outcomes:
        if not o.is_as_expected and o.verdict != TOO_SMALL:
            what = o.fault or "healthy run"
            why = o.error or o.says or f"verdict {o.verdict}"
            word = "FALSE ALARM"
            if o.fault:
                word = outcome_word(o)
            yield f"{what}, {o.profile}, seed {o.seed}: {word}: {why}"


def format_score_page(
    outcomes: Sequence[TrialOutcome],
    faults: Sequence[Fault],
    profiles: Sequence[FaultProfile],
    command: str,
) -> str:
    """The whole result as a page of Markdown."""
    healthy = split_outcomes(outcomes)[1]
    runs = Counter(outcome.profile for outcome in healthy)
    seeds = ", ".join(f"{profile.name} {runs[profile.name]}" for profile in profiles)
    lines = [
        "# Does the audit find planted faults?",
        "",
        f"Written by `{command}`; the numbers are of tiny runs, a few seconds each.",
        "",
        f"**{summarise_score(outcomes)}** Healthy runs: {seeds}.",
        "",
        "Each run is an audit by the command, judged by its outputs: a fault is caught "
        "if the exit status is 2,",
        "the first line says that a guarantee does not hold, and the verdicts of run, "
        "surfaces and findings say so too. A cell has",
        "the first test that refuted, in the page's order: the run's own ledger, noise "
        "and sampling (T0), sensitivity, presence",
        "and messages (T1), likelihood ratios and whole runs (T2), transcripts and the "
        "accountant's curve (T3). Of a run that the",
        "audit does not contradict, the digests of what travelled (wire, "
        "`privdd.verify`) and `privdd.api.check_method` (method",
        "check) are asked as well; refused: the run stopped with an error about the fault.",
        f"{MISSED_CELL}: nothing did; {TOO_SMALL} (n): nor did anything, and the fault was",
        "in force on so few numbers, records or messages only (it does not count). "
        f"{ABSENT_CELL}: the fault has no place there:",
        f"the profile {'; '.join(dict.fromkeys(PROFILE_TRAITS.values()))}. An empty cell "
        "was not run.",
        *format_score_table(outcomes, faults, profiles),
    ]
    wrong = list(unexpected_outcomes(outcomes))
    if wrong:
        lines += ["", "### Unexpected outcomes", "", *(f"- {line}" for line in wrong)]
    return "\n".join(lines) + "\n"
