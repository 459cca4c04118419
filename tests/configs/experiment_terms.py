"""The rows of an experiment as configs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from privdd.cli.compose import CONFIG_GROUPS, compose_config


@cache
def rows_of(name: str, column: str, *more: str) -> dict[str, DictConfig]:
    """row -> its config, in one column of ``experiment=name``; nobody changes them. more: choices
    for every row (preset=paper)."""
    part: Any = columns_of(name)[column]
    groups, values = _parted(part["overrides"])
    return {row: _row(name, (*more, *groups), row, values) for row in part["accuracy"]}


def _parted(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """(choices of files, single values)."""
    chosen = [item for item in overrides if item.partition("=")[0] in CONFIG_GROUPS]
    return chosen, [item for item in overrides if item not in chosen]


def _row(name: str, fixed: tuple[str, ...], row: str, values: Sequence[str]) -> DictConfig:
    """Rows that differ in single values alone share what is composed, which takes long; a row's own
    values win."""
    groups, own = _parted(row.split())
    config = _composed(name, (*fixed, *groups)).copy()
    for key, value in [item.split("=", 1) for item in (*values, *own)]:
        # refused if there is no such key
        OmegaConf.update(config, key, OmegaConf.from_dotlist([f"it={value}"]).it, merge=True)
    return config


@lru_cache(maxsize=64)
def _composed(name: str, groups: tuple[str, ...]) -> DictConfig:
    return compose_config("train", [f"experiment={name}", *groups])


@lru_cache(maxsize=1)
def columns_of(name: str) -> Any:
    return OmegaConf.to_container(
        compose_config("train", [f"experiment={name}"]).paper.columns, resolve=True
    )
