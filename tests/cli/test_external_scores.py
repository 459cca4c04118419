"""``scores=FILE``: the page of scores that someone else computed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import DictConfig
from sklearn.metrics import roc_auc_score

from privdd.cli import external_scores
from privdd.cli.compose import compose_config
from privdd.cli.external_scores import audit_external_scores, scores_request
from privdd.reporting.comparison import write_comparison
from privdd.reporting.schema import load_findings
from privdd.runtime.files import read_json


def arrays(gap: float, worlds: int = 8, records: int = 120) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    masks = rng.random((worlds, records)) < 0.5
    return {"signals": gap * masks + rng.normal(size=masks.shape), "masks": masks}


def bare(gap: float, records: int = 400) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    member = rng.random(records) < 0.5
    return {"scores": gap * member + rng.normal(size=records), "member": member}


def config(folder: Path, content: dict[str, np.ndarray], *more: str) -> DictConfig:
    np.savez(folder / "mine.npz", **content)  # type: ignore[arg-type]
    return compose_config("audit", [f"scores={folder / 'mine.npz'}", *more])


def test_the_page_says_what_the_scores_say(tmp_path: Path) -> None:
    content = bare(2.0)
    assert (
        audit_external_scores(
            scores_request(config(tmp_path, content)), tmp_path / "run", ["privdd-audit"]
        )
        == 0
    )
    result = load_findings(tmp_path / "run")
    assert (
        result.run.algo == "scores" and result.utility is None and result.verdict == "unprotected"
    )
    assert result.findings[0].auc == pytest.approx(
        roc_auc_score(content["member"], content["scores"])
    )
    page = (tmp_path / "run" / "report.html").read_text()
    assert "comes from elsewhere" in page and "<svg" in page
    assert "utility" not in json.loads((tmp_path / "run" / "findings.json").read_text())
    assert list((tmp_path / "run" / "figures").glob("roc-*.svg"))


@pytest.mark.nightly(but=["0.0-0.5-0"])
@pytest.mark.parametrize(
    ("gap", "stated", "status"), [(3.0, 0.5, 2), (3.0, 30.0, 0), (0.0, 0.5, 0)]
)
def test_a_stated_epsilon_is_held_to(
    tmp_path: Path, gap: float, stated: float, status: int
) -> None:
    asked = config(tmp_path, bare(gap), f"privacy.epsilon={stated}")
    assert audit_external_scores(scores_request(asked), tmp_path / "run", []) == status
    assert (load_findings(tmp_path / "run").verdict == "contradiction") == (status == 2)


@pytest.mark.nightly(cases=["update-client"])
@pytest.mark.parametrize(("surface", "sender"), [("update", "client"), ("global_model", "server")])
def test_what_is_stated_is_no_proof_and_what_was_asked_is_kept(
    surface: str, sender: str, tmp_path: Path
) -> None:
    typed = ("privacy.epsilon=30", f"scores_surface={surface}", "seed=5")
    request = scores_request(config(tmp_path, bare(1.0), *typed))
    audit_external_scores(request, tmp_path / "run", ["it"])
    result = load_findings(tmp_path / "run")
    (claim,), (sent,) = result.privacy.claims, result.surfaces
    assert (claim.epsilon, claim.sound, claim.source) == (
        30.0,
        False,
        "stated by whoever submitted the scores",
    )
    assert math.isinf(result.privacy.epsilon.proven) and sent.sender == sender
    manifest = read_json(tmp_path / "run" / "manifest.json")
    assert (manifest["seed"], manifest["command"]) == (5, ["it"]) and "findings.json" in manifest[
        "files"
    ]


def test_the_bound_that_decides_is_of_a_confidence_that_all_attacks_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[float] = []
    honest = external_scores.audit_scores

    def noted(*given: Any, confidence: float, **more: Any) -> Any:
        asked.append(confidence)
        return honest(*given, confidence=confidence, **more) * 4  # as of four attacks

    monkeypatch.setattr(external_scores, "audit_scores", noted)
    external_scores._collect_findings(scores_request(config(tmp_path, bare(1.0))))
    assert asked == [0.95, pytest.approx(1 - 0.05 / 4)]


@pytest.mark.nightly
def test_worlds_run_every_attack_and_compare_with_other_runs(tmp_path: Path) -> None:
    more = ("scores_surface=synthetic_images", "name=ours")
    audit_external_scores(
        scores_request(config(tmp_path, arrays(2.0), *more)), tmp_path / "run", []
    )
    result = load_findings(tmp_path / "run")
    assert {row.surface for row in result.findings} == {"synthetic_images"} and len(
        result.findings
    ) == 5
    page = write_comparison([tmp_path / "run"], tmp_path / "out")
    assert "ours" in page.read_text()
    assert (tmp_path / "out" / "frontier.csv").read_text().count("\n") == 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["scores_surface=moon"], "scores_surface=moon: allowed are update"),
        (["privacy.epsilon=-1"], "privacy.epsilon=-1: a number above 0"),
        (["scores=none.npz"], "not a readable .npz"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, more: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        audit_external_scores(
            scores_request(config(tmp_path, bare(1.0), *more)), tmp_path / "run", []
        )
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
