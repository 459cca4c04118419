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

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from privdd.cli.type_check import TypeCheck, fits, needed
from privdd.core.checks import refused

ROOT = Path(__file__).resolve().parents[2]
OURS = ("privdd", "attacks")
PLAIN = {"int": int, "float": float, "bool": bool, "str": str}


def check_plain(config: DictConfig, keys: list[str]) -> None:
    """Raises BadConfig, with the words of ``type_check``, for the first key whose value is of another plain type."""
    for key in keys:
        place, _, name = key.rpartition(".")
        try:
            value, target = OmegaConf.select(config, key), OmegaConf.select(config, f"{place}._target_")
        except OmegaConfBaseException:
            continue
        if isinstance(target, str) and not OmegaConf.is_config(value):
            kind = declared(target, name)
            if kind is not None and not fits(value, kind):
                raise refused(TypeCheck(config).key_of(key), value, needed(kind))


def declared(target: str, name: str) -> Any:
    """The type of a field of the class ``target``, None where its source does not say it in plain types."""
    module, _, made = target.rpartition(".")
    tree = _tree(module)
    found = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == made), None) if tree else None
    if tree is None:
        return None
    if found is None:
        elsewhere = _imported(tree, module, made)
        return declared(elsewhere, name) if elsewhere != target else None
    for line in found.body:
        if isinstance(line, ast.FunctionDef) and line.name == "__init__":
            return None
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.target.id == name:
            return _plain(line.annotation)
    for base in found.bases:
        kind = declared(_imported(tree, module, base.id), name) if isinstance(base, ast.Name) else None
        if kind is not None:
            return kind
    return None


@cache
def _tree(module: str) -> ast.Module | None:
    place = ROOT.joinpath(*module.split("."))
    files = [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]
    return ast.parse(files[0].read_text(encoding="utf-8")) if module.split(".")[0] in OURS and files else None


def _imported(tree: ast.Module, module: str, name: str) -> str:
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
