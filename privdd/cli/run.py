"""One run from start to end: folder, config, training or audit, report, tracker, exit status."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from attacks.types import Attack
from privdd.auditing import findings as audit_findings
from privdd.auditing.cost_estimate import (
    ANNOUNCEMENT_SECONDS,
    check_resources,
    choose_engine,
    describe_estimate,
)
from privdd.auditing.coverage import (
    UNREAD_REASON,
    check_coverage,
    describe_replay_settings,
    uncovered_surfaces,
)
from privdd.auditing.method_contract import check_foreign_uploads
from privdd.cli import build, settings, stored_config
from privdd.cli.compose import format_shell_assignment
from privdd.cli.inputs import check_tracking
from privdd.cli.paper_preset import describe_paper_differences
from privdd.cli.plain_config import to_plain_settings
from privdd.cli.secret import check_same_secret, remove_secret
from privdd.cli.user_code import user_code_of_config, write_code_digests
from privdd.core.device import deterministic_kernels
from privdd.core.types import Shard, is_remote_memory
from privdd.core.validation import BadConfig
from privdd.distillation.diagnostics import DistillationDiagnostics, diagnose_distillation
from privdd.federated.checkpoint import check_same_data
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Progress
from privdd.federated.trainer import Trainer, divergence_message
from privdd.reporting.policy import policy_of_settings
from privdd.reporting.schema import Findings
from privdd.reporting.terminal import EXIT_DIVERGED
from privdd.runtime.engine import engine_in_words, torch_threads
from privdd.runtime.files import SCHEMA, write_bytes, write_json
from privdd.runtime.run_files import (
    TRUST_CODE,
    check_run_folder,
    hold_run_folder,
    remove_half_written,
)
from privdd.runtime.run_folder import RunFolder
from privdd.runtime.seal import seal_folder
from privdd.runtime.startup import WORKER_MODULES, start_forkserver

TRACKED_MEASURES = ("auc", "epsilon_shown", "psnr", "ssim", "lpips", "label_accuracy", "kappa")


def prepare_run_folder(path: Path, config: DictConfig) -> RunFolder:
    """The folder with its resolved config.yaml.

    Raises OSError where it cannot be written, BadConfig where it holds files of something else, or
    a run of another config or of other code of the user's own: going on from that run's checkpoint
    would mix the two."""
    folder = RunFolder(path)
    check_run_folder(path)
    is_begun = folder.checkpoint_file.exists()
    if is_begun:
        stored_config.check_same_config(path, config)
        check_same_secret(folder, config)
    # the first file of a run: from now on the folder proves to be one
    write_bytes(folder.config_file, OmegaConf.to_yaml(remove_secret(config), resolve=True).encode())
    remove_half_written(path)
    if not is_begun:
        write_code_digests(path, user_code_of_config(config))
        check_same_secret(folder, config)
    return folder


@contextmanager
def print_resume_command(command: str, path: Path, config: DictConfig) -> Iterator[None]:
    """On Ctrl-C, print how to resume, with what has to be typed again because no stored config may
    decide it."""
    try:
        yield
    except KeyboardInterrupt:
        outside = ((key, OmegaConf.select(config, key)) for key in stored_config.OUTSIDE_SETTINGS)
        parts = [
            format_shell_assignment(key, str(value)) for key, value in outside if value is not None
        ]
        if packages := stored_config.list_foreign_packages(to_plain_settings(config)):
            parts.append(f"{TRUST_CODE}={','.join(packages)}")
        text = " ".join([format_shell_assignment("resume", str(path)), *parts])
        raise KeyboardInterrupt(f"resume with: python -m privdd.{command} {text}") from None


def waive_unread_surfaces(config: DictConfig) -> None:
    """Mark, in ``config``, all surfaces that its attacks do not read, where not every one has to be
    read.

    The report shows them as not attacked. Raises BadConfig where the attacks read nothing of what
    is released."""
    for surface, reason in config.audit.waive.items():
        if str(reason).startswith(UNREAD_REASON):
            config.audit.waive[surface] = None
        else:
            config.audit.waive[surface] = reason
    audit = settings.audit_settings(config)
    if audit is not None:
        method = build.instantiate_node(build.standardise_classifiers(config))
        attacks = build.build_attacks(config)
        unread = uncovered_surfaces(method, attacks, replace(audit, waive={}))
        released = {*method.uploads.values(), *method.broadcasts.values()}
        if set(unread) == {*map(str, released)}:
            raise BadConfig(
                f"attack=[{','.join(attacks)}]: none of them reads anything that {config.name} "
                f"releases, with {describe_replay_settings(audit)}"
            )
        new = [surface for surface in unread if config.audit.waive.get(surface) is None]
        config.audit.waive = {**config.audit.waive, **dict.fromkeys(new, UNREAD_REASON)}


def run_audit(config: DictConfig, path: Path, argv: Sequence[str]) -> int:
    """Train, replay, attack and report into a folder.

    Args:
        config: The composed or stored config.
        path: The run's folder; a run of the same config in it is gone on with.
        argv: The command, for the manifest.

    Returns:
        The exit status, as of ``conclude_audit``.

    Raises:
        BadConfig: One line, where another process writes the folder, or for what cannot run.
    """
    if config.get("scores") is not None:
        from privdd.cli.external_scores import audit_external_scores, scores_request

        return audit_external_scores(scores_request(config), path, argv)
    from privdd.auditing.attack_tasks import earlier_findings
    from privdd.auditing.pipeline import audit_experiment
    from privdd.reporting.page import write_report
    from privdd.reporting.terminal import conclude_audit

    request = attacked_again(config, RunFolder(path))
    build.check_config_types(config)
    if config.audit.get("require") == "some":
        waive_unread_surfaces(config)
    check_tracking(config.tracking)
    policy = policy_of_settings(to_plain_settings(config))
    experiment, attacks = _build_checked_audit(config, path)
    with ExitStack() as stack:
        stack.enter_context(hold_run_folder(path))
        check_not_overtaken(RunFolder(path), config)
        check_same_data(RunFolder(path), experiment.plan.data)
        earlier = earlier_findings(RunFolder(path), request.names, others=request.looks_further)
        folder = prepare_run_folder(path, config)
        stack.enter_context(_deterministic_run(experiment))
        experiment = announce_run(experiment, attacks, folder)
        with print_resume_command("audit", path, config):
            audited = audit_experiment(experiment, attacks, folder, earlier)
            kept_attacks = {finding.attack for finding in earlier.by_file.values()}
            ran = {*request.names} | attacks.keys() - kept_attacks - {*audited.not_run}
            result = audit_findings.write_audit(folder, audited, argv, earlier.commands, ran)
            write_report(path)
        accuracies = result.utility.accuracy_by_round if result.utility else ()
        track_run(config.tracking, path, accuracies, tracked_scalars(result))
        seal_folder(path)
        notes = _attack_notes(config.name, audited.not_run, kept_attacks)
        return conclude_audit(result, path, policy, sys.stdout, notes)


def _build_checked_audit(config: DictConfig, path: Path) -> tuple[Experiment, Mapping[str, Attack]]:
    """The experiment and its attacks, once all is checked that can be before the folder is
    written. Raises BadConfig for what cannot run."""
    attacks = build.build_attacks(config)
    if not attacks:
        raise BadConfig("attack=[]: at least one attack is needed")
    if line := describe_paper_differences(config):
        print(f"privdd: {line}", file=sys.stderr)
    experiment = build.build_experiment(config)
    check_coverage(
        experiment.plan.method, attacks, experiment.audit_settings, build.build_shipped_attacks
    )
    for line in check_foreign_uploads(experiment.plan):
        print(f"privdd: {line}", file=sys.stderr)
    experiment.new_ledger()  # refuses a unit, relation or delta before anything is written
    check_resources(experiment, path, force=settings.is_forced(config))
    return experiment, attacks


def _attack_notes(method: str, not_run: Sequence[str], kept: Collection[str]) -> list[str]:
    """A line for attacks without anything to read, and one for those of earlier commands."""
    notes = []
    if not_run:
        notes.append(f"not run, as {method} releases nothing that they read: {', '.join(not_run)}")
    if kept:
        notes.append(f"found by earlier commands, and kept: {', '.join(sorted(kept))}")
    return notes


def announce_run(
    experiment: Experiment, attacks: Mapping[str, Attack], folder: RunFolder
) -> Experiment:
    """Choose the engine, and print a line about the run and, if it takes long, one about its cost.

    No estimate is made for attacks that are added to a finished run; ``auto`` runs them in this
    process.

    Returns:
        The experiment with its engine.
    """
    price = None
    if not folder.findings_file.exists():
        asked = experiment.engine.kind
        experiment, price = choose_engine(experiment, attacks, ANNOUNCEMENT_SECONDS)
        if asked == "auto" and experiment.engine.kind == "processes":
            command = "train" if experiment.auditing is None else "audit"
            start_forkserver(WORKER_MODULES[command], experiment.run.device)
    print_run_line(experiment, folder.path)
    new_audit = experiment.auditing is not None and not folder.checkpoint_file.exists()
    if new_audit and (estimate := describe_estimate(price)):
        print(f"privdd: {estimate}", file=sys.stderr)
    return experiment


@dataclass(frozen=True)
class AskedAttacks:
    """What a command asks of a folder.

    Attributes:
        names: The attacks that it asks for.
        looks_further: Whether they have more to go by than those that the folder holds.
    """

    names: Sequence[str]
    looks_further: bool = False


def attacked_again(config: DictConfig, folder: RunFolder) -> AskedAttacks:
    """The attacks that are asked for.

    In a folder that holds a finished audit they are added, in ``config``, to those that it was
    attacked with.

    Raises:
        BadConfig: They have less to go by than the folder's own.
        DamagedRun: The folder's config cannot be read.
    """
    names = stored_config.asked_of(config)
    if not folder.findings_file.exists() or not folder.config_file.exists():
        return AskedAttacks([*(config.get("attack") or {})] if names is None else names)
    if names is None:
        packages = stored_config.list_foreign_packages(to_plain_settings(config))
        stored_config.add_attacks(config, stored_config.load_stored_config(folder.path, packages))
        names = stored_config.asked_of(config) or []
    stored = stored_config.read_stored_config(folder.path)
    return AskedAttacks(names, stored_config.looks_further(config, stored))


def check_not_overtaken(folder: RunFolder, config: DictConfig) -> None:
    """Raises BadConfig where another process has added attacks since this one read the folder."""
    is_finished = folder.findings_file.exists() and folder.config_file.exists()
    if is_finished and (
        added := {*(stored_config.read_stored_config(folder.path).get("attack") or {})}
        - {*config.attack}
    ):
        raise BadConfig(
            f"{folder.path}: was attacked meanwhile ({', '.join(sorted(added))}); repeat "
            "the command"
        )


def run_training(config: DictConfig, path: Path, argv: Sequence[str]) -> int:
    """Train without attacks: state, ledger, manifest and one line of figures.

    Args:
        config: As of ``run_audit``.
        path: As of ``run_audit``.
        argv: As of ``run_audit``.

    Returns:
        1 where training diverged, else 0.

    Raises:
        BadConfig: One line, where another process writes the folder, or for what cannot run.
    """
    check_tracking(config.tracking)
    if line := describe_paper_differences(config):
        print(f"privdd: {line}", file=sys.stderr)
    experiment = build.build_experiment(config)
    check_resources(experiment, path, force=settings.is_forced(config))
    with ExitStack() as held:
        held.enter_context(hold_run_folder(path))
        check_same_data(RunFolder(path), experiment.plan.data)
        folder = prepare_run_folder(path, config)
        held.enter_context(_deterministic_run(experiment))
        experiment = announce_run(experiment, {}, folder)
        began = time.monotonic()
        ledger = experiment.new_ledger()
        trainer = Trainer(
            experiment.plan,
            experiment.shards,
            experiment.test_records,
            experiment.engine,
            folder,
            ledger,
            experiment.capture,
            budget=experiment.privacy.budget,
        )
        with print_resume_command("train", path, config):
            progress = trainer.run()
        distillation = _diagnose_training(experiment, progress)
        seconds = {"train": time.monotonic() - began}
        # findings say how they were found; with them in the folder, nothing was trained now
        if not folder.findings_file.exists():
            write_json(
                folder.manifest_file,
                audit_findings.manifest_json(experiment, progress, seconds, argv),
            )
        summary = _summarise_training(experiment, progress, distillation)
        write_json(path / "training.json", summary)
        track_run(
            config.tracking,
            path,
            progress.accuracy,
            {f"epsilon/{name}": e for name, e in summary["epsilon"].items()},
        )
        seal_folder(path)
    print(f"{_describe_training(summary)}; {path}")
    return 0 if progress.diverged is None else EXIT_DIVERGED


def _diagnose_training(
    experiment: Experiment, progress: Progress
) -> DistillationDiagnostics | None:
    """None for a run that diverged, and where what the client remembers stays with it."""
    plan = experiment.plan
    memory = progress.memories.get(plan.victim, {})
    if progress.diverged is not None or is_remote_memory(memory):
        return None
    return diagnose_distillation(plan, progress, experiment.shards[plan.victim])


def _summarise_training(
    experiment: Experiment, progress: Progress, distillation: DistillationDiagnostics | None
) -> dict[str, Any]:
    """What ``training.json`` holds."""
    ledger = progress.ledger
    clients = experiment.plan.problem.clients
    return {
        "schema": SCHEMA,
        "accuracy": progress.accuracy[-1],
        "epsilon": ledger.epsilon_by_accountant(),
        "delta": ledger.delta,
        "unit": ledger.unit,
        "relation": ledger.relation,
        "uploaded_bytes_per_client": audit_findings.bytes_per_client(progress.uploaded, clients),
        "downloaded_bytes_per_client": audit_findings.bytes_per_client(
            progress.downloaded, clients
        ),
        "accuracy_by_round": list(progress.accuracy),
        "diverged": progress.diverged,
        **audit_findings.distillation_entry(distillation),
    }


def _describe_training(summary: Mapping[str, Any]) -> str:
    """Accuracy, or why there is none, and epsilon, of the contents of ``training.json``."""
    outcome = f"accuracy {summary['accuracy']:.4f}"
    if summary["diverged"] is not None:
        outcome = divergence_message(summary["diverged"])
    epsilon = summary["epsilon"]
    return (
        f"{outcome}, epsilon {epsilon['pld']:.4g} by PLD ({epsilon['rdp']:.4g} by RDP) at "
        f"delta {summary['delta']:g} per {summary['unit']}, {summary['relation']}"
    )


@contextmanager
def _deterministic_run(experiment: Experiment) -> Iterator[None]:
    """The server's work too: neither a machine's cores nor a GPU's kernels change bits from one run
    to the next."""
    with torch_threads(experiment.engine.threads), deterministic_kernels(experiment.run.device):
        yield


def _describe_clients(shards: Sequence[Shard]) -> str:
    """How many clients there are, and of how many records."""
    sizes = [len(shard.train) for shard in shards]
    records = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    return f"{len(shards)} client{'s' * (len(shards) > 1)} of {records} records"


def print_run_line(experiment: Experiment, path: Path) -> None:
    """Print a line about the run before training starts: method, data, clients, audited client,
    processes, folder; on a GPU one more, what runs there."""
    shards = experiment.shards
    print(
        f"privdd: {type(experiment.plan.method).__name__} on {experiment.dataset.name} "
        f"({experiment.dataset.note}), {_describe_clients(shards)}, audited client "
        f"{experiment.plan.victim}, "
        f"{engine_in_words(experiment.engine)}; {path}",
        file=sys.stderr,
    )
    if experiment.run.device != "cpu":
        rest = (
            "the server's work, the signals that attacks read from replays, attacks that "
            "make images; all other attacks and what guarantee tests compare stay on the CPU"
        )
        print(
            f"privdd: on {experiment.run.device}: "
            f"{experiment.plan.method.audit_hooks.on_gpu}; {rest}",
            file=sys.stderr,
        )


def track_run(
    choice: str | None, folder: Path, accuracy: Sequence[float], scalars: Mapping[str, float]
) -> None:
    """Accuracy by round and single numbers, but for infinite ones, for TensorBoard; nothing where
    no tracker is chosen."""
    if choice is None:
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(log_dir=str(folder / "tensorboard")) as writer:
        for step, value in enumerate(accuracy, 1):
            writer.add_scalar("accuracy", value, step)
        for name, value in scalars.items():
            if math.isfinite(value):
                writer.add_scalar(name, value, len(accuracy))


def tracked_scalars(findings: Findings) -> dict[str, float]:
    """name -> number: epsilons of the run, and each finding's measures under
    surface/attack/adversary."""
    scalars = {
        f"epsilon/{name}": value
        for name, value in findings.privacy.epsilon
        if isinstance(value, float)
    }
    for row in findings.findings:
        stem = f"{row.surface}/{row.attack}/{row.adversary}"
        scalars |= {
            f"{stem}/{name}": getattr(row, name)
            for name in TRACKED_MEASURES
            if getattr(row, name) is not None
        }
        rates = row.tpr_at_fpr or {}
        scalars |= {
            f"{stem}/tpr_at_{key}": rate.tpr for key, rate in rates.items() if rate.resolvable
        }
    return scalars
