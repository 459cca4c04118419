"""Do released images or representations copy records? Counted against all records of a client,
released and held out.

Are they nearer to members than to held-out records of the same kind? That comparison needs sides of
one size, and stands beside the counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attacks.inversion.evaluation import CLEAR, has_record_shape, image_qualities, pictures
from attacks.inversion.feature_inversion import release_as_images
from attacks.membership.nearest_row import map_to_rows
from attacks.statistics import binomial_interval
from attacks.tensors import accepts_numpy
from attacks.types import (
    ANY_ADVERSARY,
    IMAGE_SURFACES,
    Attack,
    Evidence,
    Family,
    Finding,
    Surface,
    Truth,
    View,
)
from attacks.validation import check_counts

DISTANCE_BLOCK = 256  # records at once: a block of numbers for 100,000 others takes 200 MB
NO_COPY = -1


@accepts_numpy
def nearest_records(records: Tensor, pool: Tensor, count: int = 1) -> tuple[Tensor, Tensor]:
    """Distances (n, count), ascending, of records (n, d) to the nearest of ``pool`` (m, d), and
    places. Raises ValueError if m < count."""
    if len(pool) < count:
        raise ValueError(f"{len(pool)} records in the pool, {count} nearest are asked for")
    if count > 1:
        at = _search_nearest(records, pool, count)
    else:
        at = copies_in_pool(records, pool)[:, None].to(records.device)
        searched = at[:, 0] == NO_COPY
        at[searched] = _search_nearest(records[searched], pool, 1)
    # products round, differences do not
    exact = torch.stack([(records - pool[column]).norm(dim=1) for column in at.T], 1)
    return exact, at


def _search_nearest(records: Tensor, pool: Tensor, count: int) -> Tensor:
    """Places (n, count) of the nearest, by blocks of products.

    |r - p|^2 / 2 = |p|^2 / 2 - <r, p> + |r|^2 / 2,  whose last term is the same for all of the pool
    """
    centre = pool.mean(0)  # products round less near zero
    inside = pool - centre
    half_squares = inside.square().sum(1) / 2
    parts = [torch.zeros(0, count, dtype=torch.long, device=records.device)]
    for part in (records - centre).split(DISTANCE_BLOCK):
        gaps = torch.addmm(half_squares, part, inside.T, alpha=-1)
        # one minimum takes a fraction of the time of a partial sort
        parts.append(
            gaps.argmin(1, keepdim=True) if count == 1 else gaps.topk(count, largest=False).indices
        )
    return torch.cat(parts)


@accepts_numpy
def copies_in_pool(records: Tensor, pool: Tensor) -> Tensor:
    """(n,): the first place in ``pool`` (m, d) of a record that equals each of ``records`` (n, d)
    number by number, or NO_COPY."""
    places: dict[bytes, int] = {}
    for place, row in enumerate(_rows_as_bytes(pool)):
        places.setdefault(row, place)
    return torch.tensor(
        [places.get(row, NO_COPY) for row in _rows_as_bytes(records)], dtype=torch.long
    )


def _rows_as_bytes(records: Tensor) -> Iterator[bytes]:
    """Each record's numbers; 0 and -0, which are equal, as the same bytes."""
    for row in records.numpy(force=True) + 0.0:
        yield row.tobytes()


@dataclass(frozen=True)
class CopyCounts:
    """exact, near: of all released records, those that equal a training record, and those that lie
    nearer to one than any held-out record does.

    exact_heldout, near_heldout: both sides exchanged, which nothing but chance explains: a released
        record that depends on neither is as likely near each of the ``training`` and ``heldout``
        records. distance (m,) and place (m,): of the nearest
    training record.
    """

    released: int
    training: int
    heldout: int
    exact: int
    exact_heldout: int
    near: int
    near_heldout: int
    distance: Tensor
    place: Tensor

    def to_measures(self) -> dict[str, int]:
        """As they stand among a finding's diagnostics."""
        return {
            "released": self.released,
            "training": self.training,
            "heldout": self.heldout,
            "exact_copies": self.exact,
            "exact_copies_of_heldout": self.exact_heldout,
            "near_copies": self.near,
            "near_copies_of_heldout": self.near_heldout,
        }


@accepts_numpy
def count_copies(released: Tensor, training: Tensor, heldout: Tensor) -> CopyCounts:
    """Copies among released (m, ...) of all training (n, ...) and all held-out records (k, ...),
    whatever their numbers.

    Raises ValueError for an empty set.
    """
    sets = [one.flatten(1).double() for one in (released, training, heldout)]
    if not all(map(len, sets)):
        counts = (
            f"{len(released)} released, {len(training)} training, {len(heldout)} held-out records"
        )
        raise ValueError(f"{counts}: none may be empty")
    made, inside, outside = sets
    distance, place = (value[:, 0] for value in nearest_records(made, inside))
    usual = float(
        nearest_records(outside, inside)[0].min()
    )  # the least of all pairs: the same from either side
    is_copy, is_heldout_copy = (copies_in_pool(made, side) != NO_COPY for side in (inside, outside))
    # a copy of a training record is no nearer to a held-out one than that record, which is at least
    # ``usual`` away
    searched = made[~is_copy.to(made.device)]
    to_heldout = nearest_records(searched, outside)[0][:, 0]
    return CopyCounts(
        released=len(made),
        training=len(inside),
        heldout=len(outside),
        exact=int(is_copy.sum()),
        exact_heldout=int(is_heldout_copy.sum()),
        near=int((distance < usual).sum()),
        near_heldout=int((to_heldout < usual).sum()),
        distance=distance,
        place=place,
    )


@dataclass(frozen=True)
class CopyReport:
    """member, heldout (m,): squared distance per pixel to the nearest of each side, of equal sizes.

    nearest (m,): position of the nearest member. closer: share of synthetic images nearer to a
        member (a tie counts half);
    interval: Clopper-Pearson, of the images without a tie. Under "no copying" the share is 1/2.
        Images that stem from one optimisation are not independent, so the interval is a lower limit
        on the width.
    """

    member: Tensor
    heldout: Tensor
    nearest: Tensor
    closer: float
    interval: tuple[float, float]
    compared: int


@accepts_numpy
def compare_copies(
    synthetic: Tensor, members: Tensor, heldout: Tensor, generator: torch.Generator
) -> CopyReport:
    """Compare each of ``synthetic`` (m, ...) with as many members as held-out records, drawn at
    random.

    members (n, ...) and heldout (k, ...) must stem from one distribution. Raises ValueError where
    one side is empty."""
    size = min(len(members), len(heldout))
    if size == 0 or len(synthetic) == 0:
        raise ValueError(
            f"{len(synthetic)} images, {len(members)} members, {len(heldout)} held out: "
            "none may be empty"
        )
    inside, outside = (
        torch.randperm(len(x), generator=generator)[:size].to(x.device) for x in (members, heldout)
    )
    made = synthetic.flatten(1).double()
    near, at = (value[:, 0] for value in nearest_records(made, members[inside].flatten(1).double()))
    far = nearest_records(made, heldout[outside].flatten(1).double())[0][:, 0]
    near, far = (distance.square() / made.shape[1] for distance in (near, far))
    wins = int((near < far).sum())
    ties = int((near == far).sum())
    closer = (wins + ties / 2) / len(synthetic)
    interval = binomial_interval(wins, len(synthetic) - ties)
    return CopyReport(near, far, inside[at], closer, interval, len(synthetic) - ties)


@dataclass(frozen=True)
class CopyDetection(Attack):
    """Which of all released records are records of the client; whether they lie nearer to these
    than to held-out ones.

    Representations are compared in the space of the projection, where the view grants it. limit: of
    images that are shown and compared at equal sizes.
    """

    limit: int = 200
    name: str = "copy_detection"
    family = Family.RECONSTRUCTION
    on_gpu = True
    surfaces = IMAGE_SURFACES | {Surface.SYNTHETIC_REPRESENTATIONS}
    adversaries = ANY_ADVERSARY

    def __post_init__(self) -> None:
        check_counts(self, "limit")

    def nothing_to_read(self, view: View) -> str:
        rows = view.captures[0].value["x"]
        if (
            view.surface in IMAGE_SURFACES
            or map_to_rows(view, view.knowledge.public_x[:1], rows) is not None
        ):
            return ""
        return "no map takes records to the representations"

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images: the released ones, no more than ``limit``; the attack computes nothing. Of
        representations none."""
        if view.surface not in IMAGE_SURFACES:
            return Evidence()
        x = view.captures[0].value["x"].detach()
        picked = torch.randperm(len(x), generator=generator)[: self.limit]
        return Evidence(images=_as_images(x[picked], view))

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """diagnostics: the counts of all released; identified: the share of the comparison at equal
        sizes."""
        if view.surface in IMAGE_SURFACES:
            return self._judge_images(evidence, view, truth)
        rows = view.captures[0].value["x"].detach()
        inside, outside = (map_to_rows(view, x, rows) for x in (truth.x, truth.heldout_x))
        if inside is None or outside is None:
            raise ValueError("representations: a map from records to what was sent is needed")
        report = compare_copies(rows, inside, outside, torch.Generator().manual_seed(0))
        measures = _measure_comparison(report) | {"n": len(rows)}
        measures["diagnostics"] |= count_copies(rows, inside, outside).to_measures()
        return Finding(view.surface, self.name, self.family, view.adversary, measures)

    def _judge_images(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """psnr, ssim, lpips: to the nearest member; baselines: to the nearest of as many held-out
        records."""
        images = evidence.images if evidence.images is not None else truth.x[:0]
        report = compare_copies(images, truth.x, truth.heldout_x, torch.Generator().manual_seed(0))
        nearest = truth.x[report.nearest]
        measures: dict[str, Any] = {
            k: float(v.mean()) for k, v in image_qualities(images, nearest).items()
        }
        measures |= _measure_comparison(report) | {"n": len(images)}
        member, heldout = (
            -10 * d.clamp_min(1e-20).log10() for d in (report.member, report.heldout)
        )
        measures["baselines"] = {"psnr_nearest_heldout": float(heldout.mean())}
        # without copying, an image lies as often so much nearer to a held-out record: at most so
        # often, at 99.9 %
        turned = binomial_interval(int((heldout - member >= CLEAR).sum()), len(member), 0.998)[1]
        measures["pictures"] = pictures(member, [heldout], heldout) | {"chance": turned}
        released = _as_images(view.captures[0].value["x"].detach(), view)
        measures["diagnostics"] |= count_copies(released, truth.x, truth.heldout_x).to_measures()
        figures = {"real": nearest, "reconstructed": images}
        return Finding(view.surface, self.name, self.family, view.adversary, measures, figures)


def _as_images(x: Tensor, view: View) -> Tensor:
    """Released images in [0, 1] of the records' shape."""
    if not has_record_shape(x, view.knowledge.shape):
        x = release_as_images(x, view.knowledge.public_x)
    return x.clamp(0, 1)


def _measure_comparison(report: CopyReport) -> dict[str, Any]:
    """What the comparison at equal sizes says, as measures of a finding."""
    said = (
        "of the released ones that are compared, nearer to a member than to any of as many "
        "held-out records"
    )
    measures: dict[str, Any] = {
        "identified": report.closer,
        "identified_chance": 0.5,
        "note": f"identified: share, {said}",
    }
    measures["diagnostics"] = {
        "closer_interval": list(report.interval),
        "compared": report.compared,
        "distance_member": float(report.member.mean()),
        "distance_heldout": float(report.heldout.mean()),
    }
    return measures
