"""What the rows of an experiment must share to be compared: rounds, participation, network, data, local work, privacy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig

from privdd.cli.assemble import build
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
