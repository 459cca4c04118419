"""A small issue of sealed canaries, and a network for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from privdd.canary.__main__ import main
from privdd.canary.sealed import SealedCanaries, read_sealed

SHAPE = (1, 6, 6)
CLASSES = 3


class Net(torch.nn.Module):
    """One linear layer, the same each time."""

    def __init__(self, scale: float = 0.1) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(36, CLASSES)
        with torch.no_grad():
            for at, p in enumerate(self.parameters()):
                p.copy_(torch.from_numpy(np.random.default_rng(at).normal(size=p.shape) * scale))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x.flatten(1))


NET = f"model={Path(__file__).with_name('small.py')}:Net"


def issued(folder: Path, *more: str, sites: str = "a,b", count: int = 30) -> SealedCanaries:
    given = [
        f"sealed={folder}",
        f"secrets={folder}",
        f"sites={sites}",
        f"count={count}",
        f"shape={','.join(map(str, SHAPE))}",
        f"classes={CLASSES}",
    ]
    assert main(["issue", *given, *more]) == 0
    return read_sealed(folder)
