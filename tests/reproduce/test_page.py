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
    EARLIER,
    FAILS_HERE,
    HOLDS_HERE,
    NO_SENTENCE,
    NOT_DECIDED,
    NOT_RUN,
    NOT_RUN_YET,
    NOTHING_TO_COMPARE,
    OTHER_CODE,
    OTHER_SETTINGS,
    OTHER_TASK,
    OTHER_WORDS,
    STAND_IN,
    OverviewLine,
    _page_tone,
    collect_lines,
    column_headlines,
    count_verdicts,
    current_digests,
    distinct_comparisons,
    distinct_sentences,
    format_sentence,
    run_entry,
    write_overview,
)
from privdd.reproduce.sentences import (
    CANNOT_TELL,
    HOLDS,
    HOLDS_IN_MEAN,
    REVERSED,
    REVERSED_IN_MEAN,
    OrderStatement,
    RowPair,
)
from privdd.runtime import progress

# The page about all entries: a line for each sentence, and every entry of the catalogue on it.

CHANCES = {HOLDS: 0.02, REVERSED: 0.98, HOLDS_IN_MEAN: 0.3, REVERSED_IN_MEAN: 0.7, CANNOT_TELL: 0.5}


def pairs(*found: tuple[str, float]) -> list[dict[str, Any]]:
    return [
        {
            "better": "algo=feddm",
            "worse": "algo=fedavg",
            "gain": gain,
            "p": CHANCES[kind],
            "holm": min(1.0, len(found) * CHANCES[kind]),
            "verdict": kind,
            "limit": "x" if kind == CANNOT_TELL else "",
        }
        for kind, gain in found
    ]


def sentence(verdict: str, *found: tuple[str, float]) -> dict[str, Any]:
    return {"verdict": verdict, "pairs": pairs(*(found or ((verdict, 0.3), (verdict, 0.1))))}


def column(*sentences: dict[str, Any], failed: int = 0) -> dict[str, Any]:
    row = {"failed": {str(seed): "why" for seed in range(failed)}, "diverged": 0}
    made = {"commits": ["c" * 40], "steps": "T = 20"}
    return {"sentences": [*sentences], "rows": [row]} | made


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return tmp_path / "small"


def stored(folder: Path, name: str, *columns: dict[str, Any], stand_in: bool = False) -> None:
    """Results of today's settings, code and words for the first columns of an entry."""
    (folder / name).mkdir(parents=True)
    differs = [{"key": "data.name" if stand_in else "data.limit"}]
    today = current_digests(find_entry(name), folder.name, "cpu")
    names = [*dict.fromkeys(name for name, _ in today)]
    for at, one in enumerate(columns):
        one["column"] = names[at]
        words = [says for column, says in today if column == names[at]]
        for says, sentence in zip(words, one["sentences"], strict=False):
            digests = today[names[at], says]
            sentence |= {"says": says, "settings": digests.settings, "code": digests.code}
    result = {
        "columns": [*columns],
        "fidelity": differs,
        "command": f"python -m privdd.reproduce {name}",
        "device": "cpu",
    }
    (folder / name / "results.json").write_text(json.dumps(result))


def finished_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[OverviewLine]:
    """Of the entries that have results; to compose all others takes a minute."""
    known = {name: entry for name, entry in load_catalogue().items() if (folder / name).is_dir()}
    monkeypatch.setattr(page, "load_catalogue", lambda: known)
    return collect_lines(folder)


@pytest.mark.nightly
def test_each_sentence_has_its_line_and_its_verdict(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(small, "feddm.table2", column(sentence(HOLDS)), column(sentence(REVERSED)))
    text = ((HOLDS, 0.2), (HOLDS_IN_MEAN, 0.1))
    both = (sentence(HOLDS_IN_MEAN, *text), sentence(CANNOT_TELL, (CANNOT_TELL, -0.2)))
    stored(small, "feddm.table3", column(*both), stand_in=True)
    stored(small, "feddm.figure1", column())
    found = {(line.entry, line.statement): line for line in finished_lines(small, monkeypatch)}
    lines = [*found.values()]
    assert len(finished_lines(small, monkeypatch)) == 5
    assert found["feddm.figure1", NO_SENTENCE].verdict == NOTHING_TO_COMPARE
    real, sent = (line for line in lines if line.entry == "feddm.table3")
    assert (real.verdict, sent.verdict) == (NOT_DECIDED, CANNOT_TELL)
    assert real.kind == sent.kind == OTHER_TASK and sent.detail.endswith("; x")
    assert real.detail == (
        "feddm over fedavg +20.0, p 0.02 (0.04); feddm over fedavg +10.0, p 0.3 (0.6)"
    )
    assert real.made == "T = 20; scale=small; commit ccccccc" and not real.stale


def line(verdict: str, settings: str = "", says: str = "s", **more: Any) -> OverviewLine:
    given = {"entry": "feddm.table2", "shows": "", "column": "c", "detail": "", "command": ""}
    made = {**given, "statement": says, "verdict": verdict, "page": "p", "settings": settings}
    return OverviewLine(**{**made, **more})


def test_trainings_are_counted_and_not_entries() -> None:
    """The same comparison once, under whichever sentence; what stands in, or is of earlier code, is
    counted by itself."""
    lines = [
        line(HOLDS_HERE, "1"),
        line(HOLDS_HERE, "1", entry="feddm.figure2"),
        line(HOLDS_HERE, "1", says="another sentence"),
        line(FAILS_HERE, "2", column=f"c{STAND_IN}"),
        line(FAILS_HERE, "2", column="the paper's own data"),
        line(HOLDS_HERE, "3", column=f"c{STAND_IN}"),
        line(HOLDS_HERE, "4", stale=OTHER_CODE, column=f"c{STAND_IN}"),
        line(NOT_RUN, "", stale=""),
    ]
    assert count_verdicts(lines) == (
        f"holds: 1, does not hold: 1, {OTHER_TASK}: 1, {EARLIER}: 1, not run: 1"
    )
    assert [one.statement for one in distinct_sentences(lines)].count("another sentence") == 1
    assert len(distinct_sentences(lines)) == 1 + len(distinct_comparisons(lines))


def test_a_gain_is_named_as_one() -> None:
    told = {**sentence(HOLDS, (HOLDS, 0.2)), "over": {"algo=feddm": "x", "algo=fedavg": "y"}}
    assert format_sentence(told) == "gain of feddm over that of fedavg +20.0, p 0.02"


def test_what_is_missing_is_said(small: Path) -> None:
    stored(small, "feddm.table2", column(sentence(HOLDS), failed=2))
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
    made = column(sentence(HOLDS))
    made["rows"][0]["diverged"] = 1
    stored(small, "feddm.table2", made)
    (found,) = finished_lines(small, monkeypatch)
    assert found.detail.endswith("; 1 diverged") and found.kind == HOLDS_HERE
    honest = overview.paper_block
    monkeypatch.setattr(
        overview, "paper_block", lambda name: {**honest(name), "stand_in": "x for y"}
    )
    (found,) = finished_lines(small, monkeypatch)
    assert found.column.endswith(STAND_IN) and found.kind == OTHER_TASK


def test_rows_without_all_seeds_leave_a_sentence_open(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open = {"verdict": "", "pairs": [], "missing": ["algo=fedavg"]}
    stored(small, "feddm.table2", column(open))
    (found,) = finished_lines(small, monkeypatch)
    assert found.verdict == found.kind == NOT_RUN_YET and "fedavg" in found.detail


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


def test_a_result_of_earlier_settings_code_or_words_is_marked_as_stale(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(small, "feddm.table2", column(sentence(HOLDS)))
    file = small / "feddm.table2" / "results.json"
    whole = file.read_text()
    (found,) = finished_lines(small, monkeypatch)
    assert found.stale == "" and found.kind == HOLDS_HERE
    for key, why in (("code", OTHER_CODE), ("settings", OTHER_SETTINGS), ("says", OTHER_WORDS)):
        other = json.loads(whole)
        other["columns"][0]["sentences"][0][key] = "of yesterday"
        file.write_text(json.dumps(other))
        (found,) = finished_lines(small, monkeypatch)
        assert (found.stale, found.kind) == (why, EARLIER)
    assert OTHER_WORDS in write_overview(small).read_text()
    file.write_text(whole)
    honest = train.row_config

    def tomorrow(overrides: Any, seed: int = 0) -> Any:
        config = honest(overrides, seed)
        config.algo.rounds = 77  # no override types it
        return config

    monkeypatch.setattr(train, "row_config", tomorrow)
    train.row_fingerprint.cache_clear()
    (found,) = finished_lines(small, monkeypatch)
    train.row_fingerprint.cache_clear()
    assert found.stale == OTHER_SETTINGS


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


# What is said first of a column, its colour, and the status of the command.


PAIRS = {
    HOLDS: (0.2, 0.01),
    HOLDS_IN_MEAN: (0.2, 0.3),
    REVERSED_IN_MEAN: (-0.2, 0.7),
    REVERSED: (-0.2, 0.99),
}


def column_reproduction(*kinds: str) -> Any:
    judged = [
        SimpleNamespace(
            sentence=SimpleNamespace(says="FedDM is best"),
            order=OrderStatement((RowPair("algo=feddm", "algo=fedavg", *PAIRS[kind]),)),
        )
        for kind in kinds
    ]
    return SimpleNamespace(sentences=judged)


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
    assert column_headlines(column_reproduction(kind)) == [f"FedDM is best: {said}"]


def test_a_column_without_a_sentence_says_so() -> None:
    assert column_headlines(column_reproduction()) == [NO_SENTENCE]


@pytest.mark.parametrize(
    ("leaders", "tone"),
    [
        ([HOLDS, HOLDS], "consistent"),
        ([HOLDS, HOLDS_IN_MEAN], "plain"),
        ([HOLDS, REVERSED], "contradiction"),
        ([REVERSED_IN_MEAN], "plain"),
        ([], "plain"),
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
