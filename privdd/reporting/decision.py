"""May an artifact be shared? One decision for each, from its verdict, its limit, what attacks did, and the sample's size.

A leak that was found counts at any sample size; that none was found counts only where the sample could have shown one.
The decision says what this run supports. It is no legal judgement, and no proof.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from privdd.reporting import noise_words, words
from privdd.reporting.leaks import LARGE_EPSILON, believed, certain, doubts, leaks, weak_noise
from privdd.reporting.ledger_view import VISIBLE
from privdd.reporting.same_values import rows_of
from privdd.reporting.schema import FindingRow, Findings
from privdd.reporting.schema_privacy import Privacy
from privdd.reporting.strongest import memberships, of_transcripts
from privdd.reporting.summary import SurfaceLine, surface_lines
from privdd.reporting.unread import UNSCORED, only_unread
from privdd.reporting.words import number, one_in, share

Kind = Literal["do_not_share", "undecided", "share_only_under", "no_leak_found"]
Tone = Literal["bad", "warn", "good"]
ENOUGH_FPR = 0.001  # a sample that is to decide has to show an attack at 1 false alarm in 1 000
TESTED = "consistent"  # the verdict of a limit that tests looked at wholly, and did not contradict
ENOUGH_PICTURES = 30  # where only reconstructions were tried
SEED = "its noise comes from the seed on this page, so anyone can regenerate and subtract it; such a run is a simulation, not for release"
PAIRED = "its noise is the same in every run with this seed, so two of them undo it; such a run is a simulation"
SHOWN = "sure: shown, at 95 % confidence over all tests together"
NO_LIMIT = "no guarantee limits what it reveals: the noise is too small for one"
UNKNOWN = "its noise was drawn where nobody can draw it again, which this folder does not say"


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


def decisions(findings: Findings, ledger: Mapping[str, Any] | None = None) -> list[Decision]:
    """One for each surface: what must not be shared first."""
    made = [_decide(line, findings, seen_by(line, ledger or {})) for line in surface_lines(findings)]
    order = ("do_not_share", "undecided", "no_leak_found", "share_only_under")
    return sorted(made, key=lambda one: order.index(one.kind))  # stable: within a kind, the gravest verdict first


def too_small(findings: Findings) -> str:
    """A banner where the run is too small to decide that nothing leaks; else ""."""
    rows = [row for row in findings.findings if row.family == "membership" and row.tpr_at_fpr]
    size = _sample(rows)
    tested = {line.row.surface for line in surface_lines(findings) if line.verdict == TESTED}
    if findings.run.preset == "smoke":
        return f"Smoke run{f' ({size})' if size else ''}: too small to decide. A leak found here is real; finding none proves little."
    if rows and not _shows(_counted(rows, tested)):
        return (
            f"Too small to decide: {size or 'the sample'} cannot show an attack at {one_in(ENOUGH_FPR)} false alarms. "
            "A leak found here is real; finding none proves little."
        )
    return ""


def seen_by(line: SurfaceLine, ledger: Mapping[str, Any]) -> str:
    """Who holds the artifact: as the ledger's rows say, else by who sent it."""
    releases = ledger.get("releases")
    found: dict[str, None] = {}
    for release in releases if isinstance(releases, list) else []:
        if isinstance(release, dict) and release.get("surface") == line.row.surface:
            seen = release.get("visible_to")
            named = [str(one) for one in seen] if isinstance(seen, list) else []
            found |= {VISIBLE[one]: None for one in named if one in VISIBLE and one != "analyst"}
    if VISIBLE["public"] in found:
        return VISIBLE["public"]  # which is everyone else too
    return words.listed(list(found)) if found else line.seen_by


def _decide(line: SurfaceLine, findings: Findings, seen: str) -> Decision:
    rows, privacy = rows_of(line.row, findings), findings.privacy
    weak = weak_noise(rows) if math.isinf(line.accounted) and line.verdict != "contradiction" else []
    tested = {row.surface for row in rows} if line.verdict == TESTED else set[str]()
    can, enough = (*weak, *leaks(believed(rows, findings))), _enough(rows, tested, findings.run.preset)
    kind, tone, why = _judge(line, rows, privacy, bool(can))
    if doubts(findings) and kind == "no_leak_found":
        kind, tone, why = "undecided", "warn", "the files do not allow a comparison of members with others"
    why = NO_LIMIT if weak else why
    conditions = tuple(_conditions(line, privacy, enough)) if kind == "share_only_under" else ()
    return Decision(
        line, kind, tone if enough or tone != "good" else "warn", _title(kind, line, rows), why, conditions, can,
        seen, _sample(rows), enough, SHOWN if weak else _sure(kind, line, rows, bool(can), enough),
    )  # fmt: skip


def _judge(line: SurfaceLine, rows: list[FindingRow], privacy: Privacy, leaked: bool) -> tuple[Kind, Tone, str]:
    limit = line.accounted
    if line.verdict == "contradiction":
        same = f": it holds the same values as the {line.holds.lower()}" if line.holds else ""
        return "do_not_share", "bad", f"the limit stated for it does not hold{same}"
    if math.isinf(limit):
        return _unprotected(line, rows, leaked)
    if limit == 0 and leaked:
        return "do_not_share", "bad", "an attack works, though by its limit of ε = 0 no record enters it"
    if limit == 0:
        return "no_leak_found", "good" if line.verdict == "consistent" else "warn", "no record enters it: ε = 0"
    if limit > LARGE_EPSILON and leaked:
        return "do_not_share", "bad", f"an attack works, and its limit of ε = {number(limit)} forbids little"
    if noise_words.simulation(privacy):
        return "do_not_share", "warn", SEED if privacy.noise and privacy.noise.source == "seed" else PAIRED
    if line.verdict == "untested":
        return "share_only_under", "warn", "not all that its limit rests on was tested"
    if _untried(line, rows):
        return "share_only_under", "warn", f"its noise was tested, but no attack was tried ({line.row.audited})"
    plain = limit <= LARGE_EPSILON and privacy.noise is not None
    return "share_only_under", "good" if plain else "warn", "no attack contradicted its limit"


def _unprotected(line: SurfaceLine, rows: list[FindingRow], leaked: bool) -> tuple[Kind, Tone, str]:
    if leaked:
        return "do_not_share", "bad", "nothing limits what it reveals, and an attack works"
    if only_unread(rows):
        return "no_leak_found", "warn", f"nothing limits what it reveals; {UNSCORED}"
    if _untried(line, rows):
        return "do_not_share", "bad", f"nothing limits what it reveals, and no attack was tried ({line.row.audited})"
    return "no_leak_found", "warn", "nothing limits what it reveals; the attacks tried here failed, and others may not"


def _untried(line: SurfaceLine, rows: list[FindingRow]) -> bool:
    """Whether no attack looked at it: one that found nothing to read did look, though it has no rate."""
    return line.row.audited is not True and not only_unread(rows)


def _title(kind: Kind, line: SurfaceLine, rows: list[FindingRow]) -> str:
    if kind == "share_only_under":
        return f"Share only under ε = {number(line.accounted)}"
    if kind in ("do_not_share", "undecided"):
        return "Do not share" if kind == "do_not_share" else "Cannot be decided from these files"
    return "Not scored by any attack" if line.accounted and only_unread(rows) else "No leak found by this test"


def _conditions(line: SurfaceLine, privacy: Privacy, enough: bool) -> list[str]:
    large = f"; that is above {number(LARGE_EPSILON)} and protects little" if line.accounted > LARGE_EPSILON else ""
    limit = (
        f"an attacker's odds about one {privacy.unit} ({words.relation(privacy)}) may change "
        f"{words.fold(line.accounted)}, except with probability {number(privacy.delta)}{large}"
    )
    gaps = line.row.untested if line.verdict == "untested" else []
    said = [limit, *(f"someone looks at what no test did: {gap}" for gap in gaps)]
    said += [UNKNOWN] if privacy.noise is None else []
    return said if enough else [*said, "the audit is repeated with a larger sample"]


def _sure(kind: Kind, line: SurfaceLine, rows: list[FindingRow], leaked: bool, enough: bool) -> str:
    if line.verdict == "contradiction":
        return "sure: shown at 95 % confidence or by the run's own noise"
    if kind == "do_not_share" and leaked:
        if certain(rows):
            return "sure: better than guessing, at 95 % confidence over all rates of this report together"
        return "likely: above a guess, but without an interval"
    if _untried(line, rows):
        return "not attacked"
    said = [] if enough else ["not sure: too small to decide"]
    best = next((one for one in memberships(rows) if one.at is not None), None)
    if kind != "undecided" and line.accounted and best is not None and best.at is not None:
        missed = f"{share(best.at.ci[1])} of members at {one_in(best.fpr)} false alarms"
        said.append(f"at 95 %, {words.attack(best.row.attack)} may still name up to {missed}")
    return "; ".join(said)


def _shows(rows: list[FindingRow]) -> bool:
    return any(one.fpr <= ENOUGH_FPR for one in memberships(rows))


def _counted(rows: list[FindingRow], tested: Collection[str]) -> list[FindingRow]:
    """The rows whose sample counts: transcripts that follow the mechanism's law count on surfaces where tests looked at
    all that the law rests on."""
    return [row for row in rows if row.surface in tested or not of_transcripts(row)]


def _enough(rows: list[FindingRow], tested: Collection[str], preset: str) -> bool:
    if preset == "smoke":
        return False
    if any(row.family == "membership" and row.tpr_at_fpr for row in rows):
        return _shows(_counted(rows, tested))
    pictures = [row.n or 0 for row in rows if row.psnr is not None]
    return not pictures or max(pictures) >= ENOUGH_PICTURES


def _sample(rows: list[FindingRow]) -> str:
    """The largest sample of a membership attack in words; else of pictures; "" where nothing was counted."""
    members = [row for row in rows if row.family == "membership" and row.n]
    if members:
        worlds = max((row.worlds or 0 for row in members if not of_transcripts(row)), default=0)
        replays = f", {worlds} replays" if worlds > 1 else ""
        drawn = max((row.worlds or 0 for row in members if of_transcripts(row)), default=0)
        transcripts = f", {drawn} transcripts of its noised sums, one of them the run's own" if drawn else ""
        return f"{max(row.n or 0 for row in members)} audited records{replays}{transcripts}"
    pictures = max((row.n or 0 for row in rows if row.psnr is not None), default=0)
    return f"{pictures} rebuilt picture{'s' if pictures != 1 else ''}" if pictures else ""
