"""``resume=DIR`` and ``run=DIR``: the stored config of a run, with the few settings that may be others."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from privdd.cli.config import composed, own_folders
from privdd.cli.quoting import value_of
from privdd.cli.read_settings import plain
from privdd.cli.stored_config import OUTSIDE, check_outside
from privdd.cli.unused_settings import check_engine_used
from privdd.core.errors import BadConfig

# Settings that do not affect what clients send, so they may change: a resumed run must give the result of one that
# was never interrupted, and a stored run that is attacked again keeps its own audited records.
OF_THE_AUDIT = (
    "worlds", "federations", "federation_rounds", "victims", "confidence", "require", "waive", "worst_pictures", "transcripts",
    "processed_worlds", "processed_federations",
)  # fmt: skip
FEWER = {  # what makes findings weaker where it is less; of federation_rounds, 0 stands for all
    "worlds", "federations", "federation_rounds", "victims", "confidence", "transcripts", "processed_worlds", "processed_federations",
}  # fmt: skip
ASKED = "asked"  # key of a config in memory: the attacks that a command asked for, of all that the folder has
CHANGEABLE = {"resume": ("engine",), "run": ("attack", "engine", *(f"audit.{key}" for key in OF_THE_AUDIT))}


def again(config: DictConfig, command: str, argv: Sequence[str], given: Sequence[str], word: str) -> DictConfig:
    """resume=DIR goes on as configured there; run=DIR attacks that run again, by default with all of its attacks.

    config: the stored one; given: what was typed; argv: the same with attack=all spelled out.
    """
    typed, before = [a for a in given if "=" in a and not a.startswith((f"{word}=", "-"))], config.copy()
    for item in typed:
        key = item.split("=")[0]
        same = key in OUTSIDE and str(OmegaConf.select(config, key)) == value_of(item)
        if not same and not any(key == part or item.startswith(f"{part}.") for part in CHANGEABLE[word]):
            raise BadConfig(f"{item}: together with {word}= only {', '.join(CHANGEABLE[word])} can be changed")
    spelled = [a for a in argv if a in typed or (a.startswith("attack=") and word == "run")]
    fresh = composed(command, [f"preset={config.preset.name}", *spelled], own_folders(argv))
    threads = OmegaConf.select(config, "engine.threads")
    for key in (item.split("=")[0].split("@")[0] for item in typed):
        OmegaConf.update(config, key, OmegaConf.select(fresh, key), merge=False, force_add=True)
    check_outside(config, [*typed, *(["engine.address"] if any(a.startswith("engine=") for a in typed) else [])])
    if word == "resume" and threads is not None:
        _keep_threads(config, threads, any(item.startswith("engine.threads=") for item in typed))
    check_engine_used(config, [item.split("=")[0] for item in typed])
    if word == "run" and "audit.require=some" in argv:  # so ``expand`` says where certain attacks were asked for
        OmegaConf.update(config, "audit.require", "some", force_add=True)
    if command == "audit":
        add_attacks(config, before)
    return config


def add_attacks(config: DictConfig, stored: DictConfig) -> None:
    """Attacks that are asked for are added to those of the run's folder, whose findings stay.

    With other settings than there, an attack stands beside it under a name of its own: lira_2.
    """
    known, asked = dict(plain(stored.get("attack")) or {}), plain(config.get("attack")) or {}
    names = []
    for name, node in asked.items():
        own, count = name, 1
        while own in known and not _same(known[own], node):
            count += 1
            own = f"{name}_{count}"
        known[own] = node
        names.append(own)
    OmegaConf.update(config, "attack", known, merge=False, force_add=True)
    OmegaConf.update(config, ASKED, names, merge=False, force_add=True)


def _same(known: Any, asked: Any) -> bool:
    """Whether an attack's settings are the same, as far as the version that stored them had them."""
    return all(known[key] == asked[key] for key in known.keys() & asked.keys())


def asked_of(config: DictConfig) -> list[str] | None:
    """The attacks that this command asked for, taken out of the config; None where it is not known yet."""
    if config.get(ASKED) is None:
        return None
    with open_dict(config):
        return [str(name) for name in config.pop(ASKED)]


def looks_further(config: DictConfig, stored: DictConfig) -> bool:
    """Whether attacks and tests have more to go by than those that the folder holds.

    Raises BadConfig where it is less: what they find would take the place of more.
    """
    more = False
    for key in sorted(FEWER):
        name = f"audit.{key}"
        old, new = OmegaConf.select(stored, name), OmegaConf.select(config, name)
        if old is None or old == new:
            continue
        if (new or inf) < (old or inf):
            raise BadConfig(
                f"{name}={new}: this run was attacked with {old}, and less cannot take the place of more; "
                "leave it out, or use another folder"
            )
        more = True
    return more


def _keep_threads(config: DictConfig, threads: int, asked_for: bool) -> None:
    """Another engine, but the same threads: with others a sum is rounded otherwise, so the bits would be others."""
    if asked_for and config.engine.threads != threads:
        raise BadConfig(
            f"engine.threads={config.engine.threads}: this run was begun with {threads}, and other threads round "
            f"otherwise; leave it at {threads}"
        )
    config.engine.threads = threads
