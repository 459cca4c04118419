"""From a composed config to the objects of a run; everything that can be refused is refused here."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dp_accounting as dpa
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from attacks.types import Adversary, Attack, Family, Surface
from privdd.config import BadConfig, all_attacks, composed, config_dir
from privdd.core import Keys, Method, Problem, Records, Shard
from privdd.data.allotment import Partition
from privdd.data.dataset import Dataset
from privdd.data.shards import make_shards
from privdd.data.sources import load
from privdd.engine import Engine
from privdd.federation import Plan
from privdd.ledger import Ledger
from privdd.pace import check_training
from privdd.privacy.accounting import calibrate
from privdd.privacy.base import Mechanism
from privdd.training import Capture

UNFINGERPRINTED = ("attack", "audit", "engine", "capture", "run", "resume", "scores", "name", "tracking", "paper")


@dataclass(frozen=True)
class Experiment:
    """A run, assembled and checked, before anything is computed."""

    config: DictConfig
    plan: Plan
    dataset: Dataset
    shards: Sequence[Shard]
    engine: Engine
    capture: Capture

    @property
    def test(self) -> Records:
        return self.dataset.test

    def ledger(self) -> Ledger:
        privacy = self.config.privacy
        return Ledger(str(privacy.relation), str(privacy.unit), float(privacy.delta))  # type: ignore[arg-type]


def plain(node: Any) -> Any:
    """A config node as resolved dicts, lists and numbers."""
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def build(node: Any) -> Any:
    """``_target_`` configs to objects. Raises the constructor's own ValueError, or BadConfig."""
    try:
        return instantiate(node, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, ValueError):
            raise cause from None
        raise BadConfig(" ".join(str(cause or error).split())[:300]) from None


def fingerprint(config: DictConfig) -> str:
    """A digest of everything that decides what clients send (not of how it is attacked)."""
    content = {k: v for k, v in plain(config).items() if k not in UNFINGERPRINTED}
    return hashlib.blake2b(json.dumps(content, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def assemble(config: DictConfig) -> Experiment:
    """Raises ValueError (one line each) for anything that cannot run."""
    if str(config.device) != "cpu":
        _check_device(str(config.device))
    keys = Keys(_whole("seed", config.seed))
    partition = Partition(**plain(config.partition))
    dataset = _load(plain(config.data), keys)
    shards = make_shards(dataset, partition, keys.fold("public", "partition"))
    method: Method = build(config.algo)
    victim = _victim(config, shards)
    check_training(str(OmegaConf.select(config, "audit.training", default="auto")))
    problem = Problem(dataset.shape, dataset.classes, len(shards), str(config.device))
    mechanisms = _mechanisms(config, method)
    if "update" in mechanisms and hasattr(method, "with_client_privacy"):
        method = method.with_client_privacy()
    plan = Plan(
        keys,
        problem,
        method,
        mechanisms,
        str(config.privacy.noise_source),
        str(config.privacy.relation),
        float(config.participation),
        victim,
    )
    if config.privacy.epsilon is not None:
        plan = _calibrated(config, plan)
    _check_privacy(config, shards, victim)
    engine = Engine(**plain(config.engine))
    return Experiment(config, plan, dataset, shards, engine, Capture(**plain(config.capture)))


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadConfig(f"{name}={value!r}: a whole number is needed")
    return value


def _check_device(device: str) -> None:
    import torch

    if device != "cuda" or not torch.cuda.is_available():
        raise BadConfig(f"device={device}: allowed are cpu, and cuda where a GPU is present")


def _load(data: Mapping[str, Any], keys: Keys) -> Dataset:
    return load(keys=keys.fold("public"), **data)


def _victim(config: DictConfig, shards: Sequence[Shard]) -> int:
    client = OmegaConf.select(config, "audit.client")
    if client in (None, "auto"):
        return max(range(len(shards)), key=lambda k: len(shards[k].train))
    return _whole("audit.client", client)


def _mechanisms(config: DictConfig, method: Method, noise_multiplier: float | None = None) -> dict[str, Mechanism]:
    node = config.privacy
    if noise_multiplier is not None:
        node = OmegaConf.merge(config, {"privacy": {"noise_multiplier": noise_multiplier}}).privacy
    made = {str(name): build(part) for name, part in (node.mechanisms or {}).items()}
    for name in made:
        if name not in method.uploads and name not in method.queries:
            known = sorted({*method.uploads, *method.queries})
            raise BadConfig(
                f"privacy={config.privacy.name}: its mechanism {name!r} has no place in {type(method).__name__}, "
                f"whose uploads and queries are {', '.join(known)}"
            )
    return made


def _calibrated(config: DictConfig, plan: Plan) -> Plan:
    """The noise multiplier for privacy.epsilon, from the plan of releases alone."""
    from dataclasses import replace

    target = float(config.privacy.epsilon)
    if not target > 0:
        raise BadConfig(f"privacy.epsilon={target}: a number above 0 is needed")
    if not plan.mechanisms:
        raise BadConfig(
            f"privacy.epsilon={target}: privacy={config.privacy.name} sets no mechanism whose noise could be chosen"
        )
    spends = getattr(plan.method, "spends", None)
    if spends is None:
        raise BadConfig(
            f"privacy.epsilon={target}: {type(plan.method).__name__} cannot plan its releases; set privacy.noise_multiplier"
        )

    def total(z: float) -> dpa.DpEvent:
        return planned_event(replace(plan, mechanisms=_mechanisms(config, plan.method, z)))

    z = calibrate(total, target, float(config.privacy.delta), relation=str(config.privacy.relation))  # type: ignore[arg-type]
    config.privacy.noise_multiplier = float(z)
    return replace(plan, mechanisms=_mechanisms(config, plan.method, float(z)))


def planned_event(plan: Plan) -> dpa.DpEvent:
    """What the busiest client will have spent at the end, per partition cell."""
    spends = plan.method.spends  # type: ignore[attr-defined]
    taken = [plan.participants(t) for t in range(plan.method.rounds)]
    busiest: dict[str, int] = {}
    for client in range(plan.problem.clients):
        counts: dict[str, int] = {}
        for t, chosen in enumerate(taken):
            if client in chosen:
                for name, count in spends(t, plan.mechanisms).items():
                    counts[name] = counts.get(name, 0) + count
        if sum(counts.values()) > sum(busiest.values()):
            busiest = counts
    events = [dpa.SelfComposedDpEvent(plan.mechanisms[n].event, c) for n, c in busiest.items() if n in plan.mechanisms]  # type: ignore[attr-defined]
    return dpa.ComposedDpEvent(events)


def _check_privacy(config: DictConfig, shards: Sequence[Shard], victim: int) -> None:
    privacy = config.privacy
    if str(privacy.noise_source) not in ("seed", "os"):
        raise BadConfig(f"privacy.noise_source={privacy.noise_source}: allowed are seed, os")
    records = max(len(s.train) for s in shards)
    if str(privacy.unit) == "record" and privacy.mechanisms and float(privacy.delta) * records > 1:
        warnings.warn(f"privacy.delta={privacy.delta} is above 1/{records}, one over a client's records", stacklevel=2)


def attacks_of(config: DictConfig) -> dict[str, Attack]:
    """name -> attack, in a fixed order."""
    return {str(name): build(node) for name, node in sorted((config.get("attack") or {}).items())}


def reads(attack: Attack, surface: Surface, adversary: Adversary, worlds: int) -> bool:
    """Whether an attack reads such a view: its surface, its adversary, and enough worlds (0 = none in it)."""
    if surface not in attack.surfaces or adversary not in attack.adversaries:
        return False
    if attack.family == Family.MEMBERSHIP:
        return worlds >= getattr(attack, "least_worlds", 2)
    if attack.family == Family.GRADIENT_INVERSION:
        return worlds == 0  # the real update of many records and steps is the probes' easier sibling
    return worlds > 0


def _views(method: Method, audit: DictConfig) -> Iterator[tuple[Surface, Adversary, int]]:
    """Surface, adversary and number of worlds of every view that an audit of this method will have."""
    worlds, federations = int(audit.worlds), min(int(audit.federations), int(audit.worlds))
    for surface in method.uploads.values():
        yield surface, Adversary.SERVER, worlds
        if surface == Surface.UPDATE and int(audit.victims) > 0:
            yield surface, Adversary.SERVER, 0
    for surface in method.broadcasts.values():
        adversary = Adversary.PUBLIC if surface == Surface.GLOBAL_MODEL else Adversary.PEER
        yield surface, adversary, worlds if surface == Surface.SHARED_FEATURES else max(1, federations)


def check_coverage(method: Method, attacks: Mapping[str, Attack], waived: Mapping[str, str], audit: DictConfig) -> None:
    """Every surface is attacked or waived in writing, before any training. Raises BadConfig.

    audit: how many worlds there will be, which decides what membership attacks can read.
    """
    empty = sorted(s for s, reason in waived.items() if not str(reason).strip())
    if empty:
        raise BadConfig(f"audit.waive.{empty[0]}: a reason is needed")
    surfaces = {str(s) for s in (*method.uploads.values(), *method.broadcasts.values())}
    missing = sorted(surfaces - _covered(method, attacks, audit) - set(waived))
    if missing:
        more = _helpful(method, attacks, missing, audit)
        adding = f"ask for attack=[{','.join([*attacks, *more])}], or " if more else ""
        waiving = " ".join(f"audit.waive.{surface}='reason'" for surface in missing)
        raise BadConfig(
            f"attack=[{','.join(attacks)}]: no attack for {', '.join(missing)} with audit.worlds={audit.worlds}, "
            f"audit.federations={audit.federations}; {adding}waive {'them' if len(missing) > 1 else 'it'}: {waiving}"
        )


def _covered(method: Method, attacks: Mapping[str, Attack], audit: DictConfig) -> set[str]:
    return {str(s) for s, who, n in _views(method, audit) if any(reads(a, s, who, n) for a in attacks.values())}


def _helpful(method: Method, attacks: Mapping[str, Attack], missing: Sequence[str], audit: DictConfig) -> list[str]:
    """A few of the shipped attacks that together read all of ``missing``; empty where none do."""
    names = all_attacks([config_dir()])
    known = attacks_of(composed("audit", [f"attack=[{','.join(names)}]"]))
    reach = {name: _covered(method, {name: attack}, audit) for name, attack in known.items() if name not in attacks}
    left, chosen = set(missing), []
    while left and reach:
        best = max(sorted(reach), key=lambda name: len(reach[name] & left))
        if not reach[best] & left:
            return []
        chosen.append(best)
        left -= reach.pop(best)
    return chosen if not left else []
