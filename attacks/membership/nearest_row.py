"""Were records sent nearly as they are? Members against non-members, by the distance to the nearest
row that was sent.

A signal that is read from a model trained on synthetic images says little of images that are
records themselves. Here
each record is compared with the rows: needs no shadow models. Beside the rates of the membership
    game, which are those of the audited records in all replays, stands a count in the run that
    happened: all its members against all its non-members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from scipy.stats import hypergeom
from torch import Tensor

from attacks.membership.attack import FALSE_POSITIVE_RATES, MembershipAttack, require_worlds
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
# Thresholds, settled before any distance is seen: the k-th nearest non-member of n, k = 1 +
# floor(share * n).
FALSE_SHARES = (0.0, 0.001, 0.01)
RECORDS_AT_ONCE = 512  # that go through a map together
Distance = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class NearestCount:
    """Members nearer than the ``rank``-th nearest non-member, and non-members nearer than that (at
    most rank - 1).

    p_value: of so many members or more by chance, at this rank alone.
    """

    rank: int
    identified: int
    false_alarms: int
    p_value: float


@accepts_numpy
def count_nearest(members: Tensor, nonmembers: Tensor) -> list[NearestCount]:
    """One count for each different rank of FALSE_SHARES, by distances (m,) and (n,) to what was
    sent; smaller = nearer.

    If what was sent does not depend on who is in, every order of the m + n distances is equally
    likely. At least t members precede the k-th non-member if and only if the t + k - 1 nearest hold
    at most k - 1 non-members, so with H ~ Hypergeometric(m + n, n, t + k - 1), the non-members
    among these,

        p = P(H <= k - 1)        (negative hypergeometric law: Wilks 1942, "Statistical prediction
        with special
                                  reference to the problem of tolerance limits").

    Ties with the threshold do not count, which makes p larger. Raises ValueError for an empty side
    or NaN."""
    inside = torch.as_tensor(members).double().flatten()
    outside = torch.as_tensor(nonmembers).double().flatten().sort().values
    if not len(inside) or not len(outside) or inside.isnan().any() or outside.isnan().any():
        raise ValueError(
            f"{len(inside)} members, {len(outside)} non-members: distances of both are "
            "needed, no NaN"
        )
    ranks = sorted({1 + int(share * len(outside)) for share in FALSE_SHARES})
    return [_count_at_rank(inside, outside, rank) for rank in ranks]


def _count_at_rank(inside: Tensor, outside: Tensor, rank: int) -> NearestCount:
    threshold = outside[rank - 1]
    identified = int((inside < threshold).sum())
    false_alarms = int((outside < threshold).sum())
    total = len(inside) + len(outside)
    p_value = float(hypergeom.cdf(rank - 1, total, len(outside), identified + rank - 1))
    return NearestCount(rank, identified, false_alarms, min(p_value, 1.0))


@accepts_numpy
def copy_test(members: Tensor, nonmembers: Tensor) -> dict[str, Any]:
    """``copy_test`` of a finding: the count at the rank with the smallest p-value (of equal ones
    the smallest rank).

    p_value: of that count, times the number of ranks (Bonferroni), so that all ranks together share
        one error."""
    counts = count_nearest(members, nonmembers)
    best = min(counts, key=lambda count: (count.p_value, count.rank))
    found: dict[str, Any] = {"members": len(members), "nonmembers": len(nonmembers)}
    found |= {"identified": best.identified, "false_alarms": best.false_alarms}
    found["p_value"] = min(1.0, best.p_value * len(counts))
    found["ranks"] = [vars(count) for count in counts]
    return found


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
        if "auc" not in finding.measures:
            return finding
        last = self._distances(view, truth)
        if last is None:
            return finding
        every = [last, *(self._distances(other, truth) for other in view.other_rounds)]
        known = [distances for distances in every if distances is not None]
        members = torch.stack([inside for inside, _ in known]).amin(0)
        nonmembers = torch.stack([outside for _, outside in known]).amin(0)
        alone = copy_test(*last)
        diagnostics = finding.measures.get("diagnostics", {})
        diagnostics = {
            **diagnostics,
            "last_round": diagnostics.get("last_round", {}) | {"copy_test": alone},
        }
        kept = {"near_members": members, "near_nonmembers": nonmembers}
        finding = replace(finding, figures={**finding.figures, **kept})
        return finding.with_measures(
            copy_test=copy_test(members, nonmembers), rounds=len(known), diagnostics=diagnostics
        )

    def _distances(self, view: View, truth: Truth) -> tuple[Tensor, Tensor] | None:
        """Distances (m,), (n,) of members and non-members to one round's rows; None where the two
        cannot be compared."""
        rows = _sent_rows(view)
        inside = map_to_rows(view, truth.x, rows)
        outside = map_to_rows(view, truth.heldout_x, rows)
        if (
            inside is None
            or outside is None
            or not len(rows)
            or not len(inside)
            or not len(outside)
        ):
            return None
        return self._distance(inside, rows).double(), self._distance(outside, rows).double()

    def _add_details(self, finding: Finding, evidence: Evidence, worlds: Worlds) -> Finding:
        """AUC and rates of the last round alone, where there are several."""
        name = str(evidence.notes["signal"])
        if name not in worlds.rounds:
            return finding
        member = worlds.masks.flatten().numpy()
        last = worlds.signals[name].double().flatten().numpy()
        alone: dict[str, Any] = {"auc": roc(last, member).auc}
        alone |= {
            f"tpr_at_{rate}": tpr_at_fpr(last, member, rate)[0] for rate in FALSE_POSITIVE_RATES
        }
        return finding.with_measures(diagnostics={"last_round": alone})


@dataclass(frozen=True)
class NearestPatch(NearestRow):
    """The same for parts of images: a patch of a record that was sent inside some image."""

    name: ClassVar[str] = "nearest_patch"
    surfaces: ClassVar[frozenset[Surface]] = IMAGE_SURFACES
    _distance: ClassVar[Distance] = staticmethod(
        lambda records, rows: -patch_distance(records, rows)
    )


def _sent_rows(view: View) -> Tensor:
    """(m, ...): what was sent in the view's own round. Of class means, those of one record."""
    value = view.captures[0].value
    if "x" in value:
        return value["x"]
    return single_record_means(value["mean" if "mean" in value else "sum"], value.get("count"))


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
    chosen = next((maps[name] for name in names.get(view.surface, ()) if name in maps), None)
    model = view.knowledge.model
    if chosen is None and view.surface == Surface.PROTOTYPES and hasattr(model, "features"):
        chosen = model.eval().features  # type: ignore[union-attr,assignment]
    with torch.no_grad():
        mapped = (
            x if chosen is None else torch.cat([chosen(part) for part in x.split(RECORDS_AT_ONCE)])
        )
    if mapped.shape[1:] == rows.shape[1:]:
        return mapped
    flat = mapped.flatten(1)
    fits = view.surface not in IMAGE_SURFACES and flat.shape[1] == rows[:1].numel()
    return flat.reshape(len(flat), *rows.shape[1:]) if fits else None
