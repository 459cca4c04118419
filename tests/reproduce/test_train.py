"""Tests of ``privdd.reproduce.train``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import DictConfig
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from privdd.cli.paper_rows import row_config
from privdd.reproduce import train
from privdd.reproduce import train as same_training_module
from privdd.reproduce.catalogue import SPEED, PaperEntry, ReproduceArguments, Sentence
from privdd.reproduce.figures import measure_losses, plot_curves, row_label
from privdd.reproduce.page import ENTRY_PAGE, reproduce_entry
from privdd.reproduce.results import DIRECTIONS, SCHEMA, collect_results
from privdd.reproduce.train import (
    PaperCell,
    copy_row,
    find_same_training,
    load_stored_row,
    paper_cells,
    train_cells,
)
from privdd.runtime import process_pool as processes
from privdd.runtime.seal import is_sealed, seal_folder
from privdd.runtime.task_messages import decode_value, encode_value
from tests.reporting.test_accessibility import look
from tests.reporting.test_page_layout import measure

# A training that two entries share is done once.


TINY = (
    "data=digits",
    "data.limit=120",
    "data.test_limit=60",
    "preset=smoke",
    "partition.clients=3",
    "model.width=4",
    "paper.terms.rounds=2",
    "algo=fedavg",
)


def cell(experiment: str, *more: str) -> PaperCell:
    return PaperCell("", "algo=fedavg", None, (f"experiment={experiment}", *TINY, *more))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = tmp_path_factory.mktemp("rows")
    assert train_cells([cell("fedrd_table1")], [0], rows / "fedrd_table1", 1, "first") == {}
    return rows


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and p.name != "point.json"
    }


def test_another_entry_copies_it_whole(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "train_row", lambda *_: pytest.fail("trained again"))
    assert train_cells([cell("fedrd_table3")], [0], rows / "fedrd_table3", 1, "second") == {}
    (first,), (second,) = (
        list((rows / name).glob("*-seed0-*")) for name in ("fedrd_table1", "fedrd_table3")
    )
    assert files(first) == files(second) and "training.json" in files(first)


def test_a_copy_that_is_cut_off_is_no_finished_row(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    (source,) = (rows / "fedrd_table1").glob("*-seed0-*")
    # of the last file; copytree keeps its own
    monkeypatch.setattr(same_training_module.shutil, "copy2", full)
    with pytest.raises(OSError, match="No space left"):
        copy_row(source, tmp_path / "row")
    assert (tmp_path / "row" / "ledger.json").is_file()
    assert not is_sealed(tmp_path / "row")


@pytest.mark.parametrize(
    ("seed", "more"),
    [(2, ()), (0, ("algo.lr=0.01",)), (0, ("data.limit=110",)), (0, ("capture.clients=all",))],
    ids=str,
)
def test_other_trainings_are_not_taken_for_it(rows: Path, seed: int, more: tuple[str, ...]) -> None:
    assert find_same_training(cell("fedrd_table3").overrides, 0, rows) is not None
    assert find_same_training(cell("fedrd_table3", *more).overrides, seed, rows) is None


def test_a_setting_that_has_another_default_today_is_another_row(
    rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same words typed, other numbers: the finished row is neither shown nor gone on with."""
    before = cell("fedrd_table1").folder_name(0)
    assert (rows / "fedrd_table1" / before / "training.json").is_file()

    def today(overrides: Sequence[str], seed: int = 0) -> DictConfig:
        config = row_config(overrides, seed)
        config.algo.lr = 0.04
        return config

    for module in (train, same_training_module):
        monkeypatch.setattr(module, "row_config", today)
    assert (
        cell("fedrd_table1").folder_name(0) != before
        and find_same_training(cell("fedrd_table1").overrides, 0, rows) is None
    )


def test_a_row_that_kept_the_messages_of_all_clients_serves(rows: Path) -> None:
    cells = [cell("fedrd_table1", "capture.clients=all")]
    assert train_cells(cells, [1], rows / "fedrd_table1", 1, "all") == {}
    assert find_same_training(
        cell("fedrd_table3").overrides, 1, rows
    ) == rows / "fedrd_table1" / cells[0].folder_name(1)


@pytest.mark.parametrize("written", ["", "[]", "{}", json.dumps({"config": 3})])
def test_a_damaged_or_unfinished_neighbour_is_passed_over(tmp_path: Path, written: str) -> None:
    row = tmp_path / "fedrd_table1" / "row"
    row.mkdir(parents=True)
    (row / "training.json").write_text("{}")
    (row / "manifest.json").write_text(written)
    assert find_same_training(cell("fedrd_table3").overrides, 0, tmp_path) is None


def test_a_row_that_is_not_finished_is_not_copied(rows: Path, tmp_path: Path) -> None:
    (row,) = (rows / "fedrd_table1").glob("*-seed0-*")
    for name, held in files(row).items():
        if name != "training.json":
            (tmp_path / "rows/fedrd_table1/row" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "rows/fedrd_table1/row" / name).write_bytes(held)
    assert find_same_training(cell("fedrd_table3").overrides, 0, tmp_path / "rows") is None


# A row is shown from its folder only where it was trained to its end.


def test_a_row_without_a_model_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = PaperCell("c", "algo=fedavg", None, ())
    progress = SimpleNamespace(diverged=None)
    monkeypatch.setattr(PaperCell, "folder_name", lambda self, seed: "row")
    monkeypatch.setattr(
        train, "build_row_experiment", lambda overrides, seed: SimpleNamespace(plan=None)
    )
    monkeypatch.setattr(train, "load_checkpoint", lambda folder, plan: progress)
    assert load_stored_row(cell, 0, tmp_path) is None  # not begun
    (tmp_path / "row").mkdir()
    (tmp_path / "row" / "training.json").write_text("{}")
    assert load_stored_row(cell, 0, tmp_path) is None  # cut off before its seal
    seal_folder(tmp_path / "row")
    assert load_stored_row(cell, 0, tmp_path) is not None
    progress.diverged = 3
    assert load_stored_row(cell, 0, tmp_path) is None


# Training the rows of an entry: killed and gone on with, failing rows, rows in two columns, side by
# side.


TINY_ROWS = (
    "data=digits",
    "data.limit=120",
    "data.test_limit=60",
    "partition.clients=3",
    "model.width=4",
    "paper.terms.rounds=2",
    "algo.matching.iterations=2",
    "algo.server.epochs=2",
)
PAIR = ("algo=feddm algo.rho=3", "algo=feddm algo.rho=10")
AHEAD = Sentence("a <b>bold</b> claim", 1, (PAIR,))
BEST = Sentence("rho = 5 is best", best=("algo=feddm algo.rho=5",), by=SPEED)
ENTRY = PaperEntry(
    "feddm.table4",
    "radius <script>alert(1)</script>",
    "feddm_table4",
    overrides={"small": TINY_ROWS},
    sentences=(AHEAD, BEST),
)


def run(out: Path, entry: PaperEntry = ENTRY, seeds: tuple[int, ...] = (0, 1)) -> dict:
    found, page, failed = reproduce_entry(
        entry, ReproduceArguments(entry.name, "small", seeds, 1, out)
    )
    assert page.name == ENTRY_PAGE and json.loads(
        (page.parent / "results.json").read_text()
    ) == json.loads(json.dumps(found.as_json()))
    return {**found.as_json(), "failures": failed}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    out = tmp_path_factory.mktemp("whole")
    return out, run(out)


KILLED = """
import sys
from pathlib import Path
from tests.reproduce.test_train import run
run(Path(sys.argv[1]))
"""


@pytest.mark.nightly
def test_killed_and_repeated_it_ends_in_the_same_numbers(
    whole: tuple[Path, dict], tmp_path: Path
) -> None:
    """Killed once the first row is finished; that row is not touched again."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": "."},
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 600
    while (
        not (finished := sorted(tmp_path.glob("small/rows/*/*/training.json")))
        and time.monotonic() < deadline
    ):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert finished and len(list(tmp_path.glob("small/rows/*/*/training.json"))) < 6
    written = {path: path.stat().st_mtime_ns for path in finished}
    assert run(tmp_path) == whole[1]
    assert {path: path.stat().st_mtime_ns for path in finished} == written
    assert len(list(tmp_path.glob("small/rows/*/*/training.json"))) == 6


@pytest.mark.nightly
def test_numbers_are_those_of_the_trainings(whole: tuple[Path, dict]) -> None:
    """Mean, spread, bytes and rounds to target, by hand from the files of each training."""
    out, found = whole
    (column,) = found["columns"]
    for row in column["rows"]:
        files = [
            json.loads(p.read_text())
            for p in out.glob("small/rows/*/*/training.json")
            if _row(p.parent) == row["row"]
        ]
        ends = sorted(f["accuracy"] for f in files)
        assert len(ends) == 2 and row["mean"] == pytest.approx(sum(ends) / 2)
        assert row["spread"] == pytest.approx(abs(ends[1] - ends[0]) / 2**0.5)
        assert row["uploaded"][-1] == pytest.approx(
            sum(f["uploaded_bytes_per_client"] for f in files) / 2
        )
        assert row["downloaded"][-1] == pytest.approx(
            sum(f["downloaded_bytes_per_client"] for f in files) / 2
        )
        assert (
            sorted(row["uploaded"]) == row["uploaded"]
            and len(row["uploaded"]) == len(row["curve"]) == 2
        )
        first = next((i for i, v in enumerate(row["curve"]) if v >= column["target"]), None)
        assert row["rounds_to_target"] == (None if first is None else first + 1)
        assert row["bytes_to_target"] == (None if first is None else row["uploaded"][first])
    assert [row["paper"] for row in column["rows"]] == [69.15, 69.66, 69.32]
    first, second = column["sentences"]
    assert first["says"] == AHEAD.says and first["settings"] and first["code"]
    assert [(one["better"], one["worse"]) for one in first["pairs"]] == [PAIR]
    assert [one["better"] for one in second["pairs"]] == ["algo=feddm algo.rho=5"] * 2
    speeds = {row["row"]: sum(row["curve"]) / len(row["curve"]) for row in column["rows"]}
    for pair in second["pairs"]:
        gain = speeds[pair["better"]] - speeds[pair["worse"]]
        assert pair["gain"] == pytest.approx(gain)


def _row(folder: Path) -> str:
    words = json.loads((folder / "manifest.json").read_text())["command"]
    return " ".join(word for word in words if word == "algo=feddm" or word.startswith("algo.rho="))


def test_the_sheet_names_what_is_not_the_papers(whole: tuple[Path, dict]) -> None:
    sheet = {one["key"]: one for one in whole[1]["fidelity"]}
    assert (sheet["data.name"]["ours"], sheet["data.name"]["paper"]) == ("digits", "cifar10")
    assert (sheet["algo.rounds"]["ours"], sheet["algo.rounds"]["paper"]) == (2, 20)
    assert (sheet["model.width"]["ours"], sheet["model.width"]["paper"]) == (4, 128)
    assert "algo.model.width" not in sheet and "algo.rho" not in sheet and "seed" not in sheet
    directions = {says for _, says in DIRECTIONS}
    assert {one["direction"] for one in sheet.values()} <= {*directions, "unknown"}
    assert whole[1]["uneven"] == [] and whole[1]["schema"] == SCHEMA


class Reader(HTMLParser):
    """Tags that are open, and the words outside of them."""

    def __init__(self) -> None:
        super().__init__()
        self.open = []
        self.tags = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.add(tag)
        if tag not in ("meta", "link", "img", "br", "use", "path", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("use", "path", "rect"):
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.nightly
def test_the_surrogate_and_the_radius_are_those_of_the_stored_rows(
    whole: tuple[Path, dict],
) -> None:
    """At distance 0 the loss on records is that of the model which the server had sent last, by
    hand."""
    out = whole[0]
    made = paper_cells(ENTRY, "small")
    row = load_stored_row(made[0], 0, out / "small/rows" / ENTRY.experiment)
    assert row is not None
    last = row.progress.snapshots[1]
    far, values = measure_losses(row)
    shard = row.experiment.shards[row.experiment.plan.victim].train
    logits = functional_call(row.model, dict(last.broadcast["model"]), (shard.x,))
    assert (
        values[0, :, 0] == pytest.approx(float(cross_entropy(logits, shard.y)), rel=1e-4)
        and far[-1] == 2 * 3.0
    )
    found, page, _ = reproduce_entry(
        replace(ENTRY, also=("surrogate", "images by round", "radius")),
        ReproduceArguments(ENTRY.name, "small", (0, 1), 1, out),
    )
    near, radius = found.tables
    assert [line[0] for line in near.rows] == [row_label(cell.row) for cell in made] and [
        line[0] for line in radius.rows
    ] == ["3", "5", "10"]
    assert (
        len(found.plots) == 6 and f"{100 * found.columns[0].rows[0].mean:.1f}" in radius.rows[0][2]
    )
    figures = {path.name for path in (page.parent / "figures").iterdir()}
    assert {
        f"{plot.name}.svg" for plot in found.plots
    } <= figures and "The surrogate within the ball" in page.read_text()
    for path in [
        page.parent / "figures" / f"{plot.name}.{end}"
        for plot in found.plots
        for end in ("svg", "png")
    ]:
        path.unlink()  # the entry itself has none of these


@pytest.mark.extra("browser", "axe_core")
def test_a_browser_lays_the_page_out_and_axe_finds_nothing_serious(
    whole: tuple[Path, dict], tmp_path: Path
) -> None:
    reproduce_entry(ENTRY, ReproduceArguments(ENTRY.name, "small", (0, 1), 1, whole[0]))
    text = (whole[0] / "small" / ENTRY.name / ENTRY_PAGE).read_text(encoding="utf-8")
    for width, values in measure(text, tmp_path).items():
        assert values["over"] <= 0 and values["broken"] == 0 and values["rows"] <= 200, (
            width,
            values,
        )
    assert [
        one for one in look(text, tmp_path, dark=True)["bad"] if one[0] in ("serious", "critical")
    ] == []


def test_the_page_is_whole_and_escaped(whole: tuple[Path, dict]) -> None:
    text = (whole[0] / "small" / ENTRY.name / ENTRY_PAGE).read_text()
    reader = Reader()
    reader.feed(text)
    assert reader.open == [] and "script" not in reader.tags and "b" not in reader.tags
    assert ENTRY.shows in reader.text and AHEAD.says in reader.text and "69.66" in reader.text
    assert "scale=small seeds=0,1" in reader.text
    names = {p.name for p in (whole[0] / "small" / ENTRY.name / "figures").iterdir()}
    assert {name for name in names if name.startswith(("rounds", "bytes"))} == {
        f"{kind}-alpha-0-5.{end}" for kind in ("rounds", "bytes") for end in ("svg", "png", "pdf")
    }


def test_figures_say_where_each_row_ends(whole: tuple[Path, dict]) -> None:
    found, _, _ = reproduce_entry(
        ENTRY, ReproduceArguments(ENTRY.name, "small", (0, 1), 1, whole[0])
    )
    rounds, sent = plot_curves(found.columns[0])
    for row in found.columns[0].rows:
        assert row_label(row.cell.row) == row.cell.row.removeprefix("algo=").replace("algo.", "")
        assert (
            f"{row_label(row.cell.row)}: ends at" in rounds.alt
            and f"{row_label(row.cell.row)}: ends at" in sent.alt
        )
    (axes,) = sent.figure.axes
    assert axes.lines[0].get_xdata()[-1] == found.columns[0].rows[0].uploaded[-1]


def test_rows_are_named_without_what_all_of_them_say() -> None:
    assert row_label("algo=virtual_data") == "fedavg on virtual data"
    assert (
        row_label("algo=virtual_data algo/inner=moon algo.virtual.ipc=50")
        == "moon on virtual data virtual.ipc=50"
    )
    assert row_label("algo=fedfed algo/base=scaffold") == "fedfed on scaffold"
    assert row_label("algo=feddm model=convnet algo.ipc=3") == "feddm model=convnet ipc=3"


def test_a_row_that_fails_is_named_and_does_not_stop_the_others(tmp_path: Path) -> None:
    """More clients than FedDM can be dealt to at seed 0 fail; the page says so, and the other
    entry's rows stand."""
    broken = PaperEntry(
        ENTRY.name, "x", ENTRY.experiment, overrides={"small": (*TINY_ROWS, "data.limit=4")}
    )
    found = run(tmp_path, broken, (0,))
    rows = found["columns"][0]["rows"]
    assert found["failures"] == 3 and all(
        "\n" not in row["failed"]["0"] and row["mean"] is None for row in rows
    )
    assert all(one["missing"] for one in found["columns"][0]["sentences"])


def test_the_same_training_in_two_columns_is_done_once_and_travels_to_workers(
    whole: tuple[Path, dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What workers would be sent is packed and unpacked here; their pool has tests of its own."""
    asked: list[tuple[int, int]] = []

    def sent_and_run(
        fn: Callable, work: Sequence, *, workers: int, threads: int, retries: int
    ) -> Iterator:
        asked.append((workers, threads))
        for item in work:
            there, thing = decode_value(encode_value((fn, item)))
            yield decode_value(encode_value(there(thing)))

    monkeypatch.setattr(processes, "process_map", sent_and_run)
    made = paper_cells(ENTRY, "small")[:2]
    twice = [*made, *(replace(cell, column="again") for cell in made)]
    assert train_cells(twice, (0,), tmp_path / "rows", 8, "two") == {} and asked == [(2, 1)]
    assert len(list(tmp_path.glob("rows/*/training.json"))) == 2
    found = collect_results(twice, (0,), tmp_path / "rows", False, {})
    by_row = {row["row"]: row["by_seed"]["0"] for row in whole[1]["columns"][0]["rows"]}
    assert [row.accuracies for row in found] == [(by_row[cell.row],) for cell in twice]
