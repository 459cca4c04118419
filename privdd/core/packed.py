"""Numbers of many steps, drawn on the CPU and sent to a device together: a transfer a tensor costs more than a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from privdd.core.types import State

BLOCK = 64  # steps whose numbers travel together, at most
PACK = 2**26  # bytes that travel together, unless a single step needs more
ALIGNED = 64  # each tensor starts at a multiple of so many entries: kernels read whole vectors from aligned memory


def sent(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors of the CPU on ``device``, in one transfer for all of one type; on the CPU the very same ones."""
    out = list(tensors)
    for dtype in {t.dtype for t in tensors} if device.type != "cpu" else ():
        at = [i for i, t in enumerate(tensors) if t.dtype == dtype]
        for i, moved in zip(at, _moved([tensors[i] for i in at], device)):
            out[i] = moved
    return out


def _moved(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors of one type, each as a part of one flat tensor."""
    sizes = [-(-t.numel() // ALIGNED) * ALIGNED for t in tensors]
    flat = torch.zeros(sum(sizes), dtype=tensors[0].dtype)
    for t, part in zip(tensors, flat.split(sizes)):
        part[: t.numel()] = t.reshape(-1)
    return [part[: t.numel()].view(t.shape) for t, part in zip(tensors, flat.to(device).split(sizes))]


def packed(draw: Callable[[int], Mapping[str, Tensor]], steps: int, device: torch.device) -> Iterator[State]:
    """``draw(t)`` for t = 0, ..., steps - 1, on ``device``; its tensors are on the CPU, of any shapes and types.

    On the CPU they are drawn when their step comes, elsewhere for up to ``BLOCK`` steps and about ``PACK`` bytes at
    once. ``draw`` takes streams by name, or from a generator that nobody else takes from before the last step.
    """
    waiting: list[Mapping[str, Tensor]] = []
    for t in range(steps):
        drawn = draw(t)
        if device.type == "cpu":
            yield dict(drawn)
            continue
        waiting.append(drawn)
        if len(waiting) == BLOCK or t == steps - 1 or sum(map(_bytes, waiting)) + _bytes(drawn) > PACK:
            yield from _together(waiting, device)
            waiting = []


def _bytes(drawn: Mapping[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in drawn.values())


def _together(rows: Sequence[Mapping[str, Tensor]], device: torch.device) -> Iterator[State]:
    moved = iter(sent([t for row in rows for t in row.values()], device))
    return iter([{name: next(moved) for name in row} for row in rows])
