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
from privdd.auditing.attack_tasks import (
    AttackJob,
    AttackTask,
    AttackTerms,
    ErrorBudget,
    decided_again,
    error_budget,
    group_attack_tasks,
)
from privdd.auditing.canary_game import CanaryGame, canary_findings_of_run, check_playable, draw_canaries
from privdd.auditing.coverage import findings_of_diverged_run, is_applicable_to
from privdd.auditing.dp_tests.runner import (  # fmt: skip
    GuaranteeTest,
    guarantee_subject,
    guarantee_tests,
    run_log_tests,
    without_single_ratios,
)
from privdd.auditing.earlier_findings import EarlierFindings
from privdd.auditing.method_contract import contract_findings
from privdd.auditing.noised_sums import (
    ANALYST_NOTE,
    NoisedSumScores,
    analyst_view,
    federation_count,
    needs_releases,
    replay_count,
    score_noised_sums,
)
from privdd.auditing.replay import MembershipGame, draw_membership_game, recover_noise_log, restore_memories
from privdd.auditing.shadow_models import (
    ShadowTraining,
    describe_missing_signals,
    describe_replays,
    plan_shadow_trainings,
    rounds_to_combine,
    signals_of_audited_rounds,
    stack_over_rounds,
    stack_server_signals,
)
from privdd.auditing.timing import TrainingChoice
from privdd.auditing.views import (
    FinishedRun,
    client_views,
    describe_granted_knowledge,
    describe_other_networks,
    malicious_server_views,
    server_views,
    single_record_view,
)
from privdd.core.types import Shard
from privdd.federated.experiment import Experiment
from privdd.federated.noise_log import NoiseLog, ObservedRound
from privdd.federated.trainer import Trainer
from privdd.runtime.progress import show_progress
from privdd.runtime.run_folder import RunFolder, read_tensors, write_tensors
from privdd.runtime.workers import torch_threads


@dataclass(frozen=True)
class AuditResult:
    """What an audit found, before it is written down."""

    finished_run: FinishedRun
    findings: tuple[Finding, ...]
    seconds: Mapping[str, float]
    budget: ErrorBudget  # of all bounds that can decide the verdict
    training: Mapping[int, TrainingChoice] = field(
        default_factory=dict
    )  # audited round -> how its replays were trained
    not_run: Sequence[str] = ()  # attacks that were asked for and had no view to attack


def audit_error_budget(experiment: Experiment, membership: int, replaced: int = 0) -> ErrorBudget:
    """How all bounds of an audit with so many membership tests share its error."""
    audit, mechanisms = experiment.audit_settings, len(experiment.plan.mechanisms)
    return error_budget(audit.confidence, membership, mechanisms, canaries=bool(audit.canaries), replaced=replaced)


def membership_game_of(experiment: Experiment) -> MembershipGame:
    """The audited records and all coin flips; row 0 of the masks is what the run itself trains on."""
    plan, audit = experiment.plan, experiment.audit_settings
    keys = plan.keys.fold("audit", plan.victim)
    return draw_membership_game(
        experiment.shards[plan.victim], audit.records, audit.worlds, keys, plan.relation, audit.tail
    )


def canary_game_of(experiment: Experiment) -> CanaryGame | None:
    """The canaries of ``audit_experiment.canaries``; None where there are none. Raises BadConfig where they cannot be played."""
    plan, count = experiment.plan, experiment.audit_settings.canaries
    if not count:
        return None
    check_playable(plan, experiment.privacy.unit)
    return draw_canaries(plan, experiment.shards[plan.victim], count, plan.keys.fold("audit", plan.victim, "canaries"))


NOTHING = EarlierFindings()


def audit_experiment(
    experiment: Experiment, attacks: Mapping[str, Attack], folder: RunFolder, earlier: EarlierFindings = NOTHING
) -> AuditResult:
    """Train (or resume), replay the audited client, attack every surface. Raises AttackFailed if an attack fails.

    attacks: all, those of ``earlier`` findings too. Of a run whose training diverged nothing is attacked, and the findings say so.
    """
    clock = time.monotonic
    began = clock()
    plan, game = experiment.plan, membership_game_of(experiment)
    whole = experiment.shards[plan.victim]
    canaries, heard = canary_game_of(experiment), list[ObservedRound]()
    listens = needs_releases(experiment, attacks)
    if canaries is not None:
        whole = canaries.add_to_shard(whole)
        game = replace(game, whole=whole.train)
    shards = list(experiment.shards)
    shards[plan.victim] = game.shard_of_replay(whole, 0)
    record, ledger = NoiseLog(plan.victim), experiment.new_ledger()
    trainer = Trainer(
        plan, shards, experiment.test_records, experiment.engine, folder, ledger, experiment.capture,
        transcript=heard if listens or canaries is not None else None, record=record,
    )  # fmt: skip
    progress = trainer.run()
    if progress.diverged is not None:
        seconds = dict.fromkeys(("train", "total"), clock() - began)
        scene = FinishedRun(experiment, progress, game, shards[plan.victim], record)
        unread, budget = findings_of_diverged_run(experiment, attacks), audit_error_budget(experiment, 0)
        return AuditResult(scene, unread, seconds, budget, not_run=_without(attacks, unread))
    told = heard if listens else None
    recover_noise_log(plan, shards, experiment.engine, experiment.new_ledger(), progress.ledger, record, told)
    with torch_threads(experiment.engine.threads):  # same thread count as in training, so the same bits
        progress = restore_memories(plan, progress, shards[plan.victim])
        trained = clock()
        scene = FinishedRun(experiment, progress, game, shards[plan.victim], record)
        reads = score_noised_sums(scene, whole, heard) if listens else None
    grouped = rounds_to_combine(progress.snapshots, experiment.audit_settings.rounds)
    enough = reads is not None and reads.has_stated_noise and _has_sound_noise(scene)
    few = replay_count(experiment, attacks) if enough else None
    federated = federation_count(experiment, attacks) if enough else experiment.audit_settings.federations
    stages = shadow_trainings_at(scene, whole, folder, grouped, few)
    stacked, sent = _train_shadow_models(stages), stack_server_signals(scene, whole, folder, federated)
    replayed = clock()
    lacking = frozenset[str]().union(*(stages[t].missing_signals(stacked[t]) for t in stages))
    jobs = _collect_jobs(
        scene, attacks, signals_of_audited_rounds(stacked, grouped), stack_over_rounds(stacked, grouped), sent, reads
    )
    tests = sum(job.attack.family == Family.MEMBERSHIP for job in jobs)
    budget = audit_error_budget(experiment, tests, earlier.replaced)
    findings = _run_attacks(scene, jobs, budget, folder, lacking, earlier)
    if canaries is not None:
        mine = earlier.of_canaries() if not heard else ()
        findings += mine or tuple(canary_findings_of_run(scene, canaries, heard, budget.confidence))
    now = clock()
    spent = {"train": trained - began, "worlds": replayed - trained, "attacks": now - replayed, "total": now - began}
    seconds = {name: value + earlier.seconds.get(name, 0.0) for name, value in spent.items()}
    choices = {t: stages[t].training_choice for t in grouped}
    return AuditResult(scene, findings, seconds, budget, choices, _without(attacks, findings))


def _without(attacks: Mapping[str, Attack], findings: Sequence[Finding]) -> list[str]:
    """The attacks of which there is no finding."""
    return sorted(attacks.keys() - {finding.attack for finding in findings})


def _has_sound_noise(scene: FinishedRun) -> bool:
    """Whether tests looked at all noise and samples of the run itself, and found them to be what is stated.

    They accuse more easily here than for the verdict, whose error all tests share: a sound run may take all replays by chance.
    """
    with torch_threads(scene.experiment.engine.threads):
        found = run_log_tests(guarantee_subject(scene, scene.experiment.audit_settings.confidence), scene.record)
    return not any({"refuted", "untested"} & finding.measures.get("diagnostics", {}).keys() for finding in found)


def shadow_trainings_at(
    scene: FinishedRun, whole: Shard, folder: RunFolder, grouped: Mapping[int, Sequence[int]], few: int | None = None
) -> dict[int, ShadowTraining]:
    """The replays of every round of ``grouped`` (audited round -> its rounds), not yet run. few: so many instead of all."""
    experiment, snapshots, training = (
        scene.experiment,
        scene.progress.snapshots,
        scene.experiment.audit_settings.training,
    )
    game = replace(scene.game, masks=scene.game.masks[:few])

    def training_of_round(t: int) -> ShadowTraining:
        held = (game, scene.adversary_view(t), folder, experiment.engine, experiment.run.fingerprint, training)
        crowd = experiment.shards if scene.plan.trust.is_summed else ()
        return ShadowTraining(scene.plan, snapshots, t, whole, *held, crowd=crowd)

    return plan_shadow_trainings(training_of_round, scene.adversary_view, grouped)


def _train_shadow_models(stages: Mapping[int, ShadowTraining]) -> dict[int, dict[str, Tensor]]:
    """Replayed round -> membership signals, (K, n) by "surface|signal"."""
    with show_progress("shadow models", sum(len(one.game.masks) for one in stages.values())) as bar:
        return {t: one.collect_signals(bar) for t, one in stages.items()}


SignalsByRound = Mapping[int, Mapping[str, Tensor]]  # audited round -> signals by "surface|signal"


def _collect_jobs(
    scene: FinishedRun, attacks: Mapping[str, Attack], stacked: SignalsByRound, rounds: SignalsByRound, sent: Mapping[str, Tensor],
    reads: NoisedSumScores | None = None,
) -> list[AttackJob]:  # fmt: skip
    views = list(_collect_views(scene, stacked, rounds, sent))
    if reads is not None:
        views.append((analyst_view(scene, reads, max(stacked)), scene.ground_truth(), ANALYST_NOTE))
    found = [
        AttackJob(view, truth, note, name, attack)
        for view, truth, note in views
        for name, attack in attacks.items()
        if is_applicable(attack, view)
    ]
    return found + [AttackJob(*chosen) for chosen in malicious_server_views(scene, attacks)]


def _collect_views(
    scene: FinishedRun, stacked: SignalsByRound, rounds: SignalsByRound, sent: Mapping[str, Tensor]
) -> Iterator[tuple[View, Truth, str]]:
    """Every view with its truth, and words for where it comes from. rounds: the signals in all replayed rounds."""
    truth = scene.ground_truth()
    several = len({scene.progress.snapshots[t].phase for t in stacked}) > 1
    for t, signals in stacked.items():
        phase = scene.progress.snapshots[t].phase
        for view in client_views(scene, t, signals, rounds[t]):
            yield view, truth, f"{phase} phase, round {t}" if several else f"round {t}"
    final = scene.plan.method.broadcast(scene.progress.server)
    for view in server_views(scene, final, {**sent, **_pooled_feature_signals(stacked)}):
        yield view, scene.ground_truth_of(view), "after the last round"
    yield from _single_record_views(scene)


def _pooled_feature_signals(stacked: Mapping[int, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """A peer sees the client's features among everybody's: the same rows, so the same matched filter."""
    return {
        key.replace("features|", f"{Surface.SHARED_FEATURES}|"): value
        for signals in stacked.values()
        for key, value in signals.items()
        if key.startswith("features|")
    }


def _single_record_views(scene: FinishedRun) -> Iterator[tuple[View, Truth, str]]:
    count = scene.experiment.audit_settings.victims
    generator = scene.plan.keys.fold("audit", "probes").torch()
    chosen = torch.randperm(len(scene.shard.train), generator=generator)[:count].tolist()
    updates = [t for t, s in scene.progress.snapshots.items() if s.phase == "train"]
    for t in sorted({min(updates), max(updates)} if updates else set()):
        probe = single_record_view(scene, t, chosen)
        if probe is not None:
            yield *probe, f"a client that holds one record, round {t}"


def is_applicable(attack: Attack, view: View) -> bool:
    """Whether an attack reads this view."""
    worlds = 0 if view.worlds is None else len(view.worlds.masks)
    return is_applicable_to(attack, view.surface, view.adversary, worlds)


def _run_attacks(
    scene: FinishedRun, jobs: Sequence[AttackJob], budget: ErrorBudget, folder: RunFolder, lacking: Collection[str],
    earlier: EarlierFindings,
) -> tuple[Finding, ...]:  # fmt: skip
    """Findings of all attacks, then of all guarantee tests, which share the engine.

    lacking: "surface|signal" that kept shadow models do not have.
    """
    pictures, device = scene.experiment.audit_settings.worst_pictures, scene.plan.problem.device
    terms = AttackTerms(scene.plan.keys, scene.experiment.privacy.delta, budget, pictures, device)
    subject = guarantee_subject(scene, budget.confidence)
    files = evidence_file_names(jobs)
    found = _found_before(jobs, files, terms, folder, earlier)
    fresh = [at for at in range(len(jobs)) if at not in found]
    attacks, tests = group_attack_tasks([jobs[at] for at in fresh], terms), guarantee_tests(subject)
    if type(scene.plan.method).__module__.partition(".")[0] != "privdd":  # a user's own; the shipped ones are tested
        tests.append(GuaranteeTest(subject, contract_findings))
    engine = scene.experiment.engine
    with show_progress("attack", len(fresh) + len(tests)) as bar:
        with torch_threads(engine.threads):
            rest = run_log_tests(subject, scene.record)
        work: list[AttackTask | GuaranteeTest] = [*(task for _, task in attacks), *tests]
        answers = engine.map(run_audit_task, work)
        for rows, _ in attacks:
            for at, done in zip([fresh[row] for row in rows], next(answers)):
                job = jobs[at]
                said = [job.note, *_note_parts(scene, job, lacking), done.finding.measures.get("note", "")]
                note = "; ".join(filter(None, said))
                found[at] = done.finding.with_measures(note=note, figure=files[at])
                write_tensors(folder.path / "evidence" / files[at], done.evidence_tensors)
                bar.advance(f"{job.view.surface} {job.name}")
        for test in tests:
            rest += next(answers)
            bar.advance(test.progress_label)
    made = earlier.not_lost(without_single_ratios(subject, rest))
    return (*(found[at] for at in range(len(jobs))), *made)


def _found_before(
    jobs: Sequence[AttackJob], files: Sequence[str], terms: AttackTerms, folder: RunFolder, earlier: EarlierFindings
) -> dict[int, Finding]:
    """Place of a job -> its finding, where the folder holds it already."""
    found = {}
    for at, (job, file) in enumerate(zip(jobs, files, strict=True)):
        before = earlier.by_file.get(file)
        if before is not None and _is_of(before, job):
            found[at] = decided_again(before, read_tensors(folder.path / "evidence" / file), job, terms)
    return found


def _is_of(finding: Finding, job: AttackJob) -> bool:
    """Whether a finding came of the same attack on the same view."""
    same = (finding.surface, finding.attack, finding.adversary) == (job.view.surface, job.name, job.view.adversary)
    return same and str(finding.measures.get("note", "")).startswith(job.note)


def _note_parts(scene: FinishedRun, job: AttackJob, lacking: Collection[str]) -> list[str]:
    """What a finding's note says of how its view came about; lacking: as of ``_run_attacks``."""
    view, attack = job.view, job.attack
    return [
        describe_granted_knowledge(scene.plan, view, attack.family),
        describe_replays(scene, view) if attack.family == Family.MEMBERSHIP else "",
        describe_other_networks(view),
        describe_missing_signals(view.surface, lacking) if attack.family == Family.MEMBERSHIP else "",
    ]


def evidence_file_names(jobs: Sequence[AttackJob]) -> list[str]:
    """The name of each job's evidence file: "surface.attack", numbered from the second on."""
    used, files = dict[str, int](), list[str]()
    for job in jobs:
        stem = f"{job.view.surface}.{job.name}"
        used[stem] = used.get(stem, 0) + 1
        files.append(f"{stem}{f'.{used[stem]}' if used[stem] > 1 else ''}.safetensors")
    return files


def run_audit_task(task: AttackTask | GuaranteeTest) -> list[Any]:
    """What an engine runs: one attack, or one guarantee test."""
    return task.run()
