"""NumPy arrays at the door of functions of tensors, and loops that keep a GPU busy: values are read
seldom, random numbers are sent in blocks, and batches fit the memory. A GPU's fastest kernels add
in an order that changes from call to call; that of ``average_pool`` is fixed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import chain, islice
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

# steps between reads of values on a GPU: each makes the host wait for all work in progress
STEPS_BETWEEN_READS = 16
STEPS_PER_TRANSFER = 64  # steps whose random numbers are copied together, at most
BYTES_PER_TRANSFER = 2**26  # bytes that are copied together, unless a single step needs more
# each tensor starts at a multiple of so many entries: kernels read whole vectors from aligned
# memory
ALIGNMENT = 64
# of a GPU's memory: the rest is for its libraries, the allocator, and other batches
MEMORY_SHARE = 0.25


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Let numbers below 1e-38 count as zero on this thread's CPU, within the block.

    A softened ReLU's slope falls to such numbers far from zero, and many processors compute with
    them a hundred times more slowly than with others.
    """
    tiny = torch.finfo(torch.float32).tiny
    smallest_normal = torch.tensor(tiny, dtype=torch.float32, device="cpu")
    flushed_before = float(smallest_normal / 2) == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed_before)


def accepts_numpy(function: Callable[P, R]) -> Callable[P, R]:
    """The function for NumPy arrays as well: as arguments, or in a list, tuple or mapping that is
    one.

    Where an array was given and no tensor, tensors of the result come back as arrays, in tuples,
    lists, mappings and dataclasses too; beside a tensor, arrays are taken as tensors.
    """

    @wraps(function)
    def call_with_tensors(*args: P.args, **kwargs: P.kwargs) -> R:
        arguments = (*args, *kwargs.values())
        if not any(_contains_type(argument, np.ndarray) for argument in arguments):
            return function(*args, **kwargs)
        result = function(
            *(_to_tensors(argument) for argument in args),
            **{name: _to_tensors(argument) for name, argument in kwargs.items()},
        )  # type: ignore[arg-type]
        if any(_contains_type(argument, Tensor) for argument in arguments):
            return result
        return _to_arrays(result)

    call_with_tensors.takes_arrays = True  # type: ignore[attr-defined]
    return call_with_tensors


def _contains_type(value: Any, kind: type) -> bool:
    if isinstance(value, list | tuple):
        return any(_contains_type(element, kind) for element in value)
    if isinstance(value, Mapping):
        return any(_contains_type(element, kind) for element in value.values())
    return isinstance(value, kind)


def _to_tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        # a copy only if torch needs one
        return torch.from_numpy(np.require(value, requirements=("C", "W", "A")))
    if _contains_type(value, np.ndarray):
        return _map_elements(value, _to_tensors)
    return value


def _to_arrays(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        arrays = {}
        for field in dataclasses.fields(value):
            content = getattr(value, field.name)
            if field.init and _contains_type(content, Tensor):
                arrays[field.name] = _to_arrays(content)
        return dataclasses.replace(value, **arrays)  # type: ignore[type-var]
    return _map_elements(value, _to_arrays)


def _map_elements(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a named tuple
        return value._make(change(element) for element in value)
    if isinstance(value, list | tuple):
        return type(value)(change(element) for element in value)
    if isinstance(value, Mapping):
        return {name: change(element) for name, element in value.items()}
    return value


def steps_between_reads(device: torch.device) -> int:
    """After how many steps a loop on ``device`` may read a value to decide how it continues."""
    if device.type == "cpu":
        return 1
    return STEPS_BETWEEN_READS


def copy_to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors of the CPU on ``device``, in one transfer for all of one type; on the CPU the very
    same ones."""
    copies = list(tensors)
    if device.type == "cpu":
        return copies
    for dtype in {t.dtype for t in tensors}:
        positions = [i for i, t in enumerate(tensors) if t.dtype == dtype]
        sizes = [-(-tensors[i].numel() // ALIGNMENT) * ALIGNMENT for i in positions]
        flat = torch.zeros(sum(sizes), dtype=dtype)
        for i, part in zip(positions, flat.split(sizes)):
            part[: tensors[i].numel()] = tensors[i].reshape(-1)
        for i, part in zip(positions, flat.to(device).split(sizes)):
            copies[i] = part[: tensors[i].numel()].view(tensors[i].shape)
    return copies


def draw_ahead(
    draw: Callable[[], tuple[Tensor, ...]], steps: int, device: torch.device
) -> Iterator[tuple[Tensor, ...]]:
    """``draw()`` for each of ``steps`` steps, on ``device``; its tensors are on the CPU, of any
    shapes and types.

    On the CPU they are drawn at their step, elsewhere for up to ``STEPS_PER_TRANSFER`` steps and
    about ``BYTES_PER_TRANSFER`` bytes at once: a transfer a step would cost more than the step. The
    numbers are the same on every device, and so is the generator after the last step.
    """
    waiting: list[tuple[Tensor, ...]] = []
    for step in range(steps):
        tensors = draw()
        if device.type == "cpu":
            yield tensors
            continue
        waiting.append(tensors)
        # with another step like this
        size = sum(t.numel() * t.element_size() for t in chain(*waiting, tensors))
        if len(waiting) == STEPS_PER_TRANSFER or step == steps - 1 or size > BYTES_PER_TRANSFER:
            copies = iter(copy_to_device(list(chain(*waiting)), device))
            for row in waiting:
                yield tuple(islice(copies, len(row)))
            waiting = []


def memory_budget(device: torch.device | str, usual: int) -> int:
    """Bytes that a batch may take: ``usual`` on the CPU, whose memory others share; a quarter of a
    GPU's.

    A quarter of all its memory, not of what is free: a batch's size changes the last bits of the
    results."""
    device = torch.device(device)
    if device.type != "cuda":
        return usual
    return int(MEMORY_SHARE * torch.cuda.mem_get_info(device)[1])


def record_cuda_graph(
    compute: Callable[[Tensor], tuple[Tensor, ...]], like: Tensor
) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """``compute``, a function of one tensor shaped as ``like``, recorded as a graph on a GPU.

    The kernels are then started together, as starting them one by one takes longer than they do.
    They are the same kernels, so the bits are the same. Its control flow may not depend on values;
    if it cannot be recorded (a copy from the CPU inside), it is returned as it is."""
    if like.device.type != "cuda":
        return compute
    argument = like.clone()
    graph = torch.cuda.CUDAGraph()
    aside = torch.cuda.Stream()
    here = torch.cuda.current_stream()
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        compute(argument)  # libraries set themselves up at the first calls
        compute(argument)
    here.wait_stream(aside)
    try:
        with torch.cuda.graph(graph):
            outputs = compute(argument)
    except RuntimeError:
        torch.cuda.synchronize()
        return compute

    # keep_alive: the graph reads the memory of ``compute``
    def replay_graph(x: Tensor, keep_alive: object = compute) -> tuple[Tensor, ...]:
        argument.copy_(x)
        graph.replay()
        return tuple(value.clone() for value in outputs)

    return replay_graph


def as_factor(values: Tensor, like: Tensor) -> Tensor:
    """One number a record (b,) in the shape that multiplies, or selects, ``like`` (b, ...)."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def average_pool(x: Tensor, size: int | tuple[int, int]) -> Tensor:
    """``F.adaptive_avg_pool2d``: (..., h, w) -> (..., *size); off the CPU as two products, whose
    gradient is repeatable."""
    if x.device.type == "cpu":
        return F.adaptive_avg_pool2d(x, size)
    if isinstance(size, int):
        size = (size, size)
    rows, columns = size
    return _pooling_weights(x, x.shape[-2], rows) @ x @ _pooling_weights(x, x.shape[-1], columns).T


def _pooling_weights(like: Tensor, length: int, cells: int) -> Tensor:
    """(cells, length): the weight of each position in the mean of each cell; cells may overlap by
    one position."""
    # cell c takes positions floor(c n / C) ... ceil((c + 1) n / C) - 1
    position = torch.arange(length, device=like.device)
    cell = torch.arange(cells, device=like.device).unsqueeze(1)
    first = cell * length // cells
    end = ((cell + 1) * length + cells - 1) // cells
    in_cell = (position >= first) & (position < end)
    return (in_cell / in_cell.sum(1, keepdim=True)).to(like)
