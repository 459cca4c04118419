"""``resume=DIR`` and ``run=DIR``: the stored config of a run with the few settings that may be others, and whether a folder holds the run that a config asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from privdd.cli.compose import compose_config, override_value, user_config_folders
from privdd.cli.overrides import check_engine_settings_used
from privdd.cli.secret import remove_secret
from privdd.cli.settings import NOT_FINGERPRINTED, check_code_digests, to_plain_settings, user_code_of_config
from privdd.cli.stored_config import OUTSIDE_SETTINGS, check_outside_settings, read_stored_config
from privdd.core.validation import BadConfig

# Settings that do not affect what clients send, so they may change: a resumed run must give the result of one that
# was never interrupted, and a stored run that is attacked again keeps its own audited records.
CHANGEABLE_AUDIT_SETTINGS = (
    "worlds", "federations", "federation_rounds", "victims", "confidence", "require", "waive", "worst_pictures", "transcripts",
    "processed_worlds", "processed_federations",
)  # fmt: skip
FEWER = {  # what makes findings weaker where it is less; of federation_rounds, 0 stands for all
    "worlds", "federations", "federation_rounds", "victims", "confidence", "transcripts", "processed_worlds", "processed_federations",
}  # fmt: skip
ASKED = "asked"  # key of a config in memory: the attacks that a command asked for, of all that the folder has
CHANGEABLE_SETTINGS = {
    "resume": ("engine",),
    "run": ("attack", "engine", *(f"audit.{key}" for key in CHANGEABLE_AUDIT_SETTINGS)),
}


def config_of_stored_run(
    config: DictConfig, command: str, argv: Sequence[str], given: Sequence[str], word: str
) -> DictConfig:
    """resume=DIR goes on as configured there; run=DIR attacks that run again, by default with all of its attacks.

    config: the stored one; given: what was typed; argv: the same with attack=all spelled out.
    """
    typed, before = [a for a in given if "=" in a and not a.startswith((f"{word}=", "-"))], config.copy()
    for item in typed:
        key = item.split("=")[0]
        same = key in OUTSIDE_SETTINGS and str(OmegaConf.select(config, key)) == override_value(item)
        if not same and not any(key == part or item.startswith(f"{part}.") for part in CHANGEABLE_SETTINGS[word]):
            raise BadConfig(f"{item}: together with {word}= only {', '.join(CHANGEABLE_SETTINGS[word])} can be changed")
    spelled = [a for a in argv if a in typed or (a.startswith("attack=") and word == "run")]
    fresh = compose_config(command, [f"preset={config.preset.name}", *spelled], user_config_folders(argv))
    threads = OmegaConf.select(config, "engine.threads")
    for key in (item.split("=")[0].split("@")[0] for item in typed):
        OmegaConf.update(config, key, OmegaConf.select(fresh, key), merge=False, force_add=True)
    check_outside_settings(
        config, [*typed, *(["engine.address"] if any(a.startswith("engine=") for a in typed) else [])]
    )
    if word == "resume" and threads is not None:
        _keep_threads(config, threads, any(item.startswith("engine.threads=") for item in typed))
    check_engine_settings_used(config, [item.split("=")[0] for item in typed])
    if word == "run" and "audit.require=some" in argv:  # so ``expand`` says where certain attacks were asked for
        OmegaConf.update(config, "audit.require", "some", force_add=True)
    if command == "audit":
        add_attacks(config, before)
    return config


def add_attacks(config: DictConfig, stored: DictConfig) -> None:
    """Attacks that are asked for are added to those of the run's folder, whose findings stay.

    With other settings than there, an attack stands beside it under a name of its own: lira_2.
    """
    known, asked = dict(to_plain_settings(stored.get("attack")) or {}), to_plain_settings(config.get("attack")) or {}
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


def check_same_config(path: Path, config: DictConfig) -> None:
    """Raises BadConfig, one line, where what was begun in ``path`` is not what ``config`` asks for."""
    _compare_settings(path, deciding_settings(read_stored_config(path)), deciding_settings(remove_secret(config)))
    check_code_digests(path, user_code_of_config(config))


def check_finished_run(path: Path, config: DictConfig) -> None:
    """The same for a finished run and a config that was not assembled yet, of what an audit asks as well."""
    stored, asked = read_stored_config(path), config.copy()
    if OmegaConf.select(asked, "privacy.epsilon") is not None:  # its noise was chosen when the run began
        asked.privacy.noise_multiplier = stored.privacy.noise_multiplier
    check_same_config(path, asked)
    old, new = _audit_settings_of(stored), _audit_settings_of(asked)
    if all(old["attack"].get(name) == node for name, node in new["attack"].items()):  # others may have been added
        new["attack"] = old["attack"]
    _compare_settings(
        path, old, {key: value for key, value in new.items() if key in old}
    )  # earlier versions had fewer settings


def _compare_settings(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    if changed := sorted(key for key in {*old, *new} if old.get(key) != new.get(key)):
        raise BadConfig(f"{path}: holds a run of another config ({', '.join(changed)} differ); use another folder")


def _audit_settings_of(config: DictConfig) -> dict[str, Any]:
    """What an audit tries, apart from the surfaces that it was found to leave out."""
    audit = {f"audit.{k}": v for k, v in (to_plain_settings(config.get("audit")) or {}).items() if k != "waive"}
    return {**audit, "attack": to_plain_settings(config.get("attack")) or {}}


def deciding_settings(config: DictConfig) -> dict[str, Any]:
    """The parts of a config that affect what clients send."""
    parts = {str(k): v for k, v in to_plain_settings(config).items() if k not in NOT_FINGERPRINTED}
    audited = {f"audit.{k}": OmegaConf.select(config, f"audit.{k}") for k in ("client", "records")}
    tail = (
        to_plain_settings(OmegaConf.select(config, "audit.tail")) or {}
    )  # stored configs of earlier versions have none
    return parts | audited | {f"audit.tail.{k}": v for k, v in tail.items() if v}
