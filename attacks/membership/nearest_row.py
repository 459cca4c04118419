"""Were records sent nearly as they are? Members against non-members, by the distance to the nearest
row that was sent.

A signal that is read from a model trained on synthetic images says little about images that are
records themselves. Here each record is compared with the rows, without shadow models. Beside the
rates of the membership game, over the audited records in all replays, stands a count in the real
run: all its members against all its non-members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from scipy.stats import hypergeom
from torch import Tensor

from attacks.membership.attack import MembershipAttack, require_worlds
from attacks.membership.measures import FALSE_POSITIVE_RATES
from attacks.membership.multi_round import signal_in_all_rounds
from attacks.membership.signals import nearest_distance, patch_distance, single_record_means
from attacks.roc import roc, tpr_at_fpr
from attacks.tensors import accepts_numpy
from attacks.types import (
    ANY_ADVERSARY,
    IMAGE_SURFACES,
    Adversary,
    Evidence,
    Finding,
    Surface,
    Truth,
    View,
    Worlds,
)

ROW_SURFACES = frozenset(
    {
        Surface.SYNTHETIC_IMAGES,
        Surface.SYNTHETIC_REPRESENTATIONS,
        Surface.FEATURES,
        Surface.PROTOTYPES,
        Surface.GLOBAL_IMAGES,
        Surface.SHARED_FEATURES,
    }
)
# Thresholds, fixed before any distance is computed: the k-th nearest non-member of n, k = 1 +
# floor(share * n).
FALSE_SHARES = (0.0, 0.001, 0.01)
RECORDS_AT_ONCE = 512  # that go through a map together
Distance = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class NearestCount:
    """How many members are nearer than the ``rank``-th nearest non-member."""

    rank: int
    identified: int  # members that are nearer
    false_alarms: int  # non-members that are nearer, at most rank - 1
    p_value: float  # of so many members or more by chance, at this rank alone


@accepts_numpy
def count_nearest(members: Tensor, nonmembers: Tensor) -> list[NearestCount]:
    """One count for each different rank of FALSE_SHARES.

    members (m,), nonmembers (n,): distances to what was sent, smaller = nearer. Ties with the
    threshold do not count, which makes p larger. Raises ValueError for an empty side or NaN.
    """
    near_members = torch.as_tensor(members).double().flatten()
    near_nonmembers = torch.as_tensor(nonmembers).double().flatten().sort().values
    counts = f"{len(near_members)} members, {len(near_nonmembers)} non-members"
    if not len(near_members) or not len(near_nonmembers):
        raise ValueError(f"{counts}: distances of both are needed, no NaN")
    if near_members.isnan().any() or near_nonmembers.isnan().any():
        raise ValueError(f"{counts}: distances of both are needed, no NaN")
    ranks = sorted({1 + int(share * len(near_nonmembers)) for share in FALSE_SHARES})
    return [_count_at_rank(near_members, near_nonmembers, rank) for rank in ranks]


# If what was sent does not depend on who is in, every order of the m + n distances is equally
# likely. At least t members precede the k-th non-member if and only if the t + k - 1 nearest hold
# at most k - 1 non-members. With H ~ Hypergeometric(m + n, n, t + k - 1), the non-members among
# these,
#     p = P(H <= k - 1)
# (negative hypergeometric law: Wilks 1942, "Statistical prediction with special reference to the
# problem of tolerance limits").
def _count_at_rank(members: Tensor, nonmembers: Tensor, rank: int) -> NearestCount:
    """The count at one rank, from distances (m,) and, sorted, (n,)."""
    threshold = nonmembers[rank - 1]
    identified = int((members < threshold).sum())
    false_positives = int((nonmembers < threshold).sum())
    total = len(members) + len(nonmembers)
    p_value = float(hypergeom.cdf(rank - 1, total, len(nonmembers), identified + rank - 1))
    return NearestCount(rank, identified, false_positives, min(p_value, 1.0))


@accepts_numpy
def copy_test(members: Tensor, nonmembers: Tensor) -> dict[str, Any]:
    """``copy_test`` of a finding: the count at the rank with the smallest p-value (of equal ones
    the smallest rank).

    p_value: of that count, times the number of ranks (Bonferroni), so that all ranks together share
    one error.
    """
    counts = count_nearest(members, nonmembers)
    best = min(counts, key=lambda count: (count.p_value, count.rank))
    return {
        "members": len(members),
        "nonmembers": len(nonmembers),
        "identified": best.identified,
        "false_alarms": best.false_alarms,
        "p_value": min(1.0, best.p_value * len(counts)),
        "ranks": [vars(count) for count in counts],
    }


@dataclass(frozen=True)
class NearestRow(MembershipAttack):
    """Minus the distance to the nearest row of any round as the score: one threshold for all
    records."""

    name: ClassVar[str] = "nearest_row"
    surfaces: ClassVar[frozenset[Surface]] = ROW_SURFACES
    adversaries: ClassVar[frozenset[Adversary]] = ANY_ADVERSARY
    least_worlds: ClassVar[int] = 1
    _distance: ClassVar[Distance] = staticmethod(
        lambda records, rows: -nearest_distance(records, rows)
    )

    def score(self, view: View, name: str, seed: int) -> Tensor:
        return signal_in_all_rounds(require_worlds(view), name).double().amax(-1)

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """The game's rates, and ``copy_test``: all members and non-members of the run, by the rows
        of all kept rounds.

        diagnostics: "last_round", both for the rows of one round alone.
        """
        finding = super().judge(evidence, view, truth)
        if not finding.measures.has_result:
            return finding
        last = self._distances(view, truth)
        if last is None:
            return finding
        rounds = [last]
        for earlier_view in view.other_rounds:
            distances = self._distances(earlier_view, truth)
            if distances is not None:
                rounds.append(distances)
        members = torch.stack([near_members for near_members, _ in rounds]).amin(0)
        nonmembers = torch.stack([near_nonmembers for _, near_nonmembers in rounds]).amin(0)
        last_round = finding.diagnostics.get("last_round", {}) | {"copy_test": copy_test(*last)}
        figures = {"near_members": members, "near_nonmembers": nonmembers}
        finding = replace(finding, figures={**finding.figures, **figures})
        finding = finding.with_diagnostics(last_round=last_round)
        return finding.with_measures(copy_test=copy_test(members, nonmembers), rounds=len(rounds))

    def _distances(self, view: View, truth: Truth) -> tuple[Tensor, Tensor] | None:
        """Distances (m,), (n,) of members and non-members to one round's rows; None if the two
        cannot be compared."""
        rows = _sent_rows(view)
        members = map_to_rows(view, truth.x, rows)
        nonmembers = map_to_rows(view, truth.heldout_x, rows)
        if members is None or nonmembers is None:
            return None
        if not len(rows) or not len(members) or not len(nonmembers):
            return None
        distance = type(self)._distance
        return distance(members, rows).double(), distance(nonmembers, rows).double()

    def _add_details(self, finding: Finding, evidence: Evidence, replays: Worlds) -> Finding:
        """AUC and rates of the last round alone, if there are several."""
        name = str(evidence.notes["signal"])
        if name not in replays.rounds:
            return finding
        member = replays.masks.flatten().numpy()
        last = replays.signals[name].double().flatten().numpy()
        last_round: dict[str, Any] = {"auc": roc(last, member).auc}
        for rate in FALSE_POSITIVE_RATES:
            last_round[f"tpr_at_{rate}"] = tpr_at_fpr(last, member, rate)[0]
        return finding.with_measures(diagnostics={"last_round": last_round})


@dataclass(frozen=True)
class NearestPatch(NearestRow):
    """The same for parts of images: a patch of a record that was sent as a part of some image."""

    name: ClassVar[str] = "nearest_patch"
    images_only: ClassVar[bool] = True
    surfaces: ClassVar[frozenset[Surface]] = IMAGE_SURFACES
    _distance: ClassVar[Distance] = staticmethod(
        lambda records, rows: -patch_distance(records, rows)
    )


def _sent_rows(view: View) -> Tensor:
    """(m, ...): what was sent in the view's own round; of class means, those of one record."""
    value = view.captures[0].value
    if "x" in value:
        return value["x"]
    statistic = "mean"
    if statistic not in value:
        statistic = "sum"
    return single_record_means(value[statistic], value.get("count"))


def map_to_rows(view: View, x: Tensor, rows: Tensor) -> Tensor | None:
    """Records x (n, c, h, w) as rows of the kind that was sent, by the map that the view grants;
    None without a fitting one."""
    maps: Mapping[str, Callable[[Tensor], Tensor]] = view.knowledge.maps
    names = {
        Surface.FEATURES: ("feature",),
        Surface.SHARED_FEATURES: ("feature",),
        Surface.SYNTHETIC_REPRESENTATIONS: ("projection",),
        Surface.PROTOTYPES: ("embedding", "public"),
    }
    to_row = next((maps[name] for name in names.get(view.surface, ()) if name in maps), None)
    model = view.knowledge.model
    if to_row is None and view.surface == Surface.PROTOTYPES and hasattr(model, "features"):
        to_row = model.eval().features  # type: ignore[union-attr,assignment]
    mapped = x
    if to_row is not None:
        with torch.no_grad():
            mapped = torch.cat([to_row(batch) for batch in x.split(RECORDS_AT_ONCE)])
    if mapped.shape[1:] == rows.shape[1:]:
        return mapped
    flat = mapped.flatten(1)
    if view.surface in IMAGE_SURFACES or flat.shape[1] != rows[:1].numel():
        return None
    return flat.reshape(len(flat), *rows.shape[1:])
