"""FedDM's surrogate in the ball, and what the ball's radius does.

Xiong et al. 2023, figure 1 draws in one dimension how the loss on a client's synthetic images follows the loss on its
records near the server's model. Its functions are not at hand; here the same is measured on a trained row: both losses on
straight lines through the model that the server had sent, in random directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch.nn import functional as F

from privdd.core.keys import Keys
from privdd.core.types import Records, State
from privdd.distillation.networks import in_ball
from privdd.reporting.plots import Plot, slug
from privdd.reporting.style import canvas, colour, dash
from privdd.reproduce.entry_figures import label
from privdd.reproduce.feature_kinds import ExtraTable, Shown, spread
from privdd.reproduce.plan_rows import PaperCell
from privdd.reproduce.stored_row import StoredRow, stored
from privdd.training.local import evaluate, outputs

DIRECTIONS = 8
STEPS = 9  # distances from 0 to twice the radius


def losses(row: StoredRow) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(distances (STEPS,), mean cross-entropy (2, DIRECTIONS, STEPS)): on the records, on the images, of the last round."""
    last = row.progress.snapshots[max(row.progress.snapshots)]
    centre: State = dict(last.broadcast["model"])
    shard = row.experiment.shards[row.experiment.plan.victim]
    images = Records(last.sent["images"]["x"], last.sent["labels"]["y"], last.sent["labels"]["y"])
    model, rho = row.model.eval(), float(row.experiment.plan.method.rho)  # type: ignore[attr-defined]
    names = [name for name, _ in model.named_parameters()]
    far = np.linspace(0, 2 * rho, STEPS)
    found = np.zeros((2, DIRECTIONS, STEPS))
    for direction in range(DIRECTIONS):
        generator = Keys(0).fold("surrogate", direction).torch()
        end = in_ball(centre, names, 1.0, generator)
        for at, distance in enumerate(far):
            state = {name: centre[name] + float(distance) * (end[name] - centre[name]) for name in centre}
            for kind, records in enumerate((shard.train, images)):
                found[kind, direction, at] = loss_of(model, state, records)
    return far, found


def loss_of(model: torch.nn.Module, state: State, records: Records) -> float:
    """Mean cross-entropy in nats."""
    return float(F.cross_entropy(outputs(model, state, records.x), records.y))


def surrogate(cells: Sequence[PaperCell], seeds: Sequence[int], rows: Path) -> Shown:
    """How well the images' loss follows the records' loss, row by row."""
    body, plots = [], []
    for cell in cells:
        made = [row for seed in seeds if (row := stored(cell, seed, rows)) and row.progress.snapshots]
        if not made:
            continue
        measured = [losses(row) for row in made]
        inside = [(far <= far[-1] / 2 + 1e-9, values) for far, values in measured]
        gaps = [float(np.abs(v[0][:, near] - v[1][:, near]).mean()) for near, v in inside]
        alike = [_correlation(v[0][:, near], v[1][:, near]) for near, v in inside]
        body.append((label(cell.row), spread(gaps, digits=2), spread(alike, digits=2)))
        plots.append(_curves(label(cell.row), *measured[0], seeds[0]))
    note = (
        f"Along {DIRECTIONS} random lines from the server's model to the edge of the ball, last round, one client: the mean "
        "distance of the two losses in nats, and the correlation of their changes. At a correlation of 1, whatever lowers one "
        "loss lowers the other."
    )
    table = ExtraTable("The surrogate within the ball", ("row", "distance", "correlation"), tuple(body), note)
    return ([table] if body else []), plots


def _correlation(real: NDArray[np.float64], synthetic: NDArray[np.float64]) -> float:
    """Of the changes from the centre, over all directions and distances above 0."""
    a, b = ((one - one[:, :1])[:, 1:].ravel() for one in (real, synthetic))
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else 0.0


def _curves(name: str, far: NDArray[np.float64], values: NDArray[np.float64], seed: int) -> Plot:
    means = values.mean(axis=1)
    alt = f"Loss on records {means[0][0]:.2f} to {means[0][-1]:.2f}, on images {means[1][0]:.2f} to {means[1][-1]:.2f}."
    caption = f"Mean over {DIRECTIONS} directions and their range, seed {seed}; the line marks the ball's edge."
    return Plot(f"surrogate-{slug(name)}", f"{name}: loss near the server's model", caption, alt, _drawn(far, values))


def _drawn(far: NDArray[np.float64], values: NDArray[np.float64]) -> Figure:
    with canvas(4.8, 3.0) as (figure, axes):
        for index, name in enumerate(("the client's records", "its synthetic images")):
            axes.fill_between(
                far, values[index].min(axis=0), values[index].max(axis=0), color=colour(index), alpha=0.12, lw=0
            )
            axes.plot(far, values[index].mean(axis=0), color=colour(index), ls=dash(index), label=name)
        axes.axvline(far[-1] / 2, color=colour(7), lw=0.8, ls=":")
        axes.set(xlabel="distance from the server's model", ylabel="cross-entropy", ylim=(0, None))
        figure.legend(loc="outside lower center", ncols=2, handlelength=2.6)
    return figure


def radius(cells: Sequence[PaperCell], seeds: Sequence[int], rows: Path) -> Shown:
    """Test loss and accuracy of the final model, against the radius."""
    body = []
    for cell in cells:
        made = [row for seed in seeds if (row := stored(cell, seed, rows))]
        if not made:
            continue
        tests = [row.experiment.test for row in made]
        ends = [loss_of(row.model.eval(), row.state, test) for row, test in zip(made, tests)]
        right = [evaluate(row.model.eval(), row.state, test)[0] for row, test in zip(made, tests)]
        rho = float(made[0].experiment.plan.method.rho)  # type: ignore[attr-defined]
        body.append((rho, f"{rho:g}", spread(ends, digits=2), spread(right, 100)))
    note = "Of the final global model on the test records; mean ± standard deviation over seeds."
    rows_ = tuple(one[1:] for one in sorted(body))
    table = ExtraTable("Loss and accuracy against the radius", ("rho", "test loss", "accuracy"), rows_, note)
    return ([table] if body else []), []
