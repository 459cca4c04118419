"""Figures of what attacks reach and what a run costs: ROC, pictures, accuracy, bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from privdd.reporting import words
from privdd.reporting.curves import Curve, psnr
from privdd.reporting.hover import AREA, MOST, curve_id
from privdd.reporting.style import INK, MUTED, PERCENT, canvas, colour, dash

FLOOR = 1e-4


@dataclass(frozen=True)
class RocLine:
    """One attack's curve with its name; blind is the same game without the artifact."""

    label: str
    curve: Curve
    blind: Curve | None = None


def roc(lines: Sequence[RocLine], width: float = 4.6) -> Figure:
    """True against false positives on log-log axes (Carlini et al., 2022, section IV).

    Steps, with a pointwise 95 % Clopper-Pearson band. The diagonal is guessing; the dotted mark is
    one non-member, below which a rate cannot be seen.
    """
    columns = 1 if len(lines) > 2 or max(len(line.label) for line in lines) > 30 else 2
    with canvas(width, width + 0.25 * math.ceil((len(lines) + 3) / columns)) as (figure, axes):
        floor = roc_floor(lines)
        axes.patch.set_gid(AREA)
        axes.plot([floor, 1], [floor, 1], color=MUTED, lw=1, ls=(0, (4, 3)), label="guessing")
        for index, line in enumerate(lines):
            _draw_curve(axes, line, index, floor)
        _draw_blind(axes, lines, floor)
        _mark_one_outsider(axes, lines, floor)
        axes.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1), aspect="equal")
        axes.set(xlabel="false-positive rate (outsiders wrongly named)", ylabel="true-positive rate (members found)")
        axes.xaxis.set_major_formatter(PERCENT)
        axes.yaxis.set_major_formatter(PERCENT)
        figure.legend(loc="outside lower center", ncols=columns, handlelength=2.6)
    return figure


def roc_floor(lines: Sequence[RocLine]) -> float:
    """Where both axes begin: the decade of one non-member."""
    floor = max(FLOOR, 10.0 ** math.floor(math.log10(min(1 / line.curve.outsiders for line in lines))))
    return min(floor, 0.1)


def blind_line(lines: Sequence[RocLine]) -> Curve | None:
    """The control that is drawn: the one furthest from guessing."""
    blind = [line.blind for line in lines if line.blind is not None]
    return max(blind, key=lambda curve: abs(curve.auc - 0.5), default=None)


def _steps(curve: Curve, floor: float) -> np.ndarray:
    return np.maximum(curve.fpr, floor / 10)


def _draw_curve(axes: Axes, line: RocLine, index: int, floor: float) -> None:
    x = _steps(line.curve, floor)
    low, high = (np.maximum(y, floor / 10) for y in (line.curve.lo, line.curve.hi))
    label = "95 % interval" if index == 0 else None
    band = axes.fill_between(x, low, high, step="post", color=colour(index), alpha=0.16, lw=0, label=label)
    band.set_gid(curve_id(index, "band"))
    tpr = np.maximum(line.curve.tpr, floor / 10)
    gid = curve_id(index, "line")
    axes.step(x, tpr, where="post", color=colour(index), ls=dash(index), label=line.label, zorder=3, gid=gid)


def _draw_blind(axes: Axes, lines: Sequence[RocLine], floor: float) -> None:
    worst, many = blind_line(lines), sum(line.blind is not None for line in lines)
    if worst is not None:
        label = "control: never saw the artifact" + (f" (furthest of {many})" if many > 1 else "")
        x, (low, tpr, high) = _steps(worst, floor), (np.maximum(y, floor / 10) for y in (worst.lo, worst.tpr, worst.hi))
        band = axes.fill_between(x, low, high, step="post", color=MUTED, alpha=0.1, lw=0)
        band.set_gid(curve_id(len(lines), "band"))
        axes.step(x, tpr, where="post", color=MUTED, lw=1, label=label, gid=curve_id(len(lines), "line"))


def _mark_one_outsider(axes: Axes, lines: Sequence[RocLine], floor: float) -> None:
    one = max(1 / line.curve.outsiders for line in lines)
    if one > floor:
        axes.axvline(one, color=MUTED, lw=0.9, ls=":")
        axes.text(one, 1.08, f"one in {round(1 / one)}", color=MUTED, fontsize=8, ha="center", va="bottom")


def accuracy(series: Mapping[str, Sequence[float]], width: float = 4.6) -> Figure:
    """Test accuracy (0 to 1) after each round, one line per run."""
    with canvas(width, 2.7) as (figure, axes):
        for index, (label, values) in enumerate(series.items()):
            rounds = np.arange(1, len(values) + 1)
            marker = "o" if len(values) <= 12 else None
            gid = curve_id(index, "line") if index < MOST else None
            axes.plot(rounds, values, color=colour(index), ls=dash(index), marker=marker, ms=3.5, label=label, gid=gid)
        axes.patch.set_gid(AREA)
        axes.set(xlabel="communication round", ylabel="test accuracy", ylim=(0, 1))
        axes.yaxis.set_major_formatter(PERCENT)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(series) > 1:
            figure.legend(loc="outside lower center", ncols=2 if len(series) <= 4 else 1, handlelength=2.6)
    return figure


def size(value: float) -> str:
    """A number of bytes in decimal units: 1234567 as "1.23 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5 or unit == "GB":
            break
        value /= 1000
    return f"{value:.3g}\u00a0{unit}"


def bytes_bar(up: Mapping[str, float], width: float = 4.6) -> Figure:
    """Bytes that one client uploads over the whole run, one bar per run."""
    with canvas(width, 0.6 + 0.34 * len(up)) as (figure, axes):
        names, values = list(up), list(up.values())
        bars = axes.barh(names, values, color=[colour(i) for i in range(len(names))], height=0.62)
        axes.bar_label(bars, [size(v) for v in values], padding=4, fontsize=8.5, color=INK)
        axes.set(xlim=(0, 1.22 * max(*values, 1)), xticks=[])
        axes.invert_yaxis()
        axes.grid(False)
        axes.spines[["bottom"]].set_visible(False)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
    return figure


def pictures(real: np.ndarray, reconstructed: np.ndarray, limit: int = 8) -> Figure:
    """Real images (b, c, h, w) above their reconstructions, with the PSNR of each pair; best first."""
    order = best_first(real, reconstructed)[:limit]
    quality = psnr(real, reconstructed)
    tall = real.shape[2] / real.shape[3]
    with canvas(0.8 * len(order) + 0.6, 1.6 * tall + 0.5) as (figure, axes):
        for column, index in enumerate(order):
            _picture(axes, real[index], column, tall + 0.06)
            _picture(axes, reconstructed[index], column, 0)
            axes.text(column + 0.47, -0.06, words.decibel(float(quality[index])), ha="center", va="top", fontsize=8)
        axes.set(xlim=(0, len(order)), ylim=(-0.2, 2 * tall + 0.06), aspect="equal", xticks=[])
        axes.set_yticks([1.5 * tall + 0.06, 0.5 * tall], ["real", "rebuilt"])
        axes.tick_params(length=0, labelcolor=INK)
        axes.grid(False)
        axes.spines[:].set_visible(False)
    return figure


def _picture(axes: Axes, image: np.ndarray, left: float, bottom: float) -> None:
    pixels = np.clip(image, 0, 1).transpose(1, 2, 0)
    pixels = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
    place = (left, left + 0.94, bottom, bottom + 0.94 * image.shape[1] / image.shape[2])
    axes.imshow(pixels, extent=place, interpolation="none")


def best_first(real: np.ndarray, reconstructed: np.ndarray) -> np.ndarray:
    """Positions sorted by falling PSNR."""
    return np.argsort(-psnr(real, reconstructed), kind="stable")
