"""Audit scores that were computed elsewhere: the same report and ``findings.json``, without any training."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from attacks.external_scores import audit_scores
from attacks.statistics import shared_confidence
from attacks.types import SENT_BY_SERVER, Finding, Surface
from privdd import __version__
from privdd.auditing.findings import decide_verdict, finding_row
from privdd.cli.build import check_config_types
from privdd.cli.settings import audit_settings, privacy_settings, to_plain_settings
from privdd.core.validation import BadConfig
from privdd.reporting.findings_file import validate_findings, write_findings
from privdd.reporting.page import write_report
from privdd.reporting.policy import policy_of_settings
from privdd.reporting.terminal import conclude_audit
from privdd.runtime.files import lock_folder, to_plain_json, write_json
from privdd.runtime.manifest import seal_folder
from privdd.runtime.run_folder import RunFolder, check_folder_free, write_tensors

STATED_ELSEWHERE = "stated by whoever brought the scores"


def audit_external_scores(config: DictConfig, path: Path, argv: Sequence[str]) -> int:
    """``scores=FILE`` into ``path`` -> exit status as of ``conclude_audit``; ``privacy.epsilon`` is what is stated.

    Raises ValueError, one line, for a file that cannot be read as such scores.
    """
    began = time.monotonic()
    check_config_types(config)
    audit, privacy = audit_settings(config), privacy_settings(config)
    if audit is None:
        raise BadConfig("scores: a config of privdd.audit is needed")
    stated = None if privacy.epsilon is None else float(privacy.epsilon)
    policy = policy_of_settings(to_plain_settings(config))
    findings = _collect_findings(config, float(audit.confidence), privacy.delta)
    folder = RunFolder(path)
    with lock_folder(path):
        check_folder_free(path)
        for finding in findings:
            kept = {name: value for name, value in finding.figures.items() if not name.startswith("roc_")}
            write_tensors(folder.evidence_file(str(finding.surface), finding.attack), kept)
        data = to_plain_json(_findings_json(config, privacy.delta, stated, findings, time.monotonic() - began))
        result = validate_findings(data, str(folder.findings_file))
        about = {"schema": 1, "version": __version__, "seed": int(config.seed), "command": list(argv)}
        write_json(folder.manifest_file, about)
        write_findings(result, folder.findings_file)
        write_report(path)
        seal_folder(path)
    return conclude_audit(result, path, policy, sys.stdout)


def _collect_findings(config: DictConfig, confidence: float, delta: float) -> list[Finding]:
    """The findings, each with the bound at a confidence that all of them share: this bound decides the verdict."""
    given: dict[str, Any] = {"surface": _scored_surface(config), "delta": delta, "seed": int(config.seed)}
    found = audit_scores(str(config.scores), confidence=confidence, **given)
    shared = audit_scores(str(config.scores), confidence=shared_confidence(confidence, len(found)), **given)
    return [
        _add_familywise_bound(one, strict.measures.get("epsilon_measured"))
        for one, strict in zip(found, shared, strict=True)
    ]


def _add_familywise_bound(finding: Finding, bound: float | None) -> Finding:
    if bound is None:
        return finding
    return finding.with_measures(diagnostics={**finding.measures.get("diagnostics", {}), "epsilon_familywise": bound})


def _scored_surface(config: DictConfig) -> Surface:
    try:
        return Surface(str(config.scores_surface))
    except ValueError:
        known = ", ".join(Surface)
        raise BadConfig(f"scores_surface={config.scores_surface}: allowed are {known}") from None


def _findings_json(
    config: DictConfig, delta: float, stated: float | None, findings: Sequence[Finding], seconds: float
) -> dict[str, Any]:
    unknown = {"pld": math.inf, "rdp": math.inf}
    judged = decide_verdict(unknown, stated, findings)
    rows = [finding_row(finding, stated) for finding in findings]
    why = "nothing here shows how it was derived; only attacks were run"
    claims = [] if stated is None else [{"source": STATED_ELSEWHERE, "epsilon": stated, "sound": False, "why": why}]
    game = {"delta": delta, "unit": "record", "relation": "add_remove"}
    return {
        "schema": 2,
        "run": _run_json(config, seconds),
        "target": {"kind": "scores"},
        "privacy": {**game, "epsilon": unknown, "claims": claims},
        "surfaces": [{**_surface_json(rows[0]["surface"]), "epsilon": unknown, "verdict": judged}],
        "findings": rows,
        "verdict": judged,
    }


def _surface_json(surface: str) -> dict[str, Any]:
    sender = "server" if Surface(surface) in SENT_BY_SERVER else "client"
    unknown = {"rounds": 0, "bytes": 0, "mechanism": "unknown"}
    return {"surface": surface, "sender": sender, "names": ["scores"], "audited": True, **unknown}


def _run_json(config: DictConfig, seconds: float) -> dict[str, Any]:
    spent = {"train": 0.0, "worlds": 0.0, "attacks": seconds, "total": seconds}
    return {
        "algo": str(config.name or "scores"), "data": Path(str(config.scores)).name, "preset": "none",
        "seed": int(config.seed), "version": __version__, "clients": 0, "rounds": 0, "seconds": spent,
    }  # fmt: skip
