"""Rows of a table on a page: numbers in the units of the table, and none of one's own unasked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from privdd.api import audit
from privdd.reporting.albums import picture_album
from privdd.reporting.run_record import StoredEvidence, read_run_record
from privdd.reporting.schema import FindingRow, Scope

REAL = np.array([[0.0, 1.0, 0.5], [1.0, 0.0, 0.25]])
REBUILT = np.array([[0.1, 0.8, 0.5], [0.2, 0.7, 0.0]])
COLUMNS = [
    {"name": "sex", "low": 0.0, "high": 1.0, "categories": ["f", "m"], "error": 0.5},
    {"name": "age", "low": 20.0, "high": 60.0, "categories": [], "error": 0.125},
]


def album_of(columns: object):
    row = FindingRow(
        surface="update",
        attack="analytic_inversion",
        family="gradient_inversion",
        adversary="server",
        psnr=14.0,
        n=2,
        baselines={"psnr_mean": 10.0},
        diagnostics={"columns": columns},
    )
    evidence = StoredEvidence(real=REAL, reconstructed=REBUILT)
    findings = SimpleNamespace(scope=Scope(1))
    record = SimpleNamespace(evidence=lambda _: evidence, findings=findings, shows_images=True)
    return picture_album("fedavg", record, row)


def test_the_best_rows_stand_in_the_units_of_the_table() -> None:
    sex, age = album_of(COLUMNS).columns
    assert (sex.heading, sex.values, sex.error) == ("sex", ("m", "m", "f", "m"), "0.5")
    assert (age.heading, age.values) == ("age", ("40", "40", "30", "20"))


@pytest.mark.parametrize("columns", [None, "sex", [{}], COLUMNS[:1], [*COLUMNS, COLUMNS[1]]])
def test_without_fitting_columns_numbers_stand_as_they_are(columns: object) -> None:
    album = album_of(columns)
    assert [column.heading for column in album.columns] == ["number 1", "number 2", "number 3"]
    assert album.columns[2].values == ("0.5", "0.5", "0.25", "0")


def test_an_own_table_shows_no_row_of_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", x=rng.random((120, 4)), y=np.arange(120) % 2)
    findings = audit(
        "data=table",
        f"data.root={tmp_path / 'own.npz'}",
        "data.columns=[0,1]",
        "algo=fedavg",
        "preset=smoke",
        "engine=serial",
        "attack=[analytic_inversion,lira]",
        "partition=iid",
        "partition.clients=2",
        "algo.rounds=1",
        "audit.worlds=3",
        "audit.records=12",
        "audit.federations=0",
        out=tmp_path / "run",
    )
    record = read_run_record(tmp_path / "run")
    for row in findings.findings:
        if row.figure:
            evidence = record.evidence(row)
            assert evidence.real is None and evidence.exposed is None
    (inversion,) = [row for row in findings.findings if row.attack == "analytic_inversion"]
    errors = [column["error"] for column in inversion.diagnostics["columns"]]
    assert len(errors) == 4 and max(errors) < 0.01  # an open gradient, in plain sight
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Reconstructed</th>" not in page and "Reconstructed rows" in page
    assert "The rows themselves are not shown" in page and '<th scope="row">3</th>' in page
