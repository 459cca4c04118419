"""Tests of ``privdd.reporting.comparison``."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from privdd.report import main
from privdd.reporting.compared_settings import Setting, group_runs
from privdd.reporting.comparison import (
    CURVES,
    comparison_sentences,
    draw_comparison,
    print_training_table,
    read_training_record,
    write_comparison,
    write_training_table,
)
from privdd.reporting.export import TRAINING_COLUMNS, escape_latex, table_to_csv
from privdd.reporting.figures.epsilon_axis import EpsilonAxis
from privdd.reporting.figures.epsilon_strip import StripRow, draw_epsilon_strip
from privdd.reporting.figures.frontier_marks import FrontierPoint, draw_frontier
from privdd.reporting.run_record import RunRecord, read_run_record
from privdd.reporting.schema import load_findings, validate_findings
from privdd.reporting.summary import verdict_headline
from privdd.reporting.terminal import print_summary
from privdd.runtime.files import DamagedRun
from tests.conftest import SmallAudit
from tests.reporting.fixture import write_run
from tests.reporting.test_decision import UNREAD
from tests.reporting.test_decision import run as released
from tests.reporting.test_frontier import rates, record, setting

# Several runs: grouping over seeds, the frontier's numbers, tables that other programs read.


NOISES = (0.5, 2.0)
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("sweep")
    made = [
        write_run(
            root / f"{noise}-{seed}", algo="fedfed_dp", kind="consistent", noise=noise, seed=seed
        )
        for noise in NOISES
        for seed in SEEDS
    ]
    return [*made, write_run(root / "plain", algo="fedfed")]


@pytest.fixture(scope="module")
def compared(sweep: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_comparison(sweep, tmp_path_factory.mktemp("compared")).parent


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def test_runs_that_differ_by_seed_are_one_setting(sweep: list[Path]) -> None:
    made = group_runs([read_run_record(path) for path in sweep])
    assert [(s.method, len(s.runs)) for s in made] == [
        ("fedfed", 1),
        ("fedfed_dp", 3),
        ("fedfed_dp", 3),
    ]
    assert [s.label for s in made] == [
        "fedfed",
        "fedfed_dp noise_multiplier=0.5",
        "fedfed_dp noise_multiplier=2.0",
    ]


def test_frontier_csv_against_the_findings(sweep: list[Path], compared: Path) -> None:
    found = {row["setting"]: row for row in rows(compared / "frontier.csv")}
    for noise in NOISES:
        mine = [load_findings(path) for path in sweep if path.name.startswith(f"{noise}-")]
        accuracies = [f.utility.accuracy for f in mine]
        bounds = sorted(max(r.epsilon_shown or 0 for r in f.findings) for f in mine)
        row = found[f"noise_multiplier={noise}"]
        assert float(row["accuracy_mean"]) == pytest.approx(np.mean(accuracies))
        assert float(row["accuracy_std"]) == pytest.approx(np.std(accuracies, ddof=1))
        assert (
            float(row["epsilon_shown"]) == bounds[1]
            and float(row["epsilon_pld"]) == mine[0].privacy.epsilon.pld
        )
        assert row["seeds"] == "3"
    assert found[""]["epsilon_pld"] == "inf" and found[""]["accuracy_std"] == ""


def test_the_order_and_place_of_folders_change_nothing(
    sweep: list[Path], compared: Path, tmp_path: Path
) -> None:
    write_comparison([*reversed(sweep), sweep[0]], tmp_path)
    names = (
        "frontier.csv",
        "leaks.csv",
        "leaks.tex",
        "findings.csv",
        "figures/frontier.svg",
        "figures/roc.png",
    )
    assert all((compared / name).read_bytes() == (tmp_path / name).read_bytes() for name in names)


def said(*made: Setting) -> str:
    return " ".join(comparison_sentences(made)).replace("\u00a0", " ")


def test_each_setting_leads_with_what_its_own_page_says_first() -> None:
    """Also where the sample of one shows no rate that the others show."""
    coarse = setting(record(0, found=(rates(0.9, 0.75, resolvable=False),)), label="coarse")
    fine = setting(record(0, found=(rates(0.5, 0.5),)), label="fine")
    told = comparison_sentences([fine, coarse])
    for one in (fine, coarse):
        (sentence,) = (line for line in told if line.startswith(f"{one.label}: "))
        first = verdict_headline(one.runs[0].findings).sentences[0]
        assert sentence.removeprefix(f"{one.label}: ")[1:] == first[1:] and "can identify" in first


def test_settings_beyond_the_colours_of_the_figures_are_counted() -> None:
    settings = [
        setting(record(0, found=(rates(0.5, 0.5),)), label=f"setting {number}")
        for number in range(CURVES + 2)
    ]
    sentences = comparison_sentences(settings)
    assert sum(sentence.startswith("setting ") for sentence in sentences) == CURVES
    assert sentences[CURVES] == "2 more settings leak; their own pages say what."
    assert not any("more settings" in text for text in comparison_sentences(settings[:CURVES]))


def test_a_setting_without_a_leak_was_not_shown_to_leak_and_an_unread_one_is_not_tested() -> None:
    quiet = setting(record(0), label="quiet")
    unread = released([UNREAD], "unprotected", "inf").model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    silent = setting(RunRecord(Path("0"), validate_findings(unread)), label="silent")
    told = said(quiet, silent)
    assert "No attack was shown to beat chance in quiet." in told
    assert "Not tested: no membership attack had anything to read in silent." in told


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"delta": 1e-6}, "δ"),
        ({"unit": "client"}, "the unit of privacy"),
        ({"relation": "zero_out"}, "the neighbouring relation"),
    ],
)
def test_what_differs_between_epsilons_is_named_alone(other: dict[str, Any], name: str) -> None:
    assert f"The runs differ in {name}, so their ε cannot be compared." in said(
        setting(record(0)), setting(record(0, **other))
    )
    assert "cannot be compared" not in said(setting(record(0)), setting(record(1)))


def test_a_setting_looks_the_same_on_every_figure(tmp_path: Path) -> None:
    """Colour and, where both figures draw one, marker and dash, by the legends and the bars."""
    runs = [
        write_run(tmp_path / name, algo=name, kind="consistent", noise=0.4)
        for name in ("m0", "m1", "m2", "m3")
    ]
    made = group_runs([read_run_record(path) for path in reversed(runs)])
    looks: dict[str, set[tuple[Any, ...]]] = {}
    for plot in draw_comparison(made):
        for axes in plot.figure.axes:
            for handle, label in zip(*axes.get_legend_handles_labels()):
                line = (
                    handle[0]
                    if hasattr(handle, "lines") and not hasattr(handle, "get_color")
                    else handle
                )
                if (name := label.split(":")[0]) in {s.label for s in made}:
                    looks.setdefault(name, set()).add((line.get_color(), line.get_marker()))
    assert looks.keys() == {s.label for s in made}
    assert all(len(found) == 1 for found in looks.values()) and len(
        {*map(str, looks.values())}
    ) == len(made)


def test_the_command_compares_and_refuses(
    audited: Callable[[str], SmallAudit], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(audited(name).path) for name in ("fedavg", "fedavg_seed1")]
    capsys.readouterr()
    assert main([*runs, f"out={tmp_path / 'out'}"]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "2 settings compared: 2 unprotected." and last == str(
        tmp_path / "out" / "comparison.html"
    )
    (tmp_path / "file").write_text("")
    assert main([*runs, f"out={tmp_path / 'file' / 'x'}"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_epsilon_axis_orders_and_keeps_infinity_apart() -> None:
    axis = EpsilonAxis([0.03, 2.0, 45.0, None, np.inf])
    places = [axis.position_of(v) for v in (0.0, 0.03, 2.0, 45.0, np.inf)]
    assert places == sorted(places) and len(set(places)) == 5
    assert axis.position_of(10.0) - axis.position_of(1.0) == pytest.approx(1) and axis.position_of(
        np.inf
    ) > axis.position_of(10.0**axis.high)


def test_the_strip_draws_a_contradiction_and_only_that() -> None:
    def joined(row: StripRow) -> int:
        return sum(line.get_linewidth() == 2.2 for line in draw_epsilon_strip([row]).axes[0].lines)

    assert joined(StripRow("a", 1.0, 5.0, 3.0)) == 1 and joined(StripRow("a", 4.0, 5.0, 3.0)) == 0
    assert (
        joined(StripRow("a", 1.0, 2.0, 3.0)) == 2 and joined(StripRow("a", None, np.inf, 3.0)) == 0
    )


def test_the_frontier_stands_at_the_mean_with_the_range() -> None:
    points = [FrontierPoint("m", 1.0, (0.5, 0.7), 0.2, 0.4), FrontierPoint("m", 10.0, (0.8, 0.9))]
    figure = draw_frontier(points)
    drawn = figure.axes[0].containers
    assert np.allclose([one.lines[0].get_xydata()[0] for one in drawn], [[0, 0.6], [1, 0.85]])
    assert np.allclose(
        [one.lines[2][0].get_segments()[0][:, 1] for one in drawn], [[0.5, 0.7], [0.8, 0.9]]
    )


def test_tables_defuse_formulas_and_tex() -> None:
    assert table_to_csv(
        (["a"], [["=cmd()"], [float("inf")], [None], [0.1]])
    ) == "a\n'=cmd()\ninf\n\n0.1\n".replace("\n\n", '\n""\n')
    assert escape_latex("50% of a_b & {c} \\d") == r"50\% of a\_b \& \{c\} \textbackslash{}d"


def test_the_terminal_table_is_plain_in_a_pipe_and_survives_ascii(runs: dict[str, Path]) -> None:
    wide = io.StringIO()
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_summary(load_findings(runs["unprotected"]), wide)
    print_summary(load_findings(runs["contradiction"]), narrow, width=100)
    narrow.flush()
    ascii_text = narrow.buffer.getvalue().decode("ascii")
    assert (
        "\x1b" not in wide.getvalue()
        and "No proven guarantee" in wide.getvalue()
        and "∞" in wide.getvalue()
    )
    assert max(map(len, wide.getvalue().splitlines())) <= 132
    assert max(
        map(len, ascii_text.splitlines())
    ) <= 130 and "epsilon <= 0.9 is stated" in ascii_text.replace("\n", " ")


def test_where_a_run_was_computed_does_not_split_a_setting(tmp_path: Path) -> None:
    for seed, engine in ((0, "serial"), (1, "ray")):
        folder = write_run(tmp_path / engine, seed=seed)
        with (folder / "config.yaml").open("a") as file:
            file.write(f"engine: {{name: {engine}}}\ndata: {{root: /{engine}, size: 8}}\n")
    assert len(group_runs([read_run_record(tmp_path / name) for name in ("serial", "ray")])) == 1
    text = (tmp_path / "ray" / "config.yaml").read_text()
    (tmp_path / "ray" / "config.yaml").write_text(text.replace("size: 8", "size: 9"))
    labels = [
        s.label
        for s in group_runs([read_run_record(tmp_path / name) for name in ("serial", "ray")])
    ]
    assert labels == ["fedfed size=8", "fedfed size=9"]


# Trainings without an audit: the table over seeds, and folders that are no finished training.


def training(folder: Path, seed: int, accuracy: float, pld: object = 2.5) -> Path:
    folder.mkdir(parents=True)
    config = {
        "name": "fedavg",
        "seed": seed,
        "data": {"name": "digits"},
        "preset": {"name": "smoke"},
        "algo": {"lr": 0.1},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    result = {
        "accuracy": accuracy,
        "epsilon": {"pld": pld, "rdp": 3.5},
        "delta": 1e-5,
        "unit": "record",
        "relation": "zero_out",
        "uploaded_bytes_per_client": 800,
        "downloaded_bytes_per_client": 400,
    }
    (folder / "training.json").write_text(json.dumps(result))
    return folder


def test_seeds_of_one_setting_are_one_row(tmp_path: Path) -> None:
    paths = [
        training(tmp_path / str(seed), seed, accuracy) for seed, accuracy in enumerate([0.5, 0.7])
    ]
    written = write_training_table(paths, tmp_path)
    (row,) = csv.DictReader(written.open())
    assert tuple(row) == TRAINING_COLUMNS and row["method"] == "fedavg" and int(row["seeds"]) == 2
    assert float(row["accuracy_mean"]) == pytest.approx(0.6)
    assert (float(row["accuracy_min"]), float(row["accuracy_max"])) == (0.5, 0.7)
    assert (float(row["epsilon_pld"]), float(row["epsilon_rdp"])) == (2.5, 3.5)
    assert int(float(row["uploaded_bytes_per_client"])) == 800


def test_what_is_printed_names_both_ends(tmp_path: Path) -> None:
    paths = [
        training(tmp_path / str(seed), seed, accuracy) for seed, accuracy in enumerate([0.5, 0.7])
    ]
    out = io.StringIO()
    print_training_table(paths, out)
    assert all(part in out.getvalue() for part in ("Accuracy and proven epsilon", "2.5", "3.5"))
    assert any(part in out.getvalue() for part in ("0.6", "60"))


def test_the_largest_epsilon_of_the_seeds_is_told(tmp_path: Path) -> None:
    """They differ where a seed changes how many records a client has."""
    paths = [training(tmp_path / str(seed), seed, 0.5, pld) for seed, pld in enumerate([2.5, 4.75])]
    (row,) = csv.DictReader(write_training_table(paths, tmp_path).open())
    out = io.StringIO()
    print_training_table(paths, out)
    assert row["epsilon_pld"] == "4.75" and "4.75" in out.getvalue() and "2.5" not in out.getvalue()


@pytest.mark.parametrize("missing", ["accuracy", "epsilon", "delta", "unit"])
def test_an_unfinished_training_is_one_line(tmp_path: Path, missing: str) -> None:
    folder = training(tmp_path / "run", 0, 0.5)
    kept = json.loads((folder / "training.json").read_text())
    kept.pop(missing)
    (folder / "training.json").write_text(json.dumps(kept))
    with pytest.raises(DamagedRun, match="not a finished training") as caught:
        read_training_record(folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


def test_the_frontier_marks_public_data_trust_and_what_others_published() -> None:
    points = [
        FrontierPoint("m", 1.0, (0.5,), public=True),
        FrontierPoint("n", 10.0, (0.8,), trusted=True),
    ]
    axes = (figure := draw_frontier(points, published=[(3.0, 0.9)])).axes[0]
    marks = {
        line.get_marker(): line.get_xydata().round(3).tolist()
        for line in axes.lines
        if line.get_marker() in ("o", "s", "*") and line.get_linestyle() == "None"
    }
    assert marks == {"o": [[0, 0.5]], "s": [[1, 0.8]], "*": [[0.477, 0.9]]}
    assert [
        line.get_fillstyle()
        for line in axes.lines
        if line.get_marker() == "o" and line.get_linestyle() == "None"
    ] == ["left"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "m",
        "n",
        "public data",
        "the server sees less than uploads",
        "published by others",
    ]
    plain = draw_frontier([FrontierPoint("m", 1.0, (0.5,))])
    assert [text.get_text() for text in plain.legends[0].get_texts()] == ["m"]
