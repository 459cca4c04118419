"""Classes of one to three records, solved for their records' rows from class counts, sums and
second moments.

Of a class of one record the sum is its row. Of two, sum and second moment give both rows; of three
as well, if all rows are of one length. Rows are found up to their order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.inversion.labels import sent_class_counts
from attacks.measures import ReconstructionMeasures
from attacks.tensors import accepts_numpy
from attacks.types import SERVER_ONLY, Attack, Evidence, Family, Finding, Surface, Truth, View

MOST = 3  # records of a class that can be opened
MAP = "embedding"  # what takes records to rows
UNEQUAL = 1e-2  # relative: by how much two amplitudes may differ where rows are of one length
VANISHING = 1e-6  # of the squared length of three rows: an amplitude that says nothing
EXACT_ROW = 1e-3  # of its length: what float32 leaves of a row that was solved for


@dataclass(frozen=True)
class OpenedRows:
    """Rows (m, d) of single records, the class (m,) of each, and how many records that class
    has."""

    rows: Tensor
    labels: Tensor
    sizes: Tensor


@accepts_numpy
def open_pair(total: Tensor, moment: Tensor) -> Tensor:
    """Two rows from their sum and the sum of their outer products.

        M - s s^T / 2 = (a - b) (a - b)^T / 2,   a, b = s / 2 +- (a - b) / 2

    Args:
        total: s, (d,).
        moment: M, (d, d).

    Returns:
        (2, d) float64, in either order.
    """
    middle = total.double() / 2
    values, vectors = torch.linalg.eigh(moment.double() - 2 * torch.outer(middle, middle))
    half = (values[-1].clamp_min(0) / 2).sqrt() * vectors[:, -1]
    return torch.stack([middle + half, middle - half])


# Around their mean m the three rows are x_i with sum 0, and their scatter is of rank two:
#
#     M - 3 m m^T = U L U^T,   x_i = U L^(1/2) p_i,
#     p_i = sqrt(2/3) (cos f_i, sin f_i),   f_i = f + 2 pi i / 3,
#
# for one unknown angle f: p is an equilateral triangle, whose reflections exchange its corners. If
# all |m + x_i| are equal, then with g = L^(1/2) U^T m = |g| (cos t, sin t) and every i
#
#     A cos(f_i - t) + B cos(2 f_i) = 0,   A = 2 sqrt(2/3) |g|,   B = (L_1 - L_2) / 3,
#
# and by a Fourier transform over i, A exp(i (f - t)) = -B exp(-2 i f): A = B and f = (t + pi) / 3.
# A differs from B where the rows are not of one length.
@accepts_numpy
def open_triple(total: Tensor, moment: Tensor) -> Tensor | None:
    """Three rows of one length from their sum and the sum of their outer products.

    Args:
        total: (d,).
        moment: (d, d).

    Returns:
        (3, d) float64, in any order; None where the rows are not of one length, or where any angle
        fits.
    """
    mean = total.double() / 3
    values, vectors = torch.linalg.eigh(moment.double() - 3 * torch.outer(mean, mean))
    size = values[-2:].flip(0).clamp_min(0)
    axes = vectors[:, -2:].flip(1) * size.sqrt()
    slope = axes.T @ mean
    first = 2 * math.sqrt(2 / 3) * float(slope.norm())
    second = float(size[0] - size[1]) / 3
    largest = max(first, second)
    if largest <= VANISHING * float(moment.diagonal().sum()):
        return None
    if abs(first - second) > UNEQUAL * largest:
        return None
    angle = (math.atan2(float(slope[1]), float(slope[0])) + math.pi) / 3
    corners = angle + 2 * math.pi / 3 * torch.arange(3, dtype=torch.float64)
    triangle = math.sqrt(2 / 3) * torch.stack([corners.cos(), corners.sin()])
    return mean + (axes @ triangle.to(axes)).T


@accepts_numpy
def open_classes(sums: Tensor, count: Tensor, second: Tensor | None = None) -> OpenedRows:
    """The rows of all classes of one to three records that what was sent determines.

    Second moments of all records together open one class of two or three, if every other class has
    one record at most.

    Args:
        sums: (C, d), of the rows of each class.
        count: (C,), whole numbers.
        second: the sum of the outer products of all rows (d, d), or of each class's (C, d, d).

    Returns:
        Rows in the order of their classes; (0, d) if nothing can be opened.
    """
    rows = [sums.new_zeros(0, sums.shape[1])]
    labels = []
    for label in ((count >= 1) & (count <= MOST)).nonzero()[:, 0].tolist():
        size = int(count[label])
        moment = _class_moment(sums, count, second, label)
        opened = None
        if size == 1:
            opened = sums[label][None]
        elif size == 2 and moment is not None:
            opened = open_pair(sums[label], moment)
        elif size == 3 and moment is not None:
            opened = open_triple(sums[label], moment)
        if opened is not None:
            rows.append(opened.to(sums))
            labels += [label] * size
    classes = torch.tensor(labels, dtype=torch.int64, device=sums.device)
    return OpenedRows(torch.cat(rows), classes, count.to(classes)[classes])


def _class_moment(sums: Tensor, count: Tensor, second: Tensor | None, label: int) -> Tensor | None:
    """The sum of the outer products of one class's rows (d, d); None where it is not determined."""
    if second is None:
        return None
    if second.ndim == 3:
        return second[label]
    remaining = count.clone()
    remaining[label] = 0
    if bool((remaining > 1).any()):
        return None
    single_rows = sums[(remaining == 1).nonzero()[:, 0]].double()
    return second.double() - single_rows.T @ single_rows


def class_sums_of(value: Mapping[str, Tensor], classes: int) -> tuple[Tensor, Tensor] | None:
    """Class sums (C, d) and counts (C,) of a message with class counts and means or sums; None for
    any other."""
    count = sent_class_counts(value, classes)
    if count is None:
        return None
    if "sum" in value:
        return value["sum"].flatten(1), count
    if "mean" in value:
        means = value["mean"].flatten(1)
        return means * count[:, None].to(means), count
    return None


def open_message(value: Mapping[str, Tensor], classes: int) -> OpenedRows | None:
    """The opened rows of a message with class counts and means or sums; None for any other."""
    statistics = class_sums_of(value, classes)
    if statistics is None:
        return None
    return open_classes(*statistics, value.get("second"))


@dataclass(frozen=True)
class ClassOpening(Attack):
    """The rows of the records of classes of one to three, exact up to rounding, and which of the
    client's records they are."""

    name: str = "class_opening"
    family = Family.RECONSTRUCTION
    surfaces = frozenset({Surface.PROTOTYPES})
    adversaries = SERVER_ONLY

    def nothing_to_read(self, view: View) -> str:
        if MAP not in view.knowledge.maps:
            return "no map from records to the rows that were sent is known"
        opened = open_message(view.captures[0].value, view.knowledge.classes)
        if opened is None:
            return "no class counts in whole numbers"
        if not len(opened.rows):
            return f"no class of at most {MOST} records can be solved for its records"
        return ""

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """extra: "rows" (m, d), "labels" (m,) and "sizes" (m,), as of ``OpenedRows``."""
        opened = open_message(view.captures[0].value, view.knowledge.classes)
        if opened is None:
            raise ValueError("no class counts in whole numbers")
        return Evidence(extra=dict(vars(opened)))

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """identified: the share of opened rows that are nearer to one of the client's records of
        their class than to every held-out record of it. diagnostics: "errors", the distance to the
        nearest record over the row's length, the largest of each class."""
        rows, labels, sizes = (evidence.extra[name].cpu() for name in ("rows", "labels", "sizes"))
        records = _embed(view, truth.x)
        decoys = _embed(view, truth.heldout_x)
        classes = [records[truth.y.cpu() == label] for label in labels]
        distances = torch.stack([_nearest(row, members) for row, members in zip(rows, classes)])
        errors = distances / rows.norm(dim=1).clamp_min(VANISHING)
        measures = ReconstructionMeasures(n=len(rows))
        if len(decoys):
            held_out = [decoys[truth.heldout_y.cpu() == label] for label in labels]
            decoy_distances = [_nearest(row, of_class) for row, of_class in zip(rows, held_out)]
            is_nearer = distances < torch.stack(decoy_distances)
            member_counts = torch.tensor([len(members) for members in classes]).double()
            decoy_counts = torch.tensor([len(of_class) for of_class in held_out])
            # A row that shows its class alone: members / (members + decoys), both of the class. The
            # members are counted: a message may say 1 of each class that the client has at all.
            chances = member_counts / (member_counts + decoy_counts).clamp_min(1)
            measures = replace(
                measures,
                identified=float(is_nearer.double().mean()),
                identified_chance=float(chances.mean()),
            )
        worst = {int(c): float(errors[labels == c].max()) for c in labels.unique()}
        size_of = {c: int(sizes[labels == c][0]) for c in worst}
        diagnostics = {
            "classes": list(worst),
            "sizes": list(size_of.values()),
            "errors": list(worst.values()),
        }
        note = _describe_opened(worst, size_of)
        measures = replace(measures, diagnostics=diagnostics, note=note)
        return Finding(view.surface, self.name, self.family, view.adversary, measures)


@torch.no_grad()
def _embed(view: View, x: Tensor) -> Tensor:
    """Records (n, c, h, w) as rows (n, d)."""
    return view.knowledge.maps[MAP](x).flatten(1).cpu()


def _nearest(row: Tensor, rows: Tensor) -> Tensor:
    """The distance of a row to the nearest of rows (n, d); infinite if there is none."""
    if not len(rows):
        return torch.tensor(torch.inf)
    return (rows - row).norm(dim=1).amin()


def _describe_opened(worst: Mapping[int, float], size_of: Mapping[int, int]) -> str:
    """Which classes are open, and how exactly."""
    exact = [label for label, error in worst.items() if error <= EXACT_ROW]
    if not exact:
        return (
            f"of no class is every row within {EXACT_ROW:g} of its length of a record of that class"
        )
    names = [f"{label} ({size_of[label]} record{'s' * (size_of[label] > 1)})" for label in exact]
    error = max(worst[label] for label in exact)
    return (
        f"class{'es' * (len(names) > 1)} {', '.join(names)} opened exactly: each row that was "
        f"solved for is a record's own, with an error of at most {error:.1g} of its length"
    )
