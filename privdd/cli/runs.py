"""One run from start to end: folder, config, training or audit, report, exit status."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from attacks.repeatable import repeatable
from privdd.cli.again import add_attacks, asked_of, looks_further
from privdd.cli.allowed_targets import foreign_packages
from privdd.cli.own_code import keep_code
from privdd.cli.quoting import typeable
from privdd.cli.read_settings import audit_settings, code_of, forced, plain
from privdd.cli.secret import recognise, storable
from privdd.cli.stored_config import OUTSIDE, read_stored, stored_config
from privdd.cli.unchanged import check_unchanged
from privdd.core.errors import BadConfig
from privdd.runtime.files import is_half_written, write_bytes
from privdd.runtime.lock import locked
from privdd.runtime.plain_folder import plain_files
from privdd.runtime.run_folder import RunFolder
from privdd.runtime.seal import seal
from privdd.runtime.workers import threads

CONTRADICTION = 2


def prepare(path: Path, config: DictConfig) -> RunFolder:
    """The folder with its resolved config.yaml.

    Raises OSError where it cannot be written, BadConfig where it holds a run of another config, or of other code of the
    user's own: going on from that run's checkpoint would mix the two.
    """
    folder = RunFolder(path)
    if path.is_dir():
        for name in [*plain_files(path)]:
            if is_half_written(name):  # by a process that was killed
                (path / name).unlink()
    if folder.checkpoint.exists():
        check_unchanged(path, config)
    else:
        keep_code(path, code_of(config))
    recognise(folder, config)
    write_bytes(path / "config.yaml", OmegaConf.to_yaml(storable(config), resolve=True).encode())
    return folder


@contextmanager
def resumable(command: str, path: Path, config: DictConfig) -> Iterator[None]:
    """On Ctrl-C, print how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        more = "".join(f" {part}" for part in _to_repeat(config))
        raise KeyboardInterrupt(
            f"resume with: python -m privdd.{command} {typeable('resume', str(path))}{more}"
        ) from None


def _to_repeat(config: DictConfig) -> list[str]:
    """What has to be typed again with resume=, because no stored config may decide it."""
    places = [typeable(key, str(value)) for key in OUTSIDE if (value := OmegaConf.select(config, key)) is not None]
    packages = foreign_packages(plain(config))
    return [*places, *([f"trust={','.join(packages)}"] if packages else [])]


def waive_unread(config: DictConfig) -> None:
    """Mark, in ``config``, all surfaces that its attacks do not read, where not every one has to be read.

    The report shows them as not attacked. Raises BadConfig where the attacks read nothing of what is released.
    """
    from privdd.auditing.coverage import NOT_READ, uncovered
    from privdd.cli.assemble import attacks_of, build
    from privdd.cli.standardise import standardising
    from privdd.cli.validation import check_types

    check_types(config)
    for surface, reason in config.audit.waive.items():
        config.audit.waive[surface] = None if str(reason).startswith(NOT_READ) else reason
    audit = audit_settings(config)
    if audit is not None:
        method, attacks = build(standardising(config)), attacks_of(config)
        unread = uncovered(method, attacks, replace(audit, waive={}))
        if set(unread) == {str(s) for s in (*method.uploads.values(), *method.broadcasts.values())}:
            raise BadConfig(f"attack=[{','.join(attacks)}]: none of them reads anything that {config.name} releases")
        new = [surface for surface in unread if config.audit.waive.get(surface) is None]
        config.audit.waive = {**config.audit.waive, **dict.fromkeys(new, NOT_READ)}


def run_audit(config: DictConfig, path: Path, argv: Sequence[str]) -> int:
    """Audit into ``path`` -> exit status: 0 done, 2 contradiction. Raises BadConfig where another process writes it."""
    with ExitStack() as held:
        return _audit(config, path, argv, held)


def _audit(config: DictConfig, path: Path, argv: Sequence[str], held: ExitStack) -> int:
    if config.get("scores") is not None:
        from privdd.cli.external_scores import audit_brought

        return audit_brought(config, path, argv)
    from privdd.auditing.coverage import check_coverage
    from privdd.auditing.earlier_findings import earlier_findings
    from privdd.auditing.findings import write_run
    from privdd.auditing.pipeline import audit
    from privdd.auditing.pricing.beforehand import said_before
    from privdd.auditing.pricing.needs import check_fits
    from privdd.cli.assemble import assemble, attacks_of, shipped_attacks
    from privdd.cli.dry_run import searches_read
    from privdd.cli.tracking import check_tracking, scalars_of, track
    from privdd.cli.validation import check_types
    from privdd.reporting.page import write_report
    from privdd.reporting.terminal import print_summary

    asked, further = attacked_again(config, RunFolder(path))
    check_types(config)
    if config.audit.get("require") == "some":
        waive_unread(config)
    check_tracking(config.tracking)
    attacks = attacks_of(config)
    if not attacks:
        raise BadConfig("attack=[]: at least one attack is needed")
    experiment = assemble(config)
    check_coverage(experiment.plan.method, attacks, experiment.audit, shipped_attacks)
    experiment.ledger()  # refuses a unit, relation or delta before anything is written
    check_fits(experiment, path, force=forced(config))
    held.enter_context(locked(path))
    check_not_overtaken(RunFolder(path), config)
    earlier = earlier_findings(RunFolder(path), asked, others=further)
    folder = prepare(path, config)
    say(experiment, path)
    held.enter_context(_same_bits(experiment))
    wanted = searches_read(config, experiment.plan.method, attacks)
    if not folder.checkpoint.exists() and (price := said_before(experiment, wanted)):
        print(f"privdd: {price}", file=sys.stderr)
    with resumable("audit", path, config):
        audited = audit(experiment, attacks, folder, earlier)
        kept = {finding.attack for finding in earlier.by_file.values()}
        ran = {*asked} | attacks.keys() - kept - {*audited.not_run}
        result = write_run(folder, audited, argv, earlier.commands, ran)
        page = write_report(path)
    track(config.tracking, path, result.utility.accuracy_by_round if result.utility else (), scalars_of(result))
    seal(path)
    print_summary(result, sys.stdout)
    if audited.not_run:
        print(f"not run, as {config.name} releases nothing that they read: {', '.join(audited.not_run)}")
    if kept:
        print(f"found by earlier commands, and kept: {', '.join(sorted(kept))}")
    print(f"\nreport: {page}\nresult: {folder.findings}")
    return CONTRADICTION if result.verdict == "contradiction" else 0


def attacked_again(config: DictConfig, folder: RunFolder) -> tuple[list[str], bool]:
    """(the attacks that are asked for, whether they have more to go by than the folder's own).

    In a folder that holds a finished audit they are added, in ``config``, to those that it was attacked with.
    Raises BadConfig where they have less to go by, DamagedRun for a folder whose config cannot be read.
    """
    asked = asked_of(config)
    if not folder.findings.exists() or not folder.config.exists():
        return ([*(config.get("attack") or {})] if asked is None else asked), False
    if asked is None:
        stored = stored_config(folder.path, foreign_packages(plain(config)))
        add_attacks(config, stored)
        asked = asked_of(config) or []
    return asked, looks_further(config, read_stored(folder.path))


def check_not_overtaken(folder: RunFolder, config: DictConfig) -> None:
    """Raises BadConfig where another process has added attacks since this one read the folder."""
    there = folder.findings.exists() and folder.config.exists()
    if there and (added := {*(read_stored(folder.path).get("attack") or {})} - {*config.attack}):
        raise BadConfig(f"{folder.path}: was attacked meanwhile ({', '.join(sorted(added))}); repeat the command")


def run_training(config: DictConfig, path: Path, argv: Sequence[str]) -> int:
    """Training alone: state, ledger, manifest, one line of figures. Raises BadConfig where another process writes."""
    with ExitStack() as held:
        return _train(config, path, argv, held)


def _train(config: DictConfig, path: Path, argv: Sequence[str], held: ExitStack) -> int:
    import time

    from privdd.auditing.findings import both, per_client
    from privdd.auditing.pricing.needs import check_fits
    from privdd.auditing.run_manifest import manifest
    from privdd.cli.assemble import assemble
    from privdd.cli.tracking import check_tracking, track
    from privdd.federated.measured import words
    from privdd.federated.trainer import Trainer
    from privdd.runtime.files import write_json

    check_tracking(config.tracking)
    experiment = assemble(config)
    check_fits(experiment, path, force=forced(config))
    held.enter_context(locked(path))
    folder = prepare(path, config)
    say(experiment, path)
    held.enter_context(_same_bits(experiment))
    began = time.monotonic()
    plan, ledger = experiment.plan, experiment.ledger()
    trainer = Trainer(plan, experiment.shards, experiment.test, experiment.engine, folder, ledger, experiment.capture)
    with resumable("train", path, config):
        progress = trainer.run()
    seconds = {"train": time.monotonic() - began}
    if not folder.findings.exists():  # else it says how that was found, and nothing was trained
        write_json(folder.manifest, manifest(experiment, progress, seconds, argv))
    epsilon = both(progress.ledger)
    summary: dict[str, Any] = {
        "accuracy": progress.accuracy[-1],
        "epsilon": epsilon,
        "delta": progress.ledger.delta,
        "unit": progress.ledger.unit,
        "relation": progress.ledger.relation,
        "uploaded_bytes_per_client": per_client(progress.uploaded, experiment.plan.problem.clients),
        "downloaded_bytes_per_client": per_client(progress.downloaded, experiment.plan.problem.clients),
    }
    by_round = {"accuracy_by_round": list(progress.accuracy), "diverged": progress.diverged}
    write_json(path / "training.json", {"schema": 1, **summary, **by_round})
    track(config.tracking, path, progress.accuracy, {f"epsilon/{name}": value for name, value in epsilon.items()})
    seal(path)
    accuracy = f"accuracy {summary['accuracy']:.4f}" if progress.diverged is None else words(progress.diverged)
    print(
        f"{accuracy}, epsilon {epsilon['pld']:.4g} by PLD ({epsilon['rdp']:.4g} by RDP) at "
        f"delta {progress.ledger.delta:g} per {progress.ledger.unit}, {progress.ledger.relation}; {path}"
    )
    return 0


@contextmanager
def _same_bits(experiment: Any) -> Iterator[None]:
    """The server's work too: neither a machine's cores nor a GPU's kernels change bits from one run to the next."""
    with threads(experiment.engine.threads), repeatable(experiment.run.device):
        yield


def say(experiment: Any, path: Path) -> None:
    """Print a line about the run before training starts: method, data, clients, audited client, folder; on a GPU one
    more, what runs there."""
    shards = experiment.shards
    sizes = [len(s.train) for s in shards]
    print(
        f"privdd: {type(experiment.plan.method).__name__} on {experiment.dataset.name} ({experiment.dataset.note}), "
        f"{len(shards)} clients of {min(sizes)} to {max(sizes)} records, audited client {experiment.plan.victim}; {path}",
        file=sys.stderr,
    )
    if experiment.run.device != "cpu":
        rest = "the server's work, the signals that attacks read from replays, attacks that make images; all other attacks and what guarantee tests compare stay on the CPU"
        print(f"privdd: on {experiment.run.device}: {experiment.plan.method.on_gpu}; {rest}", file=sys.stderr)
