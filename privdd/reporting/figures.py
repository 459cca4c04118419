"""Figures: ROC curves, pictures, accuracy, bytes, epsilon claimed, proven and shown, and epsilon
against accuracy."""

from __future__ import annotations

import base64
import io
import logging
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

from attacks import images
from attacks.roc import Clusters, number_labels, roc, tpr_at_fpr
from privdd.reporting import wording
from privdd.runtime.files import write_bytes

# Figures are drawn in the light palette. ``themed_svg`` replaces each of its colours by a CSS
# variable, so that one drawing inside the page follows the reader's light or dark setting;
# ``save_figure`` writes files that stand alone on white.
INK = "#1b2024"
MUTED = "#5b656e"
GRID = "#d9dfe4"
PAPER = "#fffffe"
# Okabe and Ito (2008), darkened where a colour falls short of 3:1 on white; order: most apart
# first.
SERIES = ("#0072b1", "#d45e00", "#00805f", "#b0568c", "#8a6d00", "#2f9bd1", "#5f4bb6", "#6b6b6a")
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
MARKERS = ("o", "s", "^", "v", "P", "X")
CLAIM = SERIES[4]
PROVEN = SERIES[0]
SHOWN = SERIES[1]
VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper"} | {
    c: f"s{i}" for i, c in enumerate(SERIES)
}
FLOOR = 1e-4  # of both axes of a ROC
COLUMN = 3.3  # inches: a column of a paper
PAGE_SCALE = 1.7  # pixels of a page, at most, to a point of a drawing
BANDS = 2  # curves: of more, bands cover each other
LETTERS_INSIDE = 40  # of a label in a legend inside a column of 3.3 inches
_RC: dict[Any, Any] = {
    "svg.hashsalt": "privdd",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 8.2,
    "figure.dpi": 100,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
# Beside a method's own marks; in the legend if they are drawn.
FRONTIER_MARKS: Mapping[str, Mapping[str, Any]] = {
    "shown": {"marker": ">", "ls": "", "ms": 6, "mfc": PAPER, "label": "shown (at least)"},
    "claim": {
        "marker": "D",
        "ls": (0, (3, 2)),
        "ms": 9,
        "mfc": "none",
        "label": "the paper's claim",
    },
    "public": {
        "marker": "o",
        "ls": "",
        "ms": 8,
        "fillstyle": "left",
        "markerfacecoloralt": PAPER,
        "label": "public data",
    },
    "trusted": {
        "marker": "s",
        "ls": "",
        "ms": 13,
        "mfc": "none",
        "label": "the server sees less than uploads",
    },
    "published": {"marker": "*", "ls": "", "ms": 10, "label": "published by others"},
}
STRIP_MARKS: Mapping[str, Mapping[str, Any]] = {
    "claim": {
        "marker": "D",
        "ms": 7,
        "mfc": PAPER,
        "mec": CLAIM,
        "mew": 1.8,
        "label": "claimed or stated",
    },
    "proven": {
        "marker": "|",
        "ms": 11,
        "mew": 2.6,
        "color": PROVEN,
        "label": "proven (at most)",
    },
    "shown": {"marker": ">", "ms": 8, "color": SHOWN, "label": "shown (at least)"},
}


class Drawing(Figure):
    """A figure that a notebook shows as a picture, whether or not pyplot was imported."""

    def _repr_png_(self) -> bytes:
        return to_png(self)


@contextmanager
def figure_canvas(width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    """A figure of width x height inches and one axes, drawn in the project's style, never shown."""
    with matplotlib.rc_context(_RC):
        figure = Drawing(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.add_subplot()


def format_percent(value: float, _: object = None) -> str:
    """0.001 as "0.1 %"."""
    return f"{100 * value:.6g} %"


PERCENT = FuncFormatter(format_percent)


@dataclass(frozen=True)
class SeriesStyle:
    """The look of one setting, the same on all figures of a page: legends of different figures can
    be read together."""

    colour: str
    dash: str | tuple[int, tuple[float, ...]]
    marker: str


def style_of(index: int) -> SeriesStyle:
    """The look of the setting at this place on a page; the first 24 differ."""
    return SeriesStyle(series_colour(index), series_dash(index), MARKERS[index % len(MARKERS)])


def series_colour(index: int) -> str:
    return SERIES[index % len(SERIES)]


def series_dash(index: int) -> str | tuple[int, tuple[float, ...]]:
    """A line style of its own for series whose colour repeats or cannot be seen."""
    return DASHES[index % len(DASHES)]


def to_svg(figure: Figure) -> str:
    """The same bytes for the same drawing: fixed salt, no date, no metadata."""
    silent = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    return _render_figure(figure, "svg", 0.04, silent).decode()


def to_png(figure: Figure) -> bytes:
    return _render_figure(figure, "png", 0.1, {"Software": None})


def to_pdf(figure: Figure) -> bytes:
    """For LaTeX: the letters are outlines of TrueType, the same bytes for the same drawing."""
    # at INFO, as commands log, it names every table of a font
    logging.getLogger("fontTools").setLevel(logging.WARNING)
    return _render_figure(
        figure, "pdf", 0.04, dict.fromkeys(("CreationDate", "Creator", "Producer"))
    )


def _render_figure(figure: Figure, kind: str, pad: float, metadata: dict[str, None]) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes, and is whole in the page's own
        # text.
        warnings.filterwarnings("ignore", message="Glyph|constrained_layout not applied")
        figure.savefig(
            buffer, format=kind, dpi=150, bbox_inches="tight", pad_inches=pad, metadata=metadata
        )
    figure.set_layout_engine("none")  # the layout is computed once; further renderings reuse it
    return buffer.getvalue()


def save_figure(figure: Figure, svg: str, folder: Path, name: str, pdf: bool = False) -> None:
    """Write ``folder/name.svg`` and ``.png``, on white.

    Args:
        figure: The drawing; its background becomes white.
        svg: What ``to_svg`` made of it.
        folder: Where the files go.
        name: Their name without its ending.
        pdf: Whether ``.pdf`` is written too; one that lies there already is replaced, so that no
            file of an earlier drawing stays beside the others.
    """
    at = svg.index(">", svg.index("<svg")) + 1
    white = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
    write_bytes(folder / f"{name}.svg", (svg[:at] + white + svg[at:]).encode())
    figure.set_facecolor(PAPER)
    write_bytes(folder / f"{name}.png", to_png(figure))
    paper = folder / f"{name}.pdf"
    if pdf or paper.exists():
        write_bytes(paper, to_pdf(figure))


def themed_svg(svg: str, prefix: str, label: str) -> str:
    """The drawing for use inside a page: ids made unique, colours as CSS variables, a spoken
    label."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda m: _css_variable(m.group()), svg)
    view = re.search(r'viewBox="([^"]*)"', svg)
    width = view.group(1).split()[2] if view else "400"
    head = (
        f'<svg class="plot" style="max-width:{float(width) * PAGE_SCALE:.0f}px" role="img" '
        f'aria-label="{escape(label)}"'
    )
    body = svg[svg.index(">") + 1 : svg.rindex("</svg>")] + "</svg>"
    return f'{head} viewBox="{view.group(1) if view else ""}">{body}'.strip()


def _css_variable(hexadecimal: str) -> str:
    name = VARIABLES.get(hexadecimal)
    return f"var(--{name})" if name else hexadecimal


def png_uri(image: np.ndarray) -> str:
    """One picture (c, h, w) in [0, 1] as a data URI of a PNG file; c is 1 or 3."""
    pixels = np.round(np.clip(np.nan_to_num(image), 0, 1) * 255).astype(np.uint8)
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


@dataclass(frozen=True)
class StepCurve:
    """A step ROC: at a false-positive rate of at most fpr[i] the attack reaches tpr[i], within lo
    and hi.

    fpr, tpr, lo, hi: (k,) in [0, 1], fpr increasing; members, outsiders: how many of each.
    """

    fpr: np.ndarray
    tpr: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    members: int
    outsiders: int
    auc: float


def step_curve(
    scores: np.ndarray, members: np.ndarray, *, clusters: Clusters = (), points: int = 100
) -> StepCurve:
    """The ROC at no more than ``points`` + 1 log-spaced rates, each a rate that a threshold
    attains.

    scores, members: (m,), larger = member. The band is attacks.roc.tpr_at_fpr's 95 % interval,
    pointwise. Between points the curve is drawn as a step: joining them by a line would overstate
    the true-positive rate. Raises ValueError without both classes.
    """
    members = np.asarray(members).astype(bool)
    outsiders = int((~members).sum())
    curve = roc(scores, members)
    clusters = [number_labels(labels) for labels in clusters]
    wanted = np.unique(np.round(np.geomspace(1, outsiders, points)).astype(int)) / outsiders
    # tpr_at_fpr takes no rate of zero: half of one non-member stands for "no false positives".
    rates = np.append(0.5 / outsiders, wanted)
    tpr = np.empty(len(rates))
    bounds = np.empty((len(rates), 2))
    for index, rate in enumerate(rates):
        tpr[index], bounds[index], _ = tpr_at_fpr(
            scores, members, float(rate), clusters=clusters, curve=curve
        )
    fpr = np.append(0.0, wanted)
    return StepCurve(fpr, tpr, bounds[:, 0], bounds[:, 1], int(members.sum()), outsiders, curve.auc)


def psnr_of_arrays(real: np.ndarray, reconstructed: np.ndarray) -> np.ndarray:
    """``attacks.images.psnr`` of arrays."""
    return images.psnr(torch.as_tensor(real), torch.as_tensor(reconstructed)).numpy()


@dataclass(frozen=True)
class RocLine:
    """One attack's curve with its name; blind is the same game without the artifact; style: by its
    place if None."""

    label: str
    curve: StepCurve
    blind: StepCurve | None = None
    style: SeriesStyle | None = None


def draw_roc(lines: Sequence[RocLine], width: float = COLUMN, bands: bool = True) -> Figure:
    """True against false positives on log-log axes (Carlini et al., 2022, section IV).

    Steps, with a pointwise 95 % Clopper-Pearson band where there are two curves at most. The
    diagonal is the chance level; the dotted mark is one non-member, below which a rate cannot be
    seen. The legend lies in the corner below the diagonal, which no attack reaches, or below the
    axes if a label is too long. bands: whether intervals are drawn.
    """
    with figure_canvas(width, 0.98 * width) as (figure, axes):
        floor = roc_axis_floor(lines)
        axes.plot([floor, 1], [floor, 1], color=MUTED, lw=1, ls=(0, (4, 3)), label="chance level")
        for index, line in enumerate(lines):
            _draw_curve(axes, line, index, floor, banded=bands and len(lines) <= BANDS)
        _draw_blind(axes, lines, floor, bands)
        _mark_one_outsider(axes, lines, floor)
        axes.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1), aspect="equal")
        axes.set(
            xlabel="false-positive rate",
            ylabel="true-positive rate",
        )
        axes.xaxis.set_major_formatter(PERCENT)
        axes.yaxis.set_major_formatter(PERCENT)
        look: dict[str, Any] = {"frameon": True, "framealpha": 0.86, "facecolor": PAPER}
        look |= {"edgecolor": PAPER, "handlelength": 2.2, "borderaxespad": 0.15}
        longest = max(len(text) for text in axes.get_legend_handles_labels()[1])
        if longest <= LETTERS_INSIDE * width / COLUMN:
            axes.legend(loc="lower right", fontsize=6.6, **look)
        else:  # it would hide the labels of the axis
            figure.legend(loc="outside lower center", fontsize=6.6, **look)
    return figure


def roc_axis_floor(lines: Sequence[RocLine]) -> float:
    """The lower end of both axes: the decade of one non-member."""
    floor = max(
        FLOOR, 10.0 ** math.floor(math.log10(min(1 / line.curve.outsiders for line in lines)))
    )
    return min(floor, 0.1)


def worst_blind_line(lines: Sequence[RocLine]) -> StepCurve | None:
    """The control that is drawn: the one furthest from guessing."""
    blind = [line.blind for line in lines if line.blind is not None]
    return max(blind, key=lambda curve: abs(curve.auc - 0.5), default=None)


def _clip_to_floor(curve: StepCurve, floor: float) -> np.ndarray:
    return np.maximum(curve.fpr, floor / 10)


def _draw_curve(axes: Axes, line: RocLine, index: int, floor: float, banded: bool) -> None:
    x = _clip_to_floor(line.curve, floor)
    style = line.style or style_of(index)
    if banded:
        low, high = (np.maximum(y, floor / 10) for y in (line.curve.lo, line.curve.hi))
        label = "95 % interval" if index == 0 else None
        axes.fill_between(
            x, low, high, step="post", color=style.colour, alpha=0.16, lw=0, label=label
        )
    tpr = np.maximum(line.curve.tpr, floor / 10)
    sparse = max(1, len(x) // 6)
    look: dict[str, Any] = {
        "color": style.colour,
        "ls": style.dash,
        "zorder": 3,
        "label": line.label,
    }
    if (
        line.style is not None
    ):  # among settings: the marker tells them apart where colours cannot be seen
        look |= {"marker": style.marker, "ms": 4.5, "markevery": sparse}
    axes.step(x, tpr, where="post", **look)


def _draw_blind(axes: Axes, lines: Sequence[RocLine], floor: float, banded: bool) -> None:
    worst = worst_blind_line(lines)
    if worst is None:
        return
    label = "blind control"
    controls = len([line for line in lines if line.blind is not None])
    if controls > 1:
        label += f" (largest deviation of {controls})"
    fpr = _clip_to_floor(worst, floor)
    low = np.maximum(worst.lo, floor / 10)
    high = np.maximum(worst.hi, floor / 10)
    tpr = np.maximum(worst.tpr, floor / 10)
    if banded:
        axes.fill_between(fpr, low, high, step="post", color=MUTED, alpha=0.1, lw=0)
    axes.step(fpr, tpr, where="post", color=MUTED, lw=1, label=label)


def _mark_one_outsider(axes: Axes, lines: Sequence[RocLine], floor: float) -> None:
    rate = max(1 / line.curve.outsiders for line in lines)
    if rate <= floor:
        return
    axes.axvline(rate, color=MUTED, lw=0.9, ls=":")
    text = f"one in {round(1 / rate)}"
    axes.text(rate, 1.08, text, color=MUTED, fontsize=8, ha="center", va="bottom")


def draw_accuracy(
    series: Mapping[str, Sequence[float]],
    width: float = 4.6,
    styles: Mapping[str, SeriesStyle] | None = None,
) -> Figure:
    """Test accuracy (0 to 1) after each round, one line per run. styles: by label; by place if
    None."""
    with figure_canvas(width, 2.7) as (figure, axes):
        for index, (label, values) in enumerate(series.items()):
            rounds = np.arange(1, len(values) + 1)
            style = (styles or {}).get(label, style_of(index))
            every = max(1, len(values) // 12)
            look: dict[str, Any] = {
                "color": style.colour,
                "ls": style.dash,
                "marker": style.marker,
                "ms": 4,
            }
            axes.plot(rounds, values, markevery=every, label=label, **look)
        axes.set(xlabel="communication round", ylabel="test accuracy", ylim=(0, 1))
        axes.yaxis.set_major_formatter(PERCENT)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(series) > 1:
            figure.legend(
                loc="outside lower center", ncols=2 if len(series) <= 4 else 1, handlelength=2.6
            )
    return figure


def draw_bytes(
    up: Mapping[str, float], width: float = COLUMN, styles: Mapping[str, SeriesStyle] | None = None
) -> Figure:
    """Bytes that one client uploads over the whole run, one bar per run. styles: by label; by place
    if None."""
    with figure_canvas(width, 0.6 + 0.34 * len(up)) as (figure, axes):
        names = list(up)
        values = list(up.values())
        colours = [(styles or {}).get(name, style_of(at)).colour for at, name in enumerate(names)]
        bars = axes.barh(names, values, color=colours, height=0.62)
        axes.bar_label(
            bars, [wording.format_bytes(v) for v in values], padding=4, fontsize=8.5, color=INK
        )
        axes.set(xlim=(0, 1.22 * max(*values, 1)), xticks=[])
        axes.invert_yaxis()
        axes.grid(False)
        axes.spines[["bottom"]].set_visible(False)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
    return figure


def draw_pictures(real: np.ndarray, reconstructed: np.ndarray, limit: int = 8) -> Figure:
    """Real images (b, c, h, w) above their reconstructions, with the PSNR of each pair; best
    first."""
    order = order_by_psnr(real, reconstructed)[:limit]
    quality = psnr_of_arrays(real, reconstructed)
    tall = real.shape[2] / real.shape[3]
    with figure_canvas(0.8 * len(order) + 0.6, 1.6 * tall + 0.5) as (figure, axes):
        for column, index in enumerate(order):
            _draw_picture(axes, real[index], column, tall + 0.06)
            _draw_picture(axes, reconstructed[index], column, 0)
            axes.text(
                column + 0.47,
                -0.06,
                wording.format_decibel(float(quality[index])),
                ha="center",
                va="top",
                fontsize=8,
            )
        axes.set(xlim=(0, len(order)), ylim=(-0.2, 2 * tall + 0.06), aspect="equal", xticks=[])
        axes.set_yticks([1.5 * tall + 0.06, 0.5 * tall], ["original", "reconstruction"])
        axes.tick_params(length=0, labelcolor=INK)
        axes.grid(False)
        axes.spines[:].set_visible(False)
    return figure


def _draw_picture(axes: Axes, image: np.ndarray, left: float, bottom: float) -> None:
    pixels = np.clip(image, 0, 1).transpose(1, 2, 0)
    if pixels.shape[2] == 1:
        pixels = np.repeat(pixels, 3, axis=2)
    place = (left, left + 0.94, bottom, bottom + 0.94 * image.shape[1] / image.shape[2])
    axes.imshow(pixels, extent=place, interpolation="none")


def order_by_psnr(real: np.ndarray, reconstructed: np.ndarray) -> np.ndarray:
    """Positions sorted by falling PSNR."""
    return np.argsort(-psnr_of_arrays(real, reconstructed), kind="stable")


@dataclass(frozen=True)
class StripRow:
    """One line of the strip; each epsilon is >= 0, may be infinite, and is None where there is
    none."""

    label: str
    claim: float | None
    proven: float | None
    shown: float | None


@dataclass(frozen=True)
class FrontierPoint:
    """One setting of one method over its seeds: accuracies in [0, 1], epsilons >= 0 or infinite.

    public: whether it was built on public data; trusted: whether the server is trusted to see less
        than every upload;
    label: of the setting, the method's name if ""; note: written at the mark, "σ = 1"; style: by
        the method's place if None.
    """

    method: str
    epsilon: float
    accuracies: tuple[float, ...]
    shown: float | None = None
    claim: float | None = None
    public: bool = False
    trusted: bool = False
    label: str = ""
    note: str = ""
    style: SeriesStyle | None = None


class EpsilonAxis:
    """Positions of epsilons: log10 between two decades, 0 and infinity in columns beside them."""

    def __init__(self, values: Iterable[float | None]) -> None:
        finite = [v for v in values if v is not None and 0 < v < math.inf]
        low = math.floor(math.log10(min(finite, default=0.1)))
        high = math.ceil(math.log10(max(finite, default=10)))
        self.low = max(min(low, -1), -4)
        self.high = max(high, 1)

    @property
    def zero_position(self) -> float:
        return self.low - 0.5

    @property
    def infinity_position(self) -> float:
        return self.high + 0.55

    def position_of(self, epsilon: float) -> float:
        if math.isinf(epsilon):
            return self.infinity_position
        if epsilon <= 10.0**self.low / 3:
            return self.zero_position
        return max(math.log10(epsilon), self.low - 0.3)

    def set_ticks(self, axes: Axes, label: str) -> None:
        """Ticks, the column of no limit, and the label."""
        step = 1 if self.high - self.low <= 6 else 2
        decades = list(range(self.low, self.high + 1, step))
        names = [f"{10.0**d:g}" if -4 < d < 5 else f"1e{d}" for d in decades]
        axes.set_xticks([self.zero_position, *decades, self.infinity_position], ["0", *names, "∞"])
        axes.axvspan(self.high + 0.2, self.high + 0.9, color=GRID, alpha=0.55, lw=0, zorder=0)
        axes.set_xlim(self.zero_position - 0.25, self.high + 0.9)
        axes.set_xlabel(label)


def draw_epsilon_strip(rows: Sequence[StripRow], width: float = 5.2) -> Figure:
    """For each row: the claim (diamond), the proven upper bound (bar), the shown lower bound
    (arrow).

    A shown bound to the right of a claim or of a proven bound contradicts it: a bold line joins
    them."""
    axis = EpsilonAxis(value for row in rows for value in (row.claim, row.proven, row.shown))
    with figure_canvas(width, 1.25 + 0.42 * len(rows)) as (figure, axes):
        for height, row in enumerate(rows):
            _draw_strip_row(axes, axis, row, height)
        axes.set_yticks(range(len(rows)), [row.label for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axis.set_ticks(axes, "ε (smaller is more private; ∞ = no proven bound)")
        axes.grid(axis="y", visible=False)
        figure.legend(
            handles=_draw_strip_legend(rows), loc="outside lower center", ncols=3, handletextpad=0.3
        )
    return figure


def draw_epsilon_scale(row: StripRow, claim_word: str = "claimed", width: float = 5.0) -> Figure:
    """The three epsilons of a run on one line, each with its number.

    The proven upper bound is a disc, the shown lower bound an arrow, the claim a diamond; a bar
    joins shown and proven, between which the true value lies, and is bold where they cross.

    Args:
        row: The epsilons; None is not drawn.
        claim_word: What the claim is called, "claimed" or "stated".
        width: In inches.
    """
    axis = EpsilonAxis((row.claim, row.proven, row.shown))
    with figure_canvas(width, 1.25) as (figure, axes):
        labels = []
        if row.claim is not None:
            place = axis.position_of(row.claim)
            look: dict[str, Any] = {"ms": 8, "mfc": PAPER, "mec": CLAIM, "mew": 1.8}
            axes.plot(place, 0, marker="D", zorder=6, **look)
            labels.append((place, 0.5, f"{claim_word} {_short(row.claim)}", CLAIM))
        if row.proven is not None:
            place = axis.position_of(row.proven)
            text = "no proven bound" if math.isinf(row.proven) else f"proven ≤ {_short(row.proven)}"
            axes.plot(place, 0, marker="o", ms=9, color=PROVEN, zorder=4)
            labels.append((place, -0.06, text, PROVEN))
        if row.shown is not None:
            place = axis.position_of(row.shown)
            axes.plot(place, 0, marker=">", ms=9, color=SHOWN, zorder=5)
            labels.append((place, 1.06, f"shown ≥ {_short(row.shown)}", SHOWN))
        if row.proven is not None and row.shown is not None:
            ends = [axis.position_of(row.shown), axis.position_of(row.proven)]
            crossed = row.shown > row.proven
            axes.plot(ends, [0, 0], color=SHOWN, lw=6, alpha=0.9 if crossed else 0.28, zorder=2)
        axis.set_ticks(axes, "")
        _place_labels(axes, labels)
        axes.set(ylim=(-0.6, 3.1), yticks=[])
        axes.spines["left"].set_visible(False)
        axes.grid(False)
    return figure


def _short(epsilon: float) -> str:
    return wording.format_number(epsilon)


def _place_labels(axes: Axes, labels: Sequence[tuple[float, float, str, str]]) -> None:
    """Write labels above their marks, each on the lowest line with room.

    labels: (position, the share of the text that lies left of it, text, colour).
    """
    left, right = axes.get_xlim()
    letter = (right - left) / 54
    lines: list[list[tuple[float, float]]] = []
    for place, share, text, colour in labels:
        width = letter * len(text)
        start = min(max(place - share * width, left), right - width)
        span = (start, start + width)
        line = next((n for n, spans in enumerate(lines) if _has_room(spans, span, letter)), None)
        if line is None:
            line = len(lines)
            lines.append([])
        lines[line].append(span)
        look: dict[str, Any] = {"color": colour, "fontsize": 10.5, "fontweight": "bold"}
        axes.text(start + width / 2, 0.75 + 0.8 * line, text, ha="center", va="center", **look)
        if line:
            axes.plot([place, place], [0.3, 0.45 + 0.8 * line], color=colour, lw=0.8, zorder=1)


def _has_room(spans: Sequence[tuple[float, float]], new: tuple[float, float], gap: float) -> bool:
    return all(new[1] + gap < start or new[0] > end + gap for start, end in spans)


def draw_detection_rates(
    rates: np.ndarray, fpr: float, trials: str = "replays", width: float = COLUMN
) -> Figure:
    """How often each record is identified, the most exposed first.

    Args:
        rates: Share of the trials that hold the record, (n,) in [0, 1], falling.
        fpr: The false-positive rate of the common threshold, drawn as chance level.
        trials: The plural noun for them.
        width: In inches.
    """
    with figure_canvas(width, 0.78 * width) as (figure, axes):
        axes.bar(np.arange(1, len(rates) + 1), rates, width=0.86, color=SHOWN)
        axes.axhline(fpr, color=MUTED, lw=0.9, ls=(0, (4, 3)))
        top = min(1.0, max(1.15 * float(rates.max()), 5 * fpr, 0.05))
        axes.set(ylim=(0, top), xlim=(0.4, max(len(rates), 12) + 0.6))
        axes.set(xlabel="audited records, most exposed first", ylabel=f"identified in {trials}")
        axes.yaxis.set_major_formatter(PERCENT)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.grid(axis="x", visible=False)
    return figure


def _draw_strip_row(axes: Axes, axis: EpsilonAxis, row: StripRow, height: int) -> None:
    if row.proven is not None:
        end = axis.position_of(row.proven)
        axes.plot(
            [axis.zero_position, end],
            [height, height],
            color=PROVEN,
            lw=5,
            alpha=0.28,
            solid_capstyle="butt",
        )
        axes.plot(end, height, marker="|", ms=13, mew=2.6, color=PROVEN)
    if row.shown is not None:
        for bound in (row.claim, row.proven):
            if bound is not None and bound < row.shown:
                ends = [axis.position_of(bound), axis.position_of(row.shown)]
                axes.plot(ends, [height, height], color=SHOWN, lw=2.2, solid_capstyle="butt")
        axes.plot(axis.position_of(row.shown), height, marker=">", ms=8, color=SHOWN, zorder=4)
    if row.claim is not None:
        axes.plot(
            axis.position_of(row.claim),
            height,
            marker="D",
            ms=7.5,
            mfc=PAPER,
            mec=CLAIM,
            mew=1.8,
            zorder=3,
        )


def _draw_strip_legend(rows: Sequence[StripRow]) -> list[Line2D]:
    """Only what is drawn."""
    handles = []
    for name, look in STRIP_MARKS.items():
        if any(getattr(row, name) is not None for row in rows):
            handles.append(Line2D([], [], ls="", **look))
    return handles


def draw_frontier(
    points: Sequence[FrontierPoint],
    width: float = COLUMN,
    kind: str = "global",
    published: Sequence[tuple[float, float]] = (),
) -> Figure:
    """Accuracy (of ``kind``) against epsilon, one mark per setting, joined per method: mean and
    range over seeds.

    Filled marks sit at the proven epsilon, open triangles at the shown lower bound of the
    same setting, which a bar joins to it, large open diamonds on dashed lines at the paper's claim;
    half-filled marks stand for public data, squares round a mark for a server that sees less than
    every upload, stars for ``published`` figures of others, (epsilon, accuracy)."""
    epsilons = [epsilon for epsilon, _ in published]
    for point in points:
        epsilons += _point_epsilons(point)
    axis = EpsilonAxis(epsilons)
    methods = list(dict.fromkeys(point.method for point in points))
    with figure_canvas(width, 0.95 * width + 0.08 * len(points)) as (figure, axes):
        for index, method in enumerate(methods):
            settings = [point for point in points if point.method == method]
            settings.sort(key=lambda point: point.epsilon)
            _draw_frontier_curve(axes, axis, settings, index)
        handles, _ = axes.get_legend_handles_labels()
        for epsilon, accuracy in published:
            _draw_frontier_mark(axes, "published", axis.position_of(epsilon), accuracy, color=MUTED)
        axis.set_ticks(axes, "ε (mark: proven, triangle: shown)")
        axes.set_ylabel(f"accuracy ({kind})")
        axes.yaxis.set_major_formatter(PERCENT)
        for name in _frontier_marks_drawn(points, published):
            handles.append(Line2D([], [], color=MUTED, **FRONTIER_MARKS[name]))
        figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=6.6)
    return figure


def _point_epsilons(point: FrontierPoint) -> list[float]:
    epsilons = (point.epsilon, point.shown, point.claim)
    return [epsilon for epsilon in epsilons if epsilon is not None]


def _frontier_marks_drawn(points: Sequence[FrontierPoint], published: Sequence[Any]) -> list[str]:
    """Names of ``FRONTIER_MARKS`` that the legend explains."""
    is_drawn = {
        "shown": any(point.shown is not None for point in points),
        "claim": any(point.claim is not None for point in points),
        "public": any(point.public for point in points),
        "trusted": any(point.trusted for point in points),
        "published": bool(published),
    }
    return [name for name in FRONTIER_MARKS if is_drawn[name]]


def _draw_frontier_curve(
    axes: Axes, axis: EpsilonAxis, points: Sequence[FrontierPoint], index: int
) -> None:
    """The settings of one method, joined by a thin line where there are several."""
    x = [axis.position_of(p.epsilon) for p in points]
    mean = [float(np.mean(p.accuracies)) for p in points]
    if len(points) > 1:
        axes.plot(x, mean, color=MUTED, lw=0.9, zorder=1)
    named: set[str] = set()
    for place, height, point in zip(x, mean, points, strict=True):
        label = point.label or point.method
        _draw_frontier_point(
            axes, axis, (place, height), point, index, "" if label in named else label
        )
        named.add(label)


def _draw_frontier_point(
    axes: Axes,
    axis: EpsilonAxis,
    at: tuple[float, float],
    point: FrontierPoint,
    index: int,
    label: str,
) -> None:
    place, height = at
    style = point.style or style_of(index)
    reach = [[max(height - min(point.accuracies), 0.0)], [max(max(point.accuracies) - height, 0.0)]]
    look: dict[str, Any] = {
        "color": style.colour,
        "ls": style.dash,
        "marker": style.marker,
        "ms": 6,
    }
    axes.errorbar([place], [height], yerr=reach, capsize=3, label=label or None, **look)
    if point.shown is not None:
        low = axis.position_of(point.shown)
        bar: dict[str, Any] = {"lw": 5, "alpha": 0.28, "solid_capstyle": "butt", "zorder": 1}
        axes.plot([low, place], [height, height], color=style.colour, **bar)
        _draw_frontier_mark(axes, "shown", low, height, color=style.colour, zorder=4)
    if point.public:
        _draw_frontier_mark(
            axes, "public", place, height, color=style.colour, zorder=3, marker=style.marker
        )
    if point.trusted:
        _draw_frontier_mark(axes, "trusted", place, height, color=style.colour)
    if point.note:
        look = {"textcoords": "offset points", "xytext": (0, 6), "ha": "center", "fontsize": 6.6}
        axes.annotate(point.note, (place, height), color=style.colour, **look)
    if point.claim is not None:
        _draw_frontier_mark(
            axes, "claim", axis.position_of(point.claim), height, color=style.colour
        )


def _draw_frontier_mark(axes: Axes, name: str, x: Any, y: Any, **look: Any) -> None:
    axes.plot(x, y, **{**FRONTIER_MARKS[name], "label": None, **look})
