"""What can be read off a figure is what its curve says there."""

from __future__ import annotations

import numpy as np
import pytest

from privdd.reporting import plots
from privdd.reporting.figures import RocLine, StripRow, step_curve
from privdd.reporting.style import MOST
from privdd.reporting.wording import format_share


@pytest.fixture(scope="module")
def line() -> RocLine:
    rng = np.random.default_rng(0)
    members = np.arange(400) < 200
    return RocLine("<LiRA>", step_curve(members + rng.normal(size=400), members), step_curve(rng.normal(size=400), members))


def test_each_column_reads_the_step_of_its_middle(line: RocLine) -> None:
    zones, toggles = plots.roc_tooltips([line])
    assert [one.label for one in toggles] == ["<LiRA>", "control"]
    for zone in zones:
        assert zone.x is not None
        middle = (zone.x[0] * zone.x[1]) ** 0.5
        reached = line.curve.tpr[line.curve.fpr <= middle].max()  # the best of all thresholds within the rate
        assert zone.lines[0][1].startswith(f"<LiRA>: {format_share(float(reached))} (")
    assert zones[-1].x is not None and zones[-1].x[1] == pytest.approx(1)


def test_rounds_and_rows_have_a_zone_each() -> None:
    zones = plots.accuracy_tooltips({"a": [0.1, 0.2, 0.3], "b": [0.5]})
    assert [zone.head for zone in zones] == ["round 1", "round 2", "round 3"]
    assert [len(zone.lines) for zone in zones] == [2, 1, 1] and zones[2].marks == ((0, 3.0, 0.3),)
    assert len(plots.accuracy_tooltips({"a": [0.5] * 900})) == plots.ROUNDS
    (row,) = plots.epsilon_tooltips([StripRow("update", 0.9, float("inf"), None)])
    assert [text for _, text in row.lines] == ["claimed or stated 0.9", "proven at most ∞", "shown at least –"]


def test_more_curves_than_the_style_knows_have_no_zones(line: RocLine) -> None:
    assert plots.roc_tooltips([line] * MOST) == ((), ())
