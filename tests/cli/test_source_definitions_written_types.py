"""Types that are read from source are those that importing the class gives."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from omegaconf import OmegaConf

from privdd.cli.compose import compose_config
from privdd.cli.overrides import check_overrides
from privdd.cli.source_definitions import declared_type
from privdd.cli.type_check import declared_parameters
from privdd.core.validation import BadConfig


def targets(node: Any) -> Iterator[tuple[str, list[str]]]:
    if isinstance(node, dict):
        if "_target_" in node:
            yield node["_target_"], [name for name in node if not name.startswith("_")]
        for value in node.values():
            yield from targets(value)


def test_what_the_source_says_is_what_the_class_declares() -> None:
    """The same type, or none."""
    found, known = 0, 0
    for algo in ("fedprox", "feddm_dp", "fedfed", "fedlgd", "virtual_data"):
        config = OmegaConf.to_container(compose_config("audit", [f"algo={algo}", "attack=[lira,gradient_inversion]"]), resolve=False)
        for target, names in targets(config):
            types = declared_parameters(pkgutil.resolve_name(target))[0]
            for name in names:
                kind = declared_type(target, name)
                assert kind is None or kind == types[name], (target, name)
                found, known = found + 1, known + (kind is not None)
    assert known > 0.6 * found > 60


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("algo.rounds=abc", r"^algo\.rounds='abc': a whole number is needed$"),
        ("algo=fedprox algo.lr=fast", r"^algo\.lr='fast': a number is needed$"),
        ("model.width=x", r"^model\.width='x': a whole number is needed \(or null\)$"),
        ("algo.weighting=evenly", r"^algo\.weighting='evenly': allowed are records, uniform$"),
    ],
)
def test_wrong_values_are_refused_in_the_same_words(typed: str, says: str) -> None:
    with pytest.raises(BadConfig, match=says):
        check_overrides("audit", typed.split())


def test_right_values_and_what_is_not_understood_pass() -> None:
    check_overrides("audit", ["algo.rounds=3", "algo.lr=1", "model.norm=null", "audit.worlds=9", "seed=4"])
    assert declared_type("torch.nn.Linear", "in_features") is None and declared_type("privdd.no.Such", "x") is None
