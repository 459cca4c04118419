"""Tests of ``privdd.reproduce.page``."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privdd.reproduce import page, train
from privdd.reproduce import page as overview
from privdd.reproduce import page as reproduction
from privdd.reproduce.__main__ import main
from privdd.reproduce.catalogue import find_entry, load_catalogue, parse_arguments
from privdd.reproduce.page import (
    FAILS_HERE,
    HOLDS_HERE,
    NOT_DECIDED,
    NOT_RUN,
    NOT_RUN_YET,
    NOTHING_TO_COMPARE,
    STALE,
    _page_tone,
    collect_lines,
    column_headline,
    count_verdicts,
    current_digests,
    run_entry,
    write_overview,
)
from privdd.reproduce.results import (
    CANNOT_TELL,
    HOLDS,
    HOLDS_IN_MEAN,
    REVERSED,
    REVERSED_IN_MEAN,
    OrderStatement,
    RowPair,
)
from privdd.reproduce.results import REVERSED_IN_MEAN as BEHIND
from privdd.runtime import progress

# The page about all entries: each verdict from made results, and every entry of the catalogue on
# it.


CHANCES = {HOLDS: 0.02, REVERSED: 0.98, HOLDS_IN_MEAN: 0.3, BEHIND: 0.7, CANNOT_TELL: 0.5}


def pairs(*found: tuple[str, float]) -> list[dict[str, Any]]:
    return [
        {
            "better": "algo=feddm",
            "worse": "algo=fedavg",
            "gain": gain,
            "p": CHANCES[kind],
            "verdict": kind,
            "says": "FedDM is best",
            "limit": "x" if kind == CANNOT_TELL else "",
        }
        for kind, gain in found
    ]


def column(
    name: str, leader: str | None = None, text: tuple[tuple[str, float], ...] = (), failed: int = 0
) -> dict[str, Any]:
    lead = leader and {
        "verdict": leader,
        "p": CHANCES[leader],
        "pairs": pairs((leader, 0.3), (leader, 0.1)),
    }
    row = {"failed": {str(seed): "why" for seed in range(failed)}, "diverged": 0}
    kendall = {"tau": 0.5, "agree": 2, "pairs": 3} if leader else None
    made = {"commits": ["c" * 40], "steps": "T = 20"}
    return {
        "column": name,
        "leader": lead,
        "kendall": kendall,
        "text": pairs(*text),
        "rows": [row],
    } | made


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return tmp_path / "small"


def stored(folder: Path, name: str, *columns: dict[str, Any], stand_in: bool = False) -> None:
    (folder / name).mkdir(parents=True)
    differs = [{"key": "data.name" if stand_in else "data.limit"}]
    today = current_digests(find_entry(name), folder.name, "cpu")
    marked = [
        {
            "settings": next(iter(today.values()))[0],
            **one,
            "column": next(iter(today)) if one["column"] == "a" else one["column"],
        }
        for one in columns
    ]
    result = {
        "columns": marked,
        "fidelity": differs,
        "command": f"python -m privdd.reproduce {name}",
        "device": "cpu",
    }
    (folder / name / "results.json").write_text(json.dumps(result))


@pytest.mark.nightly
def test_each_verdict(small: Path) -> None:
    kinds = [column(kind, kind) for kind in (HOLDS, REVERSED, HOLDS_IN_MEAN, BEHIND, CANNOT_TELL)]
    texts = [
        ((HOLDS, 0.2), (HOLDS, 0.1)),
        ((HOLDS, 0.2), (REVERSED, -0.1)),
        ((HOLDS, 0.2), (HOLDS_IN_MEAN, 0.1)),
        (),
        ((CANNOT_TELL, -0.2), (BEHIND, -0.1)),
    ]
    stored(small, "feddm.table2", *kinds)
    stored(
        small,
        "feddm.figure3",
        *(column(str(at), text=text) for at, text in enumerate(texts)),
        stand_in=True,
    )
    found = [line for line in collect_lines(small) if line.page]
    assert [line.verdict for line in found] == [
        HOLDS_HERE,
        FAILS_HERE,
        NOT_DECIDED,
        NOT_DECIDED,
        CANNOT_TELL,
        HOLDS_HERE,
        FAILS_HERE,
        NOT_DECIDED,
        NOTHING_TO_COMPARE,
        CANNOT_TELL,
    ]
    assert (
        count_verdicts(found)
        == "holds: 2, does not hold: 2, not decided: 3, cannot be told at this scale: 2, "
        "nothing to compare: 1; 10 of them of other settings than today's"
    )
    assert (
        found[4].detail.endswith("; x")
        and found[9].detail.endswith("; x")
        and found[0].made == "T = 20; scale=small; commit ccccccc"
    )
    assert (
        found[0].detail
        == "+10.0 points to the best of the others, p 0.02; 2 of 3 pairs as in the paper"
    )
    assert (found[0].statement, found[5].statement) == (
        "feddm ahead of all others",
        "FedDM is best",
    )
    assert found[6].detail == "-10.0 points, the least of 2"
    assert [line.column.endswith("(on a stand-in)") for line in found] == [False] * 5 + [True] * 5


def test_what_is_missing_is_said(small: Path) -> None:
    stored(small, "feddm.table2", column("a", HOLDS, failed=2))
    page = write_overview(small).read_text()
    found = {line.entry: line for line in collect_lines(small)}
    assert set(found) == set(load_catalogue()) and all(
        f">{name}<" in page for name in load_catalogue()
    )
    assert "2 trainings failed" in found["feddm.table2"].detail and "2 trainings failed" in page
    waiting = [name for name, line in found.items() if line.verdict == NOT_RUN_YET]
    assert waiting == [
        name
        for name, entry in load_catalogue().items()
        if entry.is_trainable and name != "feddm.table2"
    ]
    for name, entry in load_catalogue().items():
        if not entry.is_trainable:
            assert found[name].verdict == NOT_RUN and entry.why in found[name].detail
    assert (
        f"not run yet: {len(waiting)}" in page.lower()
        and 'href="feddm.table2/reproduction.html"' in page
    )


def test_seeds_without_a_model_and_data_that_stand_in_are_said(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in that the experiment itself names, at every scale, beside the one that a scale
    takes."""
    made = column("a", HOLDS)
    made["rows"][0]["diverged"] = 1
    stored(small, "feddm.table2", made)
    (line,) = (one for one in collect_lines(small) if one.page)
    assert line.detail.endswith("; 1 diverged") and not line.column.endswith("(on a stand-in)")
    honest = overview.paper_block
    monkeypatch.setattr(
        overview, "paper_block", lambda name: {**honest(name), "stand_in": "x for y"}
    )
    (line,) = (one for one in collect_lines(small) if one.page)
    assert line.column.endswith("(on a stand-in)")


def test_how_far_it_is_is_said(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To compose all rows takes a minute."""
    monkeypatch.setattr(progress, "HEARTBEAT", 0.0)
    write_overview(small)
    names = [*load_catalogue()]
    said = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in said] == [
        f"overview: {at + 1}/{len(names)}" for at in range(len(names))
    ]
    assert [line.rsplit(", ", 1)[1] for line in said] == names


def test_a_result_of_earlier_settings_is_marked_as_stale(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("feddm.table2", "feddm.figure3"):
        stored(small, name, column("a", HOLDS))
    file = small / "feddm.figure3" / "results.json"
    unmarked = json.loads(file.read_text())
    del (
        unmarked["columns"][0]["settings"],
        unmarked["columns"][0]["commits"],
    )  # as an earlier version wrote it
    file.write_text(json.dumps(unmarked))
    found = {line.entry: line for line in collect_lines(small)}
    assert [
        (found[name].verdict, found[name].stale) for name in ("feddm.table2", "feddm.figure3")
    ] == [(HOLDS_HERE, ""), (HOLDS_HERE, STALE)]
    assert (
        "commit unknown" in found["feddm.figure3"].made
        and "run it again" in write_overview(small).read_text()
    )

    honest = train.row_config

    def tomorrow(overrides: Any, seed: int = 0) -> Any:
        config = honest(overrides, seed)
        config.algo.rounds = 77  # no override types it
        return config

    monkeypatch.setattr(train, "row_config", tomorrow)
    assert {line.entry: line for line in collect_lines(small)}["feddm.table2"].stale == STALE


def test_a_row_that_no_statement_compares_may_be_newer() -> None:
    """FedAvgM and FedAdam in FedDM's figure 2; a row that one compares may not."""
    entry = find_entry("feddm.figure2")
    cells = {cell.row: cell for cell in train.paper_cells(entry, "small")}
    newer = {"algo=fedavgm", "algo=fedadam"}
    (today,) = current_digests(entry, "small", "cpu").values()
    assert train.settings_digest([cell for row, cell in cells.items() if row not in newer]) in today
    assert train.settings_digest([*cells.values()]) in today
    assert (
        train.settings_digest(
            [cell for row, cell in cells.items() if row not in {*newer, "algo=fedprox"}]
        )
        not in today
    )


def test_all_ends_in_it_even_where_trainings_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fake(entry: Any, wish: Any) -> tuple[None, Path, int]:
        asked.append(wish.name)
        return None, tmp_path, int(entry.name == "feddm.table2")

    monkeypatch.setattr(reproduction, "reproduce_entry", fake)
    monkeypatch.setattr(reproduction, "print_result", lambda *_: None)
    assert reproduction.run_all(parse_arguments(["all", f"out={tmp_path}"])) == 1
    assert asked == [name for name, entry in load_catalogue().items() if entry.is_trainable]
    assert (tmp_path / "small" / "index.html").is_file()
    assert main(["overview", f"out={tmp_path}"]) == 0


# The one sentence about a column, its colour, and the status of the command.


PAIRS = {
    HOLDS: (0.2, 0.01),
    HOLDS_IN_MEAN: (0.2, 0.3),
    REVERSED_IN_MEAN: (-0.2, 0.7),
    REVERSED: (-0.2, 0.99),
}


def column_reproduction(leader: str = "", *said: str) -> Any:
    pairs = {kind: RowPair("algo=feddm", "algo=fedavg", *PAIRS[kind]) for kind in PAIRS}
    return SimpleNamespace(
        leader=OrderStatement((pairs[leader],)) if leader else None,
        said=tuple(("x", pairs[kind]) for kind in said),
    )


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (HOLDS, "holds (p 0.01)"),
        (HOLDS_IN_MEAN, "not decided, ahead in the mean (p 0.3)"),
        (REVERSED_IN_MEAN, "not decided, behind in the mean (p 0.7)"),
        (REVERSED, "does not hold (p 0.99)"),
    ],
)
def test_each_verdict_in_words(kind: str, said: str) -> None:
    assert column_headline(column_reproduction(kind)) == f"feddm ahead of all others: {said}"


def test_comparisons_of_the_text_are_counted_by_verdict() -> None:
    assert (
        column_headline(column_reproduction("", HOLDS, HOLDS_IN_MEAN, REVERSED))
        == "3 comparisons that the text makes; holds: 1, does not hold: 1, not decided: 1"
    )
    assert column_headline(column_reproduction()) == "the paper prints no numbers to compare with"


@pytest.mark.parametrize(
    ("leaders", "tone"),
    [
        ([HOLDS, HOLDS], "consistent"),
        ([HOLDS, HOLDS_IN_MEAN], "plain"),
        ([HOLDS, REVERSED], "contradiction"),
        ([REVERSED_IN_MEAN], "plain"),
        ([""], "plain"),
    ],
)
def test_a_page_is_green_only_where_all_holds(leaders: list[str], tone: str) -> None:
    assert (
        _page_tone(SimpleNamespace(columns=[column_reproduction(kind) for kind in leaders])) == tone
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("failed", [0, 2])
def test_the_status_is_1_where_a_training_failed(
    failed: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = SimpleNamespace(entry=SimpleNamespace(name="feddm.table2"), columns=[])
    monkeypatch.setattr(
        page, "reproduce_entry", lambda entry, asked: (found, Path("page.html"), failed)
    )
    assert run_entry(parse_arguments(["feddm.table2"])) == int(failed > 0)
    assert ("2 trainings failed" in capsys.readouterr().err) is bool(failed)
