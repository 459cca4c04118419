"""What one client sends in a training loop of one's own, kept for an audit."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from privdd.core.types import State
from privdd.runtime.run_folder import write_tensors


class ClientMessages:
    """The messages of one client, round after round.

    A training loop adds what its client sends; the same loop on other records says what the client
    would have sent of them. ``privdd target message=FILE map=MODULE:FUNCTION`` takes both.

    Attributes:
        tensors: "round/name" -> tensor, of all rounds so far.
        rounds: how many messages were added.
    """

    def __init__(self) -> None:
        self.tensors: State = {}
        self.rounds = 0

    def add(self, **message: Tensor) -> None:
        """Keep a copy of what is sent in the next round.

        Args:
            message: its tensors by name, as the surface's table names them (``logits``; ``mean``
                and ``count``).
        """
        for name, tensor in message.items():
            self.tensors[f"{self.rounds}/{name}"] = torch.as_tensor(tensor).detach().cpu().clone()
        self.rounds += 1

    def save(self, path: Path | str) -> None:
        """Write all messages to one safetensors file."""
        write_tensors(Path(path), self.tensors)
