"""Rows of images: a public feature map, projected and scaled to norm 1, that a linear head reads.

A map that was there before any record costs no privacy. Only the head is trained, and it has few
numbers.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.validation import check_counts, check_positive
from privdd.core.rng import Keys
from privdd.core.types import ClientData, Records, RecordShape
from privdd.distillation.alexnet import AlexNet
from privdd.distillation.class_cells import draw_smooth_images
from privdd.distillation.distribution_matching import embed_images, record_embeddings
from privdd.distillation.image_fitting import draw_silhouettes
from privdd.distillation.random_cosine import RandomCosine
from privdd.distillation.scattering import Scattering
from privdd.models.networks import Classifier

PublicExtractor = AlexNet | RandomCosine | Scattering  # images (b, c, h, w) in [0, 1] -> (b, p)

CENTRE_IMAGES = 64  # public images of smooth noise whose mean embedding is taken off
TINY = 1e-9
MAX_CACHED_NUMBERS = 64_000_000  # numbers of embeddings that are kept in memory for the next round
_ROW_CACHE: OrderedDict[bytes, Tensor] = OrderedDict()  # the last rows that were asked for


@dataclass(frozen=True)
class PublicRows:
    """Images (b, c, h, w) in [0, 1] -> rows (b, width + 1) of norm 1.

    A row is a direction in the public map, and a constant. Embeddings are measured from the mean of
    public images of smooth noise, or of the silhouettes. A row depends on its image alone.

    Attributes:
        extractor: the map.
        width: numbers a row, by one random projection that everybody knows (Johnson and
            Lindenstrauss 1984), so that products of rows are nearly those of embeddings.
        constant: the last number before the row is scaled to norm 1; it stands for a bias and
            counts records.
        drawings: in place of the random projection, one on the ``width`` principal directions of so
            many public silhouettes of smooth noise, each divided by the fourth root of its variance
            there, since descent under noise does not get far along weak directions. 0: none.
    """

    extractor: PublicExtractor
    width: int = 800
    constant: float = 0.3
    drawings: int = 0

    def __post_init__(self) -> None:
        check_counts(self, "width", under="rows.")
        check_counts(self, "drawings", least=0, under="rows.")
        check_positive(self, "constant", under="rows.")

    @property
    def last_entry(self) -> float:
        """The last number of every row."""
        return self.constant / math.sqrt(1 + self.constant**2)

    def __call__(self, x: Tensor) -> Tensor:
        shape = tuple(x.shape[1:])
        centre, projection = _public_constants(self.extractor, self.width, shape, self.drawings)
        direction = (self.extractor(x) - centre.to(x)) @ projection.to(x)
        # to the length that leaves room for the constant; an image that the map does not see stays
        # at 0
        length = direction.norm(dim=1, keepdim=True).clamp_min(TINY)
        rows = direction / length * math.sqrt(1 - self.last_entry**2)
        return torch.cat([rows, torch.full_like(direction[:, :1], self.last_entry)], 1)

    def embed_rows(self, x: Tensor) -> Tensor:
        """Rows of images, without a graph; the last ones asked for are kept, for they are the same
        in every round."""
        digest = hashlib.blake2b(x.detach().cpu().contiguous().numpy().data, digest_size=16)
        digest.update(f"{self!r}|{tuple(x.shape)}|{x.device}".encode())
        key = digest.digest()
        if key not in _ROW_CACHE:
            _ROW_CACHE[key] = record_embeddings(self, x)
        _ROW_CACHE.move_to_end(key)
        while len(_ROW_CACHE) > 1 and _count_cached_numbers() > MAX_CACHED_NUMBERS:
            _ROW_CACHE.popitem(last=False)
        return _ROW_CACHE[key]


def _count_cached_numbers() -> int:
    return sum(rows.numel() for rows in _ROW_CACHE.values())


@lru_cache(maxsize=16)
def _public_constants(
    extractor: PublicExtractor, width: int, shape: RecordShape, drawings: int
) -> tuple[Tensor, Tensor]:
    """(the centre (p,), the projection (p, width)): public constants, the same in every run."""
    keys = Keys(0).fold("public rows")
    one_class = torch.zeros(1, dtype=torch.long)
    if drawings:
        smooth = draw_smooth_images(one_class, drawings, shape, keys.fold("drawings"))[0]
        silhouettes = draw_silhouettes(smooth, keys.fold("silhouettes").torch())
        return _principal_directions(embed_images(extractor, silhouettes).double(), width)
    smooth = draw_smooth_images(one_class, CENTRE_IMAGES, shape, keys)[0]
    centre = embed_images(extractor, smooth).mean(0)
    normals = torch.randn(len(centre), width, generator=keys.fold("projection").torch())
    return centre, normals / math.sqrt(width)


def _principal_directions(embeddings: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Principal directions of embeddings (n, p), over the fourth roots of their variances.

    Returns:
        (the embeddings' mean (p,), the first ``width`` directions in columns (p, width), 0 beyond
        the last one).
    """
    centre = embeddings.mean(0)
    deviations = embeddings - centre
    gram = deviations @ deviations.T / len(deviations)
    values, vectors = (part.flip(-1) for part in torch.linalg.eigh(gram))
    vectors = vectors[:, values > TINY * values[0]][:, :width]
    directions = deviations.T @ vectors
    directions /= directions.norm(dim=0) * values[: vectors.shape[1]] ** 0.25
    # one sign on every machine
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    directions = F.pad(directions * largest.sign(), (0, width - directions.shape[1]))
    return centre.float(), directions.float()


class PublicHead(Classifier):
    """head(rows(x)); the head has no bias of its own, for every row ends with the same constant."""

    def __init__(self, rows: PublicRows, shape: RecordShape, classes: int) -> None:
        super().__init__()
        self.rows = rows
        rows(torch.zeros(1, *shape))  # public constants are made here, not inside of a transform
        head = nn.Linear(rows.width + 1, classes, bias=False)
        nn.init.zeros_(head.weight)
        self.head = head

    def features(self, x: Tensor) -> Tensor:
        return self.rows(x)


def embed_shards(rows: PublicRows, shards: Sequence[ClientData]) -> list[Tensor]:
    """The rows of K shards that share many records: each record goes through the map once."""
    if len(shards) == 1:
        pool = shards[0].train
    else:
        pool = Records.concat([shard.train for shard in shards])
    _, first, inverse = np.unique(pool.ids.cpu().numpy(), return_index=True, return_inverse=True)
    is_in_order = np.array_equal(first, np.arange(len(pool)))
    if is_in_order:  # as one client's records are: nothing to copy
        embedded = rows.embed_rows(pool.x)
    else:
        embedded = rows.embed_rows(pool.x[first])[inverse]
    return list(embedded.split([len(shard.train) for shard in shards]))
