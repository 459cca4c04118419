"""Attacks that had nothing to read are named as such: never a rate, never "no better than guessing"."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from privdd.reporting.finding_selection import SENTENCE, UNSCORED, findings_without_signal, has_no_signal
from privdd.reporting.page import write_report
from privdd.reporting.run_record import read_run_record
from privdd.reporting.terminal import print_summary
from tests.reporting.fixture import text_of, write_run

KEPT = ("surface", "attack", "family", "adversary", "n", "worlds")


def run_with(folder: Path, silent: set[str]) -> Path:
    """A finished run whose membership attacks named in ``silent`` had nothing to read."""
    write_run(folder)
    data = json.loads((folder / "findings.json").read_text())
    rows = []
    for row in data["findings"]:
        if row["attack"] in silent:
            row = {key: row[key] for key in KEPT} | {"status": "nothing_to_read", "note": "nothing to read: the same"}
        rows.append(row)
    if "auc" in rows[0]:
        rows[0]["worst_records"] = {"share": 0.01, "tpr": 0.734, "ci": [0.61, 0.83]}
    data["findings"] = rows
    (folder / "findings.json").write_text(json.dumps(data))
    return folder


def said(folder: Path) -> str:
    out = io.StringIO()
    print_summary(read_run_record(folder).findings, out, 200)
    return out.getvalue()


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_with(tmp_path_factory.mktemp("unread") / "all", {"lira", "threshold", "rmia"})


def test_a_run_in_which_no_attack_had_anything_to_read_says_so(silent: Path) -> None:
    findings = read_run_record(silent).findings
    assert [row.attack for row in findings_without_signal(findings)] == ["lira", "threshold", "rmia"]
    assert SENTENCE in said(silent).replace("\n", " ")
    page = write_report(silent).read_text()
    for text in (said(silent), page):
        assert "guessing at" not in text and "no better than guessing" not in text
        assert UNSCORED in text.replace("\n", " ")
    assert "Nothing to read, so neither found nor failed: LiRA on the" in page


def test_one_attack_that_read_something_speaks_for_the_surface(tmp_path: Path) -> None:
    folder = run_with(tmp_path / "one", {"threshold"})
    findings, page = read_run_record(folder).findings, text_of(folder)
    assert not has_no_signal([row for row in findings.findings if row.surface == "features"])
    assert SENTENCE not in said(folder) and "neither found nor failed: threshold on the" in page
    assert "73.4\u00a0%<small>worst 1\u00a0%; 61\u00a0% to 83\u00a0%" in page  # the most exposed records
    assert "; of the most exposed 1\u00a0% of records, 73.4\u00a0%" in page


def test_only_membership_attacks_that_ran_count(silent: Path) -> None:
    rows = read_run_record(silent).findings.findings
    assert has_no_signal(rows) and not has_no_signal([row for row in rows if row.family != "membership"])
    assert not has_no_signal([row.model_copy(update={"status": "not_attacked"}) for row in rows])
