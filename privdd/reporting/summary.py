"""What the findings say, in the order of importance: the verdict's words, the worst numbers, the rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from privdd.reporting import words
from privdd.reporting.claimed import boldest, exceeded
from privdd.reporting.schema import FindingRow, Findings, SurfaceRow, TprAt
from privdd.reporting.schema_values import Verdict
from privdd.reporting.unread import SENTENCE, only_unread
from privdd.reporting.without_model import without_model
from privdd.reporting.words import number, one_in, share

PICTURE_FAMILIES = frozenset({"gradient_inversion", "model_inversion", "reconstruction"})
FEATURE_ATTACKS = frozenset({"known_neighbour"})  # their PSNR is of shared features, not of pictures


@dataclass(frozen=True)
class Membership:
    """The strongest membership attack at the smallest false-positive rate that any attack can resolve."""

    row: FindingRow
    fpr: float
    at: TprAt

    @property
    def beats_guessing(self) -> bool:
        return self.at.ci[0] > self.fpr


@dataclass(frozen=True)
class SurfaceLine:
    """One row of the table that a privacy officer reads; epsilons >= 0, infinite, or None for none."""

    row: SurfaceRow
    title: str
    meaning: str
    seen_by: str
    stated: float | None
    accounted: float
    measured: float | None
    worst: tuple[str, ...]


@dataclass(frozen=True)
class Headline:
    """The first words of the report."""

    kind: Verdict
    label: str
    title: str
    sentences: tuple[str, ...]


def bound(row: FindingRow) -> float:
    """The row's lower bound on epsilon; at joint confidence where the run made several tests."""
    joint = (row.diagnostics or {}).get("epsilon_familywise")
    return float(joint) if isinstance(joint, int | float) else row.epsilon_measured or 0.0


def measured(rows: Iterable[FindingRow]) -> FindingRow | None:
    """The finding with the largest lower bound that needs no assumption on the scores' distribution."""
    sound = [r for r in rows if r.epsilon_measured is not None and r.epsilon_validity not in ("gaussian_only", "curve")]
    return max(sound, key=bound, default=None)


def measured_epsilon(rows: Iterable[FindingRow]) -> float | None:
    best = measured(rows)
    return bound(best) if best else None


def worst_membership(rows: Iterable[FindingRow]) -> Membership | None:
    """Among attacks that saw an artifact; rates that the sample is too small for are passed over."""
    found = [
        Membership(row, float(key), at)
        for row in rows
        if row.family == "membership" and row.tpr_at_fpr
        for key, at in row.tpr_at_fpr.items()
        if at.resolvable
    ]
    return min(found, key=lambda m: (m.fpr, -m.at.tpr), default=None)


def blind_psnr(row: FindingRow) -> float | None:
    """The PSNR in dB of the best guess that never saw the artifact, if the finding has one."""
    return max((value for name, value in (row.baselines or {}).items() if name.startswith("psnr")), default=None)


def picture_gain(row: FindingRow) -> float:
    """How many dB a reconstruction is above the best blind guess; 0 where there is none to compare with."""
    base = blind_psnr(row)
    return (row.psnr or 0.0) - base if base is not None else 0.0


def best_pictures(rows: Iterable[FindingRow]) -> FindingRow | None:
    """The reconstruction furthest above a blind guess: an average picture alone can reach a high PSNR."""
    found = [r for r in rows if r.family in PICTURE_FAMILIES and r.psnr is not None and r.attack not in FEATURE_ATTACKS]
    return max(found, key=lambda r: (picture_gain(r), r.psnr or 0.0), default=None)


def surface_lines(findings: Findings) -> list[SurfaceLine]:
    """One line per released surface: gravest verdict first, then the largest measured epsilon."""
    lines = [_surface_line(row, findings) for row in findings.surfaces]
    return sorted(lines, key=lambda line: (words.GRAVITY.index(line.row.verdict), -(line.measured or 0.0)))


def _surface_line(row: SurfaceRow, findings: Findings) -> SurfaceLine:
    mine = [f for f in findings.findings if f.surface == row.surface]
    title, meaning = words.SURFACE[row.surface]
    stated = _stated(mine)
    seen = "the server" if row.sender == "client" else "every client"
    return SurfaceLine(
        row, title, meaning, seen, stated, row.epsilon.best, measured_epsilon(mine), tuple(_worst_phrases(mine))
    )


def _stated(rows: list[FindingRow]) -> float | None:
    """What the surface promises as a whole; the statement that was broken, where one was.

    Guarantee tests hold each mechanism behind a surface to its own part of the epsilon.
    """
    broken = [r for r in rows if r.epsilon_stated is not None and bound(r) > r.epsilon_stated]
    whole = [r for r in rows if r.family != "guarantee"]
    chosen = broken or whole or rows
    return min((r.epsilon_stated for r in chosen if r.epsilon_stated is not None), default=None)


def _worst_phrases(rows: list[FindingRow]) -> list[str]:
    phrases = [r.note or "" for r in rows if (r.diagnostics or {}).get("refuted")]
    broken = [r for r in rows if r.kappa is not None and r.kappa > (r.kappa_allowed or math.inf) * 1.0001]
    if broken:
        worst = max(broken, key=lambda r: r.kappa or 0.0)
        phrases.append(
            f"one record moves it {number(worst.kappa)} times as far as assumed (limit {number(worst.kappa_allowed)})"
        )
    member, best = worst_membership(rows), best_pictures(rows)
    if member:
        phrases.append(_member_phrase(member))
    if best:
        phrases.append(_picture_phrase(best))
    phrases += [_feature_phrase(r) for r in rows if r.attack in FEATURE_ATTACKS and r.psnr is not None]
    phrases += ["nothing in it to tell members by"] if only_unread(rows) else []
    labels = [r.label_accuracy for r in rows if r.label_accuracy is not None]
    if labels:
        phrases.append(f"reads {share(max(labels))} of labels")
    return phrases


def _picture_phrase(best: FindingRow) -> str:
    base = blind_psnr(best)
    tail = f" ({number(base)} dB blind)" if base is not None else ""
    if base is not None and (best.psnr or 0.0) <= base:
        return f"{words.attack(best.attack)}: no picture above a blind guess"
    return f"{words.attack(best.attack)}: rebuilds pictures at {number(best.psnr)} dB{tail}"


def _feature_phrase(row: FindingRow) -> str:
    seen = (row.baselines or {}).get("psnr_as_released", 0.0)
    if (row.psnr or 0.0) <= seen + 1:
        return f"{words.attack(row.attack)}: removes no noise from the features"
    return f"{words.attack(row.attack)}: recovers the features at {number(row.psnr)} dB ({number(seen)} dB as released)"


def _member_phrase(member: Membership) -> str:
    name = words.attack(member.row.attack)
    if not member.beats_guessing:
        return f"{name}: finds members no better than guessing"
    return f"{name}: finds {share(member.at.tpr)} of members, {one_in(member.fpr)} false alarms"


def verdict(findings: Findings) -> Headline:
    """The verdict as a title and two or three sentences that stand on the numbers alone."""
    if (said := without_model(findings)) is not None:
        return Headline(findings.verdict, "Diverged", *said)
    tell = {"unprotected": _unprotected, "untested": _untested, "consistent": _consistent}
    title, first = tell.get(findings.verdict, _contradiction)(findings)
    told = (_claim_sentence, _membership_sentence, _feature_sentence, _picture_sentence)
    sentences = (first, *(tell(findings) for tell in told))
    kind = findings.verdict
    return Headline(kind, words.VERDICT[kind], title, tuple(s for s in sentences if s))


def utility_note(config: Mapping[str, Any]) -> str:
    """A sentence on accuracy that comes from raw records, for a run whose synthetic sets start from real images."""
    algo = config.get("algo")
    start = algo.get("start") if isinstance(algo, Mapping) else None
    return words.REAL_START if start == "real" else ""


def _titles(findings: Findings, kind: Verdict) -> list[str]:
    return [words.SURFACE[row.surface][0].lower() for row in findings.surfaces if row.verdict == kind]


def _unprotected(findings: Findings) -> tuple[str, str]:
    bare = _titles(findings, "unprotected")
    what = f"The {words.listed(bare)}" if bare else "What was sent"
    verb = "carry" if len(bare) != 1 or bare[0].endswith("s") else "carries"
    return (
        f"No proven limit on what {findings.run.algo} reveals about a record.",
        f"{what} {verb} no proven limit, so the run as a whole has ε = {number(findings.privacy.epsilon.best)}.",
    )


def _untested(findings: Findings) -> tuple[str, str]:
    parts = "; ".join(dict.fromkeys(p for row in findings.surfaces if row.verdict == "untested" for p in row.untested))
    stated = f"ε = {number(findings.privacy.epsilon.best)} is stated, and no test looked at all that it rests on"
    return "The stated limit was not tested in every part.", f"{stated}. Not looked at: {parts}."


def _consistent(findings: Findings) -> tuple[str, str]:
    privacy = findings.privacy
    low = measured_epsilon(findings.findings)
    tail = f"the strongest attack showed ε of at least {number(low)}" if low is not None else "no attack measured an ε"
    return (
        "The stated limit held against every attack tried.",
        f"Everything sent is covered by ε = {number(privacy.epsilon.best)} at δ = {number(privacy.delta)}; {tail}. "
        "That is no proof: the proof is the accounting.",
    )


def _contradiction(findings: Findings) -> tuple[str, str]:
    broken = words.listed(_titles(findings, "contradiction") or ["release"])
    title = "The stated limit is false."
    surfaces = {row.surface for row in findings.surfaces if row.verdict == "contradiction"}
    rows = [r for r in findings.findings if r.surface in surfaces]
    over = [r for r in rows if r.epsilon_measured is not None and r.epsilon_stated is not None]
    over = [r for r in over if bound(r) > (r.epsilon_stated or 0) and r.epsilon_validity != "gaussian_only"]
    if over:
        worst = max(over, key=lambda r: (r.epsilon_validity != "curve", bound(r)))
        by, curve = words.attack(worst.attack), worst.epsilon_validity == "curve"
        showed = "refuted the curve behind it, which has to be that of an ε above" if curve else "showed ε ≥"
        return title, (
            f"On the {broken}, ε ≤ {number(worst.epsilon_stated)} is stated, and {by} {showed} "
            f"{number(bound(worst))} at {share(worst.confidence or 0.95)} confidence."
        )
    phrases = _worst_phrases([r for r in rows if r.kappa is not None or r.attack.startswith("t0_")])
    return title, f"On the {broken}, {(*phrases, 'an attack broke the stated limit')[0]}."


def _claim_sentence(findings: Findings) -> str:
    claim, best = boldest(findings.privacy.claims), measured(findings.findings)
    if findings.verdict == "contradiction" or claim is None or best is None:
        return ""
    if not exceeded(claim, bound(best), findings.privacy.delta):
        return ""
    where = words.SURFACE[best.surface][0].lower()
    return (
        f"The printed claim of ε = {number(claim.number)} at δ = {number(claim.delta or findings.privacy.delta)} "
        f"({claim.source}) is less than the ε of at least {number(bound(best))} at δ = {number(findings.privacy.delta)} "
        f"that {words.attack(best.attack)} showed on the {where}."
    )


def _membership_sentence(findings: Findings) -> str:
    worst = worst_membership(findings.findings)
    if worst is None:
        return (
            SENTENCE
            if only_unread(findings.findings)
            else "No membership attack had a sample large enough to resolve a low false-alarm rate."
        )
    where = words.SURFACE[worst.row.surface][0].lower()
    who = words.ADVERSARY[worst.row.adversary][0]
    if not worst.beats_guessing:
        return f"No membership attack did reliably better than guessing at {one_in(worst.fpr)} false alarms."
    return (
        f"From the {where}, {who} picks out {share(worst.at.tpr)} of the training records "
        f"while wrongly naming {one_in(worst.fpr)} outsiders."
    )


def _feature_sentence(findings: Findings) -> str:
    best = max((r for r in findings.findings if r.attack in FEATURE_ATTACKS), key=lambda r: r.psnr or 0.0, default=None)
    seen = (best.baselines or {}).get("psnr_as_released", 0.0) if best else 0.0
    if best is None or (best.psnr or 0.0) <= seen + 1:
        return ""
    return (
        f"The noise is shared: who knows one record of a batch recovers the others' features at {number(best.psnr)} dB "
        f"({number(seen)} dB as released)."
    )


def _picture_sentence(findings: Findings) -> str:
    best = best_pictures(findings.findings)
    if best is None:
        return ""
    where = words.SURFACE[best.surface][0].lower()
    base = blind_psnr(best)
    if base is not None and (best.psnr or 0.0) <= base:
        return (
            f"No attack rebuilt pictures better than a blind guess does "
            f"({number(best.psnr)} dB from the {where}, {number(base)} dB blind)."
        )
    tail = f", where a blind guess reaches {number(base)} dB" if base is not None else ""
    tail += f" ({best.note})" if best.note else ""
    return f"The best picture rebuilt from the {where} reaches {number(best.psnr)} dB PSNR{tail}."
