"""A linear classifier over a public, pre-trained map: its inputs, its network, its records' gradients.

Only the head is trained. Its inputs come from a map that was there before any record was seen, so they cost no privacy,
and a head has few numbers.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.ranges import check_counts, check_positive
from privdd.core.keys import Keys
from privdd.core.types import Records, Shard, State, Tensors
from privdd.distillation.initial_images import smooth_images
from privdd.distillation.networks import embedded, record_embeddings
from privdd.distillation.public_features import AlexNet
from privdd.distillation.random_features import RandomCosine
from privdd.models.layers import Classifier
from privdd.privacy.batch_invariance import compute_rows

CENTRED = 64  # public images of smooth noise whose mean embedding is taken off
TINY = 1e-9
FAR = 1e6  # below any score
MULTIPLE = 16  # columns of a product: with fewer, a row's last bits depend on its place among the others
LEAST = 1e-3  # penalty where there is no noise
KEPT = 64_000_000  # numbers of embeddings that are kept in memory for the next round


@dataclass(frozen=True)
class PublicRows:
    """Images (b, c, h, w) in [0, 1] -> rows (b, width + 1) of norm 1: a direction in the public map, and a constant.

    extractor: the map; width: numbers a row, by one random projection that everybody knows (Johnson and Lindenstrauss
    1984), so that products of rows are nearly those of embeddings; constant: the last number before the row is scaled
    to norm 1, which stands for a bias and counts records. Embeddings are measured from the mean of public
    images of smooth noise. A row depends on its image alone.
    """

    extractor: AlexNet | RandomCosine
    width: int = 800
    constant: float = 0.3

    def __post_init__(self) -> None:
        check_counts(self, "width", under="rows.")
        check_positive(self, "constant", under="rows.")

    @property
    def last(self) -> float:
        """The last number of every row."""
        return self.constant / math.sqrt(1 + self.constant**2)

    def __call__(self, x: Tensor) -> Tensor:
        centre, project = _constants(_Known(self.extractor), self.width, tuple(x.shape[1:]))
        moved = (self.extractor(x) - centre.to(x)) @ project.to(x)
        return torch.cat([self._scaled(moved), torch.full_like(moved[:, :1], self.last)], 1)

    def _scaled(self, moved: Tensor) -> Tensor:
        """To the length that leaves room for the constant; an image that the map does not see stays at 0."""
        return moved / moved.norm(dim=1, keepdim=True).clamp_min(TINY) * math.sqrt(1 - self.last**2)

    def of(self, x: Tensor) -> Tensor:
        """Rows of images, without a graph; the last ones asked for are kept, for they are the same in every round."""
        key = hashlib.blake2b(x.detach().cpu().contiguous().numpy().data, digest_size=16)
        key.update(f"{self!r}|{tuple(x.shape)}|{x.device}".encode())
        return _MEMORY.get(key.digest(), self, x)


class _Memory:
    """A function of its arguments alone, the last results kept."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()

    def get(self, key: bytes, rows: PublicRows, x: Tensor) -> Tensor:
        if key not in self._kept:
            self._kept[key] = record_embeddings(rows, x)
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and sum(t.numel() for t in self._kept.values()) > KEPT:
            self._kept.popitem(last=False)
        return self._kept[key]


_MEMORY = _Memory()


@dataclass(frozen=True)
class _Known:
    """A map as a key of a cache, by what it says of itself: its settings may hold lists."""

    extractor: AlexNet | RandomCosine

    def __hash__(self) -> int:
        return hash(repr(self))


def centre_of(extractor: AlexNet | RandomCosine, shape: tuple[int, int, int], keys: Keys) -> Tensor:
    """The mean embedding (p,) of ``CENTRED`` images of smooth noise, drawn from public ``keys``."""
    return _centre(_Known(extractor), shape, keys)


@lru_cache(maxsize=16)
def _centre(of: _Known, shape: tuple[int, int, int], keys: Keys) -> Tensor:
    return embedded(of.extractor, smooth_images(torch.zeros(1, dtype=torch.long), CENTRED, shape, keys)[0]).mean(0)


@lru_cache(maxsize=16)
def _constants(of: _Known, width: int, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """(the centre (p,), the projection (p, width)): public constants, the same in every run."""
    keys = Keys(0).fold("public rows")
    centre = centre_of(of.extractor, shape, keys)
    drawn = torch.randn(len(centre), width, generator=keys.fold("projection").torch())
    return centre, drawn / math.sqrt(width)


class PublicHead(Classifier):
    """head(rows(x)); the head has no bias of its own, for every row ends with the same constant."""

    def __init__(self, rows: PublicRows, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.rows = rows
        rows(torch.zeros(1, *shape))  # public constants are made here, not inside of a transform
        self.head = nn.Linear(rows.width + 1, classes, bias=False)
        nn.init.zeros_(self.head.weight)

    def features(self, x: Tensor) -> Tensor:
        return self.rows(x)


def head_gradients(weight: Tensor, rows: Tensor, y: Tensor, longest: float | None = None) -> Tensor:
    """Each record's gradient (n, C, d) of the cross-entropy of ``rows`` @ ``weight``.T (C, d), scaled to ``longest``
    where it is longer (None: as it is)."""

    def of(params: Tensors, rows: Tensor, y: Tensor) -> State:
        return {"": _head_gradients(params["weight"], rows, y, longest)}

    return compute_rows(of, {"weight": weight}, rows, y)[""]


def _head_gradients(weight: Tensor, rows: Tensor, y: Tensor, longest: float | None) -> Tensor:
    some = F.pad(weight, (0, 0, 0, -len(weight) % MULTIPLE))
    residual = torch.softmax((rows @ some.T)[:, : len(weight)], 1) - F.one_hot(y, len(weight)).to(rows)
    if longest is not None:
        norm = residual.norm(dim=1, keepdim=True) * rows.norm(dim=1, keepdim=True)
        residual = residual * (longest / norm.clamp_min(TINY)).clamp_max(1)
    return residual[:, :, None] * rows[:, None, :]


def rows_together(rows: PublicRows, shards: Sequence[Shard]) -> list[Tensor]:
    """The rows of K shards that hold many of the same records: each record goes through the map once."""
    pool = Records.concat([shard.train for shard in shards])
    ids, inverse = pool.ids.unique(return_inverse=True)
    first = torch.full((len(ids),), len(pool), dtype=torch.long).scatter_reduce(
        0, inverse.cpu(), torch.arange(len(pool)), "amin"
    )
    found = rows.of(pool.x[first])
    return list(found[inverse].split([len(shard.train) for shard in shards]))


def nearest_mean(sums: Tensor, variance: Tensor, last: float, least: float) -> Tensor:
    """The head (C, d) that gives a row the class of the nearest mean, from sums (C, d) of rows that end with ``last``.

    variance (1,): of the noise in every number of a sum, whose part in the length of a mean is taken off. Classes of a
    smaller share of all records than ``least`` are never chosen.
    """
    count = sums[:, -1] / last
    mean = (sums / count.clamp_min(1)[:, None])[:, :-1]
    noise = mean.shape[1] * variance / count.clamp_min(1).square()
    offset = -(mean.square().sum(1) - noise).clamp_min(0) / 2
    offset[count < least * count.clamp_min(0).sum()] = -FAR
    return torch.cat([mean, offset[:, None] / last], 1)


def moments(rows: Tensor, y: Tensor, classes: int, share: float) -> dict[str, Tensor]:
    """Each record's part of the second moments ("xx", (n, d (d + 1) / 2)) and of the class sums ("xy", (n, C, d)).

    Together of norm 1 for rows of norm 1: ``share`` of it, squared, is the moments'.
    """
    at = torch.triu_indices(rows.shape[1], rows.shape[1])
    weight = torch.where(at[0] == at[1], 1.0, math.sqrt(2.0)) * math.sqrt(share)
    label = F.one_hot(y, classes).to(rows) * math.sqrt(1 - share)
    return {"xx": rows[:, at[0]] * rows[:, at[1]] * weight, "xy": label[:, :, None] * rows[:, None, :]}


def ridge_head(sums: Mapping[str, Tensor], ridge: float, share: float) -> Tensor:
    """The head (C, d) of ridge regression on the labels, from noised ``moments`` and the noise's "variance" (1,).

    The penalty is ``ridge`` times sqrt(d variance / share); the noise's largest eigenvalue is about sqrt(2) times that
    root. Eigenvalues that noise made negative count as 0.
    """
    width = sums["xy"].shape[1]
    at = torch.triu_indices(width, width)
    upper = sums["xx"].new_zeros(width, width)
    weight = torch.where(at[0] == at[1], 1.0, math.sqrt(2.0)) * math.sqrt(share)
    upper[at[0], at[1]] = sums["xx"] / weight.to(upper)
    values, vectors = torch.linalg.eigh(torch.where(upper != 0, upper, upper.T))
    penalty = ridge * (width * sums["variance"] / share).sqrt() + LEAST
    return (sums["xy"] / math.sqrt(1 - share)) @ (vectors / (values.clamp_min(0) + penalty)) @ vectors.T
