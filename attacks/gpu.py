"""How loops keep a GPU busy: values are read seldom, random numbers are sent in blocks, and batches fit the memory.

A GPU's fastest kernels add in an order that changes from call to call; ``average_pool`` is a
form of pooling whose order is fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

STEPS_BETWEEN_READS = 16  # steps between looks at values on a GPU: each makes the host wait for all that is under way
STEPS_PER_TRANSFER = 64  # steps whose random numbers travel together
# of a GPU's memory: the rest is for its libraries, for what the allocator keeps, and for other batches
MEMORY_SHARE = 0.25


def steps_between_reads(device: torch.device) -> int:
    """After how many steps a loop on ``device`` may look at a value to decide how it goes on."""
    return 1 if device.type == "cpu" else STEPS_BETWEEN_READS


def draw_ahead(
    draw: Callable[[], tuple[Tensor, ...]], steps: int, device: torch.device
) -> Iterator[tuple[Tensor, ...]]:
    """``draw()`` for each of ``steps`` steps, on ``device``; its tensors are on the CPU and have equal shapes in all steps.

    The numbers are the same on every device, and so is the generator when all steps were taken. On the CPU they are
    drawn when their step comes, elsewhere ``STEPS_PER_TRANSFER`` steps at once: a transfer a step would cost more than the step.
    """
    for first in range(0, steps, STEPS_PER_TRANSFER):
        count = min(STEPS_PER_TRANSFER, steps - first)
        if device.type == "cpu":
            yield from (draw() for _ in range(count))
            continue
        rows = [draw() for _ in range(count)]
        yield from zip(*(torch.stack(part).to(device).unbind() for part in zip(*rows)))


def memory_budget(device: torch.device | str, usual: int) -> int:
    """Bytes that a batch may take: ``usual`` on the CPU, whose memory others share; a quarter of a GPU's.

    Of all it has, not of what is free just now: a batch's size changes the last bits of what is computed.
    """
    where = torch.device(device)
    return int(MEMORY_SHARE * torch.cuda.mem_get_info(where)[1]) if where.type == "cuda" else usual


def record_cuda_graph(
    compute: Callable[[Tensor], tuple[Tensor, ...]], like: Tensor
) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """``compute``, a function of one tensor shaped as ``like``; on a GPU its kernels are recorded once, as a graph, and started
    together ever after: starting them one by one takes longer than they do. The same kernels, so the same bits.

    What it computes may not depend on values; where it cannot be recorded (a copy from the CPU inside), it is itself.
    """
    if like.device.type != "cuda":
        return compute
    given, graph = like.clone(), torch.cuda.CUDAGraph()
    aside, here = torch.cuda.Stream(), torch.cuda.current_stream()
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

    def replay_graph(x: Tensor, held: object = compute) -> tuple[Tensor, ...]:  # held: the graph reads its memory
        given.copy_(x)
        graph.replay()
        return tuple(value.clone() for value in found)

    return replay_graph


def average_pool(x: Tensor, size: int | tuple[int, int]) -> Tensor:
    """``F.adaptive_avg_pool2d``: (..., h, w) -> (..., *size); off the CPU as two products, whose gradient is repeatable."""
    if x.device.type == "cpu":
        return F.adaptive_avg_pool2d(x, size)
    rows, columns = (size, size) if isinstance(size, int) else size
    return _pooling_weights(x, x.shape[-2], rows) @ x @ _pooling_weights(x, x.shape[-1], columns).T


def _pooling_weights(like: Tensor, length: int, cells: int) -> Tensor:
    """(cells, length): what each place counts in the average of each cell; cells may overlap by one place."""
    at, cell = (torch.arange(count, device=like.device) for count in (length, cells))
    cell = cell.unsqueeze(1)
    first, last = cell * length // cells, ((cell + 1) * length + cells - 1) // cells  # one past the last
    inside = (at >= first) & (at < last)
    return (inside / inside.sum(1, keepdim=True)).to(like)
