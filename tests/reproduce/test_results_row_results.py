"""What trainings came to, from files written by hand: the round that counts, the bytes until then, who diverged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from privdd.reproduce.results import RowResult, collect_results
from privdd.reproduce.train import PaperCell
from tests.reporting.test_comparison_trained import training

CELL = PaperCell("c", "algo=fedavg", 50.0, ())
CURVES = {0: (0.25, 0.75, 0.5), 1: (0.25, 0.5, 0.5)}


@pytest.mark.parametrize(("best", "expected"), [(True, (0.75, 0.5)), (False, (0.5, 0.5))])
def test_the_last_round_counts_or_the_best_where_the_paper_reports_that(best: bool, expected: tuple[float, ...]) -> None:
    assert RowResult(CELL, best, CURVES).accuracies == expected


def test_the_target_is_reached_by_the_mean_of_the_seeds() -> None:
    row = RowResult(CELL, False, CURVES, uploaded=(10.0, 20.0, 30.0))
    assert [row.first_round(target) for target in (0.25, 0.5, 0.625, 0.7)] == [1, 2, 2, None]
    assert [row.bytes_to(target) for target in (0.25, 0.625, 0.7)] == [10.0, 20.0, None]


def finished(path: Path, seed: int, curve: list[float], diverged: int | None) -> None:
    training(path, seed, curve[-1])
    told = json.loads((path / "training.json").read_text())
    (path / "training.json").write_text(json.dumps(told | {"accuracy_by_round": curve, "diverged": diverged}))
    sent: dict[str, Any] = {f"{way}_bytes": [{"0": 100, "1": 300}] * len(curve) for way in ("uploaded", "downloaded")}
    (path / "manifest.json").write_text(json.dumps(sent))


def test_a_seed_that_ended_without_a_model_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PaperCell, "folder_name", lambda self, seed: str(seed))
    for seed, diverged in enumerate((None, 1)):
        finished(tmp_path / str(seed), seed, [0.25, 0.5], diverged)
    (row,) = collect_results([CELL], [0, 1, 2], tmp_path, False, {tmp_path / "2": "no memory"})
    assert (row.diverged, row.failed, [*row.curves]) == (1, {2: "no memory"}, [0, 1])
    assert row.uploaded == (400.0, 800.0) and row.downloaded == (200.0, 400.0)  # half of what training.json has for both rounds
