"""What is refused early, by the kind of value in the yaml file, the class refuses too."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from privdd.cli.compose import compose_config, config_dir, default_attacks, group_choices
from privdd.cli.overrides import _needed_kind, check_overrides
from privdd.cli.type_check import declared_parameters, fits_type
from privdd.data.partition import Partition
from privdd.data.sources import load_dataset
from privdd.federated.aggregation import Trust
from privdd.federated.experiment import CaptureSettings
from privdd.runtime.engine import Engine

OTHERS = (True, 3, 0.5, "nosuch", [1], None)
GROUPS = {
    "partition": Partition,
    "engine": Engine,
    "capture": CaptureSettings,
    "trust": Trust,
    "data": load_dataset,
}


def configs() -> Iterator[DictConfig]:
    """A config for every shipped method, mechanism and attack."""
    attacks = f"attack=[{','.join(default_attacks([config_dir()]))}]"
    yield compose_config("audit", [attacks])
    for group in ("algo", "privacy", "model", "trust", "partition"):
        for name in group_choices(group, [config_dir()]):
            yield compose_config("train", [f"{group}={name}"])


def built_nodes(node: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name of the class, its settings) of every object in a config."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield node["_target_"], {key: node[key] for key in node if not key.startswith("_")}
        for part in node.values():
            yield from built_nodes(part)
    elif isinstance(node, list):
        for part in node:
            yield from built_nodes(part)


@pytest.mark.nightly
def test_a_value_of_another_kind_is_none_that_the_class_takes() -> None:
    refused = 0
    for config in configs():
        plain: Any = OmegaConf.to_container(config, resolve=True)
        nodes = [(pkgutil.resolve_name(name), node) for name, node in built_nodes(plain)]
        nodes += [(kind, plain[group]) for group, kind in GROUPS.items()]
        for kind, node in nodes:
            types = declared_parameters(kind)[0]
            for name, default in node.items():
                for value in OTHERS:
                    if name in types and _needed_kind(default, value):
                        assert not fits_type(value, types[name]), (kind, name, value)
                        refused += 1
    assert refused > 2000


def test_right_values_pass() -> None:
    check_overrides(
        "audit", ["algo.rounds=3", "algo.lr=1", "model.norm=null", "audit.worlds=9", "seed=4"]
    )


def test_no_class_is_imported(tmp_path: Path) -> None:
    """Neither our own nor one of the standard library."""
    check_overrides(
        "audit", ["attack=[lira]", f"attack.lira._target_={tmp_path}/own.A", "algo.rounds=2"]
    )
    check_overrides("audit", ["attack=[lira]", "attack.lira._target_=logging.FileHandler"])
