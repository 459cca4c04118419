"""``card.json``: the decisions of a run for other programs."""

from __future__ import annotations

import json
from typing import Any

from privdd.reporting import finding_selection, summary, wording
from privdd.reporting.decision import Decision, decide_surfaces, sample_banner
from privdd.reporting.hard_records import changed_records_text
from privdd.reporting.run_record import RunRecord, reproduction_recipe
from privdd.reporting.schema import Findings
from privdd.reporting.wording import join_names
from privdd.runtime.files import to_plain_json

SCHEMA = 1
TARGET = {
    "model": "model",
    "synthetic": "synthetic set",
    "updates": "captured updates",
    "recording": "recorded federation",
    "message": "message of a client",
    "scores": "scores",
}
NOT_PUBLISHED = "these are not the published files"  # part of a data set's note


def manifest_text(record: RunRecord, key: str, most: int = 100) -> str:
    """A text of the manifest, at most ``most`` characters; "not recorded" where there is none."""
    value = record.manifest.get(key)
    if isinstance(value, str) and value.strip():
        return value[:most]
    return "not recorded"


def attacking_parties(record: RunRecord) -> str:
    """The parties that attacks played, in words."""
    played = dict.fromkeys(wording.ADVERSARY[row.adversary][0] for row in record.findings.findings)
    return join_names(list(played)) if played else "nobody"


def audit_signature(record: RunRecord) -> list[tuple[str, str]]:
    """(name, value): what was audited, when, with what, and against whom."""
    run = record.findings.run
    noise = record.findings.privacy.noise
    target = record.findings.target
    note = manifest_text(record, "data_note", 400)
    facts = [
        (TARGET[target.kind] if target else "method", run.algo),
        ("data", run.data),
        ("date", manifest_text(record, "date")),
        ("privdd", run.version),
        ("commit", manifest_text(record, "commit")),
        *_audited_sizes(record.findings),
        ("seed", str(run.seed)),
        ("attackers", attacking_parties(record)),
    ]
    if run.tail:  # rates and accuracy are not those of the client's data as they were
        facts.append(("audited records changed", changed_records_text(run)))
    view = note.partition("; networks see it ")[2]
    if view:
        facts.append(("networks see images", view))
    if NOT_PUBLISHED in note:
        facts.append(("records", NOT_PUBLISHED))
    if noise is not None:
        facts.append(("noise", wording.noise_source_text(noise)))
    return facts


def _audited_sizes(findings: Findings) -> list[tuple[str, str]]:
    """How large what was audited is; of a target what it has of it."""
    run = findings.run
    target = findings.target
    federation = [("clients", str(run.clients)), ("rounds", str(run.rounds))]
    if target is None:
        return [*federation, ("preset", run.preset)]
    sizes = federation if run.clients else []
    counts = [("training records", target.training), ("held-out records", target.heldout)]
    sizes += [(name, str(count)) for name, count in counts if count is not None]
    if target.outputs:
        sizes.append(("outputs read as", target.outputs))
    return sizes


def decision_card(record: RunRecord) -> dict[str, Any]:
    """Build what ``card.json`` holds, schema 1.

    Args:
        record: The run.

    Returns:
        Keys and values of docs/reference/run-folder.md; infinity is ``math.inf``, what does not
        apply is None.
    """
    findings = record.findings
    privacy = findings.privacy
    small = sample_banner(findings)
    claim = finding_selection.boldest_claim(privacy.claims)
    claimed = None
    claimed_delta = None
    if claim is not None:
        claimed = claim.number
        claimed_delta = claim.delta or privacy.delta
    return {
        "schema": SCHEMA,
        "run": dict(audit_signature(record)) | {"command": reproduction_recipe(record).command},
        "verdict": findings.verdict,
        "headline": summary.verdict_headline(findings).title,
        "large_enough": not small,
        "why_too_small": small or None,
        "simulation": wording.is_simulation_noise(privacy),
        "epsilon": {
            "claimed": claimed,
            "claimed_delta": claimed_delta,
            "proven": privacy.epsilon.proven,
            "shown": finding_selection.shown_epsilon(findings.findings),
            "delta": privacy.delta,
            "unit": privacy.unit,
            "relation": privacy.relation,
            "large": summary.LARGE_EPSILON,
        },
        "artifacts": [
            _artifact_entry(decision) for decision in decide_surfaces(findings, record.ledger)
        ],
    }


def _artifact_entry(decision: Decision) -> dict[str, Any]:
    line = decision.line
    return {
        "surface": str(line.row.surface),
        "sender": line.row.sender,
        "decision": decision.kind,
        "title": decision.title,
        "tone": decision.tone,
        "why": decision.why,
        "conditions": list(decision.conditions),
        "attackers_can": list(decision.can),
        "seen_by": decision.seen_by,
        "verdict": line.verdict,
        "computed_from": line.holds or None,
        "epsilon": {
            "stated": line.stated,
            "proven": line.proven,
            "shown": line.shown,
        },
        "sample": decision.sample or None,
        "large_enough": decision.enough,
        "how_sure": decision.sure or None,
    }


def encode_card(record: RunRecord) -> bytes:
    """The file as it is written."""
    card = to_plain_json(decision_card(record))
    return (json.dumps(card, indent=1, allow_nan=False) + "\n").encode()
