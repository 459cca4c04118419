"""Findings in Python: the table holds the file's numbers, drawings show the evidence's, hostile
text stays text."""

from __future__ import annotations

import builtins
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from sklearn.metrics import roc_auc_score

from privdd.reporting.notebook import AuditFindings, finding_rows, to_html, with_views
from privdd.reporting.run_record import read_run_record
from privdd.reporting.schema import NoiseRow, load_findings, validate_findings

pytestmark = pytest.mark.drawn

HOSTILE = "<script>alert(1)</script>"


def viewed(folder: Path) -> AuditFindings:
    return with_views(load_findings(folder), folder)


def test_the_table_is_the_file(runs: dict[str, Path]) -> None:
    found = viewed(runs["consistent"])
    table = found.to_frame()
    assert len(table) == len(found.findings)
    for at, row in enumerate(found.findings):
        assert table["attack"][at] == row.attack and table["surface"][at] == str(row.surface)
        if row.auc is not None:
            assert table["auc"][at] == row.auc
        for fpr, seen in (row.tpr_at_fpr or {}).items():
            assert table[f"tpr_at_{fpr}"][at] == seen.tpr
    assert {"auc", "auc_low", "tpr_at_0.001"} <= {*table.columns}


def test_without_pandas_it_says_what_to_install(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return real(name, *rest, **more)

    found = viewed(runs["consistent"])
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install pandas"):
        found.to_frame()


def test_the_roc_is_that_of_the_scores(runs: dict[str, Path]) -> None:
    """The area under the drawn steps is scikit-learn's AUC of the evidence, up to the drawing's 100
    points."""
    record = read_run_record(runs["unprotected"])
    (axes,) = with_views(record.findings, record.path).plot("roc").axes
    best = [line for line in axes.lines if len(line.get_xdata()) > 20]
    assert best
    areas = []
    for line in best:
        x = np.asarray(line.get_xdata())
        y = np.asarray(line.get_ydata())
        areas.append(float(np.sum(np.diff(x) * y[:-1])))
    aucs = []
    for row in record.findings.findings:
        evidence = record.evidence(row)
        if evidence.has_curve:
            aucs.append(roc_auc_score(evidence.members, evidence.scores))
    assert min(abs(max(aucs) - area) for area in areas) < 0.02


@pytest.mark.parametrize("kind", ["roc", "epsilon", "frontier"])
def test_drawings_open(runs: dict[str, Path], kind: str, tmp_path: Path) -> None:
    viewed(runs["contradiction"]).plot(kind).savefig(tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000


def test_a_frontier_of_one_run_is_its_own_point(runs: dict[str, Path]) -> None:
    found = viewed(runs["consistent"])
    places = [line.get_xydata() for line in found.plot("frontier").axes[0].lines]
    assert found.utility and any(
        (abs(at[:, 1] - found.utility.accuracy) < 1e-9).all() for at in places
    )
    with pytest.raises(ValueError, match="has no accuracy"):
        found.model_copy(update={"utility": None}).plot("frontier")


def test_a_notebook_shows_a_drawing_as_a_picture(runs: dict[str, Path]) -> None:
    shown, _ = DisplayFormatter().format(viewed(runs["consistent"]).plot("epsilon"))
    assert shown["image/png"].startswith(b"\x89PNG") or b64decode(shown["image/png"]).startswith(
        b"\x89PNG"
    )


def test_what_cannot_be_drawn_is_said(runs: dict[str, Path]) -> None:
    found = viewed(runs["consistent"])
    with pytest.raises(ValueError, match="allowed are roc, epsilon, frontier, ladder"):
        found.plot("bars")
    plain = found.model_dump(mode="json", by_alias=True, exclude_none=True)
    bare = with_views(validate_findings(plain))
    assert bare.model_dump() == found.model_dump()  # where it was read from is no part of it
    with pytest.raises(ValueError, match="load_run"):
        bare.plot("roc")


class Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)


def test_the_short_view_escapes_and_states(runs: dict[str, Path]) -> None:
    found = viewed(runs["consistent"])
    hostile = found.model_copy(update={"run": found.run.model_copy(update={"algo": HOSTILE})})
    seen = Seen()
    seen.feed(to_html(hostile))
    assert seen.tags == {"p", "b", "table", "tr", "th", "td"}
    text = found._repr_html_()
    for part in (
        found.verdict,
        found.privacy.unit,
        found.privacy.relation,
        found.findings[0].attack,
    ):
        assert part in text
    assert text.count("<tr>") == 1 + len(finding_rows(found))
    assert "not for release" not in text  # the fixture does not say where its noise came from
    noise = NoiseRow(source="seed", paired=False, for_release=False)
    drawn = found.model_copy(update={"privacy": found.privacy.model_copy(update={"noise": noise})})
    assert "Simulation, not for release" in to_html(drawn)
