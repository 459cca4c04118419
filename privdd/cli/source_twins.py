"""Twins of privdd's own classes, made from their source without what takes long to import.

A setting's range is checked where its class is made (``__post_init__``), and importing the module of a method or of an
attack takes torch, and seconds. A twin is the same class statement, run by itself: every name that it uses is taken from
a module that is already imported, from the standard library, or from the source of another module of ours. A name from
anywhere else stays undefined, and code that needs one ends in ``NameError``; so a twin either does what its class does,
or says that it cannot.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import copy
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import InitVar  # noqa: F401  dataclasses look these up in the module that a class names as its own
from functools import wraps
from types import CodeType
from typing import Any, ClassVar  # noqa: F401

from privdd.cli.written_types import OURS, imported_from, tree_of

LAZILY, NEEDS_IMPORT = "__lazily__", "__needs_import__"
FLAGS = __future__.annotations.compiler_flag


class NeedsImport(Exception):
    """Something that cannot be had without an import."""


class Twins:
    """Finds the twin of a dotted name; everything is made once, when it is first needed."""

    def __init__(self) -> None:
        self._modules: dict[str, _Source] = {}

    def of(self, path: str) -> Any:
        """The class, function or value itself where its module is imported, or torch is; else its twin. Raises NeedsImport."""
        module, _, name = path.rpartition(".")
        first = module.split(".")[0]
        imported = module in sys.modules or ("torch" in sys.modules and first in OURS)  # then it is quick
        if imported or first in sys.stdlib_module_names:
            found = vars(importlib.import_module(module))
            if name not in found:
                raise NeedsImport(path)
            return found[name]
        if first not in OURS:
            raise NeedsImport(path)
        if module not in self._modules:
            self._modules[module] = _Source(self, module)
        return self._modules[module].get(name)


class _Source:
    """The names of one module."""

    def __init__(self, twins: Twins, module: str) -> None:
        tree = tree_of(module)
        if tree is None:
            raise NeedsImport(module)
        self._twins, self._module, self._tree = twins, module, tree
        self._defined = {name: line for line in tree.body for name in _defined(line)}
        self._names: dict[str, Any] = {
            "__name__": __name__,
            "__builtins__": builtins,
            LAZILY: self._lazily,
            NEEDS_IMPORT: NeedsImport,
        }
        self._absent: set[str] = set()

    def get(self, name: str) -> Any:
        """Raises NeedsImport for what the module does not define, or cannot without an import."""
        if name not in self._names and name not in self._absent:
            self._absent.add(name)  # until it is made: a name that needs itself
            try:
                self._make(name)
            except Exception:  # whatever a definition may raise on its way: the full check imports the module
                self._names.pop(name, None)
        if name not in self._names:
            raise NeedsImport(f"{self._module}.{name}")
        self._absent.discard(name)
        return self._names[name]

    def _make(self, name: str) -> None:
        statement = self._defined.get(name)
        if isinstance(statement, ast.ClassDef):
            self._run(self._class(statement))
        elif isinstance(statement, ast.FunctionDef):
            self._run(self._function(statement))
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            self._run(statement)
        elif isinstance(statement, ast.Import):
            alias = next(one for one in statement.names if _name(one) == name)
            if alias.name in sys.modules or alias.name.split(".")[0] in sys.stdlib_module_names:
                found = importlib.import_module(alias.name)
                self._names[name] = found if alias.asname else sys.modules[name]
        elif isinstance(statement, ast.ImportFrom):
            self._names[name] = self._twins.of(imported_from(self._tree, self._module, name))

    def _run(self, statement: ast.stmt) -> None:
        """One statement of our own source, among the names that it uses."""
        code = compile(ast.fix_missing_locations(ast.Module([statement], [])), self._module, "exec", FLAGS, True)
        self._fill(_at_definition(code))
        exec(code, self._names)

    def _has(self, node: ast.expr) -> bool:
        """Whether an expression can be computed here."""
        try:
            self._run(ast.Expr(node))
        except Exception:
            return False
        return True

    def _class(self, node: ast.ClassDef) -> ast.ClassDef:
        """Without hooks of the subclassing, and without class variables whose values cannot be had."""
        made = copy.copy(node)
        made.body = [line for line in map(self._member, _unfolded(node.body)) if line is not None] or [ast.Pass()]
        made.keywords = []
        return made

    def _member(self, line: ast.stmt) -> ast.stmt | None:
        if isinstance(line, ast.FunctionDef):
            return None if line.name == "__init_subclass__" else self._function(line)
        of_class = isinstance(line, ast.AnnAssign) and "ClassVar" in ast.unparse(line.annotation)
        if isinstance(line, ast.Assign | ast.AnnAssign) and (of_class or isinstance(line, ast.Assign)):
            return line if line.value is None or self._has(line.value) else None
        return line

    def _function(self, line: ast.FunctionDef) -> ast.FunctionDef:
        """The function, made lazy; one that imports something, or cannot be defined here, raises NeedsImport when called:
        after an import half of the names would be twins, and the other half the classes themselves."""
        made = copy.copy(line)
        defaults = [one for one in (*line.args.defaults, *line.args.kw_defaults) if one is not None]
        decorators = [one for one in line.decorator_list if self._has(one)]
        imports = any(map(_imports, ast.walk(line)))
        if imports or len(decorators) < len(line.decorator_list) or not all(map(self._has, defaults)):
            made.args = ast.arguments([], [], ast.arg("_"), [], [], ast.arg("__"), [])
            made.body = ast.parse(f"raise {NEEDS_IMPORT}({line.name!r})").body
        made.decorator_list = [*decorators, ast.Name(LAZILY, ast.Load())]
        return made

    def _lazily(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose names are looked for when it is first called."""

        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            self._fill(_when_called(function.__code__))
            return function(*args, **named)

        return call

    def _fill(self, names: Iterator[str]) -> None:
        for name in names:
            if name in self._defined and name not in self._names:
                try:
                    self.get(name)
                except NeedsImport:
                    continue  # NameError, should the code come to it


def _at_definition(code: CodeType) -> Iterator[str]:
    """The names (attributes among them) that a statement uses itself: those of its functions wait for their call."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and (inner.co_name.startswith("<") or "__qualname__" in inner.co_names):
            yield from _at_definition(inner)  # a lambda or comprehension, or the body of a class


def _when_called(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _when_called(inner)


def _imports(node: ast.AST) -> bool:
    called = isinstance(node, ast.Attribute) and node.attr == "import_module"
    return called or isinstance(node, ast.Import | ast.ImportFrom)


def _defined(line: ast.stmt) -> list[str]:
    if isinstance(line, ast.ClassDef | ast.FunctionDef):
        return [line.name]
    if isinstance(line, ast.Assign | ast.AnnAssign):
        targets = line.targets if isinstance(line, ast.Assign) else [line.target]
        return [
            n.id for one in targets for n in ast.walk(one) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        ]
    return [_name(one) for one in line.names] if isinstance(line, ast.Import | ast.ImportFrom) else []


def _name(alias: ast.alias) -> str:
    """What an import calls it: of ``import a.b``, a."""
    return alias.asname or alias.name.split(".")[0]


def _unfolded(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a class, of ``if TYPE_CHECKING`` those that run."""
    for line in body:
        if isinstance(line, ast.If) and isinstance(line.test, ast.Name) and line.test.id == "TYPE_CHECKING":
            yield from line.orelse
        else:
            yield line
