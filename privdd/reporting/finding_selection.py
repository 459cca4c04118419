"""Which finding is the strongest, which claim the boldest, and the one rule of what counts as
better than guessing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from scipy.special import ndtri
from scipy.stats import hypergeom

from attacks.statistics import lower_limit
from privdd.reporting.schema import (
    ClaimRow,
    FindingRow,
    Findings,
    Scope,
    SurfaceRow,
    TprAt,
    Verdict,
    WorstRecord,
)
from privdd.reporting.wording import format_number

# The rule: the lower end of an interval lies above the chance level, and all intervals of a run
# hold together at 95 %: the strongest of many attacks is picked by its result, so each interval is
# widened as Bonferroni's inequality asks for the number of rates in the run. A lower bound on
# epsilon above 0 counts as well: it holds at a 95 % that all bounds of the run share. Pictures
# count by the same rule where the finding says how many lie clearly above every guess for their own
# record; that the typical picture lies above the best guess counts too, and has no interval.
PICTURE_FAMILIES = frozenset({"gradient_inversion", "model_inversion", "reconstruction"})
ALPHA = 0.05  # the chance that any interval of a run that guesses lies off: 95 % confidence
# dB; a choice: less is not told apart from a guess by eye, nor from chance by a few pictures
PICTURE_MARGIN = 0.5
EXPOSED_FPR = 0.001  # at which the most exposed records are looked for (``membership.measures``)
ROUNDING = 1e-9  # a number above chance is so by more than this: both went through a transform
AUC_CHANCE = 0.5
FEATURE_ATTACKS = frozenset({"known_neighbour"})  # their PSNR is of features, not of images
# What works on a pool of released features works on the values that it holds: who holds these knows
# more. surface -> the one whose values it holds
POOLS: Mapping[str, str] = {"shared_features": "features"}
READERS_OF_BROADCASTS = ("peer", "public")  # adversaries that hold what the server sends
SENTENCE = (
    "No membership attack of this audit applies to these messages, so none has a rate. "
    "Other attacks may apply."
)
UNSCORED = "not tested: no membership attack of this audit applies"


@dataclass(frozen=True)
class MembershipResult:
    """The result of one membership attack at one false-positive rate.

    Attributes:
        row: The finding.
        fpr: The false-positive rate, in (0, 1].
        at: The rate of all records at ``fpr``; None if the sample cannot show it.
        scope: What the finding is judged by.
        kind: "rate", of all records; "exposed", of single records; "bound", by its lower bound on
            epsilon, and "ranking", by the AUC: both say that members can be distinguished, at no
            rate (fpr 1).
    """

    row: FindingRow
    fpr: float
    at: TprAt | None
    scope: Scope
    kind: Literal["rate", "exposed", "bound", "ranking"] = "rate"

    @property
    def exposed(self) -> list[WorstRecord]:
        """The records that are identified more often than by chance at this rate; [] at any
        other."""
        if self.fpr == EXPOSED_FPR:
            return exposed_records(self.row, self.scope)
        return []

    @property
    def counts(self) -> bool:
        """Whether of all records more are identified than by chance."""
        if self.kind != "rate" or self.at is None:
            return False
        return beats_chance(self.at, self.fpr, self.scope)

    @property
    def beats_chance(self) -> bool:
        """The one predicate, over bound, rate and AUC."""
        if self.kind == "exposed":
            return bool(self.exposed)
        if self.kind == "bound":
            return bounds_members(self.row)
        if self.kind == "ranking":
            return ranks_members(self.row, self.scope)
        return self.counts

    @property
    def strength_key(self) -> tuple[bool, float, bool, float, bool, float, float]:
        """Compared in this order: whether chance is beaten, the smaller rate, a rate of all records
        before single ones, the share identified at it, whether a bound shows it, this bound, the
        AUC."""
        worst = self.row.worst_records
        share = 0.0
        if self.kind == "exposed" and worst is not None:
            share = worst.tpr
        elif self.kind == "rate" and self.at is not None:
            share = self.at.tpr
        if self.kind == "bound":
            bound = epsilon_bound(self.row)
        else:
            bound = 0.0
        return (
            self.beats_chance,
            -self.fpr,
            self.kind == "rate",
            share,
            self.kind == "bound",
            bound,
            self.row.auc or 0.0,
        )


def exposes_records(row: FindingRow, scope: Scope) -> bool:
    """The one rule, for the records that an attack chose in one half of the replays and judged in
    the other: together they are identified more often than by chance, and more often than they are
    named while they are out.

    Fisher's exact test: of all trials + out replays, hits + wrong name the record; if being in does
    not matter, hits follows

        Hypergeometric(trials + out, hits + wrong, trials).
    """
    worst = row.worst_records
    if worst is None or not worst.records:
        return False
    if not exceeds_chance(worst.tpr, worst.ci[0], EXPOSED_FPR, scope.looks):
        return False
    hits = sum(record.hits for record in worst.records)
    trials = sum(record.trials for record in worst.records)
    wrong = sum(record.wrong or 0 for record in worst.records)
    out = sum(record.out or 0 for record in worst.records)
    if not out:
        return True
    p_value = float(hypergeom.sf(hits - 1, trials + out, hits + wrong, trials))
    return p_value < ALPHA / 2 / scope.looks


def exposed_records(row: FindingRow, scope: Scope) -> list[WorstRecord]:
    """The single records that an attack identifies again and again, the most exposed first; [] if
    the rule does not hold.

    A record's interval lies above the chance level; if none does by itself, the most exposed one
    carries the rule."""
    worst = row.worst_records
    if worst is None or not exposes_records(row, scope):
        return []
    ranked = sorted(worst.records, key=lambda record: (record.ci[0], record.hits), reverse=True)
    clear = [
        record
        for record in ranked
        if exceeds_chance(record.tpr, record.ci[0], EXPOSED_FPR, scope.looks)
    ]
    return clear or ranked[:1]


def identifies_members(row: FindingRow, scope: Scope) -> bool:
    """The one rule, for members nearer to what was sent than non-members: the chance of so many, at
    its share of the error."""
    return row.copy_test is not None and row.copy_test.p_value < ALPHA / 2 / scope.looks


def ranks_members(row: FindingRow, scope: Scope) -> bool:
    """The one rule, for the AUC: guessing reaches one half."""
    if row.auc is None or row.auc_ci is None:
        return False
    return exceeds_chance(row.auc, row.auc_ci[0], AUC_CHANCE, scope.looks)


def bounds_members(row: FindingRow) -> bool:
    """The one rule, for a lower bound on epsilon: guessing shows 0."""
    return has_sound_bound(row) and epsilon_bound(row) > ROUNDING


def beats_chance(at: TprAt, fpr: float, scope: Scope) -> bool:
    """The one rule, for a true-positive rate: guessing reaches the false-positive rate itself."""
    return exceeds_chance(at.tpr, at.ci[0], fpr, scope.looks)


def exceeds_chance(rate: float, low: float, chance: float, looks: int) -> bool:
    """Whether a rate with an interval from ``low`` lies above ``chance``, at 95 % for ``looks``
    rates together."""
    return simultaneous_lower_end(rate, low, looks) > chance + ROUNDING


def simultaneous_lower_end(rate: float, low: float, looks: int) -> float:
    """The lower end that holds at 95 % for all of ``looks`` intervals, from the one that holds for
    a single interval.

    rate, low: in [0, 1]. The distance grows by the ratio of normal quantiles on the arcsine scale,
        where the variance of a rate does not depend on the rate (Bartlett, 1936):

        a(p) = arcsin(sqrt(p));   a(end) = a(rate) - (a(rate) - a(low)) z(ALPHA / 2 / looks) /
        z(ALPHA / 2).

    The ratio is at least 1, so the end is never above ``low``: the way there and back must not
    round it up."""
    middle = _arcsine(rate)
    ratio = float(ndtri(ALPHA / 2 / looks) / ndtri(ALPHA / 2))
    end = max(middle - (middle - _arcsine(low)) * ratio, 0.0)
    return min(math.sin(end) ** 2, low)


def _arcsine(rate: float) -> float:
    return math.asin(math.sqrt(min(max(rate, 0.0), 1.0)))


def reads_transcripts(row: FindingRow) -> bool:
    """Whether an attack read noised sums: what it has beside the run is drawn by the mechanism's
    law, and no replay."""
    return row.family == "membership" and row.adversary == "analyst"


def has_sound_bound(row: FindingRow) -> bool:
    """Whether a row has a lower bound on epsilon that needs no assumption on the scores'
    distribution."""
    return row.epsilon_shown is not None and row.epsilon_validity not in (
        "gaussian_only",
        "curve",
    )


def epsilon_bound(row: FindingRow) -> float:
    """The row's lower bound on epsilon; at joint confidence where the run made several tests."""
    joint = (row.diagnostics or {}).get("epsilon_familywise")
    if isinstance(joint, int | float):
        return float(joint)
    return row.epsilon_shown or 0.0


def largest_bound_finding(rows: Iterable[FindingRow]) -> FindingRow | None:
    """The finding with the largest lower bound that needs no assumption on the scores'
    distribution."""
    return max(filter(has_sound_bound, rows), key=epsilon_bound, default=None)


def shown_epsilon(rows: Iterable[FindingRow]) -> float | None:
    best = largest_bound_finding(rows)
    return epsilon_bound(best) if best else None


def ranked_memberships(rows: Iterable[FindingRow], scope: Scope) -> list[MembershipResult]:
    """All that membership attacks show at rates which their samples can show, strongest first: the
    one order of all pages."""
    results: list[MembershipResult] = []
    for row in rows:
        if row.family == "membership":
            results += _membership_results(row, scope)
    return sorted(results, key=lambda result: result.strength_key, reverse=True)


def _membership_results(row: FindingRow, scope: Scope) -> Iterator[MembershipResult]:
    rates = {float(fpr): rate for fpr, rate in (row.tpr_at_fpr or {}).items() if rate.resolvable}
    for fpr, rate in rates.items():
        yield MembershipResult(row, fpr, rate, scope)
    if exposes_records(row, scope):
        yield MembershipResult(row, EXPOSED_FPR, rates.get(EXPOSED_FPR), scope, "exposed")
    if bounds_members(row):
        yield MembershipResult(row, 1.0, None, scope, "bound")
    if ranks_members(row, scope):
        yield MembershipResult(row, 1.0, None, scope, "ranking")


def strongest_membership(rows: Iterable[FindingRow], scope: Scope) -> MembershipResult | None:
    """The strongest of ``ranked_memberships``; rates that the sample is too small for are passed
    over."""
    return next(iter(ranked_memberships(rows, scope)), None)


def blind_guess_psnr(row: FindingRow) -> float | None:
    """The PSNR in dB of the best guess that never saw the artifact, if the finding has one."""
    return _largest_baseline(row, "psnr")


def blind_label_rate(row: FindingRow) -> float | None:
    """The share of labels that the best guess which never saw the artifact reads, if the finding
    has one."""
    return _largest_baseline(row, "label_accuracy")


def _largest_baseline(row: FindingRow, prefix: str) -> float | None:
    baselines = row.baselines or {}
    values = [value for name, value in baselines.items() if name.startswith(prefix)]
    return max(values, default=None)


def psnr_gain(row: FindingRow) -> float:
    """How many dB the typical image is above the best kind of blind guess; 0 if there is none to
    compare with.

    Of medians; of means for an attack that brings no guess for each image.
    """
    if row.pictures is not None:
        return row.pictures.median - row.pictures.guess
    base = blind_guess_psnr(row)
    if base is None:
        return 0.0
    return (row.psnr or 0.0) - base


def has_clear_pictures(row: FindingRow, scope: Scope) -> bool:
    """The one rule, for single pictures: more lie clearly above every guess for their own record
    than blind ones would, or the best of them gains what the best of so many blind ones does not;
    each at its share of the run's 5 %."""
    images = row.pictures
    if images is None or images.chance is None:
        return False
    if is_above_chance(images.clear / images.n, images.chance, images.n, scope.looks):
        return True
    if images.chance_best is None or images.clear == 0:
        return False
    return images.chance_best < ALPHA / 2 / scope.looks


def rebuilds_records(row: FindingRow, scope: Scope) -> bool:
    """The one rule, for pictures: single ones stand out, or the typical one is ``PICTURE_MARGIN``
    dB above the best guess."""
    return has_clear_pictures(row, scope) or psnr_gain(row) >= PICTURE_MARGIN


def strongest_reconstruction(rows: Iterable[FindingRow], scope: Scope) -> FindingRow | None:
    """The reconstruction whose pictures stand out, else the one furthest above a blind guess: an
    average picture alone can reach a high PSNR."""
    attempts = filter(rebuilds_pictures, rows)
    return max(attempts, key=lambda row: picture_strength(row, scope), default=None)


def rebuilds_pictures(row: FindingRow) -> bool:
    """Whether a finding is of pictures, and not of shared features."""
    return (
        row.family in PICTURE_FAMILIES
        and row.psnr is not None
        and row.attack not in FEATURE_ATTACKS
    )


def picture_strength(row: FindingRow, scope: Scope) -> tuple[bool, bool, float, float, float]:
    if row.pictures:
        clear = row.pictures.clear / row.pictures.n
    else:
        clear = 0.0
    return (
        has_clear_pictures(row, scope),
        rebuilds_records(row, scope),
        clear,
        psnr_gain(row),
        row.psnr or 0.0,
    )


def strongest_on_each_surface(rows: Iterable[FindingRow], scope: Scope) -> list[FindingRow]:
    """The finding of the strongest membership attack on each surface, the strongest of all
    first."""
    findings = list(rows)
    strongest = dict[str, FindingRow]()
    for result in ranked_memberships(findings, scope):
        strongest.setdefault(result.row.surface, result.row)
    # those whose sample shows no rate come last
    for row in sorted(findings, key=lambda row: row.auc or 0.0, reverse=True):
        strongest.setdefault(row.surface, row)
    return list(strongest.values())


def is_above_chance(rate: float, chance: float, n: int | None, looks: int = 1) -> bool:
    """Whether ``rate`` of ``n`` tries is more than chance (Clopper and Pearson, 1934: lower end of
    the 95 % interval).

    looks: at how many such rates the run looks; the 95 % hold for all of them together.
    """
    if not n or rate <= chance:
        return False
    hits = math.floor(rate * n + ROUNDING)  # a tie counts half: a half hit is none
    return lower_limit(hits, n, ALPHA / 2 / looks) > chance + ROUNDING


def boldest_claim(claims: Iterable[ClaimRow]) -> ClaimRow | None:
    """The claim of the smallest epsilon; None if no claim gives a number."""
    numbered = [claim for claim in claims if claim.number is not None]
    return min(numbered, key=lambda claim: claim.number or 0.0, default=None)


def limit_word(claim: ClaimRow | None, rows: Iterable[FindingRow]) -> str:
    """The word for the number of a claim: "stated" if the run is held to it, else "claimed"."""
    if claim is None or claim.number is None:
        return "claimed"
    is_stated = any(row.epsilon_stated == claim.number for row in rows)
    return "stated" if is_stated else "claimed"


def finding_setting(row: FindingRow) -> str:
    """The setting that a finding holds in, such as its round: the first clause of its note; "" if
    it has no note."""
    return (row.note or "").partition(";")[0]


def bound_word(verdict: Verdict) -> str:
    """The word for the upper bound of the accounting: "stated" if a test contradicts it, else
    "proven"."""
    return "stated" if verdict == "contradiction" else "proven"


def exceeds_claim(claim: ClaimRow | None, shown: float | None, delta: float) -> bool:
    """Whether more was measured at ``delta`` than is claimed; a claim at a larger delta is not
    comparable."""
    if claim is None or claim.number is None or shown is None or (claim.delta or delta) > delta:
        return False
    return shown > claim.number


def findings_measuring_claim(claim: ClaimRow, rows: Iterable[FindingRow]) -> list[FindingRow]:
    """The findings of the attacks that measure a claim, if they measured something."""
    return [
        row
        for row in rows
        if row.attack in claim.tested_by
        and (row.auc is not None or row.identified is not None or row.psnr is not None)
    ]


def filed_findings(surface: SurfaceRow, findings: Findings) -> list[FindingRow]:
    """The findings filed under a surface; if client and server both send on it, those of whoever
    holds this sender's messages."""
    rows = [row for row in findings.findings if row.surface == surface.surface]
    senders = {row.sender for row in findings.surfaces if row.surface == surface.surface}
    if len(senders) == 1:
        return rows
    is_broadcast = surface.sender == "server"
    return [row for row in rows if (row.adversary in READERS_OF_BROADCASTS) == is_broadcast]


def refuting_findings(findings: Findings) -> list[FindingRow]:
    """The findings that contradict what is stated, as findings.json marks them."""
    return [row for row in findings.findings if row.refutes]


def misfiled_findings(findings: Findings) -> list[FindingRow]:
    """The findings under a surface that the run does not send: an error of this program, which no
    verdict may hide."""
    sent = {row.surface for row in findings.surfaces}
    return [row for row in findings.findings if row.surface not in sent]


def refuted_source(surface: SurfaceRow, findings: Findings) -> SurfaceRow | None:
    """Of a contradicted surface that no refuting finding is filed under: the surface which such a
    finding is filed under, and from whose refuted messages this one was computed."""
    if surface.verdict != "contradiction" or _has_refutation(surface, findings):
        return None
    for source in findings.surfaces:
        if source is surface or not {*surface.refuted} & {*source.refuted}:
            continue
        if _has_refutation(source, findings):
            return source
    return None


def _has_refutation(surface: SurfaceRow, findings: Findings) -> bool:
    return any(row.refutes for row in filed_findings(surface, findings))


def findings_on_surface(surface: SurfaceRow, findings: Findings) -> list[FindingRow]:
    """The findings that speak of a surface.

    Those filed under it; of what a client sends, and of a pool of such values, the tests of the
    mechanisms that it was computed from; of values in a pool, the attacks on the pool; of a pool
    whose values are refuted, all of theirs.
    """
    rows = filed_findings(surface, findings)
    source = _pooled_surface(surface, findings)
    for test in findings.findings:
        if test.family != "guarantee" or test in rows:
            continue
        if _is_behind(test, surface) or (source is not None and test.surface == source.surface):
            rows.append(test)
    if source is not None and surface.verdict == source.verdict == "contradiction":
        rows += [row for row in filed_findings(source, findings) if row not in rows]
    pooled = [row for row in findings.findings if POOLS.get(row.surface) == surface.surface]
    return rows + [row for row in pooled if row.family != "guarantee"]


def _pooled_surface(pool: SurfaceRow, findings: Findings) -> SurfaceRow | None:
    """The surface whose values a pool holds; None for what is no pool."""
    values = POOLS.get(pool.surface)
    return next((row for row in findings.surfaces if row.surface == values), None)


def _is_behind(test: FindingRow, surface: SurfaceRow) -> bool:
    """Whether what a client sends was computed from a message that a test is about."""
    messages = (test.message or "").split(", ")
    return surface.sender == "client" and bool({*messages} & {*surface.behind})


def failed_findings(findings: Findings) -> list[FindingRow]:
    """The attacks that ended with an error, so that they tested nothing."""
    return [row for row in findings.findings if row.status == "failed"]


def unread_attacks(rows: Iterable[FindingRow]) -> tuple[list[str], list[str]]:
    """(membership attacks that had nothing to read, all that were tried), by name."""
    tried = [row for row in rows if row.family == "membership" and row.status != "not_attacked"]
    read = {row.attack for row in tried if row.status not in ("nothing_to_read", "failed")}
    names = list(dict.fromkeys(row.attack for row in tried))
    return [name for name in names if name not in read], names


def lacks_map(row: SurfaceRow, rows: Iterable[FindingRow]) -> bool:
    """Whether membership attacks had nothing to read on a surface because the method names no map
    to its rows."""
    if row.missing_hooks is None or reads_counts_alone(row):
        return False
    return bool(unread_attacks(rows)[0])


def reads_counts_alone(row: SurfaceRow) -> bool:
    """Whether attacks read the class counts of statistics alone, because the method defines no hook
    by which they would search the other tensors."""
    return row.surface == "statistics" and row.missing_hooks is not None


def findings_without_signal(findings: Findings) -> list[FindingRow]:
    """The attacks that found nothing of what they read in what was sent."""
    return [row for row in findings.findings if row.status == "nothing_to_read"]


def has_no_signal(rows: Iterable[FindingRow]) -> bool:
    """Whether membership attacks were tried, and none of them had anything to read."""
    memberships = [row for row in rows if row.family == "membership"]
    statuses = {row.status for row in memberships if row.status != "not_attacked"}
    return statuses == {"nothing_to_read"}


def diverged_run_text(findings: Findings) -> tuple[str, tuple[str, ...]] | None:
    """(title, sentences) of a diverged run; None for every other one."""
    utility = findings.utility
    if utility is None or utility.diverged is None:
        return None
    epsilon = format_number(findings.privacy.epsilon.proven)
    return f"Training diverged in round {utility.diverged}: no model is left to judge.", (
        "Its numbers are not finite, so it predicts nothing and no attack was run; a "
        "lower learning rate may help.",
        f"The ledger still covers all that was sent (ε = {epsilon}), but nothing here was "
        "put to the test.",
    )
