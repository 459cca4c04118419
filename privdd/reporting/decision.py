"""May an artifact be shared? One decision for each, from its verdict, its limit, what attacks did,
and the sample's size.

A leak that was found counts at any sample size; that none was found counts only where the sample
could have shown one. The decision says what this run supports. It is no legal judgement, and no
proof."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from attacks.types import Surface
from privdd.reporting import finding_selection, leaks, summary, wording
from privdd.reporting.ledger_table import VISIBLE, ledger_rows, parties_seeing
from privdd.reporting.schema import FindingRow, Findings, Privacy, Scope
from privdd.reporting.wording import format_number, format_share, join_names

Kind = Literal["do_not_share", "needed", "undecided", "share_only_under", "no_leak_found"]
Tone = Literal["bad", "warn", "good"]
ENOUGH_FPR = 0.001  # at which a sample that is to decide has to show an attack
TESTED = "consistent"  # the verdict of a guarantee that was tested wholly and not contradicted
ENOUGH_PICTURES = 30  # if only reconstructions were tried
# What must not be shared stands first.
ORDER: tuple[Kind, ...] = (
    "do_not_share",
    "needed",
    "undecided",
    "no_leak_found",
    "share_only_under",
)
# What no method here can do without: to advise against it would be to advise against the method.
NEEDED = frozenset({Surface.LABELS})
SEED = (
    "its noise comes from the seed on this page, so anyone can regenerate and subtract it; "
    "such a run is a simulation, not for release"
)
PAIRED = (
    "its noise is the same in every run with this seed, so two of them undo it; such a run "
    "is a simulation"
)
SIMULATED = "Simulation only"
SHOWN = "sure: 95 % confidence, corrected for all tests"
NO_LIMIT = "no guarantee covers it, although noise was added"
UNKNOWN = (
    "its noise must come from a source that nobody can replay; this folder does not record "
    "the source"
)


@dataclass(frozen=True)
class Decision:
    """What to do with one artifact.

    Attributes:
        line: The artifact as the table of surfaces shows it.
        kind: The decision; ``title`` says it in words, ``tone`` in a colour.
        why: The reason, a clause without a full stop.
        conditions: Under which it may be shared; only of "share_only_under".
        can: What attackers did, one sentence each.
        seen_by: The parties that hold it.
        sample: The size of the sample in words, or "".
        enough: Whether the sample could have shown a leak.
        sure: How far the decision can be relied on, or "".
    """

    line: summary.SurfaceLine
    kind: Kind
    tone: Tone
    title: str
    why: str
    conditions: tuple[str, ...]
    can: tuple[str, ...]
    seen_by: str
    sample: str
    enough: bool
    sure: str


@dataclass(frozen=True)
class _Judgement:
    """What a limit and the attacks on it lead to."""

    kind: Kind
    tone: Tone
    why: str


def decide_surfaces(findings: Findings, ledger: Mapping[str, Any] | None = None) -> list[Decision]:
    """Decide for each surface of a run whether it may be shared.

    Args:
        findings: The run's findings.json.
        ledger: Its ledger.json, which says who sees what; without it the sender says so.

    Returns:
        One decision for each surface: what must not be shared first.
    """
    decisions = []
    for line in summary.surface_lines(findings):
        parties = parties_holding(line, ledger or {})
        decisions.append(_decide_surface(line, findings, parties))
    # stable: within a kind, the gravest verdict stays first
    return sorted(decisions, key=lambda decision: ORDER.index(decision.kind))


def sample_banner(findings: Findings) -> str:
    """A banner for a run that is too small to decide that nothing leaks; else ""."""
    rows = [row for row in findings.findings if row.family == "membership" and row.tpr_at_fpr]
    size = _sample_text(rows)
    if findings.run.preset == "smoke":
        note = f" ({size})" if size else ""
        return (
            f"Smoke run{note}: too small to decide. A leak found here is real; finding none "
            "proves little."
        )
    lines = summary.surface_lines(findings)
    tested = {line.row.surface for line in lines if line.verdict == TESTED}
    if rows and not _can_show_leaks(_counted_findings(rows, tested), findings.scope):
        return (
            f"Too small to decide: {size or 'the sample'} cannot show an attack at "
            f"{format_share(ENOUGH_FPR)} FPR. "
            "A leak found here is real; finding none proves little."
        )
    return ""


def parties_holding(line: summary.SurfaceLine, ledger: Mapping[str, Any]) -> str:
    """The parties that hold the artifact, by the ledger's rows, else by its sender."""
    releases = [row for row in ledger_rows(ledger) if row.get("surface") == line.row.surface]
    own = [row for row in releases if _is_from(row, line.row.sender)]
    releases = own or releases
    parties = [name for name in parties_seeing(releases) if name in VISIBLE.values()]
    if VISIBLE["public"] in parties:
        return VISIBLE["public"]  # which is everyone else too
    return join_names(parties) if parties else line.seen_by


def _is_from(release: Mapping[str, Any], sender: str) -> bool:
    """Whether a row of the ledger may be of this sender: the server's number is below 0."""
    client = release.get("client")
    return not isinstance(client, int) or (client < 0) == (sender == "server")


def _decide_surface(line: summary.SurfaceLine, findings: Findings, parties: str) -> Decision:
    scope = findings.scope
    rows = finding_selection.findings_on_surface(line.row, findings)
    believable = summary.believable_findings(rows, findings)
    if summary.has_bare_noise(line.row):
        noise = leaks.noise_leak(rows, scope)
    else:
        noise = None
    can = summary.leak_sentences(believable, scope)
    if noise is not None:
        can = [noise.sentence, *can]

    judgement = _judge_limit(line, rows, findings.privacy, bool(can))
    if summary.target_doubts(findings) and judgement.kind == "no_leak_found":
        why = "these files do not allow members to be compared with others"
        judgement = _Judgement("undecided", "warn", why)
    if noise is not None:
        judgement = replace(judgement, why=NO_LIMIT)

    enough = _is_sample_enough(line, rows, findings)
    tone = judgement.tone
    if tone == "good" and not enough:
        tone = "warn"
    conditions: list[str] = []
    if judgement.kind == "share_only_under":
        conditions = _sharing_conditions(line, findings.privacy, enough)
    sure = SHOWN
    if noise is None:
        sure = _certainty_text(judgement.kind, line, rows, bool(can), enough, scope)
    return Decision(
        line=line,
        kind=judgement.kind,
        tone=tone,
        title=_decision_title(judgement, line, rows),
        why=judgement.why,
        conditions=tuple(conditions),
        can=tuple(can),
        seen_by=parties,
        sample=_sample_text(rows),
        enough=enough,
        sure=sure,
    )


def _judge_limit(
    line: summary.SurfaceLine, rows: list[FindingRow], privacy: Privacy, leaked: bool
) -> _Judgement:
    if line.verdict == "contradiction":
        source = ""
        if line.holds:
            holder = line.holds.lower()
            source = f": it was computed from the {holder}, whose guarantee is false"
        why = f"the guarantee stated for it is false{source}"
        return _Judgement("do_not_share", "bad", why)
    if math.isinf(line.proven) and line.row.surface in NEEDED:
        return _judge_needed(rows, leaked)
    if math.isinf(line.proven):
        return _judge_unprotected(line, rows, leaked)
    if line.proven == 0:
        return _judge_zero(line, leaked)
    return _judge_finite(line, rows, privacy, leaked)


def _judge_needed(rows: list[FindingRow], leaked: bool) -> _Judgement:
    """Of what the method needs and no guarantee covers."""
    why = "the method needs it, and no guarantee covers it"
    if leaked:
        why += "; an attack works"
    elif finding_selection.has_no_signal(rows):
        why += f"; {finding_selection.UNSCORED}"
    return _Judgement("needed", "warn", why)


def _judge_unprotected(
    line: summary.SurfaceLine, rows: list[FindingRow], leaked: bool
) -> _Judgement:
    if leaked:
        why = "no guarantee covers it, and an attack works"
        return _Judgement("do_not_share", "bad", why)
    if finding_selection.has_no_signal(rows):
        why = f"no guarantee covers it; {finding_selection.UNSCORED}{_hooks_text(line)}"
        return _Judgement("undecided", "warn", why)
    if finding_selection.reads_counts_alone(line.row):
        why = "no guarantee covers it, and membership attacks read its class counts alone"
        why += _hooks_text(line)
        return _Judgement("undecided", "warn", why)
    if finding_selection.lacks_map(line.row, rows):
        why = "no guarantee covers it, and most attacks do not apply"
        why += _hooks_text(line)
        return _Judgement("undecided", "warn", why)
    if _is_untried(line, rows):
        why = f"no guarantee covers it, and no attack was tried ({line.row.audited})"
        return _Judgement("do_not_share", "bad", why)
    why = (
        "no guarantee covers it; the attacks tried here were not shown to beat chance, and "
        "stronger ones may succeed"
    )
    return _Judgement("no_leak_found", "warn", why)


def _judge_zero(line: summary.SurfaceLine, leaked: bool) -> _Judgement:
    """A surface that no record enters, by its accounting."""
    if leaked and line.row.surface in NEEDED:
        why = "the method needs it, and the neighbouring relation takes it as public"
        return _Judgement("needed", "warn", f"{why}; an attack works")
    if leaked:
        why = "an attack works, although its guarantee of ε = 0 says that no record enters it"
        return _Judgement("do_not_share", "bad", why)
    tone: Tone
    if line.verdict == "consistent":
        tone = "good"
    else:
        tone = "warn"
    return _Judgement("no_leak_found", tone, "no record enters it: ε = 0")


def _judge_finite(
    line: summary.SurfaceLine, rows: list[FindingRow], privacy: Privacy, leaked: bool
) -> _Judgement:
    limit = line.proven
    if limit > summary.LARGE_EPSILON and leaked:
        why = f"an attack works, and its guarantee of ε = {format_number(limit)} forbids little"
        return _Judgement("do_not_share", "bad", why)
    if wording.is_simulation_noise(privacy):
        from_seed = privacy.noise is not None and privacy.noise.source == "seed"
        return _Judgement("do_not_share", "warn", SEED if from_seed else PAIRED)
    if line.verdict == "untested":
        why = "some condition of its guarantee was not tested"
        return _Judgement("share_only_under", "warn", why)
    if _is_untried(line, rows):
        why = f"its noise was tested, but no attack was tried ({line.row.audited})"
        return _Judgement("share_only_under", "warn", why)
    if finding_selection.has_no_signal(rows):
        why = f"its noise was tested; {finding_selection.UNSCORED}{_hooks_text(line)}"
        return _Judgement("share_only_under", "warn", why)
    is_plain = limit <= summary.LARGE_EPSILON and privacy.noise is not None
    tone: Tone = "good" if is_plain else "warn"
    return _Judgement("share_only_under", tone, "no attack contradicted its guarantee")


def _hooks_text(line: summary.SurfaceLine) -> str:
    if line.row.missing_hooks is None:
        return ""
    return f" (the method defines no {line.row.missing_hooks})"


def _is_untried(line: summary.SurfaceLine, rows: list[FindingRow]) -> bool:
    """Whether no attack was tried on it: one that had nothing to read was tried, though it has no
    rate."""
    return line.row.audited is not True and not finding_selection.has_no_signal(rows)


def _decision_title(
    judgement: _Judgement, line: summary.SurfaceLine, rows: list[FindingRow]
) -> str:
    kind = judgement.kind
    if kind == "share_only_under":
        return f"Share only under ε = {format_number(line.proven)}"
    if kind == "do_not_share":
        return SIMULATED if judgement.why in (SEED, PAIRED) else "Do not share"
    if kind == "needed":
        return "Needed, open"
    if kind == "no_leak_found":
        if _is_untried(line, rows) or finding_selection.has_no_signal(rows):
            return "No record enters it"
        return "No leak found by this test"
    if finding_selection.has_no_signal(rows) or finding_selection.lacks_map(line.row, rows):
        return "Not tested"
    if finding_selection.reads_counts_alone(line.row):
        return "Not tested"
    return "Cannot be decided from these files"


def _sharing_conditions(line: summary.SurfaceLine, privacy: Privacy, enough: bool) -> list[str]:
    large = ""
    if line.proven > summary.LARGE_EPSILON:
        threshold = format_number(summary.LARGE_EPSILON)
        large = f"; that is above {threshold} and protects little"
    relation = wording.relation_text(privacy)
    conditions = [
        f"an attacker's odds about one {privacy.unit} ({relation}) may change "
        f"{wording.odds_factor(line.proven)}, except with probability "
        f"{format_number(privacy.delta)}{large}"
    ]
    if line.verdict == "untested":
        conditions += [f"someone tests the untested part: {gap}" for gap in line.row.untested]
    if privacy.noise is None:
        conditions.append(UNKNOWN)
    if not enough:
        conditions.append("the audit is repeated with a larger sample")
    return conditions


def _certainty_text(
    kind: Kind,
    line: summary.SurfaceLine,
    rows: list[FindingRow],
    leaked: bool,
    enough: bool,
    scope: Scope,
) -> str:
    if line.verdict == "contradiction":
        return "sure: shown at 95 % confidence or by the run's own noise"
    if kind in ("do_not_share", "needed") and leaked:
        if summary.is_certain(rows, scope):
            return "sure: above chance at 95 % confidence, corrected for all rates of this report"
        return "likely: above the best guess, but without an interval"
    if _is_untried(line, rows):
        return "not attacked"
    notes = []
    if not enough:
        notes.append("inconclusive: sample too small to decide")
    if kind != "undecided" and line.proven:
        notes += _upper_end_note(rows, scope)
    return "; ".join(notes)


def _upper_end_note(rows: list[FindingRow], scope: Scope) -> list[str]:
    """How many members the strongest attack with a rate may identify all the same; [] without
    one."""
    for result in finding_selection.ranked_memberships(rows, scope):
        if result.at is not None:
            upper = format_share(result.at.ci[1])
            attack = wording.attack_title(result.row.attack)
            return [
                f"at 95 %, {attack} may still identify up to {upper} of members at "
                f"{format_share(result.fpr)} FPR"
            ]
    return []


def _can_show_leaks(rows: list[FindingRow], scope: Scope) -> bool:
    results = finding_selection.ranked_memberships(rows, scope)
    return any(result.fpr <= ENOUGH_FPR for result in results)


def _counted_findings(rows: list[FindingRow], tested: Collection[str]) -> list[FindingRow]:
    """The rows whose sample counts: transcripts that follow the mechanism's law count on surfaces
    of which tests covered all that the law rests on."""
    return [
        row for row in rows if row.surface in tested or not finding_selection.reads_transcripts(row)
    ]


def _is_sample_enough(
    line: summary.SurfaceLine, rows: list[FindingRow], findings: Findings
) -> bool:
    if findings.run.preset == "smoke":
        return False
    if any(row.family == "membership" and row.tpr_at_fpr for row in rows):
        tested: set[str] = set()
        if line.verdict == TESTED:
            tested = {row.surface for row in rows}
        return _can_show_leaks(_counted_findings(rows, tested), findings.scope)
    counts = [row.n or 0 for row in rows if row.psnr is not None]
    return not counts or max(counts) >= ENOUGH_PICTURES


def _sample_text(rows: list[FindingRow]) -> str:
    """The largest sample of a membership attack in words; else of images; "" if nothing was
    counted."""
    members = [row for row in rows if row.family == "membership" and row.n]
    if members:
        return _membership_sample_text(members)
    count = max((row.n or 0 for row in rows if row.psnr is not None), default=0)
    if not count:
        return ""
    if count == 1:
        return "1 reconstructed image"
    return f"{count} reconstructed images"


def _membership_sample_text(rows: list[FindingRow]) -> str:
    """rows: not empty, each with the number of its records."""
    records = max(row.n or 0 for row in rows)
    replays = 0
    transcripts = 0
    for row in rows:
        if finding_selection.reads_transcripts(row):
            transcripts = max(transcripts, row.worlds or 0)
        else:
            replays = max(replays, row.worlds or 0)
    text = f"{records} audited records"
    if replays > 1:
        text += f", {replays} replays"
    if transcripts:
        text += f", {transcripts} transcripts of its noised sums, one of them the run's own"
    return text
