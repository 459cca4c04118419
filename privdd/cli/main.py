"""What ``privdd.audit`` and ``privdd.train`` share: help, argument checks, Hydra, resume, exit
status.

What takes long to import (torch, scipy) is imported after the command line was checked, so that a
mistyped one is refused at once.
"""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, open_dict

from privdd import __version__
from privdd.cli import compose
from privdd.cli.errors import run_guarded
from privdd.cli.finished_run import report_finished_run
from privdd.cli.inputs import check_inputs, check_run_exists
from privdd.cli.overrides import (
    HYDRA_OPTIONS,
    check_hydra_options,
    check_overrides,
    check_settings_used,
    check_spaces,
)
from privdd.cli.own_files import check_own_files
from privdd.cli.paper_preset import describe_paper_differences
from privdd.cli.secret import take_secret, unused_secret_error
from privdd.cli.settings import command_settings, is_forced
from privdd.cli.sweeps import (
    Sweep,
    count_points,
    first_point,
    is_sweep,
    pin_sweep_folder,
    sweep_folder_name,
)
from privdd.core.command import HELP_OPTIONS
from privdd.core.validation import BadConfig, DataNotFound
from privdd.runtime.files import check_plain_folder
from privdd.runtime.progress import format_seconds
from privdd.runtime.run_files import TRUST_CODE
from privdd.runtime.startup import (
    WORKER_MODULES,
    environment_variables,
    keep_freed_memory,
    loading_modules,
    start_forkserver,
    starts_beforehand,
    usable_cores,
)

if TYPE_CHECKING:
    from privdd.federated.experiment import Experiment

# what an audit, or a sweep of audits, would take, by stage; nothing is kept
DRY_RUN_OPTION = "--dry-run"
COMMAND_PURPOSES = {
    "audit": "Train federated clients, attack everything that leaves one of them, and test the "
    "stated privacy limit.",
    "train": "Train federated clients and account for their releases, without attacks.",
}
COMMAND_EXAMPLES = {
    "audit": (
        ("algo=fedfed preset=smoke", "a first report in under a minute"),
        ("algo=feddm privacy=none attack=[lira,copy_detection]", "two attacks only"),
        ("algo=fedavg privacy=dpsgd privacy.epsilon=3", "noise chosen for a target epsilon"),
        (
            "-m algo=fedfed_dp privacy.noise_multiplier=0.5,1,2 seed=0,1",
            "a sweep: epsilon against accuracy",
        ),
        ("run=outputs/... attack=[rmia]", "attack a finished run again"),
    ),
    "train": (
        ("algo=fedavg preset=smoke", "a first run in seconds"),
        ("algo=feddm data=fashion_mnist partition=dirichlet", "other data, unequal clients"),
        ("algo=fedavg privacy=dpsgd privacy.epsilon=3", "noise chosen for a target epsilon"),
        ("-m algo=fedavg,fedprox seed=0,1,2", "a sweep"),
        ("resume=outputs/...", "go on after an interruption"),
    ),
}
SHOWN_GROUPS = (
    "algo",
    "data",
    "partition",
    "model",
    "privacy",
    "attack",
    "preset",
    "engine",
    "experiment",
)
OPTIONS_TEXT = (
    "Options:",
    "  -m                 several values, KEY=A,B,C, run one after the other and are compared",
    "  --config-dir DIR   a folder of your own yaml files (algo/, attack/, data/, ... below it)",
    "  --cfg job          print the whole configuration and stop",
    "  --dry-run          audit, and a sweep of them: print the time, memory and disk "
    "that it would take, and stop",
    "  --version, --help",
)
READ_ON_TEXT = (
    "README.md explains the numbers; docs/ has the tables; privdd.report, .verify and "
    ".selftest --help."
)
HELP_ENDINGS = {
    "audit": (
        "target.model=, target.synthetic= and target.updates= audit external "
        "results: target.model= --help.",
        "Exit status: 0 done, whatever leaks; 2 a stated guarantee is contradicted; 1 error, "
        "or training diverged.",
        READ_ON_TEXT,
    ),
    "train": ("Exit status: 0 done; 1 error, or training diverged.", READ_ON_TEXT),
}
# command -> modules that every run of it needs, beside those of its workers
RUN_MODULES = {
    "audit": ("privdd.cli.run", "privdd.reporting.page"),
    "train": ("privdd.cli.run",),
}
NOT_TRUSTED = (
    f"{TRUST_CODE}: packages are allowed together with run= or resume= only (a config of your own "
    "is trusted as it is)"
)


def print_cost(config: DictConfig, path: Path, points: int | None = 1) -> int:
    """Print what the audit of ``config`` into ``path`` takes; exit status 0. Raises BadConfig for
    what cannot run.

    points: of a sweep whose first point ``config`` is; None = not known.
    """
    from privdd.auditing import cost_estimate
    from privdd.auditing.replay import count_model_numbers
    from privdd.cli.build import build_attacks
    from privdd.core.device import deterministic_kernels

    if any(config.get(word) is not None for word in ("scores", "run", "resume")):
        raise BadConfig(
            f"{DRY_RUN_OPTION}: only a run that trains has a price; leave scores=, run= "
            "and resume= away"
        )
    if line := describe_paper_differences(config):
        print(f"privdd: {line}", file=sys.stderr)
    experiment = _build_to_price(config.copy())  # which takes on what is chosen for the run
    cost_estimate.check_resources(experiment, path, force=is_forced(config))
    part = "whole rounds of two clients, as your own training cannot be cut short"
    if cost_estimate.trains_by_own_code(experiment):
        timed = part
    else:
        timed = "a part of a few rounds"
    print(f"privdd: {DRY_RUN_OPTION}: timing {timed}", file=sys.stderr, flush=True)
    with deterministic_kernels(experiment.run.device):  # the kernels of the run
        attacks = build_attacks(config)
        estimate = cost_estimate.choose_engine(experiment, attacks, cost_estimate.DRY_RUN_SECONDS)[
            1
        ] or cost_estimate.estimate_cost(experiment, attacks, cost_estimate.DRY_RUN_SECONDS)
    total, *stages = estimate.format_lines()
    lines = [f"{config.name or 'this run'}: {total}; nothing was kept", *stages]
    seconds = estimate.wall_seconds
    if points != 1:
        rest = "; how many points follow is not known before they run"
        if points is not None:
            rest = (
                f", so all take about {format_seconds(points * seconds)} one after the other, "
                "if alike"
            )
        many = f"{points} points; " if points else ""
        lines.insert(0, f"sweep: {many}the first takes about {format_seconds(seconds)}{rest}")
    model = config.get("model")
    numbers = count_model_numbers(experiment.plan)
    if model and numbers:
        if model.get("width"):
            width = f" of width {model.width}"
        else:
            width = ""
        lines.append(
            f"network: {model.get('name') or 'your own'}{width}, {numbers / 1e6:.2g} "
            "million numbers"
        )
    print("\n".join([*lines, estimate.source]))
    return 0


def _build_to_price(config: DictConfig) -> Experiment:
    """The experiment; on noise of the shape of its data, with a line that says so, if these are not
    at hand."""
    from privdd.cli.build import build_experiment
    from privdd.data.sources import load_shape

    try:
        return build_experiment(config)
    except DataNotFound:
        experiment = build_experiment(config, load=load_shape)
        line = f"data={config.data.name} is not at hand: priced from its shape alone"
        print(f"privdd: {DRY_RUN_OPTION}: {line}", file=sys.stderr, flush=True)
        return experiment


def print_help_if_asked(command: str, argv: Sequence[str], out: TextIO) -> bool:
    """Whether the arguments asked for help or for the version, which was then printed."""
    if HELP_OPTIONS & {*argv}:
        print(help_text(command, compose.user_config_folders(argv)), file=out)
    elif "--version" in argv:
        print(f"privdd {__version__}", file=out)
    else:
        return False
    return True


def help_text(command: str, own: Sequence[str] = ()) -> str:
    """Usage, choices, five examples and where to read on. own: the user's own config folders."""
    folders = [compose.config_dir(), *own]
    usage = f"usage: python -m privdd.{command} [KEY=VALUE ...] [-m] [--config-dir DIR]"
    lines = [usage, "", COMMAND_PURPOSES[command], "", "Choices, as NAME=VALUE:"]
    for group in SHOWN_GROUPS:
        if group != "attack" or command == "audit":
            choices = ", ".join(compose.group_choices(group, folders))
            lines += textwrap.wrap(
                choices, 110, initial_indent=f"  {group:<11}", subsequent_indent=" " * 13
            )
    lines += [
        "",
        "Every other setting is KEY=VALUE as well: privacy.noise_multiplier=2, seed=1, "
        "algo.rounds=5.",
        "",
    ]
    lines += ["Examples:"]
    for arguments, meaning in COMMAND_EXAMPLES[command]:
        lines += [f"  python -m privdd.{command} {arguments}", f"      {meaning}"]
    return "\n".join([*lines, "", *OPTIONS_TEXT, "", *HELP_ENDINGS[command]])


CommandRun = Callable[[DictConfig, Path, Sequence[str]], int]


def main(command: str, run: CommandRun) -> int:
    """Run a command: one-line errors; status 0 (done), 1 (error) or 2 (contradiction)."""
    return run_guarded(lambda: _run_command(command, run))


def audit_external_target(argv: list[str], *, is_target: bool = False) -> int | None:
    """The exit status of an audit of what others trained or recorded.

    Args:
        argv: The arguments of ``privdd audit``.
        is_target: Whether it has to be such an audit, whatever was typed.

    Returns:
        None where the command line names nothing of others.
    """
    names_target = is_target or any(item.startswith("target.") for item in argv)
    asks_help = bool(HELP_OPTIONS & {*argv})
    recording = _typed_path("recording", argv)
    stored = _typed_path("run", argv)
    for key, path in (("recording", recording), ("run", stored)):
        if path is not None and not asks_help:
            check_run_exists(key, path)
    if "--version" in argv or not (names_target or recording or stored):
        return None
    if recording is None and stored is not None:
        _check_is_no_recording(stored)
    if not names_target and recording is None:
        return None
    from privdd.external.arguments import TARGET, parse_target_arguments

    if asks_help:
        print(TARGET.help_text(), end="")
        return 0
    keep_freed_memory()
    if recording is not None:
        from privdd.external.recorded_federation import run_recorded_audit

        return run_recorded_audit(recording, argv)
    parse_target_arguments(argv)  # quick, where the imports below are not
    from privdd.external.runner import run_target_audit

    return run_target_audit(argv)


def _typed_path(key: str, argv: Sequence[str]) -> Path | None:
    """The path of ``key=PATH``, where it was typed."""
    for item in argv:
        if item.startswith(f"{key}="):
            return Path(item.removeprefix(f"{key}="))
    return None


def _check_is_no_recording(path: Path) -> None:
    from privdd.recording import is_recording_folder

    if is_recording_folder(path):
        raise BadConfig(f"run={path}: this is a recording; did you mean recording={path}?")


def _run_command(command: str, run: CommandRun) -> int:
    if command == "audit" and (status := audit_external_target(sys.argv[1:])) is not None:
        return status
    if print_help_if_asked(command, sys.argv[1:], sys.stdout):
        return 0
    keep_freed_memory()
    compose.register_resolvers()
    check_spaces(sys.argv[1:])
    public, secret_typed = take_secret(compose.quote_paths(sys.argv[1:]))
    sys.argv = [sys.argv[0], *public]
    typed, trusted = _split_trusted_packages(public)
    priced_only = DRY_RUN_OPTION in typed
    typed = [item for item in typed if item != DRY_RUN_OPTION]
    check_own_files(typed)
    argv = compose.expand_arguments(typed, command)
    if priced_only:
        if trusted:
            raise BadConfig(NOT_TRUSTED)
        if command != "audit":
            raise BadConfig(
                f"{DRY_RUN_OPTION}: the price of audits; training alone is their stage train"
            )
        config = config_of(command, *first_point(argv))
        return print_cost(config, Path.cwd(), count_points(argv) if is_sweep(argv) else 1)
    if any(a.split("=")[0] in HYDRA_OPTIONS for a in argv):
        check_hydra_options(argv)
        _run_with_hydra(command, run, argv, typed)
        return 0
    config = _check_without_torch(command, argv)
    if (status := report_finished_run(command, config, public)) is not None:
        return status
    # a stored run may be on another device, and the points of a sweep may be processes themselves
    if _may_start_processes(config) and not _names_stored_run(config) and not is_sweep(argv):
        start_forkserver(WORKER_MODULES[command], config.device)
    with loading_modules():
        _check_with_torch(config, argv)
        for module in (*WORKER_MODULES[command], *RUN_MODULES[command]):
            importlib.import_module(module)
    for word in ("resume", "run"):
        if config.get(word) is not None:
            from privdd.cli.stored_config import config_of_stored_run, load_stored_config

            path = Path(str(config[word]))
            words = ["python", "-m", f"privdd.{command}", *public]
            stored = load_stored_config(path, trusted)
            if secret_typed and stored.privacy.noise_source != "secret":
                raise unused_secret_error()
            return run(config_of_stored_run(stored, command, argv, typed, word), path, words)
    if trusted:
        raise BadConfig(NOT_TRUSTED)
    if secret_typed and config.privacy.noise_source != "secret":
        raise unused_secret_error()
    return _run_with_hydra(command, run, argv, typed)


def _may_start_processes(config: DictConfig) -> bool:
    """Whether a run may have worker processes, before it is known what it costs, and begins to
    start them."""
    kind = config.engine.kind
    workers = config.engine.workers
    return kind == "processes" or (
        kind == "auto"
        and starts_beforehand(config.preset.name)
        and config.device == "cpu"
        and (workers or usable_cores()) > 1
    )


def check_command(command: str, argv: Sequence[str]) -> DictConfig:
    """The config that was typed (first value of each sweep). Raises BadConfig with one line."""
    config = _check_without_torch(command, argv)
    _check_with_torch(config, argv)
    return config


def _check_without_torch(command: str, argv: Sequence[str]) -> DictConfig:
    """What can be told without torch."""
    config = check_overrides(command, argv)
    check_inputs(config)
    command_settings(config)  # raises for a value that cannot be used
    return config


def _check_with_torch(config: DictConfig, argv: Sequence[str]) -> None:
    """The rest."""
    if not _names_stored_run(config):
        check_settings_used(config, argv)
    from privdd.cli.build import check_config_types

    check_config_types(config)


def _names_stored_run(config: DictConfig) -> bool:
    """Whether ``run=`` or ``resume=`` was typed: the other settings are then those of a stored
    run."""
    return config.get("run") is not None or config.get("resume") is not None


def config_of(command: str, *overrides: str, config_dir: Path | str | None = None) -> DictConfig:
    """The config that a command would run.

    Args:
        command: audit or train.
        *overrides: As on the command line, "privacy.epsilon=3".
        config_dir: A folder of your own yaml files.

    Returns:
        The composed config, checked as the command checks it.

    Raises:
        ValueError: One line, for what cannot run.
    """
    if config_dir is None:
        folder_option = []
    else:
        folder_option = [f"--config-dir={config_dir}"]
    check_own_files([*folder_option, *overrides])
    argv = compose.expand_arguments(compose.quote_paths([*folder_option, *overrides]), command)
    check_command(command, argv)
    config = compose.compose_config(
        command,
        [a for a in argv if not a.startswith("-")],
        compose.user_config_folders(argv),
        hydra=True,
    )
    choices = config.hydra.runtime.choices
    with open_dict(config):
        del config["hydra"]
    compose.name_run(config, choices)
    return config


def _split_trusted_packages(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The arguments without ``trust_code=PACKAGE,...``, and the packages that it names."""
    typed = [item for item in argv if item.startswith(f"{TRUST_CODE}=")]
    if not typed:
        return list(argv), ()
    if not any(item.startswith(("run=", "resume=")) for item in argv):
        raise BadConfig(NOT_TRUSTED)
    from privdd.cli.stored_config import parse_trusted_packages

    packages: list[str] = []
    for item in typed:
        packages += parse_trusted_packages(item.removeprefix(f"{TRUST_CODE}="))
    return [item for item in argv if item not in typed], tuple(packages)


def _run_with_hydra(
    command: str, run: CommandRun, argv: Sequence[str], given: Sequence[str]
) -> int:
    """argv: what Hydra reads; given: what the user wrote, which the run records as its command."""
    status: list[int] = []
    if is_sweep(argv):
        sweep = _create_sweep(command, argv)
    else:
        sweep = None

    def run_job(config: DictConfig) -> int:
        node = HydraConfig.get()
        path = Path(node.runtime.output_dir)
        compose.name_run(config, node.runtime.choices)
        typed = [
            "python",
            "-m",
            f"privdd.{command}",
            *compose.overrides_as_typed(node.overrides.task, given),
        ]
        if sweep is not None:
            return _run_sweep_point(
                sweep, config, path, node.overrides.task, lambda: run(config, path, typed)
            )
        # Hydra would print a traceback
        status.append(run_guarded(lambda: run(config, path, typed)))
        return status[-1]

    sys.argv = [
        sys.argv[0],
        *compose.put_overrides_first(pin_sweep_folder(argv, sweep.folder) if sweep else argv),
    ]
    start = hydra.main(version_base="1.3", config_path=compose.config_dir(), config_name=command)(
        run_job
    )
    if sweep is not None:
        sweep.folder.mkdir(parents=True, exist_ok=True)
        check_plain_folder(sweep.folder)
        return _run_sweep(sweep, start)
    # Hydra raises its errors (such as an unwritable folder) instead of printing a traceback and
    # exiting
    with environment_variables({"HYDRA_FULL_ERROR": "1"}):
        start()
    return max(status, default=0)


def _run_sweep_point(
    sweep: Sweep, config: DictConfig, path: Path, overrides: Sequence[str], run: Callable[[], int]
) -> int:
    """One point of a sweep; only the first was checked before."""

    def work() -> int:
        check_settings_used(config, overrides)
        return run()

    def check_finished() -> None:
        from privdd.cli.build import digest_data
        from privdd.cli.stored_config import check_finished_run
        from privdd.federated.checkpoint import check_same_data
        from privdd.runtime.run_folder import RunFolder

        if config.get("scores") is None:  # what is brought stands in no setting
            check_finished_run(path, config)
            check_same_data(RunFolder(path), digest_data(config))

    return sweep.run_point(path, work, check_finished)


def _create_sweep(command: str, argv: Sequence[str]) -> Sweep:
    """The sweep, in the folder given as hydra.sweep.dir, else in a folder of its own under the
    configured one."""
    typed = [a for a in argv if a.startswith("hydra.sweep.dir=")]
    root = Path(
        str(
            compose.compose_config(
                command, typed, compose.user_config_folders(argv), hydra=True
            ).hydra.sweep.dir
        )
    )
    return Sweep(
        command,
        root if typed else root / sweep_folder_name(command, argv),
        total=count_points(argv),
    )


def _run_sweep(sweep: Sweep, start: Callable[[], object]) -> int:
    try:
        start()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "repeat the same command: finished points are skipped, the others go on"
        ) from None
    except SystemExit as stop:  # a launcher lost a worker: what finished is still compared
        return sweep.finish_sweep() or int(bool(stop.code))
    return sweep.finish_sweep()
