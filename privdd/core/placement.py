"""To a device and back: everything that a task holds is placed once, at its door, and its results once more.

Inside of the door nobody says where a tensor goes: what is made from tensors on a device is on that device. Random
numbers are the exception. They come from named streams on the CPU, so that they are the same on every device.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")
PLAIN = (str, bytes, int, float, complex, bool, type(None), type, torch.Generator, torch.device)


def placed(value: T, device: str | torch.device) -> T:
    """``value`` with every tensor in it on ``device``; what holds none, or only tensors that are there, is itself.

    Looked into are mappings, lists, tuples, dataclasses, networks (copied, never moved in place), and of functions what
    they closed over, were bound to or were given beforehand (``functools.partial``). A tensor or a network that is
    met twice is moved once. Cached properties of a dataclass that holds a moved tensor are not taken along.
    """
    return _Move(torch.device(device))(value)  # type: ignore[no-any-return]


class _Move:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        # id -> (what was met, kept so that its id stays its own; what it became)
        self.done: dict[int, tuple[Any, Any]] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, PLAIN):
            return value
        if id(value) not in self.done:
            self.done[id(value)] = (value, value)  # for circles: a function that closed over itself
            self.done[id(value)] = (value, self._moved(value))
        return self.done[id(value)][1]

    def _moved(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self.device)
        if isinstance(value, nn.Module):
            return self._network(value)
        if isinstance(value, Mapping):
            return self._changed(value, list(value.values()), lambda found: dict(zip(value, found)))
        if isinstance(value, list | tuple):
            named = getattr(type(value), "_make", type(value))
            return self._changed(value, list(value), named)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value)
        return self._callable(value)

    def _changed(self, value: Any, parts: list[Any], make: Callable[[list[Any]], Any]) -> Any:
        found = [self(part) for part in parts]
        return value if all(new is old for new, old in zip(found, parts)) else make(found)

    def _network(self, network: nn.Module) -> nn.Module:
        tensors = [*network.parameters(), *network.buffers()]
        if all(t.device.type in (self.device.type, "meta") for t in tensors):
            return network
        return copy.deepcopy(network).to(self.device)

    def _dataclass(self, value: Any) -> Any:
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]

        def make(found: list[Any]) -> Any:
            new = object.__new__(type(value))  # its own checks were made already, and may read values
            for name, part in zip(names, found):
                object.__setattr__(new, name, part)
            return new

        return self._changed(value, [getattr(value, name) for name in names], make)

    def _callable(self, value: Any) -> Any:
        if isinstance(value, functools.partial):
            parts = [value.func, value.args, value.keywords]
            return self._changed(value, parts, lambda found: functools.partial(found[0], *found[1], **found[2]))
        if isinstance(value, types.MethodType):
            return self._changed(value, [value.__self__], lambda found: types.MethodType(value.__func__, found[0]))
        if isinstance(value, types.FunctionType) and (value.__closure__ or value.__defaults__ or value.__kwdefaults__):
            return self._function(value)
        return value

    def _function(self, function: types.FunctionType) -> Any:
        cells = tuple(_contents(cell) for cell in function.__closure__ or ())

        def make(found: list[Any]) -> Any:
            closure = tuple(types.CellType(*held) for held in found[0])
            new = types.FunctionType(function.__code__, function.__globals__, function.__name__, found[1], closure)
            new.__kwdefaults__ = found[2]
            return functools.update_wrapper(new, function)

        return self._changed(function, [cells, function.__defaults__, function.__kwdefaults__], make)


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    """What a variable that a function closed over holds; () where it is not set yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()
