"""Which finding answers which question of a data-protection impact assessment, in the words that assessments use.

The three risks are those of the Article 29 Working Party (Opinion 05/2014 on anonymisation techniques): singling out,
linkability, inference. The kinds of attack are those that EDPB Opinion 28/2024 on AI models asks to be tested against;
what is to be known of an epsilon follows NIST SP 800-226 (2025). A map of findings, no legal judgement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privdd.reporting import noise_words, words
from privdd.reporting.leaks import believed, doubts, leaks
from privdd.reporting.ledger_view import VISIBLE
from privdd.reporting.schema import FindingRow, Findings
from privdd.reporting.strongest import PICTURE_FAMILIES
from privdd.reporting.words import listed, number, share

NOTHING = "Nothing above guessing was found, which is no evidence that nothing leaks."
UNTRIED = "Not tried in this run."
Pick = Callable[[FindingRow], bool]


@dataclass(frozen=True)
class Answer:
    """question: in plain words; by: the attacks that were tried; found: (surface's title or "", sentence)."""

    term: str
    question: str
    by: str
    found: tuple[tuple[str, str], ...]


def risks(findings: Findings) -> list[Answer]:
    """One answer for each of the three risks."""
    named = tuple(("", sentence) for sentence in _naming(findings))
    return [
        _answer(findings, "Singling out", "Can one record be picked out of all others?", _membership, ("tpr_at_fpr", "auc", "auc_ci", "worst_records"), named),
        _answer(findings, "Linkability", "Can what was sent be tied to a record that somebody already holds?", _links, ("identified", "identified_chance")),
        _answer(findings, "Inference", "Can something be learned of a record, or of a client, that was never sent?", _infers, ("psnr", "pictures", "label_accuracy")),
    ]  # fmt: skip


def kinds(findings: Findings) -> list[tuple[str, str]]:
    """(kind of attack that the EDPB's opinion names, what this run tried of it)."""
    rows = findings.findings
    tried: Mapping[str, tuple[Pick, str]] = {
        "membership inference": (_membership, ""),
        "attribute inference": (lambda r: r.family == "label", "of classes alone; no other attribute was tried"),
        "exfiltration and regurgitation of training data": (lambda r: r.attack == "copy_detection", "copies among synthetic data"),
        "model inversion": (lambda r: r.family == "model_inversion", ""),
        "reconstruction": (lambda r: r.family in PICTURE_FAMILIES - {"model_inversion"}, ""),
    }  # fmt: skip
    return [(kind, _tried(rows, pick, note)) for kind, (pick, note) in tried.items()]


def guarantee(findings: Findings, ledger: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(what has to be known of an epsilon, its value here)."""
    privacy = findings.privacy
    tests = dict.fromkeys(words.attack(row.attack) for row in findings.findings if row.family == "guarantee")
    noise = noise_words.source(privacy.noise) if privacy.noise else "no noise is recorded"
    stated = f"ε at most {number(privacy.epsilon.best)} at δ = {number(privacy.delta)}, over all rounds"
    return [
        ("the limit", stated if privacy.epsilon.best != float("inf") else "none is proven: ε = ∞"),
        ("the unit of privacy", f"one {privacy.unit}; neighbours: {words.relation(privacy)}"),
        ("who sees what is sent (the trust model)", _seers(ledger)),
        ("where the noise comes from", noise),
        ("whether the code does what the proof says", f"looked at by {listed(list(tests))}" if tests else UNTRIED),
        ("what the limit does not cover", _uncovered(findings)),
    ]


def _uncovered(findings: Findings) -> str:
    """The accuracy only where it is of models that never left their clients (``audit.public_facts`` says the same)."""
    utility = findings.utility
    own = utility is not None and (utility.accuracy_kind == "personal" or not findings.run.clients)
    return f"how settings were chosen; {'the accuracy, and ' if own else ''}the findings on this page"


def _membership(row: FindingRow) -> bool:
    return row.family == "membership" and row.status != "nothing_to_read"


def _links(row: FindingRow) -> bool:
    return row.identified is not None and row.identified_chance is not None


def _infers(row: FindingRow) -> bool:
    return row.family == "label" or row.family in PICTURE_FAMILIES


def _answer(
    findings: Findings,
    term: str,
    question: str,
    pick: Pick,
    kept: Sequence[str],
    first: tuple[tuple[str, str], ...] = (),
) -> Answer:
    rows = [row for row in believed(findings.findings, findings) if pick(row)]
    found = [*first, *(("", doubt) for doubt in doubts(findings) if len(rows) < sum(map(pick, findings.findings)))]
    for title, surface in {words.title(row): row.surface for row in findings.surfaces}.items():
        mine = [_only(row, kept) for row in rows if row.surface == surface]
        found += [(title, f"{said}.") for said in leaks(mine)]
    nothing = NOTHING if rows else UNTRIED
    return Answer(term, question, _tried(findings.findings, pick), tuple(found) or (("", nothing),))


def _only(row: FindingRow, kept: Sequence[str]) -> FindingRow:
    """The row with no figures but those of one question, so that nothing is said twice."""
    figures = (
        "auc", "auc_ci", "tpr_at_fpr", "worst_records", "psnr", "pictures", "identified", "identified_chance", "label_accuracy", "kappa",
        "epsilon_measured", "epsilon_stated", "diagnostics",
    )  # fmt: skip
    return row.model_copy(update={name: None for name in figures if name not in kept})


def _tried(rows: Sequence[FindingRow], pick: Pick, note: str = "") -> str:
    names = list(dict.fromkeys(words.attack(row.attack) for row in rows if pick(row)))
    return f"{listed(names)}{f' ({note})' if note else ''}" if names else UNTRIED


def _naming(findings: Findings) -> list[str]:
    """What the accounting alone says of picking one record out of k."""
    rows = findings.privacy.reconstruction or []
    if not rows:
        return []
    row = rows[-1]
    if row.bound >= 1:
        return ["No proven limit keeps a record from being named."]
    unit = findings.privacy.unit
    return [
        f"Proven: the right {unit} among {row.k} is named in at most {share(row.bound)} of cases (chance {share(row.prior)})."
    ]


def _seers(ledger: Mapping[str, Any]) -> str:
    """Everyone to whom a row of the ledger is visible; the analyst is no real party."""
    releases = ledger.get("releases")
    shown = [row.get("visible_to") for row in (releases if isinstance(releases, list) else []) if isinstance(row, dict)]
    names = dict.fromkeys(str(name) for seen in shown if isinstance(seen, list) for name in seen if name != "analyst")
    return listed([VISIBLE.get(name, name) for name in names]) if names else "not recorded"
