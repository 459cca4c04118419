"""A policy on the check of a mechanism: which limits apply, and what decides them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privdd import gate
from privdd.blackbox.check_limits import judge_check, read_check
from privdd.blackbox.check_report import SPENT, CheckReport, SingleTestResult
from privdd.blackbox.check_verdict import Checked, conclude_check
from privdd.blackbox.claims import CheckedClaim
from privdd.reporting.policy import Policy, fails_build
from privdd.runtime.files import DamagedRun


def checked(epsilon: float, outcome: str = "not refuted", *undecided: str) -> Checked:
    """The check of a mechanism that states 3, on which one test showed this epsilon."""
    found = CheckReport(
        [SingleTestResult("neighbours", outcome, "told apart", epsilon, "finite_sample")],
        undecided=list(undecided),
    )
    return conclude_check(
        "m", CheckedClaim(3.0, 1e-5), found, confidence=0.99, calls=1000, seconds=1.0
    )  # type: ignore[arg-type]


SOUND = checked(1.0)
FALSE = checked(5.0, "refuted")
CUT = checked(1.0, "not refuted", f"{SPENT} before all was seen")


@pytest.mark.parametrize(
    ("found", "limits", "outcome"),
    [
        (SOUND, {"epsilon_shown": 2}, "holds"),
        (SOUND, {"epsilon_shown": 0.5}, "broken"),
        (CUT, {"epsilon_shown": 2}, "not decided"),
        (CUT, {"epsilon_shown": 0.5}, "broken"),
        (FALSE, {"epsilon_shown": 8}, "holds"),
        (FALSE, {"epsilon_proven": 8}, "broken"),
        (SOUND, {"epsilon_proven": 2}, "broken"),
        (SOUND, {"verdicts": ["consistent"]}, "holds"),
        (CUT, {"verdicts": ["consistent"]}, "not decided"),
        (FALSE, {"verdicts": ["consistent"]}, "broken"),
        (SOUND, {"auc": 0.6}, "not decided"),
        (SOUND, {"epsilon_proven": 8}, "not decided"),
    ],
)
def test_the_outcome_of_a_limit(found: Checked, limits: dict[str, object], outcome: str) -> None:
    (result,) = judge_check(Policy.model_validate(limits), found)
    assert result.outcome == outcome


def test_limits_of_records_do_not_apply_where_another_limit_does() -> None:
    policy = Policy(
        epsilon_proven=8, epsilon_shown=2, auc=0.6, tpr_at_fpr={0.01: 0.1}, attacked=["update"]
    )
    results = judge_check(policy, SOUND)
    assert [one.outcome for one in results] == [
        "does not apply",
        "holds",
        *["does not apply"] * 3,
    ] and not fails_build(policy, results)


def test_the_gate_reads_the_folder_of_a_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "findings.json").write_text(json.dumps(SOUND.as_json()))
    assert read_check(tmp_path) == SOUND
    asked = [str(tmp_path), f"junit={tmp_path / 'j.xml'}", "fail_on.auc=0.6"]
    assert (
        gate.main([*asked, "fail_on.epsilon_shown=2"]) == 0
        and 'skipped="1"' in (tmp_path / "j.xml").read_text()
    )
    assert capsys.readouterr().out.startswith("policy: passes: 1 holds, 1 does not apply\n")
    assert gate.main([*asked, "fail_on.epsilon_shown=0.5"]) == 3
    (tmp_path / "findings.json").write_text(json.dumps({**SOUND.as_json(), "stated": 3}))
    with pytest.raises(DamagedRun, match="not the findings of a check"):
        read_check(tmp_path)
