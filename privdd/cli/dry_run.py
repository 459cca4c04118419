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

from privdd.core.errors import BadConfig
from privdd.runtime.progress import spell, stage

if TYPE_CHECKING:
    from attacks.types import Attack
    from privdd.auditing.pricing.part_rounds import Rounds
    from privdd.auditing.pricing.price import Price
    from privdd.federated.experiment import Experiment
    from privdd.federated.method import Method

OPTION = "--dry-run"
ROUNDS = ("algo.rounds", "algo.distill_rounds", "algo.base.rounds", "algo.read_rounds", "algo.varied_rounds")
LENGTHS = ("iterations", "steps", "budget")  # of an attack's search, at any depth of its config
PARTS = (40, 20)  # a search of the probe is so many times shorter than its own
LONG = 100  # shorter searches are run as they are
FEW = {"rounds": 1, "federations": 0, "victims": 2}  # of the audit, at most
WORLDS = 3
MOST = 45.0  # CPU seconds of a probe; a longer one is not run


def dry_run(config: DictConfig, path: Path) -> int:
    """Print the price of the audit of ``config`` into ``path``; exit status 0. Raises BadConfig for what cannot run."""
    from attacks.repeatable import repeatable
    from privdd.auditing.pricing.beforehand import timed
    from privdd.auditing.pricing.extrapolated import extrapolated, probe_seconds
    from privdd.auditing.pricing.needs import check_fits
    from privdd.cli.assemble import assemble, attacks_of
    from privdd.cli.read_settings import forced

    if config.get("scores") is not None or config.get("run") is not None or config.get("resume") is not None:
        raise BadConfig(f"{OPTION}: only a run that trains has a price; leave scores=, run= and resume= away")
    whole = assemble(copy.deepcopy(config))
    check_fits(whole, path, force=forced(config))
    _say("timing a part of a few rounds")
    small = _small(config, whole.plan.method.worlds_per_pass if whole.plan.method.shares_work else 0)
    searches = searches_read(config, whole.plan.method, attacks_of(config))
    with repeatable(whole.run.device):  # the kernels of the run
        step, rounds = timed(whole).step, _rounds(whole)  # in this order: the first makes all warm
        length = probe_seconds(whole, small.audit.worlds, rounds, step, [probed_steps(n) for n in searches])
        found = extrapolated(whole, rounds, step, searches) if length > MOST else _probed(whole, config, small, length)
    print("\n".join([f"{config.name or 'this run'}: nothing was kept; {found.source}", *found.lines()]))
    return 0


def _rounds(whole: Experiment) -> Rounds:
    from privdd.auditing.pricing.part_rounds import rounds_in_part, to_time

    with stage(f"{OPTION}: rounds", len(to_time(whole.plan))) as bar:
        return rounds_in_part(whole, bar.advance)


def _probed(whole: Experiment, config: DictConfig, small: DictConfig, length: float) -> Price:
    """By a small audit; length: about so many CPU seconds."""
    from privdd.auditing.findings import write_run
    from privdd.auditing.pricing.probe import Probe, price
    from privdd.cli.assemble import assemble, attacks_of
    from privdd.reporting.page import write_report

    attacks, lengths = dict(attacks_of(config)), {}
    for name, node in (small.get("attack") or {}).items():
        if lengthened := shortened(OmegaConf.to_container(node, resolve=True)):
            first, second, lengths[name] = lengthened
            attacks[name], attacks[f"{name}~1"], attacks[f"{name}~2"] = _built(first, first, second)
    _say(f"a small audit, about {spell(length)}")
    with tempfile.TemporaryDirectory() as folder:
        OmegaConf.save(small, Path(folder) / "config.yaml", resolve=True)

        def report(kept: Any, audited: Any) -> None:
            whole_names = [f for f in audited.findings if "~" not in f.attack]
            write_run(kept, replace(audited, findings=tuple(whole_names)), ["privdd.audit", OPTION])
            write_report(kept.path)

        with redirect_stderr(StringIO()):
            return price(whole, Probe(assemble(small), attacks, lengths), Path(folder), report)


def _say(what: str) -> None:
    print(f"privdd: {OPTION}: {what}", file=sys.stderr, flush=True)


def _small(config: DictConfig, together: int) -> DictConfig:
    """The config of the probe. together: worlds of one pass, where the method replays them so."""
    small = copy.deepcopy(config)
    with open_dict(small):
        for key in ROUNDS:
            if OmegaConf.select(small, key) is not None:
                OmegaConf.update(small, key, 1)
        for name, most in FEW.items():
            small.audit[name] = min(most, small.audit[name])
        small.audit.worlds = min(max(WORLDS, together + 1), small.audit.worlds)
        small.participation, small.trust.dropout, small.tracking = 1.0, 0.0, None  # all are there in the one round
        small.engine = {"kind": "serial", "threads": small.engine.threads}
        small.audit.require = "some"
    return small


def shortened(node: Any) -> tuple[Any, Any, tuple[int, int, int]] | None:
    """An attack's config with its searches shortened by both of ``PARTS``, and the lengths of its longest search in
    the two and in itself; None where it has no long search."""
    longest = max((value for _, value in _searches(node)), default=0)
    if longest < LONG:
        return None
    made = []
    for part in PARTS:
        made.append(copy.deepcopy(node))
        for place, value in list(_searches(made[-1])):
            place[0][place[1]] = max(1, round(value / part)) if value >= LONG else value
    first, second = (max(1, round(longest / part)) for part in PARTS)
    return made[0], made[1], (first, second, longest)


def probed_steps(longest: int) -> int:
    """Steps of a search in the probe, all of its runs together."""
    first, second = (max(1, round(longest / part)) for part in PARTS)
    return 2 * first + second if longest >= LONG else longest


def searches_read(config: DictConfig, method: Method, attacks: Mapping[str, Attack]) -> list[int]:
    """The length of each attack's longest search, of those that read what the method sends."""
    searches, there = longest_searches(config), {*method.uploads.values(), *method.broadcasts.values()}
    return [searches[name] for name, attack in attacks.items() if there & attack.surfaces]


def longest_searches(config: DictConfig) -> dict[str, int]:
    """Attack -> the length of its longest search; 0 of one that does not search."""
    nodes = OmegaConf.to_container(config.get("attack") or OmegaConf.create({}), resolve=True)
    each = nodes.items() if isinstance(nodes, dict) else ()
    longest = lambda node: max((value for (_, key), value in _searches(node) if key != "budget"), default=0)  # noqa: E731
    return {str(name): longest(node) for name, node in each}


def _searches(node: Any) -> Iterator[tuple[tuple[dict[str, Any], str], int]]:
    """((mapping, key), value) of every length of a search at or below ``node``."""
    for key, value in node.items() if isinstance(node, Mapping) else ():
        if key in LENGTHS and isinstance(value, int) and not isinstance(value, bool):
            yield (node, key), value  # type: ignore[misc]
        yield from _searches(value)


def _built(*nodes: Any) -> list[Any]:
    from privdd.cli.assemble import build

    return [build(OmegaConf.create(node)) for node in nodes]


def wanted(argv: list[str]) -> bool:
    """Whether the arguments ask for a price; the option is taken out of them."""
    asked = OPTION in argv
    while OPTION in argv:
        argv.remove(OPTION)
    return asked


def priced(command: str, argv: list[str], config: DictConfig) -> int:
    """``dry_run`` of a checked command line."""
    from privdd.cli.sweeps import is_sweep

    if command != "audit" or is_sweep(argv):
        raise BadConfig(f"{OPTION}: the price of one audit; leave -m away")
    return dry_run(config, Path.cwd())
