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
from privdd.reporting.schema import ClaimRow, FindingRow, Findings, SurfaceRow, TprAt, WorstRecord
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
EXPOSED_FPR = (
    0.001  # at which the most exposed records are looked for (``attacks.membership.measures``)
)
ROUNDING = (
    1e-9  # a number is above a chance level only by more than this: both went through a transform
)
AUC_CHANCE = 0.5
FEATURE_ATTACKS = frozenset(
    {"known_neighbour"}
)  # their PSNR is of shared features, not of pictures


@dataclass(frozen=True)
class MembershipResult:
    """The result of one membership attack at one false-positive rate.

    kind: "rate", of all records; "exposed", of single records; "bound", by its lower bound on
        epsilon, and "ranking", by the
    AUC: both say that members can be distinguished, at no rate (fpr 1); at: the rate of all records
        at ``fpr``; None where the sample cannot show it.
    """

    row: FindingRow
    fpr: float
    at: TprAt | None
    kind: Literal["rate", "exposed", "bound", "ranking"] = "rate"

    @property
    def exposed(self) -> list[WorstRecord]:
        """The records that are identified more often than by chance at this rate; [] at any
        other."""
        return exposed_records(self.row) if self.fpr == EXPOSED_FPR else []

    @property
    def counts(self) -> bool:
        """Whether of all records more are identified than by chance."""
        return self.kind == "rate" and self.at is not None and beats_guessing(self.at, self.fpr)

    @property
    def beats_guessing(self) -> bool:
        """The one predicate, over bound, rate and AUC."""
        if self.kind == "exposed":
            return bool(self.exposed)
        if self.kind == "bound":
            return bounds_members(self.row)
        return ranks_members(self.row) if self.kind == "ranking" else self.counts

    @property
    def strength_key(self) -> tuple[bool, float, bool, float, bool, float, float]:
        """Compared in this order: whether chance is beaten, the smaller rate, a rate of all records
        before single ones, the share identified at it, whether a bound shows it, this bound, the
        AUC."""
        worst = self.row.worst_records if self.kind == "exposed" else None
        share = self.at.tpr if self.at and self.kind == "rate" else 0.0
        share = worst.tpr if worst else share
        bound = epsilon_bound(self.row) if self.kind == "bound" else 0.0
        auc = self.row.auc or 0.0
        return (
            self.beats_guessing,
            -self.fpr,
            self.kind == "rate",
            share,
            self.kind == "bound",
            bound,
            auc,
        )


def exposes_records(row: FindingRow) -> bool:
    """The one rule, for the records that an attack chose in one half of the replays and judged in
    the other: together they are identified more often than by chance, and more often than they are
        named while they are out (Fisher's exact test)."""
    worst = row.worst_records
    looks = row._context.looks
    if (
        worst is None
        or not worst.records
        or not exceeds_chance(worst.tpr, worst.ci[0], EXPOSED_FPR, looks)
    ):
        return False
    hits, trials, wrong, out = (
        sum(getattr(one, name) or 0 for one in worst.records) for name in COUNTED
    )
    if not out:
        return True
    return float(hypergeom.sf(hits - 1, trials + out, hits + wrong, trials)) < ALPHA / 2 / looks


COUNTED = ("hits", "trials", "wrong", "out")  # of a record in all its replays


def exposed_records(row: FindingRow) -> list[WorstRecord]:
    """The single records that an attack identifies again and again, the most exposed first; []
    where the rule does not hold.

    A record's interval lies above the chance level; where none does by itself, the most exposed one
    carries the rule."""
    if row.worst_records is None or not exposes_records(row):
        return []
    ranked = sorted(row.worst_records.records, key=lambda one: (one.ci[0], one.hits), reverse=True)
    clear = [
        one for one in ranked if exceeds_chance(one.tpr, one.ci[0], EXPOSED_FPR, row._context.looks)
    ]
    return clear or ranked[:1]


def identifies_members(row: FindingRow) -> bool:
    """The one rule, for members nearer to what was sent than non-members: the chance of so many, at
    its share of the error."""
    return row.copy_test is not None and row.copy_test.p_value < ALPHA / 2 / row._context.looks


def ranks_members(row: FindingRow) -> bool:
    """The one rule, for the AUC: guessing reaches one half."""
    if row.auc is None or row.auc_ci is None:
        return False
    return exceeds_chance(row.auc, row.auc_ci[0], AUC_CHANCE, row._context.looks)


def bounds_members(row: FindingRow) -> bool:
    """The one rule, for a lower bound on epsilon: guessing shows 0."""
    return has_sound_bound(row) and epsilon_bound(row) > ROUNDING


def beats_guessing(at: TprAt, fpr: float) -> bool:
    """The one rule, for a true-positive rate: guessing reaches the false-positive rate itself."""
    return exceeds_chance(at.tpr, at.ci[0], fpr, at._context.looks)


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
    return float(joint) if isinstance(joint, int | float) else row.epsilon_shown or 0.0


def largest_bound_finding(rows: Iterable[FindingRow]) -> FindingRow | None:
    """The finding with the largest lower bound that needs no assumption on the scores'
    distribution."""
    return max(filter(has_sound_bound, rows), key=epsilon_bound, default=None)


def shown_epsilon(rows: Iterable[FindingRow]) -> float | None:
    best = largest_bound_finding(rows)
    return epsilon_bound(best) if best else None


def ranked_memberships(rows: Iterable[FindingRow]) -> list[MembershipResult]:
    """All that membership attacks show at rates which their samples can show, strongest first: the
    one order of all pages."""
    return sorted(
        (m for row in rows if row.family == "membership" for m in _membership_results(row)),
        key=lambda m: m.strength_key,
        reverse=True,
    )


def _membership_results(row: FindingRow) -> Iterator[MembershipResult]:
    seen = {float(key): at for key, at in (row.tpr_at_fpr or {}).items() if at.resolvable}
    yield from (MembershipResult(row, fpr, at) for fpr, at in seen.items())
    if exposes_records(row):
        yield MembershipResult(row, EXPOSED_FPR, seen.get(EXPOSED_FPR), "exposed")
    if bounds_members(row):
        yield MembershipResult(row, 1.0, None, "bound")
    if ranks_members(row):
        yield MembershipResult(row, 1.0, None, "ranking")


def strongest_membership(rows: Iterable[FindingRow]) -> MembershipResult | None:
    """The strongest of ``ranked_memberships``; rates that the sample is too small for are passed
    over."""
    return next(iter(ranked_memberships(rows)), None)


def blind_guess_psnr(row: FindingRow) -> float | None:
    """The PSNR in dB of the best guess that never saw the artifact, if the finding has one."""
    return max(
        (value for name, value in (row.baselines or {}).items() if name.startswith("psnr")),
        default=None,
    )


def blind_label_rate(row: FindingRow) -> float | None:
    """The share of labels that the best guess which never saw the artifact reads, if the finding
    has one."""
    return max(
        (v for name, v in (row.baselines or {}).items() if name.startswith("label_accuracy")),
        default=None,
    )


def psnr_gain(row: FindingRow) -> float:
    """How many dB the typical picture is above the best kind of blind guess; 0 where there is none
    to compare with.

    Of medians; of features, which have none, of means.
    """
    if row.pictures is not None:
        return row.pictures.median - row.pictures.guess
    base = blind_guess_psnr(row)
    return (row.psnr or 0.0) - base if base is not None else 0.0


def has_clear_pictures(row: FindingRow) -> bool:
    """The one rule, for single pictures: more lie clearly above every guess for their own record
    than blind ones would, or the best of them gains what the best of so many blind ones does not;
    each at its share of the run's 5 %."""
    seen = row.pictures
    each = ALPHA / 2 / row._context.looks
    if seen is None or seen.chance is None:
        return False
    many = is_above_chance(seen.clear / seen.n, seen.chance, seen.n, row._context.looks)
    return many or (seen.chance_best is not None and seen.clear > 0 and seen.chance_best < each)


def rebuilds_records(row: FindingRow) -> bool:
    """The one rule, for pictures: single ones stand out, or the typical one is ``PICTURE_MARGIN``
    dB above the best guess."""
    return has_clear_pictures(row) or psnr_gain(row) >= PICTURE_MARGIN


def strongest_reconstruction(rows: Iterable[FindingRow]) -> FindingRow | None:
    """The reconstruction whose pictures stand out, else the one furthest above a blind guess: an
    average picture alone can reach a high PSNR."""
    return max(filter(rebuilds_pictures, rows), key=picture_strength, default=None)


def rebuilds_pictures(row: FindingRow) -> bool:
    """Whether a finding is of pictures, and not of shared features."""
    return (
        row.family in PICTURE_FAMILIES
        and row.psnr is not None
        and row.attack not in FEATURE_ATTACKS
    )


def picture_strength(row: FindingRow) -> tuple[bool, bool, float, float, float]:
    clear = row.pictures.clear / row.pictures.n if row.pictures else 0.0
    return has_clear_pictures(row), rebuilds_records(row), clear, psnr_gain(row), row.psnr or 0.0


def strongest_on_each_surface(rows: Iterable[FindingRow]) -> list[FindingRow]:
    """The finding of the strongest membership attack on each surface, the strongest of all
    first."""
    rows = list(rows)
    best = dict[str, FindingRow]()
    for found in ranked_memberships(rows):
        best.setdefault(found.row.surface, found.row)
    for row in sorted(
        rows, key=lambda one: one.auc or 0.0, reverse=True
    ):  # whose sample shows no rate
        best.setdefault(row.surface, row)
    return list(best.values())


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
    """The claim of the smallest epsilon; None where no claim gives a number."""
    return min(
        (c for c in claims if c.number is not None), key=lambda c: c.number or 0.0, default=None
    )


def limit_word(claim: ClaimRow | None, rows: Iterable[FindingRow]) -> str:
    """The word for the number of a claim: "stated" where the run is held to it, else "claimed"."""
    return (
        "stated"
        if claim is not None and any(r.epsilon_stated == claim.number is not None for r in rows)
        else "claimed"
    )


def exceeds_claim(claim: ClaimRow | None, shown: float | None, delta: float) -> bool:
    """Whether more was measured at ``delta`` than is claimed; a claim at a larger delta is not
    comparable."""
    if claim is None or claim.number is None or shown is None or (claim.delta or delta) > delta:
        return False
    return shown > claim.number


def findings_measuring_claim(claim: ClaimRow, rows: Iterable[FindingRow]) -> list[FindingRow]:
    """The findings of the attacks that measure a claim, where they measured something."""
    mine = [r for r in rows if r.attack in claim.tested_by]
    return [r for r in mine if r.auc is not None or r.identified is not None or r.psnr is not None]


# What works on a pool of released features works on the values that it holds: who holds these knows
# more.
POOLS: Mapping[str, str] = {
    "shared_features": "features"
}  # surface -> the one whose values it holds
READERS_OF_BROADCASTS = ("peer", "public")  # adversaries that hold what the server sends


def filed_findings(row: SurfaceRow, findings: Findings) -> list[FindingRow]:
    """The findings filed under a surface; where client and server both send on it, those of who
    holds this one's messages."""
    senders = {other.sender for other in findings.surfaces if other.surface == row.surface}
    here = [found for found in findings.findings if found.surface == row.surface]
    return [
        f
        for f in here
        if len(senders) == 1 or (f.adversary in READERS_OF_BROADCASTS) == (row.sender == "server")
    ]


def refuting_findings(findings: Findings) -> list[FindingRow]:
    """The findings that contradict what is stated, as findings.json marks them."""
    return [row for row in findings.findings if row.refutes]


def misfiled_findings(findings: Findings) -> list[FindingRow]:
    """The findings under a surface that the run does not send: an error of this program, which no
    verdict may hide."""
    sent = {row.surface for row in findings.surfaces}
    return [row for row in findings.findings if row.surface not in sent]


def refuted_source(row: SurfaceRow, findings: Findings) -> SurfaceRow | None:
    """Of a contradicted surface that no refuting finding is filed under: the surface which such a
    finding is filed under, and from whose refuted messages this one was computed."""
    if row.verdict != "contradiction" or any(
        found.refutes for found in filed_findings(row, findings)
    ):
        return None
    others = [
        other
        for other in findings.surfaces
        if other is not row and {*row.refuted} & {*other.refuted}
    ]
    accused = [
        other for other in others if any(found.refutes for found in filed_findings(other, findings))
    ]
    return next(iter(accused), None)


def findings_on_surface(row: SurfaceRow, findings: Findings) -> list[FindingRow]:
    """The findings filed under a surface; of what a client sends, and of a pool of such values, the
    tests of the mechanisms that it was computed from; of values in a pool, the attacks on the pool;
    of a pool whose values are refuted, all of theirs."""
    mine = filed_findings(row, findings)
    source = next(
        (other for other in findings.surfaces if other.surface == POOLS.get(row.surface)), None
    )
    for test in (
        found for found in findings.findings if found.family == "guarantee" and found not in mine
    ):
        is_behind = row.sender == "client" and bool(
            {*(test.message or "").split(", ")} & {*row.behind}
        )
        if is_behind or (source is not None and test.surface == source.surface):
            mine.append(test)
    if source is not None and row.verdict == source.verdict == "contradiction":
        mine += [found for found in filed_findings(source, findings) if found not in mine]
    pooled = (found for found in findings.findings if POOLS.get(found.surface) == row.surface)
    return mine + [found for found in pooled if found.family != "guarantee"]


SENTENCE = (
    "No membership attack of this audit found anything that it can read in what was "
    "sent, so none has a rate. That says "
    "nothing about what other attacks would find."
)
UNSCORED = "not tested: no membership attack of this audit had anything to read in it"


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
    return row.missing_hooks is not None and bool(unread_attacks(rows)[0])


def findings_without_signal(findings: Findings) -> list[FindingRow]:
    """The attacks that found nothing of what they read in what was sent."""
    return [row for row in findings.findings if row.status == "nothing_to_read"]


def has_no_signal(rows: Iterable[FindingRow]) -> bool:
    """Whether membership attacks were tried, and none of them had anything to read."""
    tried = [
        row.status for row in rows if row.family == "membership" and row.status != "not_attacked"
    ]
    return bool(tried) and set(tried) == {"nothing_to_read"}


def diverged_run_text(findings: Findings) -> tuple[str, tuple[str, ...]] | None:
    """(title, sentences) of a diverged run; None for every other one."""
    utility = findings.utility
    if utility is None or utility.diverged is None:
        return None
    epsilon = format_number(findings.privacy.epsilon.proven)
    return f"Training diverged in round {utility.diverged}: there is no model to judge.", (
        "Its numbers are not finite, so it predicts nothing and no attack was run; a "
        "lower learning rate may help.",
        f"The ledger still covers all that was sent (ε = {epsilon}), but nothing here was "
        "put to the test.",
    )
