"""A labelled set of images or of rows of a table, split into train and test, with what it truly is.
``data.standardise`` standardises by published
constants: nothing is computed from the records at hand, so that no statistic of theirs leaves a
    client."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from privdd.core.rng import Keys
from privdd.core.types import DataColumn, Records, RecordShape, Shard, is_image
from privdd.core.validation import BadConfig

# Constants of the papers' code (the dataset condensation code of Zhao and Bilen, on which FedDM and
# FedLGD build; torchvision's examples), computed by their authors over public training sets: no
# statistic of a client's records leaves it.
Scale = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation by channel
PUBLISHED_SCALES: dict[str, Scale] = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2861,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
}
# What a page does not show by itself: files of the user, and tables, whose rows describe people.
KEPT_OFF_PAGES = frozenset({"npz", "folder", "domain_folder", "table", "adult", "location30"})
NOT_PUBLISHED = "; these are not the published files"  # part of a note
# Of images in [0, 1], labels and ids as they are read, training and test: whole sets, before limits
# and sizes.
PUBLISHED_DIGESTS = {
    "digits": "92cb3c9c648d0f88cb92d8f826af96a3",
    "fashion_mnist": "119e03a51536ac185d84f44467953641",
}


def published_scale(name: str) -> Scale:
    """Mean and standard deviation of a data set by channel, by which networks standardise its
    images."""
    if name not in PUBLISHED_SCALES:
        raise BadConfig(
            f"data.standardise=true: no published mean and deviation for data={name}, and "
            "those of private records would "
            f"have to be protected; allowed for {', '.join(PUBLISHED_SCALES)}"
        )
    return PUBLISHED_SCALES[name]


@dataclass(frozen=True)
class Dataset:
    """name: as asked for; note: one honest sentence on the source.

    domain, test_domain: (n,) int64, the domain of each record (None: one domain); domains: their
        names. columns: what the numbers of a row of a table stand for; () of images. origin: the
        data set that the records were taken from, if that is another."""

    train: Records
    test: Records
    classes: int
    name: str
    note: str
    domains: tuple[str, ...] = ()
    domain: Tensor | None = None
    test_domain: Tensor | None = None
    columns: tuple[DataColumn, ...] = ()
    origin: str = ""

    def __post_init__(self) -> None:
        if not len(self.train) or not len(self.test):
            raise ValueError(
                f"data.name={self.name!r}: train has {len(self.train)} and test "
                f"{len(self.test)} records"
            )
        if self.train.x.shape[1:] != self.test.x.shape[1:]:
            raise ValueError(f"data.name={self.name!r}: train and test records differ in shape")
        for records in (self.train, self.test):
            if not 0 <= int(records.y.min()) <= int(records.y.max()) < self.classes:
                raise ValueError(f"data.name={self.name!r}: labels outside 0..{self.classes - 1}")

    @property
    def shape(self) -> RecordShape:
        return tuple(self.train.x.shape[1:])  # type: ignore[return-value]

    def resized(self, size: int | None) -> Dataset:
        """All images at size x size (bilinear, antialiased)."""
        if size is None or self.shape[1:] == (size, size):
            return self
        if not is_image(self.shape):
            raise BadConfig(f"data.size={size}: rows of a table have no side; leave data.size=null")
        return replace(
            self, train=_resize_records(self.train, size), test=_resize_records(self.test, size)
        )

    def limited(self, train: int | None, test: int | None, keys: Keys) -> Dataset:
        """At most so many records of each split, drawn at random and kept in order."""
        a = _draw_positions(len(self.train), train, keys.fold("train"))
        b = _draw_positions(len(self.test), test, keys.fold("test"))
        return replace(
            self,
            train=self.train.take(a),
            test=self.test.take(b),
            domain=None if self.domain is None else self.domain[a],
            test_domain=None if self.test_domain is None else self.test_domain[b],
        )


def digest_records(parts: Iterable[Records]) -> str:
    """32 hexadecimal digits of images, labels and ids, in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for records in parts:
        for tensor in (records.x, records.y, records.ids):
            digest.update(f"{tensor.dtype}|{tuple(tensor.shape)}|".encode())
            digest.update(
                tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
            )
    return digest.hexdigest()


def digest_split(dataset: Dataset, shards: Sequence[Shard]) -> str:
    """The identity of a run's data: every client's records and labels, how they are split, and the
    test records."""
    parts = [dataset.test]
    for shard in shards:
        parts += [shard.train, shard.test, shard.heldout]
    return digest_records(parts)


def is_published(dataset: Dataset) -> bool:
    """Whether the records of a data set are public already, so that a page may show them."""
    source = dataset.origin or dataset.name
    return source not in KEPT_OFF_PAGES and NOT_PUBLISHED not in dataset.note


def mark_unpublished(dataset: Dataset) -> Dataset:
    """The data set, its note saying so where it is not what was published under its name."""
    published = PUBLISHED_DIGESTS.get(dataset.name)
    if published is None or digest_records([dataset.train, dataset.test]) == published:
        return dataset
    return replace(dataset, note=f"{dataset.note}{NOT_PUBLISHED}")


def dataset_from_pairs(
    name: str,
    note: str,
    classes: int,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    columns: tuple[DataColumn, ...] = (),
) -> Dataset:
    """From (x (n, c, h, w) uint8 or float in [0, 1], or rows (n, d) in [0, 1]; y (n,)) pairs; ids
    number train first, then test."""
    n = len(train[1])
    m = len(test[1])
    ids = torch.arange(n + m)
    return Dataset(
        _to_records(*train, ids[:n]),
        _to_records(*test, ids[n:]),
        classes,
        name,
        note,
        columns=columns,
    )


def _to_records(x: Tensor, y: Tensor, ids: Tensor) -> Records:
    if x.dtype == torch.uint8:
        x = x.float().div_(255)
    else:
        x = x.float()
    return Records(x.contiguous(), y.long(), ids)


def _resize_records(records: Records, size: int) -> Records:
    parts = [
        F.interpolate(
            x, size=(size, size), mode="bilinear", antialias=True, align_corners=False
        ).clamp_(0, 1)
        for x in records.x.split(4096)
    ]
    return Records(torch.cat(parts), records.y, records.ids)


def _draw_positions(count: int, limit: int | None, keys: Keys) -> Tensor:
    if limit is None or limit >= count:
        return torch.arange(count)
    return torch.randperm(count, generator=keys.torch())[:limit].sort().values


def describe_standardisation(name: str) -> str:
    """For a report: what networks see."""
    mean, std = (", ".join(f"{value:g}" for value in part) for part in published_scale(name))
    return (
        f"networks see it standardised by published constants (mean {mean}, standard "
        f"deviation {std})"
    )
