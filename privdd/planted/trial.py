"""One run with a fault planted in it, or without one: audited as usual, and what said that something is wrong."""

from __future__ import annotations

import io
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path

import torch

from attacks.types import Adversary, Attack, Evidence, Family, Finding, Surface, Truth, View
from privdd.auditing.findings import findings_json
from privdd.auditing.findings import verdict as verdict_of
from privdd.auditing.guarantees import guarantee_findings
from privdd.auditing.looked_at import gaps
from privdd.auditing.method_check import BrokenContract, check_method
from privdd.auditing.pipeline import audit, budget_of, game_of
from privdd.auditing.replay import recalled
from privdd.auditing.views import Scene
from privdd.federated.experiment import Experiment
from privdd.federated.noise_record import NoiseRecord
from privdd.federated.trainer import Trainer
from privdd.planted.fault import Fault, Moment
from privdd.planted.small_runs import Profile
from privdd.privacy.ledger import Ledger
from privdd.runtime.run_folder import RunFolder
from privdd.runtime.workers import threads
from privdd.verifying.sent_values import check_kept

WIRE, METHOD, REFUSED = "wire", "method check", "refused"
CONTRADICTION, AMBER = "contradiction", "untested"
SMALL = "too small"  # a fault that was hardly in force, or not at all, and that nothing saw


@dataclass(frozen=True)
class Idle(Attack):
    """Reads every surface and finds nothing, at no cost: what is tested here are guarantees."""

    family: Family = Family.RECONSTRUCTION
    surfaces: frozenset[Surface] = frozenset(Surface)
    adversaries: frozenset[Adversary] = frozenset(Adversary)

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        return Evidence()

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        return Finding(view.surface, "idle", self.family, view.adversary, {"identified": 0.0})


@dataclass(frozen=True)
class Outcome:
    """verdict: the audit's, or ``SMALL``; tiers: which tests say that something is wrong; says: the first of them, in words;
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
    def caught(self) -> bool:
        return bool(self.tiers)

    @property
    def as_it_should_be(self) -> bool:
        """A planted fault is caught; a healthy run is consistent."""
        return self.caught if self.fault else not self.caught and not self.error and self.verdict == "consistent"


def tried(profile: Profile, fault: Fault | None, seed: int) -> Outcome:
    """Train and audit in a folder that is deleted afterwards. The fault is in force all the time, in this process."""
    began, name = time.monotonic(), fault.key if fault else ""
    more = (*fault.settings, *profile.of_rounds(fault.rounds)) if fault else ()
    verdict, said, error = "", list[tuple[str, str]](), ""
    with (
        tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()), warnings.catch_warnings(),
        fault.plant() if fault else nullcontext() as moment,
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        try:
            verdict, said = _audited(profile.experiment(seed, *more), Path(folder), fault is None)
        except Exception as problem:  # where it names no fault, the plant broke the run; that is no detection
            text = " ".join(str(problem).split())
            if fault and fault.refusal and fault.refusal in text:
                verdict, said = REFUSED, [(REFUSED, text)]
            else:
                verdict, error = "error", f"{type(problem).__name__}: {text}"[:300]
    touched = moment.touched if isinstance(moment, Moment) else -1
    if fault and not said and not error and -1 < touched < fault.least:
        verdict = SMALL
    tiers = tuple(dict.fromkeys(tier for tier, _ in said))
    seconds = round(time.monotonic() - began, 1)
    says = said[0][1][:300] if said else ""
    return Outcome(name, profile.name, seed, verdict, tiers, says, error, seconds, touched)


def _audited(experiment: Experiment, folder: Path, healthy: bool) -> tuple[str, list[tuple[str, str]]]:
    """(verdict, (tier, note) of what is wrong). Of a faulty run tests are made until one says so, cheap ones first."""
    if healthy:
        found = audit(experiment, {"idle": Idle()}, RunFolder(folder))
        said = [*filter(None, map(_wrong, found.findings)), *_wire(folder, found.scene.progress.ledger)]
        return findings_json(found)["verdict"], said or _method(experiment)
    scene = _trained(experiment, folder)
    ledger = scene.progress.ledger
    made: list[Finding] = []
    wire = list(_wire(folder, ledger))
    if wire:
        return CONTRADICTION, wire[:1]
    for finding in guarantee_findings(scene, budget_of(experiment, 0).confidence):
        made.append(finding)
        if wrong := _wrong(finding):
            return CONTRADICTION, [wrong]
    told = _method(experiment)
    surfaces = {row.surface for row in ledger.releases if row.visible_to != ("analyst",)}
    missing = any(gaps(ledger, surface, made) for surface in surfaces)
    return AMBER if missing else "consistent", told


def _trained(experiment: Experiment, folder: Path) -> Scene:
    """A finished run as the guarantee tests see it: what ``privdd.auditing.pipeline.audit`` does before it attacks."""
    plan, game, record = experiment.plan, game_of(experiment), NoiseRecord(experiment.plan.victim)
    shards = list(experiment.shards)
    shards[plan.victim] = game.shard(shards[plan.victim], 0)
    trainer = Trainer(
        plan, shards, experiment.test, experiment.engine, RunFolder(folder), experiment.ledger(), experiment.capture,
        record=record,
    )  # fmt: skip
    progress = trainer.run()
    with threads(experiment.engine.threads):
        progress = recalled(plan, progress, shards[plan.victim])
    return Scene(experiment, progress, game, shards[plan.victim], record)


def _wrong(finding: Finding) -> tuple[str, str] | None:
    """(tier, note) of a guarantee finding that is a contradiction."""
    if finding.family != Family.GUARANTEE or verdict_of({"pld": 1.0}, None, [finding]) != CONTRADICTION:
        return None
    tier, _, test = finding.attack.partition("_")
    return f"{tier.upper()} {test.replace('_', ' ')}", str(finding.measures.get("note", ""))


def _wire(folder: Path, ledger: Ledger) -> Iterator[tuple[str, str]]:
    for one in check_kept(folder, ledger):
        yield WIRE, str(one)


def _method(experiment: Experiment) -> list[tuple[str, str]]:
    """``privdd.api.check_method`` on the run's own method and mechanisms."""
    plan = experiment.plan
    try:
        check_method(plan.method, mechanisms=plan.mechanisms, shape=plan.problem.shape, classes=plan.problem.classes)
    except BrokenContract as broken:
        return [(METHOD, str(broken).splitlines()[0])]
    return []
