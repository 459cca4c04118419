"""Limits of a policy: what breaks one, what decides none, what the files for a build say, and what
a wrong policy is told."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from privdd.gate import STARTING_POLICY, main
from privdd.reporting.policy import (
    Policy,
    PolicyError,
    draw_badge,
    fails_build,
    judge_findings,
    load_policy,
)
from privdd.reporting.schema import Findings, Target, load_findings
from tests.conftest import SmallAudit

ACTION = Path(__file__).parents[2] / ".github" / "actions" / "privacy-gate" / "action.yml"


@pytest.fixture(scope="module")
def findings(audited: Callable[[str], SmallAudit]) -> Findings:
    return load_findings(audited("fedavg_dpsgd").path)


def outcome(findings: Findings, **limits: object) -> str:
    return judge_findings(Policy.model_validate(limits), findings)[0].outcome


def with_membership(findings: Findings, **changed: object) -> Findings:
    rows = [
        row.model_copy(update=changed) if row.auc is not None else row for row in findings.findings
    ]
    return Findings.model_validate(
        findings.model_copy(update={"findings": rows}).model_dump(by_alias=True, exclude_none=True)
    )


def test_epsilon_is_held_against_both_bounds(findings: Findings) -> None:
    proven = findings.privacy.epsilon.proven
    assert outcome(findings, epsilon_proven=proven * 1.001) == "holds"
    assert outcome(findings, epsilon_proven=proven * 0.999) == "broken"
    shown = findings.privacy.epsilon.shown or 0.0
    assert (
        outcome(findings, epsilon_shown=max(shown, 20)) == "holds"
        and outcome(findings, epsilon_shown=shown * 0.5) == "broken"
    )


def test_what_is_unprotected_breaks_every_limit_of_epsilon(
    audited: Callable[[str], SmallAudit],
) -> None:
    found = load_findings(audited("fedavg").path)
    result = judge_findings(Policy(epsilon_proven=1e300), found)[0]
    assert result.outcome == "broken" and "unprotected" in result.line


def test_bounds_that_trust_a_law_and_files_under_doubt_decide_nothing(findings: Findings) -> None:
    trusting = [
        row.model_copy(update={"epsilon_shown": 9.0, "epsilon_validity": "gaussian_only"})
        for row in findings.findings
    ]
    bare = findings.privacy.model_copy(
        update={"epsilon": findings.privacy.epsilon.model_copy(update={"shown": None})}
    )
    assert (
        outcome(
            findings.model_copy(update={"findings": trusting, "privacy": bare}), epsilon_shown=1
        )
        == "not decided"
    )
    doubted = findings.model_copy(
        update={"target": Target(kind="model", doubts=["the files differ"])}
    )
    for limits in ({"auc": 0.9}, {"tpr_at_fpr": {0.1: 0.9}}, {"identified_records": 9}):
        assert outcome(doubted, **limits) == "not decided"


def test_shared_features_are_no_pictures(findings: Findings) -> None:
    row = next(row for row in findings.findings if row.family == "membership").model_copy(
        update={
            "attack": "known_neighbour",
            "family": "reconstruction",
            "psnr": 60.0,
            "baselines": {"psnr_mean": 10.0},
        }
    )
    assert outcome(findings.model_copy(update={"findings": [row]}), psnr_gain=1) == "not decided"
    other = row.model_copy(update={"attack": "copy_detection"})
    assert outcome(findings.model_copy(update={"findings": [other]}), psnr_gain=1) == "broken"


@pytest.mark.parametrize(
    ("interval", "expected"),
    [((0.7, 0.9), "broken"), ((0.4, 0.55), "holds"), ((0.55, 0.65), "not decided")],
)
def test_an_interval_around_the_limit_decides_nothing(
    findings: Findings, interval: tuple[float, float], expected: str
) -> None:
    middle = sum(interval) / 2
    moved = with_membership(
        findings,
        auc=middle,
        auc_ci=interval,
        tpr_at_fpr=None,
        worst_records=None,
        epsilon_shown=None,
    )
    assert outcome(moved, auc=0.6) == expected


def test_nothing_measured_decides_nothing(findings: Findings) -> None:
    bare = findings.model_copy(update={"findings": []})
    for limits in (
        {"auc": 0.9},
        {"tpr_at_fpr": {0.01: 0.9}},
        {"identified_records": 5},
        {"psnr_gain": 9},
        {"attacked": ["prototypes"]},
    ):
        policy = Policy.model_validate(limits)
        results = judge_findings(policy, bare)
        assert [one.outcome for one in results] == ["not decided"] and fails_build(policy, results)
        assert not fails_build(policy.model_copy(update={"not_decided": "pass"}), results)


def test_a_verdict_that_is_not_listed_breaks_the_policy(
    audited: Callable[[str], SmallAudit],
) -> None:
    found = load_findings(audited("fedavg").path)
    assert outcome(found, verdicts=["consistent"]) == "broken"
    assert outcome(found, verdicts=["consistent", "unprotected", "untested"]) == "holds"
    # the verdict of no surface
    nothing_sent = found.model_copy(update={"surfaces": [], "verdict": "consistent"})
    assert outcome(nothing_sent, verdicts=["consistent"]) == "not decided"
    untested = found.model_copy(
        update={
            "surfaces": [row.model_copy(update={"verdict": "untested"}) for row in found.surfaces]
        }
    )
    assert outcome(untested, verdicts=["consistent"]) == "not decided"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("auk: 1", "auk"),
        ("auc: 2", "auc"),
        ("tpr_at_fpr: {2: 0.1}", "false-positive rate"),
        ("- auc", "KEY: VALUE"),
        ("", "no limit is set"),
        ("auc: [", r"policy\.yaml:1: the \[ of this line is not closed"),
        ("not_decided: pass", "no limit is set"),
    ],
)
def test_a_wrong_policy_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "policy.yaml").write_text(text)
    with pytest.raises(PolicyError, match=says) as refused:
        load_policy(tmp_path / "policy.yaml")
    assert "\n" not in str(refused.value)


def test_limits_of_the_command_line_stand_before_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("auc: 0.9\nepsilon_shown: 3")
    assert load_policy(tmp_path / "policy.yaml", {"auc": 0.6, "psnr_gain": None}) == Policy(
        auc=0.6, epsilon_shown=3
    )


def test_the_policy_that_is_written_first_is_valid() -> None:
    assert Policy.model_validate(yaml.safe_load(STARTING_POLICY)).epsilon_proven == 8


LIMITS = ("epsilon_proven=1", "auc=1", "psnr_gain=99", "tpr_at_fpr.0.9=1")


def test_the_files_for_a_build(
    audited: Callable[[str], SmallAudit], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = audited("fedavg").path
    files = [tmp_path / name for name in ("j.xml", "b.svg", "s.md")]
    asked = [str(run), *(f"fail_on.{limit}" for limit in LIMITS)]
    assert (
        main(
            [
                *asked,
                f"junit={files[0]}",
                f"badge={files[1]}",
                f"markdown={files[2]}",
            ]
        )
        == 3
    )
    suite = ElementTree.parse(files[0]).getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("4", "2") and suite.find(
        "testcase/failure"
    ) is not None
    assert "broken" in files[1].read_text() and ElementTree.parse(files[1])
    assert files[2].read_text().count("\n") == 6
    assert main([str(run), "fail_on.psnr_gain=99", f"junit={files[0]}"]) == main(
        [str(run), "fail_on.psnr_gain=99"]
    )
    for wrong in (["auc=["], ["tpr_at_fpr=0.1", "tpr_at_fpr.0.01=0.5"]):
        assert main([str(run), *(f"fail_on.{limit}" for limit in wrong)]) == 1
        assert "LIMIT=VALUE is needed" in capsys.readouterr().err
    assert main([str(run), "fail_on.auc=1"]) == 0
    assert "policy: holds: auc" in capsys.readouterr().out
    assert draw_badge(judge_findings(Policy(auc=1), load_findings(run))).count("holds") == 2


def test_a_sweep_is_judged_run_by_run(
    audited: Callable[[str], SmallAudit], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("fedavg", "fedavg_dpsgd"):
        shutil.copytree(audited(name).path, tmp_path / "sweep" / name)
    assert main([str(tmp_path / "sweep"), "fail_on.epsilon_proven=1e6"]) == 3
    out = capsys.readouterr().out
    (tmp_path / "sweep" / "stopped").mkdir()
    (tmp_path / "sweep" / "stopped" / "config.yaml").write_text("algo: {}")
    assert main([str(tmp_path / "sweep"), "fail_on.auc=1"]) == 1
    assert "broken" in out.split("fedavg_dpsgd")[0] and "holds" in out.split("fedavg_dpsgd")[1]


@pytest.mark.nightly
def test_the_composite_action_runs_the_gate(
    audited: Callable[[str], SmallAudit], tmp_path: Path
) -> None:
    (step,) = yaml.safe_load(ACTION.read_text())["runs"]["steps"]
    (tmp_path / "policy.yaml").write_text("epsilon_proven: 1")
    given = {
        "RUNS": str(audited("fedavg").path),
        "POLICY": "policy.yaml",
        "JUNIT": "j.xml",
        "BADGE": "b.svg",
        "PYTHONPATH": str(ACTION.parents[3]),
    }
    done = subprocess.run(
        ["bash", "-c", step["run"]],
        cwd=tmp_path,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", **given},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3 and "broken: epsilon_proven" in done.stdout, done.stderr
    assert (tmp_path / "j.xml").exists() and (tmp_path / "b.svg").exists()
