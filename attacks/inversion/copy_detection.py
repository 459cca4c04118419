"""Do released images or representations copy records? Counted against all records of a client,
released and held out.

Are they nearer to members than to held-out records of the same kind? That comparison needs sides of
one size, and stands beside the counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attacks.inversion.evaluation import (
    CLEAR,
    column_errors,
    has_record_shape,
    image_qualities,
    pictures,
)
from attacks.inversion.released_rows import release_as_images
from attacks.measures import ReconstructionMeasures
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

DISTANCE_BLOCK = 256  # records at a time: a block of distances to 100,000 others takes 200 MB
NO_COPY = -1


@accepts_numpy
def nearest_records(records: Tensor, pool: Tensor, count: int = 1) -> tuple[Tensor, Tensor]:
    """Distances (n, count), ascending, of records (n, d) to the nearest of ``pool`` (m, d), and
    their positions in it. Raises ValueError if m < count."""
    if len(pool) < count:
        raise ValueError(f"{len(pool)} records in the pool, {count} nearest are asked for")
    if count > 1:
        positions = _search_nearest(records, pool, count)
    else:
        positions = copies_in_pool(records, pool)[:, None].to(records.device)
        has_no_copy = positions[:, 0] == NO_COPY
        positions[has_no_copy] = _search_nearest(records[has_no_copy], pool, 1)
    # products round, differences do not
    distances = [(records - pool[column]).norm(dim=1) for column in positions.T]
    return torch.stack(distances, 1), positions


def _search_nearest(records: Tensor, pool: Tensor, count: int) -> Tensor:
    """Positions (n, count) of the nearest, by blocks of products."""
    # |r - p|^2 / 2 = |p|^2 / 2 - <r, p> + |r|^2 / 2, whose last term is the same for all p
    centre = pool.mean(0)  # products round less near zero
    centred = pool - centre
    half_squares = centred.square().sum(1) / 2
    blocks = [torch.zeros(0, count, dtype=torch.long, device=records.device)]
    for block in (records - centre).split(DISTANCE_BLOCK):
        gaps = torch.addmm(half_squares, block, centred.T, alpha=-1)
        if count == 1:  # one minimum takes a fraction of the time of a partial sort
            blocks.append(gaps.argmin(1, keepdim=True))
        else:
            blocks.append(gaps.topk(count, largest=False).indices)
    return torch.cat(blocks)


@accepts_numpy
def copies_in_pool(records: Tensor, pool: Tensor) -> Tensor:
    """(n,): the first position in ``pool`` (m, d) of a record that equals each of ``records`` (n,
    d) number by number, or NO_COPY."""
    positions: dict[bytes, int] = {}
    for position, row in enumerate(_rows_as_bytes(pool)):
        positions.setdefault(row, position)
    matches = [positions.get(row, NO_COPY) for row in _rows_as_bytes(records)]
    return torch.tensor(matches, dtype=torch.long)


def _rows_as_bytes(records: Tensor) -> Iterator[bytes]:
    """Each record's numbers; 0 and -0, which are equal, as the same bytes."""
    for row in records.numpy(force=True) + 0.0:
        yield row.tobytes()


@dataclass(frozen=True)
class CopyCounts:
    """How many released records are copies, or nearly.

    The counts for held-out records, with both sides exchanged, are those of chance: a released
    record that depends on neither side is as likely near a training record as near a held-out one.
    """

    released: int
    training: int
    heldout: int
    exact: int  # released records that equal a training record
    exact_heldout: int
    near: int  # released records nearer to a training record than any held-out record is
    near_heldout: int
    distance: Tensor  # (m,): to the nearest training record
    place: Tensor  # (m,): position of the nearest training record

    def to_diagnostics(self) -> dict[str, int]:
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
    rows = released.flatten(1).double()
    train = training.flatten(1).double()
    test = heldout.flatten(1).double()
    if not len(rows) or not len(train) or not len(test):
        raise ValueError(
            f"{len(rows)} released, {len(train)} training, {len(test)} held-out records: none may "
            "be empty"
        )
    distance, place = (column[:, 0] for column in nearest_records(rows, train))
    # the least distance of a training and a held-out record: the same from either side
    usual = float(nearest_records(test, train)[0].min())
    is_copy = copies_in_pool(rows, train) != NO_COPY
    is_heldout_copy = copies_in_pool(rows, test) != NO_COPY
    # a copy of a training record is no nearer to a held-out one than that record, which is at least
    # ``usual`` away
    not_copied = rows[~is_copy.to(rows.device)]
    to_heldout = nearest_records(not_copied, test)[0][:, 0]
    return CopyCounts(
        released=len(rows),
        training=len(train),
        heldout=len(test),
        exact=int(is_copy.sum()),
        exact_heldout=int(is_heldout_copy.sum()),
        near=int((distance < usual).sum()),
        near_heldout=int((to_heldout < usual).sum()),
        distance=distance,
        place=place,
    )


@dataclass(frozen=True)
class CopyReport:
    """Synthetic images between as many members as held-out records.

    Without copying, ``closer`` is 1/2. Images that stem from one optimisation are not independent,
    so the interval is too narrow rather than too wide.
    """

    member: Tensor  # (m,): squared distance per pixel to the nearest member
    heldout: Tensor  # (m,): to the nearest held-out record
    nearest: Tensor  # (m,): position of the nearest member
    closer: float  # share of images nearer to a member; a tie counts half
    interval: tuple[float, float]  # Clopper-Pearson, of the images without a tie
    compared: int  # images without a tie


@accepts_numpy
def compare_copies(
    synthetic: Tensor, members: Tensor, heldout: Tensor, generator: torch.Generator
) -> CopyReport:
    """Compare each of ``synthetic`` (m, ...) with as many members as held-out records, drawn at
    random.

    members (n, ...) and heldout (k, ...) must stem from one distribution. Raises ValueError if one
    side is empty."""
    size = min(len(members), len(heldout))
    if size == 0 or len(synthetic) == 0:
        raise ValueError(
            f"{len(synthetic)} images, {len(members)} members, {len(heldout)} held out: "
            "none may be empty"
        )
    chosen = torch.randperm(len(members), generator=generator)[:size].to(members.device)
    heldout_chosen = torch.randperm(len(heldout), generator=generator)[:size].to(heldout.device)
    images = synthetic.flatten(1).double()
    distances, positions = nearest_records(images, members[chosen].flatten(1).double())
    heldout_distances = nearest_records(images, heldout[heldout_chosen].flatten(1).double())[0]
    to_member = distances[:, 0].square() / images.shape[1]
    to_heldout = heldout_distances[:, 0].square() / images.shape[1]
    wins = int((to_member < to_heldout).sum())
    ties = int((to_member == to_heldout).sum())
    compared = len(synthetic) - ties
    return CopyReport(
        member=to_member,
        heldout=to_heldout,
        nearest=chosen[positions[:, 0]],
        closer=(wins + ties / 2) / len(synthetic),
        interval=binomial_interval(wins, compared),
        compared=compared,
    )


@dataclass(frozen=True)
class CopyDetection(Attack):
    """How many of all released records are records of the client, or nearer to these than to
    held-out ones.

    Representations are compared in the space of the projection, if the view grants it. limit: of
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
        members = map_to_rows(view, truth.x, rows)
        heldout = map_to_rows(view, truth.heldout_x, rows)
        if members is None or heldout is None:
            raise ValueError("representations: a map from records to the release is needed")
        report = compare_copies(rows, members, heldout, torch.Generator().manual_seed(0))
        measures = replace(_measure_comparison(report), n=len(rows))
        finding = Finding(view.surface, self.name, self.family, view.adversary, measures)
        counts = count_copies(rows, members, heldout)
        return finding.with_diagnostics(**counts.to_diagnostics())

    def _judge_images(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """psnr, ssim, lpips: to the nearest member; baselines: to the nearest of as many held-out
        records."""
        images = evidence.images
        if images is None:
            images = truth.x[:0]
        report = compare_copies(images, truth.x, truth.heldout_x, torch.Generator().manual_seed(0))
        nearest = truth.x[report.nearest]
        qualities = image_qualities(images, nearest)
        member = -10 * report.member.clamp_min(1e-20).log10()
        heldout = -10 * report.heldout.clamp_min(1e-20).log10()
        # without copying, an image is as often so much nearer to a held-out record: the upper limit
        # of that rate, at 99.9 %
        reversed_gains = int((heldout - member >= CLEAR).sum())
        chance = binomial_interval(reversed_gains, len(member), 0.998)[1]
        means: dict[str, Any] = {name: float(value.mean()) for name, value in qualities.items()}
        measures = replace(
            _measure_comparison(report),
            **means,
            n=len(images),
            baselines={"psnr_nearest_heldout": float(heldout.mean())},
            pictures=pictures(member, [heldout], heldout) | {"chance": chance},
        )
        released = _as_images(view.captures[0].value["x"].detach(), view)
        counts = count_copies(released, truth.x, truth.heldout_x)
        diagnostics: dict[str, Any] = counts.to_diagnostics()
        if view.knowledge.columns:
            diagnostics["columns"] = column_errors(images, nearest, view.knowledge.columns)
        figures = {"real": nearest, "reconstructed": images}
        finding = Finding(view.surface, self.name, self.family, view.adversary, measures, figures)
        return finding.with_diagnostics(**diagnostics)


def _as_images(x: Tensor, view: View) -> Tensor:
    """Released images in [0, 1] of the records' shape."""
    if not has_record_shape(x, view.knowledge.shape):
        x = release_as_images(x, view.knowledge.public_x)
    return x.clamp(0, 1)


def _measure_comparison(report: CopyReport) -> ReconstructionMeasures:
    """The comparison at equal sizes, as measures of a finding."""
    return ReconstructionMeasures(
        identified=report.closer,
        identified_chance=0.5,
        note=(
            "identified: share, of the released ones that are compared, nearer to a member than to "
            "any of as many held-out records"
        ),
        diagnostics={
            "closer_interval": list(report.interval),
            "compared": report.compared,
            "distance_member": float(report.member.mean()),
            "distance_heldout": float(report.heldout.mean()),
        },
    )
