"""What ``privdd.audit`` and ``privdd.train`` share: argument checks, Hydra, resume, exit status.

What takes long to import (torch, scipy) is imported after the command line was checked, so that a mistyped one is
refused at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, open_dict

from privdd.auditing.targets.target_command import USAGE, asks_for_target, read_command
from privdd.cli import dry_run
from privdd.cli.config import (
    as_written,
    composed,
    config_dir,
    expand,
    guarded,
    name_run,
    overrides_first,
    own_folders,
    register_resolvers,
)
from privdd.cli.help import answered
from privdd.cli.overrides import OF_HYDRA, check_overrides
from privdd.cli.quoting import quoted
from privdd.cli.read_settings import audit_settings, privacy_settings, run_settings
from privdd.cli.secret import taken, unused
from privdd.cli.sweeps import Sweep, asked, count_points, is_sweep, pinned
from privdd.core.errors import BadConfig
from privdd.runtime.allocator import keep_memory
from privdd.runtime.plain_folder import check_folder
from privdd.runtime.preloaded import start
from privdd.tapping.named_recording import recording_named

Run = Callable[[DictConfig, Path, Sequence[str]], int]
WORKERS_LOAD = {  # command -> modules that its worker processes need; torch imports torch._dynamo at its first vmap
    "audit": ("torch._dynamo", "privdd.auditing.pipeline"),
    "train": ("torch._dynamo", "privdd.federated.simulation"),
}
TRUST_MODELS = {"local", "secagg", "shuffle"}  # configs/trust: what a server sees, and no packages
NOT_TRUSTED = (
    "trust: packages are allowed together with run= or resume= only (a config of your own is trusted as it is); "
    "what the server sees is trust=local or trust=secagg"
)


def main(command: str, run: Run) -> int:
    """Run a command: one-line errors; status 0 (done), 1 (error) or 2 (contradiction)."""
    return guarded(lambda: _main(command, run))


def _main(command: str, run: Run) -> int:
    outside = command == "audit" and asks_for_target(sys.argv[1:])
    if outside and {"-h", "--help"} & {*sys.argv}:
        print(USAGE, end="")
        return 0
    if answered(command, sys.argv[1:], sys.stdout):
        return 0
    keep_memory()
    if command == "audit" and (recording := recording_named(sys.argv[1:])) is not None:
        from privdd.auditing.targets.recorded_run import run_recorded

        return run_recorded(recording, sys.argv[1:])
    if outside:
        read_command(sys.argv[1:])  # quick, where the imports below are not
        from privdd.auditing.targets.run_target import run_target

        return run_target(sys.argv[1:])
    register_resolvers()
    public, secret_typed = taken(quoted(sys.argv[1:]))
    sys.argv = [sys.argv[0], *public]
    typed, trusted = _without_trust(public)
    priced_only = dry_run.wanted(typed)
    argv = expand(typed, command)
    if priced_only:
        if trusted:
            raise BadConfig(NOT_TRUSTED)
        return dry_run.priced(command, argv, config_of(command, *argv))
    if any(a.split("=")[0] in OF_HYDRA for a in argv):
        _hydra(command, run, argv, typed)
        return 0
    config = _quickly_checked(command, argv)
    # a stored run may be on another device, and the points of a sweep may be processes themselves
    if config.engine.kind == "processes" and not _of_stored_run(config) and not is_sweep(argv):
        start(WORKERS_LOAD[command], config.device)
    _checked(config, argv)
    for word in ("resume", "run"):
        if config.get(word) is not None:
            from privdd.cli.again import again
            from privdd.cli.stored_config import stored_config

            path = Path(str(config[word]))
            stored = stored_config(path, trusted)
            if secret_typed and stored.privacy.noise_source != "secret":
                raise unused()
            return run(again(stored, command, argv, typed, word), path, ["python", "-m", f"privdd.{command}", *public])
    if trusted:
        raise BadConfig(NOT_TRUSTED)
    if secret_typed and config.privacy.noise_source != "secret":
        raise unused()
    return _hydra(command, run, argv, typed)


def checked(command: str, argv: Sequence[str]) -> DictConfig:
    """The config that was typed (first value of each sweep). Raises BadConfig with one line."""
    config = _quickly_checked(command, argv)
    _checked(config, argv)
    return config


def _quickly_checked(command: str, argv: Sequence[str]) -> DictConfig:
    """What can be told without torch."""
    config = check_overrides(command, argv)
    run_settings(config), privacy_settings(config), audit_settings(config)
    return config


def _checked(config: DictConfig, argv: Sequence[str]) -> None:
    """The rest."""
    from privdd.cli.unused_settings import check_used

    if not _of_stored_run(config):
        check_used(config, argv)
    from privdd.cli.validation import check_types

    check_types(config)


def _of_stored_run(config: DictConfig) -> bool:
    """Whether ``run=`` or ``resume=`` was typed: the other settings are then those of a stored run."""
    return config.get("run") is not None or config.get("resume") is not None


def config_of(command: str, *overrides: str, config_dir: Path | str | None = None) -> DictConfig:
    """The config that ``python -m privdd.COMMAND OVERRIDES`` would run. Raises ValueError with one line."""
    own = [] if config_dir is None else [f"--config-dir={config_dir}"]
    argv = expand(quoted([*own, *overrides]), command)
    checked(command, argv)
    config = composed(command, [a for a in argv if not a.startswith("-")], own_folders(argv), hydra=True)
    choices = config.hydra.runtime.choices
    with open_dict(config):
        del config["hydra"]
    name_run(config, choices)
    return config


def _without_trust(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The arguments without the packages that ``trust=`` names, and these; ``trust=secagg`` names what a server sees."""
    naming = [a for a in argv if a.startswith("trust=") and not set(a[6:].strip("[]").split(",")) <= TRUST_MODELS]
    if not naming:
        return list(argv), ()
    if not any(a.startswith(("run=", "resume=")) for a in argv):
        raise BadConfig(NOT_TRUSTED)
    from privdd.cli.allowed_targets import trusted_packages

    named, kept = [a.removeprefix("trust=") for a in naming], [a for a in argv if a not in naming]
    return kept, tuple(package for text in named for package in trusted_packages(text))


def _hydra(command: str, run: Run, argv: Sequence[str], given: Sequence[str]) -> int:
    """argv: what Hydra reads; given: what the user wrote, which the run records as its command."""
    status: list[int] = []
    sweep = _sweep(command, argv) if is_sweep(argv) else None

    def job(config: DictConfig) -> int:
        node = HydraConfig.get()
        path = Path(node.runtime.output_dir)
        name_run(config, node.runtime.choices)
        typed = ["python", "-m", f"privdd.{command}", *as_written(node.overrides.task, given)]
        if sweep is not None:
            work = lambda: _point(config, node.overrides.task, lambda: run(config, path, typed))  # noqa: E731
            return sweep.point(path, work, lambda: _check_finished(path, config))
        status.append(guarded(lambda: run(config, path, typed)))  # Hydra would print a traceback
        return status[-1]

    sys.argv = [sys.argv[0], *overrides_first(pinned(command, argv, sweep.folder) if sweep else argv)]
    start = hydra.main(version_base="1.3", config_path=config_dir(), config_name=command)(job)
    if sweep is not None:
        sweep.folder.mkdir(parents=True, exist_ok=True)
        check_folder(sweep.folder)
        return _swept(sweep, start)
    with _raising():
        start()
    return max(status, default=0)


def _point(config: DictConfig, typed: Sequence[str], work: Callable[[], int]) -> int:
    """One point of a sweep; only the first was checked before."""
    from privdd.cli.unused_settings import check_used

    check_used(config, typed)
    return work()


def _check_finished(path: Path, config: DictConfig) -> None:
    from privdd.cli.unchanged import check_finished

    if config.get("scores") is None:  # what is brought stands in no setting
        check_finished(path, config)


@contextmanager
def _raising() -> Iterator[None]:
    """Make Hydra raise its errors (such as an unwritable folder) instead of printing a traceback and exiting."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        os.environ.pop("HYDRA_FULL_ERROR")
        if before is not None:
            os.environ["HYDRA_FULL_ERROR"] = before


def _sweep(command: str, argv: Sequence[str]) -> Sweep:
    """The sweep, in the folder given as hydra.sweep.dir, else in a folder of its own under the configured one."""
    typed = [a for a in argv if a.startswith("hydra.sweep.dir=")]
    root = Path(str(composed(command, typed, own_folders(argv), hydra=True).hydra.sweep.dir))
    return Sweep(command, root if typed else root / asked(command, argv).folder, total=count_points(argv))


def _swept(sweep: Sweep, start: Callable[[], object]) -> int:
    try:
        start()
    except KeyboardInterrupt:
        raise KeyboardInterrupt("repeat the same command: finished points are skipped, the others go on") from None
    except SystemExit as stop:  # a launcher lost a worker: what finished is still compared
        return sweep.finish() or int(bool(stop.code))
    return sweep.finish()
