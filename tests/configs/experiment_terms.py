"""The rows of an experiment as configs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from privdd.cli.config import composed


def rows_of(name: str, column: str, more: Sequence[str] = ()) -> dict[str, DictConfig]:
    """row -> its config, in one column of ``experiment=name``. more: overrides for every row (preset=paper)."""
    part: Any = _columns(name)[column]
    values = [item for item in part["overrides"] if "." in item.split("=")[0]]
    groups = [item for item in part["overrides"] if item not in values]
    return {row: _row(name, (*more, *groups), row, values) for row in part["accuracy"]}


def _row(name: str, fixed: tuple[str, ...], row: str, values: Sequence[str]) -> DictConfig:
    """Columns that differ in single values alone share what is composed, which takes long; a row's own values win."""
    own = {item.split("=")[0] for item in row.split()}
    config = _composed(name, fixed, row).copy()
    for key, value in OmegaConf.from_dotlist([v for v in values if v.split("=")[0] not in own]).items():
        OmegaConf.update(config, str(key), value, merge=True)
    return config


@lru_cache(maxsize=64)
def _composed(name: str, fixed: tuple[str, ...], row: str) -> DictConfig:
    return composed("train", [f"experiment={name}", *fixed, *row.split()])


@lru_cache(maxsize=1)
def _columns(name: str) -> Any:
    return OmegaConf.to_container(composed("train", [f"experiment={name}"]).paper.columns, resolve=True)
