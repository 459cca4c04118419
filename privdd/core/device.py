"""To a device and back: everything that a task holds is placed once, at its entry, and its results
once, at its exit.

Inside of a task nobody says where a tensor goes. Random numbers are the exception: they come from
named streams on the CPU, so that they are the same on every device; those of many steps are copied
to the device together, for a transfer a tensor costs more than a step. Whoever repeats a
computation and compares, or resumes a run, needs ``deterministic_kernels``."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import os
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attacks.tensors import (
    average_pool as average_pool,
)  # for ``models``, which imports nothing of attacks
from attacks.tensors import copy_to_device as copy_to_device
from attacks.tensors import draw_ahead, memory_budget
from privdd.core.types import State

T = TypeVar("T")
UNCHANGED_TYPES = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    type,
    torch.Generator,
    torch.device,
)
# bytes that ResNet-18 keeps for a pixel of an image and its gradient, and a third more
BYTES_PER_PIXEL = 2**15
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
# Sizes of its memory at which a GPU's products of matrices add in a fixed order.
DETERMINISTIC_WORKSPACES = (":4096:8", ":16:8")


def to_device(value: T, device: str | torch.device) -> T:
    """``value`` with every tensor in it on ``device``; what holds none, or only tensors that are
    there, is itself.

    Looked into are mappings, lists, tuples, dataclasses, networks (copied, never moved in place),
    and of functions what they closed over, were bound to or were given beforehand
    (``functools.partial``). What is met twice is moved once. Cached properties of a dataclass that
    holds a moved tensor are not taken along."""
    return _DeviceMove(torch.device(device))(value)  # type: ignore[no-any-return]


class _DeviceMove:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        # id -> (what was met, kept so that its id stays its own; what it became)
        self.done: dict[int, tuple[Any, Any]] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, UNCHANGED_TYPES):
            return value
        if id(value) not in self.done:
            self.done[id(value)] = (value, value)  # for circles: a function that closed over itself
            self.done[id(value)] = (value, self._move_value(value))
        return self.done[id(value)][1]

    def _move_value(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self.device)
        if isinstance(value, nn.Module):
            return self._move_network(value)
        # before mappings, some of which are lazy ones
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._move_dataclass(value)
        if isinstance(value, Mapping):
            return self._rebuild_if_moved(
                value, list(value.values()), lambda found: dict(zip(value, found))
            )
        if isinstance(value, list | tuple):
            named = getattr(type(value), "_make", type(value))
            return self._rebuild_if_moved(value, list(value), named)
        return self._move_callable(value)

    def _rebuild_if_moved(
        self, value: Any, parts: list[Any], make: Callable[[list[Any]], Any]
    ) -> Any:
        moved = [self(part) for part in parts]
        if all(new is old for new, old in zip(moved, parts)):
            return value
        return make(moved)

    def _move_network(self, network: nn.Module) -> nn.Module:
        tensors = [*network.parameters(), *network.buffers()]
        if all(t.device.type in (self.device.type, "meta") for t in tensors):
            return network
        return copy.deepcopy(network).to(self.device)

    def _move_dataclass(self, value: Any) -> Any:
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]

        def rebuild_dataclass(found: list[Any]) -> Any:
            # its own checks were made already, and may read values
            new = object.__new__(type(value))
            for name, part in zip(names, found):
                object.__setattr__(new, name, part)
            return new

        return self._rebuild_if_moved(
            value, [getattr(value, name) for name in names], rebuild_dataclass
        )

    def _move_callable(self, value: Any) -> Any:
        if isinstance(value, functools.partial):
            parts = [value.func, value.args, value.keywords]
            return self._rebuild_if_moved(
                value, parts, lambda found: functools.partial(found[0], *found[1], **found[2])
            )
        if isinstance(value, types.MethodType):
            return self._rebuild_if_moved(
                value, [value.__self__], lambda found: types.MethodType(value.__func__, found[0])
            )
        if isinstance(value, types.FunctionType) and (
            value.__closure__ or value.__defaults__ or value.__kwdefaults__
        ):
            return self._move_function(value)
        return value

    def _move_function(self, function: types.FunctionType) -> Any:
        cells = tuple(_cell_contents(cell) for cell in function.__closure__ or ())

        def rebuild_function(found: list[Any]) -> Any:
            closure = tuple(types.CellType(*held) for held in found[0])
            new = types.FunctionType(
                function.__code__, function.__globals__, function.__name__, found[1], closure
            )
            new.__kwdefaults__ = found[2]
            return functools.update_wrapper(new, function)

        return self._rebuild_if_moved(
            function, [cells, function.__defaults__, function.__kwdefaults__], rebuild_function
        )


def _cell_contents(cell: types.CellType) -> tuple[Any, ...]:
    """The value of a closure variable, in a tuple; () if it is not set yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def stream_to_device(
    draw: Callable[[int], Mapping[str, Tensor]], steps: int, device: torch.device
) -> Iterator[State]:
    """``draw(t)`` for t = 0, ..., steps - 1, on ``device``, as ``draw_ahead``. ``draw`` takes
    streams by name, or from a generator that is nobody else's before the last step."""
    positions = iter(range(steps))
    names = list[tuple[str, ...]]()

    def draw_next() -> tuple[Tensor, ...]:
        sample = draw(next(positions))
        names.append(tuple(sample))
        return tuple(sample.values())

    for row in draw_ahead(draw_next, steps, device):
        yield dict(zip(names.pop(0), row))


def max_images_per_batch(images: Tensor, usual: int, cached: int) -> int:
    """How many of ``images`` (n, c, h, w) may go through a network at once: ``usual``, a number
    that was asked for.

    ``cached`` is the default, for a CPU's cache; where it was left as it is, a GPU takes as many as
    fit into its memory."""
    if images.device.type == "cpu" or usual != cached:
        return usual
    return max(
        usual, memory_budget(images.device, 0) // (BYTES_PER_PIXEL * math.prod(images.shape[-2:]))
    )


@contextmanager
def deterministic_kernels(device: torch.device | str) -> Iterator[None]:
    """On a GPU: kernels of a fixed order, and float32 in full (TF32 keeps 10 bits of 23), as on the
    CPU.

    Raises torch's RuntimeError, inside, at an operation that has no such kernel.
    """
    if torch.device(device).type == "cpu":
        yield
        return
    # read at the first product of matrices
    os.environ.setdefault(CUBLAS_WORKSPACE, DETERMINISTIC_WORKSPACES[0])
    products = torch.backends.cuda.matmul
    convolutions = torch.backends.cudnn
    before = (
        torch.are_deterministic_algorithms_enabled(),
        products.allow_tf32,
        convolutions.allow_tf32,
    )
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory  # a kernel more for every new tensor
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False
    products.allow_tf32 = convolutions.allow_tf32 = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        memory.fill_uninitialized_memory = filled
        products.allow_tf32, convolutions.allow_tf32 = before[1:]
