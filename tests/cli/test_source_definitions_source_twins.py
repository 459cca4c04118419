"""A class that is made from its source alone refuses what the real one refuses, in the same words, and nothing else."""

from __future__ import annotations

import copy
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from privdd.cli.compose import compose_config, config_dir, default_attacks
from privdd.cli.source_definitions import NeedsImport, SourceDefinitions


def nodes() -> Iterator[tuple[str, Any]]:
    """(name, node) of every method, mechanism and attack that is shipped; each class once or more."""
    plain = lambda config: OmegaConf.to_container(config, resolve=True)  # noqa: E731
    for file in sorted(Path(config_dir(), "algo").glob("*.yaml")):
        if re.search(r"^_target_: privdd\.methods", file.read_text(), re.MULTILINE):
            yield f"algo {file.stem}", plain(compose_config("train", [f"algo={file.stem}"]).algo)
    for file in sorted(Path(config_dir(), "privacy").glob("[a-z]*.yaml")):
        for name, node in plain(compose_config("train", [f"privacy={file.stem}"]).privacy)["mechanisms"].items():
            yield f"privacy {file.stem} {name}", node
    for name, node in plain(compose_config("audit", [f"attack=[{','.join(default_attacks([config_dir()]))}]"]).attack).items():
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


def test_a_twin_refuses_what_its_class_refuses_and_nothing_else(tmp_path: Path) -> None:
    """Every shipped class, at its shipped settings and with each setting changed; twins are made in a process of their
    own, in which none of the classes is imported."""
    asked = {name: [*changed(node)] for name, node in nodes()}
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    program = (
        "import json, sys; from privdd.cli.overrides import _build_from_source; from privdd.cli.source_definitions import SourceDefinitions\n"
        "def outcome(node):\n"
        "    try: _build_from_source(twins, node)\n"
        "    except ValueError as error: return f'refused: {error}'\n"
        "    except Exception as error: return type(error).__name__\n"
        "    return 'made'\n"
        "twins, asked = SourceDefinitions(), json.load(open(sys.argv[1]))\n"
        "told = {name: [outcome(node) for node in several] for name, several in asked.items()}\n"
        "assert 'torch' not in sys.modules\n"
        "print(json.dumps(told))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "asked.json")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    unread = []
    for name, several in asked.items():
        whole = "NeedsImport" if name == "algo own_training" else "made"  # the user's function is imported, to check it
        assert told[name][0] == whole, f"{name}: its twin can no longer be made, so its refusals take seconds"
        for node, said in zip(several, told[name], strict=True):
            real = outcome(lambda node=node: made(node))
            weights = "AlexNet" in str(node)  # the class looks for the file of weights too, which its twin leaves alone
            if said.startswith("refused") or (said == "made" and not weights):
                assert said == real, (name, node)
            elif real.startswith("refused"):
                unread.append((name, said, real))
    assert len(unread) <= 0.1 * sum(map(len, asked.values())), unread


def test_what_is_imported_is_taken_as_it_is_and_what_is_foreign_is_left_alone() -> None:
    assert SourceDefinitions().find_definition("privdd.cli.source_definitions.SourceDefinitions") is SourceDefinitions
    for path in ("torch_geometric.nn.Linear", "privdd.cli.source_definitions.Other"):
        with pytest.raises(NeedsImport):
            SourceDefinitions().find_definition(path)
    with pytest.raises(ModuleNotFoundError):  # torch is imported here, so importing is what is done
        SourceDefinitions().find_definition("privdd.no.Such")


def test_no_code_outside_of_the_package_is_run(tmp_path: Path) -> None:
    """A dotted name with slashes in it would lead to any file."""
    (tmp_path / "own.py").write_text("class A:\n    X = print('ran')\n")
    target = f"privdd.{tmp_path}/own.A"
    program = "import sys; from privdd.cli.source_definitions import SourceDefinitions\ntry: SourceDefinitions().find_definition(sys.argv[1])\nexcept Exception as e: print(type(e).__name__)"
    done = subprocess.run([sys.executable, "-c", program, target], capture_output=True, text=True)
    assert done.stdout.strip() == "NeedsImport", done
