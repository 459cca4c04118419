"""``--dry-run``: what an audit would take, by stage, from a short probe of it, or, where that too is
long, from a part of a few rounds; nothing is kept."""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf, open_dict

from privdd.core.validation import BadConfig
from privdd.runtime.progress import format_seconds, show_progress

if TYPE_CHECKING:
    from attacks.types import Attack
    from privdd.auditing.cost_estimate import CostEstimate
    from privdd.auditing.timing import RoundTimings
    from privdd.federated.experiment import Experiment
    from privdd.federated.method import Method

DRY_RUN_OPTION = "--dry-run"
ROUND_SETTINGS = ("algo.rounds", "algo.distill_rounds", "algo.base.rounds", "algo.read_rounds", "algo.varied_rounds")
SEARCH_LENGTHS = ("iterations", "steps", "budget")  # of an attack's search, at any depth of its config
PROBE_FRACTIONS = (40, 20)  # a search of the probe is so many times shorter than its own
LONG_SEARCH = 100  # shorter searches are run as they are
PROBE_AUDIT_LIMITS = {"rounds": 1, "federations": 0, "victims": 2}  # of the audit, at most
PROBE_REPLAYS = 3
MAX_PROBE_SECONDS = 45.0  # CPU seconds of a probe; a longer one is not run


def print_cost(config: DictConfig, path: Path) -> int:
    """Print the price of the audit of ``config`` into ``path``; exit status 0. Raises BadConfig for what cannot run."""
    from privdd.auditing.cost_estimate import check_resources, extrapolate_cost, probe_seconds, time_unit_costs
    from privdd.cli.build import build_attacks, build_experiment
    from privdd.cli.settings import is_forced
    from privdd.core.device import deterministic_kernels

    if config.get("scores") is not None or config.get("run") is not None or config.get("resume") is not None:
        raise BadConfig(f"{DRY_RUN_OPTION}: only a run that trains has a price; leave scores=, run= and resume= away")
    whole = build_experiment(copy.deepcopy(config))
    check_resources(whole, path, force=is_forced(config))
    _print_progress("timing a part of a few rounds")
    small = _probe_config(
        config, whole.plan.method.audit_hooks.worlds_per_pass if whole.plan.method.audit_hooks.shares_work else 0
    )
    searches = lengths_of_used_searches(config, whole.plan.method, build_attacks(config))
    with deterministic_kernels(whole.run.device):  # the kernels of the run
        step, rounds = time_unit_costs(whole).step, _time_rounds(whole)  # in this order: the first makes all warm
        length = probe_seconds(whole, small.audit.worlds, rounds, step, [count_probe_steps(n) for n in searches])
        found = (
            extrapolate_cost(whole, rounds, step, searches)
            if length > MAX_PROBE_SECONDS
            else _price_by_probe(whole, config, small, length)
        )
    print("\n".join([f"{config.name or 'this run'}: nothing was kept; {found.source}", *found.format_lines()]))
    return 0


def _time_rounds(whole: Experiment) -> RoundTimings:
    from privdd.auditing.timing import rounds_to_time, time_rounds

    with show_progress(f"{DRY_RUN_OPTION}: rounds", len(rounds_to_time(whole.plan))) as bar:
        return time_rounds(whole, bar.advance)


def _price_by_probe(whole: Experiment, config: DictConfig, small: DictConfig, length: float) -> CostEstimate:
    """By a small audit; length: about so many CPU seconds."""
    from privdd.auditing.cost_estimate import CostProbe, estimate_from_probe
    from privdd.auditing.findings import write_audit
    from privdd.cli.build import build_attacks, build_experiment
    from privdd.reporting.page import write_report

    attacks, lengths = dict(build_attacks(config)), {}
    for name, node in (small.get("attack") or {}).items():
        if lengthened := shorten_searches(OmegaConf.to_container(node, resolve=True)):
            first, second, lengths[name] = lengthened
            attacks[name], attacks[f"{name}~1"], attacks[f"{name}~2"] = _build_nodes(first, first, second)
    _print_progress(f"a small audit, about {format_seconds(length)}")
    with tempfile.TemporaryDirectory() as folder:
        OmegaConf.save(small, Path(folder) / "config.yaml", resolve=True)

        def write_probe_report(kept: Any, audited: Any) -> None:
            whole_names = [f for f in audited.findings if "~" not in f.attack]
            write_audit(kept, replace(audited, findings=tuple(whole_names)), ["privdd.audit", DRY_RUN_OPTION])
            write_report(kept.path)

        with redirect_stderr(StringIO()):
            return estimate_from_probe(
                whole, CostProbe(build_experiment(small), attacks, lengths), Path(folder), write_probe_report
            )


def _print_progress(what: str) -> None:
    print(f"privdd: {DRY_RUN_OPTION}: {what}", file=sys.stderr, flush=True)


def _probe_config(config: DictConfig, together: int) -> DictConfig:
    """The config of the probe. together: worlds of one pass, where the method replays them so."""
    small = copy.deepcopy(config)
    with open_dict(small):
        for key in ROUND_SETTINGS:
            if OmegaConf.select(small, key) is not None:
                OmegaConf.update(small, key, 1)
        for name, most in PROBE_AUDIT_LIMITS.items():
            small.audit[name] = min(most, small.audit[name])
        small.audit.worlds = min(max(PROBE_REPLAYS, together + 1), small.audit.worlds)
        small.participation, small.trust.dropout, small.tracking = 1.0, 0.0, None  # all are there in the one round
        small.engine = {"kind": "serial", "threads": small.engine.threads}
        small.audit.require = "some"
    return small


def shorten_searches(node: Any) -> tuple[Any, Any, tuple[int, int, int]] | None:
    """An attack's config with its searches shortened by both of ``PROBE_FRACTIONS``, and the lengths of its longest search in
    the two and in itself; None where it has no long search."""
    longest = max((value for _, value in _iterate_searches(node)), default=0)
    if longest < LONG_SEARCH:
        return None
    made = []
    for part in PROBE_FRACTIONS:
        made.append(copy.deepcopy(node))
        for place, value in list(_iterate_searches(made[-1])):
            place[0][place[1]] = max(1, round(value / part)) if value >= LONG_SEARCH else value
    first, second = (max(1, round(longest / part)) for part in PROBE_FRACTIONS)
    return made[0], made[1], (first, second, longest)


def count_probe_steps(longest: int) -> int:
    """Steps of a search in the probe, all of its runs together."""
    first, second = (max(1, round(longest / part)) for part in PROBE_FRACTIONS)
    return 2 * first + second if longest >= LONG_SEARCH else longest


def lengths_of_used_searches(config: DictConfig, method: Method, attacks: Mapping[str, Attack]) -> list[int]:
    """The length of each attack's longest search, of those that read what the method sends."""
    searches, there = longest_searches(config), {*method.uploads.values(), *method.broadcasts.values()}
    return [searches[name] for name, attack in attacks.items() if there & attack.surfaces]


def longest_searches(config: DictConfig) -> dict[str, int]:
    """Attack -> the length of its longest search; 0 of one that does not search."""
    nodes = OmegaConf.to_container(config.get("attack") or OmegaConf.create({}), resolve=True)
    each = nodes.items() if isinstance(nodes, dict) else ()
    longest = lambda node: max((value for (_, key), value in _iterate_searches(node) if key != "budget"), default=0)  # noqa: E731
    return {str(name): longest(node) for name, node in each}


def _iterate_searches(node: Any) -> Iterator[tuple[tuple[dict[str, Any], str], int]]:
    """((mapping, key), value) of every length of a search at or below ``node``."""
    for key, value in node.items() if isinstance(node, Mapping) else ():
        if key in SEARCH_LENGTHS and isinstance(value, int) and not isinstance(value, bool):
            yield (node, key), value  # type: ignore[misc]
        yield from _iterate_searches(value)


def _build_nodes(*nodes: Any) -> list[Any]:
    from privdd.cli.build import instantiate_node

    return [instantiate_node(OmegaConf.create(node)) for node in nodes]


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
