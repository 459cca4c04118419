"""``card.json``: the decision lines of a run's page for other programs, and the block that says what was audited.

Written from the run's files alone, so the same run gives the same card. No record, score or picture is in it.
"""

from __future__ import annotations

import json
from typing import Any

from privdd.reporting import noise_words, strongest, words
from privdd.reporting.decision import Decision, decisions, too_small
from privdd.reporting.exposed import KIND
from privdd.reporting.folder import RunRecord
from privdd.reporting.leaks import LARGE_EPSILON
from privdd.reporting.reproduce import recipe
from privdd.reporting.schema import Findings
from privdd.reporting.summary import verdict
from privdd.runtime.files import jsonable

SCHEMA = 1
TARGET = {
    "model": "model", "synthetic": "synthetic set", "updates": "captured updates", "recording": "recorded federation",
    "scores": "scores",
}  # fmt: skip


def known(record: RunRecord, key: str, most: int = 100) -> str:
    """A text of the manifest, at most ``most`` characters; "not recorded" where there is none."""
    value = record.manifest.get(key)
    return value[:most] if isinstance(value, str) and value.strip() else "not recorded"


def attackers(record: RunRecord) -> str:
    """The parties that attacks played, in words."""
    played = dict.fromkeys(words.ADVERSARY[row.adversary][0] for row in record.findings.findings)
    return words.listed(list(played)) if played else "nobody"


def signature(record: RunRecord) -> list[tuple[str, str]]:
    """(name, value): what was audited, when, with what, and against whom."""
    run, noise, target = record.findings.run, record.findings.privacy.noise, record.findings.target
    named = [
        (TARGET[target.kind] if target else "method", run.algo), ("data", run.data), ("date", known(record, "date")),
        ("privdd", run.version), ("commit", known(record, "commit")), *_sizes(record.findings),
        ("seed", str(run.seed)), ("attackers", attackers(record)),
    ]  # fmt: skip
    if run.tail:  # rates and accuracy are not those of the client's data as they were
        named.append(
            ("audited records changed", words.listed([f"{n} {KIND.get(kind, kind)}" for kind, n in run.tail.items()]))
        )
    if seen := known(record, "data_note", 400).partition("; networks see it ")[2]:
        named.append(("networks see images", seen))
    return [*named, ("noise", noise_words.source(noise))] if noise else named


def _sizes(findings: Findings) -> list[tuple[str, str]]:
    """How large what was audited is; of a target what it has of it."""
    run, target = findings.run, findings.target
    federation = [("clients", str(run.clients)), ("rounds", str(run.rounds))]
    if target is None:
        return [*federation, ("preset", run.preset)]
    counts = [("training records", target.training), ("held-out records", target.heldout)]
    named = [(name, str(count)) for name, count in counts if count is not None]
    named += [("outputs read as", target.outputs)] if target.outputs else []
    return (federation if run.clients else []) + named


def card(record: RunRecord) -> dict[str, Any]:
    """Schema 1 of ``card.json`` (docs/reference/run-folder.md); infinity is "inf", what does not apply is null."""
    findings = record.findings
    privacy, claim, said = findings.privacy, strongest.boldest(findings.privacy.claims), verdict(findings)
    small = too_small(findings)
    return {
        "schema": SCHEMA,
        "run": dict(signature(record)) | {"command": recipe(record).command},
        "verdict": findings.verdict,
        "headline": said.title,
        "large_enough": not small,
        "why_too_small": small or None,
        "simulation": noise_words.simulation(privacy),
        "epsilon": {
            "claimed": claim.number if claim else None,
            "proven_at_most": privacy.epsilon.best,
            "shown_at_least": strongest.measured_epsilon(findings.findings),
            "delta": privacy.delta,
            "unit": privacy.unit,
            "relation": privacy.relation,
            "large": LARGE_EPSILON,
        },
        "artifacts": [_artifact(one) for one in decisions(findings, record.ledger)],
    }


def _artifact(one: Decision) -> dict[str, Any]:
    line = one.line
    return {
        "surface": str(line.row.surface),
        "sender": line.row.sender,
        "decision": one.kind,
        "title": one.title,
        "tone": one.tone,
        "why": one.why,
        "conditions": list(one.conditions),
        "attackers_can": list(one.can),
        "seen_by": one.seen_by,
        "verdict": line.verdict,
        "same_values_as": line.holds or None,
        "epsilon": {"stated": line.stated, "proven_at_most": line.accounted, "shown_at_least": line.measured},
        "sample": one.sample or None,
        "large_enough": one.enough,
        "how_sure": one.sure or None,
    }


def card_bytes(record: RunRecord) -> bytes:
    """The file as it is written."""
    return (json.dumps(jsonable(card(record)), indent=1, ensure_ascii=True, allow_nan=False) + "\n").encode()
