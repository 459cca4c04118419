"""What a person gets of a faulty run, by the command itself: exit status, first line, verdict of
every surface, page, card, limits."""

from __future__ import annotations

import json
import logging
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from attacks.types import Surface
from privdd import gate
from privdd.auditing import verdicts
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.cli.in_process import run_audit_in_process
from privdd.selftest_faults.command_trial import CommandResult
from privdd.selftest_faults.fault_trials import (
    NOISE_PLANTS,
    audit_with_plant,
    run_trial,
    select_faults,
)
from privdd.selftest_faults.profiles import PROFILES
from privdd.verification.run_folder import load_run
from tests import stand_in_weights

stand_in_weights.install()

# a profile for each class of mechanism and each surface that it leads to -> what must be
# contradicted
SURFACES = {
    "dp_head": {"gradient (client)", "global_model (server)"},
    "dp_means": {"prototypes (client)", "global_model (server)"},
    "dp_moments": {"statistics (client)", "global_model (server)"},
    "fedavg_client": {"update (client)", "global_model (server)"},
    "feddm_dp": {"synthetic_images (client)", "labels (client)", "global_model (server)"},
    "fedfed_dp": {"features (client)", "shared_features (server)"},
}


def check_agreement(result: CommandResult, tmp_path: Path) -> None:
    """Everything that says whether a limit holds says the same: findings, card, page, terminal,
    policy, JUnit, status."""
    assert result.disagreement == "" and result.folder is not None
    policy = tmp_path / "policy.yaml"
    junit = tmp_path / "limits.xml"
    policy.write_text("verdicts: [consistent, untested, unprotected]\n")
    status = gate.main([str(result.folder), f"policy={policy}", f"junit={junit}"])
    broken = result.verdict == "contradiction"
    assert (status != 0) == broken == (ET.parse(junit).getroot().find(".//failure") is not None)
    card = json.loads((result.folder / "card.json").read_text())
    assert card["verdict"] == result.verdict
    assert {
        f"{one['surface']} ({one['sender']})": one["verdict"] for one in card["artifacts"]
    } == dict(result.surfaces)
    page = re.sub(r"\s+", " ", (result.folder / "report.html").read_text())
    assert (">Contradicted<" in page) == broken and (
        "No test contradicts the stated guarantee" in page
    ) != broken
    # raises Unverified where the numbers and verdicts do not follow from the folder
    load_run(result.folder)


# one plant of two profiles stays, the fastest
@pytest.mark.nightly(but=["dp_moments-no noise"])
@pytest.mark.parametrize("plant", NOISE_PLANTS)
@pytest.mark.parametrize("profile", SURFACES)
def test_too_little_noise_ends_with_status_2_and_contradicts_every_surface_behind(
    profile: str, plant: str, tmp_path: Path
) -> None:
    result = audit_with_plant(PROFILES[profile], plant, tmp_path / "run")
    assert result.is_contradicted, (result.status, result.first_line, result.error, result.surfaces)
    contradicted = {
        surface for surface, verdict in result.surfaces.items() if verdict == "contradiction"
    }
    assert SURFACES[profile] <= contradicted, result.surfaces
    check_agreement(result, tmp_path)


def test_a_healthy_run_ends_with_status_0_and_all_of_it_is_consistent(tmp_path: Path) -> None:
    result = audit_with_plant(PROFILES["dp_means"], "", tmp_path / "run")
    assert result.is_consistent, (result.status, result.first_line, result.error, result.surfaces)


@pytest.mark.nightly
def test_filing_by_a_rule_of_names_again_is_caught(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every finding under the update, whether the run sends one or not, and each surface judged by
    its own findings: the run is contradicted and no surface is, which the self-test does not take
    for a catch, and the page names our own error."""
    monkeypatch.setattr(GuaranteeSubject, "surface_of", lambda subject, name: Surface.UPDATE)
    monkeypatch.setattr(
        verdicts,
        "accused_releases",
        lambda ledger, finding: {
            row.id for row in ledger.releases if row.surface == str(finding.surface)
        },
    )
    (fault,) = select_faults(NOISE_PLANTS["no noise"])
    outcome = run_trial(PROFILES["dp_means"], fault, 0)
    assert not outcome.is_caught and "differs" in outcome.error and outcome.status == 2, outcome
    result = audit_with_plant(PROFILES["dp_means"], "no noise", tmp_path / "run")
    assert result.status == 2 and not result.is_contradicted
    assert "This is an error of privdd itself" in (result.folder / "report.html").read_text()


def test_a_command_in_this_process_leaves_arguments_and_logging_as_they_were(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = list(sys.argv)
    handlers = list(logging.getLogger().handlers)
    assert run_audit_in_process(["algo=nothing"]) == 1
    assert "algo" in capsys.readouterr().err.splitlines()[-1]
    assert sys.argv == before and logging.getLogger().handlers == handlers
