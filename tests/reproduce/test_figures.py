"""What entries show beside accuracies: distances by brute force, pictures by hand, and a small run
of FedLGD end to end."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from privdd.reporting.figures.style import SERIES
from privdd.reproduce.catalogue import load_catalogue
from privdd.reproduce.figures import (
    ANALYSES,
    _mean_of_known,
    first_images,
    format_spread,
    kernel_bandwidth,
    run_analyses,
    squared_mmd,
    tsne_map,
)
from privdd.reproduce.train import PaperCell, load_stored_row, merge_overrides, train_cells

TINY = (
    "experiment=fedlgd_table1",
    "preset=smoke",
    "data.size=8",
    "data.limit=40",
    "data.test_limit=20",
    "model.width=4",
    "paper.terms.rounds=1",
    "algo.global_iterations=2",
    "algo.virtual.ipc=2",
)


def cell(row: str, *more: str) -> PaperCell:
    return PaperCell("tiny", row, None, merge_overrides(TINY, row.split(), more))


def test_mmd_is_its_double_sum_and_knows_alike_from_apart() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(7, 3))
    b = rng.normal(size=(9, 3)) + 0.5

    def kernel(p: np.ndarray, q: np.ndarray) -> float:
        return float(np.exp(-((p - q) ** 2).sum() / (2 * 1.3**2)))

    same = [
        np.mean([kernel(p, q) for (i, p), (j, q) in product(enumerate(x), repeat=2) if i != j])
        for x in (a, b)
    ]
    across = np.mean([kernel(p, q) for p in a for q in b])
    assert squared_mmd(a, b, 1.3) == pytest.approx(sum(same) - 2 * across)
    big = rng.normal(size=(2, 400, 3))
    assert abs(squared_mmd(*big, 1.0)) < 0.005
    assert squared_mmd(big[0], big[1] + 50, 1.0) == pytest.approx(
        2 * 3**-1.5, abs=0.03
    )  # of each set with itself, in closed form
    assert kernel_bandwidth([np.array([[0.0], [1.0], [3.0]])]) == 2.0
    one = rng.normal(size=(1, 3))  # a client with a single record: nothing is known of its spread
    assert (
        math.isnan(squared_mmd(one, b, 1.3))
        and math.isnan(squared_mmd(a, one, 1.3))
        and _mean_of_known([math.nan, 2.0]) == 2.0
    )
    assert (format_spread([math.nan, 0.01, 0.03], 100), format_spread([math.nan])) == (
        "2.0 ± 1.4",
        "–",
    )


def test_points_of_two_sets_come_back_as_two_sets() -> None:
    rng = np.random.default_rng(1)
    near, far = tsne_map([rng.normal(size=(12, 4)), rng.normal(size=(15, 4)) + 40], seed=0)
    assert (near.shape, far.shape) == ((12, 2), (15, 2))
    assert max(np.ptp(near, axis=0).max(), np.ptp(far, axis=0).max()) < np.linalg.norm(
        near.mean(0) - far.mean(0)
    )


def test_the_first_picture_of_each_class_and_a_gap() -> None:
    x = torch.arange(4.0).view(4, 1, 1, 1)
    y = torch.tensor([2, 0, 2, 0])
    assert [None if one is None else float(one) for one in first_images(x, y, 3)] == [
        1.0,
        None,
        0.0,
    ]


@pytest.mark.nightly
def test_a_small_run_of_fedlgd_is_shown_in_every_way(tmp_path: Path) -> None:
    made = [
        cell("algo=fedlgd", "algo.contrast=10"),
        cell("algo=fedlgd algo.contrast=10"),
        cell("algo=fedlgd algo.contrast=0"),
    ]
    assert train_cells(made[1:], (0,), tmp_path, 1, "tiny") == {}
    tables, plots = run_analyses(
        ("domains", "regulariser", "virtual images"), made[1:], (0,), tmp_path
    )
    row = load_stored_row(made[1], 0, tmp_path)
    assert row is not None
    clients = len(row.experiment.shards)
    before, regulariser = tables
    assert len(before.rows) == clients * (clients - 1) // 2 and all(
        len(one) == 3 for one in before.rows
    )
    assert [one[0] for one in regulariser.rows] == ["with it (lambda 10)", "without"]
    assert [plot.name for plot in plots] == ["tsne-domains", "tsne-regulariser", "virtual-images"]
    for drawn in (plots[0].drawing, plots[1].drawing):
        assert (
            min(drawn.count(SERIES[0]), drawn.count(SERIES[1])) >= 10
        )  # points of both clients are seen
    images, labels = row.virtual_images(0)
    assert len(images) == len(labels) and torch.equal(
        images[0], row.progress.memories[0]["images/x"][0, 0]
    )
    assert len(plots[2].figure.axes) == 10 * (clients + 1) and all(
        plot.drawing.startswith("<?xml") for plot in plots
    )


def test_what_was_not_trained_is_left_out(tmp_path: Path) -> None:
    of_rows = [name for name in ANALYSES if name != "features"]  # which trains what it measures
    assert run_analyses(of_rows, [cell("algo=fedlgd")], (0,), tmp_path) == ([], [])


def test_entries_ask_for_what_there_is_and_each_is_asked_for() -> None:
    assert {name for entry in load_catalogue().values() for name in entry.also} == {*ANALYSES}
