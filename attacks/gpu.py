"""How loops keep a GPU busy: they read values seldom, send random numbers in blocks, and fit their batches to its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

LOOK = 16  # steps between looks at values on a GPU: each makes the host wait for all that is under way
BLOCK = 64  # steps whose random numbers travel together
SHARE = 0.5  # of a GPU's free memory: the rest is for its libraries and for what the allocator keeps


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
    """Bytes that a batch may take: ``usual`` on the CPU, whose memory others share; half of what is free on a GPU."""
    where = torch.device(device)
    return int(SHARE * torch.cuda.mem_get_info(where)[0]) if where.type == "cuda" else usual
