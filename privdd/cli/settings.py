"""From a composed or stored config to typed settings: the last place where a config is read by name, and the fingerprint of a run.

The fingerprint covers the user's own code that settings name: a digest of each file. Nothing of it is imported here, as a
stored config may come from a stranger. Imports no torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from privdd.cli.type_check import OWN_PACKAGES
from privdd.core.validation import BadConfig, setting_error
from privdd.federated.settings import AuditSettings, GuaranteeBudget, HardExampleSettings, PrivacySettings, RunSettings
from privdd.runtime.files import DamagedRun, read_json, write_json
from privdd.runtime.renames import TARGET, use_original_names

if TYPE_CHECKING:
    from privdd.federated.secure_aggregation import Trust


CODE_SETTINGS = (TARGET, "training", "target")  # the settings that name code
CODE_NAME = re.compile(r"[A-Za-z_]\w*([.:][A-Za-z_]\w*)+")
CODE_FILE = Path("state", "own_code.json")


def user_code_digests(settings: Any) -> dict[str, str]:
    """Module of the user's own -> digest of its file ("" where none can be read), for plain settings."""
    files = dict(_module_and_file(name) for name in _code_names(settings))
    return {module: _source_digest(files[module]) for module in sorted(files)}


def write_code_digests(path: Path, code: Mapping[str, str]) -> None:
    """Write down what a new run begins with."""
    if code:
        write_json(path / CODE_FILE, {"schema": 1, "code": dict(code)})


def check_code_digests(path: Path, code: Mapping[str, str]) -> None:
    """Raises BadConfig, one line, where the run in ``path`` began with other code; warns where it does not say,
    as one of an earlier version."""
    if not code:
        return
    if not (path / CODE_FILE).is_file():
        warnings.warn(f"{path}: does not say which version of {', '.join(code)} it began with", stacklevel=2)
        return
    stored = read_json(path / CODE_FILE)
    kept = stored.get("code") if isinstance(stored, dict) else None
    if not isinstance(kept, dict):
        raise DamagedRun(f"{path / CODE_FILE}: damaged (no digests)")
    if changed := [module for module, digest in code.items() if kept.get(module) != digest]:
        raise BadConfig(
            f"{path}: began with another version of {', '.join(changed)}; bring that one back, or use another folder"
        )


def _code_names(node: Any) -> Iterator[str]:
    """Every dotted name of code that is not privdd's, at or below ``node``."""
    for key, part in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        named = key in CODE_SETTINGS and isinstance(part, str) and CODE_NAME.fullmatch(part)
        if named and re.split("[.:]", part)[0] not in OWN_PACKAGES:
            yield part
        yield from _code_names(part)


def _module_and_file(name: str) -> tuple[str, Path | None]:
    """The longest start of a dotted name that is a module, and its file."""
    module, file, folders = re.split("[.:]", name)[0], None, None
    for end in [*(found.start() for found in re.finditer("[.:]", name)), len(name)]:
        spec = _module_spec(name[:end].replace(":", "."), folders)
        if spec is None:
            break
        module = name[:end].replace(":", ".")
        folders = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
        file = Path(spec.origin) if spec.has_location and spec.origin else None
        if folders is None:
            break
    return module, file


def _module_spec(module: str, folders: Any) -> ModuleSpec | None:
    if module == "__main__":  # a script
        file = vars(sys.modules[module]).get("__file__")
        return None if file is None else importlib.util.spec_from_file_location(module, file)
    try:
        found = (finder.find_spec(module, folders) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        return next((spec for spec in found if spec is not None), None)
    except KeyError:  # a folder without __init__.py in another: its parent would have to be imported
        return PathFinder.find_spec(module.rpartition(".")[2], folders)


def _source_digest(file: Path | None) -> str:
    try:
        return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest() if file else ""
    except OSError:
        return ""


NOT_FINGERPRINTED = (
    "attack", "audit", "engine", "capture", "run", "resume", "scores", "name", "tracking", "paper", "resources", "policy",
    "fail_on",
)  # fmt: skip
NOISE_SETTINGS = ("secret", "paired_noise")  # neither changes what is run, and runs of earlier versions have neither


def to_plain_settings(node: Any) -> Any:
    """A config node as resolved dicts, lists and numbers."""
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def iterate_settings(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of all that is no mapping, at or below ``key``."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from iterate_settings(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, node


def settings_fingerprint(config: DictConfig) -> str:
    """A digest of all settings that affect what clients send (not of how it is attacked), and of the user's own code.

    Classes enter under their oldest known names, so that a run of an earlier version keeps its digest.
    """
    content = {k: v for k, v in use_original_names(to_plain_settings(config)).items() if k not in NOT_FINGERPRINTED}
    if code := user_code_of_config(config):
        content["own_code"] = code
    if isinstance(privacy := content.get("privacy"), dict):
        content["privacy"] = {k: v for k, v in privacy.items() if k not in NOISE_SETTINGS}
    if isinstance(trust := content.get("trust"), dict) and trust.get("name") == "local":
        del content["trust"]  # as in every run of earlier versions
    if isinstance(data := content.get("data"), dict) and not data.get("standardise"):
        content["data"] = {k: v for k, v in data.items() if k != "standardise"}  # likewise
    return hashlib.blake2b(json.dumps(content, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def user_code_of_config(config: DictConfig) -> dict[str, str]:
    """The user's own modules that affect what clients send, and a digest of each."""
    return user_code_digests({k: v for k, v in to_plain_settings(config).items() if k not in NOT_FINGERPRINTED})


def is_forced(config: DictConfig) -> bool:
    """``resources.force``; stored configs of earlier versions have none. Raises BadConfig where it is no truth value."""
    value = mapping_at(config, "resources").get("force", False) if "resources" in config else False
    if not isinstance(value, bool):
        raise setting_error("resources.force", value, "true or false is needed")
    return value


def algo_name(config: DictConfig) -> str:
    """The label of a run: ``name`` (by default the chosen algo's file name), else the method's class name."""
    return str(config.get("name") or str(config.algo["_target_"]).rsplit(".", 1)[-1].lower())


def run_settings(config: DictConfig) -> RunSettings:
    """Raises BadConfig, naming key, value and what is allowed."""
    names: dict[str, Any] = {key: mapping_at(config, key).get("name") for key in ("data", "preset")}
    shared: dict[str, Any] = {key: config.get(key) for key in ("seed", "device", "participation")}
    return RunSettings(algo=algo_name(config), fingerprint=settings_fingerprint(config), **names, **shared)


def privacy_settings(config: DictConfig) -> PrivacySettings:
    """The keys that all privacy files share. Raises BadConfig, naming key, value and what is allowed."""
    privacy = mapping_at(config, "privacy")
    return PrivacySettings(**_require_fields("privacy", privacy, PrivacySettings))


def trust_settings(config: DictConfig) -> Trust:
    """What the server sees; local in the stored configs of earlier versions. Raises BadConfig, naming key and value."""
    from privdd.federated.secure_aggregation import LOCAL, Trust  # imports torch

    if config.get("trust") is None:
        return LOCAL
    return Trust(**_require_fields("trust", mapping_at(config, "trust"), Trust))


def audit_settings(config: DictConfig) -> AuditSettings | None:
    """None for a config that only trains. Raises BadConfig, naming key, value and what is allowed."""
    if "audit" not in config:
        return None
    audit = mapping_at(config, "audit")
    budget = mapping_at(config, "audit.guarantee")
    waive = {str(k): v for k, v in mapping_at(config, "audit.waive").items() if v is not None}
    tail = mapping_at(config, "audit.tail") if "tail" in audit else {}  # stored configs of earlier versions have none
    parts = {
        "guarantee": GuaranteeBudget(**_check_known_keys("audit.guarantee", budget, GuaranteeBudget)),
        "tail": HardExampleSettings(**_check_known_keys("audit.tail", tail, HardExampleSettings)),
    }
    known = _require_fields("audit", {**audit, **parts}, AuditSettings)
    return AuditSettings(**{**known, "waive": waive})


def mapping_at(config: DictConfig, key: str) -> Mapping[str, Any]:
    """A mapping of the config as plain values. Raises BadConfig where something else stands there."""
    node = to_plain_settings(OmegaConf.select(config, key))
    if not isinstance(node, dict):
        raise setting_error(key, node, "a mapping of settings is needed")
    return {str(k): v for k, v in node.items()}


def _require_fields(key: str, found: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The fields of a settings class; one that has no default must be there."""
    for field in fields(kind):
        if field.default is MISSING and field.default_factory is MISSING and field.name not in found:
            raise BadConfig(f"{key}.{field.name}: a value is needed")
    return {f.name: found[f.name] for f in fields(kind) if f.name in found}


def _check_known_keys(key: str, found: Mapping[str, Any], kind: type) -> dict[str, Any]:
    names = [f.name for f in fields(kind)]
    for name in found:
        if name not in names:
            raise BadConfig(f"{key}.{name}: unknown key; known there: {', '.join(names)}")
    return dict(found)
