"""What the findings say, in the order of importance: the verdict's words, the worst numbers, the
leaks in sentences."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privdd.reporting import finding_selection, wording
from privdd.reporting.finding_selection import (
    FEATURE_ATTACKS,
    SENTENCE,
    UNSCORED,
    diverged_run_text,
    epsilon_bound,
    failed_findings,
    findings_on_surface,
    has_no_signal,
    lacks_map,
    misfiled_findings,
    refuted_source,
    refuting_findings,
    unread_attacks,
)
from privdd.reporting.leaks import (
    LARGE_EPSILON,
    LeakResult,
    feature_phrase,
    label_rates,
    membership_phrase,
    noise_leak,
    picture_phrase,
    rank_leaks,
    removes_noise,
)
from privdd.reporting.schema import GRAVITY, FindingRow, Findings, SurfaceRow, Verdict
from privdd.reporting.wording import format_number, format_share, one_in


def leak_sentences(rows: Sequence[FindingRow]) -> list[str]:
    """Broken limits, then every kind of leak, the gravest first; empty where nothing was shown to
    beat chance."""
    return [*_limit_sentences(rows), *(leak.sentence for leak in rank_leaks(rows))]


def target_doubts(findings: Findings) -> list[str]:
    """Why a target's files allow no comparison of members with others; empty for a simulation."""
    return findings.target.doubts if findings.target else []


def believable_findings(rows: Sequence[FindingRow], findings: Findings) -> Sequence[FindingRow]:
    """The rows that can be read as leaks: where there are doubts, none that compares members with
    others."""
    if not target_doubts(findings):
        return rows
    return [row for row in rows if row.family != "membership" and row.identified is None]


def is_certain(rows: Sequence[FindingRow]) -> bool:
    """Whether any of it has an interval above chance, at 95 % for all rates of the run; the typical
    image and features have none."""
    return bool(_limit_sentences(rows)) or any(leak.certain for leak in rank_leaks(rows))


def _broken_limit(rows: Iterable[FindingRow]) -> FindingRow | None:
    """The largest bound above its stated ε; a bound on a curve only where there is no other."""
    sound = (
        r for r in rows if r.epsilon_stated is not None and r.epsilon_validity != "gaussian_only"
    )
    over = (r for r in sound if epsilon_bound(r) > (r.epsilon_stated or 0.0))
    return max(over, key=lambda r: (r.epsilon_validity != "curve", epsilon_bound(r)), default=None)


def _largest_move(rows: Iterable[FindingRow]) -> FindingRow | None:
    """The finding whose kappa is furthest above what is allowed."""
    over = (
        r for r in rows if r.kappa is not None and r.kappa > (r.kappa_allowed or math.inf) * 1.0001
    )
    return max(over, key=lambda r: r.kappa or 0.0, default=None)


def _refutations(rows: Iterable[FindingRow]) -> list[str]:
    return [row.note or "" for row in rows if (row.diagnostics or {}).get("refuted")]


def _limit_sentences(rows: Sequence[FindingRow]) -> list[str]:
    said = []
    if (worst := _broken_limit(rows)) is not None:
        by = wording.attack_title(worst.attack)
        curve = worst.epsilon_validity == "curve"
        proves = (
            "refutes the stated curve: the true ε is above"
            if curve
            else "proves that the true ε is at least"
        )
        said.append(
            f"{by[0].upper()}{by[1:]} {proves} {format_number(epsilon_bound(worst))} "
            f"({format_share(worst.confidence or 0.95)} confidence); "
            f"{format_number(worst.epsilon_stated)} is stated"
        )
    if (worst := _largest_move(rows)) is not None:
        said.append(
            f"One {worst._context.unit} moves it {format_number(worst.kappa)} times as "
            f"far as the proof allows for ({format_number(worst.kappa_allowed)})"
        )
    return said + [note for note in _refutations(rows) if note]


def has_bare_noise(row: SurfaceRow) -> bool:
    """Whether no epsilon is proven for a surface and none is refuted, so that its noise, if there
    is any, is judged by what tests show of it."""
    return math.isinf(row.epsilon.proven) and row.verdict != "contradiction"


@dataclass(frozen=True)
class SurfaceLine:
    """One row of the table that a privacy officer reads; epsilons >= 0, infinite, or None for none.

    holds: the title of the refuted surface that this one was computed from, or "".
    """

    row: SurfaceRow
    title: str
    meaning: str
    seen_by: str
    stated: float | None
    proven: float
    shown: float | None
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
    """One line per released surface: gravest verdict first, then the largest shown epsilon."""
    lines = [_surface_line(row, findings) for row in findings.surfaces]
    return sorted(lines, key=lambda line: (GRAVITY.index(line.verdict), -(line.shown or 0.0)))


def _surface_line(row: SurfaceRow, findings: Findings) -> SurfaceLine:
    mine = findings_on_surface(row, findings)
    source = refuted_source(row, findings)
    title, meaning = wording.surface_title_and_meaning(row)
    seen = "the server" if row.sender == "client" else "every client"
    stated = _stated_epsilon(mine)
    shown = finding_selection.shown_epsilon(mine)
    holds = wording.surface_title(source) if source else ""
    return SurfaceLine(
        row,
        title,
        meaning,
        seen,
        stated,
        row.epsilon.proven,
        shown,
        (*_worst_phrases(believable_findings(mine, findings)), *_crafted_record_note(mine)),
        row.verdict,
        holds,
    )


def _stated_epsilon(rows: list[FindingRow]) -> float | None:
    """The ε stated for the whole surface, or the statement that was broken, if one was.

    Guarantee tests hold each mechanism behind a surface to its own part of the epsilon.
    """
    broken = [
        r for r in rows if r.epsilon_stated is not None and epsilon_bound(r) > r.epsilon_stated
    ]
    whole = [r for r in rows if r.family != "guarantee"]
    chosen = broken or whole or rows
    return min((r.epsilon_stated for r in chosen if r.epsilon_stated is not None), default=None)


def _worst_phrases(rows: Sequence[FindingRow]) -> list[str]:
    phrases = _refutations(rows)
    if (worst := _largest_move(rows)) is not None:
        phrases.append(
            f"one {worst._context.unit} moves it {format_number(worst.kappa)} times as "
            f"far as assumed (limit {format_number(worst.kappa_allowed)})"
        )
    leaks = rank_leaks(rows)
    phrases += [leak.table_phrase for leak in leaks]
    phrases += _failed_phrases(rows, {leak.row.family for leak in leaks})
    phrases += [UNSCORED] if has_no_signal(rows) else []
    return phrases


def _failed_phrases(rows: Sequence[FindingRow], leaking: Collection[str]) -> list[str]:
    """Of the families in which nothing was shown to beat chance, what the strongest attack
    reached."""
    said = []
    member = finding_selection.strongest_membership(rows)
    best = finding_selection.strongest_reconstruction(rows)
    if member and "membership" not in leaking:
        said.append(
            f"{wording.attack_title(member.row.attack)} {membership_phrase(member, brief=True)}"
        )
    if best and not finding_selection.rebuilds_records(best):
        said.append(f"{wording.attack_title(best.attack)} {picture_phrase(best, brief=True)}")
    for row in rows:
        if row.attack in FEATURE_ATTACKS and row.psnr is not None and not removes_noise(row):
            said.append(f"{wording.attack_title(row.attack)} {feature_phrase(row)}")
    if "label" not in leaking:
        read = max(label_rates(rows), key=lambda one: one[1], default=None)
        said += (
            [
                f"{wording.attack_title(read[0].attack)} was not shown to read labels "
                "better than chance"
            ]
            if read
            else []
        )
    return said


def _crafted_record_note(rows: list[FindingRow]) -> list[str]:
    """The note that the shown ε holds for a record crafted for the test, and not for the audited
    records."""
    best = finding_selection.largest_bound_finding(rows)
    if best is None or best.family != "guarantee" or not epsilon_bound(best):
        return []
    low = format_number(epsilon_bound(best))
    return [
        f"ε ≥ {low} is of a {best._context.unit} crafted for {wording.attack_title(best.attack)}"
    ]


def verdict_headline(findings: Findings) -> Headline:
    """The verdict as a title and two or three sentences that stand on the numbers alone."""
    if (said := diverged_run_text(findings)) is not None:
        return Headline(findings.verdict, "Diverged", *said)
    tell = {
        "unprotected": _unprotected_headline,
        "untested": _untested_headline,
        "consistent": _consistent_headline,
    }
    title, first = tell.get(findings.verdict, _contradiction_headline)(findings)
    leaks = [
        leak.first_sentence for leak in leaks_of_run(findings) if leak.kind != "refutation"
    ]  # the verdict's own sentence names what is refuted
    kind = findings.verdict
    refuted = [_claim_sentence(findings)]
    basis = [first]
    if kind == "contradiction":
        refuted = [first]
        basis = []
    basis.append(_misfiled_sentence(findings))
    sentences = (*refuted, *leaks[:1], *basis, *leaks[1:], *unshown_sentences(findings))
    return Headline(
        kind,
        wording.VERDICT[kind],
        title,
        tuple(s for s in sentences if s),
        is_weak_limit(kind, findings),
    )


def is_weak_limit(kind: Verdict, findings: Findings, epsilon: float | None = None) -> bool:
    """Whether "not contradicted" is no reason for green: the limit is large, or anyone can draw the
    noise again."""
    privacy = findings.privacy
    limit = privacy.epsilon.proven if epsilon is None else epsilon
    return kind == "consistent" and (
        limit > LARGE_EPSILON or (limit > 0 and wording.is_simulation_noise(privacy))
    )


def utility_note(config: Mapping[str, Any]) -> str:
    """A sentence on accuracy that comes from raw records, for a run whose synthetic sets start from
    real images."""
    algo = config.get("algo")
    start = algo.get("start") if isinstance(algo, Mapping) else None
    return wording.REAL_START if start == "real" else ""


def target_marks(findings: Findings) -> list[str]:
    """Warnings about a target's files, the doubts first."""
    target = findings.target
    return [*target.doubts, *target.notes] if target else []


def _surface_titles(findings: Findings, kind: Verdict) -> list[str]:
    titles = (
        wording.surface_title(row).lower() for row in findings.surfaces if row.verdict == kind
    )
    return list(dict.fromkeys(titles))  # clients and server may send what has one name


def _unprotected_headline(findings: Findings) -> tuple[str, str]:
    bare = _surface_titles(findings, "unprotected")
    what = f"The {wording.join_names(bare)}" if bare else "What was sent"
    verb = "carry" if len(bare) != 1 or bare[0].endswith("s") else "carries"
    title = f"No proven limit on what {findings.run.algo} reveals about a {findings.privacy.unit}."
    why = f", so the run as a whole has ε = {format_number(findings.privacy.epsilon.proven)}"
    if findings.target is not None:
        why = ": nothing shows how it was protected, so ε is infinite"
    return title, f"{what} {verb} no proven limit{why}."


def _untested_headline(findings: Findings) -> tuple[str, str]:
    parts = "; ".join(
        dict.fromkeys(
            p for row in findings.surfaces if row.verdict == "untested" for p in row.untested
        )
    )
    epsilon = format_number(findings.privacy.epsilon.proven)
    stated = f"ε = {epsilon} is stated, but part of what it rests on was not tested"
    return "The stated limit was not tested in every part.", f"{stated}. Not looked at: {parts}."


def _consistent_headline(findings: Findings) -> tuple[str, str]:
    privacy = findings.privacy
    low = finding_selection.shown_epsilon(findings.findings)
    epsilon = format_number(privacy.epsilon.proven)
    title = "No attack tried here contradicted the stated limit."
    title += " This is a simulation." if wording.is_simulation_noise(privacy) else ""
    if privacy.epsilon.proven > LARGE_EPSILON:
        title = (
            f"The stated limit was not contradicted, but ε = {epsilon} is too large to "
            "protect anyone."
        )
    shown = f"the strongest attack showed ε of at least {format_number(low)}"
    return title, (
        f"Everything sent is covered by ε = {epsilon} at δ = {format_number(privacy.delta)}; "
        f"{'no attack measured an ε' if low is None else shown}. "
        f"Surviving attacks is not proof; the ε = {epsilon} limit comes from the accounting."
    )


def _contradiction_headline(findings: Findings) -> tuple[str, str]:
    rows = _accused_rows(findings)
    accused = [row for row in findings.surfaces if row.surface in {r.surface for r in rows}]
    titles = list(dict.fromkeys(wording.surface_title(row).lower() for row in accused))
    broken = wording.join_names(titles or _surface_titles(findings, "contradiction") or ["release"])
    title = "The privacy limit stated for this method does not hold in this run."
    if findings.target is not None:
        title = "The privacy limit stated for it does not hold."
    worst = _broken_limit(rows)
    claims = [claim.number for claim in findings.privacy.claims]
    if worst is not None and worst.epsilon_stated in claims and findings.target is None:
        title = "The paper's claim is contradicted."
    return title, f"On the {broken}, {_refutation_phrase(rows)}."


def _accused_rows(findings: Findings) -> list[FindingRow]:
    """The refuting findings; of a file that marks none, all on the contradicted surfaces."""
    surfaces = {row.surface for row in findings.surfaces if row.verdict == "contradiction"}
    return refuting_findings(findings) or [r for r in findings.findings if r.surface in surfaces]


def _refutation_phrase(rows: Sequence[FindingRow]) -> str:
    """How the stated guarantee is refuted, as a sentence without its place."""
    worst = _broken_limit(rows)
    if worst is None:
        tests = [r for r in rows if r.kappa is not None or r.attack.startswith("t0_")]
        return next(iter(_worst_phrases(tests)), "an attack broke the stated limit")
    proves = "proves that the true ε is at least"
    if worst.epsilon_validity == "curve":
        proves = "refutes the curve behind it: it has to be that of an ε above"
    return (
        f"{wording.attack_title(worst.attack)} {proves} "
        f"{format_number(epsilon_bound(worst))} "
        f"({format_share(worst.confidence or 0.95)} confidence); ε ≤ "
        f"{format_number(worst.epsilon_stated)} is stated"
    )


def _refutation_leak(findings: Findings) -> LeakResult | None:
    """The refuted guarantee of a run as its gravest leak; None if none is refuted."""
    rows = _accused_rows(findings)
    if findings.verdict != "contradiction" or not rows:
        return None
    row = _broken_limit(rows) or _largest_move(rows) or rows[0]
    phrase = _refutation_phrase(rows)
    return LeakResult(row, "refutation", phrase, phrase, strength=epsilon_bound(row))


def _misfiled_sentence(findings: Findings) -> str:
    """Says that a test's result names a surface which the run does not send."""
    wrong = misfiled_findings(findings)
    if not wrong:
        return ""
    names = wording.join_names(
        list(dict.fromkeys(wording.attack_title(row.attack) for row in wrong))
    )
    surfaces = wording.join_names(list(dict.fromkeys(str(row.surface) for row in wrong)))
    counted = (
        "It counts for the verdict all the same"
        if len(wrong) == 1
        else "They count for the verdict all the same"
    )
    return (
        f"This is an error of privdd itself, please report it: the result of {names} is "
        f"filed under {surfaces}, which "
        f"this run does not send. {counted}."
    )


def _claim_sentence(findings: Findings) -> str:
    claim = finding_selection.boldest_claim(findings.privacy.claims)
    best = finding_selection.largest_bound_finding(findings.findings)
    delta = findings.privacy.delta
    if findings.verdict == "contradiction" or claim is None or best is None:
        return ""
    if not finding_selection.exceeds_claim(claim, epsilon_bound(best), delta):
        return ""
    return (
        f"The claim of ε = {format_number(claim.number)} at δ = "
        f"{format_number(claim.delta or delta)} "
        f"({claim.source}) is less than the ε of at least {format_number(epsilon_bound(best))} "
        f"at δ = {format_number(delta)} that {wording.attack_title(best.attack)} showed "
        f"on the {wording.surface_title(best).lower()}."
    )


def leaks_of_run(findings: Findings) -> list[LeakResult]:
    """Every kind of leak of a run, what tests of guarantees show included, the gravest first."""
    leaks = rank_leaks(believable_findings(findings.findings, findings))
    refutation = _refutation_leak(findings)
    if refutation is not None:
        leaks.append(refutation)
    bare = [
        noise_leak(findings_on_surface(row, findings))
        for row in findings.surfaces
        if has_bare_noise(row)
    ]
    noises = [leak for leak in bare if leak is not None]
    leaks += sorted(noises, key=lambda leak: leak.order)[:1]
    return sorted(leaks, key=lambda leak: leak.order)


def unshown_sentences(findings: Findings) -> list[str]:
    """What membership and reconstruction were not shown to do, and what had nothing to read."""
    said = [*untested_sentences(findings), _membership_gap(findings)]
    best = finding_selection.strongest_reconstruction(findings.findings)
    if best is not None and not finding_selection.rebuilds_records(best):
        where = wording.surface_title(best).lower()
        said.append(
            f"From the {where}, {wording.attack_title(best.attack)} {picture_phrase(best)}."
        )
    return [sentence for sentence in said if sentence]


def _membership_gap(findings: Findings) -> str:
    """The sentence on membership where no attack was shown to beat chance; "" where one was."""
    worst = finding_selection.strongest_membership(findings.findings)
    if target_doubts(findings):
        return "These files do not show whether members can be distinguished from non-members."
    if worst is None:
        small = "No membership attack had a sample large enough to resolve a low false-alarm rate."
        return SENTENCE if has_no_signal(findings.findings) else small
    if worst.beats_guessing:
        return ""
    unread, tried = unread_attacks(findings.findings)
    readers = len(tried) - len(unread)
    which = "No membership attack was"
    if unread and readers == 1:
        which = "The membership attack that had something to read was not"
    elif unread:
        which = f"Of the {readers} membership attacks that had something to read none was"
    return (
        f"{which} shown to do better than chance, not at {one_in(worst.fpr)} false alarms either."
    )


def untested_sentences(findings: Findings) -> list[str]:
    """What had nothing to read, with the hooks that would let attacks read it, and which attacks
    failed."""
    said = []
    for row in findings.surfaces:
        mine = findings_on_surface(row, findings)
        if lacks_map(row, mine):
            unread, tried = unread_attacks(mine)
            said.append(
                f"Not tested: {len(unread)} of {len(tried)} membership attacks had "
                "nothing to read in the "
                f"{wording.surface_title(row).lower()}, as the method names no map from "
                "records to them; define "
                f"{row.missing_hooks} (ReadsUploads)."
            )
    for row in failed_findings(findings):
        name = wording.attack_title(row.attack)
        place = wording.surface_title(row).lower()
        said.append(f"Not tested: {name} on the {place} ({row.note or 'failed'}).")
    return said
