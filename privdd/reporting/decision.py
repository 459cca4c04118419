"""May an artifact be shared? One decision for each, from its verdict, its limit, what attacks did, and the sample's size.

A leak that was found counts at any sample size; that none was found counts only where the sample could have shown one.
The decision says what this run supports. It is no legal judgement, and no proof.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from privdd.reporting import wording
from privdd.reporting.finding_selection import (
    UNSCORED,
    findings_on_surface,
    has_no_signal,
    ranked_memberships,
    reads_transcripts,
)
from privdd.reporting.findings_tables import VISIBLE
from privdd.reporting.schema import FindingRow, Findings, Privacy
from privdd.reporting.summary import (
    LARGE_EPSILON,
    SurfaceLine,
    believable_findings,
    is_certain,
    leak_sentences,
    surface_lines,
    target_doubts,
    weak_noise_sentences,
)
from privdd.reporting.wording import format_number, format_share, one_in

Kind = Literal["do_not_share", "undecided", "share_only_under", "no_leak_found"]
Tone = Literal["bad", "warn", "good"]
ENOUGH_FPR = 0.001  # a sample that is to decide has to show an attack at 1 false alarm in 1 000
TESTED = "consistent"  # the verdict of a limit that tests looked at wholly, and did not contradict
ENOUGH_PICTURES = 30  # where only reconstructions were tried
SEED = "its noise comes from the seed on this page, so anyone can regenerate and subtract it; such a run is a simulation, not for release"
PAIRED = "its noise is the same in every run with this seed, so two of them undo it; such a run is a simulation"
SHOWN = "sure: shown, at 95 % confidence over all tests together"
NO_LIMIT = "no guarantee limits what it reveals, although noise was added"
UNKNOWN = "its noise must come from a source that nobody can replay; this folder does not record the source"


@dataclass(frozen=True)
class Decision:
    """What to do with one artifact. conditions: only of "share_only_under"; can: what attackers did, in words.

    enough: whether the sample could have shown a leak; sure: how much the decision can be relied on.
    """

    line: SurfaceLine
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


def decide_surfaces(findings: Findings, ledger: Mapping[str, Any] | None = None) -> list[Decision]:
    """One for each surface: what must not be shared first."""
    made = [_decide_surface(line, findings, parties_holding(line, ledger or {})) for line in surface_lines(findings)]
    order = ("do_not_share", "undecided", "no_leak_found", "share_only_under")
    return sorted(made, key=lambda one: order.index(one.kind))  # stable: within a kind, the gravest verdict first


def sample_banner(findings: Findings) -> str:
    """A banner where the run is too small to decide that nothing leaks; else ""."""
    rows = [row for row in findings.findings if row.family == "membership" and row.tpr_at_fpr]
    size = _sample_text(rows)
    tested = {line.row.surface for line in surface_lines(findings) if line.verdict == TESTED}
    if findings.run.preset == "smoke":
        return f"Smoke run{f' ({size})' if size else ''}: too small to decide. A leak found here is real; finding none proves little."
    if rows and not _can_show_leaks(_counted_findings(rows, tested)):
        return (
            f"Too small to decide: {size or 'the sample'} cannot show an attack at {one_in(ENOUGH_FPR)} false alarms. "
            "A leak found here is real; finding none proves little."
        )
    return ""


def parties_holding(line: SurfaceLine, ledger: Mapping[str, Any]) -> str:
    """The parties that hold the artifact, by the ledger's rows, else by its sender."""
    releases = ledger.get("releases")
    found: dict[str, None] = {}
    for release in releases if isinstance(releases, list) else []:
        if isinstance(release, dict) and release.get("surface") == line.row.surface:
            seen = release.get("visible_to")
            named = [str(one) for one in seen] if isinstance(seen, list) else []
            found |= {VISIBLE[one]: None for one in named if one in VISIBLE and one != "analyst"}
    if VISIBLE["public"] in found:
        return VISIBLE["public"]  # which is everyone else too
    return wording.join_names(list(found)) if found else line.seen_by


def _decide_surface(line: SurfaceLine, findings: Findings, seen: str) -> Decision:
    rows, privacy = findings_on_surface(line.row, findings), findings.privacy
    weak = weak_noise_sentences(rows) if math.isinf(line.accounted) and line.verdict != "contradiction" else []
    tested = {row.surface for row in rows} if line.verdict == TESTED else set[str]()
    can = (*weak, *leak_sentences(believable_findings(rows, findings)))
    enough = _is_sample_enough(rows, tested, findings.run.preset)
    kind, tone, why = _judge_limit(line, rows, privacy, bool(can))
    if target_doubts(findings) and kind == "no_leak_found":
        kind, tone, why = "undecided", "warn", "these files do not allow members to be compared with others"
    why = NO_LIMIT if weak else why
    conditions = tuple(_sharing_conditions(line, privacy, enough)) if kind == "share_only_under" else ()
    return Decision(
        line, kind, tone if enough or tone != "good" else "warn", _decision_title(kind, line, rows), why, conditions, can,
        seen, _sample_text(rows), enough, SHOWN if weak else _certainty_text(kind, line, rows, bool(can), enough),
    )  # fmt: skip


def _judge_limit(line: SurfaceLine, rows: list[FindingRow], privacy: Privacy, leaked: bool) -> tuple[Kind, Tone, str]:
    limit = line.accounted
    if line.verdict == "contradiction":
        same = f": it holds the same values as the {line.holds.lower()}" if line.holds else ""
        return "do_not_share", "bad", f"the limit stated for it does not hold{same}"
    if math.isinf(limit):
        return _judge_unprotected(line, rows, leaked)
    if limit == 0 and leaked:
        return "do_not_share", "bad", "an attack works, although its limit of ε = 0 says that no record enters it"
    if limit == 0:
        return "no_leak_found", "good" if line.verdict == "consistent" else "warn", "no record enters it: ε = 0"
    if limit > LARGE_EPSILON and leaked:
        return "do_not_share", "bad", f"an attack works, and its limit of ε = {format_number(limit)} forbids little"
    if wording.is_simulation_noise(privacy):
        return "do_not_share", "warn", SEED if privacy.noise and privacy.noise.source == "seed" else PAIRED
    if line.verdict == "untested":
        return "share_only_under", "warn", "some part of what its limit rests on was not tested"
    if _is_untried(line, rows):
        return "share_only_under", "warn", f"its noise was tested, but no attack was tried ({line.row.audited})"
    plain = limit <= LARGE_EPSILON and privacy.noise is not None
    return "share_only_under", "good" if plain else "warn", "no attack contradicted its limit"


def _judge_unprotected(line: SurfaceLine, rows: list[FindingRow], leaked: bool) -> tuple[Kind, Tone, str]:
    if leaked:
        return "do_not_share", "bad", "nothing limits what it reveals, and an attack works"
    if has_no_signal(rows):
        return "no_leak_found", "warn", f"nothing limits what it reveals; {UNSCORED}"
    if _is_untried(line, rows):
        return "do_not_share", "bad", f"nothing limits what it reveals, and no attack was tried ({line.row.audited})"
    return "no_leak_found", "warn", "nothing limits what it reveals; the attacks tried here failed, and others may not"


def _is_untried(line: SurfaceLine, rows: list[FindingRow]) -> bool:
    """Whether no attack looked at it: one that found nothing to read did look, though it has no rate."""
    return line.row.audited is not True and not has_no_signal(rows)


def _decision_title(kind: Kind, line: SurfaceLine, rows: list[FindingRow]) -> str:
    if kind == "share_only_under":
        return f"Share only under ε = {format_number(line.accounted)}"
    if kind in ("do_not_share", "undecided"):
        return "Do not share" if kind == "do_not_share" else "Cannot be decided from these files"
    return "Not scored by any attack" if line.accounted and has_no_signal(rows) else "No leak found by this test"


def _sharing_conditions(line: SurfaceLine, privacy: Privacy, enough: bool) -> list[str]:
    large = (
        f"; that is above {format_number(LARGE_EPSILON)} and protects little" if line.accounted > LARGE_EPSILON else ""
    )
    limit = (
        f"an attacker's odds about one {privacy.unit} ({wording.relation_text(privacy)}) may change "
        f"{wording.odds_factor(line.accounted)}, except with probability {format_number(privacy.delta)}{large}"
    )
    gaps = line.row.untested if line.verdict == "untested" else []
    said = [limit, *(f"someone looks at what no test did: {gap}" for gap in gaps)]
    said += [UNKNOWN] if privacy.noise is None else []
    return said if enough else [*said, "the audit is repeated with a larger sample"]


def _certainty_text(kind: Kind, line: SurfaceLine, rows: list[FindingRow], leaked: bool, enough: bool) -> str:
    if line.verdict == "contradiction":
        return "sure: shown at 95 % confidence or by the run's own noise"
    if kind == "do_not_share" and leaked:
        if is_certain(rows):
            return "sure: better than guessing, at 95 % confidence over all rates of this report together"
        return "likely: above a guess, but without an interval"
    if _is_untried(line, rows):
        return "not attacked"
    said = [] if enough else ["not sure: too small to decide"]
    best = next((one for one in ranked_memberships(rows) if one.at is not None), None)
    if kind != "undecided" and line.accounted and best is not None and best.at is not None:
        missed = f"{format_share(best.at.ci[1])} of members at {one_in(best.fpr)} false alarms"
        said.append(f"at 95 %, {wording.attack_title(best.row.attack)} may still name up to {missed}")
    return "; ".join(said)


def _can_show_leaks(rows: list[FindingRow]) -> bool:
    return any(one.fpr <= ENOUGH_FPR for one in ranked_memberships(rows))


def _counted_findings(rows: list[FindingRow], tested: Collection[str]) -> list[FindingRow]:
    """The rows whose sample counts: transcripts that follow the mechanism's law count on surfaces where tests looked at
    all that the law rests on."""
    return [row for row in rows if row.surface in tested or not reads_transcripts(row)]


def _is_sample_enough(rows: list[FindingRow], tested: Collection[str], preset: str) -> bool:
    if preset == "smoke":
        return False
    if any(row.family == "membership" and row.tpr_at_fpr for row in rows):
        return _can_show_leaks(_counted_findings(rows, tested))
    pictures = [row.n or 0 for row in rows if row.psnr is not None]
    return not pictures or max(pictures) >= ENOUGH_PICTURES


def _sample_text(rows: list[FindingRow]) -> str:
    """The largest sample of a membership attack in words; else of pictures; "" where nothing was counted."""
    members = [row for row in rows if row.family == "membership" and row.n]
    if members:
        worlds = max((row.worlds or 0 for row in members if not reads_transcripts(row)), default=0)
        replays = f", {worlds} replays" if worlds > 1 else ""
        drawn = max((row.worlds or 0 for row in members if reads_transcripts(row)), default=0)
        transcripts = f", {drawn} transcripts of its noised sums, one of them the run's own" if drawn else ""
        return f"{max(row.n or 0 for row in members)} audited records{replays}{transcripts}"
    pictures = max((row.n or 0 for row in rows if row.psnr is not None), default=0)
    return f"{pictures} rebuilt picture{'s' if pictures != 1 else ''}" if pictures else ""
