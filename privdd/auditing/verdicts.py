"""The verdict of every surface and of the run: one function of the ledger and the findings.

findings.json holds what it returns; card, page, terminal, policy, JUnit and exit status read it
there. A finding accuses the releases that it is about, and whatever was computed from an accused
release breaks its limit too, as far as it states one."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dp_accounting as dpa

from attacks.measures import GuaranteeMeasures
from attacks.types import Adversary, Finding
from privdd.privacy.accounting import smallest_bound
from privdd.privacy.ledger import SERVER, Ledger, Release
from privdd.reporting.schema import Verdict, exceeds_kappa, worst_verdict

# bounds whose being above what is stated is a contradiction
DECISIVE_VALIDITIES = ("finite_sample", "curve")
READERS_OF_BROADCASTS = (Adversary.PEER, Adversary.PUBLIC)  # they hold what the server sends
ANALYST_ONLY = ("analyst",)  # who sees a release that does not travel as it is

Sender = str  # "client" or "server"
SurfaceKey = tuple[str, Sender]


def split_names(names: str) -> list[str]:
    """The names of ``Finding.message``, or of a test's ``signal``: several are joined by a
    comma."""
    return [name for name in names.split(", ") if name]


def deciding_bound(finding: Finding) -> float:
    """The bound on epsilon that a finding decides by: at its share of the error budget, where
    several share it."""
    shown = finding.measures.epsilon_shown
    return float(finding.diagnostics.get("epsilon_familywise", 0.0 if shown is None else shown))


def refutes_limit(finding: Finding, stated: float | None) -> bool:
    """Whether a finding contradicts what is stated: a finite-sample bound above it, a kappa above
    what is allowed, or noise, sampling or a message that is not what it claims to be. stated:
    epsilon of its surface, unless it names its own."""
    measures = finding.measures
    promised = stated if measures.epsilon_stated is None else measures.epsilon_stated
    is_sound = measures.epsilon_validity in DECISIVE_VALIDITIES
    if promised is not None and is_sound and deciding_bound(finding) > float(promised):
        return True
    if isinstance(measures, GuaranteeMeasures) and measures.kappa is not None:
        if measures.kappa_allowed is None:
            raise ValueError(f"{finding.attack}: has a kappa without its allowed value")
        if exceeds_kappa(measures.kappa, measures.kappa_allowed):
            return True
    return bool(finding.diagnostics.get("refuted"))


def choose_verdict(
    epsilon: Mapping[str, float], is_refuted: bool, missing: Sequence[str] = ()
) -> Verdict:
    """contradiction, unprotected, untested or consistent, the first that applies.

    contradiction: a finding refutes the limit; unprotected: nothing is proven; untested: something
        is, and of what it rests on no test looked at the parts ``missing``.
    """
    if is_refuted:
        return "contradiction"
    if math.isinf(smallest_bound(epsilon)):
        return "unprotected"
    return "untested" if missing else "consistent"


def decide_verdict(
    epsilon: Mapping[str, float],
    stated: float | None,
    findings: Sequence[Finding],
    missing: Sequence[str] = (),
) -> Verdict:
    """The verdict of an artifact by itself, of which no ledger says what it was computed from."""
    return choose_verdict(
        epsilon, any(refutes_limit(finding, stated) for finding in findings), missing
    )


@dataclass(frozen=True)
class SurfaceLimit:
    """What a surface's verdict rests on beside the findings. epsilon: by accountant; stated: what
    it is held to, None for no promise; missing: parts of its limit that no test looked at."""

    surface: str
    sender: Sender
    epsilon: Mapping[str, float]
    stated: float | None = None
    missing: Sequence[str] = ()

    @property
    def key(self) -> SurfaceKey:
        return self.surface, self.sender


@dataclass(frozen=True)
class RunVerdicts:
    """verdict: of the run; surfaces: of each surface; behind: the names of the queries and messages
    that a surface was computed from; refuted: those of them whose limit a finding refutes;
    refuting: finding by finding, whether it refutes."""

    verdict: Verdict
    surfaces: Mapping[SurfaceKey, Verdict] = field(default_factory=dict)
    behind: Mapping[SurfaceKey, tuple[str, ...]] = field(default_factory=dict)
    refuted: Mapping[SurfaceKey, tuple[str, ...]] = field(default_factory=dict)
    missing: Mapping[SurfaceKey, Sequence[str]] = field(default_factory=dict)
    refuting: tuple[bool, ...] = ()

    def surface_entries(self, key: SurfaceKey) -> dict[str, Any]:
        """The entries of a surface in findings.json that its verdict brings."""
        names = {"behind": list(self.behind[key]), "refuted": list(self.refuted[key])}
        listed = {name: value for name, value in names.items() if value}
        return {"untested": list(self.missing[key]), **listed, "verdict": self.surfaces[key]}


def judge_run(
    ledger: Ledger, limits: Sequence[SurfaceLimit], findings: Sequence[Finding]
) -> RunVerdicts:
    """All verdicts of a run. A refuting finding contradicts the run wherever it is filed, also
    under a surface that the run does not send."""
    stated = {limit.surface: limit.stated for limit in limits}
    refuting = tuple(
        refutes_limit(finding, stated.get(str(finding.surface))) for finding in findings
    )
    accused = set[int]()
    for finding, refutes in zip(findings, refuting, strict=True):
        if refutes:
            accused |= accused_releases(ledger, finding)
    surfaces = dict[SurfaceKey, Verdict]()
    behind = dict[SurfaceKey, tuple[str, ...]]()
    refuted = dict[SurfaceKey, tuple[str, ...]]()
    for limit in limits:
        releases = releases_of_surface(ledger, limit.key)
        closure = closure_of_releases(ledger, releases)
        behind[limit.key] = _names_of(row for row in closure if row.client != SERVER)
        broken = _broken_releases(ledger, releases, accused)
        is_refuted = _breaks_limit(releases, closure, broken)
        refuted[limit.key] = _names_of(broken) if is_refuted else ()
        surfaces[limit.key] = choose_verdict(limit.epsilon, is_refuted, limit.missing)
    gravest = worst_verdict([*surfaces.values(), *(["contradiction"] if any(refuting) else [])])
    missing = {limit.key: limit.missing for limit in limits}
    return RunVerdicts(gravest, surfaces, behind, refuted, missing, refuting)


def findings_on_surface(
    findings: Iterable[Finding], key: SurfaceKey, keys: Collection[SurfaceKey]
) -> list[Finding]:
    """The findings filed under a surface; where client and server both send on it (``keys``), by
    who holds the message."""
    surface, sender = key
    is_shared = all((surface, each) in keys for each in ("client", "server"))
    here = [finding for finding in findings if str(finding.surface) == surface]
    return [finding for finding in here if not is_shared or sender_of(finding) == sender]


def sender_of(finding: Finding) -> Sender:
    """Who sent what a finding's adversary read."""
    if finding.adversary in READERS_OF_BROADCASTS:
        return "server"
    return "client"


def _broken_releases(
    ledger: Ledger, own: Sequence[Release], accused: Collection[int]
) -> list[Release]:
    """The accused releases that break the limit of the releases ``own``: those of mechanisms whose
    cost their epsilon counts, and messages that leak beside the mechanisms.

    What a client noises after it has read a broadcast holds for any broadcast (adaptive
    composition). So a message that leaks breaks the limits of what the server computes from it, and
    not of what clients noise afterwards."""
    counted = closure_of_releases(ledger, own)
    computed = closure_of_releases(ledger, own, through_broadcasts=False)
    broken = [row for row in counted if row.id in accused and row.is_protected]
    broken += [row for row in computed if row.id in accused and not row.is_protected]
    return broken


def _breaks_limit(
    own: Sequence[Release], closure: Sequence[Release], broken: Sequence[Release]
) -> bool:
    """Whether a surface's limit is broken: by its own releases, or by one that it was computed from
    where nothing else takes the limit away. What states no limit cannot break one."""
    accused = {row.id for row in broken}
    if any(row.id in accused for row in own):
        return True
    bare = [row for row in closure if isinstance(row.event, dpa.NonPrivateDpEvent)]
    return bool(accused) and all(row.id in accused for row in bare)


def accused_releases(ledger: Ledger, finding: Finding) -> set[int]:
    """Ids of the releases that a refuting finding is about: those called as its message, else those
    of its surface; of what the server sends where its adversary holds that, else of what clients
    release."""
    is_broadcast = sender_of(finding) == "server"
    rows = [row for row in ledger.releases if (row.client == SERVER) == is_broadcast]
    names = split_names(finding.message)
    named = {row.id for row in rows if row.name in names}
    return named or {row.id for row in rows if row.surface == str(finding.surface)}


def releases_of_surface(ledger: Ledger, key: SurfaceKey) -> list[Release]:
    """The releases of one sender that travel on a surface."""
    surface, sender = key
    rows = [
        row for row in ledger.releases if row.surface == surface and row.visible_to != ANALYST_ONLY
    ]
    return [row for row in rows if (row.client == SERVER) == (sender == "server")]


def closure_of_releases(
    ledger: Ledger, rows: Iterable[Release], *, through_broadcasts: bool = True
) -> list[Release]:
    """These releases and all that they were computed from, in order. through_broadcasts: also what
    a client read of the server's before it released something."""
    all_rows = ledger.releases
    keep = {row.id for row in rows}
    for row in reversed(all_rows):
        if row.id in keep:
            sources = row.post_of
            if row.client != SERVER and not through_broadcasts:
                sources = tuple(of for of in sources if all_rows[of].client != SERVER)
            keep.update(sources)
    return [row for row in all_rows if row.id in keep]


def _names_of(rows: Iterable[Release]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.name for row in rows))
