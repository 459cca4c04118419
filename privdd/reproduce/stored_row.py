"""A finished row, read from its folder: nothing is trained again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from privdd.cli.paper_rows import experiment_of
from privdd.core.state import unpack
from privdd.core.types import State, Tensors
from privdd.distillation.networks import Embed, embedder
from privdd.federated.checkpoint import load
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Progress
from privdd.models import build
from privdd.reproduce.plan_rows import PaperCell
from privdd.runtime.run_folder import RunFolder


@dataclass(frozen=True)
class StoredRow:
    """A training and where it ended."""

    experiment: Experiment
    progress: Progress

    @property
    def model(self) -> torch.nn.Module:
        data = self.experiment.dataset
        return build(self.experiment.plan.method.model, data.shape, data.classes)  # type: ignore[attr-defined]

    @property
    def state(self) -> State:
        """Of the global model at the end."""
        return unpack("model", self.progress.server)

    def features(self) -> Embed:
        """Images -> what the last layer of the final global model sees."""
        return embedder(self.model.eval(), self.state)

    def virtual(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's virtual images (n, c, h, w) and their labels (n,), sorted by class."""
        memory: Tensors = self.progress.memories[client]
        images, labels = memory["images/x"], memory["images/label"]
        return images.flatten(0, 1), labels.repeat_interleave(images.shape[1])

    def domain(self, client: int) -> str:
        """The name of a client's domain, where each client is one."""
        names = self.experiment.dataset.domains or ()
        return names[client] if len(names) == len(self.experiment.shards) else f"client {client}"


def stored(cell: PaperCell, seed: int, rows: Path) -> StoredRow | None:
    """None where the row was not trained to its end. Raises DamagedRun, one line, for a damaged folder."""
    folder = rows / cell.folder(seed)
    if not (folder / "training.json").is_file():
        return None
    experiment = experiment_of(cell.overrides, seed)
    progress = load(RunFolder(folder), experiment.plan)
    return None if progress is None or progress.diverged is not None else StoredRow(experiment, progress)


def found(cells: Sequence[PaperCell], start: str) -> PaperCell | None:
    """The first cell whose row begins with these words."""
    return next((cell for cell in cells if cell.row == start or cell.row.startswith(f"{start} ")), None)
