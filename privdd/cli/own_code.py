"""Which version of the user's own code a run is made with: a digest of each file that its settings name.

Settings name a training function (``algo.training=net:train``), a network (``model.target=net:Net``) or a class
(``_target_``) by its place alone, and the text there may change between two runs. A name leads to one file; what that
file imports is not looked at. Nothing is imported here, as a stored config may come from a stranger.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from privdd.cli.written_types import OURS
from privdd.core.errors import BadConfig
from privdd.runtime.files import DamagedRun, read_json, write_json
from privdd.runtime.renames import TARGET

NAMING = (TARGET, "training", "target")  # the settings that name code
NAME = re.compile(r"[A-Za-z_]\w*([.:][A-Za-z_]\w*)+")
KEPT = Path("state", "own_code.json")


def own_code(settings: Any) -> dict[str, str]:
    """Module of the user's own -> digest of its file ("" where none can be read), for plain settings."""
    files = dict(_place(name) for name in _names(settings))
    return {module: _digest(files[module]) for module in sorted(files)}


def keep_code(path: Path, code: Mapping[str, str]) -> None:
    """Write down what a new run begins with."""
    if code:
        write_json(path / KEPT, {"schema": 1, "code": dict(code)})


def check_code(path: Path, code: Mapping[str, str]) -> None:
    """Raises BadConfig, one line, where the run in ``path`` began with other code; warns where it does not say,
    as one of an earlier version."""
    if not code:
        return
    if not (path / KEPT).is_file():
        warnings.warn(f"{path}: does not say which version of {', '.join(code)} it began with", stacklevel=2)
        return
    stored = read_json(path / KEPT)
    kept = stored.get("code") if isinstance(stored, dict) else None
    if not isinstance(kept, dict):
        raise DamagedRun(f"{path / KEPT}: damaged (no digests)")
    if changed := [module for module, digest in code.items() if kept.get(module) != digest]:
        raise BadConfig(
            f"{path}: began with another version of {', '.join(changed)}; bring that one back, or use another folder"
        )


def _names(node: Any) -> Iterator[str]:
    """Every dotted name of code that is not privdd's, at or below ``node``."""
    for key, part in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        named = key in NAMING and isinstance(part, str) and NAME.fullmatch(part)
        if named and re.split("[.:]", part)[0] not in OURS:
            yield part
        yield from _names(part)


def _place(name: str) -> tuple[str, Path | None]:
    """The longest start of a dotted name that is a module, and its file."""
    module, file, folders = re.split("[.:]", name)[0], None, None
    for end in [*(found.start() for found in re.finditer("[.:]", name)), len(name)]:
        spec = _spec(name[:end].replace(":", "."), folders)
        if spec is None:
            break
        module = name[:end].replace(":", ".")
        folders = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
        file = Path(spec.origin) if spec.has_location and spec.origin else None
        if folders is None:
            break
    return module, file


def _spec(module: str, folders: Any) -> ModuleSpec | None:
    if module == "__main__":  # a script
        file = vars(sys.modules[module]).get("__file__")
        return None if file is None else importlib.util.spec_from_file_location(module, file)
    try:
        found = (finder.find_spec(module, folders) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        return next((spec for spec in found if spec is not None), None)
    except KeyError:  # a folder without __init__.py in another: its parent would have to be imported
        return PathFinder.find_spec(module.rpartition(".")[2], folders)


def _digest(file: Path | None) -> str:
    try:
        return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest() if file else ""
    except OSError:
        return ""
