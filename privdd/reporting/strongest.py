"""Which finding is the strongest, which claim the boldest, and the one rule of what counts as better than guessing, on every page.

The rule: the lower end of an interval lies above what guessing gives, and all intervals of a run hold together at 95 %:
the strongest of many attacks is picked by its result, so each interval is widened as Bonferroni's inequality asks for the
number of rates in the run. Pictures come without an interval: there, the median has to lie clearly above the best guess
that never saw the artifact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from scipy.special import betaincinv, ndtri

from privdd.reporting.schema import FindingRow, TprAt
from privdd.reporting.schema_privacy import ClaimRow

PICTURE_FAMILIES = frozenset({"gradient_inversion", "model_inversion", "reconstruction"})
ALPHA = 0.05  # the chance that any interval of a run that guesses lies off: 95 % confidence
PICTURE_MARGIN = 0.5  # dB; a choice: less is not told apart from a guess by eye, nor from chance by a few pictures
FEATURE_ATTACKS = frozenset({"known_neighbour"})  # their PSNR is of shared features, not of pictures


@dataclass(frozen=True)
class Membership:
    """The strongest membership attack at the smallest false-positive rate that any attack can resolve."""

    row: FindingRow
    fpr: float
    at: TprAt

    @property
    def beats_guessing(self) -> bool:
        return beats_guessing(self.at, self.fpr)


def beats_guessing(at: TprAt, fpr: float) -> bool:
    """The one rule, for a true-positive rate: guessing reaches the false-positive rate itself."""
    return lower_end(at.tpr, at.ci[0], at._looks.count) > fpr


def lower_end(rate: float, low: float, looks: int) -> float:
    """The lower end that holds at 95 % for all of ``looks`` intervals, from the one that holds for a single interval.

    rate, low: in [0, 1]. The distance grows by the ratio of normal quantiles on the arcsine scale, where the variance of
    a rate does not depend on the rate (Bartlett, 1936).
    """
    middle, end = (math.asin(math.sqrt(min(max(one, 0.0), 1.0))) for one in (rate, low))
    return math.sin(max(middle - (middle - end) * float(ndtri(ALPHA / 2 / looks) / ndtri(ALPHA / 2)), 0.0)) ** 2


def of_transcripts(row: FindingRow) -> bool:
    """Whether an attack read noised sums: what it has beside the run is drawn by the mechanism's law, and no replay."""
    return row.family == "membership" and row.adversary == "analyst"


def bound(row: FindingRow) -> float:
    """The row's lower bound on epsilon; at joint confidence where the run made several tests."""
    joint = (row.diagnostics or {}).get("epsilon_familywise")
    return float(joint) if isinstance(joint, int | float) else row.epsilon_measured or 0.0


def measured(rows: Iterable[FindingRow]) -> FindingRow | None:
    """The finding with the largest lower bound that needs no assumption on the scores' distribution."""
    sound = [r for r in rows if r.epsilon_measured is not None and r.epsilon_validity not in ("gaussian_only", "curve")]
    return max(sound, key=bound, default=None)


def measured_epsilon(rows: Iterable[FindingRow]) -> float | None:
    best = measured(rows)
    return bound(best) if best else None


def worst_membership(rows: Iterable[FindingRow]) -> Membership | None:
    """Among attacks that saw an artifact; rates that the sample is too small for are passed over."""
    return next(iter(rates(rows)), None)


def blind_psnr(row: FindingRow) -> float | None:
    """The PSNR in dB of the best guess that never saw the artifact, if the finding has one."""
    return max((value for name, value in (row.baselines or {}).items() if name.startswith("psnr")), default=None)


def label_chance(row: FindingRow) -> float | None:
    """The share of labels that the best guess which never saw the artifact reads, if the finding has one."""
    return max((v for name, v in (row.baselines or {}).items() if name.startswith("label_accuracy")), default=None)


def picture_gain(row: FindingRow) -> float:
    """How many dB a reconstruction is above the best blind guess; 0 where there is none to compare with."""
    base = blind_psnr(row)
    return (row.psnr or 0.0) - base if base is not None else 0.0


def rebuilds(row: FindingRow) -> bool:
    """The one rule, for pictures: at least ``PICTURE_MARGIN`` dB above the best blind guess."""
    return picture_gain(row) >= PICTURE_MARGIN


def best_pictures(rows: Iterable[FindingRow]) -> FindingRow | None:
    """The reconstruction furthest above a blind guess: an average picture alone can reach a high PSNR."""
    found = [r for r in rows if r.family in PICTURE_FAMILIES and r.psnr is not None and r.attack not in FEATURE_ATTACKS]
    return max(found, key=lambda r: (picture_gain(r), r.psnr or 0.0), default=None)


def rates(rows: Iterable[FindingRow]) -> list[Membership]:
    """Every rate of every membership attack that its sample can show: smallest false-positive rate first, then strongest."""
    found = [
        Membership(row, float(key), at)
        for row in rows
        if row.family == "membership" and row.tpr_at_fpr
        for key, at in row.tpr_at_fpr.items()
        if at.resolvable
    ]
    return sorted(found, key=lambda m: (m.fpr, -m.at.tpr))


def on_each_surface(rows: Iterable[FindingRow]) -> list[FindingRow]:
    """Of findings of membership attacks the strongest on each surface, the strongest of all first."""
    best: dict[str, FindingRow] = {}
    for row in sorted(rows, key=_strength, reverse=True):
        best.setdefault(row.surface, row)
    return list(best.values())


def _strength(row: FindingRow) -> tuple[float, float, float]:
    """Smallest rate that can be seen, true-positive rate there, AUC."""
    found = worst_membership([row])
    return (-found.fpr, found.at.tpr, row.auc or 0.0) if found else (-2.0, 0.0, row.auc or 0.0)


def finds_members(rows: Iterable[FindingRow]) -> Membership | None:
    """The strongest attack that beats guessing, at the smallest rate at which any does; None where none does."""
    return next((one for one in rates(rows) if one.beats_guessing), None)


def ranks_members(rows: Iterable[FindingRow]) -> FindingRow | None:
    """The attack of the largest AUC among those whose interval lies above one half."""
    found = [
        (r.auc, r)
        for r in rows
        if r.family == "membership"
        and r.auc is not None
        and r.auc_ci
        and lower_end(r.auc, r.auc_ci[0], r._looks.count) > 0.5
    ]
    return max(found, key=lambda one: one[0])[1] if found else None


def above_chance(rate: float, chance: float, n: int | None, looks: int = 1) -> bool:
    """Whether ``rate`` of ``n`` tries is more than chance (Clopper and Pearson, 1934: lower end of the 95 % interval).

    looks: at how many such rates the run looks; the 95 % hold for all of them together.
    """
    if not n or rate <= chance:
        return False
    hits = round(rate * n)
    return hits > 0 and float(betaincinv(hits, n - hits + 1, ALPHA / 2 / looks)) > chance


def boldest(claims: Iterable[ClaimRow]) -> ClaimRow | None:
    """The claim of the smallest epsilon; None where no claim gives a number."""
    return min((c for c in claims if c.number is not None), key=lambda c: c.number or 0.0, default=None)


def exceeded(claim: ClaimRow | None, shown: float | None, delta: float) -> bool:
    """Whether more was measured at ``delta`` than is claimed; a claim at a larger delta is not comparable."""
    if claim is None or claim.number is None or shown is None or (claim.delta or delta) > delta:
        return False
    return shown > claim.number


def measures_of(claim: ClaimRow, rows: Iterable[FindingRow]) -> list[FindingRow]:
    """The findings of the attacks that measure a claim, where they measured something."""
    mine = [r for r in rows if r.attack in claim.tested_by]
    return [r for r in mine if r.auc is not None or r.identified is not None or r.psnr is not None]
