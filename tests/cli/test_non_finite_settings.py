"""Infinity and NaN stand for nothing: each is refused in one line wherever a shipped config holds a
number.

Typed, it is the line of ``check_config_types``; given to the class itself in Python, that of the
class."""

from __future__ import annotations

import math
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from typing import Any

import pytest
from omegaconf import OmegaConf

from privdd.cli.build import check_config_types
from privdd.cli.compose import compose_config, config_dir, group_choices
from privdd.cli.plain_config import iterate_settings, to_plain_settings
from privdd.core.validation import BadConfig, is_number
from privdd.data.partition import Partition
from privdd.runtime.engine import Engine

OWN = ("own", "own_training")  # they need a file of the user's own
ODD = (math.inf, -math.inf, math.nan)
# group -> the class of its nodes, which have no _target_
UNNAMED = {
    "partition": Partition,
    "engine": Engine,
}


def names(group: str) -> list[str]:
    return group_choices(group, [config_dir()])


ATTACKS = f"attack=[{','.join(names('attack'))}]"
CHOICES = [
    ATTACKS,
    *(
        f"{group}={name}"
        for group in ("algo", "privacy", "model", "partition", "engine")
        for name in names(group)
        if name not in OWN
    ),
]


def places(value: Any) -> list[tuple[int, ...]]:
    """Where a setting holds a number: () of one, the indices of the first of a list, of a list of
    lists."""
    if isinstance(value, list):
        return [(0, *at) for at in places(value[0])] if value else []
    return [()] if is_number(value) else []


def put(value: Any, at: tuple[int, ...], number: float) -> Any:
    if not at:
        return number
    return [put(value[0], at[1:], number), *value[1:]]


def changed(settings: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, the settings with that one infinite or NaN)."""
    for name, value in settings.items():
        for at in places(value):
            yield from ((name, {**settings, name: put(value, at, odd)}) for odd in ODD)


def targets(node: Any) -> Iterator[dict[str, Any]]:
    """Every node with a ``_target_``, at any depth."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield node
        for inner in node.values():
            yield from targets(inner)


def built(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    return (
        pkgutil.resolve_name(node["_target_"])(**settings_of(node))
        if "_target_" in node
        else settings_of(node)
    )


def classes(group: str, node: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Every class that is built from a group's node, and its settings."""
    if group in UNNAMED:
        yield UNNAMED[group], node
    yield from (
        (pkgutil.resolve_name(inner["_target_"]), settings_of(inner)) for inner in targets(node)
    )


def settings_of(node: dict[str, Any]) -> dict[str, Any]:
    return {name: built(value) for name, value in node.items() if name != "_target_"}


@cache
def resolved(choice: str) -> dict[str, Any]:
    found: dict[str, Any] = to_plain_settings(compose_config("audit", [choice]))
    return found


@pytest.mark.nightly(
    cases=[
        "choice0",
        "algo=dp_merf",
        "algo=feddm_guided_dp",
        "algo=feddm_guided_scattering",
        "algo=fedfed_dp",
        "algo=fedfed_raw",
        "algo=fedfed_released",
        "algo=fedfed_virtual",
        "algo=fedlgd_dp",
        "algo=dp_head",
        "algo=dp_head_random",
        "algo=dp_head_scattering",
        "algo=dp_means",
        "algo=dp_votes",
        "algo=fedadam",
        "algo=fedavg_adaptive",
        "algo=fedavgm",
        "algo=fedcgs",
        "algo=feddm",
        "algo=feddm_public_dp",
        "algo=fedfed_flbench",
        "algo=fedlgd",
        "algo=fedmd",
        "algo=fednova",
        "algo=fedproto",
        "algo=fedprox",
        "algo=fedrd",
        "algo=fedrd_dp",
        "algo=fedrd_printed",
        "algo=vhl",
        "privacy=class_sums",
        "privacy=fedfed_flbench",
        "privacy=fedfed_raw",
        "privacy=fedfed_released",
        "privacy=gaussian_features",
        "privacy=guided",
        "privacy=guided_scattering",
        "privacy=none",
        "privacy=public_embedding",
        "privacy=random_embedding",
        "privacy=scattering_head",
        "privacy=set_gradient",
        "model=convnet_fedrd",
        "model=convnet_fedrd_instance",
        "model=convnet_plain",
        "model=mlp",
        "model=resnet18",
        "model=simplecnn",
    ]
)
@pytest.mark.parametrize("choice", CHOICES)
def test_a_typed_one_is_refused(choice: str) -> None:
    config = OmegaConf.create(resolved(choice))
    group = choice.split("=")[0]
    odd = cycle(ODD)
    for key, value in iterate_settings(to_plain_settings(config[group]), group):
        for at in places(value):
            OmegaConf.update(config, key, put(value, at, wrong := next(odd)))
            with pytest.raises(BadConfig, match=f"^{re.escape(key)}={wrong}: a finite number"):
                check_config_types(config)
            OmegaConf.update(config, key, value)
    check_config_types(config)


@pytest.mark.parametrize(
    "choice", [choice for choice in CHOICES if choice != "privacy=none"]
)  # which builds nothing
def test_the_class_itself_refuses_one(choice: str) -> None:
    group = choice.split("=")[0]
    made = list(classes(group, resolved(choice)[group]))
    assert made and any(places(value) for _, settings in made for value in settings.values())
    for kind, settings in made:
        kind(**settings)
        for name, wrong in changed(settings):
            with pytest.raises(ValueError, match=f"{name}=") as caught:
                kind(**wrong)
                pytest.fail(f"{kind.__name__} takes {name}={wrong[name]}")
            assert "\n" not in str(caught.value)
