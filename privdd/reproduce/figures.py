"""The figures of an entry: accuracy against rounds and bytes, and what its ``also`` names.

FedFed's figure 17 and table 12: what x, x_s and x_r = q(x) are good for, and how alike they are.
Phase A is run as in the method; then one classifier is trained on each kind of input and tested on
all three.

FedDM's surrogate in the ball and what the ball's radius does (Xiong et al. 2023, figure 1 draws in
one dimension how the loss on a client's synthetic images follows the loss on its records; its
functions are not at hand, so both losses are measured on straight lines through the model that the
server had sent). How far apart FedLGD's clients are (Huang et al. 2024, figures 1 and 4): t-SNE
pictures and the maximum mean discrepancy, in the features of the row's final global model, for the
paper does not state which. Galleries of distilled images."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray
from scipy.spatial.distance import cdist, pdist
from sklearn.manifold import TSNE
from torch import Tensor
from torch.nn import functional as F

from attacks.images import psnr
from privdd.cli.paper_rows import build_row_experiment
from privdd.core.rng import Keys
from privdd.core.types import Records, State
from privdd.distillation.distribution_matching import draw_in_ball
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import run_round, start_training
from privdd.models import build, initial
from privdd.reporting.figures.canvas import figure_canvas, format_percent
from privdd.reporting.figures.style import series_colour, series_dash
from privdd.reporting.plots import Plot, make_slug
from privdd.reporting.wording import format_bytes, format_share
from privdd.reproduce.catalogue import starts_with_words
from privdd.reproduce.results import ExtraTable, RowResult, TableColumn
from privdd.reproduce.train import PaperCell, StoredRow, load_stored_row, load_stored_rows
from privdd.runtime.files import read_json, write_json
from privdd.training.server import ServerTraining, train_on_records
from privdd.training.sgd import evaluate_model, predict_logits

# what an analysis adds to the page of an entry
AnalysisOutput = tuple[list[ExtraTable], list[Plot]]
Analysis = Callable[[Sequence[PaperCell], Sequence[int], Path], AnalysisOutput]
ANALYSES: dict[str, Analysis] = {}  # by the name in an entry's ``also``
Points = NDArray[np.float64]
DIRECTIONS = 8
DISTANCES = 9  # distances from 0 to twice the radius
MAX_POINTS = 100  # records or images of one client that are compared
PERPLEXITY = 30.0  # scikit-learn's default
MAX_ROUNDS = 6  # at most so many rounds of a gallery
FEATURE_KINDS = ("x", "x_s", "x_r")
PRINTED_PSNR = {"x_r": 31.47, "x_s": 18.87}  # table 12
EPOCHS = 15  # of each classifier; how long the paper trains them is not stated
CHUNK = 512


def enter_analysis(name: str) -> Callable[[Analysis], Analysis]:
    """Enters a function in ``ANALYSES``."""

    def enter(function: Analysis) -> Analysis:
        ANALYSES[name] = function
        return function

    return enter


def format_spread(values: Sequence[float], factor: float = 1.0, digits: int = 1) -> str:
    """ "12.3 ± 0.4", the mean and the standard deviation (n - 1) of values times factor; of one
    value no deviation, and "–" where none is known (NaN)."""
    values = [value for value in values if not math.isnan(value)]
    if not values:
        return "–"
    if len(values) > 1:
        spread = f" ± {factor * float(np.std(values, ddof=1)):.{digits}f}"
    else:
        spread = ""
    return f"{factor * float(np.mean(values)):.{digits}f}{spread}"


def plot_curves(column: TableColumn) -> list[Plot]:
    """Accuracy by rounds and by bytes; no plots if no row of the column was trained."""
    rows = [row for row in column.rows if row.curves]
    if not rows:
        return []
    name = make_slug(column.name)
    ends = "; ".join(
        f"{row_label(row.cell.row)}: ends at {format_share(row.curve[-1])}" for row in rows
    )
    sizes = "; ".join(
        f"{row_label(row.cell.row)}: {format_bytes(row.uploaded[-1])}" for row in rows
    )
    description = (
        "What one client has uploaded so far, on a logarithmic axis; releases without a "
        "trained model included."
    )
    by_round = f"{column.name}: accuracy against rounds"
    by_bytes = f"{column.name}: accuracy against bytes sent"
    band = "Mean over seeds; the band is their range."
    alt = f"Accuracy against rounds. {ends}."
    return [
        Plot(f"rounds-{name}", by_round, band, alt, _draw_accuracies(rows, False)),
        Plot(
            f"bytes-{name}",
            by_bytes,
            description,
            f"Accuracy against bytes. {ends}; {sizes}",
            _draw_accuracies(rows, True),
        ),
    ]


def row_label(row: str) -> str:
    """A row without the words that every row has: "fedprox on virtual data", "fedfed on
    scaffold"."""
    words = row.removeprefix("algo=").split()
    if words[0] == "virtual_data":
        inner = next(
            (word for word in words if word.startswith("algo/inner=")), "algo/inner=fedavg"
        )
        words = [
            f"{inner.partition('=')[2]} on virtual data",
            *(word for word in words[1:] if word != inner),
        ]
    return " ".join(words).replace(" algo/base=", " on ").replace(" algo.", " ")


def _draw_band(axes: Axes, index: int, x: Points, values: Points, label: str) -> None:
    """The mean of values (runs, points) over their range, in the colour of series ``index``."""
    colour = series_colour(index)
    low = values.min(axis=0)
    high = values.max(axis=0)
    axes.fill_between(x, low, high, color=colour, alpha=0.12, lw=0)
    axes.plot(x, values.mean(axis=0), color=colour, ls=series_dash(index), label=label)


def _draw_accuracies(rows: Sequence[RowResult], in_bytes: bool) -> Figure:
    with figure_canvas(4.8, 2.9 + 0.17 * len(rows)) as (figure, axes):
        for index, row in enumerate(rows):
            if in_bytes:
                x = np.maximum(row.uploaded, 1.0)
            else:
                x = np.arange(1.0, len(row.curve) + 1)
            curves = np.array(list(row.curves.values()))
            _draw_band(axes, index, x, curves, row_label(row.cell.row))
        axes.set(ylabel="accuracy", ylim=(0, 1))
        axes.yaxis.set_major_formatter(format_percent)
        if in_bytes:
            axes.set_xlabel("uploaded by a client")
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))
            axes.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
        else:
            axes.set_xlabel("round")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(loc="outside lower center", ncols=1, handlelength=2.6)
    return figure


def measure_losses(row: StoredRow) -> tuple[Points, Points]:
    """(distances (DISTANCES,), mean cross-entropy (2, DIRECTIONS, DISTANCES)): on records, on
    images, of the last round."""
    last = row.progress.snapshots[max(row.progress.snapshots)]
    centre: State = dict(last.broadcast["model"])
    shard = row.experiment.shards[row.experiment.plan.victim]
    images = Records(last.sent["images"]["x"], last.sent["labels"]["y"], last.sent["labels"]["y"])
    model = row.model
    rho = float(row.experiment.plan.method.rho)  # type: ignore[attr-defined]
    names = [name for name, _ in model.named_parameters()]
    far = np.linspace(0, 2 * rho, DISTANCES)
    losses = np.zeros((2, DIRECTIONS, DISTANCES))
    for direction in range(DIRECTIONS):
        generator = Keys(0).fold("surrogate", direction).torch()
        end = draw_in_ball(centre, names, 1.0, generator)
        line = {name: end[name] - centre[name] for name in centre}
        for index, distance in enumerate(far.tolist()):
            state = {name: centre[name] + distance * line[name] for name in centre}
            for kind, records in enumerate((shard.train, images)):
                losses[kind, direction, index] = mean_cross_entropy(model, state, records)
    return far, losses


def mean_cross_entropy(model: torch.nn.Module, state: State, records: Records) -> float:
    """Mean cross-entropy in nats."""
    return float(F.cross_entropy(predict_logits(model, state, records.x), records.y))


@enter_analysis("surrogate")
def surrogate_analysis(
    cells: Sequence[PaperCell], seeds: Sequence[int], rows: Path
) -> AnalysisOutput:
    """How well the images' loss follows the records' loss, row by row."""
    body = []
    plots = []
    for cell in cells:
        stored_rows = [row for row in load_stored_rows(cell, seeds, rows) if row.progress.snapshots]
        if not stored_rows:
            continue
        measured = [measure_losses(row) for row in stored_rows]
        gaps = []
        correlations = []
        for far, (real, synthetic) in measured:
            inside = far <= far[-1] / 2 + 1e-9
            gap = np.abs(real[:, inside] - synthetic[:, inside])
            gaps.append(float(gap.mean()))
            correlations.append(_change_correlation(real[:, inside], synthetic[:, inside]))
        gap_text = format_spread(gaps, digits=2)
        correlation_text = format_spread(correlations, digits=2)
        body.append((row_label(cell.row), gap_text, correlation_text))
        plots.append(_plot_surrogate(row_label(cell.row), *measured[0], seeds[0]))
    note = (
        f"Along {DIRECTIONS} random lines from the server's model to the edge of the "
        "ball, last round, one client: the mean "
        "distance of the two losses in nats, and the correlation of their changes. At a "
        "correlation of 1, whatever lowers one "
        "loss lowers the other."
    )
    table = ExtraTable(
        "The surrogate within the ball", ("row", "distance", "correlation"), tuple(body), note
    )
    return ([table] if body else []), plots


def _change_correlation(real: Points, synthetic: Points) -> float:
    """The correlation of the changes from the centre, over all directions and distances above 0."""
    a, b = ((losses - losses[:, :1])[:, 1:].ravel() for losses in (real, synthetic))
    if a.std() > 0 and b.std() > 0:
        return float(np.corrcoef(a, b)[0, 1])
    return 0.0


def _plot_surrogate(name: str, far: Points, values: Points, seed: int) -> Plot:
    means = values.mean(axis=1)
    alt = (
        f"Loss on records {means[0][0]:.2f} to {means[0][-1]:.2f}, on images "
        f"{means[1][0]:.2f} to {means[1][-1]:.2f}."
    )
    caption = (
        f"Mean over {DIRECTIONS} directions and their range, seed {seed}; the line marks the "
        "ball's edge."
    )
    title = f"{name}: loss near the server's model"
    return Plot(f"surrogate-{make_slug(name)}", title, caption, alt, _draw_losses(far, values))


def _draw_losses(far: Points, values: Points) -> Figure:
    with figure_canvas(4.8, 3.0) as (figure, axes):
        for index, name in enumerate(("the client's records", "its synthetic images")):
            _draw_band(axes, index, far, values[index], name)
        axes.axvline(far[-1] / 2, color=series_colour(7), lw=0.8, ls=":")
        axes.set(xlabel="distance from the server's model", ylabel="cross-entropy", ylim=(0, None))
        figure.legend(loc="outside lower center", ncols=2, handlelength=2.6)
    return figure


@enter_analysis("radius")
def radius_analysis(cells: Sequence[PaperCell], seeds: Sequence[int], rows: Path) -> AnalysisOutput:
    """Test loss and accuracy of the final model, against the radius."""
    body = []
    for stored_rows in filter(None, (load_stored_rows(cell, seeds, rows) for cell in cells)):
        ends = [(row.model, row.global_state, row.experiment.test_records) for row in stored_rows]
        losses = [mean_cross_entropy(*end) for end in ends]
        right = [evaluate_model(*end)[0] for end in ends]
        rho = float(stored_rows[0].experiment.plan.method.rho)  # type: ignore[attr-defined]
        body.append((rho, (f"{rho:g}", format_spread(losses, digits=2), format_spread(right, 100))))
    note = "Of the final global model on the test records; mean ± standard deviation over seeds."
    lines = tuple(line for _, line in sorted(body))
    table = ExtraTable(
        "Loss and accuracy against the radius", ("rho", "test loss", "accuracy"), lines, note
    )
    return ([table] if body else []), []


def squared_mmd(a: Points, b: Points, width: float) -> float:
    """The squared maximum mean discrepancy, unbiased, with the kernel exp(-|a - b|^2 / (2
    width^2)).

    a (n, d), b (m, d); NaN where n or m is below 2, since one point says nothing of its own spread.
    Gretton et al. 2012, equation 3; it may come out slightly below 0.
    """
    if min(len(a), len(b)) < 2:
        return math.nan
    scale = 2 * width**2
    within = []
    for points in (a, b):
        count = len(points)
        kernel = np.exp(-cdist(points, points, "sqeuclidean") / scale)
        within.append((kernel.sum() - count) / (count * (count - 1)))
    between = np.exp(-cdist(a, b, "sqeuclidean") / scale)
    return float(sum(within) - 2 * between.mean())


def kernel_bandwidth(sets: Sequence[Points]) -> float:
    """The median distance among all points together."""
    return float(np.median(pdist(np.concatenate(sets)))) or 1.0


def tsne_map(sets: Sequence[Points], seed: int) -> list[Points]:
    """t-SNE of all sets together -> two coordinates for each point. Draws nothing from a global
    generator."""
    joined = np.concatenate(sets)
    perplexity = min(PERPLEXITY, (len(joined) - 1) / 3)
    flat = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(joined)
    ends = np.cumsum([len(records) for records in sets])
    return list(np.split(flat, ends[:-1]))


def record_features(row: StoredRow) -> list[Points]:
    """Features of up to ``MAX_POINTS`` records of each client, as many of each as the smallest
    gives; two at least, where it has them."""
    shards = row.experiment.shards
    count = max(2, min(MAX_POINTS, *(len(shard.train) for shard in shards)))
    return [row.embed_images(shard.train.x[:count]) for shard in shards]


def virtual_image_features(row: StoredRow) -> list[Points]:
    """Features of each client's virtual images, each class in proportion."""
    features = []
    for client in range(len(row.experiment.shards)):
        images = row.virtual_images(client)[0]
        step = max(1, math.ceil(len(images) / MAX_POINTS))
        features.append(row.embed_images(images[::step]))
    return features


def _mean_of_known(values: Sequence[float]) -> float:
    """The mean of the known values; NaN if there are none."""
    numbers = [value for value in values if not math.isnan(value)]
    return float(np.mean(numbers)) if numbers else math.nan


def client_distances(
    real: Sequence[Points], virtual: Sequence[Points]
) -> list[tuple[float, float]]:
    """(MMD between two clients in ``real``, in ``virtual``) for each pair; the kernel is the same
    for both."""
    width = kernel_bandwidth(real)
    distances = []
    for a, b in combinations(range(len(real)), 2):
        of_records = squared_mmd(real[a], real[b], width)
        of_images = squared_mmd(virtual[a], virtual[b], width)
        distances.append((of_records, of_images))
    return distances


def _find_fedlgd(cells: Sequence[PaperCell]) -> PaperCell | None:
    return next((cell for cell in cells if starts_with_words(cell.row, "algo=fedlgd")), None)


@enter_analysis("domains")
def distillation_analysis(
    cells: Sequence[PaperCell], seeds: Sequence[int], rows: Path
) -> AnalysisOutput:
    """FedLGD's figure 1, of the row of FedLGD itself."""
    cell = _find_fedlgd(cells)
    stored_rows = load_stored_rows(cell, seeds, rows) if cell else []
    if not stored_rows:
        return [], []
    names = stored_rows[0].client_names
    real = [record_features(row) for row in stored_rows]
    virtual = [virtual_image_features(row) for row in stored_rows]
    distances = [client_distances(*pair) for pair in zip(real, virtual, strict=True)]
    body = []
    for index, (first, second) in enumerate(combinations(names, 2)):
        records = format_spread([run[index][0] for run in distances], 100)
        images = format_spread([run[index][1] for run in distances], 100)
        body.append((f"{first} and {second}", records, images))
    table = ExtraTable(
        "Figure 1: how far apart two clients are",
        ("clients", "their records", "their virtual images"),
        tuple(body),
        "Squared MMD times 100 of up to 100 records and 100 images of each client, with "
        "the same Gaussian kernel in both columns; mean ± standard deviation over seeds. "
        "The "
        "paper says that distillation brings the clients closer together: then the "
        "second column is smaller.",
    )
    panels = {"records": real[0][:2], "virtual images": virtual[0][:2]}
    caption = (
        f"Features of the final global model, seed {seeds[0]}; t-SNE keeps neighbours, not "
        "distances."
    )
    title = f"{names[0]} and {names[1]}, before and after distillation"
    return [table], [plot_scatter("tsne-domains", title, caption, panels, names[:2], seeds[0])]


@enter_analysis("regulariser")
def regulariser_analysis(
    cells: Sequence[PaperCell], seeds: Sequence[int], rows: Path
) -> AnalysisOutput:
    """FedLGD's figure 4: records of the clients in networks trained with and without the
    regulariser."""
    body = []
    panels = {}
    names = []
    for name, word in (("with it (lambda 10)", "algo.contrast=10"), ("without", "algo.contrast=0")):
        cell = next(
            (c for c in cells if word in c.row.split() and "algo.regulariser=mmd" not in c.row),
            None,
        )
        if cell is None or not (stored_rows := load_stored_rows(cell, seeds, rows)):
            continue
        features = [record_features(row) for row in stored_rows]
        means = [_mean_distance(feature) for feature in features]
        body.append((name, format_spread(means, 100)))
        panels[name] = features[0]
        names = stored_rows[0].client_names
    if not body:
        return [], []
    table = ExtraTable(
        "Figure 4: how far apart the clients' records are",
        ("regulariser", "MMD"),
        tuple(body),
        "Squared MMD times 100, mean over pairs of clients, in each network's own "
        "features; mean ± standard deviation "
        "over seeds. The paper says that the regulariser brings the clients closer together.",
    )
    caption = f"Records of each client in the features of the final global model, seed {seeds[0]}."
    title = "With and without the regulariser"
    return [table], [plot_scatter("tsne-regulariser", title, caption, panels, names, seeds[0])]


def _mean_distance(features: list[Points]) -> float:
    """The squared MMD between two clients' records, mean over pairs of clients."""
    return _mean_of_known([records for records, _ in client_distances(features, features)])


def plot_scatter(
    name: str,
    title: str,
    caption: str,
    panels: dict[str, list[Points]],
    names: Sequence[str],
    seed: int,
) -> Plot:
    """One t-SNE for each panel, one colour for each set in it."""
    descriptions = []
    for panel, sets in panels.items():
        counts = [f"{len(points)} of {client}" for client, points in zip(names, sets)]
        descriptions.append(f"{panel}: {', '.join(counts)}")
    alt = f"t-SNE. {'; '.join(descriptions)}."
    return Plot(name, title, caption, alt, _draw_scatter(panels, names, seed))


def _draw_scatter(panels: dict[str, list[Points]], names: Sequence[str], seed: int) -> Figure:
    with figure_canvas(3.0 * len(panels), 3.2) as (figure, axes):
        axes.remove()
        for column, (panel, sets) in enumerate(panels.items()):
            part = figure.add_subplot(1, len(panels), column + 1)
            for index, (label, points) in enumerate(zip(names, tsne_map(sets, seed))):
                marker = "osD^v"[index % 5]
                x = points[:, 0]
                y = points[:, 1]
                part.scatter(
                    x, y, s=9, marker=marker, color=series_colour(index), label=label, lw=0
                )
            part.set(title=panel, xticks=[], yticks=[])
            part.grid(False)
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=2)
    return figure


def first_images(x: Tensor, y: Tensor, classes: int) -> list[Tensor | None]:
    """The first image of each class, None for a class without one. x (n, c, h, w), y (n,)."""
    images: list[Tensor | None] = []
    for label in range(classes):
        of_class = x[y == label]
        if len(of_class):
            images.append(of_class[0])
        else:
            images.append(None)
    return images


@enter_analysis("images by round")
def images_by_round(cells: Sequence[PaperCell], seeds: Sequence[int], rows: Path) -> AnalysisOutput:
    """A gallery for each row of the first column: the first image of each class that one client
    sent, round by round."""
    plots = []
    for cell in [cell for cell in cells if cell.column == cells[0].column]:
        row = load_stored_row(cell, seeds[0], rows)
        if row:
            sent = [
                (t, snapshot.sent)
                for t, snapshot in sorted(row.progress.snapshots.items())
                if "images" in snapshot.sent
            ]
        else:
            sent = []
        if row is None or not sent:
            continue
        evenly = np.linspace(0, len(sent) - 1, min(len(sent), MAX_ROUNDS))
        places = np.unique(evenly.round().astype(int))
        classes = row.experiment.dataset.classes
        lines = {}
        for place in places:
            t, artifacts = sent[place]
            labels = artifacts["labels"]["y"]
            lines[f"round {t + 1}"] = first_images(artifacts["images"]["x"], labels, classes)
        caption = (
            f"The first image of each class that client {row.experiment.plan.victim} "
            f"sent, seed {seeds[0]}; "
            "a gap is a class that it does not hold."
        )
        name = row_label(cell.row)
        plots.append(
            plot_gallery(f"images-{make_slug(name)}", f"{name}: images sent", caption, lines)
        )
    return [], plots


@enter_analysis("virtual images")
def virtual_image_galleries(
    cells: Sequence[PaperCell], seeds: Sequence[int], rows: Path
) -> AnalysisOutput:
    """FedLGD's figures 15 to 17: the virtual images of each client, and the server's."""
    cell = _find_fedlgd(cells)
    row = load_stored_row(cell, seeds[0], rows) if cell else None
    if row is None:
        return [], []
    classes = row.experiment.dataset.classes
    server = row.progress.server
    names = row.client_names
    lines = {
        names[k]: first_images(*row.virtual_images(k), classes)
        for k in sorted(row.progress.memories)
    }
    lines["server"] = first_images(server["images/x"], server["labels/y"], classes)
    caption = (
        f"The first virtual image of each class after the last round, seed {seeds[0]}, "
        "clipped to [0, 1]."
    )
    return [], [plot_gallery("virtual-images", "Local and global virtual images", caption, lines)]


def plot_gallery(
    name: str, title: str, caption: str, lines: dict[str, list[Tensor | None]]
) -> Plot:
    """One line of pictures for each entry, one column for each class."""
    columns = max(len(line) for line in lines.values())
    alt = f"Images of {columns} classes: {', '.join(lines)}."
    return Plot(name, title, caption, alt, _draw_gallery(lines, columns))


def _draw_gallery(lines: dict[str, list[Tensor | None]], columns: int) -> Figure:
    with figure_canvas(0.52 * columns + 1.1, 0.52 * len(lines) + 0.3) as (figure, axes):
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
                    pixels = picture.clamp(0, 1).permute(1, 2, 0).squeeze(-1).numpy()
                    part.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        for label_, part in enumerate(grid[0]):
            part.set_title(str(label_))
    return figure


@enter_analysis("features")
def feature_analysis(
    cells: Sequence[PaperCell], seeds: Sequence[int], rows: Path
) -> AnalysisOutput:
    """FedFed's figure 17 and table 12, of the first cell; what was measured before is read from
    beside ``rows``."""
    results = []
    for seed in seeds:
        file = rows.parent / f"feature-kinds-{cells[0].folder_name(seed)}.json"
        if not file.is_file():
            write_json(file, measure_feature_kinds(build_row_experiment(cells[0].overrides, seed)))
        results.append(read_json(file))
    accuracies = []
    for kind in FEATURE_KINDS:
        cells_of_kind = [kind]
        for test in FEATURE_KINDS:
            values = [result[f"trained on {kind}"][test] for result in results]
            cells_of_kind.append(format_spread(values, 100))
        accuracies.append(tuple(cells_of_kind))
    likeness = []
    for part, printed in PRINTED_PSNR.items():
        values = [result["psnr"][part] for result in results]
        likeness.append((part, f"{printed:g}", format_spread(values)))
    return [
        ExtraTable(
            "Figure 17: trained on the row, tested on the column (accuracy in percent)",
            ("trained on", *FEATURE_KINDS),
            tuple(accuracies),
            "The paper shows bars and no numbers: a classifier of x is comparable on "
            "x_s, and x_r lacks the needed information.",
        ),
        ExtraTable(
            "Table 12: how alike x and its parts are",
            ("part", "paper", "here"),
            tuple(likeness),
            "PSNR to x in dB, higher is more alike; pixels are clipped to [0, 1], as "
            "those of x_s below 0 are.",
        ),
    ], []


def measure_feature_kinds(experiment: Experiment) -> dict[str, dict[str, float]]:
    """ "psnr": kind -> dB to x; "trained on KIND": kind tested on -> accuracy in [0, 1]."""
    split = train_feature_map(experiment)
    train = Records.concat([shard.train for shard in experiment.shards])
    kinds = split_records(train, split)
    tests = split_records(experiment.test_records, split)
    likeness = {kind: float(psnr(tests[kind].x, tests["x"].x).mean()) for kind in FEATURE_KINDS[1:]}
    return {"psnr": likeness} | {
        f"trained on {kind}": _train_and_test(experiment, kinds[kind], tests)
        for kind in FEATURE_KINDS
    }


def train_feature_map(experiment: Experiment) -> Callable[[Tensor], Tensor]:
    """x -> x_s of the generator that phase A ends with."""
    plan = experiment.plan
    progress = start_training(experiment.plan, experiment.new_ledger())
    for _ in range(plan.method.distill_rounds):  # type: ignore[attr-defined]
        progress, _, _ = run_round(plan, progress, experiment.shards, experiment.engine)
    return plan.method.audit_hooks.maps(plan.method.broadcast(progress.server), {}, plan.problem)[
        "feature"
    ]


def split_records(records: Records, split: Callable[[Tensor], Tensor]) -> Mapping[str, Records]:
    """The same records as x, x_s and x - x_s."""
    with torch.no_grad():
        sensitive = torch.cat([split(part) for part in records.x.split(CHUNK)])
    inputs = {"x": records.x, "x_s": sensitive, "x_r": records.x - sensitive}
    return {kind: Records(x, records.y, records.ids) for kind, x in inputs.items()}


def _train_and_test(
    experiment: Experiment, records: Records, tests: Mapping[str, Records]
) -> dict[str, float]:
    data = experiment.dataset
    keys = experiment.plan.keys.fold("feature kinds")
    spec = experiment.plan.method.base.model  # type: ignore[attr-defined]
    model = build(spec, data.shape, data.classes)
    state: State = initial(spec, data.shape, data.classes, keys.fold("init").torch())
    training = ServerTraining(epochs=EPOCHS, batch_size=64, lr=0.02, momentum=0.9)
    state = train_on_records(model, state, records, training, keys.fold("order").torch())
    return {kind: evaluate_model(model, state, tests[kind])[0] for kind in FEATURE_KINDS}


def run_analyses(
    names: Sequence[str], cells: Sequence[PaperCell], seeds: Sequence[int], rows: Path
) -> AnalysisOutput:
    """Run the named analyses on the rows in ``rows``; rows that were not trained are left out."""
    tables: list[ExtraTable] = []
    plots: list[Plot] = []
    for name in names:
        new_tables, new_plots = ANALYSES[name](cells, seeds, rows)
        tables += new_tables
        plots += new_plots
    return tables, plots
