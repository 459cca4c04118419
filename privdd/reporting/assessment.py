"""Answers for a data-protection impact assessment, and ``card.json``: a run's decisions for other programs.

The card is written from the run's files alone, so the same run gives the same card. No record, score or picture is in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privdd.reporting import finding_selection, wording
from privdd.reporting.decision import Decision, decide_surfaces, sample_banner
from privdd.reporting.finding_selection import PICTURE_FAMILIES
from privdd.reporting.findings_tables import KIND, VISIBLE
from privdd.reporting.run_record import RunRecord, reproduction_recipe
from privdd.reporting.schema import FindingRow, Findings
from privdd.reporting.summary import (
    LARGE_EPSILON,
    believable_findings,
    leak_sentences,
    membership_phrase,
    target_doubts,
    verdict_headline,
)
from privdd.reporting.wording import format_number, format_share, join_names
from privdd.runtime.files import to_plain_json

# The three risks are those of the Article 29 Working Party (Opinion 05/2014 on anonymisation techniques): singling out,
# linkability, inference. The kinds of attack are those that EDPB Opinion 28/2024 on AI models asks to be tested against;
# what is to be known of an epsilon follows NIST SP 800-226 (2025). A map of findings, no legal judgement.
NOTHING = "No attack beat guessing, which is no evidence that nothing leaks."
UNTRIED = "Not tried in this run."
Pick = Callable[[FindingRow], bool]


@dataclass(frozen=True)
class Answer:
    """question: in plain words; by: the attacks that were tried; found: (surface's title or "", sentence)."""

    term: str
    question: str
    by: str
    found: tuple[tuple[str, str], ...]


def answer_risks(findings: Findings) -> list[Answer]:
    """One answer for each of the three risks."""
    named = tuple(("", sentence) for sentence in _identification_bounds(findings))
    return [
        _answer_question(findings, "Singling out", "Can one record be picked out of all others?", _is_membership, ("tpr_at_fpr", "auc", "auc_ci", "worst_records"), named),
        _answer_question(findings, "Linkability", "Can a message be linked to a record that somebody already holds?", _links_records, ("identified", "identified_chance")),
        _answer_question(findings, "Inference", "Can something that was never sent be learned about a record or a client?", _infers_contents, ("psnr", "pictures", "label_accuracy")),
    ]  # fmt: skip


def attack_kinds_tried(findings: Findings) -> list[tuple[str, str]]:
    """(kind of attack that the EDPB's opinion names, what this run tried of it)."""
    rows = findings.findings
    tried: Mapping[str, tuple[Pick, str]] = {
        "membership inference": (_is_membership, ""),
        "attribute inference": (lambda r: r.family == "label", "of classes alone; no other attribute was tried"),
        "exfiltration and regurgitation of training data": (lambda r: r.attack == "copy_detection", "copies among synthetic data"),
        "model inversion": (lambda r: r.family == "model_inversion", ""),
        "reconstruction": (lambda r: r.family in PICTURE_FAMILIES - {"model_inversion"}, ""),
    }  # fmt: skip
    return [(kind, _attacks_tried(rows, pick, note)) for kind, (pick, note) in tried.items()]


def guarantee_facts(findings: Findings, ledger: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(what has to be known of an epsilon, its value here)."""
    privacy = findings.privacy
    tests = dict.fromkeys(wording.attack_title(row.attack) for row in findings.findings if row.family == "guarantee")
    noise = wording.noise_source_text(privacy.noise) if privacy.noise else "no noise is recorded"
    stated = f"ε at most {format_number(privacy.epsilon.best)} at δ = {format_number(privacy.delta)}, over all rounds"
    return [
        ("the limit", stated if privacy.epsilon.best != float("inf") else "none is proven: ε = ∞"),
        ("the unit of privacy", f"one {privacy.unit}; neighbours: {wording.relation_text(privacy)}"),
        ("who sees what is sent (the trust model)", _parties_that_see(ledger)),
        ("where the noise comes from", noise),
        ("whether the code does what the proof says", f"looked at by {join_names(list(tests))}" if tests else UNTRIED),
        ("what the limit does not cover", _uncovered_by_limit(findings)),
    ]


def security_controls(findings: Findings) -> list[tuple[str, str]]:
    """(control of OWASP AISVS 1.0, chapter C11.2 on membership inference, what this run shows of it)."""
    privacy, best = (
        findings.privacy,
        finding_selection.strongest_membership(believable_findings(findings.findings, findings)),
    )
    noised = f"ε at most {format_number(privacy.epsilon.best)} at δ = {format_number(privacy.delta)}, one {privacy.unit}, {privacy.relation}"
    tried = (
        "membership inference was not tried, or its sample was too small"
        if best is None
        else f"an attacker can {membership_phrase(best)}"
    )
    return [
        (
            "v1.0-C11.2.4: differentially private training",
            "none: ε = ∞" if math.isinf(privacy.epsilon.best) else noised,
        ),
        ("v1.0-C11.2.5: membership inference does not exceed guessing", tried),
    ]


def _uncovered_by_limit(findings: Findings) -> str:
    """The accuracy only where it is of models that never left their clients (``audit.public_facts`` says the same)."""
    utility = findings.utility
    own = utility is not None and (utility.accuracy_kind == "personal" or not findings.run.clients)
    return f"how settings were chosen; {'the accuracy, and ' if own else ''}the findings on this page"


def _is_membership(row: FindingRow) -> bool:
    return row.family == "membership" and row.status != "nothing_to_read"


def _links_records(row: FindingRow) -> bool:
    return row.identified is not None and row.identified_chance is not None


def _infers_contents(row: FindingRow) -> bool:
    return row.family == "label" or row.family in PICTURE_FAMILIES


def _answer_question(
    findings: Findings,
    term: str,
    question: str,
    pick: Pick,
    kept: Sequence[str],
    first: tuple[tuple[str, str], ...] = (),
) -> Answer:
    rows = [row for row in believable_findings(findings.findings, findings) if pick(row)]
    found = [
        *first,
        *(("", doubt) for doubt in target_doubts(findings) if len(rows) < sum(map(pick, findings.findings))),
    ]
    for title, surface in {wording.surface_title(row): row.surface for row in findings.surfaces}.items():
        mine = [_without_other_figures(row, kept) for row in rows if row.surface == surface]
        found += [(title, f"{said}.") for said in leak_sentences(mine)]
    nothing = NOTHING if rows else UNTRIED
    return Answer(term, question, _attacks_tried(findings.findings, pick), tuple(found) or (("", nothing),))


def _without_other_figures(row: FindingRow, kept: Sequence[str]) -> FindingRow:
    """The row with no figures but those of one question, so that nothing is said twice."""
    figures = (
        "auc", "auc_ci", "tpr_at_fpr", "worst_records", "psnr", "pictures", "identified", "identified_chance", "label_accuracy", "kappa",
        "epsilon_measured", "epsilon_stated", "diagnostics",
    )  # fmt: skip
    return row.model_copy(update={name: None for name in figures if name not in kept})


def _attacks_tried(rows: Sequence[FindingRow], pick: Pick, note: str = "") -> str:
    names = list(dict.fromkeys(wording.attack_title(row.attack) for row in rows if pick(row)))
    return f"{join_names(names)}{f' ({note})' if note else ''}" if names else UNTRIED


def _identification_bounds(findings: Findings) -> list[str]:
    """Bounds of the accounting alone on picking one record out of k."""
    rows = findings.privacy.reconstruction or []
    if not rows:
        return []
    row = rows[-1]
    if row.bound >= 1:
        return ["No proven limit keeps a record from being named."]
    unit = findings.privacy.unit
    return [
        f"Proven: the right {unit} among {row.k} is named in at most {format_share(row.bound)} of cases (chance {format_share(row.prior)})."
    ]


def _parties_that_see(ledger: Mapping[str, Any]) -> str:
    """Everyone to whom a row of the ledger is visible; the analyst is no real party."""
    releases = ledger.get("releases")
    shown = [row.get("visible_to") for row in (releases if isinstance(releases, list) else []) if isinstance(row, dict)]
    names = dict.fromkeys(str(name) for seen in shown if isinstance(seen, list) for name in seen if name != "analyst")
    return join_names([VISIBLE.get(name, name) for name in names]) if names else "not recorded"


SCHEMA = 1
TARGET = {
    "model": "model", "synthetic": "synthetic set", "updates": "captured updates", "recording": "recorded federation",
    "scores": "scores",
}  # fmt: skip


def manifest_text(record: RunRecord, key: str, most: int = 100) -> str:
    """A text of the manifest, at most ``most`` characters; "not recorded" where there is none."""
    value = record.manifest.get(key)
    return value[:most] if isinstance(value, str) and value.strip() else "not recorded"


def attacking_parties(record: RunRecord) -> str:
    """The parties that attacks played, in words."""
    played = dict.fromkeys(wording.ADVERSARY[row.adversary][0] for row in record.findings.findings)
    return wording.join_names(list(played)) if played else "nobody"


def audit_signature(record: RunRecord) -> list[tuple[str, str]]:
    """(name, value): what was audited, when, with what, and against whom."""
    run, noise, target = record.findings.run, record.findings.privacy.noise, record.findings.target
    named = [
        (TARGET[target.kind] if target else "method", run.algo), ("data", run.data), ("date", manifest_text(record, "date")),
        ("privdd", run.version), ("commit", manifest_text(record, "commit")), *_audited_sizes(record.findings),
        ("seed", str(run.seed)), ("attackers", attacking_parties(record)),
    ]  # fmt: skip
    if run.tail:  # rates and accuracy are not those of the client's data as they were
        named.append(
            (
                "audited records changed",
                wording.join_names([f"{n} {KIND.get(kind, kind)}" for kind, n in run.tail.items()]),
            )
        )
    if seen := manifest_text(record, "data_note", 400).partition("; networks see it ")[2]:
        named.append(("networks see images", seen))
    return [*named, ("noise", wording.noise_source_text(noise))] if noise else named


def _audited_sizes(findings: Findings) -> list[tuple[str, str]]:
    """How large what was audited is; of a target what it has of it."""
    run, target = findings.run, findings.target
    federation = [("clients", str(run.clients)), ("rounds", str(run.rounds))]
    if target is None:
        return [*federation, ("preset", run.preset)]
    counts = [("training records", target.training), ("held-out records", target.heldout)]
    named = [(name, str(count)) for name, count in counts if count is not None]
    named += [("outputs read as", target.outputs)] if target.outputs else []
    return (federation if run.clients else []) + named


def decision_card(record: RunRecord) -> dict[str, Any]:
    """Schema 1 of ``decision_card.json`` (docs/reference/run-folder.md); infinity is "inf", what does not apply is null."""
    findings = record.findings
    privacy, claim, said = (
        findings.privacy,
        finding_selection.boldest_claim(findings.privacy.claims),
        verdict_headline(findings),
    )
    small = sample_banner(findings)
    return {
        "schema": SCHEMA,
        "run": dict(audit_signature(record)) | {"command": reproduction_recipe(record).command},
        "verdict": findings.verdict,
        "headline": said.title,
        "large_enough": not small,
        "why_too_small": small or None,
        "simulation": wording.is_simulation_noise(privacy),
        "epsilon": {
            "claimed": claim.number if claim else None,
            "claimed_delta": (claim.delta or privacy.delta) if claim else None,
            "proven_at_most": privacy.epsilon.best,
            "shown_at_least": finding_selection.measured_epsilon(findings.findings),
            "delta": privacy.delta,
            "unit": privacy.unit,
            "relation": privacy.relation,
            "large": LARGE_EPSILON,
        },
        "artifacts": [_artifact_entry(one) for one in decide_surfaces(findings, record.ledger)],
    }


def _artifact_entry(one: Decision) -> dict[str, Any]:
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


def encode_card(record: RunRecord) -> bytes:
    """The file as it is written."""
    return (
        json.dumps(to_plain_json(decision_card(record)), indent=1, ensure_ascii=True, allow_nan=False) + "\n"
    ).encode()
