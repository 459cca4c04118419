"""What the rows of an experiment must share to be compared: rounds, participation, network, data, local work, privacy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from privdd.cli.assemble import build
from privdd.cli.config import composed
from privdd.cli.read_settings import plain

LOCAL = ("local_epochs", "batch_size", "lr", "momentum", "weight_decay")  # of methods that train the classifier locally


def row_terms(config: DictConfig) -> dict[str, Any]:
    """term -> value of one row; a term of local training is absent where a method has none."""
    algo = plain(config.algo)
    inner = algo.get("base") or algo.get("inner") or algo
    shared = {
        "rounds": build(config.algo).rounds,
        "participation": config.participation,
        "model": inner["model"],
        "data": [plain(config.data), plain(config.partition)],
        "privacy": {k: v for k, v in plain(config.privacy).items() if k in ("name", "epsilon", "noise_multiplier")},
    }
    return shared | {name: inner[name] for name in LOCAL if name in inner}


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


def differing(terms: Mapping[str, Mapping[str, Any]]) -> dict[str, set[str]]:
    """term -> the rows whose value is not the most frequent one (of equally frequent ones, the first row's)."""
    names = {name for row in terms.values() for name in row}
    found: dict[str, set[str]] = {}
    for name in sorted(names):
        held = {row: repr(values[name]) for row, values in terms.items() if name in values}
        usual = Counter(held.values()).most_common(1)[0][0]
        if odd := {row for row, value in held.items() if value != usual}:
            found[name] = odd
    return found


def reason(differs: Mapping[str, Mapping[str, str]], term: str, row: str) -> str:
    """Why a row's term differs, as ``paper.differs`` says it ("" where it does not): {term: {start of the row: why}}."""
    said = differs.get(term, {})
    return next((why for start, why in said.items() if row == start or row.startswith(f"{start} ")), "")
