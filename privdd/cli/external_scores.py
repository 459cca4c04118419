"""The audit of membership scores that were computed elsewhere: no training, no replays."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from attacks.external_scores import audit_scores, describe_arrays, load_scores
from attacks.statistics import shared_confidence
from attacks.types import SENT_BY_SERVER, Finding, Surface
from privdd import __version__
from privdd.auditing import findings as audit_findings
from privdd.auditing.verdicts import decide_verdict, refutes_limit
from privdd.cli.build import check_config_types
from privdd.cli.plain_config import to_plain_settings
from privdd.cli.settings import audit_settings, privacy_settings
from privdd.core.validation import BadConfig
from privdd.reporting.policy import Policy, policy_of_settings
from privdd.reporting.schema import validate_findings, write_findings
from privdd.runtime.files import SCHEMA, to_plain_json, write_json
from privdd.runtime.run_files import hold_run_folder, remove_half_written
from privdd.runtime.run_folder import RunFolder, check_folder_free, write_tensors
from privdd.runtime.seal import seal_folder

STATED_ELSEWHERE = "stated by whoever submitted the scores"
UNKNOWN_EPSILON = {"pld": math.inf, "rdp": math.inf}


@dataclass(frozen=True)
class ScoresRequest:
    """What is audited, and against what.

    Attributes:
        file: An .npz with scores and members.
        surface: What the scores were computed from.
        name: The label of the run.
        seed: Of the bounds' resampling.
        confidence: Of all bounds together, in (0, 1).
        delta: Of the guarantee, in [0, 1).
        stated: The stated epsilon, None where none is.
        policy: Limits that the result has to keep.
    """

    file: Path
    surface: Surface
    name: str
    seed: int
    confidence: float
    delta: float
    stated: float | None
    policy: Policy | None


def scores_request(config: DictConfig) -> ScoresRequest:
    """The typed request of a config with ``scores=FILE``.

    Raises:
        ValueError: One line, for a setting that cannot be used.
    """
    check_config_types(config)
    audit = audit_settings(config)
    privacy = privacy_settings(config)
    if audit is None:
        raise BadConfig("scores: a config of privdd.audit is needed")
    try:
        surface = Surface(str(config.scores_surface))
    except ValueError:
        surfaces = ", ".join(Surface)
        raise BadConfig(f"scores_surface={config.scores_surface}: allowed are {surfaces}") from None
    return ScoresRequest(
        Path(str(config.scores)),
        surface,
        str(config.name or "scores"),
        int(config.seed),
        float(audit.confidence),
        privacy.delta,
        None if privacy.epsilon is None else float(privacy.epsilon),
        policy_of_settings(to_plain_settings(config)),
    )


def audit_external_scores(request: ScoresRequest, path: Path, argv: Sequence[str]) -> int:
    """Audit the scores into a folder.

    Args:
        request: What is audited.
        path: A new folder.
        argv: The command, for the manifest.

    Returns:
        The exit status, as of ``conclude_audit``.

    Raises:
        ValueError: One line, for a file that cannot be read as such scores.
    """
    from privdd.reporting.page import write_report
    from privdd.reporting.terminal import conclude_audit

    began = time.monotonic()
    findings = _collect_findings(request)
    folder = RunFolder(path)
    with hold_run_folder(path):
        check_folder_free(path)
        # the first file of a run: from now on the folder proves to be one
        write_json(folder.manifest_file, _manifest_json(request, argv))
        remove_half_written(path)
        for finding in findings:
            _write_evidence(folder, finding)
        data = to_plain_json(_findings_json(request, findings, time.monotonic() - began))
        result = validate_findings(data, str(folder.findings_file))
        write_findings(result, folder.findings_file)
        write_report(path)
        seal_folder(path)
    return conclude_audit(result, path, request.policy, sys.stdout)


def _manifest_json(request: ScoresRequest, argv: Sequence[str]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "version": __version__,
        "seed": request.seed,
        "command": list(argv),
    }


def _write_evidence(folder: RunFolder, finding: Finding) -> None:
    """The arrays that a page is drawn from, without the points of the curve."""
    figures = finding.figures.items()
    arrays = {name: value for name, value in figures if not name.startswith("roc_")}
    write_tensors(folder.evidence_file(str(finding.surface), finding.attack), arrays)


def _collect_findings(request: ScoresRequest) -> list[Finding]:
    """The findings, each with the bound at a confidence that all of them share: this bound decides
    the verdict."""
    terms: dict[str, Any] = {
        "surface": request.surface,
        "delta": request.delta,
        "seed": request.seed,
    }
    findings = audit_scores(str(request.file), confidence=request.confidence, **terms)
    strict_confidence = shared_confidence(request.confidence, len(findings))
    strict = audit_scores(str(request.file), confidence=strict_confidence, **terms)
    decided = []
    for finding, strict_finding in zip(findings, strict, strict=True):
        bound = strict_finding.measures.epsilon_shown
        if bound is not None:
            finding = finding.with_diagnostics(epsilon_familywise=bound)
        decided.append(finding)
    return decided


def _findings_json(
    request: ScoresRequest, findings: Sequence[Finding], seconds: float
) -> dict[str, Any]:
    verdict = decide_verdict(UNKNOWN_EPSILON, request.stated, findings)
    claim = {
        "source": STATED_ELSEWHERE,
        "epsilon": request.stated,
        "sound": False,
        "why": "nothing here shows how it was derived; only attacks were run",
    }
    run = {
        "algo": request.name,
        "data": request.file.name,
        "preset": "none",
        "seed": request.seed,
        "version": __version__,
        "clients": 0,
        "rounds": 0,
        "seconds": {"train": 0.0, "worlds": 0.0, "attacks": seconds, "total": seconds},
    }
    sent = {
        "surface": request.surface,
        "sender": "server" if request.surface in SENT_BY_SERVER else "client",
        "names": ["scores"],
        "audited": True,
        "rounds": 0,
        "bytes": 0,
        "mechanism": "unknown",
        "epsilon": UNKNOWN_EPSILON,
        "verdict": verdict,
    }
    privacy = {
        "delta": request.delta,
        "unit": "record",
        "relation": "add_remove",
        "epsilon": UNKNOWN_EPSILON,
        "claims": [] if request.stated is None else [claim],
    }
    rows = [
        audit_findings.finding_row(finding, request.stated, refutes_limit(finding, request.stated))
        for finding in findings
    ]
    return {
        "schema": SCHEMA,
        "run": run,
        "target": {"kind": "scores", "notes": [describe_arrays(load_scores(str(request.file)))]},
        "privacy": privacy,
        "surfaces": [sent],
        "findings": rows,
        "verdict": verdict,
    }
