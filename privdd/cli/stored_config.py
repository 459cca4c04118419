"""config.yaml of a run folder, which may come from a stranger: read with limits, checked before anything is built."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from privdd.cli.allowed_targets import check_targets
from privdd.cli.config import PRESETS
from privdd.core.errors import BadConfig
from privdd.runtime.files import DamagedRun, read_bytes
from privdd.runtime.plain_folder import check_folder
from privdd.runtime.renames import renamed

LARGEST = 2**20  # bytes
DEEPEST = 50  # mappings and lists inside each other
STARTS = (
    yaml.FlowSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.BlockMappingStartToken,
    yaml.BlockSequenceStartToken,
)
ENDS = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)
OUTSIDE = ("data.root", "engine.address")  # settings that make a run read files or connect outside its folder


def stored_config(path: Path, trusted: Sequence[str] = ()) -> DictConfig:
    """config.yaml of a run folder, under today's names, safe to build: see ``check_targets``.

    trusted: packages of the user's own whose classes it may name. Raises DamagedRun, one line, for a folder or a
    config that is damaged, another program's, or names what a stored run may not name.
    """
    config = read_stored(path)
    plain: Any = OmegaConf.to_container(config)
    try:
        check_targets(plain, trusted)
        preset = OmegaConf.select(config, "preset.name")
        if preset not in PRESETS:  # it is composed again, as a file's name
            raise BadConfig(f"preset.name={str(preset)[:60]!r}: allowed are {', '.join(PRESETS)}")
        if config.get("scores") is not None:
            raise BadConfig("scores: a stored run holds its own results and reads no other file")
    except (BadConfig, RecursionError) as error:
        raise DamagedRun(f"{path / 'config.yaml'}: {error}") from None
    return config


def read_stored(path: Path) -> DictConfig:
    """The same unchecked: to compare with, never to build from."""
    file = path / "config.yaml"
    if path.is_dir():
        check_folder(path)
    if not file.is_file():
        raise DamagedRun(f"{path}: not a run folder (no config.yaml)")
    try:
        text = read_bytes(file, LARGEST).decode()
        _check_tokens(text)
        config = OmegaConf.load(io.StringIO(text))
        if not isinstance(config, DictConfig) or not {"algo", "data", "partition", "privacy"} <= set(config):
            raise ValueError("keys are missing")
        return OmegaConf.create(_completed(renamed(OmegaConf.to_container(config))))
    except DamagedRun:
        raise
    except Exception as error:  # yaml has its own family of errors
        raise DamagedRun(f"{file}: not a config of privdd ({' '.join(str(error).split())[:100]})") from None


def _check_tokens(text: str) -> None:
    """Raises ValueError for aliases, tags and deep nesting, at the first: to read on could take minutes."""
    depth = 0
    for token in yaml.scan(text, yaml.SafeLoader):
        if isinstance(token, yaml.AliasToken | yaml.TagToken):
            raise ValueError("aliases and tags are not allowed")
        depth += isinstance(token, STARTS) - isinstance(token, ENDS)
        if depth > DEEPEST:
            raise ValueError(f"nested more than {DEEPEST} deep")


def _completed(config: dict[str, Any]) -> dict[str, Any]:
    """With the settings that earlier versions did not have: their noise was paired."""
    privacy = config["privacy"]
    return {**config, "privacy": {"secret": None, "paired_noise": bool(privacy["mechanisms"]), **privacy}}


def check_outside(config: DictConfig, typed: Sequence[str]) -> None:
    """What a stored config would read or reach outside its folder has been typed as well.

    Raises BadConfig, one line with what to type.
    """
    keys = {item.split("=")[0] for item in typed}
    for key in OUTSIDE:
        value = OmegaConf.select(config, key)
        if value is not None and key not in keys:
            raise BadConfig(
                f"{key}={str(value)[:200]}: a stored run reads and reaches nothing outside its folder by itself; "
                f"if you know this place, repeat it: {key}={str(value)[:200]}"
            )
