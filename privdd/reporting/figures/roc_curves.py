"""ROC curves with their intervals, and the curves of blind controls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attacks.roc import Clusters, number_labels, roc, tpr_at_fpr
from privdd.reporting.figures.canvas import figure_canvas, format_percent
from privdd.reporting.figures.style import COLUMN, MUTED, PAPER, SeriesStyle, style_of

FLOOR = 1e-4  # of both axes of a ROC
BANDS = 2  # curves: of more, bands cover each other
LETTERS_INSIDE = 40  # of a label in a legend inside a column of 3.3 inches


@dataclass(frozen=True)
class StepCurve:
    """A step ROC: at a false-positive rate of at most fpr[i] the attack reaches tpr[i], within lo
    and hi.

    fpr, tpr, lo, hi: (k,) in [0, 1], fpr increasing; members, non_members: how many of each.
    """

    fpr: np.ndarray
    tpr: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    members: int
    non_members: int
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
    non_members = int((~members).sum())
    curve = roc(scores, members)
    clusters = [number_labels(labels) for labels in clusters]
    wanted = np.unique(np.round(np.geomspace(1, non_members, points)).astype(int)) / non_members
    # tpr_at_fpr takes no rate of zero: half of one non-member stands for "no false positives".
    rates = np.append(0.5 / non_members, wanted)
    tpr = np.empty(len(rates))
    bounds = np.empty((len(rates), 2))
    for index, rate in enumerate(rates):
        tpr[index], bounds[index], _ = tpr_at_fpr(
            scores, members, float(rate), clusters=clusters, curve=curve
        )
    fpr = np.append(0.0, wanted)
    return StepCurve(
        fpr=fpr,
        tpr=tpr,
        lo=bounds[:, 0],
        hi=bounds[:, 1],
        members=int(members.sum()),
        non_members=non_members,
        auc=curve.auc,
    )


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
        _mark_one_non_member(axes, lines, floor)
        axes.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1), aspect="equal")
        axes.set(xlabel="false-positive rate", ylabel="true-positive rate")
        axes.xaxis.set_major_formatter(format_percent)
        axes.yaxis.set_major_formatter(format_percent)
        properties: dict[str, Any] = {"frameon": True, "framealpha": 0.86, "facecolor": PAPER}
        properties |= {"edgecolor": PAPER, "handlelength": 2.2, "borderaxespad": 0.15}
        longest = max(len(text) for text in axes.get_legend_handles_labels()[1])
        if longest <= LETTERS_INSIDE * width / COLUMN:
            axes.legend(loc="lower right", fontsize=6.6, **properties)
        else:  # it would hide the labels of the axis
            figure.legend(loc="outside lower center", fontsize=6.6, **properties)
    return figure


def roc_axis_floor(lines: Sequence[RocLine]) -> float:
    """The lower end of both axes: the decade of one non-member."""
    smallest_rate = min(1 / line.curve.non_members for line in lines)
    decade = 10.0 ** math.floor(math.log10(smallest_rate))
    return min(max(FLOOR, decade), 0.1)


def worst_blind_line(lines: Sequence[RocLine]) -> StepCurve | None:
    """The control that is drawn: the one furthest from chance level."""
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
    properties: dict[str, Any] = {
        "color": style.colour,
        "ls": style.dash,
        "zorder": 3,
        "label": line.label,
    }
    if line.style is not None:
        # among settings: markers distinguish them if colours cannot be seen
        properties |= {"marker": style.marker, "ms": 4.5, "markevery": sparse}
    axes.step(x, tpr, where="post", **properties)


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


def _mark_one_non_member(axes: Axes, lines: Sequence[RocLine], floor: float) -> None:
    rate = max(1 / line.curve.non_members for line in lines)
    if rate <= floor:
        return
    axes.axvline(rate, color=MUTED, lw=0.9, ls=":")
    text = f"one in {round(1 / rate)}"
    axes.text(rate, 1.08, text, color=MUTED, fontsize=8, ha="center", va="bottom")
