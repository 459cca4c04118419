"""The schema of findings.json: published in step with the model, and no other one is read."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from privdd.reporting import schema
from privdd.reporting.schema import (
    GRAVITY,
    EpsilonPair,
    FindingRow,
    Multiplicity,
    NoiseRow,
    Part,
    dump_findings,
    validate_findings,
    worst_verdict,
)
from privdd.runtime.files import DamagedRun
from tests.reporting.fixture import write_run
from tests.reporting.test_decision import row, run

PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "findings.schema.json"
BY = {
    "tier": "T2",
    "trusts": ["noise is Gaussian"],
    "runs": 200,
    "kappa": {"min": 1.0, "mean": 1.0},
}


def test_the_published_schema_is_that_of_the_model() -> None:
    assert PUBLISHED.read_text(encoding="utf-8") == schema.schema_text()


def run_of(tmp_path: Path) -> dict:
    return json.loads(
        (write_run(tmp_path, kind="contradiction") / "findings.json").read_text(encoding="utf-8")
    )


def test_a_certified_run_is_kept_by_the_model_and_by_the_published_schema(tmp_path: Path) -> None:
    data = run_of(tmp_path)
    data["privacy"]["epsilon"] |= {"shown": "inf", "shown_by": BY}
    data["surfaces"][0]["epsilon"] |= {"shown": 1.5, "shown_by": BY}
    told = json.loads(dump_findings(validate_findings(data)))
    assert told["privacy"]["epsilon"] == data["privacy"]["epsilon"]
    assert told["surfaces"][0]["epsilon"]["shown_by"]["kappa"] == {"min": 1.0, "mean": 1.0}
    jsonschema.validate(told, json.loads(PUBLISHED.read_text(encoding="utf-8")))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(
            {**told, "unknown": 1}, json.loads(PUBLISHED.read_text(encoding="utf-8"))
        )


def test_a_file_of_another_version_is_refused_in_one_line_that_names_both(tmp_path: Path) -> None:
    data = run_of(tmp_path)
    data["run"]["version"] = "0.3.0"
    data["schema"] = 2
    with pytest.raises(DamagedRun) as refusal:
        validate_findings(data, "findings.json")
    assert str(refusal.value) == (
        "findings.json: written by privdd 0.3.0 in schema 2; privdd 0.1.0 reads schema 1"
    )


def test_a_consistent_surface_lists_what_was_not_tested(tmp_path: Path) -> None:
    write_run(tmp_path, kind="consistent")
    data = json.loads((tmp_path / "findings.json").read_text(encoding="utf-8"))
    assert validate_findings(data).verdict == "consistent"
    for surface in data["surfaces"]:
        del surface["untested"]
    with pytest.raises(DamagedRun, match="untested is needed"):
        validate_findings(data)


def test_a_certificate_without_its_test_is_refused(tmp_path: Path) -> None:
    data = run_of(tmp_path)
    data["privacy"]["epsilon"]["shown"] = 1.0
    with pytest.raises(DamagedRun, match="both or neither"):
        validate_findings(data)


@pytest.mark.parametrize("wrong", [float("nan"), -1.0, "many", None])
def test_an_epsilon_is_a_number_from_0_or_inf(wrong: object) -> None:
    assert EpsilonPair.model_validate({"pld": "inf", "rdp": 2}).proven == 2
    with pytest.raises(ValueError):
        EpsilonPair.model_validate({"pld": wrong, "rdp": 2})


@pytest.mark.parametrize("wrong", [-1.0, "many", [], {}, True])
def test_the_diagnostic_that_decides_is_a_number(wrong: object) -> None:
    """A verifier computes verdicts from it, of files that others wrote."""
    good = {
        "surface": "update",
        "attack": "lira",
        "family": "membership",
        "adversary": "server",
        "diagnostics": {"epsilon_familywise": 0.5},
    }
    FindingRow.model_validate(good)
    with pytest.raises(ValueError, match="epsilon_familywise: must be a number of at least 0"):
        FindingRow.model_validate({**good, "diagnostics": {"epsilon_familywise": wrong}})


def test_the_gravest_verdict_is_the_runs() -> None:
    grave = ("contradiction", "unprotected", "untested", "consistent")  # as the page sorts them
    assert grave == GRAVITY
    for first, kind in enumerate(grave):
        assert worst_verdict(reversed(grave[first:])) == kind


def test_every_figure_that_could_lie_above_guessing_is_a_look() -> None:
    """Two rates of which one is too small to be seen, an AUC, a naming and a label rate: four, for
    the run and each row."""
    rates = {
        key: {"tpr": 0.1, "ci": [0.0, 0.2], "resolvable": key == "0.1"} for key in ("0.01", "0.1")
    }
    made = run(
        [row(rates), row(None, identified=0.5), row(None, label_accuracy=0.5)], "unprotected", "inf"
    )
    assert [one.rate_count for one in made.findings] == [2, 1, 1] and made.scope.looks == 4


@pytest.mark.parametrize("kind", [NoiseRow, Multiplicity])
def test_no_part_takes_an_unknown_key(kind: type[Part]) -> None:
    good = (
        {"source": "os", "paired": False, "for_release": True}
        if kind is NoiseRow
        else {"alpha": 0.05, "tests": 3}
    )
    kind.model_validate(good)
    with pytest.raises(ValueError, match="extra"):
        kind.model_validate({**good, "more": 1})
