"""Digests of code by the shape of its syntax: comments, docstrings, annotations, messages and the
project's own names do not enter, so that a renamed variable leaves every digest as it was.

Nothing is imported to be digested. Imports no torch.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import privdd

SOURCE_ROOT = Path(privdd.__file__).parents[1]
# packages whose code decides what a training comes to
DECIDING = (
    "privdd.core",
    "privdd.data",
    "privdd.models",
    "privdd.privacy",
    "privdd.federated",
    "privdd.training",
    "privdd.distillation",
    "privdd.methods",
)
ALWAYS = ("privdd.federated.simulation", "privdd.data.sources", "privdd.training.sgd")
IGNORED_FIELDS = frozenset({"annotation", "returns", "type_comment", "ctx", "kind", "type_params"})
NAME_FIELDS = frozenset({"id", "attr", "arg", "name"})


def _short_digest(parts: Iterable[str]) -> str:
    """Eight hexadecimal digits that do not depend on the order of ``parts``."""
    return hashlib.blake2b("\n".join(sorted(parts)).encode(), digest_size=4).hexdigest()


def line_staleness(line: Mapping[str, Any]) -> str:
    """Why a line of a paper's sheet may no longer be true: the code that it is about has
    changed."""
    about = line.get("about", "")
    if not about or definition_digest(about) == line["digest"]:
        return ""
    return f"{about} has changed since this line was written"


@cache
def definition_digest(about: str) -> str:
    """The digest of one definition, by the shape of its syntax.

    Args:
        about: MODULE:NAME or MODULE:CLASS.NAME.

    Raises:
        KeyError: There is no such definition.
    """
    module, _, path = about.partition(":")
    node: ast.AST = _parse_module(module)
    for name in path.split("."):
        node = _find_definition(node, name)
    return _short_digest(["\n".join(syntax_words(node, own_names()))])


def _find_definition(node: ast.AST, name: str) -> ast.AST:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef) and child.name == name:
            return child
    raise KeyError(name)


def is_deciding(module: str) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in DECIDING)


@cache
def code_digest(modules: tuple[str, ...]) -> str:
    """The digest of these modules and of all that they import, directly or not."""
    reached: set[str] = set()
    waiting = [*modules]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += _imported_modules(module)
    return _short_digest(f"{module} {_module_shape(module)}" for module in reached)


@cache
def _parse_module(module: str) -> ast.Module:
    return ast.parse(_module_file(module).read_text(encoding="utf-8"))


def _module_file(module: str) -> Path:
    path = SOURCE_ROOT.joinpath(*module.split("."))
    if path.is_dir():
        return path / "__init__.py"
    return path.with_suffix(".py")


@cache
def _imported_modules(module: str) -> tuple[str, ...]:
    """The deciding modules that a module imports, wherever in its file."""
    names: set[str] = set()
    for node in ast.walk(_parse_module(module)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    modules = filter(is_deciding, sorted(names))
    return tuple(name for name in modules if _module_file(name).is_file())


@cache
def _module_shape(module: str) -> str:
    tree = _parse_module(module)
    words = syntax_words(tree, own_names())
    return hashlib.blake2b("\n".join(words).encode(), digest_size=8).hexdigest()


@cache
def own_names() -> frozenset[str]:
    """Every name that the deciding packages define: functions, classes, arguments, variables,
    fields."""
    names: set[str] = set()
    for package in DECIDING:
        for file in SOURCE_ROOT.joinpath(*package.split(".")).rglob("*.py"):
            names |= defined_names(ast.parse(file.read_text(encoding="utf-8")))
    return frozenset(names)


def defined_names(tree: ast.Module) -> set[str]:
    """The names that a module binds, imports aside."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names


def syntax_words(tree: ast.AST, project_names: frozenset[str]) -> Iterator[str]:
    """The shape of code, word by word; an own name counts by the order of its first use."""
    order: dict[str, int] = {}

    def walk_node(node: ast.AST) -> Iterator[str]:
        yield type(node).__name__
        for field, value in ast.iter_fields(node):
            if field not in IGNORED_FIELDS:
                yield from list_words(field, value)

    def list_words(field: str, value: Any) -> Iterator[str]:
        if isinstance(value, ast.AST):
            if not _says_nothing(value):
                yield from walk_node(value)
        elif isinstance(value, list):
            for item in value:
                yield from list_words(field, item)
            yield "."
        elif field in NAME_FIELDS and value in project_names:
            yield f"#{order.setdefault(value, len(order))}"
        else:
            yield repr(value)

    return walk_node(tree)


def _says_nothing(node: ast.AST) -> bool:
    """Imports, and texts for a reader: docstrings and messages (their words are no keys)."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return " " in node.value
    return isinstance(node, ast.JoinedStr)
