"""What the analyst of a guarantee hears of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from privdd.core.types import State, Tensors


@dataclass(frozen=True)
class Heard:
    """One round of the audited client as the analyst heard it: every released query in order, and what led to them.

    taken: the samples that were drawn, (name, (n,) bool), in order. They are private, stay in memory, and are for
    tests of the guarantee alone.
    """

    round: int
    broadcast: Mapping[str, Tensors]
    memory: State
    outputs: tuple[Tensors, ...]
    taken: tuple[tuple[str, Tensor], ...]
