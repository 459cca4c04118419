"""One row of a paper's table: its config as plain values, its training, and audits of the same
kind; what the rows of a column
must share to be compared: rounds, participation, network, data, local work, privacy."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from privdd.cli.build import build_experiment, instantiate_node
from privdd.cli.compose import compose_config, register_resolvers
from privdd.cli.main import config_of
from privdd.cli.plain_config import iterate_settings, to_plain_settings
from privdd.cli.run import run_audit, run_training
from privdd.cli.settings import settings_fingerprint
from privdd.cli.sweeps import short_digest
from privdd.federated.experiment import Experiment

# of methods that train the classifier locally
LOCAL_TRAINING_TERMS = ("local_epochs", "batch_size", "lr", "momentum", "weight_decay")
IGNORED_SETTINGS = (
    "paper",
    "preset",
    "name",
    "seed",
    "engine",
    "capture",
    "run",
    "resume",
    "tracking",
    "device",
)


@lru_cache(maxsize=256)
def _training_config(overrides: tuple[str, ...]) -> DictConfig:
    return config_of("train", *overrides)


@lru_cache(maxsize=256)
def _composed_config(overrides: tuple[str, ...]) -> DictConfig:
    # unchecked: the data of a paper's row may not be on this machine
    return compose_config("train", overrides)


def row_config(overrides: Sequence[str], seed: int = 0) -> DictConfig:
    """The whole config of a row. Raises BadConfig, in one line."""
    config = _training_config(tuple(overrides)).copy()
    config.seed = seed
    return config


def config_digest(config: DictConfig, more: Any) -> str:
    """Another one where a setting that affects what clients send has another value, or ``more``,
    which does not."""
    return short_digest(
        [settings_fingerprint(config), json.dumps(to_plain_settings(more), sort_keys=True)]
    )


def terms_of_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """What the row must share with the others of its column to be compared with them."""
    return row_terms(_training_config(tuple(overrides)))


def flat_settings_of(overrides: Sequence[str]) -> dict[str, Any]:
    """Dotted key -> value of every setting that can change a result. The row's data need not be on
    this machine."""
    settings = to_plain_settings(_composed_config(tuple(overrides)))
    return dict(
        iterate_settings(
            {key: value for key, value in settings.items() if key not in IGNORED_SETTINGS}
        )
    )


def train_row(overrides: Sequence[str], seed: int, path: Path) -> int:
    """Train the row into ``path``; one that was stopped goes on. Raises what training raises."""
    register_resolvers()
    typed = ["python", "-m", "privdd.train", *overrides, f"seed={seed}"]
    return run_training(row_config(overrides, seed), path, typed)


def build_row_experiment(overrides: Sequence[str], seed: int) -> Experiment:
    """The row, assembled, to be run by hand."""
    register_resolvers()
    return build_experiment(row_config(overrides, seed))


def audit_row(overrides: Sequence[str], path: Path) -> int:
    """Audit a run into ``path`` -> exit status of privdd.audit; one that was stopped goes on."""
    register_resolvers()
    return run_audit(
        config_of("audit", *overrides), path, ["python", "-m", "privdd.audit", *overrides]
    )


def row_terms(config: DictConfig) -> dict[str, Any]:
    """term -> value of one row; a term of local training is absent where a method has none."""
    algo = to_plain_settings(config.algo)
    privacy = to_plain_settings(config.privacy)
    inner = algo.get("base") or algo.get("inner") or algo
    shared = {
        "rounds": instantiate_node(config.algo).rounds,
        "participation": config.participation,
        "model": inner["model"],
        "data": [to_plain_settings(config.data), to_plain_settings(config.partition)],
        "privacy": {
            k: v for k, v in privacy.items() if k in ("name", "epsilon", "noise_multiplier")
        },
    }
    return shared | {name: inner[name] for name in LOCAL_TRAINING_TERMS if name in inner}


def find_differing_terms(terms: Mapping[str, Mapping[str, Any]]) -> dict[str, set[str]]:
    """term -> the rows whose value is not the most frequent one (of equally frequent ones, the
    first row's)."""
    names = {name for row in terms.values() for name in row}
    differing: dict[str, set[str]] = {}
    for name in sorted(names):
        held = {row: repr(values[name]) for row, values in terms.items() if name in values}
        usual = Counter(held.values()).most_common(1)[0][0]
        if odd := {row for row, value in held.items() if value != usual}:
            differing[name] = odd
    return differing


def stated_difference(differs: Mapping[str, Mapping[str, str]], term: str, row: str) -> str:
    """Why a row's term differs, as ``paper.differs`` says it ("" where it does not): {term: {start
    of the row: why}}."""
    reasons = differs.get(term, {})
    return next(
        (why for start, why in reasons.items() if row == start or row.startswith(f"{start} ")), ""
    )
