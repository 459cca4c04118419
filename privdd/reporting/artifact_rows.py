"""The artifacts of a first screen, one short row each.

A row names the artifact, who sees it, its guarantee, the strongest finding and the decision in at
most ``MOST_WORDS`` words; the reasons are folded below it. A pool that repeats the features it
holds shares their row, and artifacts that no attack could read share one."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from privdd.reporting import finding_selection, leaks, summary, wording
from privdd.reporting.decision import Decision
from privdd.reporting.finding_selection import POOLS
from privdd.reporting.schema import FindingRow, Findings
from privdd.reporting.wording import format_number, format_share

MOST_WORDS = 25
UNREAD = "no attack applies"
UNTRIED = "not attacked"
SEVERITY = ("good", "warn", "bad")  # of tones, the mildest first
UNPROTECTED = "none"
BARE = "noise, no ε"
NOT_STATED = "none stated"
PUBLIC = "ε = 0, public"
SEPARATORS = re.compile(", | and ")
FORMULA = re.compile("(?<=ε) [=≤≥] |(?<=≤) ")


@dataclass(frozen=True)
class ArtifactRow:
    """One row of the first screen.

    Attributes:
        name: The artifact, or several with one decision.
        seen_by: The parties that hold it.
        guarantee: What limits what it reveals, in a few words.
        finding: The strongest finding, in a few words.
        title: The decision in words.
        tone: Its colour.
        decisions: The whole decisions, which the page folds.
    """

    name: str
    seen_by: str
    guarantee: str
    finding: str
    title: str
    tone: str
    decisions: tuple[Decision, ...]

    @property
    def word_count(self) -> int:
        """Of all cells; a number with its unit, or a formula, counts as one."""
        cells = (self.name, self.seen_by, self.guarantee, self.finding, self.title)
        return sum(len(FORMULA.sub("", cell).split(" ")) for cell in cells)


def artifact_rows(decisions: Sequence[Decision], findings: Findings) -> list[ArtifactRow]:
    """Shorten the decisions of a run to one row each.

    Args:
        decisions: Of ``decide_surfaces``.
        findings: The run's findings.json.

    Returns:
        In the order of the decisions; the pool behind its features, unread artifacts last.
    """
    rows = [_artifact_row(decision, findings) for decision in decisions]
    rows = _join_pools(rows)
    unread = [row for row in rows if row.finding == UNREAD]
    read = [row for row in rows if row.finding != UNREAD]
    if unread:
        return [*read, _join_rows(unread)]
    return read


def _artifact_row(decision: Decision, findings: Findings) -> ArtifactRow:
    return ArtifactRow(
        name=decision.line.title,
        seen_by=_without_articles(decision.seen_by),
        guarantee=_guarantee_text(decision),
        finding=_finding_text(decision, findings),
        title=decision.title,
        tone=decision.tone,
        decisions=(decision,),
    )


def _without_articles(parties: str) -> str:
    names = [name.removeprefix("the ") for name in SEPARATORS.split(parties)]
    return wording.join_names(names)


def _join_pools(rows: Sequence[ArtifactRow]) -> list[ArtifactRow]:
    """Each pool with the decision and finding of the features that it holds, put into their row."""
    joined: list[ArtifactRow] = []
    for row in sorted(rows, key=_is_pool):
        repeated = [source for source in joined if _repeats(row, source)]
        if repeated:
            joined[joined.index(repeated[0])] = _join_rows([repeated[0], row])
        else:
            joined.append(row)
    places: dict[int, int] = {}
    for place, row in enumerate(rows):
        places |= {id(decision): place for decision in row.decisions}
    return sorted(joined, key=lambda row: places[id(row.decisions[0])])


def _is_pool(row: ArtifactRow) -> bool:
    return row.decisions[0].line.row.surface in POOLS


def _repeats(pool: ArtifactRow, features: ArtifactRow) -> bool:
    (decision,) = pool.decisions
    source = features.decisions[0]
    if POOLS.get(decision.line.row.surface) != source.line.row.surface:
        return False
    return (pool.title, pool.finding) == (features.title, features.finding)


def _join_rows(rows: Sequence[ArtifactRow]) -> ArtifactRow:
    """One row for artifacts with one finding, in the most severe of their tones."""
    first = rows[0]
    names = [first.name, *(row.name[:1].lower() + row.name[1:] for row in rows[1:])]
    viewers = chain.from_iterable(SEPARATORS.split(row.seen_by) for row in rows)
    titles = dict.fromkeys(row.title for row in rows)
    return replace(
        first,
        name=", ".join(dict.fromkeys(names)),
        seen_by=wording.join_names(list(dict.fromkeys(viewers))),
        guarantee="; ".join(dict.fromkeys(row.guarantee for row in rows)),
        title="; ".join(titles),
        tone=max((row.tone for row in rows), key=SEVERITY.index),
        decisions=tuple(chain.from_iterable(row.decisions for row in rows)),
    )


def _guarantee_text(decision: Decision) -> str:
    line = decision.line
    if line.verdict == "contradiction":
        if line.stated is None:
            return "refuted"
        return f"ε = {format_number(line.stated)}, refuted"
    if line.proven == 0 and line.row.mechanism.endswith("public"):
        return PUBLIC
    if math.isfinite(line.proven):
        return f"ε ≤ {format_number(line.proven)}"
    mechanism = line.row.mechanism
    if mechanism == "unknown":  # files alone do not show whether noise was added
        return NOT_STATED
    if mechanism == "none" or mechanism.startswith(wording.POST_PROCESSING):
        return UNPROTECTED
    return BARE


def _finding_text(decision: Decision, findings: Findings) -> str:
    line = decision.line
    if line.holds:
        return f"computed from the {line.holds.lower()}"
    scope = findings.scope
    rows = finding_selection.findings_on_surface(line.row, findings)
    if line.verdict == "contradiction":
        return summary.short_refutation(rows, scope)
    results = [*line.leaks]
    if summary.has_bare_noise(line.row):
        noise = leaks.noise_leak(rows, scope)
        results += [noise] if noise is not None else []
    if results:
        return min(results, key=lambda leak: leak.order).short
    if finding_selection.has_no_signal(rows):
        return UNREAD
    if line.row.audited is not True:  # tests of its guarantee are no attacks
        return UNTRIED
    if summary.target_doubts(findings):
        return "these files do not show it"
    if finding_selection.reads_counts_alone(line.row):
        return "class counts alone were read"
    if finding_selection.lacks_map(line.row, rows):
        return "most attacks do not apply"
    believable = summary.believable_findings(rows, findings)
    return "not shown to beat chance" + _upper_end(believable, findings)


def _upper_end(rows: Sequence[FindingRow], findings: Findings) -> str:
    """How many members the strongest attack may identify all the same, at 95 %."""
    for result in finding_selection.ranked_memberships(rows, findings.scope):
        if result.at is not None:
            upper = format_share(result.at.ci[1])
            return f" (≤ {upper} TPR at {format_share(result.fpr)} FPR)"
    return ""
