"""Whether a folder holds the run that a config asks for; else nothing in it may be gone on with, or shown as its result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from privdd.cli.own_code import check_code
from privdd.cli.read_settings import UNFINGERPRINTED, code_of, plain
from privdd.cli.secret import storable
from privdd.cli.stored_config import read_stored
from privdd.core.errors import BadConfig


def check_unchanged(path: Path, config: DictConfig) -> None:
    """Raises BadConfig, one line, where what was begun in ``path`` is not what ``config`` asks for."""
    _compare(path, decides(read_stored(path)), decides(storable(config)))
    check_code(path, code_of(config))


def check_finished(path: Path, config: DictConfig) -> None:
    """The same for a finished run and a config that was not assembled yet, of what an audit asks as well."""
    stored, asked = read_stored(path), config.copy()
    if OmegaConf.select(asked, "privacy.epsilon") is not None:  # its noise was chosen when the run began
        asked.privacy.noise_multiplier = stored.privacy.noise_multiplier
    check_unchanged(path, asked)
    old, new = _asks(stored), _asks(asked)
    if all(old["attack"].get(name) == node for name, node in new["attack"].items()):  # others may have been added
        new["attack"] = old["attack"]
    _compare(path, old, {key: value for key, value in new.items() if key in old})  # earlier versions had fewer settings


def _compare(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    if changed := sorted(key for key in {*old, *new} if old.get(key) != new.get(key)):
        raise BadConfig(f"{path}: holds a run of another config ({', '.join(changed)} differ); use another folder")


def _asks(config: DictConfig) -> dict[str, Any]:
    """What an audit tries, apart from the surfaces that it was found to leave out."""
    audit = {f"audit.{k}": v for k, v in (plain(config.get("audit")) or {}).items() if k != "waive"}
    return {**audit, "attack": plain(config.get("attack")) or {}}


def decides(config: DictConfig) -> dict[str, Any]:
    """The parts of a config that affect what clients send."""
    parts = {str(k): v for k, v in plain(config).items() if k not in UNFINGERPRINTED}
    audited = {f"audit.{k}": OmegaConf.select(config, f"audit.{k}") for k in ("client", "records")}
    tail = plain(OmegaConf.select(config, "audit.tail")) or {}  # stored configs of earlier versions have none
    return parts | audited | {f"audit.tail.{k}": v for k, v in tail.items() if v}
