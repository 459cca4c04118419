"""Types and ranges that privdd's own classes declare for their settings, read from their source: importing a class takes torch,
and seconds, which a mistyped number need not cost. Nothing of the source is executed.

Read are annotations of plain types, and in ``__post_init__`` the checks of ``attacks.validation`` that name fields:
``check_positive(self, "lr")``. Whatever else a class checks is met when it is made.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache, reduce
from operator import or_
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from attacks import validation

SOURCE_ROOT = Path(__file__).resolve().parents[2]
OWN_PACKAGES = ("privdd", "attacks")
RANGE_CHECKS = ("check_counts", "check_positive", "check_non_negative", "check_probability", "check_below_one")
PLAIN_TYPES = {"int": int, "float": float, "bool": bool, "str": str}


def declared_type(target: str, name: str) -> Any:
    """The type of a field of the class, or of a parameter of the function, ``target``; None where its source does not
    say it in plain types."""
    found, bases = find_definition(target)
    if isinstance(found, ast.FunctionDef):
        taken = {one.arg: one.annotation for one in (*found.args.args, *found.args.kwonlyargs)}
        return _plain_type(written) if (written := taken.get(name)) is not None else None
    for line in found.body if found is not None else ():
        if isinstance(line, ast.FunctionDef) and line.name == "__init__":
            return None
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.target.id == name:
            return _plain_type(line.annotation)
    return next((kind for base in bases if (kind := declared_type(base, name)) is not None), None)


def check_declared_ranges(target: str, settings: Mapping[str, Any]) -> None:
    """Make the checks that the class ``target`` declares, of the settings at hand. Raises its ValueError for the first out of range."""
    for check, names, options in _declared_checks(target):
        for name in names:
            if name in settings:
                check(SimpleNamespace(**{name: settings[name]}), name, **options)


def with_defaults(target: str, settings: Mapping[str, Any]) -> SimpleNamespace:
    """The settings, and the plain defaults that the class or function ``target`` declares for the others."""
    found, _ = find_definition(target)
    if isinstance(found, ast.FunctionDef):
        written = zip(found.args.kwonlyargs, found.args.kw_defaults, strict=True)
        declared = {one.arg: value for one, value in written}
    else:
        lines = [one for one in getattr(found, "body", []) if isinstance(one, ast.AnnAssign)]
        declared = {ast.unparse(one.target): one.value for one in lines}
    plain = {name: value.value for name, value in declared.items() if isinstance(value, ast.Constant)}
    return SimpleNamespace(**{**plain, **settings})


def _declared_checks(target: str) -> Iterator[tuple[Any, list[str], dict[str, Any]]]:
    """(the check, the fields, its options) of a class and of what it inherits."""
    found, bases = find_definition(target)
    body = found.body if isinstance(found, ast.ClassDef) else []
    if any(isinstance(line, ast.FunctionDef) and line.name == "__init__" for line in body):
        return
    own = next((line for line in body if isinstance(line, ast.FunctionDef) and line.name == "__post_init__"), None)
    if own is None or "super().__post_init__()" in map(ast.unparse, own.body):
        for base in bases:
            yield from _declared_checks(base)
    for line in own.body if own is not None else ():
        call = line.value if isinstance(line, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in RANGE_CHECKS:
            names = [one.value for one in call.args[1:] if isinstance(one, ast.Constant)]
            options = {
                one.arg: one.value.value for one in call.keywords if one.arg and isinstance(one.value, ast.Constant)
            }
            yield getattr(validation, call.func.id), [str(name) for name in names], options


@cache
def find_definition(target: str) -> tuple[ast.ClassDef | ast.FunctionDef | None, tuple[str, ...]]:
    """The class or function of that dotted name in our own source, and the dotted names of its bases."""
    module, _, name = target.rpartition(".")
    tree = parse_module(module)
    if tree is None:
        return None, ()
    kinds = ast.ClassDef | ast.FunctionDef
    found = next((line for line in tree.body if isinstance(line, kinds) and line.name == name), None)
    if found is None:
        elsewhere = import_origin(tree, module, name)
        return find_definition(elsewhere) if elsewhere != target else (None, ())
    names = [base.id for base in getattr(found, "bases", []) if isinstance(base, ast.Name)]
    return found, tuple(import_origin(tree, module, base) for base in names)


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
