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
    reads_counts_alone,
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
    shown_copies,
)
from privdd.reporting.schema import (
    GRAVITY,
    FindingRow,
    Findings,
    Scope,
    SurfaceRow,
    Verdict,
    exceeds_kappa,
)
from privdd.reporting.wording import format_number, format_share

NO_LEAK = (math.inf, 0.0)  # orders an artifact without a leak behind all others


def leak_sentences(rows: Sequence[FindingRow], scope: Scope) -> list[str]:
    """Broken limits, then every kind of leak, the gravest first; empty where nothing was shown to
    beat chance."""
    return [*_limit_sentences(rows, scope), *(leak.sentence for leak in rank_leaks(rows, scope))]


def target_doubts(findings: Findings) -> list[str]:
    """Why a target's files allow no comparison of members with others; empty for a simulation."""
    return findings.target.doubts if findings.target else []


def believable_findings(rows: Sequence[FindingRow], findings: Findings) -> Sequence[FindingRow]:
    """The rows that can be read as leaks: where there are doubts, none that compares members with
    others."""
    if not target_doubts(findings):
        return rows
    return [row for row in rows if row.family != "membership" and row.identified is None]


def is_certain(rows: Sequence[FindingRow], scope: Scope) -> bool:
    """Whether any of it has an interval above chance, at 95 % for all rates of the run; the typical
    image and features have none."""
    return bool(_limit_sentences(rows, scope)) or any(
        leak.certain for leak in rank_leaks(rows, scope)
    )


def _broken_limit(rows: Iterable[FindingRow]) -> FindingRow | None:
    """The largest bound above its stated ε; a bound on a curve only if there is no other."""
    broken = []
    for row in rows:
        if row.epsilon_stated is None or row.epsilon_validity == "gaussian_only":
            continue
        if epsilon_bound(row) > row.epsilon_stated:
            broken.append(row)
    return max(
        broken, key=lambda row: (row.epsilon_validity != "curve", epsilon_bound(row)), default=None
    )


def _largest_move(rows: Iterable[FindingRow]) -> FindingRow | None:
    """The finding whose kappa is furthest above what is allowed."""
    over = []
    for row in rows:
        if row.kappa is not None and exceeds_kappa(row.kappa, row.kappa_allowed or math.inf):
            over.append(row)
    return max(over, key=lambda row: row.kappa or 0.0, default=None)


def _refutations(rows: Iterable[FindingRow]) -> list[str]:
    return [row.note or "" for row in rows if (row.diagnostics or {}).get("refuted")]


def _limit_sentences(rows: Sequence[FindingRow], scope: Scope) -> list[str]:
    sentences = []
    broken = _broken_limit(rows)
    if broken is not None:
        attack = wording.attack_title(broken.attack)
        proves = "proves that the true ε is at least"
        if broken.epsilon_validity == "curve":
            proves = "refutes the stated curve: the true ε is above"
        sentences.append(
            f"{attack[0].upper()}{attack[1:]} {proves} {format_number(epsilon_bound(broken))} "
            f"({format_share(broken.confidence or 0.95)} confidence); "
            f"{format_number(broken.epsilon_stated)} is stated"
        )
    moved = _largest_move(rows)
    if moved is not None:
        sentences.append(
            f"One {scope.unit} moves it {format_number(moved.kappa)} times as "
            f"far as the proof allows for ({format_number(moved.kappa_allowed)})"
        )
    return sentences + [note for note in _refutations(rows) if note]


def short_refutation(rows: Sequence[FindingRow], scope: Scope) -> str:
    """How the guarantee of a surface is refuted, in a few words.

    Args:
        rows: The findings on the surface.
        scope: What they are judged by.

    Returns:
        The bound above the stated ε, else the move above its limit, else that a test refutes it.
    """
    broken = _broken_limit(rows)
    if broken is not None:
        bound = format_number(epsilon_bound(broken))
        return f"ε ≥ {bound} shown, {format_number(broken.epsilon_stated)} stated"
    moved = _largest_move(rows)
    if moved is not None:
        allowed = format_number(moved.kappa_allowed)
        return f"one {scope.unit} moves it {format_number(moved.kappa)}-fold, {allowed} allowed"
    return "a test refutes its guarantee"


def has_bare_noise(row: SurfaceRow) -> bool:
    """Whether no epsilon is proven for a surface and none is refuted, so that its noise, if there
    is any, is judged by what tests show of it."""
    return math.isinf(row.epsilon.proven) and row.verdict != "contradiction"


@dataclass(frozen=True)
class SurfaceLine:
    """One row of the table that a privacy officer reads; epsilons >= 0, infinite, or None for none.

    Attributes:
        row: The surface in findings.json.
        title: Its name in words.
        meaning: What it is.
        seen_by: Who holds it.
        stated: The ε that the run is held to.
        proven: The ε that the accounting proves.
        shown: The largest ε that a test or an attack showed.
        worst: The worst results, each a clause.
        verdict: The verdict on it.
        holds: The title of the refuted surface that this one was computed from, or "".
        leaks: The results of attacks above chance, the gravest first.
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
    leaks: tuple[LeakResult, ...]


@dataclass(frozen=True)
class Headline:
    """The first words of the report."""

    kind: Verdict
    label: str
    title: str
    sentences: tuple[str, ...]
    weak: bool = False  # not contradicted, and still no reassurance


def surface_lines(findings: Findings) -> list[SurfaceLine]:
    """One line for each released surface: the gravest verdict first, then the gravest leak, as the
    first sentence ranks them, then the largest ε shown."""
    lines = [_surface_line(row, findings) for row in findings.surfaces]
    return sorted(
        lines,
        key=lambda line: (
            GRAVITY.index(line.verdict),
            min((leak.order for leak in line.leaks), default=NO_LEAK),
            -(line.shown or 0.0),
        ),
    )


def _surface_line(row: SurfaceRow, findings: Findings) -> SurfaceLine:
    scope = findings.scope
    rows = findings_on_surface(row, findings)
    source = refuted_source(row, findings)
    title, meaning = wording.surface_title_and_meaning(row, scope)
    if len({other.sender for other in findings.surfaces if other.surface == row.surface}) > 1:
        title += wording.SENT_BY[row.sender]
    believable = believable_findings(rows, findings)
    leaks = rank_leaks(believable, scope)
    worst = _worst_phrases(believable, leaks, scope)
    return SurfaceLine(
        row=row,
        title=title,
        meaning=meaning,
        seen_by="the server" if row.sender == "client" else "every client",
        stated=_stated_epsilon(rows),
        proven=row.epsilon.proven,
        shown=finding_selection.shown_epsilon(rows),
        worst=(*worst, *_crafted_record_note(rows, scope)),
        verdict=row.verdict,
        holds="" if source is None else wording.surface_title(source, scope),
        leaks=tuple(leaks),
    )


def _stated_epsilon(rows: list[FindingRow]) -> float | None:
    """The ε stated for the whole surface, or the statement that was broken, if one was.

    Guarantee tests hold each mechanism behind a surface to its own part of the epsilon.
    """
    stated = [row for row in rows if row.epsilon_stated is not None]
    broken = [row for row in stated if epsilon_bound(row) > (row.epsilon_stated or 0.0)]
    attacks = [row for row in rows if row.family != "guarantee"]
    chosen = broken or attacks or rows
    return min(
        (row.epsilon_stated for row in chosen if row.epsilon_stated is not None), default=None
    )


def _worst_phrases(
    rows: Sequence[FindingRow], leaks: Sequence[LeakResult], scope: Scope
) -> list[str]:
    phrases = _refutations(rows)
    moved = _largest_move(rows)
    if moved is not None:
        phrases.append(
            f"one {scope.unit} moves it {format_number(moved.kappa)} times as "
            f"far as assumed (allowed {format_number(moved.kappa_allowed)})"
        )
    phrases += [leak.table_phrase for leak in leaks]
    phrases += _unshown_phrases(rows, {leak.row.family for leak in leaks}, scope)
    if has_no_signal(rows):
        phrases.append(UNSCORED)
    return phrases


def _unshown_phrases(
    rows: Sequence[FindingRow], leaking: Collection[str], scope: Scope
) -> list[str]:
    """Of the families in which nothing was shown to beat chance, what the strongest attack
    reached."""
    phrases = []
    member = finding_selection.strongest_membership(rows, scope)
    if member is not None and "membership" not in leaking:
        attack = wording.attack_title(member.row.attack)
        phrases.append(f"{attack} {membership_phrase(member, brief=True)}")
    image = finding_selection.strongest_reconstruction(rows, scope)
    if image is not None and _shows_nothing(image, scope):
        attack = wording.attack_title(image.attack)
        phrases.append(f"{attack} {picture_phrase(image, scope, brief=True)}")
    for row in rows:
        if row.attack in FEATURE_ATTACKS and row.psnr is not None and not removes_noise(row):
            phrases.append(f"{wording.attack_title(row.attack)} {feature_phrase(row)}")
    labels = max(label_rates(rows), key=lambda result: result[1], default=None)
    if labels is not None and "label" not in leaking:
        attack = wording.attack_title(labels[0].attack)
        phrases.append(f"{attack} was not shown to read labels better than chance")
    return phrases


def _shows_nothing(image: FindingRow, scope: Scope) -> bool:
    """Whether an attack on images has neither reconstructions nor copies to show."""
    if shown_copies(image, scope) is not None:
        return False
    return not finding_selection.rebuilds_records(image, scope)


def _crafted_record_note(rows: list[FindingRow], scope: Scope) -> list[str]:
    """The note that the shown ε holds for a record crafted for the test, and not for the audited
    records."""
    best = finding_selection.largest_bound_finding(rows)
    if best is None or best.family != "guarantee" or not epsilon_bound(best):
        return []
    bound = format_number(epsilon_bound(best))
    attack = wording.attack_title(best.attack)
    return [f"ε ≥ {bound} is of a {scope.unit} crafted for {attack}"]


def verdict_headline(findings: Findings) -> Headline:
    """The first words of a report, which stand on the numbers alone.

    Args:
        findings: The run's findings.json.

    Returns:
        The verdict as a title, and sentences in this order: what is refuted, the gravest leak, what
        the verdict rests on, further leaks, what was not shown.
    """
    diverged = diverged_run_text(findings)
    if diverged is not None:
        title, sentences = diverged
        return Headline(findings.verdict, "Diverged", title, sentences)
    kind = findings.verdict
    title, basis = _title_and_basis(findings)
    # the verdict's own sentence names what is refuted
    leaks = [leak.first_sentence for leak in leaks_of_run(findings) if leak.kind != "refutation"]
    if kind == "contradiction":
        first = [basis, *leaks[:1]]
    else:
        first = [_claim_sentence(findings), *leaks[:1], basis]
    rest = [_misfiled_sentence(findings), *leaks[1:], *unshown_sentences(findings)]
    return Headline(
        kind,
        wording.VERDICT[kind],
        title,
        tuple(sentence for sentence in [*first, *rest] if sentence),
        is_weak_limit(kind, findings),
    )


def is_weak_limit(kind: Verdict, findings: Findings, epsilon: float | None = None) -> bool:
    """Whether "not contradicted" is no reason for green: the limit is large, or anyone can draw the
    noise again."""
    if kind != "consistent":
        return False
    privacy = findings.privacy
    limit = privacy.epsilon.proven if epsilon is None else epsilon
    return limit > LARGE_EPSILON or (limit > 0 and wording.is_simulation_noise(privacy))


def utility_note(config: Mapping[str, Any]) -> str:
    """A sentence on accuracy that comes from raw records, for a run whose synthetic sets start from
    real images."""
    algo = config.get("algo")
    if isinstance(algo, Mapping):
        start = algo.get("start")
    else:
        start = None
    return wording.REAL_START if start == "real" else ""


def target_marks(findings: Findings) -> list[str]:
    """Warnings about a target's files, the doubts first."""
    target = findings.target
    return [*target.doubts, *target.notes] if target else []


def _surface_titles(findings: Findings, kind: Verdict) -> list[str]:
    return _unique_titles([row for row in findings.surfaces if row.verdict == kind], findings)


def _title_and_basis(findings: Findings) -> tuple[str, str]:
    """The verdict as a title, and what it rests on."""
    match findings.verdict:
        case "unprotected":
            return _unprotected_headline(findings)
        case "untested":
            return _untested_headline(findings)
        case "consistent":
            return _consistent_headline(findings)
        case "contradiction":
            return _contradiction_headline(findings)


def _unique_titles(rows: Iterable[SurfaceRow], findings: Findings) -> list[str]:
    """Clients and server may send what has one name."""
    titles = [wording.surface_title(row, findings.scope).lower() for row in rows]
    return list(dict.fromkeys(titles))


def _unprotected_headline(findings: Findings) -> tuple[str, str]:
    bare = _surface_titles(findings, "unprotected")
    if bare:
        what = f"The {wording.join_names(bare)}"
    else:
        what = "The messages"
    if len(bare) != 1 or bare[0].endswith("s"):
        verb = "have"
    else:
        verb = "has"
    title = f"No proven guarantee protects a {findings.privacy.unit} under {findings.run.algo}."
    why = f", so the run as a whole has ε = {format_number(findings.privacy.epsilon.proven)}"
    if findings.target is not None:
        why = ": nothing shows how it was protected, so ε is infinite"
    return title, f"{what} {verb} no proven guarantee{why}."


def _untested_headline(findings: Findings) -> tuple[str, str]:
    gaps: dict[str, None] = {}
    for row in findings.surfaces:
        if row.verdict == "untested":
            gaps |= dict.fromkeys(row.untested)
    epsilon = format_number(findings.privacy.epsilon.proven)
    return (
        "The stated guarantee was not tested in every part.",
        f"ε = {epsilon} is stated, but not all its conditions were tested. "
        f"Untested: {'; '.join(gaps)}.",
    )


def _name_guarantee(findings: Findings) -> str:
    """The guarantee with its method; files of a target have none."""
    name = "the stated guarantee"
    if findings.target is not None:
        return name
    return f"{name} of {findings.run.algo}"


def _consistent_headline(findings: Findings) -> tuple[str, str]:
    privacy = findings.privacy
    bound = finding_selection.shown_epsilon(findings.findings)
    epsilon = format_number(privacy.epsilon.proven)
    title = f"No test contradicts {_name_guarantee(findings)}."
    if wording.is_simulation_noise(privacy):
        title += " This is a simulation."
    if privacy.epsilon.proven > LARGE_EPSILON:
        title = (
            f"No test contradicts {_name_guarantee(findings)}, but ε = {epsilon} is too large "
            "to protect anyone."
        )
    result = "no attack measured an ε"
    if bound is not None:
        result = f"the strongest attack showed ε of at least {format_number(bound)}"
    return title, (
        f"Everything sent is covered by ε = {epsilon} at δ = {format_number(privacy.delta)}; "
        f"{result}. Surviving attacks is not proof; the ε = {epsilon} guarantee comes from "
        "the accounting."
    )


def _contradiction_headline(findings: Findings) -> tuple[str, str]:
    rows = _accused_rows(findings)
    accused = {row.surface for row in rows}
    titles = _unique_titles([row for row in findings.surfaces if row.surface in accused], findings)
    places = titles or _surface_titles(findings, "contradiction") or ["release"]
    sentence = f"On the {wording.join_names(places)}, {_refutation_phrase(rows, findings.scope)}."
    if findings.target is not None:
        return "The stated guarantee is false.", sentence
    broken = _broken_limit(rows)
    claims = [claim.number for claim in findings.privacy.claims]
    if broken is not None and broken.epsilon_stated in claims:
        return "The paper's claim is contradicted.", sentence
    name = _name_guarantee(findings)
    return f"{name[0].upper()}{name[1:]} is false in this run.", sentence


def _accused_rows(findings: Findings) -> list[FindingRow]:
    """The refuting findings; of a file that marks none, all on the contradicted surfaces."""
    surfaces = {row.surface for row in findings.surfaces if row.verdict == "contradiction"}
    return refuting_findings(findings) or [r for r in findings.findings if r.surface in surfaces]


def _refutation_phrase(rows: Sequence[FindingRow], scope: Scope) -> str:
    """How the stated guarantee is refuted, as a sentence without its place."""
    worst = _broken_limit(rows)
    if worst is None:
        tests = [r for r in rows if r.kappa is not None or r.attack.startswith("t0_")]
        phrases = _worst_phrases(tests, rank_leaks(tests, scope), scope)
        return next(iter(phrases), "a test contradicts the stated guarantee")
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
    phrase = _refutation_phrase(rows, findings.scope)
    return LeakResult(
        row, findings.scope, "refutation", phrase, phrase, strength=epsilon_bound(row)
    )


def _misfiled_sentence(findings: Findings) -> str:
    """Says that a test's result names a surface which the run does not send."""
    rows = misfiled_findings(findings)
    if not rows:
        return ""
    attacks = dict.fromkeys(wording.attack_title(row.attack) for row in rows)
    surfaces = dict.fromkeys(str(row.surface) for row in rows)
    counts = "It counts" if len(rows) == 1 else "They count"
    return (
        "This is an error of privdd itself, please report it: the result of "
        f"{wording.join_names(list(attacks))} is filed under "
        f"{wording.join_names(list(surfaces))}, which this run does not send. "
        f"{counts} for the verdict all the same."
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
        f"on the {wording.surface_title(best, findings.scope).lower()}."
    )


def leaks_of_run(findings: Findings) -> list[LeakResult]:
    """Rank what attacks and tests of guarantees show of a run.

    Args:
        findings: The run's findings.json.

    Returns:
        The strongest leak of each kind, the gravest kind first.
    """
    scope = findings.scope
    leaks = rank_leaks(believable_findings(findings.findings, findings), scope)
    refutation = _refutation_leak(findings)
    if refutation is not None:
        leaks.append(refutation)
    noises = []
    for row in findings.surfaces:
        leak = noise_leak(findings_on_surface(row, findings), scope)
        if leak is not None and has_bare_noise(row):
            noises.append(leak)
    leaks += sorted(noises, key=lambda leak: leak.order)[:1]
    return sorted(leaks, key=lambda leak: leak.order)


def unshown_sentences(findings: Findings) -> list[str]:
    """What membership and reconstruction were not shown to do, and what had nothing to read."""
    scope = findings.scope
    sentences = [*untested_sentences(findings), _membership_gap(findings)]
    best = finding_selection.strongest_reconstruction(findings.findings, scope)
    if best is not None and _shows_nothing(best, scope):
        place = wording.surface_title(best, scope).lower()
        attack = wording.attack_title(best.attack)
        sentences.append(f"From the {place}, {attack} {picture_phrase(best, scope)}.")
    return [sentence for sentence in sentences if sentence]


def _membership_gap(findings: Findings) -> str:
    """The sentence on membership if no attack was shown to beat chance; "" if one was."""
    if target_doubts(findings):
        return "These files do not show whether members can be distinguished from non-members."
    best = finding_selection.strongest_membership(findings.findings, findings.scope)
    if best is None and has_no_signal(findings.findings):
        return SENTENCE
    if best is None:
        return (
            "No membership attack had a sample large enough to resolve a low false-positive rate."
        )
    if best.beats_chance:
        return ""
    unread, tried = unread_attacks(findings.findings)
    readers = len(tried) - len(unread)
    subject = "No membership attack was"
    if unread and readers == 1:
        subject = "The membership attack that had something to read was not"
    elif unread:
        subject = f"Of the {readers} membership attacks that had something to read none was"
    return f"{subject} shown to do better than chance, not at {format_share(best.fpr)} FPR either."


def untested_sentences(findings: Findings) -> list[str]:
    """What had nothing to read, with the hooks that would let attacks read it, and which attacks
    failed."""
    scope = findings.scope
    sentences = []
    for surface in findings.surfaces:
        rows = findings_on_surface(surface, findings)
        place = wording.surface_title(surface, scope).lower()
        if reads_counts_alone(surface):
            sentences.append(
                f"Not tested: of the {place}, membership attacks read the class counts alone and "
                "no other tensor, as the method does not say how a record would fit them; define "
                f"{surface.missing_hooks} (ReadsUploads)."
            )
        if lacks_map(surface, rows):
            unread, tried = unread_attacks(rows)
            sentences.append(
                f"Not tested: {len(unread)} of {len(tried)} membership attacks had nothing to "
                f"read in the {place}, as the method defines no map from records to them; define "
                f"{surface.missing_hooks} (ReadsUploads)."
            )
    for row in failed_findings(findings):
        attack = wording.attack_title(row.attack)
        place = wording.surface_title(row, scope).lower()
        sentences.append(f"Not tested: {attack} on the {place} ({row.note or 'failed'}).")
    return sentences
