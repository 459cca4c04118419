"""Answers to the questions that regulators ask of a run. A map of findings, no legal judgement."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privdd.reporting import finding_selection, summary, wording
from privdd.reporting.leaks import COPY_ATTACKS, membership_phrase
from privdd.reporting.ledger_table import ledger_rows, parties_seeing
from privdd.reporting.schema import FindingRow, Findings
from privdd.reporting.wording import format_number, format_share, join_names

# The three risks are those of the Article 29 Working Party (Opinion 05/2014 on anonymisation
# techniques): singling out, linkability, inference. The kinds of attack are those that EDPB Opinion
# 28/2024 on AI models asks to be tested against; what is to be known of an epsilon follows NIST SP
# 800-226 (2025). A map of findings, no legal judgement.
NOTHING = "No attack was shown to beat chance, which does not show that nothing leaks."
UNTRIED = "Not tried in this run."
FIGURES = (
    "auc",
    "auc_ci",
    "tpr_at_fpr",
    "worst_records",
    "psnr",
    "pictures",
    "identified",
    "identified_chance",
    "label_accuracy",
    "kappa",
    "epsilon_shown",
    "epsilon_stated",
    "diagnostics",
)
# diagnostics: how many copies were counted
IDENTIFIED = ("identified", "identified_chance", "diagnostics")
Pick = Callable[[FindingRow], bool]


@dataclass(frozen=True)
class Answer:
    """question: in plain words; by: the attacks that were tried; found: (surface's title or "",
    sentence)."""

    term: str
    question: str
    by: str
    found: tuple[tuple[str, str], ...]


def answer_risks(findings: Findings) -> list[Answer]:
    """One answer for each of the three risks."""
    return [
        _answer_question(
            findings,
            "Singling out",
            "Can one record be picked out of all others?",
            _singles_out,
            ("tpr_at_fpr", "auc", "auc_ci", "worst_records", "epsilon_shown", *IDENTIFIED),
            _identification_bounds(findings),
        ),
        _answer_question(
            findings,
            "Linkability",
            "Can a message be linked to a record that somebody already holds?",
            _links,
            IDENTIFIED,
        ),
        _answer_question(
            findings,
            "Inference",
            "Can something that was never sent be learned about a record or a client?",
            _infers,
            ("psnr", "pictures", "label_accuracy"),
        ),
    ]


def attack_kinds_tried(findings: Findings) -> list[tuple[str, str]]:
    """(kind of attack that the EDPB's opinion names, what this run tried of it)."""
    rows = findings.findings
    tried: Mapping[str, tuple[Pick, str]] = {
        "membership inference": (_is_membership, ""),
        "attribute inference": (
            lambda r: r.family == "label",
            "of classes alone; no other attribute was tried",
        ),
        "exfiltration and regurgitation of training data": (
            lambda r: r.attack in COPY_ATTACKS,
            "copies among synthetic data",
        ),
        "model inversion": (lambda r: r.family == "model_inversion", ""),
        "reconstruction": (
            lambda r: r.family in finding_selection.PICTURE_FAMILIES - {"model_inversion"},
            "",
        ),
    }
    return [(kind, _attacks_tried(rows, pick, note)) for kind, (pick, note) in tried.items()]


def guarantee_facts(findings: Findings, ledger: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(what has to be known of an epsilon, its value here)."""
    privacy = findings.privacy
    limit = "none is proven: ε = ∞"
    if not math.isinf(privacy.epsilon.proven):
        limit = (
            f"ε at most {format_number(privacy.epsilon.proven)} at δ = "
            f"{format_number(privacy.delta)}, over all rounds"
        )
    viewers = parties_seeing(ledger_rows(ledger))
    if privacy.noise:
        noise = wording.noise_source_text(privacy.noise)
    else:
        noise = "no noise is recorded"
    guarantees = [row for row in findings.findings if row.family == "guarantee"]
    tests = list(dict.fromkeys(wording.attack_title(row.attack) for row in guarantees))
    return [
        ("the limit", limit),
        (
            "the unit of privacy",
            f"one {privacy.unit}; neighbours: {wording.relation_text(privacy)}",
        ),
        (
            "who sees the messages (the trust model)",
            join_names(viewers) if viewers else "not recorded",
        ),
        ("source of the noise", noise),
        (
            "whether the code follows the proof",
            f"tested by {join_names(tests)}" if tests else UNTRIED,
        ),
        ("not covered by the guarantee", _uncovered_text(findings)),
    ]


def _uncovered_text(findings: Findings) -> str:
    uncovered = ["how settings were chosen;"]
    utility = findings.utility
    # of models that never left their clients (``audit.public_facts`` says the same)
    if utility is not None and (utility.accuracy_kind == "personal" or not findings.run.clients):
        uncovered.append("the accuracy, and")
    return " ".join([*uncovered, "the findings on this page"])


def security_controls(findings: Findings) -> list[tuple[str, str]]:
    """(control of OWASP AISVS 1.0, chapter C11.2 on membership inference, what this run shows of
    it)."""
    privacy = findings.privacy
    training = "none: ε = ∞"
    if not math.isinf(privacy.epsilon.proven):
        training = (
            f"ε at most {format_number(privacy.epsilon.proven)} at δ = "
            f"{format_number(privacy.delta)}, one {privacy.unit}, {privacy.relation}"
        )
    believable = summary.believable_findings(findings.findings, findings)
    best = finding_selection.strongest_membership(believable, findings.scope)
    membership = "membership inference was not tried, or its sample was too small"
    if best is not None:
        membership = f"an attacker {membership_phrase(best)}"
    return [
        ("v1.0-C11.2.4: differentially private training", training),
        ("v1.0-C11.2.5: membership inference does not exceed guessing", membership),
    ]


def _is_membership(row: FindingRow) -> bool:
    return row.family == "membership" and row.status != "nothing_to_read"


def _singles_out(row: FindingRow) -> bool:
    return _is_membership(row) or row.attack == "singling_out"


def _links(row: FindingRow) -> bool:
    has_rate = row.identified is not None and row.identified_chance is not None
    return has_rate and row.attack not in ("singling_out", "inference")


def _infers(row: FindingRow) -> bool:
    return (
        row.family in {"label", *finding_selection.PICTURE_FAMILIES}
        and row.attack != "singling_out"
    )


def _answer_question(
    findings: Findings,
    term: str,
    question: str,
    pick: Pick,
    figures: Sequence[str],
    bounds: Sequence[str] = (),
) -> Answer:
    """figures: those of this question; no others are read, so that nothing is said twice. bounds:
    sentences that come first."""
    believable = summary.believable_findings(findings.findings, findings)
    rows = [row for row in believable if pick(row)]
    sentences = [("", bound) for bound in bounds]
    if len(rows) < len([row for row in findings.findings if pick(row)]):
        sentences += [("", doubt) for doubt in summary.target_doubts(findings)]
    hidden = dict.fromkeys({*FIGURES} - {*figures})
    surfaces = {
        wording.surface_title(row, findings.scope): row.surface for row in findings.surfaces
    }
    for title, surface in surfaces.items():
        filed = [row.model_copy(update=hidden) for row in rows if row.surface == surface]
        leaks = summary.leak_sentences(filed, findings.scope)
        sentences += [(title, f"{leak}.") for leak in leaks]
    if not sentences:
        sentences = [("", NOTHING if rows else UNTRIED)]
    return Answer(term, question, _attacks_tried(findings.findings, pick), tuple(sentences))


def _attacks_tried(rows: Sequence[FindingRow], pick: Pick, note: str = "") -> str:
    names = list(dict.fromkeys(wording.attack_title(row.attack) for row in rows if pick(row)))
    if not names:
        return UNTRIED
    if note:
        return f"{join_names(names)} ({note})"
    return join_names(names)


def _identification_bounds(findings: Findings) -> list[str]:
    """Bounds of the accounting alone on picking one record out of k."""
    rows = findings.privacy.reconstruction or []
    if not rows:
        return []
    row = rows[-1]
    if row.bound >= 1:
        return ["No proven guarantee keeps a record from being identified."]
    unit = findings.privacy.unit
    return [
        f"Proven: the right {unit} among {row.k} is named in at most "
        f"{format_share(row.bound)} of cases (chance {format_share(row.prior)})."
    ]
