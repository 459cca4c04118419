"""All planted faults, with names of their own or at points of a grid that a seed draws; one run with a fault planted in it, or
without one, audited as usual; and the outcomes counted, as a table and as a file that can be gone on with.

A point of the grid is called what:kind/round/call/client/numbers (``FaultScope``), so that one can be planted again.
"""

from __future__ import annotations

import io
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attacks.types import Adversary, Attack, Evidence, Family, Finding, Surface, Truth, View
from privdd.auditing.coverage import untested_parts
from privdd.auditing.dp_tests import guarantee_findings
from privdd.auditing.findings import findings_json
from privdd.auditing.method_contract import BrokenContract, check_method
from privdd.auditing.pipeline import audit_error_budget, audit_experiment, membership_game_of
from privdd.auditing.replay import restore_memories
from privdd.auditing.verdicts import refutes_limit
from privdd.auditing.views import FinishedRun
from privdd.core.rng import Keys
from privdd.core.validation import BadConfig
from privdd.federated.experiment import Experiment
from privdd.federated.noise_log import NoiseLog
from privdd.federated.trainer import Trainer
from privdd.runtime.engine import torch_threads
from privdd.runtime.files import read_json, write_json
from privdd.runtime.run_folder import RunFolder
from privdd.selftest_faults.client_faults import (
    DATA_KINDS,
    DECISION_FAULTS,
    FORM_KINDS,
    MEMORY_KINDS,
    WIRE_FAULTS,
    WIRE_KINDS,
)
from privdd.selftest_faults.fault import (
    PROFILE_TRAITS,
    SCOPE_AXES,
    Fault,
    FaultKind,
    FaultMoment,
    FaultProfile,
    FaultScope,
)
from privdd.selftest_faults.mechanism_faults import ACCOUNTING_FAULTS, CLIP_KINDS, CLIPPING_FAULTS, CONTRIBUTION_KINDS
from privdd.selftest_faults.noise_faults import NOISE_FAULTS, NOISE_KINDS, SAMPLE_KINDS, SAMPLING_FAULTS
from privdd.verification.file_checks import check_sent_values

FAULT_GROUPS: Mapping[str, tuple[Fault, ...]] = {
    "noise": NOISE_FAULTS,
    "sampling": SAMPLING_FAULTS,
    "clipping and contributions": CLIPPING_FAULTS,
    "accounting": ACCOUNTING_FAULTS,
    "what travels": WIRE_FAULTS,
    "decisions": DECISION_FAULTS,
}
NAMED_FAULTS: Mapping[str, Fault] = {fault.key: fault for group in FAULT_GROUPS.values() for fault in group}
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


def fault_at_point(key: str) -> Fault | None:
    """The fault that a point of the grid is; None for a name of another form, or of a point that is not there."""
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
    rounds = next((SCOPE_AXES[axis] for axis in ("start", "round") if axis in kind.axes), SCOPE_AXES["round"][:1])
    return [
        rounds,
        *(SCOPE_AXES[axis] if axis in kind.axes else SCOPE_AXES[axis][:1] for axis in ("call", "client", "numbers")),
    ]


def draw_faults(seed: int, count: int, profiles: Sequence[FaultProfile]) -> list[tuple[FaultProfile, Fault]]:
    """Different points of the grid, each in a profile that has the part: what, kind, place and profile, one after the other."""
    rng, found = Keys(seed).fold("selftest").numpy(), dict[str, tuple[FaultProfile, Fault]]()
    axes = np.array([max(len(kind.axes) for kind in kinds.values()) for kinds in FAULT_GRID.values()])
    for _ in range(100 * count if profiles else 0):
        if len(found) == count:
            break
        what = str(rng.choice(list(FAULT_GRID), p=axes / axes.sum()))  # the more, the more ways there are
        name = str(rng.choice(list(FAULT_GRID[what])))
        place = [str(rng.choice(allowed)) for allowed in _allowed_values(FAULT_GRID[what][name])]
        fault = fault_at_point(f"{what}:{name}/{'/'.join(place)}")
        fitting = [p for p in profiles if fault and not fault.not_applicable(p)]
        if fault and fitting:
            found.setdefault(fault.key, (fitting[int(rng.integers(len(fitting)))], fault))
    return list(found.values())


def select_faults(names: str) -> list[Fault]:
    """The faults of "all" (that have a name), "none" or "drawn", or of names and grid points separated by commas. Raises BadConfig
    for one that is not there."""
    wanted = list(NAMED_FAULTS) if names == "all" else [] if names in ("none", DRAWN_NAME) else names.split(",")
    found = {name: NAMED_FAULTS.get(name) or fault_at_point(name) for name in wanted}
    unknown = sorted(name for name, fault in found.items() if fault is None)
    if unknown:
        raise BadConfig(f"fault={','.join(unknown)}: allowed are all, none, {DRAWN_NAME}, {', '.join(NAMED_FAULTS)}")
    return [fault for fault in found.values() if fault is not None]


WIRE_TIER, METHOD_TIER, REFUSED_TIER = "wire", "method check", "refused"
CONTRADICTION_VERDICT, UNTESTED_VERDICT = "contradiction", "untested"
TOO_SMALL = "too small"  # a fault that was hardly in force, or not at all, and that nothing saw


@dataclass(frozen=True)
class IdleAttack(Attack):
    """Reads every surface and finds nothing, at no cost: what is tested here are guarantees."""

    family: Family = Family.RECONSTRUCTION
    surfaces: frozenset[Surface] = frozenset(Surface)
    adversaries: frozenset[Adversary] = frozenset(Adversary)

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        return Evidence()

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        return Finding(view.surface, "idle", self.family, view.adversary, {"identified": 0.0})


@dataclass(frozen=True)
class TrialOutcome:
    """verdict: the audit's, or ``TOO_SMALL``; tiers: which tests say that something is wrong; says: the first of them, in words;
    error: of a run that broke down in a way that no check foresees (it catches nothing); touched: how often the fault was
    in force, where its plant counts that, -1 elsewhere."""

    fault: str
    profile: str
    seed: int
    verdict: str = ""
    tiers: tuple[str, ...] = ()
    says: str = ""
    error: str = ""
    seconds: float = 0.0
    touched: int = -1

    @property
    def is_caught(self) -> bool:
        return bool(self.tiers)

    @property
    def is_as_expected(self) -> bool:
        """A planted fault is caught; a healthy run is consistent."""
        return self.is_caught if self.fault else not self.is_caught and not self.error and self.verdict == "consistent"


def run_trial(profile: FaultProfile, fault: Fault | None, seed: int) -> TrialOutcome:
    """Train and audit in a folder that is deleted afterwards. The fault is in force all the time, in this process."""
    began, name = time.monotonic(), fault.key if fault else ""
    more = (*fault.settings, *profile.settings_for_rounds(fault.rounds)) if fault else ()
    verdict, said, error = "", list[tuple[str, str]](), ""
    with (
        tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()), warnings.catch_warnings(),
        fault.plant() if fault else nullcontext() as moment,
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        try:
            verdict, said = _audit_trial(profile.build_experiment(seed, *more), Path(folder), fault is None)
        except Exception as problem:  # where it names no fault, the plant broke the run; that is no detection
            text = " ".join(str(problem).split())
            if fault and fault.refusal and fault.refusal in text:
                verdict, said = REFUSED_TIER, [(REFUSED_TIER, text)]
            else:
                verdict, error = "error", f"{type(problem).__name__}: {text}"[:300]
    touched = moment.touched if isinstance(moment, FaultMoment) else -1
    if fault and not said and not error and -1 < touched < fault.least:
        verdict = TOO_SMALL
    tiers = tuple(dict.fromkeys(tier for tier, _ in said))
    seconds = round(time.monotonic() - began, 1)
    says = said[0][1][:300] if said else ""
    return TrialOutcome(name, profile.name, seed, verdict, tiers, says, error, seconds, touched)


def _audit_trial(experiment: Experiment, folder: Path, healthy: bool) -> tuple[str, list[tuple[str, str]]]:
    """(verdict, (tier, note) of what is wrong). Of a faulty run tests are made until one says so, cheap ones first."""
    if healthy:
        found = audit_experiment(experiment, {"idle": IdleAttack()}, RunFolder(folder))
        said = [*filter(None, map(_contradicting_note, found.findings))]
        ledger = found.finished_run.progress.ledger
        said += [(WIRE_TIER, str(error)) for error in check_sent_values(folder, ledger)]
        return findings_json(found)["verdict"], said or _method_errors(experiment)
    run = _train_run(experiment, folder)
    ledger = run.progress.ledger
    made: list[Finding] = []
    if wire := list(check_sent_values(folder, ledger)):
        return CONTRADICTION_VERDICT, [(WIRE_TIER, str(wire[0]))]
    for finding in guarantee_findings(run, audit_error_budget(experiment, 0).confidence):
        made.append(finding)
        if wrong := _contradicting_note(finding):
            return CONTRADICTION_VERDICT, [wrong]
    told = _method_errors(experiment)
    surfaces = {row.surface for row in ledger.releases if row.visible_to != ("analyst",)}
    missing = any(untested_parts(ledger, surface, made) for surface in surfaces)
    return UNTESTED_VERDICT if missing else "consistent", told


def _train_run(experiment: Experiment, folder: Path) -> FinishedRun:
    """A finished run as the guarantee tests see it: what ``privdd.auditing.pipeline.audit_experiment`` does before it attacks."""
    plan, game, record = experiment.plan, membership_game_of(experiment), NoiseLog(experiment.plan.victim)
    shards = list(experiment.shards)
    shards[plan.victim] = game.shard_of_replay(shards[plan.victim], 0)
    trainer = Trainer(
        plan, shards, experiment.test_records, experiment.engine, RunFolder(folder), experiment.new_ledger(), experiment.capture,
        record=record,
    )  # fmt: skip
    progress = trainer.run()
    with torch_threads(experiment.engine.threads):
        progress = restore_memories(plan, progress, shards[plan.victim])
    return FinishedRun(experiment, progress, game, shards[plan.victim], record)


def _contradicting_note(finding: Finding) -> tuple[str, str] | None:
    """(tier, note) of a guarantee finding that is a contradiction."""
    if finding.family != Family.GUARANTEE or not refutes_limit(finding, None):
        return None
    tier, _, test = finding.attack.partition("_")
    return f"{tier.upper()} {test.replace('_', ' ')}", str(finding.measures.get("note", ""))


def _method_errors(experiment: Experiment) -> list[tuple[str, str]]:
    """``privdd.api.check_method`` on the run's own method and mechanisms."""
    plan = experiment.plan
    try:
        check_method(plan.method, mechanisms=plan.mechanisms, shape=plan.problem.shape, classes=plan.problem.classes)
    except BrokenContract as broken:
        return [(METHOD_TIER, str(broken).splitlines()[0])]
    return []


SCORE_SCHEMA = 2
MISSED_CELL, ERROR_CELL, ABSENT_CELL, UNTRIED_CELL = "MISSED", "ERROR", "–", ""


def outcome_word(outcome: TrialOutcome) -> str:
    """The text of a cell: the tier that caught the fault, or that none did."""
    if outcome.is_caught:
        return outcome.tiers[0]
    if outcome.error:
        return ERROR_CELL
    if outcome.verdict == TOO_SMALL:
        return f"{TOO_SMALL} ({outcome.touched})"
    return f"{MISSED_CELL} ({UNTESTED_VERDICT})" if outcome.verdict == UNTESTED_VERDICT else MISSED_CELL


def score_to_json(outcomes: Sequence[TrialOutcome]) -> dict[str, Any]:
    planted, healthy = split_outcomes(outcomes)
    score = {"planted": len(planted), "caught": sum(o.is_caught for o in planted)}
    controls = {"runs": len(healthy), "false_alarms": sum(not o.is_as_expected for o in healthy)}
    return {"schema": SCORE_SCHEMA, "score": score, "controls": controls, "trials": [asdict(o) for o in outcomes]}


def split_outcomes(outcomes: Iterable[TrialOutcome]) -> tuple[list[TrialOutcome], list[TrialOutcome]]:
    """(runs with a fault that was in force, healthy ones)."""
    made = list(outcomes)
    return [o for o in made if o.fault and o.verdict != TOO_SMALL], [o for o in made if not o.fault]


def save_outcomes(file: Path, outcomes: Sequence[TrialOutcome]) -> None:
    write_json(file, score_to_json(outcomes))


def load_outcomes(file: Path) -> list[TrialOutcome]:
    """The outcomes of an earlier self-test. Raises BadConfig for a file that is none of its own."""
    data = read_json(file)
    try:
        names = {f.name for f in fields(TrialOutcome)}
        if data["schema"] != SCORE_SCHEMA or any(set(trial) != names for trial in data["trials"]):
            raise ValueError("other fields")
        return [TrialOutcome(**{**trial, "tiers": tuple(trial["tiers"])}) for trial in data["trials"]]
    except (KeyError, TypeError, ValueError) as wrong:
        raise BadConfig(f"resume={file}: no results of a self-test ({wrong})") from None


def summarise_score(outcomes: Sequence[TrialOutcome]) -> str:
    """Two sentences: how many faults were caught, and how many healthy runs were contradicted."""
    planted, healthy = split_outcomes(outcomes)
    caught, wrong = sum(o.is_caught for o in planted), sum(not o.is_as_expected for o in healthy)
    kinds = len({o.fault for o in planted})
    text = f"{caught} of {len(planted)} planted faults caught ({kinds} kinds)" if planted else "no fault was planted"
    return f"{text}; {wrong} of {len(healthy)} healthy runs with a false alarm."


def format_score_table(
    outcomes: Sequence[TrialOutcome], faults: Sequence[Fault], profiles: Sequence[FaultProfile]
) -> Iterator[str]:
    """Lines of Markdown: one table for each group of faults, which also reads well as text."""
    cells: dict[tuple[str, str], list[TrialOutcome]] = {}
    for outcome in outcomes:
        cells.setdefault((outcome.fault, outcome.profile), []).append(outcome)
    for group, members in FAULT_GROUPS.items():
        shown = [fault for fault in members if fault in faults]
        if not shown:
            continue
        yield from ("", f"### Faults of {group}" if group != "what travels" else "### Faults of what travels", "")
        rows = [["fault", "what is wrong", *(p.name for p in profiles)]]
        rows += [[fault.key, fault.says, *(_cell_text(cells, fault, p) for p in profiles)] for fault in shown]
        yield from format_aligned_table(rows)
    yield from _format_grid_table([o for o in outcomes if o.fault and o.fault not in NAMED_FAULTS])


def _format_grid_table(outcomes: Sequence[TrialOutcome]) -> Iterator[str]:
    """Points of the grid, each where it was tried."""
    if outcomes:
        yield from ("", "### Points of the grid", "", "Called what:kind/round/call/client/numbers.", "")
        found = [(o, fault_at_point(o.fault)) for o in outcomes]
        rows = [
            [o.fault, fault.says.partition(" (")[0] if fault else "", o.profile, outcome_word(o)] for o, fault in found
        ]
        yield from format_aligned_table([["fault", "what is wrong", "profile", "outcome"], *rows])


def _cell_text(cells: Mapping[tuple[str, str], list[TrialOutcome]], fault: Fault, profile: FaultProfile) -> str:
    if fault.not_applicable(profile):
        return ABSENT_CELL
    made = cells.get((fault.key, profile.name), [])
    words = sorted({outcome_word(o) for o in made}, key=lambda w: not w.startswith((MISSED_CELL, ERROR_CELL)))
    return ", ".join(words) or UNTRIED_CELL


def format_aligned_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table whose columns stand below each other."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
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
            yield f"{what}, {o.profile}, seed {o.seed}: {outcome_word(o) if o.fault else 'FALSE ALARM'}: {why}"


def format_score_page(
    outcomes: Sequence[TrialOutcome], faults: Sequence[Fault], profiles: Sequence[FaultProfile], command: str
) -> str:
    """The whole result as a page of Markdown."""
    healthy = split_outcomes(outcomes)[1]
    seeds = ", ".join(f"{p.name} {sum(o.profile == p.name for o in healthy)}" for p in profiles)
    lines = [
        "# Does the audit find planted faults?",
        "",
        f"Written by `{command}`; the numbers are of tiny runs, a few seconds each.",
        "",
        f"**{summarise_score(outcomes)}** Healthy runs: {seeds}.",
        "",
        "A cell names the first test that said that something is wrong, cheap ones first: the digests of what travelled",
        "(wire), the run's own ledger, noise and sampling (T0), sensitivity and presence (T1), likelihood ratios and whole",
        "runs (T2), transcripts and the accountant's curve (T3), `privdd.api.check_method` (method check); refused: the",
        f"run stopped with an error that names the fault. {MISSED_CELL}: nothing did; {TOO_SMALL} (n): nor did anything, and the fault was",
        f"in force on so few numbers, records or messages only (it does not count). {ABSENT_CELL}: the fault has no place there:",
        f"the profile {'; '.join(dict.fromkeys(PROFILE_TRAITS.values()))}. An empty cell was not run.",
        *format_score_table(outcomes, faults, profiles),
    ]
    wrong = list(unexpected_outcomes(outcomes))
    if wrong:
        lines += ["", "### What did not end as it should", "", *(f"- {line}" for line in wrong)]
    return "\n".join(lines) + "\n"
