"""What the findings say, in the order of importance: the verdict's words, the worst numbers, the rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privdd.reporting import noise_words, strongest, words
from privdd.reporting.leaks import LARGE_EPSILON, believed, doubts, label_rates, membership, pictures
from privdd.reporting.same_values import refuted_source, rows_of, verdict_of
from privdd.reporting.schema import FindingRow, Findings, SurfaceRow
from privdd.reporting.schema_values import Verdict
from privdd.reporting.unread import SENTENCE, UNSCORED, only_unread, without_model
from privdd.reporting.words import number, one_in, share


@dataclass(frozen=True)
class SurfaceLine:
    """One row of the table that a privacy officer reads; epsilons >= 0, infinite, or None for none.

    holds: the title of the refuted surface whose values this one sends on, or "".
    """

    row: SurfaceRow
    title: str
    meaning: str
    seen_by: str
    stated: float | None
    accounted: float
    measured: float | None
    worst: tuple[str, ...]
    verdict: Verdict
    holds: str


@dataclass(frozen=True)
class Headline:
    """The first words of the report."""

    kind: Verdict
    label: str
    title: str
    sentences: tuple[str, ...]
    weak: bool = False  # not contradicted, and still no reassurance


def surface_lines(findings: Findings) -> list[SurfaceLine]:
    """One line per released surface: gravest verdict first, then the largest measured epsilon."""
    lines = [_surface_line(row, findings) for row in findings.surfaces]
    return sorted(lines, key=lambda line: (words.GRAVITY.index(line.verdict), -(line.measured or 0.0)))


def _surface_line(row: SurfaceRow, findings: Findings) -> SurfaceLine:
    mine, source = rows_of(row, findings), refuted_source(row, findings)
    title, meaning = words.surface(row)
    seen = "the server" if row.sender == "client" else "every client"
    stated, measured = _stated(mine), strongest.measured_epsilon(mine)
    holds = words.title(source) if source else ""
    return SurfaceLine(
        row, title, meaning, seen, stated, row.epsilon.best, measured,
        (*_worst_phrases(believed(mine, findings)), *_crafted(mine)), verdict_of(row, findings), holds,
    )  # fmt: skip


def _stated(rows: list[FindingRow]) -> float | None:
    """What the surface promises as a whole; the statement that was broken, where one was.

    Guarantee tests hold each mechanism behind a surface to its own part of the epsilon.
    """
    broken = [r for r in rows if r.epsilon_stated is not None and strongest.bound(r) > r.epsilon_stated]
    whole = [r for r in rows if r.family != "guarantee"]
    chosen = broken or whole or rows
    return min((r.epsilon_stated for r in chosen if r.epsilon_stated is not None), default=None)


def _worst_phrases(rows: Sequence[FindingRow]) -> list[str]:
    phrases = [r.note or "" for r in rows if (r.diagnostics or {}).get("refuted")]
    broken = [r for r in rows if r.kappa is not None and r.kappa > (r.kappa_allowed or math.inf) * 1.0001]
    if broken:
        worst = max(broken, key=lambda r: r.kappa or 0.0)
        phrases.append(
            f"one {worst._looks.unit} moves it {number(worst.kappa)} times as far as assumed (limit {number(worst.kappa_allowed)})"
        )
    member, best = strongest.worst_membership(rows), strongest.best_pictures(rows)
    if member:
        phrases.append(f"{words.attack(member.row.attack)} can {membership(member, brief=True)}")
    if best:
        phrases.append(f"{words.attack(best.attack)} can {pictures(best, brief=True)}")
    phrases += [_feature_phrase(r) for r in rows if r.attack in strongest.FEATURE_ATTACKS and r.psnr is not None]
    phrases += [UNSCORED] if only_unread(rows) else []
    read = max(label_rates(rows), key=lambda one: one[1], default=None)
    if read:
        phrases.append(f"reads {share(read[1])} of labels" + (f" (guessing {share(read[2])})" if read[2] else ""))
    return phrases


def _crafted(rows: list[FindingRow]) -> list[str]:
    """Where the ε that was shown is of a record made for the test: it speaks of none that attackers looked for."""
    best = strongest.measured(rows)
    if best is None or best.family != "guarantee" or not strongest.bound(best):
        return []
    low = number(strongest.bound(best))
    return [f"ε ≥ {low} is of a {best._looks.unit} crafted for {words.attack(best.attack)}"]


def _feature_phrase(row: FindingRow) -> str:
    seen = (row.baselines or {}).get("psnr_as_released", 0.0)
    if (row.psnr or 0.0) <= seen + 1:
        return f"{words.attack(row.attack)}: removes no noise from the features"
    return f"{words.attack(row.attack)}: recovers the features at {number(row.psnr)} dB ({number(seen)} dB as released)"


def verdict(findings: Findings) -> Headline:
    """The verdict as a title and two or three sentences that stand on the numbers alone."""
    if (said := without_model(findings)) is not None:
        return Headline(findings.verdict, "Diverged", *said)
    tell = {"unprotected": _unprotected, "untested": _untested, "consistent": _consistent}
    title, first = tell.get(findings.verdict, _contradiction)(findings)
    told = (_claim_sentence, _membership_sentence, _feature_sentence, _picture_sentence)
    sentences = (first, *(tell(findings) for tell in told))
    kind = findings.verdict
    return Headline(kind, words.VERDICT[kind], title, tuple(s for s in sentences if s), weak(kind, findings))


def weak(kind: Verdict, findings: Findings, epsilon: float | None = None) -> bool:
    """Whether "not contradicted" is no reason for green: the limit is large, or anyone can draw the noise again."""
    privacy = findings.privacy
    limit = privacy.epsilon.best if epsilon is None else epsilon
    return kind == "consistent" and (limit > LARGE_EPSILON or (limit > 0 and noise_words.simulation(privacy)))


def utility_note(config: Mapping[str, Any]) -> str:
    """A sentence on accuracy that comes from raw records, for a run whose synthetic sets start from real images."""
    algo = config.get("algo")
    start = algo.get("start") if isinstance(algo, Mapping) else None
    return words.REAL_START if start == "real" else ""


def target_marks(findings: Findings) -> list[str]:
    """What has to be known of a target's files before anything else: doubts first."""
    target = findings.target
    return [*target.doubts, *target.notes] if target else []


def _titles(findings: Findings, kind: Verdict) -> list[str]:
    return [words.title(row).lower() for row in findings.surfaces if row.verdict == kind]


def _unprotected(findings: Findings) -> tuple[str, str]:
    bare = _titles(findings, "unprotected")
    what = f"The {words.listed(bare)}" if bare else "What was sent"
    verb = "carry" if len(bare) != 1 or bare[0].endswith("s") else "carries"
    title = f"No proven limit on what {findings.run.algo} reveals about a {findings.privacy.unit}."
    if findings.target is not None:
        return title, f"{what} {verb} no proven limit: nothing shows how it was protected, so ε is infinite."
    return (
        title,
        f"{what} {verb} no proven limit, so the run as a whole has ε = {number(findings.privacy.epsilon.best)}.",
    )


def _untested(findings: Findings) -> tuple[str, str]:
    parts = "; ".join(dict.fromkeys(p for row in findings.surfaces if row.verdict == "untested" for p in row.untested))
    stated = f"ε = {number(findings.privacy.epsilon.best)} is stated, and no test looked at all that it rests on"
    return "The stated limit was not tested in every part.", f"{stated}. Not looked at: {parts}."


def _consistent(findings: Findings) -> tuple[str, str]:
    privacy = findings.privacy
    low = strongest.measured_epsilon(findings.findings)
    tail = f"the strongest attack showed ε of at least {number(low)}" if low is not None else "no attack measured an ε"
    return (
        _held(privacy.epsilon.best, noise_words.simulation(privacy)),
        f"Everything sent is covered by ε = {number(privacy.epsilon.best)} at δ = {number(privacy.delta)}; {tail}. "
        f"Surviving attacks is not proof; the ε = {number(privacy.epsilon.best)} limit comes from the accounting.",
    )


def _held(epsilon: float, simulated: bool) -> str:
    if epsilon > LARGE_EPSILON:
        return f"The stated limit was not contradicted, but ε = {number(epsilon)} is too large to protect anyone."
    return "No attack tried here contradicted the stated limit." + (" This is a simulation." if simulated else "")


def _contradiction(findings: Findings) -> tuple[str, str]:
    broken = words.listed(_titles(findings, "contradiction") or ["release"])
    title = (
        "The privacy limit stated for it does not hold."
        if findings.target is not None
        else "The privacy limit stated for this method does not hold in this run."
    )
    surfaces = {row.surface for row in findings.surfaces if row.verdict == "contradiction"}
    rows = [r for r in findings.findings if r.surface in surfaces]
    over = [r for r in rows if r.epsilon_measured is not None and r.epsilon_stated is not None]
    over = [r for r in over if strongest.bound(r) > (r.epsilon_stated or 0) and r.epsilon_validity != "gaussian_only"]
    if over:
        worst = max(over, key=lambda r: (r.epsilon_validity != "curve", strongest.bound(r)))
        by, curve = words.attack(worst.attack), worst.epsilon_validity == "curve"
        proves = (
            "refutes the curve behind it: it has to be that of an ε above"
            if curve
            else "proves that the true ε is at least"
        )
        return title, (
            f"On the {broken}, {by} {proves} {number(strongest.bound(worst))} "
            f"({share(worst.confidence or 0.95)} confidence); ε ≤ {number(worst.epsilon_stated)} is stated."
        )
    phrases = _worst_phrases([r for r in rows if r.kappa is not None or r.attack.startswith("t0_")])
    return title, f"On the {broken}, {(*phrases, 'an attack broke the stated limit')[0]}."


def _claim_sentence(findings: Findings) -> str:
    claim, best = strongest.boldest(findings.privacy.claims), strongest.measured(findings.findings)
    if findings.verdict == "contradiction" or claim is None or best is None:
        return ""
    if not strongest.exceeded(claim, strongest.bound(best), findings.privacy.delta):
        return ""
    where = words.title(best).lower()
    return (
        f"The claim of ε = {number(claim.number)} at δ = {number(claim.delta or findings.privacy.delta)} "
        f"({claim.source}) is less than the ε of at least {number(strongest.bound(best))} "
        f"at δ = {number(findings.privacy.delta)} that {words.attack(best.attack)} showed on the {where}."
    )


def _membership_sentence(findings: Findings) -> str:
    worst = strongest.worst_membership(findings.findings)
    if doubts(findings):
        return "Whether members can be told from others cannot be read from these files."
    if worst is None:
        return (
            SENTENCE
            if only_unread(findings.findings)
            else "No membership attack had a sample large enough to resolve a low false-alarm rate."
        )
    where = words.title(worst.row).lower()
    where = f"noised sums behind the {where}" if worst.row.adversary == "analyst" else where
    if not worst.beats_guessing:
        return (
            f"No membership attack did reliably better than guessing, not at {one_in(worst.fpr)} false alarms either."
        )
    return f"From the {where}, {words.ADVERSARY[worst.row.adversary][0]} can {membership(worst, brief=True)}."


def _feature_sentence(findings: Findings) -> str:
    best = max(
        (r for r in findings.findings if r.attack in strongest.FEATURE_ATTACKS),
        key=lambda r: r.psnr or 0.0,
        default=None,
    )
    seen = (best.baselines or {}).get("psnr_as_released", 0.0) if best else 0.0
    if best is None or (best.psnr or 0.0) <= seen + 1:
        return ""
    return (
        f"The noise is shared: who knows one record of a batch recovers the others' features at {number(best.psnr)} dB "
        f"({number(seen)} dB as released)."
    )


def _picture_sentence(findings: Findings) -> str:
    best = strongest.best_pictures(findings.findings)
    if best is None:
        return ""
    where, note = words.title(best).lower(), f" ({best.note})" if best.note else ""
    return f"From the {where}, {words.ADVERSARY[best.adversary][0]} can {pictures(best)}{note}."
