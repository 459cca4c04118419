"""The audit from end to end: train, replay, attack every surface, test the stated guarantees.

A world is one replay of the audited client with fresh coin flips for its audited records, and the source of
one shadow model. A scene is the finished run as the evaluator sees it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attacks.types import Attack, Family, Finding, Surface, Truth, View
from privdd.auditing.attack_tasks import AttackTask, Job, Terms, attack_tasks, decided_again
from privdd.auditing.autotune import Choice
from privdd.auditing.canary_game import CanaryGame, check_playable, draw_canaries, findings_of_canaries
from privdd.auditing.chosen_models import chosen_views
from privdd.auditing.coverage import reads, unmeasured
from privdd.auditing.earlier_findings import EarlierFindings
from privdd.auditing.earlier_rounds import over_rounds, own_round, rounds_of, stages_of
from privdd.auditing.error_budget import ErrorBudget, error_budget
from privdd.auditing.game import Game, draw_game
from privdd.auditing.guarantees.tiers import (
    GuaranteeTest,
    guarantee_tests,
    own_tests,
    subject_of,
    without_single_ratios,
)  # fmt: skip
from privdd.auditing.method_check import contract_findings
from privdd.auditing.noised_reads import NOTE, Reads, analyst_view, federations, reads_of, replays, wanted
from privdd.auditing.noted_again import note_again
from privdd.auditing.replay import recalled
from privdd.auditing.shadow_federations import replayed, sent_at_the_end
from privdd.auditing.shadows import Stage, used_without
from privdd.auditing.views import Scene, client_views, granted, other_networks, probe_view, server_views
from privdd.core.types import Shard
from privdd.federated.experiment import Experiment
from privdd.federated.heard import Heard
from privdd.federated.noise_record import NoiseRecord
from privdd.federated.trainer import Trainer
from privdd.runtime.progress import stage
from privdd.runtime.run_folder import RunFolder, read_tensors, write_tensors
from privdd.runtime.workers import threads


@dataclass(frozen=True)
class Audited:
    """What an audit found, before it is written down."""

    scene: Scene
    findings: tuple[Finding, ...]
    seconds: Mapping[str, float]
    budget: ErrorBudget  # of all bounds that can decide the verdict
    training: Mapping[int, Choice] = field(default_factory=dict)  # audited round -> how its replays were trained
    not_run: Sequence[str] = ()  # attacks that were asked for and had no view to attack


def budget_of(experiment: Experiment, membership: int, replaced: int = 0) -> ErrorBudget:
    """How all bounds of an audit with so many membership tests share its error."""
    audit, mechanisms = experiment.audit, len(experiment.plan.mechanisms)
    return error_budget(audit.confidence, membership, mechanisms, canaries=bool(audit.canaries), replaced=replaced)


def game_of(experiment: Experiment) -> Game:
    """The audited records and all coin flips; row 0 of the masks is what the run itself trains on."""
    plan, audit = experiment.plan, experiment.audit
    keys = plan.keys.fold("audit", plan.victim)
    return draw_game(experiment.shards[plan.victim], audit.records, audit.worlds, keys, plan.relation, audit.tail)


def canaries_of(experiment: Experiment) -> CanaryGame | None:
    """The canaries of ``audit.canaries``; None where there are none. Raises BadConfig where they cannot be played."""
    plan, count = experiment.plan, experiment.audit.canaries
    if not count:
        return None
    check_playable(plan, experiment.privacy.unit)
    return draw_canaries(plan, experiment.shards[plan.victim], count, plan.keys.fold("audit", plan.victim, "canaries"))


NOTHING = EarlierFindings()


def audit(
    experiment: Experiment, attacks: Mapping[str, Attack], folder: RunFolder, earlier: EarlierFindings = NOTHING
) -> Audited:
    """Train (or resume), replay the audited client, attack every surface. Raises AttackFailed if an attack fails.

    attacks: all, those of ``earlier`` findings too. Of a run whose training diverged nothing is attacked, and the findings say so.
    """
    clock = time.monotonic
    began = clock()
    plan, game = experiment.plan, game_of(experiment)
    whole = experiment.shards[plan.victim]
    canaries, heard = canaries_of(experiment), list[Heard]()
    listens = wanted(experiment, attacks)
    if canaries is not None:
        whole = canaries.added(whole)
        game = replace(game, whole=whole.train)
    shards = list(experiment.shards)
    shards[plan.victim] = game.shard(whole, 0)
    record, ledger = NoiseRecord(plan.victim), experiment.ledger()
    trainer = Trainer(
        plan, shards, experiment.test, experiment.engine, folder, ledger, experiment.capture,
        transcript=heard if listens or canaries is not None else None, record=record,
    )  # fmt: skip
    progress = trainer.run()
    if progress.diverged is not None:
        seconds = dict.fromkeys(("train", "total"), clock() - began)
        scene, budget = Scene(experiment, progress, game, shards[plan.victim], record), budget_of(experiment, 0)
        unread = unmeasured(experiment, attacks)
        return Audited(scene, unread, seconds, budget, not_run=_without(attacks, unread))
    told = heard if listens else None
    note_again(plan, shards, experiment.engine, experiment.ledger(), progress.ledger, record, told)
    with threads(experiment.engine.threads):  # same thread count as in training, so the same bits
        progress = recalled(plan, progress, shards[plan.victim])
        trained = clock()
        scene = Scene(experiment, progress, game, shards[plan.victim], record)
        reads = reads_of(scene, whole, heard) if listens else None
    grouped = rounds_of(progress.snapshots, experiment.audit.rounds)
    enough = reads is not None and reads.as_stated and _kept(scene)
    few = replays(experiment, attacks) if enough else None
    federated = federations(experiment, attacks) if enough else experiment.audit.federations
    stages = stages_at(scene, whole, folder, grouped, few)
    stacked, sent = _worlds(stages), sent_at_the_end(scene, whole, folder, federated)
    replayed = clock()
    lacking = frozenset[str]().union(*(stages[t].lacking(stacked[t]) for t in stages))
    jobs = _jobs(scene, attacks, own_round(stacked, grouped), over_rounds(stacked, grouped), sent, reads)
    tests = sum(job.attack.family == Family.MEMBERSHIP for job in jobs)
    budget = budget_of(experiment, tests, earlier.replaced)
    findings = _attack_all(scene, jobs, budget, folder, lacking, earlier)
    if canaries is not None:
        mine = earlier.of_canaries() if not heard else ()
        findings += mine or tuple(findings_of_canaries(scene, canaries, heard, budget.confidence))
    now = clock()
    spent = {"train": trained - began, "worlds": replayed - trained, "attacks": now - replayed, "total": now - began}
    seconds = {name: value + earlier.seconds.get(name, 0.0) for name, value in spent.items()}
    choices = {t: stages[t].choice for t in grouped}
    return Audited(scene, findings, seconds, budget, choices, _without(attacks, findings))


def _without(attacks: Mapping[str, Attack], findings: Sequence[Finding]) -> list[str]:
    """The attacks of which there is no finding."""
    return sorted(attacks.keys() - {finding.attack for finding in findings})


def _kept(scene: Scene) -> bool:
    """Whether tests looked at all noise and samples of the run itself, and found them to be what is stated.

    They accuse more easily here than for the verdict, whose error all tests share: a sound run may take all replays by chance.
    """
    with threads(scene.experiment.engine.threads):
        found = own_tests(subject_of(scene, scene.experiment.audit.confidence), scene.record)
    return not any({"refuted", "untested"} & finding.measures.get("diagnostics", {}).keys() for finding in found)


def stages_at(
    scene: Scene, whole: Shard, folder: RunFolder, grouped: Mapping[int, Sequence[int]], few: int | None = None
) -> dict[int, Stage]:
    """The replays of every round of ``grouped`` (audited round -> its rounds), not yet run. few: so many instead of all."""
    experiment, snapshots, training = scene.experiment, scene.progress.snapshots, scene.experiment.audit.training
    game = replace(scene.game, masks=scene.game.masks[:few])

    def make(t: int) -> Stage:
        held = (game, scene.lens(t), folder, experiment.engine, experiment.run.fingerprint, training)
        crowd = experiment.shards if scene.plan.trust.summed else ()
        return Stage(scene.plan, snapshots, t, whole, *held, crowd=crowd)

    return stages_of(make, scene.lens, grouped)


def _worlds(stages: Mapping[int, Stage]) -> dict[int, dict[str, Tensor]]:
    """Replayed round -> membership signals, (K, n) by "surface|signal"."""
    with stage("shadow models", sum(len(one.game.masks) for one in stages.values())) as bar:
        return {t: one.signals(bar) for t, one in stages.items()}


ByRound = Mapping[int, Mapping[str, Tensor]]  # audited round -> signals by "surface|signal"


def _jobs(
    scene: Scene, attacks: Mapping[str, Attack], stacked: ByRound, rounds: ByRound, sent: Mapping[str, Tensor],
    reads: Reads | None = None,
) -> list[Job]:  # fmt: skip
    views = list(_views(scene, stacked, rounds, sent))
    if reads is not None:
        views.append((analyst_view(scene, reads, max(stacked)), scene.truth(), NOTE))
    found = [
        Job(view, truth, note, name, attack)
        for view, truth, note in views
        for name, attack in attacks.items()
        if applies(attack, view)
    ]
    return found + [Job(*chosen) for chosen in chosen_views(scene, attacks)]


def _views(
    scene: Scene, stacked: ByRound, rounds: ByRound, sent: Mapping[str, Tensor]
) -> Iterator[tuple[View, Truth, str]]:
    """Every view with its truth, and words for where it comes from. rounds: the signals in all replayed rounds."""
    truth = scene.truth()
    several = len({scene.progress.snapshots[t].phase for t in stacked}) > 1
    for t, signals in stacked.items():
        phase = scene.progress.snapshots[t].phase
        for view in client_views(scene, t, signals, rounds[t]):
            yield view, truth, f"{phase} phase, round {t}" if several else f"round {t}"
    final = scene.plan.method.broadcast(scene.progress.server)
    for view in server_views(scene, final, {**sent, **_pooled_features(stacked)}):
        yield view, scene.truth_of(view), "after the last round"
    yield from _probes(scene)


def _pooled_features(stacked: Mapping[int, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """A peer sees the client's features among everybody's: the same rows, so the same matched filter."""
    return {
        key.replace("features|", f"{Surface.SHARED_FEATURES}|"): value
        for signals in stacked.values()
        for key, value in signals.items()
        if key.startswith("features|")
    }


def _probes(scene: Scene) -> Iterator[tuple[View, Truth, str]]:
    count = scene.experiment.audit.victims
    generator = scene.plan.keys.fold("audit", "probes").torch()
    chosen = torch.randperm(len(scene.shard.train), generator=generator)[:count].tolist()
    updates = [t for t, s in scene.progress.snapshots.items() if s.phase == "train"]
    for t in sorted({min(updates), max(updates)} if updates else set()):
        probe = probe_view(scene, t, chosen)
        if probe is not None:
            yield *probe, f"a client that holds one record, round {t}"


def applies(attack: Attack, view: View) -> bool:
    """Whether an attack reads this view."""
    worlds = 0 if view.worlds is None else len(view.worlds.masks)
    return reads(attack, view.surface, view.adversary, worlds)


def _attack_all(
    scene: Scene, jobs: Sequence[Job], budget: ErrorBudget, folder: RunFolder, lacking: Collection[str],
    earlier: EarlierFindings,
) -> tuple[Finding, ...]:  # fmt: skip
    """Findings of all attacks, then of all guarantee tests, which share the engine.

    lacking: "surface|signal" that kept shadow models do not have.
    """
    pictures, device = scene.experiment.audit.worst_pictures, scene.plan.problem.device
    terms = Terms(scene.plan.keys, scene.experiment.privacy.delta, budget, pictures, device)
    subject = subject_of(scene, budget.confidence)
    files = evidence_files(jobs)
    found = _found_before(jobs, files, terms, folder, earlier)
    fresh = [at for at in range(len(jobs)) if at not in found]
    attacks, tests = attack_tasks([jobs[at] for at in fresh], terms), guarantee_tests(subject)
    if type(scene.plan.method).__module__.partition(".")[0] != "privdd":  # a user's own; the shipped ones are tested
        tests.append(GuaranteeTest(subject, contract_findings))
    engine = scene.experiment.engine
    with stage("attack", len(fresh) + len(tests)) as bar:
        with threads(engine.threads):
            rest = own_tests(subject, scene.record)
        work: list[AttackTask | GuaranteeTest] = [*(task for _, task in attacks), *tests]
        answers = engine.map(run_any, work)
        for rows, _ in attacks:
            for at, done in zip([fresh[row] for row in rows], next(answers)):
                job = jobs[at]
                said = [job.note, *_said(scene, job, lacking), done.finding.measures.get("note", "")]
                note = "; ".join(filter(None, said))
                found[at] = done.finding.with_measures(note=note, figure=files[at])
                write_tensors(folder.path / "evidence" / files[at], done.kept)
                bar.advance(f"{job.view.surface} {job.name}")
        for test in tests:
            rest += next(answers)
            bar.advance(test.what)
    made = earlier.not_lost(without_single_ratios(subject, rest))
    return (*(found[at] for at in range(len(jobs))), *made)


def _found_before(
    jobs: Sequence[Job], files: Sequence[str], terms: Terms, folder: RunFolder, earlier: EarlierFindings
) -> dict[int, Finding]:
    """Place of a job -> its finding, where the folder holds it already."""
    found = {}
    for at, (job, file) in enumerate(zip(jobs, files, strict=True)):
        before = earlier.by_file.get(file)
        if before is not None and _is_of(before, job):
            found[at] = decided_again(before, read_tensors(folder.path / "evidence" / file), job, terms)
    return found


def _is_of(finding: Finding, job: Job) -> bool:
    """Whether a finding came of the same attack on the same view."""
    same = (finding.surface, finding.attack, finding.adversary) == (job.view.surface, job.name, job.view.adversary)
    return same and str(finding.measures.get("note", "")).startswith(job.note)


def _said(scene: Scene, job: Job, lacking: Collection[str]) -> list[str]:
    """What a finding's note says of how its view came about; lacking: as of ``_attack_all``."""
    view, attack = job.view, job.attack
    return [
        granted(scene.plan, view, attack.family),
        replayed(scene, view) if attack.family == Family.MEMBERSHIP else "",
        other_networks(view),
        used_without(view.surface, lacking) if attack.family == Family.MEMBERSHIP else "",
    ]


def evidence_files(jobs: Sequence[Job]) -> list[str]:
    """The name of each job's evidence file: "surface.attack", numbered from the second on."""
    used, files = dict[str, int](), list[str]()
    for job in jobs:
        stem = f"{job.view.surface}.{job.name}"
        used[stem] = used.get(stem, 0) + 1
        files.append(f"{stem}{f'.{used[stem]}' if used[stem] > 1 else ''}.safetensors")
    return files


def run_any(task: AttackTask | GuaranteeTest) -> list[Any]:
    """What an engine runs: one attack, or one guarantee test."""
    return task.run()
