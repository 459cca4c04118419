"""NumPy at the door: a function of tensors that takes arrays too, and gives back what it was given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def accepts_numpy(function: Callable[P, R]) -> Callable[P, R]:
    """The function for NumPy arrays as well: as arguments, or in a list, tuple or mapping that is one.

    Where an array was given and no tensor, tensors of the result come back as arrays, in tuples, lists, mappings and
    dataclasses too; beside a tensor, arrays are taken as tensors and tensors come back. Values keep their type.
    """

    @wraps(function)
    def call_with_tensors(*args: P.args, **kwargs: P.kwargs) -> R:
        given = (*args, *kwargs.values())
        if not any(_contains_type(one, np.ndarray) for one in given):
            return function(*args, **kwargs)
        made = function(*(_to_tensors(one) for one in args), **{name: _to_tensors(one) for name, one in kwargs.items()})  # type: ignore[arg-type]
        return made if any(_contains_type(one, Tensor) for one in given) else _to_arrays(made)

    call_with_tensors.takes_arrays = True  # type: ignore[attr-defined]
    return call_with_tensors


def _contains_type(value: Any, kind: type) -> bool:
    if isinstance(value, list | tuple):
        return any(_contains_type(one, kind) for one in value)
    if isinstance(value, Mapping):
        return any(_contains_type(one, kind) for one in value.values())
    return isinstance(value, kind)


def _to_tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.require(value, requirements=("C", "W", "A")))  # a copy only where torch needs one
    return _map_elements(value, _to_tensors) if _contains_type(value, np.ndarray) else value


def _to_arrays(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return dataclasses.replace(value, **{n: _to_arrays(v) for n, v in found.items() if _contains_type(v, Tensor)})  # type: ignore[type-var]
    return _map_elements(value, _to_arrays)


def _map_elements(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a named tuple
        return value._make(change(one) for one in value)
    if isinstance(value, list | tuple):
        return type(value)(change(one) for one in value)
    if isinstance(value, Mapping):
        return {name: change(one) for name, one in value.items()}
    return value
