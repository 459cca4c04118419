"""What can be read off each figure, place by place, for ``hover``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from privdd.reporting.curves import Curve
from privdd.reporting.epsilon_figures import StripRow
from privdd.reporting.figures import RocLine, blind_line, roc_floor
from privdd.reporting.hover import MOST, Toggle, Zone
from privdd.reporting.words import number, share

COLUMNS = 24  # of a ROC
ROUNDS = 60  # shown one by one; of more, a sample


def roc(lines: Sequence[RocLine]) -> tuple[tuple[Zone, ...], tuple[Toggle, ...]]:
    """Columns of equal width on the logarithmic axis, each read in its middle; the attacks and the control as toggles."""
    blind = blind_line(lines)
    named: list[tuple[str, Curve]] = [(line.label, line.curve) for line in lines]
    toggles = [Toggle(label, i, f"s{i % 8}") for i, (label, _) in enumerate(named)]
    if blind is not None:
        named.append(("control", blind))
        toggles.append(Toggle("control", len(lines), "muted"))
    if len(named) > MOST:
        return (), ()
    edges = np.geomspace(roc_floor(lines), 1, COLUMNS + 1)
    zones = [_column(named, low, high, len(lines)) for low, high in pairwise(edges)]
    return tuple(zones), tuple(toggles)


def _column(named: Sequence[tuple[str, Curve]], low: float, high: float, grey: int) -> Zone:
    fpr = float(np.sqrt(low * high))
    read = []
    for index, (label, curve) in enumerate(named):
        i = int(np.searchsorted(curve.fpr, fpr, side="right")) - 1
        read.append((index, label[:44], float(curve.tpr[i]), float(curve.lo[i]), float(curve.hi[i])))
    lines = tuple((index, f"{label}: {share(tpr)} ({share(lo)} to {share(hi)})") for index, label, tpr, lo, hi in read)
    marks = tuple((index, fpr, tpr) for index, _, tpr, _, _ in read if tpr > 0)
    return Zone((low, high), None, f"false-positive rate {share(fpr)}", lines, marks, grey)


def accuracy(series: Mapping[str, Sequence[float]]) -> tuple[Zone, ...]:
    """One column for each round."""
    last = max(len(values) for values in series.values())
    rounds = sorted({round(one) for one in np.linspace(1, last, min(last, ROUNDS))})
    zones = []
    for r in rounds:
        there = [(i, label, values[r - 1]) for i, (label, values) in enumerate(series.items()) if r <= len(values)]
        lines = tuple((i, f"{label[:44]}: {share(value)}") for i, label, value in there[:MOST])
        marks = tuple((i, float(r), value) for i, _, value in there[:MOST])
        zones.append(Zone((r - 0.5, r + 0.5), None, f"round {r}", lines, marks))
    return tuple(zones)


def strip(rows: Sequence[StripRow]) -> tuple[Zone, ...]:
    """One band for each line."""
    return tuple(
        Zone(
            None,
            (height - 0.5, height + 0.5),
            row.label,
            (
                (-1, f"claimed or stated {number(row.claim)}"),
                (-1, f"proven at most {number(row.accounted)}"),
                (-1, f"shown at least {number(row.measured)}"),
            ),
        )
        for height, row in enumerate(rows)
    )
