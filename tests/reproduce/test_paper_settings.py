"""preset=paper is the paper: what every row has is what the paper prints, or stands in the list of
deviations."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from omegaconf import OmegaConf

from privdd.cli.compose import config_dir, group_choices
from privdd.cli.paper_block import paper_block
from privdd.cli.paper_rows import find_differing_terms, row_terms, stated_difference
from privdd.reproduce import code_digest
from privdd.reproduce.catalogue import find_entry, paper_details
from privdd.reproduce.code_digest import definition_digest, line_staleness
from privdd.reproduce.results import lasting_differences
from tests.configs.experiment_terms import rows_of
from tests.reproduce.paper_settings import (
    SELECTORS,
    PaperRow,
    compare_settings,
    rows_of_experiment,
    rows_of_paper,
)


@cache
def made(paper: str) -> list[PaperRow]:
    return rows_of_paper(paper)


@cache
def made_of(experiment: str) -> list[PaperRow]:
    return rows_of_experiment(experiment)


@pytest.mark.nightly
@pytest.mark.parametrize("paper", sorted(paper_details()))
def test_every_row_has_the_papers_settings_or_a_listed_deviation(paper: str) -> None:
    details = paper_details()[paper]
    assert compare_settings(details, made(paper)) == []
    for one in details["printed"]:
        assert one["where"] and one["settings"] and {*one} <= SELECTORS | {"where", "settings"}
    for one in details["deviations"]:
        assert (
            one["what"]
            and one["paper"]
            and one["direction"]
            and {*one} <= SELECTORS | {"what", "paper", "direction", "settings", "about", "digest"}
        )
        is_missing = one["direction"] == "missing"  # of what is built nowhere
        assert "settings" in one or bool(one.get("about")) != is_missing, one["what"]


@pytest.mark.nightly(
    cases=[
        "feddm-feddm_figure2-algo=fednova-model.width-64",
        "feddm-feddm_figure3-algo=feddm algo.start=noise privacy=aggregate_clip "
        "privacy.noise_multiplier=1-privacy.clip_norm-2.0",
        "fedrd-fedrd_table1-algo=fedrd-algo.projection.width-8",
    ]
)
@pytest.mark.parametrize(
    ("paper", "experiment", "row", "key", "value"),
    [
        ("feddm", "feddm_table2", "algo=feddm", "algo.server.lr", 0.02),
        # listed with another value
        ("feddm", "feddm_table2", "algo=feddm", "algo.matching.lr", 0.2),
        ("feddm", "feddm_table2", "algo=fedavg", "algo.batch_size", 128),
        (
            "feddm",
            "feddm_figure3",
            "algo=feddm algo.start=noise privacy=aggregate_clip privacy.noise_multiplier=1",
            "privacy.clip_norm",
            2.0,
        ),
        ("feddm", "feddm_figure4", "algo=feddm algo.ipc=5", "algo.matching.iterations", 500),
        ("feddm", "feddm_figure2", "algo=fednova", "model.width", 64),
        ("fedrd", "fedrd_table1", "algo=fedrd", "algo.projection.width", 8),
        (
            "fedrd",
            "fedrd_table2",
            "algo=fedavg privacy=dpsgd privacy.noise_multiplier=0.5 model=convnet_fedrd_instance",
            "privacy.noise_multiplier",
            0.6,
        ),
    ],
)
def test_a_planted_deviation_is_found(
    paper: str, experiment: str, row: str, key: str, value: Any
) -> None:
    rows = list(made_of(experiment))
    at = next(i for i, one in enumerate(rows) if one.row == row)
    config = rows[at].config.copy()
    OmegaConf.update(config, key, value)
    rows[at] = replace(rows[at], config=config)
    found = [
        line
        for line in compare_settings(paper_details()[paper], rows)
        if line.startswith(f"{experiment}, ")
    ]
    assert any(key.rpartition(".")[2] in line for line in found)


@pytest.mark.nightly
def test_a_deviation_that_is_none_any_more_is_found() -> None:
    details = dict(paper_details()["feddm"])
    row = {"paper": "p", "direction": "d", "experiments": ["feddm_table2"], "rows": ["algo=feddm"]}
    gone = [
        {"what": "epochs", "settings": {"algo.server.epochs": 400}, **row},
        {"what": "as printed", "settings": {"algo.server.epochs": 500}, **row},
    ]
    nowhere = [{"what": "of no row", **row, "rows": ["algo=nothing"]}]
    details["deviations"] = [*details["deviations"], *gone, *nowhere]
    found = compare_settings(details, made("feddm"))
    assert [line.partition(":")[0] for line in found] == ["of no row", "epochs", "as printed"]


def described_lines() -> list[Mapping[str, Any]]:
    parts = (
        details[part]
        for details in paper_details().values()
        for part in ("deviations", "equations")
    )
    return [line for part in parts for line in part if line.get("about")]


def test_a_line_about_code_names_code_that_is_there() -> None:
    for line in described_lines():
        assert len(definition_digest(line["about"])) == len(line["digest"]) == 8, line["what"]
    assert len(described_lines()) > 30


def test_no_line_is_older_than_the_code_that_it_is_about() -> None:
    """Whoever changes that code reads the line again, mends it if it is false now, and stores the
    new digest."""
    assert [*filter(None, map(line_staleness, described_lines()))] == []


def test_a_line_goes_stale_with_the_code_that_it_is_about(monkeypatch: pytest.MonkeyPatch) -> None:
    about = "privdd.distillation.virtual_images:gaussian_mmd"
    line = {"what": "a kernel", "about": about, "digest": definition_digest(about)}
    assert line_staleness(line) == "" and line_staleness({"what": "values", "settings": {}}) == ""
    moved = ast.unparse(code_digest._parse_module("privdd.distillation.virtual_images"))
    assert "exp" in moved
    without_kernel = ast.parse(moved.replace(".exp()", "").replace("torch.exp", "torch.abs"))
    monkeypatch.setattr(code_digest, "_parse_module", lambda module: without_kernel)
    definition_digest.cache_clear()
    assert about in line_staleness(line)
    definition_digest.cache_clear()


EQUATIONS = {"feddm": 15, "fedrd": 7, "fedfed": 17, "fedlgd": 7}


@pytest.mark.parametrize("paper", sorted(paper_details()))
def test_every_equation_is_the_papers_or_says_how_it_differs(paper: str) -> None:
    details = paper_details()[paper]
    equations = details["equations"]
    assert [one["number"] for one in equations] == [*range(1, EQUATIONS[paper] + 1)]
    for one in equations:
        assert one["what"] and one["is"] in ("same", "differs", "definition")
        assert (one["is"] == "definition") == ("about" not in one)
    differing = [one["about"] for one in equations if one["is"] == "differs"]
    listed = " ".join(f"{one['what']} {one.get('about', '')}" for one in details["deviations"])
    assert all(about in listed or "loss terms" in listed for about in differing)


def test_the_fidelity_sheet_shows_the_deviations_of_its_experiment() -> None:
    shown = {
        entry: {one["what"] for one in lasting_differences(find_entry(entry))}
        for entry in ("feddm.table2", "feddm.figure3")
    }
    for one in paper_details()["feddm"]["deviations"]:
        assert (one["what"] in shown["feddm.figure3"]) == (
            "feddm_figure3" in one.get("experiments", ["feddm_figure3"])
        )
        assert (one["what"] in shown["feddm.table2"]) == (
            "feddm_table2" in one.get("experiments", ["feddm_table2"])
        )


@cache
def odd_rows(name: str, column: str) -> dict[str, set[str]]:
    terms = {
        row: row_terms(config) for row, config in rows_of(name, column, "preset=paper").items()
    }
    return find_differing_terms(terms)


@pytest.mark.nightly(
    but=[
        "feddm_figure4",
        "feddm_table4",
        "fedfed_figure17",
        "fedfed_figure2c",
        "fedlgd_figure3b",
        "fedlgd_table6",
        "fedlgd_table7",
        "fedrd_table4",
    ]
)
@pytest.mark.parametrize("name", group_choices("experiment", [config_dir()]))
def test_rows_of_a_column_are_on_equal_terms_or_say_which_differ(name: str) -> None:
    """Every row can be built. At preset=paper: rounds, participation, network, data, local training
    and privacy; no reason without a cause."""
    paper = paper_block(name)
    used = set[tuple[str, str]]()
    for column in paper["columns"]:
        for term, rows in odd_rows(name, column).items():
            for row in rows:
                assert stated_difference(paper["differs"], term, row), (
                    f"{column}, {row}: {term} differs from the other rows without a word"
                )
        used |= {(term, row) for term, rows in odd_rows(name, column).items() for row in rows}
    for term, said in paper["differs"].items():
        for start in said:
            assert any(
                t == term and stated_difference({term: {start: "x"}}, t, row) for t, row in used
            ), f"{term} {start}: does not differ"
