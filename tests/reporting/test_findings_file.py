"""findings.json: what is written is read back; what is not schema 1 is refused in one line."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from privdd.reporting.finding_selection import (
    largest_bound_finding,
    strongest_membership,
    strongest_reconstruction,
)
from privdd.reporting.schema import (
    Findings,
    Scope,
    load_findings,
    validate_findings,
    write_findings,
)
from privdd.reporting.summary import verdict_headline
from privdd.runtime.files import DamagedRun


@pytest.fixture
def data(runs: dict[str, Path]) -> dict[str, Any]:
    return json.loads((runs["unprotected"] / "findings.json").read_text())


def put(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one place changed; a value of ... takes the key away."""
    made = copy.deepcopy(data)
    *way, last = [int(p) if p.isdigit() else p for p in path.split("/")]
    at = made
    for part in way:
        at = at[part]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return made


def test_round_trip_keeps_every_key_and_value(
    runs: dict[str, Path], data: dict[str, Any], tmp_path: Path
) -> None:
    read = load_findings(runs["unprotected"])
    write_findings(read, tmp_path / "findings.json")
    assert json.loads((tmp_path / "findings.json").read_text()) == data
    assert [p.name for p in tmp_path.iterdir()] == ["findings.json"]


def test_infinity_is_a_word_on_disk_and_a_number_in_memory(
    runs: dict[str, Path], data: dict[str, Any]
) -> None:
    assert data["privacy"]["epsilon"] == {"pld": "inf", "rdp": "inf"}
    assert math.isinf(load_findings(runs["unprotected"]).privacy.epsilon.pld)


def test_absent_measures_are_left_out(data: dict[str, Any]) -> None:
    assert all("psnr" not in row for row in data["findings"] if row["family"] == "membership")
    assert "null" not in json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        ("schema", 3, "schema 3; privdd 0.1.0 reads schema 1"),
        ("surprise", 1, "surprise"),
        ("findings/0/surprise", 1, "findings.0.surprise"),
        ("verdict", "fine", "verdict"),
        ("surfaces/0/verdict", "fine", "surfaces.0.verdict"),
        ("surfaces/0/surface", "telepathy", "surfaces.0.surface"),
        ("surfaces/0/audited", False, "audited"),
        ("findings/0/family", "other", "findings.0.family"),
        ("findings/0/adversary", "aliens", "findings.0.adversary"),
        ("findings/0/auc", 1.01, "findings.0.auc"),
        ("findings/0/auc", None, "null is not allowed"),
        ("findings/0/auc", float("nan"), "findings.0.auc"),
        ("findings/0/auc", "inf", "findings.0.auc"),
        ("findings/0/epsilon_shown", -0.1, "epsilon_shown"),
        ("findings/0/epsilon_shown", float("nan"), "epsilon_shown"),
        ("findings/0/tpr_at_fpr/2", {"tpr": 0.1, "ci": [0, 1], "resolvable": True}, "tpr_at_fpr.2"),
        ("findings/0/figure", "../../etc/passwd", "figure"),
        ("privacy/epsilon/pld", "infinite", "privacy.epsilon.pld"),
        ("privacy/relation", "swap", "privacy.relation"),
        ("privacy/delta", 1, "privacy.delta"),
        ("utility/accuracy", 1.5, "utility.accuracy"),
        ("run/algo", "fed\x1b[31mfed", "run.algo"),
        ("run/seed", ..., "run.seed"),
    ],
)
def test_refuses_in_one_line(data: dict[str, Any], path: str, value: Any, word: str) -> None:
    with pytest.raises(DamagedRun) as caught:
        validate_findings(put(data, path, value), "run/findings.json")
    message = str(caught.value)
    assert word in message and "\n" not in message and message.startswith("run/findings.json")


def test_a_contradicted_surface_makes_a_contradicted_run(runs: dict[str, Path]) -> None:
    data = json.loads((runs["contradiction"] / "findings.json").read_text())
    with pytest.raises(DamagedRun, match="contradiction"):
        validate_findings(data | {"verdict": "consistent"})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": 1, "x": NaN}',
        '{"schema": 1, "x": Infinity}',
        '{"schema": 1, "x": 1e999}',
        "[" * 99999,
    ],
)
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "findings.json").write_text(text)
    with pytest.raises(DamagedRun) as caught:
        load_findings(tmp_path)
    assert "\n" not in str(caught.value) and "findings.json" in str(caught.value)


def test_nan_hidden_in_diagnostics_is_not_written(data: dict[str, Any], tmp_path: Path) -> None:
    hidden = put(data, "findings/0/diagnostics", {"loss": [1.0, float("nan")]})
    with pytest.raises(DamagedRun):
        write_findings(hidden, tmp_path / "findings.json")
    assert not (tmp_path / "findings.json").exists()


def test_allowed_extras_pass(data: dict[str, Any]) -> None:
    more = {
        "baselines": {"a": 1.0},
        "diagnostics": {"b": [1]},
        "signal": "x",
        "epsilon_stated": "inf",
        "note": "n",
        "figure": "a.safetensors",
    }
    assert (
        validate_findings(put(data, "findings/0", data["findings"][0] | more)).findings[0].signal
        == "x"
    )


def test_the_json_schema_names_infinity() -> None:
    text = json.dumps(Findings.model_json_schema())
    assert '"const": "inf"' in text and '"additionalProperties": false' in text


def changed(data: dict[str, Any], **measures: Any) -> Findings:
    """The run with only its picture findings, each with these measures."""
    kept = [row | measures for row in data["findings"] if "psnr" in row]
    return validate_findings(data | {"findings": kept})


def test_a_picture_below_a_blind_guess_is_not_called_a_reconstruction(data: dict[str, Any]) -> None:
    below = verdict_headline(
        changed(data, psnr=9.0, baselines={"psnr_mean": 12.0, "ssim_mean": 99.0})
    ).sentences
    above = verdict_headline(
        changed(data, psnr=15.0, baselines={"psnr_mean": 12.0, "psnr_black": 3.0})
    ).sentences
    assert any(
        "was not shown to reconstruct images clearly closer than a guess: 9 dB on average" in s
        and "without it 12 dB" in s
        for s in below
    )
    assert any(
        "can reconstruct images at 15 dB on average of 12 (best guess without it 12 dB)" in s
        for s in above
    )


def test_the_best_picture_is_the_one_furthest_above_a_blind_guess(data: dict[str, Any]) -> None:
    rows = changed(data).findings
    easy = rows[0].model_copy(update={"psnr": 30.0, "baselines": {"psnr_mean": 29.0}})
    real = rows[1].model_copy(update={"psnr": 20.0, "baselines": {"psnr_mean": 10.0}})
    assert strongest_reconstruction([easy, real], Scope(looks=1)) is real


def test_bounds_that_assume_a_distribution_and_rates_too_small_to_see_make_no_headline(
    data: dict[str, Any],
) -> None:
    row = validate_findings(data).findings[0]
    assumed = row.model_copy(update={"epsilon_shown": 99.0, "epsilon_validity": "gaussian_only"})
    assert largest_bound_finding([row, assumed]) is row and largest_bound_finding([assumed]) is None
    rates = row.tpr_at_fpr or {}
    hidden = {
        key: at.model_copy(update={"resolvable": key != "0.001"}) for key, at in rates.items()
    }
    found = strongest_membership([row.model_copy(update={"tpr_at_fpr": hidden})], Scope(looks=1))
    assert found is not None and found.fpr == 0.01
