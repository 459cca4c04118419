"""The leaderboard's page and tables say what the kept runs say."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from benchmarks.leaderboard import (
    KEPT,
    METHODS,
    OPEN,
    PAGE,
    PUBLIC,
    SEEDS,
    Cell,
    Done,
    kept,
    page,
    sentence,
    shown,
)
from privdd.cli.compose import compose_config
from privdd.reporting.export import split_markdown_tables
from privdd.reporting.frontier import public_data_of


def test_the_page_and_its_tables_are_made_from_the_kept_runs() -> None:
    text, files = split_markdown_tables(page(kept(KEPT)), PAGE.stem)
    assert PAGE.read_text(encoding="utf-8") == text and files
    assert {
        name: (PAGE.parent / "data" / name).read_text(encoding="utf-8") for name in files
    } == files
    assert sentence(kept(KEPT), "digits", 3, 0.5) in text


def test_the_readme_says_what_the_runs_say() -> None:
    runs = kept(KEPT)
    told = (PAGE.parents[1] / "README.md").read_text(encoding="utf-8")
    for epsilon in (1.0, 3.0):
        values = [
            runs[Cell("dp_head_scattering", "fashion_mnist", 0.5, 1, epsilon, seed)].accuracy
            for seed in SEEDS
        ]
        assert f"{shown(values).rpartition(' ')[0]} % at ε {epsilon:g}" in told


def test_every_run_spent_no_more_than_was_asked_for() -> None:
    runs = kept(KEPT)
    assert len(runs) == len(KEPT.read_text().splitlines()) > 20
    private = {cell: done for cell, done in runs.items() if cell.epsilon is not None}
    assert all(
        0.95 * cell.epsilon < done.spent <= cell.epsilon * (1 + 1e-6)
        for cell, done in private.items()
    )
    assert {cell.method for cell in runs.keys() - private.keys()} <= OPEN.keys()


def test_open_methods_stand_below_the_table_of_private_ones() -> None:
    cells = [Cell(name, "digits", 0.5, 3, None, seed) for name in OPEN for seed in SEEDS]
    runs = made({"dp_means": (0.7, 0.7, 0.7), "fedmd_dp": (0.8, 0.8, 0.8)})
    runs |= {cell: Done(cell, 0.9, None, 1.0) for cell in cells}
    text = page(runs)
    assert "`dp_means` and `dp_moments` are private variants: 90.0 ± 0.0 (3)." in text
    own = "`fedmd` without a guarantee 90.0 ± 0.0 (3), its private variant `fedmd_dp`"
    assert f"{own} 80.0 ± 0.0 (3) at ε 3. `dp_votes`" in text
    assert "| fedcgs |" not in text and "| fedmd_dp |" not in text
    assert "fedmd_dp" not in sentence(runs, "digits", 3, 0.5)


def test_mean_and_spread_are_numpys() -> None:
    values = [0.71, 0.74, 0.78]
    assert shown(values) == f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f} (3)"


def made(accuracies: dict[str, tuple[float, float, float]]) -> dict[Cell, Done]:
    cells = {
        Cell(name, "digits", 0.5, 3, 3.0, seed): a
        for name, of in accuracies.items()
        for seed, a in zip(SEEDS, of)
    }
    return {cell: Done(cell, accuracy, 3.0, 1.0) for cell, accuracy in cells.items()}


def test_the_sentence_names_the_best_of_each_kind_and_who_is_not_told_apart_from_it() -> None:
    runs = made(
        {
            "dp_means": (0.78, 0.80, 0.79),
            "dp_head": (0.80, 0.81, 0.79),
            "dp_moments": (0.6, 0.6, 0.6),
            "DP-FedAvg": (0.4, 0.4, 0.4),
            "dp_psg": (0.3, 0.3, 0.3),
            "dp_merf": (0.2, 0.2, 0.2),
            "dp_head, secagg": (0.9, 0.9, 0.9),
        }
    )
    said = sentence(runs, "digits", 3, 0.5)
    assert "without secure aggregation (" in said  # under it dp_head is more accurate
    assert (
        "model over a public map: `dp_head` 80.0 ± 1.0 % (not distinguished from `dp_means`); "
        in said
    )
    assert (
        "model without one: `DP-FedAvg` 40.0 ± 0.0 %; data set without one: `dp_psg` 30.0 ± 0.0 %."
        in said
    )
    assert sentence(runs, "mnist", 3, 0.5) == "" and "data set over" not in said
    fewer = {
        cell: done
        for cell, done in runs.items()
        if cell != Cell("dp_head", "digits", 0.5, 3, 3.0, 1)
    }
    assert "map: `dp_means` 79.0 ± 1.0 %; " in sentence(
        fewer, "digits", 3, 0.5
    )  # seeds are missing: it cannot be compared


@pytest.mark.parametrize("name", METHODS)
def test_public_data_is_what_the_settings_say(name: str) -> None:
    algo = OmegaConf.to_container(
        compose_config("train", ["preset=smoke", *METHODS[name]]).algo, resolve=True
    )
    assert bool(public_data_of({"algo": algo})) is (name in PUBLIC)


def test_one_client_has_all_records_and_no_skew() -> None:
    cell = Cell("dp_head_scattering", "fashion_mnist", 0.5, 1, 3.0, 0)
    config = compose_config("train", list(cell.overrides))
    assert (config.data.limit, config.data.test_limit, config.partition.clients) == (
        60_000,
        10_000,
        1,
    )
    text = page({cell: Done(cell, 0.9, 3.0, 1.0)})
    assert (
        text.count("## fashion_mnist, central") == 1
        and "- Published, not run here, model: scattering" in text
    )
    assert "fashion_mnist, 1 client" not in text


def test_a_line_that_was_cut_off_is_run_again(tmp_path: Path) -> None:
    (done,) = list(made({"dp_head": (0.8, 0.8, 0.8)}).values())[:1]
    whole = json.dumps(asdict(done))
    (tmp_path / "runs.jsonl").write_text(f"{whole}\n{whole[:50]}\n")
    assert kept(tmp_path / "runs.jsonl") == {done.cell: done}
