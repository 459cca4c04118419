"""Which finding is the strongest, and the one rule of what counts as better than guessing, on every page.

The rule: the lower end of a 95 % interval lies above what guessing gives. Pictures come without an interval: there, the
median has to lie clearly above the best guess that never saw the artifact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scipy.special import betaincinv

from privdd.reporting.schema import FindingRow, TprAt

PICTURE_FAMILIES = frozenset({"gradient_inversion", "model_inversion", "reconstruction"})
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
    return at.ci[0] > fpr


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


def finds_members(rows: Iterable[FindingRow]) -> Membership | None:
    """The strongest attack that beats guessing, at the smallest rate at which any does; None where none does."""
    return next((one for one in rates(rows) if one.beats_guessing), None)


def ranks_members(rows: Iterable[FindingRow]) -> FindingRow | None:
    """The attack of the largest AUC among those whose interval lies above one half."""
    found = [r for r in rows if r.family == "membership" and r.auc is not None and r.auc_ci and r.auc_ci[0] > 0.5]
    return max(found, key=lambda r: r.auc or 0.0, default=None)


def above_chance(rate: float, chance: float, n: int | None) -> bool:
    """Whether ``rate`` of ``n`` tries is more than chance (Clopper and Pearson, 1934: lower end of the 95 % interval)."""
    if not n or rate <= chance:
        return False
    hits = round(rate * n)
    return hits > 0 and float(betaincinv(hits, n - hits + 1, 0.025)) > chance
