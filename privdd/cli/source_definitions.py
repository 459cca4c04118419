"""privdd's own classes and types, read from their source without what takes long to import.

A setting's range is checked where its class is made (``__post_init__``), and importing the module of a method or of an
attack takes torch, and seconds. Here the same class statement is run by itself: every name that it uses is taken from a
module that is already imported, from the standard library, or from the source of another module of ours. A name from
anywhere else stays undefined, and code that needs one ends in ``NameError``; so a class made here either does what the
imported one does, or says that it cannot.
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
from functools import cache, reduce, wraps
from operator import or_
from pathlib import Path
from types import CodeType
from typing import Any, ClassVar, Literal  # noqa: F401

# --- written types -----------------------------------------------------------------------------
# The plain types that privdd's own classes declare for their settings, read from their source: importing a class takes
# torch, and seconds, which a mistyped number need not cost.
#
# What is not understood here (other packages, functions, types that are no plain ones) is left to ``type_check``, which
# imports the class.


SOURCE_ROOT = Path(__file__).resolve().parents[2]
OWN_PACKAGES = ("privdd", "attacks")
PLAIN_TYPES = {"int": int, "float": float, "bool": bool, "str": str}


def declared_type(target: str, name: str) -> Any:
    """The type of a field of the class, or of a parameter of the function, ``target``; None where its source does not
    say it in plain types."""
    module, _, made = target.rpartition(".")
    tree = parse_module(module)
    if tree is None:
        return None
    kinds = ast.ClassDef | ast.FunctionDef
    found = next((line for line in tree.body if isinstance(line, kinds) and line.name == made), None)
    if isinstance(found, ast.FunctionDef):
        taken = {one.arg: one.annotation for one in (*found.args.args, *found.args.kwonlyargs)}
        return _plain_type(written) if (written := taken.get(name)) is not None else None
    if found is None:
        elsewhere = import_origin(tree, module, made)
        return declared_type(elsewhere, name) if elsewhere != target else None
    for line in found.body:
        if isinstance(line, ast.FunctionDef) and line.name == "__init__":
            return None
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.target.id == name:
            return _plain_type(line.annotation)
    for base in found.bases:
        kind = declared_type(import_origin(tree, module, base.id), name) if isinstance(base, ast.Name) else None
        if kind is not None:
            return kind
    return None


@cache
def parse_module(module: str) -> ast.Module | None:
    """The source of one of our modules; None for any other, and for what is no module's name (a part may hold slashes)."""
    parts = module.split(".")
    if parts[0] not in OWN_PACKAGES or not all(part.isidentifier() for part in parts):
        return None
    place = SOURCE_ROOT.joinpath(*parts)
    files = [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]
    return ast.parse(files[0].read_text(encoding="utf-8")) if files else None


def import_origin(tree: ast.Module, module: str, name: str) -> str:
    """Where a name of a module comes from: the module itself, or one that it imports from."""
    for line in tree.body:
        if isinstance(line, ast.ImportFrom) and line.module and not line.level:
            for alias in line.names:
                if (alias.asname or alias.name) == name:
                    return f"{line.module}.{alias.name}"
    return f"{module}.{name}"


def _plain_type(node: ast.expr) -> Any:
    """The type of an annotation of int, float, bool, str, None and words, joined by |; None for any other."""
    if isinstance(node, ast.Name):
        return PLAIN_TYPES.get(node.id)
    if isinstance(node, ast.Constant) and node.value is None:
        return type(None)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        both = [_plain_type(node.left), _plain_type(node.right)]
        return None if None in both else reduce(or_, both)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
        words = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        given = [word.value for word in words if isinstance(word, ast.Constant)]
        return Literal[tuple(given)] if len(given) == len(words) else None
    return None


# --- source twins ------------------------------------------------------------------------------
# Twins of privdd's own classes, made from their source without what takes long to import.
#
# A setting's range is checked where its class is made (``__post_init__``), and importing the module of a method or of an
# attack takes torch, and seconds. A twin is the same class statement, run by itself: every name that it uses is taken from
# a module that is already imported, from the standard library, or from the source of another module of ours. A name from
# anywhere else stays undefined, and code that needs one ends in ``NameError``; so a twin either does what its class does,
# or says that it cannot.


LAZY_DECORATOR, NEEDS_IMPORT = "__lazily__", "__needs_import__"
COMPILE_FLAGS = __future__.annotations.compiler_flag


class NeedsImport(Exception):
    """Something that cannot be had without an import."""


class SourceDefinitions:
    """Finds the twin of a dotted name; everything is made once, when it is first needed."""

    def __init__(self) -> None:
        self._modules: dict[str, _SourceModule] = {}

    def find_definition(self, path: str) -> Any:
        """The class, function or value itself where its module is imported, or torch is; else its twin. Raises NeedsImport."""
        module, _, name = path.rpartition(".")
        first = module.split(".")[0]
        imported = module in sys.modules or ("torch" in sys.modules and first in OWN_PACKAGES)  # then it is quick
        if imported or first in sys.stdlib_module_names:
            found = vars(importlib.import_module(module))
            if name not in found:
                raise NeedsImport(path)
            return found[name]
        if first not in OWN_PACKAGES:
            raise NeedsImport(path)
        if module not in self._modules:
            self._modules[module] = _SourceModule(self, module)
        return self._modules[module].get_name(name)


class _SourceModule:
    """The names of one module."""

    def __init__(self, twins: SourceDefinitions, module: str) -> None:
        tree = parse_module(module)
        if tree is None:
            raise NeedsImport(module)
        self._twins, self._module, self._tree = twins, module, tree
        self._defined = {name: line for line in tree.body for name in _defined_names(line)}
        self._names: dict[str, Any] = {
            "__name__": __name__,
            "__builtins__": builtins,
            LAZY_DECORATOR: self._make_lazy,
            NEEDS_IMPORT: NeedsImport,
        }
        self._absent: set[str] = set()

    def get_name(self, name: str) -> Any:
        """Raises NeedsImport for what the module does not define, or cannot without an import."""
        if name not in self._names and name not in self._absent:
            self._absent.add(name)  # until it is made: a name that needs itself
            try:
                self._define_name(name)
            except Exception:  # whatever a definition may raise on its way: the full check imports the module
                self._names.pop(name, None)
        if name not in self._names:
            raise NeedsImport(f"{self._module}.{name}")
        self._absent.discard(name)
        return self._names[name]

    def _define_name(self, name: str) -> None:
        statement = self._defined.get(name)
        if isinstance(statement, ast.ClassDef):
            self._run_statement(self._reduce_class(statement))
        elif isinstance(statement, ast.FunctionDef):
            self._run_statement(self._reduce_function(statement))
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            self._run_statement(statement)
        elif isinstance(statement, ast.Import):
            alias = next(one for one in statement.names if _alias_name(one) == name)
            if alias.name in sys.modules or alias.name.split(".")[0] in sys.stdlib_module_names:
                found = importlib.import_module(alias.name)
                self._names[name] = found if alias.asname else sys.modules[name]
        elif isinstance(statement, ast.ImportFrom):
            self._names[name] = self._twins.find_definition(import_origin(self._tree, self._module, name))

    def _run_statement(self, statement: ast.stmt) -> None:
        """One statement of our own source, among the names that it uses."""
        code = compile(
            ast.fix_missing_locations(ast.Module([statement], [])), self._module, "exec", COMPILE_FLAGS, True
        )
        self._define_names(_names_at_definition(code))
        exec(code, self._names)

    def _can_evaluate(self, node: ast.expr) -> bool:
        """Whether an expression can be computed here."""
        try:
            self._run_statement(ast.Expr(node))
        except Exception:
            return False
        return True

    def _reduce_class(self, node: ast.ClassDef) -> ast.ClassDef:
        """Without hooks of the subclassing, and without class variables whose values cannot be had."""
        made = copy.copy(node)
        made.body = [line for line in map(self._reduce_member, _class_statements(node.body)) if line is not None] or [
            ast.Pass()
        ]
        made.keywords = []
        return made

    def _reduce_member(self, line: ast.stmt) -> ast.stmt | None:
        if isinstance(line, ast.FunctionDef):
            return None if line.name == "__init_subclass__" else self._reduce_function(line)
        of_class = isinstance(line, ast.AnnAssign) and "ClassVar" in ast.unparse(line.annotation)
        if isinstance(line, ast.Assign | ast.AnnAssign) and (of_class or isinstance(line, ast.Assign)):
            return line if line.value is None or self._can_evaluate(line.value) else None
        return line

    def _reduce_function(self, line: ast.FunctionDef) -> ast.FunctionDef:
        """The function, made lazy; one that imports something, or cannot be defined here, raises NeedsImport when called:
        after an import half of the names would be twins, and the other half the classes themselves."""
        made = copy.copy(line)
        defaults = [one for one in (*line.args.defaults, *line.args.kw_defaults) if one is not None]
        decorators = [one for one in line.decorator_list if self._can_evaluate(one)]
        imports = any(map(_is_import, ast.walk(line)))
        if imports or len(decorators) < len(line.decorator_list) or not all(map(self._can_evaluate, defaults)):
            made.args = ast.arguments([], [], ast.arg("_"), [], [], ast.arg("__"), [])
            made.body = ast.parse(f"raise {NEEDS_IMPORT}({line.name!r})").body
        made.decorator_list = [*decorators, ast.Name(LAZY_DECORATOR, ast.Load())]
        return made

    def _make_lazy(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose names are looked for when it is first called."""

        @wraps(function)
        def call_with_names(*args: Any, **named: Any) -> Any:
            self._define_names(_names_when_called(function.__code__))
            return function(*args, **named)

        return call_with_names

    def _define_names(self, names: Iterator[str]) -> None:
        for name in names:
            if name in self._defined and name not in self._names:
                try:
                    self.get_name(name)
                except NeedsImport:
                    continue  # NameError, should the code come to it


def _names_at_definition(code: CodeType) -> Iterator[str]:
    """The names (attributes among them) that a statement uses itself: those of its functions wait for their call."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and (inner.co_name.startswith("<") or "__qualname__" in inner.co_names):
            yield from _names_at_definition(inner)  # a lambda or comprehension, or the body of a class


def _names_when_called(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_when_called(inner)


def _is_import(node: ast.AST) -> bool:
    called = isinstance(node, ast.Attribute) and node.attr == "import_module"
    return called or isinstance(node, ast.Import | ast.ImportFrom)


def _defined_names(line: ast.stmt) -> list[str]:
    if isinstance(line, ast.ClassDef | ast.FunctionDef):
        return [line.name]
    if isinstance(line, ast.Assign | ast.AnnAssign):
        targets = line.targets if isinstance(line, ast.Assign) else [line.target]
        return [
            n.id for one in targets for n in ast.walk(one) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        ]
    return [_alias_name(one) for one in line.names] if isinstance(line, ast.Import | ast.ImportFrom) else []


def _alias_name(alias: ast.alias) -> str:
    """What an import calls it: of ``import a.b``, a."""
    return alias.asname or alias.name.split(".")[0]


def _class_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a class, of ``if TYPE_CHECKING`` those that run."""
    for line in body:
        if isinstance(line, ast.If) and isinstance(line.test, ast.Name) and line.test.id == "TYPE_CHECKING":
            yield from line.orelse
        else:
            yield line
