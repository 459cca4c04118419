"""Digests of the user's own code that settings name.

Nothing of that code is imported here, as a stored config may come from a stranger. Imports no
torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from privdd.cli.plain_config import NOT_FINGERPRINTED, children, to_plain_settings
from privdd.core.validation import BadConfig
from privdd.runtime.files import SCHEMA, DamagedRun, read_json, write_json
from privdd.runtime.yaml_files import TARGET

OWN_PACKAGES = ("privdd", "attacks")
CODE_SETTINGS = (TARGET, "training", "target")  # the settings that name code
CODE_NAME = re.compile(r"[A-Za-z_]\w*([.:][A-Za-z_]\w*)+")
CODE_FILE = Path("state", "own_code.json")


def user_code_digests(settings: Any) -> dict[str, str]:
    """Module of the user's own -> digest of its file ("" where none can be read), for plain
    settings."""
    files = dict(_module_and_file(name) for name in _code_names(settings))
    return {module: _source_digest(files[module]) for module in sorted(files)}


def write_code_digests(path: Path, code: Mapping[str, str]) -> None:
    """Write down what a new run begins with."""
    if code:
        write_json(path / CODE_FILE, {"schema": SCHEMA, "code": dict(code)})


def check_code_digests(path: Path, code: Mapping[str, str]) -> None:
    """Refuse to go on with a run that began with other code of the user's own.

    Args:
        path: The run's folder.
        code: Module -> digest, as it is now.

    Raises:
        BadConfig: The code has changed.
        DamagedRun: The folder does not say with which code it began.
    """
    if not code:
        return
    if not (path / CODE_FILE).is_file():
        modules = ", ".join(code)
        raise DamagedRun(f"{path}: does not say which version of {modules} it began with")
    stored = read_json(path / CODE_FILE)
    if isinstance(stored, dict):
        digests = stored.get("code")
    else:
        digests = None
    if not isinstance(digests, dict):
        raise DamagedRun(f"{path / CODE_FILE}: damaged (no digests)")
    if changed := [module for module, digest in code.items() if digests.get(module) != digest]:
        raise BadConfig(
            f"{path}: began with another version of {', '.join(changed)}; bring that one "
            "back, or use another folder"
        )


def _code_names(node: Any) -> Iterator[str]:
    """Every dotted name of code that is not privdd's, at or below ``node``."""
    for key, part in children(node):
        named = key in CODE_SETTINGS and isinstance(part, str) and CODE_NAME.fullmatch(part)
        if named and re.split("[.:]", part)[0] not in OWN_PACKAGES:
            yield part
        yield from _code_names(part)


def _module_and_file(name: str) -> tuple[str, Path | None]:
    """The longest start of a dotted name that is a module, and its file."""
    parts = re.split("[.:]", name)
    file = None
    folders = None
    module = parts[0]
    for end in range(1, len(parts) + 1):
        spec = _module_spec(".".join(parts[:end]), folders)
        if spec is None:
            break
        module = ".".join(parts[:end])
        folders = spec.submodule_search_locations
        if spec.has_location and spec.origin:
            file = Path(spec.origin)
        else:
            file = None
        if folders is None:
            break
    return module, file


def _module_spec(module: str, folders: Any) -> ModuleSpec | None:
    if module == "__main__":  # a script
        file = vars(sys.modules[module]).get("__file__")
        if file is None:
            return None
        return importlib.util.spec_from_file_location(module, file)
    try:
        specs = (
            finder.find_spec(module, folders)
            for finder in sys.meta_path
            if hasattr(finder, "find_spec")
        )
        return next((spec for spec in specs if spec is not None), None)
    except (
        KeyError
    ):  # a folder without __init__.py in another: its parent would have to be imported
        return PathFinder.find_spec(module.rpartition(".")[2], folders)


def _source_digest(file: Path | None) -> str:
    try:
        if file:
            return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()
        return ""
    except OSError:
        return ""


def user_code_of_config(config: DictConfig) -> dict[str, str]:
    """The user's own modules that affect what clients send, and a digest of each."""
    return user_code_digests(
        {k: v for k, v in to_plain_settings(config).items() if k not in NOT_FINGERPRINTED}
    )
