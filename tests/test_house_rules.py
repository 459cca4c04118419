"""The house rules that a reader relies on: one name for one thing, a test for every module, no
hooks read by guess."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import check_nightly_cases

ROOT = Path(__file__).resolve().parents[1]
OURS = sorted([*ROOT.glob("privdd/**/*.py"), *ROOT.glob("attacks/**/*.py")])
TESTING = sorted([*ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py")])


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of an expression, as far as it is names; of ``a.b[c]`` the part before the
    bracket."""
    if isinstance(node, ast.Subscript):
        return dotted(node.value)
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


# --- one name for one thing -----------------------------------------------------------------------


def twice(names: Iterator[tuple[str, str]]) -> dict[str, list[str]]:
    places = defaultdict(list)
    for name, place in names:
        places[name].append(place)
    return {name: found for name, found in places.items() if len(found) > 1}


def public_classes(files: list[Path]) -> Iterator[tuple[str, str]]:
    for path in files:
        yield from (
            (n.name, relative(path))
            for n in tree(path).body
            if isinstance(n, ast.ClassDef) and not n.name.startswith("_")
        )


def test_no_public_class_name_stands_for_two_things() -> None:
    """Module names may recur in different packages; a class is one thing wherever it is read."""
    assert twice(public_classes(OURS)) == {}
    assert len(list(public_classes(OURS))) > 50
    assert twice(iter([("Stage", "a"), ("Stage", "b"), ("Lens", "a")])) == {"Stage": ["a", "b"]}


# --- a test for every module ----------------------------------------------------------------------


def has_logic(path: Path) -> bool:
    """By its text: each worker asks this of every file while it collects tests, and to parse them
    all takes seconds."""
    return (
        re.search(r"^ *(async )?def \w+\(", path.read_text(encoding="utf-8"), re.MULTILINE)
        is not None
    )


@cache
def defined(path: Path) -> set[str]:
    """Public names that a module defines."""
    body = tree(path).body
    found = {n.name for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    found |= {
        t.id
        for n in body
        if isinstance(n, ast.Assign)
        for t in n.targets
        if isinstance(t, ast.Name)
    }
    return {name for name in found if not name.startswith("_")}


def named_modules(test: Path) -> set[str]:
    """Paths of our modules that a test imports, names in text, or whose public names it uses."""
    text = test.read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", text))
    quoted = set(re.findall(r"""["'=](\w+)""", text))
    dotted_parts = [name.split(".") for name in re.findall(r"\b(?:privdd|attacks)(?:\.\w+)+", text)]
    dotted_names = {
        ".".join(parts[:end]) for parts in dotted_parts for end in range(2, len(parts) + 1)
    }
    return {
        relative(module)
        for module in MODULES
        if relative(module).removesuffix(".py").replace("/", ".") in dotted_names
        or module.stem in quoted
        or words & defined(module)
    }


MODULES = [
    path
    for path in OURS
    if path.stem != "__init__" and path.parent != ROOT / "privdd" and has_logic(path)
]


def test_every_module_is_named_by_a_test() -> None:
    named = {name for test in ROOT.glob("tests/**/test_*.py") for name in named_modules(test)}
    assert sorted({relative(path) for path in MODULES} - named) == [], (
        "write a test that imports it"
    )
    assert len(MODULES) > 100


def test_every_test_folder_is_a_package_of_the_house() -> None:
    packages = {
        "." if path.parent == ROOT / "privdd" else relative(path.parent).removeprefix("privdd/")
        for path in OURS
    }
    extra = {"system", "reference", "conformance", "configs", "fuzzing", "power"}
    folders = {
        path.parent.relative_to(ROOT / "tests").as_posix()
        for path in ROOT.glob("tests/**/test_*.py")
    }
    assert folders <= packages | extra


# --- no hook is read by guess ---------------------------------------------------------------------

ROLES = {"method", "mechanism", "mechanisms", "attack", "engine"}


def guessed(path: Path) -> Iterator[str]:
    """getattr and hasattr on a method, mechanism, attack or engine: what a role may have is
    declared by its class."""
    for node in ast.walk(tree(path)):
        if (
            isinstance(node, ast.Call)
            and dotted(node.func) in ("getattr", "hasattr")
            and len(node.args) > 1
        ):
            role = dotted(node.args[0]).rpartition(".")[2]
            if role in ROLES:
                what = node.args[1].value if isinstance(node.args[1], ast.Constant) else "..."
                yield f"{relative(path)}: {role}.{what}"


def test_no_hook_is_read_by_guess() -> None:
    assert [what for path in OURS for what in guessed(path)] == [], "declare it in the role's class"


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("getattr(plan.method, 'claims', None)", True),
        ("hasattr(self.engine, 'x')", True),
        ("hasattr(method, field)", True),
        ("getattr(ctx.mechanisms[QUERY], 'per_record', True)", True),
        ("getattr(attack, 'least_worlds', 2)", True),
        ("getattr(self, name)", False),
        ("getattr(row, 'epsilon')", False),
        ("method.claims(plan)", False),
    ],
)
def test_the_search_for_guesses_sees(
    source: str, seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "it.py").write_text(source)
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert bool(list(guessed(tmp_path / "it.py"))) is seen


# --- one reader of yaml ---------------------------------------------------------------------------

YAML_READER = "privdd/runtime/yaml_files.py"  # with bounds: aliases, depth, size
YAML_LOADS = re.compile(r"(yaml\.(\w+_)?load(_all)?|OmegaConf\.load)")


def yaml_loads(path: Path) -> Iterator[str]:
    """Calls that read YAML by themselves."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and YAML_LOADS.fullmatch(dotted(node.func)):
            yield f"{relative(path)}:{node.lineno}"
        if isinstance(node, ast.ImportFrom) and node.module == "yaml":
            yield f"{relative(path)}:{node.lineno}"


def test_yaml_is_read_in_one_place() -> None:
    assert [
        line for path in OURS if relative(path) != YAML_READER for line in yaml_loads(path)
    ] == [], "use read_yaml"
    assert list(yaml_loads(ROOT / YAML_READER))


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("yaml.safe_load(text)", True),
        ("yaml.load_all(text, yaml.SafeLoader)", True),
        ("OmegaConf.load(file)", True),
        ("from yaml import safe_load", True),
        ("yaml.safe_dump(data)", False),
        ("np.load(file)", False),
    ],
)
def test_the_search_for_yaml_sees(
    source: str, seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "it.py").write_text(source)
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert bool(list(yaml_loads(tmp_path / "it.py"))) is seen


# --- tests import by name -------------------------------------------------------------------------


def path_edits(module: ast.Module) -> Iterator[int]:
    """Lines that change where Python looks for modules."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if re.fullmatch(
                r"(sys\.)?path\.(insert|append|extend|remove|pop|clear)|(.*\.)?(syspath_prepend|addsitedir)",
                name,
            ):
                yield node.lineno
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
            targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
            yield from (node.lineno for target in targets if dotted(target) == "sys.path")


def test_no_test_edits_the_search_path() -> None:
    assert [
        f"{relative(path)}:{line}"
        for path in TESTING
        if may_edit(path.read_text(encoding="utf-8"))
        for line in path_edits(tree(path))
    ] == []


def may_edit(text: str) -> bool:
    """By its words: to parse all tests takes seconds."""
    return (
        re.search(
            r"sys\.path|\bpath\.(insert|append|extend|remove|pop|clear)\(|syspath_prepend|addsitedir",
            text,
        )
        is not None
    )


@pytest.mark.parametrize(
    "source",
    [
        "sys.path.insert(0, 'x')",
        "sys.path += ['x']",
        "sys.path[0] = 'x'",
        "patch.syspath_prepend(p)",
        "site.addsitedir(p)",
        "del sys.path[0]",
    ],
)
def test_the_search_for_edits_sees(source: str) -> None:
    assert may_edit(source) and list(path_edits(ast.parse(source)))


def test_no_test_imports_a_benchmark() -> None:
    """What both need is in tests; the test of a benchmark's own output lies beside the
    benchmark."""
    found = re.compile(r"^\s*(from|import) benchmarks\b", re.MULTILINE)
    assert [
        relative(path)
        for path in ROOT.glob("tests/**/*.py")
        if found.search(path.read_text(encoding="utf-8"))
    ] == []
    assert found.search("import os\nfrom benchmarks.gate import x") and not found.search(
        "# from benchmarks to tests"
    )


# --- marks of tests -------------------------------------------------------------------------------

PLANTED_MARK = """
import pytest

@pytest.mark.nightly(cases=["small", "tiny"])
@pytest.mark.parametrize("size", ["small", "large"])
def test_planted(size):
    pass
"""


def marked(case: str, **named: list[str]) -> Any:
    return SimpleNamespace(
        callspec=SimpleNamespace(id=case), own_markers=[pytest.mark.nightly(**named).mark]
    )


@pytest.mark.parametrize(
    ("named", "unknown"),
    [
        ({}, ""),
        ({"cases": ["small"]}, ""),
        ({"but": ["small", "large"]}, ""),
        ({"cases": ["small", "tiny"]}, "'tiny'"),
        ({"but": ["huge"]}, "'huge'"),
    ],
)
def test_a_mark_names_cases_of_its_test(named: dict[str, list[str]], unknown: str) -> None:
    cases = [marked("small", **named), marked("large", **named)]
    refused = pytest.raises(pytest.Collector.CollectError, match=f"nightly names {unknown}; cases")
    with refused if unknown else nullcontext():
        check_nightly_cases(cases)


@pytest.mark.nightly
def test_a_case_that_no_test_has_ends_the_collection(tmp_path: Path) -> None:
    """Also if the command names one case: the others are cases all the same."""
    planted = tmp_path / "test_planted_mark.py"
    planted.write_text(PLANTED_MARK)
    settings = tmp_path / "none.ini"
    settings.write_text("[pytest]\nmarkers = nightly\n")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "tests.conftest"]
    command += ["-c", str(settings), f"{planted}::test_planted[large]"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert "nightly names 'tiny'; cases are: large, small" in result.stdout
    assert result.returncode != 0
