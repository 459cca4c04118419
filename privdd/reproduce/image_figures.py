"""Galleries: what clients distilled, by class and round (FedDM), and local beside global virtual images (FedLGD)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from privdd.reporting.plots import Plot, slug
from privdd.reporting.style import canvas
from privdd.reproduce.entry_figures import label
from privdd.reproduce.feature_kinds import Shown
from privdd.reproduce.plan_rows import PaperCell
from privdd.reproduce.stored_row import found, stored

ROUNDS = 6  # at most so many rounds of a gallery


def firsts(x: Tensor, y: Tensor, classes: int) -> list[Tensor | None]:
    """The first image of each class, None for a class without one. x (n, c, h, w), y (n,)."""
    return [x[int(at[0])] if len(at := torch.nonzero(y == label).flatten()) else None for label in range(classes)]


def by_round(cells: Sequence[PaperCell], seeds: Sequence[int], rows: Path) -> Shown:
    """A gallery for each row of the first column: the first image of each class that one client sent, round by round."""
    plots = []
    for cell in (one for one in cells if one.column == cells[0].column):
        row = stored(cell, seeds[0], rows)
        if row is None:
            continue
        sent = {t + 1: one.sent for t, one in sorted(row.progress.snapshots.items()) if "images" in one.sent}
        rounds = [list(sent)[at] for at in _spaced(len(sent))]
        lines = {
            f"round {t}": firsts(sent[t]["images"]["x"], sent[t]["labels"]["y"], row.experiment.dataset.classes)
            for t in rounds
        }
        if lines:
            caption = (
                f"The first image of each class that client {row.experiment.plan.victim} sent, seed {seeds[0]}; "
                "a gap is a class that it does not hold."
            )
            plots.append(gallery(f"images-{slug(label(cell.row))}", f"{label(cell.row)}: images sent", caption, lines))
    return [], plots


def local_and_global(cells: Sequence[PaperCell], seeds: Sequence[int], rows: Path) -> Shown:
    """FedLGD's figures 15 to 17: the virtual images of each client, and the server's."""
    cell = found(cells, "algo=fedlgd")
    row = stored(cell, seeds[0], rows) if cell else None
    if row is None:
        return [], []
    classes, server = row.experiment.dataset.classes, row.progress.server
    lines = {row.domain(k): firsts(*row.virtual(k), classes) for k in sorted(row.progress.memories)}
    lines["server"] = firsts(server["images/x"], server["labels/y"], classes)
    caption = f"The first virtual image of each class after the last round, seed {seeds[0]}, clipped to [0, 1]."
    return [], [gallery("virtual-images", "Local and global virtual images", caption, lines)]


def _spaced(count: int) -> list[int]:
    """At most ``ROUNDS`` indices from the first to the last."""
    return sorted({round(at) for at in np.linspace(0, count - 1, min(count, ROUNDS))}) if count else []


def gallery(name: str, title: str, caption: str, lines: dict[str, list[Tensor | None]]) -> Plot:
    """One line of pictures for each entry, one column for each class."""
    columns = max(len(line) for line in lines.values())
    return Plot(name, title, caption, f"Pictures of {columns} classes: {', '.join(lines)}.", _drawn(lines, columns))


def _drawn(lines: dict[str, list[Tensor | None]], columns: int) -> Figure:
    with canvas(0.52 * columns + 1.1, 0.52 * len(lines) + 0.3) as (figure, axes):
        axes.remove()
        grid = figure.subplots(len(lines), columns, squeeze=False)
        for across, (name, line) in zip(grid, lines.items()):
            across[0].set_ylabel(name, rotation=0, ha="right", va="center")
            for part, picture in zip(across, line):
                part.set(xticks=[], yticks=[])
                part.grid(False)
                for side in part.spines.values():
                    side.set_visible(False)
                if picture is not None:
                    shown = picture.clamp(0, 1).permute(1, 2, 0).squeeze(-1).numpy()
                    part.imshow(shown, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        for label_, part in enumerate(grid[0]):
            part.set_title(str(label_))
    return figure
