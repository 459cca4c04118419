"""The rows of a first screen: short, complete, and joined only if one says what the other does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from privdd.reporting.albums import picture_albums
from privdd.reporting.artifact_rows import MOST_WORDS, UNREAD, artifact_rows
from privdd.reporting.decision import decide_surfaces
from privdd.reporting.exposed_records import detection_rates
from privdd.reporting.figures.image_pairs import png_uri
from privdd.reporting.run_record import read_run_record
from privdd.reporting.schema import Findings, load_findings, validate_findings
from tests.reporting.fixture import text_of, write_run
from tests.reporting.test_decision import CASES, NOTHING, STRONG, row, run


def rows_of(findings: Findings) -> list[Any]:
    return artifact_rows(decide_surfaces(findings), findings)


def with_surface(findings: Findings, found: list[dict[str, Any]], **surface: Any) -> Findings:
    """The same findings with one more surface like the first, and its own rows."""
    data = findings.model_dump(mode="json", by_alias=True, exclude_none=True)
    data["surfaces"].append(data["surfaces"][0] | surface)
    data["findings"] += found
    return validate_findings(data)


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_a_row_is_short_and_repeats_the_decision(case: Any) -> None:
    findings = case[1]
    (only,) = rows_of(findings)
    (decision,) = decide_surfaces(findings)
    assert only.word_count <= MOST_WORDS, only
    assert (only.title, only.tone, only.decisions) == (decision.title, decision.tone, (decision,))


@pytest.mark.parametrize("kind", ["unprotected", "consistent", "contradiction"])
def test_every_artifact_of_a_run_has_a_row(kind: str, tmp_path: Path) -> None:
    findings = load_findings(write_run(tmp_path / "run", kind=kind))
    rows = rows_of(findings)
    named = [d.line.row.surface for one in rows for d in one.decisions]
    assert sorted(named) == sorted(one.surface for one in findings.surfaces)
    assert all(one.word_count <= MOST_WORDS for one in rows)


def test_labels_without_a_guarantee_are_needed_and_open(tmp_path: Path) -> None:
    findings = load_findings(write_run(tmp_path / "run"))
    made = {d.line.row.surface: d for d in decide_surfaces(findings)}
    assert (made["labels"].kind, made["labels"].title) == ("needed", "Needed, open")
    assert "an attack works" in made["labels"].why and made["labels"].can
    assert made["update"].kind == "do_not_share"  # the rule is of labels alone


def test_a_pool_with_the_findings_of_its_features_shares_their_row() -> None:
    alone = run([row(STRONG), row(STRONG, surface="shared_features")], "unprotected", "inf")
    pool = {"surface": "shared_features", "sender": "server", "names": ["pool"]}
    (joined,) = rows_of(with_surface(alone, [], **pool))
    assert joined.name == "Released features, shared feature pool"
    assert joined.seen_by == "server and every client" and len(joined.decisions) == 2
    # a protected pool says something else
    data = with_surface(alone, [], **pool).model_dump(mode="json", by_alias=True, exclude_none=True)
    data["surfaces"][1] |= {"epsilon": {"pld": 2.0, "rdp": 2.0}, "verdict": "consistent"}
    assert len(rows_of(validate_findings(data))) == 2


def test_artifacts_that_no_attack_could_read_share_the_last_row() -> None:
    empty = {"attack": "lira", "family": "membership", "adversary": "server"}
    unread = [
        empty | {"surface": name, "status": "nothing_to_read"} for name in ("counts", "statistics")
    ]
    findings = run([row(NOTHING)], "unprotected", "inf")
    findings = with_surface(findings, unread[:1], surface="counts", names=["counts"])
    assert [one.name for one in rows_of(findings)] == ["Released features", "Counts"]
    both = with_surface(findings, unread[1:], surface="statistics", names=["statistics"])
    *rest, last = rows_of(both)
    assert [one.name for one in rest] == ["Released features"]
    assert (last.name, last.finding) == ("Counts, statistics", UNREAD)


def test_tests_of_a_guarantee_are_no_attacks() -> None:
    """A row says so, although the surface has findings."""
    tested = {"surface": "features", "attack": "noise", "family": "guarantee"}
    tested |= {"adversary": "analyst"}
    waived = run([tested], "consistent", 2.0, audited="waived: x")
    (only,) = rows_of(waived)
    assert only.finding == "not attacked"


def test_of_a_target_in_doubt_a_rate_says_nothing() -> None:
    findings = run([row(STRONG)], "unprotected", "inf")
    data = findings.model_dump(mode="json", by_alias=True, exclude_none=True)
    data["target"] = {"kind": "model", "doubts": ["the files have other labels"]}
    (only,) = rows_of(validate_findings(data))
    assert only.finding == "these files do not show it"


def test_detection_rates_are_those_of_brute_force(tmp_path: Path) -> None:
    """40 records in 100 replays; of each record, hits over the replays that hold it."""
    folder = write_run(tmp_path / "run")
    path = folder / "evidence" / "features.lira.safetensors"
    held = load_file(path)
    records = torch.arange(len(held["scores"])) // 2 % 40
    worlds = torch.arange(len(held["scores"])) // 80
    save_file(held | {"record": records, "world": worlds}, path)
    detected = detection_rates(read_run_record(folder))
    assert detected is not None and detected.fpr == 0.001
    scores = held["scores"].numpy()
    members = held["members"].numpy() > 0
    allowed = int(0.001 * (~members).sum())
    (threshold,) = [s for s in scores[~members] if (scores[~members] > s).sum() == allowed]
    expected = []
    for number in range(40):
        own = members & (records.numpy() == number)
        expected.append(float((scores[own] > threshold).mean()))
    assert np.allclose(detected.rates, sorted(expected, reverse=True))
    overall = json.loads((folder / "findings.json").read_text())["findings"][0]["tpr_at_fpr"]
    assert np.isclose(detected.hits.sum() / detected.trials.sum(), overall["0.001"]["tpr"])


def test_without_labels_of_records_there_are_no_bars(tmp_path: Path) -> None:
    assert detection_rates(read_run_record(write_run(tmp_path / "run"))) is None


@pytest.mark.parametrize(
    ("shown", "target", "images"),
    [(None, False, True), (True, False, True), (False, False, False), (None, True, False)],
)
def test_images_of_records_are_left_out_unless_they_are_public(
    shown: bool | None, target: bool, images: bool, tmp_path: Path
) -> None:
    folder = write_run(tmp_path / "run")
    data = json.loads((folder / "findings.json").read_text())
    if shown is not None:
        data["run"]["show_images"] = shown
    if target:
        data["target"] = {"kind": "model"}
    (folder / "findings.json").write_text(json.dumps(data))
    albums = picture_albums(read_run_record(folder))
    assert bool(albums) is images
    if not images:
        assert "Images of records are left out" in text_of(folder)


def test_the_best_image_gains_most_on_its_guess(tmp_path: Path) -> None:
    """And not the one of the highest PSNR, of which the guess is as good."""
    folder = write_run(tmp_path / "run")
    path = folder / "evidence" / "features.feature_inversion.safetensors"
    real = load_file(path)["real"]
    rebuilt = (real + 0.01).clamp(0, 1)
    rebuilt[3] = (real[3] + 0.1).clamp(0, 1)
    guess = rebuilt.clone()
    guess[3] = 1 - real[3]
    save_file({"real": real, "reconstructed": rebuilt, "guess": guess}, path)
    (album, *_) = [a for a in picture_albums(read_run_record(folder)) if "Released" in a.title]
    assert album.best.rebuilt == png_uri(rebuilt[3].numpy())
    assert album.best.guess == png_uri(guess[3].numpy())
