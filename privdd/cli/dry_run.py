"""``--dry-run``: what an audit would take, by stage; nothing is kept."""

from __future__ import annotations

import sys
from pathlib import Path

from omegaconf import DictConfig

from privdd.core.validation import BadConfig

DRY_RUN_OPTION = "--dry-run"


def print_cost(config: DictConfig, path: Path) -> int:
    """Print what the audit of ``config`` into ``path`` takes; exit status 0. Raises BadConfig for what cannot run."""
    from privdd.auditing.cost_estimate import (
        DRY_RUN_SECONDS,
        check_resources,
        choose_engine,
        estimate_cost,
        trains_by_own_code,
    )
    from privdd.cli.build import build_attacks, build_experiment
    from privdd.cli.settings import is_forced
    from privdd.core.device import deterministic_kernels

    if config.get("scores") is not None or config.get("run") is not None or config.get("resume") is not None:
        raise BadConfig(f"{DRY_RUN_OPTION}: only a run that trains has a price; leave scores=, run= and resume= away")
    experiment = build_experiment(config)
    check_resources(experiment, path, force=is_forced(config))
    part = "whole rounds of two clients, as your own training cannot be cut short"
    timed = part if trains_by_own_code(experiment) else "a part of a few rounds"
    print(f"privdd: {DRY_RUN_OPTION}: timing {timed}", file=sys.stderr, flush=True)
    with deterministic_kernels(experiment.run.device):  # the kernels of the run
        attacks = build_attacks(config)
        found = choose_engine(experiment, attacks, DRY_RUN_SECONDS)[1] or estimate_cost(
            experiment, attacks, DRY_RUN_SECONDS
        )
    print("\n".join([f"{config.name or 'this run'}: nothing was kept; {found.source}", *found.format_lines()]))
    return 0


def take_dry_run_option(argv: list[str]) -> bool:
    """Whether the arguments ask for a price; the option is taken out of them."""
    asked = DRY_RUN_OPTION in argv
    while DRY_RUN_OPTION in argv:
        argv.remove(DRY_RUN_OPTION)
    return asked


def price_command(command: str, argv: list[str], config: DictConfig) -> int:
    """``print_cost`` of a checked command line."""
    from privdd.cli.sweeps import is_sweep

    if command != "audit" or is_sweep(argv):
        raise BadConfig(f"{DRY_RUN_OPTION}: the price of one audit; leave -m away")
    return print_cost(config, Path.cwd())
