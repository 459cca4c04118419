"""How far apart clients are, before and after distillation: t-SNE pictures and the maximum mean discrepancy (MMD).

FedLGD (Huang et al. 2024), figure 1 (records against virtual images) and figure 4 (with and without the regulariser). In
which network's features the paper compares is not stated; here, in those of the row's final global model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.spatial.distance import cdist, pdist
from sklearn.manifold import TSNE

from privdd.distillation.networks import embedded
from privdd.reporting.plots import Plot
from privdd.reporting.style import canvas, colour
from privdd.reproduce.feature_kinds import ExtraTable, Shown, spread
from privdd.reproduce.plan_rows import PaperCell
from privdd.reproduce.stored_row import StoredRow, found, stored

Points = NDArray[np.float64]
MOST = 100  # records or images of one client that are compared
PERPLEXITY = 30.0  # scikit-learn's default


def mmd(a: Points, b: Points, width: float) -> float:
    """The squared maximum mean discrepancy, unbiased, with the kernel exp(-|a - b|^2 / (2 width^2)).

    a (n, d), b (m, d); NaN where n or m is below 2, since one point says nothing of its own spread. Gretton et al. 2012,
    equation 3; it may come out slightly below 0.
    """
    if min(len(a), len(b)) < 2:
        return math.nan
    same = []
    for one in (a, b):
        kernel = np.exp(-cdist(one, one, "sqeuclidean") / (2 * width**2))
        same.append((kernel.sum() - len(one)) / (len(one) * (len(one) - 1)))
    return float(sum(same) - 2 * np.exp(-cdist(a, b, "sqeuclidean") / (2 * width**2)).mean())


def bandwidth(sets: Sequence[Points]) -> float:
    """The median distance among all points together."""
    return float(np.median(pdist(np.concatenate(sets)))) or 1.0


def flat_map(sets: Sequence[Points], seed: int) -> list[Points]:
    """t-SNE of all sets together -> two coordinates for each point. Draws nothing from a global generator."""
    joined = np.concatenate(sets)
    perplexity = min(PERPLEXITY, (len(joined) - 1) / 3)
    flat = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(joined)
    return list(np.split(flat, np.cumsum([len(one) for one in sets])[:-1]))


def real_sets(row: StoredRow) -> list[Points]:
    """Features of up to ``MOST`` records of each client, as many of each as the smallest gives; two at least, where it
    has them."""
    shards = row.experiment.shards
    count = max(2, min(MOST, *(len(shard.train) for shard in shards)))
    return [_embedded(row, shard.train.x[:count]) for shard in shards]


def virtual_sets(row: StoredRow) -> list[Points]:
    """The same of each client's virtual images, each class's share of them."""
    sets = []
    for client in range(len(row.experiment.shards)):
        images, _ = row.virtual(client)
        step = max(1, -(-len(images) // MOST))
        sets.append(_embedded(row, images[::step]))
    return sets


def _mean(values: Sequence[float]) -> float:
    """Of those that are known; NaN where none is."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def _embedded(row: StoredRow, x: torch.Tensor) -> Points:
    return embedded(row.features(), x).double().numpy()


def distances(real: Sequence[Points], other: Sequence[Points]) -> list[tuple[float, float]]:
    """(MMD between two clients in ``real``, in ``other``) for each pair; the kernel is the same for both."""
    width = bandwidth(real)
    return [
        (mmd(real[a], real[b], width), mmd(other[a], other[b], width)) for a, b in combinations(range(len(real)), 2)
    ]


def before_and_after(cells: Sequence[PaperCell], seeds: Sequence[int], rows: Path) -> Shown:
    """FedLGD's figure 1, of the row of FedLGD itself."""
    cell = found(cells, "algo=fedlgd")
    made = [row for seed in seeds if cell and (row := stored(cell, seed, rows))]
    if not made:
        return [], []
    pairs = list(combinations(range(len(made[0].experiment.shards)), 2))
    values = [distances(real_sets(row), virtual_sets(row)) for row in made]
    names = [made[0].domain(client) for client in range(len(made[0].experiment.shards))]
    table = ExtraTable(
        "Figure 1: how far apart two clients are",
        ("clients", "their records", "their virtual images"),
        tuple(
            (f"{names[a]} and {names[b]}", *(spread([run[at][side] for run in values], 100) for side in (0, 1)))
            for at, (a, b) in enumerate(pairs)
        ),
        "Squared MMD times 100 of up to 100 records and 100 images of each client, with the same Gaussian kernel in both columns; mean ± standard deviation over seeds. The "
        "paper says that distillation brings the clients closer together: then the second column is smaller.",
    )
    real, virtual = real_sets(made[0]), virtual_sets(made[0])
    panels = {"records": real[:2], "virtual images": virtual[:2]}
    caption = f"Features of the final global model, seed {seeds[0]}; t-SNE keeps neighbours, not distances."
    title = f"{names[0]} and {names[1]}, before and after distillation"
    return [table], [scatter("tsne-domains", title, caption, panels, names[:2], seeds[0])]


def with_and_without(cells: Sequence[PaperCell], seeds: Sequence[int], rows: Path) -> Shown:
    """FedLGD's figure 4: records of the clients in networks trained with and without the regulariser."""
    kinds = {"with it (lambda 10)": "algo.contrast=10", "without": "algo.contrast=0"}
    chosen = {
        name: next((c for c in cells if word in c.row.split() and "algo.regulariser=mmd" not in c.row), None)
        for name, word in kinds.items()
    }
    made = {name: [row for seed in seeds if (row := stored(cell, seed, rows))] for name, cell in chosen.items() if cell}
    made = {name: several for name, several in made.items() if several}
    if not made:
        return [], []
    body = []
    for name, several in made.items():
        means = [_mean([pair[0] for pair in distances(one, one)]) for one in map(real_sets, several)]
        body.append((name, spread(means, 100)))
    table = ExtraTable(
        "Figure 4: how far apart the clients' records are", ("regulariser", "MMD"), tuple(body),
        "Squared MMD times 100, mean over pairs of clients, in each network's own features; mean ± standard deviation "
        "over seeds. The paper says that the regulariser brings the clients closer together.",
    )  # fmt: skip
    first = next(iter(made.values()))[0]
    names = [first.domain(client) for client in range(len(first.experiment.shards))]
    panels = {name: real_sets(several[0]) for name, several in made.items()}
    caption = f"Records of each client in the features of the final global model, seed {seeds[0]}."
    return [table], [scatter("tsne-regulariser", "With and without the regulariser", caption, panels, names, seeds[0])]


def scatter(
    name: str, title: str, caption: str, panels: dict[str, list[Points]], names: Sequence[str], seed: int
) -> Plot:
    """One t-SNE for each panel, one colour for each set in it."""
    said = "; ".join(
        f"{panel}: {', '.join(f'{len(one)} of {n}' for n, one in zip(names, sets))}" for panel, sets in panels.items()
    )
    return Plot(name, title, caption, f"t-SNE. {said}.", _scatter(panels, names, seed))


def _scatter(panels: dict[str, list[Points]], names: Sequence[str], seed: int) -> Figure:
    with canvas(3.0 * len(panels), 3.2) as (figure, axes):
        axes.remove()
        for at, (panel, sets) in enumerate(panels.items()):
            part = figure.add_subplot(1, len(panels), at + 1)
            for index, (label, points) in enumerate(zip(names, flat_map(sets, seed))):
                marker, x, y = "osD^v"[index % 5], points[:, 0], points[:, 1]
                part.scatter(x, y, s=9, marker=marker, color=colour(index), label=label, lw=0)
            part.set(title=panel, xticks=[], yticks=[])
            part.grid(False)
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=2)
    return figure
