"""Rows that a scale is too small for: images that cannot leave their start, rows at chance, images
that did not move."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from privdd.cli.paper_rows import build_row_experiment
from privdd.reproduce.catalogue import find_entry
from privdd.reproduce.results import (
    SAME_IMAGES,
    RowResult,
    clipped_reach,
    is_at_chance,
    limit_rows,
)
from privdd.reproduce.train import PaperCell, merge_overrides, paper_cells

TINY = (
    "data=digits",
    "data.size=8",
    "data.limit=300",
    "data.test_limit=60",
    "partition.clients=3",
    "model.width=4",
    "paper.terms.rounds=2",
)


def cells(name: str, column: str, *more: str) -> dict[str, PaperCell]:
    made = [cell for cell in paper_cells(find_entry(name), "small") if cell.column == column]
    return {
        cell.row: replace(cell, overrides=merge_overrides(cell.overrides, TINY, more))
        for cell in made
    }


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("entry", "column", "row", "start"),
    [
        pytest.param(
            "feddm.figure3",
            "sigma 1",
            "algo=feddm algo.start=noise privacy=aggregate_clip privacy.noise_multiplier=1",
            math.sqrt(10 * 64),
        ),
        (
            "fedrd.table2",
            "epsilon 10",
            "algo=fedrd_printed algo.dpc=30 privacy.noise_multiplier=1",
            math.sqrt(30 * 64),
        ),
    ],
)
def test_clipped_steps_reach_as_far_as_all_of_them_together(
    entry: str, column: str, row: str, start: float
) -> None:
    for steps, told in ((20, True), (200, False)):
        cell = cells(entry, column, f"algo.matching.iterations={steps}")[row]
        reach = clipped_reach(build_row_experiment(cell.overrides, 0))
        assert reach == pytest.approx((steps, start))
        (limited,) = limit_rows([RowResult(cell, False, {0: (0.9,)})])
        assert limited.limit == (
            f"images can move by 20 and start at a norm of {start:.3g}" if told else ""
        )
    dpsgd = next(cell for cell in cells(entry, column).values() if "privacy=dpsgd" in cell.row)
    assert clipped_reach(build_row_experiment(dpsgd.overrides, 0)) is None


@pytest.mark.nightly
def test_a_row_whose_images_stay_is_limited_and_one_that_matches_nothing_is_not() -> None:
    made = cells("feddm.table3", "alpha 0.5", "algo.matching.iterations=20")
    made["algo=feddm algo.matching.iterations=0"] = cells(
        "feddm.table3", "alpha 0.5", "algo.matching.iterations=0"
    )["algo=feddm algo.matching.iterations=0"]
    made["longer"] = cells("feddm.table3", "alpha 0.5", "algo.matching.iterations=400")[
        "algo=feddm algo.start=real"
    ]
    results = limit_rows([RowResult(cell, False, {0: (0.9,)}) for cell in made.values()])
    rows = dict(zip(made, results, strict=True))
    moved = {name: row.distillation.moved for name, row in rows.items() if row.distillation}
    near = moved["algo=feddm algo.start=real"]
    assert moved["algo=feddm algo.matching.iterations=0"] == 0.0
    assert 0 < near < SAME_IMAGES < moved["algo=feddm algo.start=noise"]
    assert moved["longer"] > 2 * near
    assert "as they started" in rows["algo=feddm algo.start=real"].limit
    assert [rows[name].limit for name in ("algo=feddm algo.matching.iterations=0", "longer")] == [
        "",
        "",
    ]
    distillation = rows["longer"].distillation
    assert distillation is not None and distillation.loss_after < distillation.loss_before


def test_a_row_that_averages_models_has_no_distillation() -> None:
    cell = cells("feddm.table2", "MNIST, alpha 0.1")["algo=fedavg"]
    (row,) = limit_rows([RowResult(cell, False, {0: (0.9,)})])
    assert (row.distillation, row.limit) == (None, "")


def test_a_row_at_chance_is_found_as_often_as_its_interval_says() -> None:
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(400):  # a classifier that guesses, and one far above
        found += is_at_chance((rng.binomial(1000, 0.1, 3) / 1000).tolist(), 10, 1000)
        assert not is_at_chance((rng.binomial(1000, 0.2, 3) / 1000).tolist(), 10, 1000)
    assert stats.binomtest(found, 400, 0.95, alternative="less").pvalue > 0.001
    assert (
        is_at_chance([0.05, 0.06, 0.05], 10, 1000)
        and is_at_chance([0.11], 10, 300)
        and not is_at_chance([0.15], 10, 1000)
    )
