"""Every value of a config against the type that the class declares for it. Imports no torch by
itself; the classes that a config names may.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

from privdd.cli.plain_config import children, iterate_settings
from privdd.cli.suggestions import suggest_name
from privdd.core.validation import BadConfig, check_finite, is_number, setting_error
from privdd.runtime.yaml_files import TARGET

HYDRA_KEYS = (TARGET, "_convert_", "_recursive_", "_partial_")
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
NAMED_VALUE = re.compile(r"([A-Za-z_][\w.]*)=")


class TypeCheck:
    """Checks the nodes of one config. Every method raises BadConfig for the first wrong value."""

    def __init__(self, config: DictConfig) -> None:
        self.typed = OmegaConf.to_container(config, resolve=False)

    def source_key_of(self, key: str) -> str:
        """The key that the value was set by: of ``${privacy.clip_norm}``, that one."""
        node = self.typed
        parts = key.split(".")
        for position, name in enumerate(parts):
            node = node.get(name) if isinstance(node, dict) else None
            if isinstance(node, str):
                link = re.fullmatch(r"\$\{(\w[\w.]*)\}", node)
            else:
                link = None
            if link:
                return self.source_key_of(".".join([link[1], *parts[position + 1 :]]))
        return key

    def check_built_node(self, key: str, value: Any) -> None:
        """A node that an object is made from."""
        if not isinstance(value, dict) or TARGET not in value:
            raise setting_error(
                self.source_key_of(key), value, f"a mapping with a {TARGET} is needed"
            )
        self.check_nested_targets(key, value)

    def check_nested_targets(self, key: str, value: Any) -> None:
        """Every ``_target_`` at or below ``key``."""
        if isinstance(value, dict) and TARGET in value:
            self._check_target(key, value)
            return
        for name, inner in children(value):
            self.check_nested_targets(f"{key}.{name}", inner)

    def _check_target(self, key: str, value: Mapping[str, Any]) -> None:
        path = value[TARGET]
        try:
            target = pkgutil.resolve_name(path)
            declared, open_ended = declared_parameters(target)
        except Exception as error:  # importing a module may raise anything
            if self.source_key_of(key) == "model":
                hint = own_network_hint(path)
            else:
                hint = ""
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
        return TARGET in value or any(contains_target(v) for v in value.values())
    return isinstance(value, list) and any(contains_target(v) for v in value)


def declared_parameters(target: Callable[..., Any]) -> tuple[dict[str, Any], bool]:
    """name -> declared type of what a class or function takes, and whether it takes other names as
    well.

    A parameter without annotation takes anything. Raises NameError for an annotation that names
    nothing."""
    parameters = inspect.signature(target).parameters.values()
    hints = type_hints_of(target)
    named = (p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return {p.name: hints.get(p.name, Any) for p in named}, open_ended


def type_hints_of(target: Callable[..., Any]) -> dict[str, Any]:
    """Annotations as types. A dataclass's inherited fields are read where they were written."""
    if not inspect.isclass(target):
        return get_type_hints(target)
    written = "__init__" in vars(target) and not hasattr(target, "__dataclass_fields__")
    if written:
        return get_type_hints(target.__init__)
    return get_type_hints(target)


def fits_type(value: Any, kind: Any) -> bool:
    """Whether a plain value is of a declared type; an int may stand for a float, a list for a
    tuple."""
    origin = get_origin(kind) or kind
    args = get_args(kind)
    if origin in (Any, object):
        return True
    if origin is typing.Annotated:
        return fits_type(value, args[0])
    if origin in (Union, types.UnionType):
        return any(fits_type(value, alternative) for alternative in args)
    if origin is Literal:
        return any(type(value) is type(word) and value == word for word in args)
    if origin in SCALAR_TYPES:
        return SCALAR_TYPES[origin][1](value)
    if not inspect.isclass(origin):
        return True
    if issubclass(origin, Enum):
        return value in [member.value for member in origin]
    if issubclass(origin, PurePath):
        return isinstance(value, str)
    if issubclass(origin, Mapping):
        return isinstance(value, dict) and all(
            fits_type(v, args[1]) for v in value.values() if args
        )
    if issubclass(origin, Collection):
        return isinstance(value, list) and all(fits_type(v, args[0]) for v in value if args)
    return False  # an object of that class is needed


def describe_type(kind: Any) -> str:
    """What is allowed, in words."""
    is_union = get_origin(kind) in (Union, types.UnionType)
    alternatives = get_args(kind) if is_union else (kind,)
    takes_null = type(None) in alternatives
    allowed: list[str] = []
    names: list[str] = []
    for alternative in alternatives:
        if get_origin(alternative) is Literal:
            allowed += map(str, get_args(alternative))
        elif alternative is not type(None):
            names.append(_type_word(alternative))
    if allowed and not names:
        if takes_null:
            allowed.append("null")
        return f"allowed are {', '.join(allowed)}"
    if allowed:
        names.insert(0, f"one of {', '.join(allowed)}")
    needed = f"{' or '.join(dict.fromkeys(names))} is needed"
    return f"{needed} (or null)" if takes_null else needed


def _type_word(kind: Any, *, many: bool = False) -> str:
    origin = get_origin(kind) or kind
    args = get_args(kind)
    if origin in SCALAR_TYPES:
        singular, plural = SCALAR_TYPES[origin][0]
        return plural if many else singular
    if origin is typing.Annotated:
        return _type_word(args[0], many=many)
    if inspect.isclass(origin) and issubclass(origin, Enum):
        return f"one of {', '.join(str(member.value) for member in origin)}"
    if inspect.isclass(origin) and issubclass(origin, PurePath):
        return "text"
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return "a mapping"
    if inspect.isclass(origin) and issubclass(origin, Collection):
        if args:
            return f"a list of {_type_word(args[0], many=True)}"
        return "a list"
    return "a mapping with a _target_"


def check_setting_numbers(key: str, value: Any, typed_key: str) -> None:
    """A setting, or each of a list. typed_key: the key that it was typed by. Raises BadConfig.

    The last word of its name tells whether it is a length: ``epochs`` of ``local_epochs``.
    """
    length = (
        key.startswith(LENGTH_GROUPS) and key.replace("_", ".").rsplit(".", 1)[-1] in LENGTH_WORDS
    )
    for number in value if isinstance(value, list) else [value]:
        if is_number(number):
            check_finite(typed_key, number)
            if length and number > MAX_LENGTH:
                raise setting_error(typed_key, number, f"at most {MAX_LENGTH} are allowed")


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
    candidates = [key for key in keys if key.endswith(f".{named[1]}")]
    if not candidates:
        return error
    nearest = min(candidates, key=lambda key: key.count("."))
    return BadConfig(f"{source_key_of(nearest)}{str(error)[named.end() - 1 :]}")
