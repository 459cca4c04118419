"""From a composed or stored config to typed settings: the last place where a config is read by
name, and the fingerprint of a run.

The fingerprint covers the user's own code that settings name: a digest of each file. Nothing of it
is imported here, as a stored config may come from a stranger. Imports no torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

from privdd.cli.suggestions import suggest_name
from privdd.core.validation import BadConfig, check_finite, is_number, setting_error
from privdd.federated.settings import (
    AuditSettings,
    GuaranteeBudget,
    HardExampleSettings,
    PrivacySettings,
    RunSettings,
)
from privdd.runtime.files import DamagedRun, read_json, write_json
from privdd.runtime.renames import TARGET, use_original_names

if TYPE_CHECKING:
    from privdd.federated.aggregation import Trust

HYDRA_KEYS = ("_target_", "_convert_", "_recursive_", "_partial_")
SCALAR_TYPES: dict[
    Any, tuple[tuple[str, str], Callable[[Any], bool]]
] = {  # names (singular, plural), and the check
    bool: (("true or false",) * 2, lambda v: isinstance(v, bool)),
    int: (
        ("a whole number", "whole numbers"),
        lambda v: isinstance(v, int) and not isinstance(v, bool),
    ),
    float: (("a number", "numbers"), is_number),
    str: (("text", "texts"), lambda v: isinstance(v, str)),
    type(None): (("null",) * 2, lambda v: v is None),
}


class TypeCheck:
    """Checks the nodes of one config. Every method raises BadConfig for the first wrong value."""

    def __init__(self, config: DictConfig) -> None:
        self.typed = OmegaConf.to_container(config, resolve=False)

    def source_key_of(self, key: str) -> str:
        """The key that the value was set by: of ``${privacy.clip_norm}``, that one."""
        node = self.typed
        parts = key.split(".")
        for at, name in enumerate(parts):
            node = node.get(name) if isinstance(node, dict) else None
            link = re.fullmatch(r"\$\{(\w[\w.]*)\}", node) if isinstance(node, str) else None
            if link:
                return self.source_key_of(".".join([link[1], *parts[at + 1 :]]))
        return key

    def check_built_node(self, key: str, value: Any) -> None:
        """A node that an object is made from."""
        if not isinstance(value, dict) or "_target_" not in value:
            raise setting_error(
                self.source_key_of(key), value, "a mapping with a _target_ is needed"
            )
        self.check_nested_targets(key, value)

    def check_nested_targets(self, key: str, value: Any) -> None:
        """Every ``_target_`` at or below ``key``."""
        if isinstance(value, dict) and "_target_" in value:
            self._check_target(key, value)
        elif isinstance(value, dict | list):
            for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
                self.check_nested_targets(f"{key}.{name}", inner)

    def _check_target(self, key: str, value: Mapping[str, Any]) -> None:
        path = value["_target_"]
        try:
            target = pkgutil.resolve_name(path)
            declared, open_ended = declared_parameters(target)
        except Exception as error:  # importing a module may raise anything
            hint = own_network_hint(path) if self.source_key_of(key) == "model" else ""
            raise setting_error(
                f"{key}._target_", path, " ".join(str(error).split())[:300] + hint
            ) from None
        if self.source_key_of(key) == "model" and not is_model_class(target):
            raise setting_error(f"{key}._target_", path, f"no ModelSpec{own_network_hint(path)}")
        self.check_arguments(
            key, {k: v for k, v in value.items() if k not in HYDRA_KEYS}, declared, open_ended
        )

    def check_arguments(
        self, key: str, given: Mapping[str, Any], declared: Mapping[str, Any], open_ended: bool
    ) -> None:
        """Values for parameters of these types; open_ended: others may be given too."""
        for name, value in given.items():
            source = self.source_key_of(f"{key}.{name}")
            if name not in declared and not open_ended:
                raise BadConfig(f"{source}: unknown key; {suggest_name(name, [*declared], key)}")
            self.check_value(source, value, declared.get(name, Any))

    def check_value(self, key: str, value: Any, kind: Any) -> None:
        """One value; a ``_target_`` inside it is checked against its own class alone."""
        if contains_target(value):
            self.check_nested_targets(key, value)
        elif not fits_type(value, kind):
            if isinstance(value, dict):
                raise BadConfig(f"{key}={{...}}: {describe_type(kind)}")
            raise setting_error(key, value, describe_type(kind))


def is_model_class(target: Any) -> bool:
    """Whether it is a class of ``privdd.models.ModelSpec``, by name: importing that takes a
    second."""
    return any(base.__name__ == "ModelSpec" for base in getattr(target, "__mro__", ()))


def own_network_hint(path: Any) -> str:
    """How a network of the user's own is given, for whoever named it as ``model._target_``."""
    module, _, name = str(path).rpartition(".")
    return f"; a network of your own is model=own model.target={module or 'net'}:{name or 'Net'}"


def contains_target(value: Any) -> bool:
    """Whether a value contains a ``_target_`` at any depth."""
    if isinstance(value, dict):
        return "_target_" in value or any(contains_target(v) for v in value.values())
    return isinstance(value, list) and any(contains_target(v) for v in value)


def declared_parameters(target: Callable[..., Any]) -> tuple[dict[str, Any], bool]:
    """name -> declared type of what a class or function takes, and whether it takes other names as
    well.

    A parameter without annotation takes anything. Raises NameError for an annotation that names
    nothing."""
    parameters = inspect.signature(target).parameters.values()
    hints = type_hints_of(target)
    named = (p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))
    more = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return {p.name: hints.get(p.name, Any) for p in named}, more


def type_hints_of(target: Callable[..., Any]) -> dict[str, Any]:
    """Annotations as types. A dataclass's inherited fields are read where they were written."""
    if not inspect.isclass(target):
        return get_type_hints(target)
    written = "__init__" in vars(target) and not hasattr(target, "__dataclass_fields__")
    return get_type_hints(target.__init__) if written else get_type_hints(target)


def fits_type(value: Any, kind: Any) -> bool:
    """Whether a plain value is of a declared type; an int may stand for a float, a list for a
    tuple."""
    made = get_origin(kind) or kind
    args = get_args(kind)
    if made in (Any, object):
        return True
    if made is typing.Annotated:
        return fits_type(value, args[0])
    if made in (Union, types.UnionType):
        return any(fits_type(value, one) for one in args)
    if made is Literal:
        return any(type(value) is type(word) and value == word for word in args)
    if made in SCALAR_TYPES:
        return SCALAR_TYPES[made][1](value)
    if not inspect.isclass(made):
        return True
    if issubclass(made, Enum):
        return value in [member.value for member in made]
    if issubclass(made, PurePath):
        return isinstance(value, str)
    if issubclass(made, Mapping):
        return isinstance(value, dict) and all(
            fits_type(v, args[1]) for v in value.values() if args
        )
    if issubclass(made, Collection):
        return isinstance(value, list) and all(fits_type(v, args[0]) for v in value if args)
    return False  # an object of that class is needed


def describe_type(kind: Any) -> str:
    """What is allowed, in words."""
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    allowed = [str(word) for one in kinds if get_origin(one) is Literal for word in get_args(one)]
    others = dict.fromkeys(
        _type_word(one) for one in kinds if get_origin(one) is not Literal and one is not type(None)
    )
    if allowed and not others:
        return f"allowed are {', '.join([*allowed, *(['null'] if type(None) in kinds else [])])}"
    words = [*([f"one of {', '.join(allowed)}"] if allowed else []), *others]
    return f"{' or '.join(words)} is needed{' (or null)' if type(None) in kinds else ''}"


def _type_word(kind: Any, *, many: bool = False) -> str:
    made = get_origin(kind) or kind
    args = get_args(kind)
    if made in SCALAR_TYPES:
        one, several = SCALAR_TYPES[made][0]
        return several if many else one
    if made is typing.Annotated:
        return _type_word(args[0], many=many)
    if inspect.isclass(made) and issubclass(made, Enum):
        return f"one of {', '.join(str(member.value) for member in made)}"
    if inspect.isclass(made) and issubclass(made, PurePath):
        return "text"
    if inspect.isclass(made) and issubclass(made, Mapping):
        return "a mapping"
    if inspect.isclass(made) and issubclass(made, Collection):
        return f"a list of {_type_word(args[0], many=True)}" if args else "a list"
    return "a mapping with a _target_"


LENGTH_WORDS = {
    "rounds",
    "epochs",
    "steps",
    "iterations",
    "networks",
    "turns",
    "matches",
    "reads",
    "restarts",
    "starts",
    "attempts",
}
LENGTH_GROUPS = ("algo.", "attack.")
MAX_LENGTH = 10**6


def check_setting_numbers(key: str, value: Any, said: str) -> None:
    """A setting, or each of a list. said: the key that it was typed by. Raises BadConfig.

    The last word of its name tells whether it is a length: ``epochs`` of ``local_epochs``.
    """
    length = (
        key.startswith(LENGTH_GROUPS) and key.replace("_", ".").rsplit(".", 1)[-1] in LENGTH_WORDS
    )
    for one in value if isinstance(value, list) else [value]:
        if is_number(one):
            check_finite(said, one)
            if length and one > MAX_LENGTH:
                raise setting_error(said, one, f"at most {MAX_LENGTH} are allowed")


OWN_PACKAGES = ("privdd", "attacks")
NAMED_VALUE = re.compile(r"([A-Za-z_][\w.]*)=")


def error_with_place(
    error: ValueError, place: str, node: Any, source_key_of: Callable[[str], str] = str
) -> ValueError:
    """The error of a class that is built at ``place``, its message beginning with the whole key in
    place of the name of a field.

    source_key_of: key -> the key that a setting was typed by.
    """
    named = NAMED_VALUE.match(str(error))
    if not place or named is None:
        return error
    keys = [key for key, _ in iterate_settings(node, place)]
    same = [key for key in keys if key.endswith(f".{named[1]}")]
    if not same:
        return error
    nearest = min(same, key=lambda key: key.count("."))
    return BadConfig(f"{source_key_of(nearest)}{str(error)[named.end() - 1 :]}")


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
        write_json(path / CODE_FILE, {"schema": 1, "code": dict(code)})


def check_code_digests(path: Path, code: Mapping[str, str]) -> None:
    """Raises BadConfig, one line, where the run in ``path`` began with other code."""
    if not code:
        return
    stored = read_json(path / CODE_FILE)
    kept = stored.get("code") if isinstance(stored, dict) else None
    if not isinstance(kept, dict):
        raise DamagedRun(f"{path / CODE_FILE}: damaged (no digests)")
    if changed := [module for module, digest in code.items() if kept.get(module) != digest]:
        raise BadConfig(
            f"{path}: began with another version of {', '.join(changed)}; bring that one "
            "back, or use another folder"
        )


def _code_names(node: Any) -> Iterator[str]:
    """Every dotted name of code that is not privdd's, at or below ``node``."""
    for key, part in (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    ):
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
        file = Path(spec.origin) if spec.has_location and spec.origin else None
        if folders is None:
            break
    return module, file


def _module_spec(module: str, folders: Any) -> ModuleSpec | None:
    if module == "__main__":  # a script
        file = vars(sys.modules[module]).get("__file__")
        return None if file is None else importlib.util.spec_from_file_location(module, file)
    try:
        found = (
            finder.find_spec(module, folders)
            for finder in sys.meta_path
            if hasattr(finder, "find_spec")
        )
        return next((spec for spec in found if spec is not None), None)
    except (
        KeyError
    ):  # a folder without __init__.py in another: its parent would have to be imported
        return PathFinder.find_spec(module.rpartition(".")[2], folders)


def _source_digest(file: Path | None) -> str:
    try:
        return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest() if file else ""
    except OSError:
        return ""


NOT_FINGERPRINTED = (
    "attack",
    "audit",
    "engine",
    "capture",
    "run",
    "resume",
    "scores",
    "name",
    "tracking",
    "paper",
    "resources",
    "policy",
    "fail_on",
)
NOISE_SETTINGS = (
    "secret",
    "paired_noise",
    "budget",
)  # none of them changes what is run


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
    """A digest of all settings that affect what clients send (not of how it is attacked), and of
    the user's own code.

    Classes enter under their oldest known names, so that a run of an earlier version keeps its
    digest."""
    content = {
        k: v
        for k, v in use_original_names(to_plain_settings(config)).items()
        if k not in NOT_FINGERPRINTED
    }
    if code := user_code_of_config(config):
        content["own_code"] = code
    if isinstance(privacy := content.get("privacy"), dict):
        content["privacy"] = {k: v for k, v in privacy.items() if k not in NOISE_SETTINGS}
    if isinstance(trust := content.get("trust"), dict) and trust.get("name") == "local":
        del content["trust"]  # as in every run of earlier versions
    if isinstance(data := content.get("data"), dict) and not data.get("standardise"):
        content["data"] = {k: v for k, v in data.items() if k != "standardise"}  # likewise
    return hashlib.blake2b(
        json.dumps(content, sort_keys=True, default=str).encode(), digest_size=8
    ).hexdigest()


def user_code_of_config(config: DictConfig) -> dict[str, str]:
    """The user's own modules that affect what clients send, and a digest of each."""
    return user_code_digests(
        {k: v for k, v in to_plain_settings(config).items() if k not in NOT_FINGERPRINTED}
    )


def is_forced(config: DictConfig) -> bool:
    """``resources.force``. Raises BadConfig where it is no truth value."""
    value = mapping_at(config, "resources").get("force", False)
    if not isinstance(value, bool):
        raise setting_error("resources.force", value, "true or false is needed")
    return value


def algo_name(config: DictConfig) -> str:
    """The label of a run: ``name`` (by default the chosen algo's file name), else the method's
    class name."""
    return str(config.get("name") or str(config.algo["_target_"]).rsplit(".", 1)[-1].lower())


def run_settings(config: DictConfig) -> RunSettings:
    """Raises BadConfig, naming key, value and what is allowed."""
    names: dict[str, Any] = {key: mapping_at(config, key).get("name") for key in ("data", "preset")}
    shared: dict[str, Any] = {key: config.get(key) for key in ("seed", "device", "participation")}
    return RunSettings(
        algo=algo_name(config), fingerprint=settings_fingerprint(config), **names, **shared
    )


def privacy_settings(config: DictConfig) -> PrivacySettings:
    """The keys that all privacy files share. Raises BadConfig, naming key, value and what is
    allowed."""
    privacy = mapping_at(config, "privacy")
    return PrivacySettings(**_require_fields("privacy", privacy, PrivacySettings))


def trust_settings(config: DictConfig) -> Trust:
    """What the server sees. Raises BadConfig, naming key and value."""
    from privdd.federated.aggregation import Trust  # imports torch

    return Trust(**_require_fields("trust", mapping_at(config, "trust"), Trust))


def audit_settings(config: DictConfig) -> AuditSettings | None:
    """None for a config that only trains. Raises BadConfig, naming key, value and what is
    allowed."""
    if "audit" not in config:
        return None
    audit = dict(mapping_at(config, "audit"))
    audit["waive"] = {
        str(k): v for k, v in mapping_at(config, "audit.waive").items() if v is not None
    }
    parts: dict[str, type] = {"guarantee": GuaranteeBudget, "tail": HardExampleSettings}
    for name, kind in parts.items():
        given = mapping_at(config, f"audit.{name}")
        known = [f.name for f in fields(kind)]
        if unknown := next((key for key in given if key not in known), None):
            raise BadConfig(f"audit.{name}.{unknown}: unknown key; known there: {', '.join(known)}")
        audit[name] = kind(**given)
    return AuditSettings(**_require_fields("audit", audit, AuditSettings))


def mapping_at(config: DictConfig, key: str) -> Mapping[str, Any]:
    """A mapping of the config as plain values. Raises BadConfig where something else stands
    there."""
    node = to_plain_settings(OmegaConf.select(config, key))
    if not isinstance(node, dict):
        raise setting_error(key, node, "a mapping of settings is needed")
    return {str(k): v for k, v in node.items()}


def _require_fields(key: str, found: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The fields of a settings class; one that has no default must be there."""
    for field in fields(kind):
        if (
            field.default is MISSING
            and field.default_factory is MISSING
            and field.name not in found
        ):
            raise BadConfig(f"{key}.{field.name}: a value is needed")
    return {f.name: found[f.name] for f in fields(kind) if f.name in found}
