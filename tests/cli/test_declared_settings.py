"""What is read of a class from its source alone: types and ranges refuse what the class refuses, in
the same words, and nothing else."""

from __future__ import annotations

import copy
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from privdd.cli.compose import compose_config, config_dir, default_attacks
from privdd.cli.overrides import _check_node_ranges, check_overrides
from privdd.cli.settings import declared_parameters, declared_type, find_definition
from privdd.core.group_settings import DATASET_NAMES
from privdd.data.sources import SOURCES


def nodes() -> Iterator[tuple[str, Any]]:
    """(name, node) of every method, mechanism and attack that is shipped; each class once or
    more."""
    plain = lambda config: OmegaConf.to_container(config, resolve=True)  # noqa: E731
    for file in sorted(Path(config_dir(), "algo").glob("*.yaml")):
        if re.search(r"^_target_: privdd\.methods", file.read_text(), re.MULTILINE):
            yield f"algo {file.stem}", plain(compose_config("train", [f"algo={file.stem}"]).algo)
    for file in sorted(Path(config_dir(), "privacy").glob("[a-z]*.yaml")):
        for name, node in plain(compose_config("train", [f"privacy={file.stem}"]).privacy)[
            "mechanisms"
        ].items():
            yield f"privacy {file.stem} {name}", node
    for name, node in plain(
        compose_config("audit", [f"attack=[{','.join(default_attacks([config_dir()]))}]"]).attack
    ).items():
        yield f"attack {name}", node


def changed(node: Any) -> Iterator[Any]:
    """The node itself, and with each of its numbers and words replaced by others."""
    yield node
    for path, value in leaves(node):
        for other in (-1, 0, 0.5, 3) if isinstance(value, int | float) else ("nosuch", None):
            made = copy.deepcopy(node)
            place = made
            for part in path[:-1]:
                place = place[part]
            place[path[-1]] = other
            yield made


def leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in node.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, name))
        elif name != "_target_" and not isinstance(value, list | bool):
            yield (*path, name), value


def made(node: Any) -> Any:
    """As Hydra would, of the real classes."""
    if isinstance(node, list):
        return [made(one) for one in node]
    if not isinstance(node, dict):
        return node
    parts = {name: made(one) for name, one in node.items() if name != "_target_"}
    return pkgutil.resolve_name(node["_target_"])(**parts) if "_target_" in node else parts


def outcome(build: Callable[[], object]) -> str:
    try:
        build()
    except ValueError as error:
        return f"refused: {error}"
    except Exception as error:
        return type(error).__name__
    return "made"


def early(node: Any) -> str:
    try:
        _check_node_ranges(node)
    except ValueError as error:
        return f"refused: {error}"
    except (
        TypeError,
        AttributeError,
    ) as error:  # left to the full check, as check_changed_settings does
        return type(error).__name__
    return "passed"


@pytest.mark.nightly
def test_what_the_source_refuses_the_class_refuses_in_the_same_words() -> None:
    """Every shipped class, at its shipped settings and with each setting changed; of the numbers
    that no class takes (-1), most are refused early."""
    refused = 0
    all_refused = 0
    for name, shipped in nodes():
        assert early(shipped) == "passed", name
        for node in changed(shipped):
            said, real = early(node), outcome(lambda node=node: made(node))
            assert said == real or not said.startswith("refused"), (name, node)
            if real.startswith("refused"):
                refused = refused + said.startswith("refused")
                all_refused = all_refused + 1
    assert refused > 0.75 * all_refused > 300, (refused, all_refused)


def test_rules_of_data_know_every_source() -> None:
    assert {*SOURCES} | {"folder", "domain_folder", "digit_domains", "corrupted"} == {
        *DATASET_NAMES
    }


def test_no_code_is_run(tmp_path: Path) -> None:
    """Neither our own source nor that of others; a dotted name with slashes in it would lead to any
    file."""
    (tmp_path / "own.py").write_text("class A:\n    X = print('ran')\n")
    for target in (f"privdd.{tmp_path}/own.A", "logging.FileHandler", "privdd.no.Such"):
        assert find_definition(target) == (None, ())


def targets(node: Any) -> Iterator[tuple[str, list[str]]]:
    if isinstance(node, dict):
        if "_target_" in node:
            yield node["_target_"], [name for name in node if not name.startswith("_")]
        for value in node.values():
            yield from targets(value)


def test_what_the_source_says_is_what_the_class_declares() -> None:
    """The same type, or none."""
    found = 0
    known = 0
    for algo in ("fedprox", "feddm_dp", "fedfed", "fedlgd", "virtual_data"):
        config = OmegaConf.to_container(
            compose_config("audit", [f"algo={algo}", "attack=[lira,gradient_inversion]"]),
            resolve=False,
        )
        for target, names in targets(config):
            types = declared_parameters(pkgutil.resolve_name(target))[0]
            for name in names:
                kind = declared_type(target, name)
                assert kind is None or kind == types[name], (target, name)
                found = found + 1
                known = known + (kind is not None)
    assert known > 0.6 * found > 60


def test_right_values_and_what_is_not_understood_pass() -> None:
    check_overrides(
        "audit", ["algo.rounds=3", "algo.lr=1", "model.norm=null", "audit.worlds=9", "seed=4"]
    )
    assert (
        declared_type("torch.nn.Linear", "in_features") is None
        and declared_type("privdd.no.Such", "x") is None
    )
