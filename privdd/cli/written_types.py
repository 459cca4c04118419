"""The plain types that privdd's own classes declare for their settings, read from their source: importing a class takes
torch, and seconds, which a mistyped number need not cost.

What is not understood here (other packages, functions, types that are no plain ones) is left to ``type_check``, which
imports the class.
"""

from __future__ import annotations

import ast
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[2]
OURS = ("privdd", "attacks")
PLAIN = {"int": int, "float": float, "bool": bool, "str": str}


def declared(target: str, name: str) -> Any:
    """The type of a field of the class, or of a parameter of the function, ``target``; None where its source does not
    say it in plain types."""
    module, _, made = target.rpartition(".")
    tree = tree_of(module)
    if tree is None:
        return None
    kinds = ast.ClassDef | ast.FunctionDef
    found = next((line for line in tree.body if isinstance(line, kinds) and line.name == made), None)
    if isinstance(found, ast.FunctionDef):
        taken = {one.arg: one.annotation for one in (*found.args.args, *found.args.kwonlyargs)}
        return _plain(written) if (written := taken.get(name)) is not None else None
    if found is None:
        elsewhere = imported_from(tree, module, made)
        return declared(elsewhere, name) if elsewhere != target else None
    for line in found.body:
        if isinstance(line, ast.FunctionDef) and line.name == "__init__":
            return None
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.target.id == name:
            return _plain(line.annotation)
    for base in found.bases:
        kind = declared(imported_from(tree, module, base.id), name) if isinstance(base, ast.Name) else None
        if kind is not None:
            return kind
    return None


@cache
def tree_of(module: str) -> ast.Module | None:
    """The source of one of our modules; None for any other, and for what is no module's name (a part may hold slashes)."""
    parts = module.split(".")
    if parts[0] not in OURS or not all(part.isidentifier() for part in parts):
        return None
    place = ROOT.joinpath(*parts)
    files = [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]
    return ast.parse(files[0].read_text(encoding="utf-8")) if files else None


def imported_from(tree: ast.Module, module: str, name: str) -> str:
    """Where a name of a module comes from: the module itself, or one that it imports from."""
    for line in tree.body:
        if isinstance(line, ast.ImportFrom) and line.module and not line.level:
            for alias in line.names:
                if (alias.asname or alias.name) == name:
                    return f"{line.module}.{alias.name}"
    return f"{module}.{name}"


def _plain(node: ast.expr) -> Any:
    """The type of an annotation of int, float, bool, str, None and words, joined by |; None for any other."""
    if isinstance(node, ast.Name):
        return PLAIN.get(node.id)
    if isinstance(node, ast.Constant) and node.value is None:
        return type(None)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        both = [_plain(node.left), _plain(node.right)]
        return None if None in both else reduce(or_, both)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
        words = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        given = [word.value for word in words if isinstance(word, ast.Constant)]
        return Literal[tuple(given)] if len(given) == len(words) else None
    return None
