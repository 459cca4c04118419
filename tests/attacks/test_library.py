"""Tests of ``attacks`` as a library: its public names, and the tutorial that uses them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import attacks

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorials" / "attack-library.md"


def test_every_public_name_is_what_the_table_says() -> None:
    assert sorted(attacks.PUBLIC) == sorted(attacks.__all__)
    for name in attacks.__all__:
        value = getattr(attacks, name)
        assert callable(value), name
        assert inspect.getdoc(value), f"{name} has no docstring"


def test_no_public_name_is_a_module_of_the_package() -> None:
    modules = {path.stem for path in (ROOT / "attacks").iterdir() if path.name != "__init__.py"}
    assert modules.isdisjoint(attacks.__all__)


@pytest.mark.nightly
def test_names_mean_the_same_in_any_order_of_imports() -> None:
    """In twenty orders, with all modules imported in between, each name stays what it is."""
    script = """
import importlib, pkgutil, random, sys
order = random.Random(int(sys.argv[1]))
import attacks
steps = [("name", name) for name in attacks.__all__]
steps += [("module", m.name) for m in pkgutil.walk_packages(attacks.__path__, "attacks.")]
order.shuffle(steps)
for kind, name in steps:
    if kind == "module":
        importlib.import_module(name)
    else:
        namespace = {}
        exec(f"from attacks import {name}", namespace)
        assert callable(namespace[name]), name
for name, (module, original) in attacks.PUBLIC.items():
    assert getattr(attacks, name) is getattr(sys.modules[module], original), name
for name in list(sys.modules):
    if name == "attacks" or name.startswith("attacks."):
        del sys.modules[name]
"""
    source = (
        f"import sys\nCODE = {script!r}\nfor seed in range(20):\n    sys.argv = ['x', "
        f"str(seed)]\n    exec(CODE, {{}})\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_package_is_imported_without_torch() -> None:
    source = "import sys, attacks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], cwd=ROOT).returncode == 0


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="lyra"):
        attacks.lyra  # noqa: B018


@pytest.mark.nightly
def test_the_tutorial_runs_and_finds_the_members(tmp_path: Path) -> None:
    """The page's Python blocks, run as they stand, in one file."""
    blocks = [block.split("```")[0] for block in TUTORIAL.read_text().split("```python\n")[1:]]
    script = tmp_path / "tutorial.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=_environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "AUC" in done.stdout
    assert (tmp_path / "reconstruction.png").stat().st_size > 0


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
