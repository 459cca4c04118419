"""NumPy arrays at the door of functions of tensors, and loops that keep a GPU busy: values are read
seldom, random numbers are sent in blocks, and batches fit the memory. A GPU's fastest kernels add
in an order that changes from call to call; that of ``average_pool`` is fixed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def accepts_numpy(function: Callable[P, R]) -> Callable[P, R]:
    """The function for NumPy arrays as well: as arguments, or in a list, tuple or mapping that is
    one.

    Where an array was given and no tensor, tensors of the result come back as arrays, in tuples,
    lists, mappings and dataclasses too; beside a tensor, arrays are taken as tensors.
    """

    @wraps(function)
    def call_with_tensors(*args: P.args, **kwargs: P.kwargs) -> R:
        given = (*args, *kwargs.values())
        if not any(_contains_type(one, np.ndarray) for one in given):
            return function(*args, **kwargs)
        made = function(
            *(_to_tensors(one) for one in args),
            **{name: _to_tensors(one) for name, one in kwargs.items()},
        )  # type: ignore[arg-type]
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
        return torch.from_numpy(
            np.require(value, requirements=("C", "W", "A"))
        )  # a copy only where torch needs one
    return _map_elements(value, _to_tensors) if _contains_type(value, np.ndarray) else value


def _to_arrays(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            if field.init
        }
        return dataclasses.replace(
            value, **{n: _to_arrays(v) for n, v in found.items() if _contains_type(v, Tensor)}
        )  # type: ignore[type-var]
    return _map_elements(value, _to_arrays)


def _map_elements(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a named tuple
        return value._make(change(one) for one in value)
    if isinstance(value, list | tuple):
        return type(value)(change(one) for one in value)
    if isinstance(value, Mapping):
        return {name: change(one) for name, one in value.items()}
    return value


STEPS_BETWEEN_READS = (
    16  # steps between looks at values on a GPU: each makes the host wait for all that is under way
)
STEPS_PER_TRANSFER = 64  # steps whose random numbers travel together, at most
BYTES_PER_TRANSFER = 2**26  # bytes that travel together, unless a single step needs more
# each tensor starts at a multiple of so many entries: kernels read whole vectors from aligned
# memory
ALIGNMENT = 64
# of a GPU's memory: the rest is for its libraries, for what the allocator keeps, and for other
# batches
MEMORY_SHARE = 0.25


def steps_between_reads(device: torch.device) -> int:
    """After how many steps a loop on ``device`` may look at a value to decide how it goes on."""
    return 1 if device.type == "cpu" else STEPS_BETWEEN_READS


def copy_to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors of the CPU on ``device``, in one transfer for all of one type; on the CPU the very
    same ones."""
    out = list(tensors)
    for dtype in {t.dtype for t in tensors} if device.type != "cpu" else ():
        at = [i for i, t in enumerate(tensors) if t.dtype == dtype]
        sizes = [-(-tensors[i].numel() // ALIGNMENT) * ALIGNMENT for i in at]
        flat = torch.zeros(sum(sizes), dtype=dtype)
        for i, part in zip(at, flat.split(sizes)):
            part[: tensors[i].numel()] = tensors[i].reshape(-1)
        for i, part in zip(at, flat.to(device).split(sizes)):
            out[i] = part[: tensors[i].numel()].view(tensors[i].shape)
    return out


def draw_ahead(
    draw: Callable[[], tuple[Tensor, ...]], steps: int, device: torch.device
) -> Iterator[tuple[Tensor, ...]]:
    """``draw()`` for each of ``steps`` steps, on ``device``; its tensors are on the CPU, of any
    shapes and types.

    On the CPU they are drawn when their step comes, elsewhere for up to ``STEPS_PER_TRANSFER``
    steps and about
    ``BYTES_PER_TRANSFER`` bytes at once: a transfer a step would cost more than the step. The
        numbers are the same on every device, and so is the generator when all steps were taken.
    """
    waiting: list[tuple[Tensor, ...]] = []
    for step in range(steps):
        drawn = draw()
        if device.type == "cpu":
            yield drawn
            continue
        waiting.append(drawn)
        size = sum(
            t.numel() * t.element_size() for row in (*waiting, drawn) for t in row
        )  # with another step like this
        if len(waiting) == STEPS_PER_TRANSFER or step == steps - 1 or size > BYTES_PER_TRANSFER:
            moved = iter(copy_to_device([t for row in waiting for t in row], device))
            yield from [tuple(next(moved) for _ in row) for row in waiting]
            waiting = []


def memory_budget(device: torch.device | str, usual: int) -> int:
    """Bytes that a batch may take: ``usual`` on the CPU, whose memory others share; a quarter of a
    GPU's.

    Of all it has, not of what is free just now: a batch's size changes the last bits of what is
    computed."""
    where = torch.device(device)
    return int(MEMORY_SHARE * torch.cuda.mem_get_info(where)[1]) if where.type == "cuda" else usual


def record_cuda_graph(
    compute: Callable[[Tensor], tuple[Tensor, ...]], like: Tensor
) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """``compute``, a function of one tensor shaped as ``like``; on a GPU its kernels are recorded
    once, as a graph, and started
    together ever after: starting them one by one takes longer than they do. The same kernels, so
        the same bits.

    What it computes may not depend on values; where it cannot be recorded (a copy from the CPU
    inside), it is itself."""
    if like.device.type != "cuda":
        return compute
    given = like.clone()
    graph = torch.cuda.CUDAGraph()
    aside = torch.cuda.Stream()
    here = torch.cuda.current_stream()
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        compute(given)  # libraries set themselves up at the first calls
        compute(given)
    here.wait_stream(aside)
    try:
        with torch.cuda.graph(graph):
            found = compute(given)
    except RuntimeError:
        torch.cuda.synchronize()
        return compute

    def replay_graph(
        x: Tensor, held: object = compute
    ) -> tuple[Tensor, ...]:  # held: the graph reads its memory
        given.copy_(x)
        graph.replay()
        return tuple(value.clone() for value in found)

    return replay_graph


def average_pool(x: Tensor, size: int | tuple[int, int]) -> Tensor:
    """``F.adaptive_avg_pool2d``: (..., h, w) -> (..., *size); off the CPU as two products, whose
    gradient is repeatable."""
    if x.device.type == "cpu":
        return F.adaptive_avg_pool2d(x, size)
    rows, columns = (size, size) if isinstance(size, int) else size
    return _pooling_weights(x, x.shape[-2], rows) @ x @ _pooling_weights(x, x.shape[-1], columns).T


def _pooling_weights(like: Tensor, length: int, cells: int) -> Tensor:
    """(cells, length): what each place counts in the average of each cell; cells may overlap by one
    place."""
    at, cell = (torch.arange(count, device=like.device) for count in (length, cells))
    cell = cell.unsqueeze(1)
    # one past the last
    first = cell * length // cells
    last = ((cell + 1) * length + cells - 1) // cells
    inside = (at >= first) & (at < last)
    return (inside / inside.sum(1, keepdim=True)).to(like)
