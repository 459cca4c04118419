"""``--dry-run``: what an audit, or a sweep of audits, would take, by stage; nothing is kept."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from privdd.core.validation import BadConfig
from privdd.runtime.progress import format_seconds

DRY_RUN_OPTION = "--dry-run"


def print_cost(config: DictConfig, path: Path, points: int | None = 1) -> int:
    """Print what the audit of ``config`` into ``path`` takes; exit status 0. Raises BadConfig for what cannot run.

    points: of a sweep whose first point ``config`` is; None = not known.
    """
    from privdd.auditing.cost_estimate import (
        DRY_RUN_SECONDS,
        check_resources,
        choose_engine,
        count_model_numbers,
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
    whole = "" if points == 1 else f"{format_sweep_price(points, found.wall_seconds)}\n"
    total, *stages = found.format_lines()
    network = describe_network(config.get("model"), count_model_numbers(experiment))
    print(
        "\n".join([f"{whole}{config.name or 'this run'}: {total}; nothing was kept", *stages, *network, found.source])
    )
    return 0


def describe_network(model: Any, numbers: int) -> list[str]:
    """A line about the classifier of a config's ``model`` group, of so many numbers; none where no network is trained together."""
    if not model or not numbers:
        return []
    width = f" of width {model.width}" if model.get("width") else ""
    return [f"network: {model.get('name') or 'your own'}{width}, {numbers / 1e6:.2g} million numbers"]


def format_sweep_price(points: int | None, seconds: float) -> str:
    """How long a sweep takes whose first point takes so many seconds."""
    each = f"the first takes about {format_seconds(seconds)}"
    if points is None:
        return f"sweep: {each}; how many points follow is not known before they run"
    return f"sweep: {points} points; {each}, so all take about {format_seconds(points * seconds)} one after the other, if alike"


def announce_sweep(config: DictConfig, points: int | None) -> None:
    """Say on stderr, before a sweep, how many points it has and how long they take; config: of the first, the price of which a few
    seconds tell. One that cannot run says so when its turn comes."""
    from privdd.auditing.cost_estimate import ANNOUNCEMENT_SECONDS, choose_engine
    from privdd.cli.build import build_attacks, build_experiment
    from privdd.core.device import deterministic_kernels

    said = "sweep: as many points as the sweeper makes" if points is None else f"sweep: {points} points"
    with suppress(ValueError):
        experiment = build_experiment(config)
        with deterministic_kernels(experiment.run.device):
            found = choose_engine(experiment, build_attacks(config), ANNOUNCEMENT_SECONDS)[1]
        said = said if found is None else format_sweep_price(points, found.wall_seconds)
    print(f"privdd: {said}", file=sys.stderr, flush=True)


def take_dry_run_option(argv: list[str]) -> bool:
    """Whether the arguments ask for a price; the option is taken out of them."""
    asked = DRY_RUN_OPTION in argv
    while DRY_RUN_OPTION in argv:
        argv.remove(DRY_RUN_OPTION)
    return asked


def price_command(command: str, argv: list[str], config: DictConfig) -> int:
    """``print_cost`` of a checked command line; config: of the first point of a sweep."""
    from privdd.cli.sweeps import count_points, is_sweep

    if command != "audit":
        raise BadConfig(f"{DRY_RUN_OPTION}: the price of audits; training alone is their stage train")
    return print_cost(config, Path.cwd(), count_points(argv) if is_sweep(argv) else 1)
