"""A short name for settings: the same for equal ones in every process, another for any that differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def description(value: Any) -> str:
    """Sixteen hexadecimal digits of plain data and of objects that hold it, such as a plan's mechanisms.

    An object counts by its class's name and its fields (its attributes, where it is no dataclass). What holds neither
    plain data nor objects of this kind, such as a function, counts by its type alone: its text names an address.
    """
    text = json.dumps(_plain(value), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float):
        return repr(float(value)) if abs(value) < 2**53 else repr(value)
    if isinstance(value, Tensor):
        return ["Tensor", _plain(value.tolist())]
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    kind = type(value).__name__
    if is_dataclass(value) and not isinstance(value, type):
        return [kind, {field.name: _plain(getattr(value, field.name)) for field in fields(value)}]
    return [kind, _plain(vars(value)) if type(value).__module__ != "builtins" and hasattr(value, "__dict__") else None]
