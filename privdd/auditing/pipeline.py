"""The audit from end to end, over one state: train, replay, attack, test."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from attacks.types import Attack, Family, Finding
from privdd.auditing.attack_tasks import (
    AttackTerms,
    EarlierFindings,
    ErrorBudget,
    collect_attack_jobs,
    error_budget,
    run_attacks,
)
from privdd.auditing.canary_game import CanaryGame, canary_findings_of_run, canary_game_of
from privdd.auditing.coverage import findings_of_diverged_run
from privdd.auditing.dp_tests.runner import (
    GuaranteeTest,
    guarantee_subject,
    guarantee_tests,
    run_log_tests,
    without_single_ratios,
)
from privdd.auditing.method_contract import contract_findings
from privdd.auditing.noised_sums import (
    NoisedSumScores,
    analyst_view,
    federation_count,
    needs_releases,
    replay_count,
    score_noised_sums,
)
from privdd.auditing.other_clients import other_client_signals
from privdd.auditing.replay import (
    MembershipGame,
    draw_membership_game,
    recover_noise_log,
    restore_memories,
)
from privdd.auditing.shadow_models import (
    ShadowSignals,
    describe_view,
    rounds_to_combine,
    train_shadow_models,
)
from privdd.auditing.views import FinishedRun, collect_views, malicious_server_views
from privdd.core.types import Shard
from privdd.distillation.diagnostics import DistillationDiagnostics, diagnose_distillation
from privdd.federated.experiment import Experiment
from privdd.federated.noise_log import NoiseLog, ObservedRound
from privdd.federated.trainer import Trainer
from privdd.runtime.engine import torch_threads
from privdd.runtime.progress import show_progress
from privdd.runtime.run_folder import RunFolder

NOTHING = EarlierFindings()


@dataclass(frozen=True)
class AuditState:
    """All that an audit knows: each step is given it, and returns it with more filled in. attacks:
    all, those of ``earlier`` findings too; whole: the audited client's data before any coin flip,
    canaries among them; transcript: what it released, where an attack or a canary game reads
    that."""

    experiment: Experiment
    attacks: Mapping[str, Attack]
    folder: RunFolder
    earlier: EarlierFindings
    # from train_federation
    whole: Shard
    canaries: CanaryGame | None
    finished_run: FinishedRun
    # of all bounds that can decide the verdict; membership tests count once there are jobs
    budget: ErrorBudget
    transcript: tuple[ObservedRound, ...] = ()
    distillation: DistillationDiagnostics | None = None  # None if nothing was distilled
    # from replay_client
    # what the noised sums say, where all that is sent comes of them
    noised_sums: NoisedSumScores | None = None
    signals: ShadowSignals = field(default_factory=ShadowSignals)  # of all replays
    # from attack_views and audit_guarantees
    findings: tuple[Finding, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def not_run(self) -> list[str]:
        """Attacks that were asked for and had no view to attack."""
        return sorted(self.attacks.keys() - {finding.attack for finding in self.findings})


def audit_experiment(
    experiment: Experiment,
    attacks: Mapping[str, Attack],
    folder: RunFolder,
    earlier: EarlierFindings = NOTHING,
) -> AuditState:
    """Train (or resume), replay the audited client, attack every surface, test the stated
    guarantees. Of a run whose training diverged nothing is attacked, and the findings say so. An
    attack that fails ends with a finding that says so."""
    clock = time.monotonic
    began = clock()
    state = train_federation(experiment, attacks, folder, earlier)
    trained = clock()
    if state.finished_run.progress.diverged is not None:
        seconds = dict.fromkeys(("train", "total"), trained - began)
        return replace(
            state, findings=findings_of_diverged_run(experiment, attacks), seconds=seconds
        )
    state = replay_client(state)
    replayed = clock()
    state = audit_guarantees(attack_views(state))
    now = clock()
    spent = {
        "train": trained - began,
        "worlds": replayed - trained,
        "attacks": now - replayed,
        "total": now - began,
    }
    return replace(
        state,
        seconds={name: value + earlier.seconds.get(name, 0.0) for name, value in spent.items()},
    )


def train_federation(
    experiment: Experiment,
    attacks: Mapping[str, Attack],
    folder: RunFolder,
    earlier: EarlierFindings = NOTHING,
) -> AuditState:
    """Train the federation, or go on where it was stopped: the audited client on the records that
    its coins left in."""
    plan = experiment.plan
    engine = experiment.engine
    shard = experiment.shards[plan.victim]
    game = membership_game_of(experiment)
    canaries = canary_game_of(experiment)
    if canaries is not None:
        shard = canaries.add_to_shard(shard)
        game = replace(game, whole=shard.train)
    shards = list(experiment.shards)
    shards[plan.victim] = game.shard_of_replay(shard, 0)
    released = list[ObservedRound]()
    log = NoiseLog(plan.victim)
    is_read = needs_releases(experiment, attacks)
    trainer = Trainer(
        plan,
        shards,
        experiment.test_records,
        engine,
        folder,
        experiment.new_ledger(),
        experiment.capture,
        transcript=released if is_read or canaries is not None else None,
        record=log,
        budget=experiment.privacy.budget,
    )
    progress = trainer.run()
    distillation = None
    if progress.diverged is None:
        empty = experiment.new_ledger()
        observed = released if is_read else None
        recover_noise_log(plan, shards, engine, empty, progress.ledger, log, observed)
        with torch_threads(engine.threads):  # same thread count as in training, so the same bits
            progress = restore_memories(plan, progress, shards[plan.victim])
            distillation = diagnose_distillation(plan, progress, shards[plan.victim])
    finished = FinishedRun(experiment, progress, game, shards[plan.victim], log)
    budget = audit_error_budget(experiment, 0)
    return AuditState(
        experiment,
        attacks,
        folder,
        earlier,
        shard,
        canaries,
        finished,
        budget,
        tuple(released),
        distillation,
    )


def replay_client(state: AuditState) -> AuditState:
    """Run the audited client again with other coins: each replay is a shadow model, of which only
    signals are kept. Where all that is sent is computed from noised sums, and these are as stated,
    the sums themselves are attacked in closed form, and few replays are enough."""
    experiment = state.experiment
    run = state.finished_run
    sums = None
    if needs_releases(experiment, state.attacks):
        with torch_threads(experiment.engine.threads):
            sums = score_noised_sums(run, state.whole, state.transcript)
    replays = None
    federations = experiment.audit_settings.federations
    if sums is not None and sums.has_stated_noise and _has_sound_noise(run):
        replays = replay_count(experiment, state.attacks)
        federations = federation_count(experiment, state.attacks)
    signals = train_shadow_models(run, state.whole, state.folder, replays, federations)
    if any(attack.reads_other_clients for attack in state.attacks.values()):
        rounds = rounds_to_combine(run.progress.snapshots, experiment.audit_settings.rounds)
        signals = replace(signals, of_others=other_client_signals(run, rounds))
    return replace(state, noised_sums=sums, signals=signals)


def attack_views(state: AuditState) -> AuditState:
    """Every attack on every view that it reads: what each adversary holds of each surface."""
    experiment = state.experiment
    run = state.finished_run
    signals = state.signals
    read = (signals.by_round, signals.over_rounds, signals.of_server, signals.of_others)
    views = list(collect_views(run, *read))
    if state.noised_sums is not None:
        views.append(analyst_view(run, state.noised_sums, max(signals.by_round)))
    jobs = collect_attack_jobs(views, malicious_server_views(run, state.attacks), state.attacks)
    jobs = [replace(job, remarks=describe_view(run, job.view, job.attack.family)) for job in jobs]
    membership = sum(job.attack.family == Family.MEMBERSHIP for job in jobs)
    budget = audit_error_budget(experiment, membership, state.earlier.replaced)
    pictures = experiment.shows_images
    device = experiment.plan.problem.device
    terms = AttackTerms(experiment.plan.keys, experiment.privacy.delta, budget, pictures, device)
    attacked = run_attacks(
        jobs, terms, experiment.engine, state.folder.path / "evidence", state.earlier.by_file
    )
    return replace(state, budget=budget, findings=tuple(attacked))


def audit_guarantees(state: AuditState) -> AuditState:
    """The tests of the stated guarantee, at their share of the error budget, and the canary
    game."""
    run = state.finished_run
    engine = state.experiment.engine
    subject = guarantee_subject(run, state.budget.confidence)
    with torch_threads(engine.threads):
        findings = run_log_tests(subject, run.record)
    tests = guarantee_tests(subject)
    package = type(run.plan.method).__module__.partition(".")[0]
    if package != "privdd":  # a user's own; the shipped ones are tested
        tests.append(GuaranteeTest(subject, contract_findings))
    with show_progress("test", len(tests)) as bar:
        for test, rows in zip(tests, engine.map(GuaranteeTest.run, tests)):
            findings += rows
            bar.advance(test.progress_label)
    decided = state.earlier.not_lost(without_single_ratios(subject, findings))
    played: tuple[Finding, ...] = ()
    if state.canaries is not None:
        if not state.transcript:
            played = state.earlier.of_canaries()
        if not played:
            confidence = state.budget.confidence
            played = tuple(
                canary_findings_of_run(run, state.canaries, state.transcript, confidence)
            )
    return replace(state, findings=(*state.findings, *decided, *played))


def audit_error_budget(experiment: Experiment, membership: int, replaced: int = 0) -> ErrorBudget:
    """How all bounds of an audit with so many membership tests share its error."""
    audit = experiment.audit_settings
    mechanisms = len(experiment.plan.mechanisms)
    return error_budget(
        audit.confidence, membership, mechanisms, canaries=bool(audit.canaries), replaced=replaced
    )


def membership_game_of(experiment: Experiment) -> MembershipGame:
    """The audited records and all coin flips; row 0 of the masks is what the run itself trains
    on."""
    plan = experiment.plan
    audit = experiment.audit_settings
    keys = plan.keys.fold("audit", plan.victim)
    shard = experiment.shards[plan.victim]
    return draw_membership_game(shard, audit.records, audit.worlds, keys, plan.relation, audit.tail)


def _has_sound_noise(run: FinishedRun) -> bool:
    """Whether tests looked at all noise and samples of the run itself, and found them to be what is
    stated. They accuse more easily here than for the verdict, whose error all tests share: a sound
    run may take all replays by chance."""
    with torch_threads(run.experiment.engine.threads):
        findings = run_log_tests(
            guarantee_subject(run, run.experiment.audit_settings.confidence), run.record
        )
    return not any({"refuted", "untested"} & finding.diagnostics.keys() for finding in findings)
