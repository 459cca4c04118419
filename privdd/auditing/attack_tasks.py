"""Attacks as tasks for an engine, and the error budget that all bounds of a run share.

Each attack has its own random stream, so that its result depends on nothing else. Jobs of one
attack that cost less together than one by one are one task.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from attacks.inversion.evaluation import empty_release_finding
from attacks.measures import MembershipMeasures
from attacks.membership.attack import unreadable_finding
from attacks.membership.measures import one_run_bound
from attacks.types import (
    Adversary,
    Attack,
    Evidence,
    Family,
    Finding,
    Surface,
    Truth,
    View,
    is_image,
)
from privdd import __version__
from privdd.auditing.coverage import is_applicable_to
from privdd.core.device import to_device
from privdd.core.rng import Keys
from privdd.reporting.run_record import AttackCommand, RunRecord, attack_commands, read_run_record
from privdd.reporting.schema import FindingRow, first_error_line
from privdd.runtime.engine import Engine
from privdd.runtime.files import DamagedRun, to_plain_json
from privdd.runtime.progress import show_progress
from privdd.runtime.run_folder import RunFolder, read_tensors, run_provenance, write_tensors
from privdd.runtime.seal import FILES_KEY, file_sha256

# ``1 - audit.confidence`` is the chance that any of a run's bounds contradicts a true statement. It
# is shared in equal parts (Bonferroni) by the bounds of membership attacks and of guarantee tests,
# which are counted before any is made.
TESTS_PER_MECHANISM = 6  # at most: two of T0 (noise, sampling), one of T2, three of T3
WHOLE_RUN_TESTS = 1  # T2 on all that the audited client sends, where there are mechanisms
CANARY_TESTS = 2  # of a game of canaries: a point, and the curve
ROWS_ARE_NO_IMAGES = "the attack reads images, and the records are rows of a table"
MAX_ERROR_TEXT = 300  # characters of an attack's error in its finding
ROW_FIGURES = frozenset({"real", "reconstructed", "guess"})  # of a table: rows of people
# families whose attacks start before all others, in this order
LONGEST_FIRST = (Family.GRADIENT_INVERSION, Family.MODEL_INVERSION, Family.RECONSTRUCTION)
# what an attack of these families costs, a membership attack costing 1: measured on digits
SEARCH_WORK = 30.0
ONE_RUN = "one_run_"  # how findings of a game of canaries are named
# keys of a row that are no measures
HEAD = {"surface", "attack", "family", "adversary", "message", "refutes"}


@dataclass(frozen=True)
class ErrorBudget:
    """alpha: chance of any false contradiction, in (0, 1); tests: how many bounds share it, at
    least one; replaced: how many of these were made by earlier commands, and others stand in their
    place."""

    alpha: float
    tests: int = 1
    replaced: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha={self.alpha}: a number in (0, 1) is needed")
        if self.tests < 1:
            raise ValueError(f"tests={self.tests}: at least 1 is needed")

    @property
    def confidence(self) -> float:
        """The confidence of each bound at which all of them hold together at 1 - alpha."""
        return 1 - self.alpha / self.tests

    def to_json(self) -> dict[str, float]:
        """``privacy.multiplicity`` of findings.json."""
        return {
            "alpha": self.alpha,
            "tests": self.tests,
            **({"replaced": self.replaced} if self.replaced else {}),
        }


def error_budget(
    confidence: float,
    membership: int,
    mechanisms: int,
    *,
    canaries: bool = False,
    replaced: int = 0,
) -> ErrorBudget:
    """How the bounds of a run share one error probability. confidence: of all together; membership:
    attacks of this family;
    mechanisms: those with guarantee tests; canaries: whether their game is played; replaced: as of
        ``ErrorBudget``."""
    alpha = round(1 - confidence, 12)  # 0.05 for 0.95, not 0.050000000000000044
    tests = (
        membership
        + TESTS_PER_MECHANISM * mechanisms
        + WHOLE_RUN_TESTS * (mechanisms > 0)
        + CANARY_TESTS * canaries
    )
    return ErrorBudget(alpha, max(1, tests + replaced), replaced)


@dataclass(frozen=True)
class AttackJob:
    """One attack on one view; note: where the view comes from, in words; remarks: what else a
    finding's note says of it."""

    view: View
    truth: Truth
    note: str
    name: str
    attack: Attack
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class AttackTerms:
    """Settings that all attacks of a run share. pictures: whether the most exposed records are
    kept; device: of attacks that can compute elsewhere than on the CPU."""

    keys: Keys
    delta: float
    budget: ErrorBudget
    pictures: bool = False
    device: str = "cpu"


@dataclass(frozen=True)
class AttackOutcome:
    """The outcome of one job; evidence_tensors: those of its evidence file."""

    finding: Finding
    evidence_tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class AttackTask:
    """Jobs of one attack. An attack that fails ends here: its finding says so, and the others go
    on."""

    jobs: tuple[AttackJob, ...]
    terms: AttackTerms

    def run(self) -> list[AttackOutcome]:
        """The outcome of each job, on the CPU."""
        if self.jobs[0].attack.on_gpu:
            task = replace(self, jobs=to_device(self.jobs, self.terms.device))
        else:
            task = self
        return task._run_jobs(self.jobs)

    def _run_jobs(self, jobs: Sequence[AttackJob]) -> list[AttackOutcome]:
        """jobs: the jobs on the CPU, where the bounds are computed and the evidence is kept."""
        streams = [
            attack_stream(self.terms.keys, job.name, job.view.surface, job.note)
            for job in self.jobs
        ]
        began = time.monotonic()
        refused = [_finding_without_attack(job) for job in self.jobs]
        open_jobs = [i for i, finding in enumerate(refused) if finding is None]
        evidence: dict[int, Evidence] = {}
        for i, result in zip(open_jobs, self._collect_evidence(open_jobs, streams)):
            if isinstance(result, Evidence):
                evidence[i] = result
            else:
                refused[i] = result
        spent = (time.monotonic() - began) / len(self.jobs)
        return [
            self._judge_job(i, jobs[i], refused[i], evidence.get(i, Evidence()), spent)
            for i in range(len(jobs))
        ]

    def _collect_evidence(
        self, rows: Sequence[int], streams: Sequence[torch.Generator]
    ) -> Sequence[Evidence | Finding]:
        """The evidence of each job, or the finding that it failed; jobs that fail together are
        tried one by one."""
        if not rows:
            return []
        jobs = [self.jobs[i] for i in rows]
        try:
            return jobs[0].attack.run_each([job.view for job in jobs], [streams[i] for i in rows])
        except Exception as error:
            if len(rows) == 1:
                return [_failed_finding(jobs[0], error)]
        fresh = [
            attack_stream(self.terms.keys, job.name, job.view.surface, job.note)
            for job in self.jobs
        ]
        return list(chain.from_iterable(self._collect_evidence([row], fresh) for row in rows))

    def _judge_job(
        self,
        position: int,
        job: AttackJob,
        refused: Finding | None,
        evidence: Evidence,
        spent: float,
    ) -> AttackOutcome:
        began = time.monotonic()
        try:
            finding, tensors = self._describe_evidence(position, job, refused, evidence)
        except Exception as error:
            finding, tensors = _failed_finding(job, error), {}
        finding = finding.with_measures(seconds=spent + time.monotonic() - began)
        named = replace(finding, attack=job.name, message=job.view.message)
        return AttackOutcome(named, tensors)

    def _describe_evidence(
        self, position: int, job: AttackJob, refused: Finding | None, evidence: Evidence
    ) -> tuple[Finding, dict[str, Tensor]]:
        """(the finding, the tensors of its evidence file), both on the CPU. Raises any error of the
        attack's own, and ValueError for what findings.json does not take."""
        job_on_device = self.jobs[position]
        finding = refused
        if finding is None:
            finding = job.attack.judge(evidence, job_on_device.view, job_on_device.truth)
            check_finding(finding, job.attack)
        finding, evidence = to_device((finding, evidence), "cpu")
        if finding.measures.status in ("nothing_to_read", "failed"):
            evidence = Evidence()
        if evidence.scores is not None and job.view.worlds is not None:
            _, seed = attack_seeds(self.terms.keys, job.name, job.view.surface, job.note)
            shown_alone = finding.measures.epsilon_shown
            bound = familywise_bound(
                evidence.scores, job.view, self.terms.delta, self.terms.budget, seed, shown_alone
            )
            finding = finding.with_diagnostics(**bound)
        if self.terms.pictures:
            records = exposed_records(finding, job.view)
        else:
            records = {}
            if not is_image(job.view.knowledge.shape):
                finding = replace(finding, figures=_without_rows(finding.figures))
        return finding, evidence_tensors(finding, evidence, job.view) | records


def _finding_without_attack(job: AttackJob) -> Finding | None:
    """A finding that nothing was sent or is there to be read, instead of an attack; None where
    there is."""
    try:
        if (finding := empty_release_finding(job.attack, job.view)) is not None:
            return finding
        if job.attack.images_only and not is_image(job.view.knowledge.shape):
            why = ROWS_ARE_NO_IMAGES
        else:
            why = job.attack.nothing_to_read(job.view)
    except Exception as error:
        return _failed_finding(job, error)
    if why:
        return unreadable_finding(job.attack, job.view, why)
    return None


def _failed_finding(job: AttackJob, error: Exception) -> Finding:
    """The finding of an attack that raised: no rate, so that nobody takes it for one that found
    nothing."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_ERROR_TEXT]
    measures = job.attack.family.measures(status="failed", note=f"failed: {text}")
    return Finding(job.view.surface, job.name, job.attack.family, job.view.adversary, measures)


def check_finding(finding: Finding, attack: Attack) -> None:
    """Check what an attack returned before anything is written: else a finding that findings.json
    does not take would end the audit.

    Raises:
        TypeError: it is no finding, or one of its figures is no tensor.
        ValueError: one line, for another family than the attack's, or a measure out of its range.
    """
    returned: object = finding
    if not isinstance(returned, Finding):
        raise TypeError(f"judge must return a Finding, not {type(returned).__name__}")
    if finding.family != attack.family:
        raise ValueError(f"judge returned a finding of {finding.family}, not of {attack.family}")
    for name, figure in finding.figures.items():
        if not isinstance(figure, Tensor):
            raise TypeError(f"figure {name!r} must be a tensor, not {type(figure).__name__}")
    head = {
        "surface": finding.surface,
        "attack": finding.attack,
        "family": finding.family,
        "adversary": finding.adversary,
    }
    try:
        FindingRow.model_validate(to_plain_json({**head, **finding.measures.to_row()}))
    except ValidationError as error:
        raise ValueError(first_error_line(error)) from None


def collect_attack_jobs(
    views: Iterable[tuple[View, Truth, str]],
    chosen: Iterable[tuple[View, Truth, str, str, Attack]],
    attacks: Mapping[str, Attack],
) -> list[AttackJob]:
    """Every attack on every view that it reads. views: each with its truth and note; chosen: with
    the attack that it is for."""
    jobs = []
    for view, truth, note in views:
        replays = 0 if view.worlds is None else len(view.worlds.masks)
        for name, attack in attacks.items():
            if is_applicable_to(attack, view.surface, view.adversary, replays):
                jobs.append(AttackJob(view, truth, note, name, attack))
    return jobs + [AttackJob(*arguments) for arguments in chosen]


def run_attacks(
    jobs: Sequence[AttackJob],
    terms: AttackTerms,
    engine: Engine,
    folder: Path,
    earlier: Mapping[str, Finding],
) -> list[Finding]:
    """The finding of each job, its evidence written into ``folder``. earlier: what is there
    already, by evidence file."""
    files = evidence_file_names(jobs)
    done_before = _found_before(jobs, files, terms, folder, earlier)
    fresh = [index for index in range(len(jobs)) if index not in done_before]
    tasks = group_attack_tasks([jobs[index] for index in fresh], terms)
    work = {index: _work_of(jobs[index]) for index in fresh}
    with show_progress("attack", len(fresh), work=sum(work.values())) as bar:
        for (rows, _), outcomes in zip(
            tasks, engine.map(AttackTask.run, [task for _, task in tasks])
        ):
            for index, done in zip([fresh[row] for row in rows], outcomes):
                job = jobs[index]
                notes = [job.note, *job.remarks, done.finding.measures.note]
                note = "; ".join(filter(None, notes))
                done_before[index] = done.finding.with_measures(note=note, figure=files[index])
                write_tensors(folder / files[index], done.evidence_tensors)
                bar.advance(f"{job.view.surface} {job.name}", work=work[index])
    return [done_before[index] for index in range(len(jobs))]


def _work_of(job: AttackJob) -> float:
    """What a job costs about, for the time left."""
    return SEARCH_WORK if job.attack.family in LONGEST_FIRST else 1.0


def _found_before(
    jobs: Sequence[AttackJob],
    files: Sequence[str],
    terms: AttackTerms,
    folder: Path,
    earlier: Mapping[str, Finding],
) -> dict[int, Finding]:
    """Place of a job -> its finding, where the folder holds it already."""
    outcomes = {}
    for index, (job, file) in enumerate(zip(jobs, files, strict=True)):
        before = earlier.get(file)
        if before is not None and _is_of(before, job):
            outcomes[index] = decided_again(before, read_tensors(folder / file), job, terms)
    return outcomes


def _is_of(finding: Finding, job: AttackJob) -> bool:
    """Whether a finding came of the same attack on the same view."""
    job_key = (job.view.message, job.view.surface, job.name, job.view.adversary)
    is_same = (finding.message, finding.surface, finding.attack, finding.adversary) == job_key
    return is_same and (finding.measures.note or "").startswith(job.note)


def evidence_file_names(jobs: Sequence[AttackJob]) -> list[str]:
    """The name of each job's evidence file: "surface.attack", numbered from the second on."""
    used = dict[str, int]()
    files = list[str]()
    for job in jobs:
        stem = f"{job.view.surface}.{job.name}"
        used[stem] = used.get(stem, 0) + 1
        files.append(f"{stem}{f'.{used[stem]}' if used[stem] > 1 else ''}.safetensors")
    return files


def group_attack_tasks(
    jobs: Sequence[AttackJob], terms: AttackTerms
) -> list[tuple[tuple[int, ...], AttackTask]]:
    """(positions of its jobs, task) of all tasks, those that take longest first."""
    groups: dict[tuple[str, int], list[int]] = {}
    for index, job in enumerate(jobs):
        group_number = -1
        if type(job.attack).run_each is Attack.run_each:
            group_number = index  # alone
        groups.setdefault((job.name, group_number), []).append(index)
    ranks = {family: index for index, family in enumerate(LONGEST_FIRST)}

    def order_of(rows: Sequence[int]) -> tuple[int, int]:
        family = jobs[rows[0]].attack.family
        return ranks.get(family, len(ranks)), rows[0]

    tasks = []
    for rows in sorted(groups.values(), key=order_of):
        group = tuple(jobs[index] for index in rows)
        tasks.append((tuple(rows), AttackTask(group, terms)))
    return tasks


def attack_stream(keys: Keys, attack: str, surface: str, where: str) -> torch.Generator:
    """The randomness of one attack; where: the first words of its finding's note. A verifier draws
    it again."""
    return keys.fold("attack", attack, surface, where).torch()


def attack_seeds(keys: Keys, attack: str, surface: str, where: str) -> tuple[int, int]:
    """The seed of a membership attack and the seed of its decisive bound, which does not depend on
    what else the attack drew. Both break ties between scores; a verifier, who has the scores and
    not the attack, draws them again."""
    stream = attack_stream(keys, attack, surface, where)
    first, second = (int(torch.randint(2**31 - 1, (1,), generator=stream)) for _ in range(2))
    return first, second


def familywise_bound(
    scores: Tensor, view: View, delta: float, budget: ErrorBudget, seed: int, alone: float | None
) -> dict[str, Any]:
    """The bound that may decide a verdict: at its share of the run's error budget. seed: breaks
    ties between scores;
    alone: the attack's own bound, at the confidence of a single one, which broke ties by other
        draws. The smaller one holds as well, so that no bound that is corrected for several tests
        exceeds the uncorrected one."""
    if view.worlds is None:
        return {}
    rng = np.random.default_rng(seed)
    bound = one_run_bound(
        scores, view.worlds.masks[: len(scores)], delta, rng, confidence=budget.confidence
    )
    return {"epsilon_familywise": corrected_bound(bound.value, alone), "tests": budget.tests}


def corrected_bound(bound: float, alone: float | None) -> float:
    """A bound at joint confidence, at most the one at single confidence where there is one."""
    return bound if alone is None else min(bound, alone)


def decided_again(
    finding: Finding, stored: Mapping[str, Tensor], job: AttackJob, terms: AttackTerms
) -> Finding:
    """An earlier finding at today's share of the error budget. stored: what its evidence file
    holds."""
    if "scores" not in stored or job.view.worlds is None:
        return finding
    shape = 1 + int(stored["world"].max()), 1 + int(stored["record"].max())
    masks = stored["members"].bool().reshape(shape)
    replays = replace(job.view.worlds, signals={}, rounds={}, masks=masks)
    view = replace(job.view, worlds=replays)
    _, seed = attack_seeds(terms.keys, job.name, job.view.surface, job.note)
    shown_alone = finding.measures.epsilon_shown
    bound = familywise_bound(
        stored["scores"].reshape(shape), view, terms.delta, terms.budget, seed, shown_alone
    )
    return finding.with_diagnostics(**bound)


def evidence_tensors(finding: Finding, evidence: Evidence, view: View) -> dict[str, Tensor]:
    """The data of the report's figures: images, and exact scores with their membership bits."""
    tensors = {
        name: tensor for name, tensor in finding.figures.items() if not name.startswith("roc_")
    }
    if evidence.scores is not None and view.worlds is not None:
        count = len(evidence.scores)
        masks = view.worlds.masks[:count]
        blind = view.worlds.blind.expand(masks.shape)
        world, record = torch.meshgrid(
            torch.arange(count), torch.arange(masks.shape[1]), indexing="ij"
        )
        tensors |= {
            "scores": evidence.scores.double().flatten(),
            "members": masks.flatten().to(torch.uint8),
        }
        tensors |= {"blind": blind.flatten(), "record": record.flatten(), "world": world.flatten()}
        tensors |= {f"kind_{kind}": positions for kind, positions in view.worlds.kinds.items()}
    return tensors


def exposed_records(finding: Finding, view: View) -> dict[str, Tensor]:
    """The most exposed records themselves, images (m, c, h, w) or rows (m, d), with their labels
    (m,), as the finding lists them; {} if a page cannot show them."""
    measures = finding.measures
    rows: Sequence[Mapping[str, Any]] = ()
    if isinstance(measures, MembershipMeasures) and measures.worst_records is not None:
        rows = measures.worst_records["records"]
    records = None if view.worlds is None else view.worlds.records
    if (
        not rows
        or view.worlds is None
        or records is None
        or (records.ndim != 2 and not (records.ndim == 4 and records.shape[1] in (1, 3)))
    ):
        return {}
    indices = torch.tensor([row["record"] for row in rows])
    return {
        "exposed": records[indices].clone(),
        "exposed_label": view.worlds.labels[indices].clone(),
    }


def _without_rows(figures: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is kept of a finding's figures where rows of a table are not to be shown."""
    return {name: value for name, value in figures.items() if name not in ROW_FIGURES}


@dataclass(frozen=True)
class EarlierFindings:
    """by_file: findings that need not be made again, by the name of their evidence file; rest:
    those without such a file, of guarantee tests and canaries; commands: one for each command that
    attacked the run; replaced: bounds whose place others have taken, which used their share of the
    run's error; seconds: spent before."""

    by_file: Mapping[str, Finding] = field(default_factory=dict)
    rest: tuple[Finding, ...] = ()
    commands: tuple[AttackCommand, ...] = ()
    replaced: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)

    def of_canaries(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.rest if finding.attack.startswith(ONE_RUN))

    def not_lost(self, tests: Iterable[Finding]) -> tuple[Finding, ...]:
        """Findings of guarantee tests; the earlier one where it left less untested, as of noise
        that nobody can draw again."""
        before = {_identity(finding): finding for finding in self.rest}
        return tuple(
            min(finding, before.get(_identity(finding), finding), key=_count_untested)
            for finding in tests
        )


def earlier_findings(folder: RunFolder, asked: Collection[str], *, others: bool) -> EarlierFindings:
    """asked: the attacks that run now; others: whether with other replays or tests than before.
    Raises DamagedRun for a folder whose result cannot be read."""
    if not folder.findings_file.exists():
        return EarlierFindings()
    record = read_run_record(folder.path)
    rows = [(row, as_finding(row)) for row in record.findings.findings]
    commands = attack_commands(record)
    sealed = _sealed(record)
    now = (__version__, run_provenance()["commit"])
    last = {
        name: (command.version, command.commit) for command in commands for name in command.attacks
    }
    findings = {
        row.figure: finding.with_measures(epsilon_stated=None)
        for row, finding in rows
        if row.figure
        and row.attack not in asked
        and last.get(row.attack) == now
        and row.figure in sealed
    }
    rest = tuple(finding for row, finding in rows if not row.figure)
    shared = record.findings.privacy.multiplicity
    before = 0 if shared is None else shared.replaced or 0
    if others and shared is not None:
        membership = [row for row, _ in rows if row.family == Family.MEMBERSHIP]
        untouched = sum(row.attack not in asked for row in membership)
        canaries = CANARY_TESTS * any(row.attack.startswith(ONE_RUN) for row, _ in rows)
        before = shared.tests - untouched - canaries  # all the rest is looked for anew
    return EarlierFindings(
        findings, rest, commands, before, record.findings.run.seconds.model_dump()
    )


def _sealed(record: RunRecord) -> frozenset[str]:
    """The evidence files that are as they were sealed; none where the findings are not."""
    listed = record.manifest.get(FILES_KEY)
    listed = listed if isinstance(listed, dict) else {}

    def same(name: str) -> bool:
        return (record.path / name).is_file() and file_sha256(record.path / name) == listed[name]

    if "findings.json" not in listed or not same("findings.json"):
        return frozenset()
    sealed_names = [name for name in listed if name.startswith("evidence/") and same(name)]
    return frozenset(name.removeprefix("evidence/") for name in sealed_names)


def as_finding(row: FindingRow) -> Finding:
    """A row as the value that verdicts are made from. Raises DamagedRun for a measure that no
    finding of its family has."""
    family = Family(row.family)
    foreign = foreign_measures(row)
    if foreign:
        raise DamagedRun(
            f"findings.json: {row.surface} {row.attack}: a finding of {family} has no {foreign[0]}"
        )
    values: dict[str, Any] = row.model_dump(exclude_none=True, exclude=HEAD)
    return Finding(
        Surface(row.surface),
        row.attack,
        family,
        Adversary(row.adversary),
        family.measures(**values),
        message=row.message or "",
    )


def foreign_measures(row: FindingRow) -> list[str]:
    """The measures of a row that no finding of its family has, by name."""
    names = row.model_dump(exclude_none=True, exclude=HEAD).keys()
    allowed = {field.name for field in fields(Family(row.family).measures)}
    return sorted(names - allowed)


def _count_untested(finding: Finding) -> int:
    """How many parts a test had to leave out."""
    return len(finding.diagnostics.get("untested") or ())


def _identity(finding: Finding) -> tuple[str, str, str, str]:
    return finding.message, finding.surface, finding.attack, finding.measures.signal or ""
