"""How loops keep a GPU busy: they read values seldom, send random numbers in blocks, and fit their batches to its memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

PIXEL = 2**15  # bytes that ResNet-18 keeps for a pixel of an image and its gradient, and a third more
LOOK = 16  # steps between looks at values on a GPU: each makes the host wait for all that is under way
BLOCK = 64  # steps whose random numbers travel together
SHARE = 0.25  # of a GPU's memory: the rest is for its libraries, for what the allocator keeps, and for other batches


def look_every(device: torch.device) -> int:
    """After how many steps a loop on ``device`` may look at a value to decide how it goes on."""
    return 1 if device.type == "cpu" else LOOK


def ahead(draw: Callable[[], tuple[Tensor, ...]], steps: int, device: torch.device) -> Iterator[tuple[Tensor, ...]]:
    """``draw()`` for each of ``steps`` steps, on ``device``; its tensors are on the CPU and have equal shapes in all steps.

    The numbers are the same on every device, and so is the generator when all steps were taken. On the CPU they are
    drawn when their step comes, elsewhere ``BLOCK`` steps at once: a transfer a step would cost more than the step.
    """
    for first in range(0, steps, BLOCK):
        count = min(BLOCK, steps - first)
        if device.type == "cpu":
            yield from (draw() for _ in range(count))
            continue
        rows = [draw() for _ in range(count)]
        yield from zip(*(torch.stack(part).to(device).unbind() for part in zip(*rows)))


def room(device: torch.device | str, usual: int) -> int:
    """Bytes that a batch may take: ``usual`` on the CPU, whose memory others share; a quarter of a GPU's.

    Of all it has, not of what is free just now: a batch's size changes the last bits of what is computed.
    """
    where = torch.device(device)
    return int(SHARE * torch.cuda.mem_get_info(where)[1]) if where.type == "cuda" else usual


def images_at_once(images: Tensor, usual: int, cached: int) -> int:
    """How many of ``images`` (n, c, h, w) may go through a network at once: ``usual``, a number that was asked for.

    ``cached`` is the default, chosen for a CPU's cache; where it was left as it is, a GPU takes as many as fit into its
    memory with a network such as ResNet-18.
    """
    if images.device.type == "cpu" or usual != cached:
        return usual
    return max(usual, room(images.device, 0) // (PIXEL * math.prod(images.shape[-2:])))


def replayed(compute: Callable[[Tensor], tuple[Tensor, ...]], like: Tensor) -> Callable[[Tensor], tuple[Tensor, ...]]:
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

    def play(x: Tensor, held: object = compute) -> tuple[Tensor, ...]:  # held: the graph reads its memory
        given.copy_(x)
        graph.replay()
        return tuple(value.clone() for value in found)

    return play
