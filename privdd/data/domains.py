"""Data sets of several domains: digits from several sources, and one source under many corruptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from privdd.core.keys import Keys
from privdd.data.corruptions import corrupt, names_for
from privdd.data.custom import folder, hidden
from privdd.data.dataset import DataNotFound, Dataset, dataset
from privdd.data.digits import digits
from privdd.data.made_digits import SIDE, font_digits, on_photos, photos
from privdd.data.mnist import idx_family
from privdd.data.vision import vision_family

Pair = tuple[Tensor, Tensor]
MADE = (10000, 2000)  # font digits for training and test where no limit is set


@dataclass(frozen=True)
class Domain:
    name: str
    train: Pair
    test: Pair


@dataclass(frozen=True)
class Limits:
    """At most so many training and test records of each domain."""

    train: int | None
    test: int | None

    def apply(self, data: Dataset, keys: Keys) -> tuple[Pair, Pair]:
        cut = data.limited(self.train, self.test, keys)
        return (cut.train.x, cut.train.y), (cut.test.x, cut.test.y)


def digit_domains(root: Path | None, limits: Limits, keys: Keys) -> Dataset:
    """Digits as (3, 28, 28), one domain for each source, under its honest name.

    MNIST (every second record), scikit-learn digits, digits over photo patches (the other MNIST
    records, so that no digit is in two domains), font digits; SVHN and USPS where torchvision finds
    them in ``root`` (nothing is downloaded for these). Without MNIST the photo domain takes scikit-learn's
    digits, half for each.
    """
    own = digits("digits", None, keys).resized(SIDE)
    try:
        mnist: Dataset | None = idx_family("mnist", root, keys)
    except DataNotFound:
        mnist = None
    whole = mnist or own
    plain, blended = _halves(whole)
    label = "MNIST-M-like" if mnist else "scikit-learn digits over photos"
    parts = [_domain("MNIST", plain, limits, keys)] if mnist else []
    parts.append(_domain("scikit-learn digits", own if mnist else plain, limits, keys))
    parts.append(_blended(_domain(label, blended, limits, keys), keys))
    parts.append(_typeset(limits, keys))
    parts += _at_hand(root, limits, keys)
    sources = ", ".join(part.name for part in parts)
    return _joined("digit_domains", f"digit domains {sources}; photos: {', '.join(photos()[0])}", 10, parts)


def corrupted(source: Dataset, severity: int, corruptions: str | Sequence[str], limits: Limits, keys: Keys) -> Dataset:
    """``source`` cut into equal parts, each under one corruption: no record is in two domains."""
    names, splits = names_for(source.shape[0], corruptions), ((source.train, limits.train), (source.test, limits.test))
    orders = [torch.randperm(len(whole), generator=keys.fold(at).torch()) for at, (whole, _) in enumerate(splits)]
    dealt = [order.tensor_split(len(names)) for order in orders]
    parts = []
    for at, name in enumerate(names):
        taken = [whole.take(dealt[side][at][:limit]) for side, (whole, limit) in enumerate(splits)]
        streams = [keys.fold(name, side).torch() for side in range(2)]
        parts.append(Domain(name, *((corrupt(name, t.x, severity, g), t.y) for t, g in zip(taken, streams))))
    note = f"{source.note}; under {len(names)} corruptions at severity {severity}, each record under one"
    return _joined("corrupted", note, source.classes, parts)


def domain_folder(root: Path | None, size: int | None, limits: Limits, keys: Keys) -> Dataset:
    """data.root holds one subfolder for each domain, and each of them what ``custom.folder`` reads (FedLGD's RETINA).

    All images become (3, size, size). Raises DataNotFound without such subfolders, ValueError where two domains do
    not have the same classes.
    """
    names = (
        sorted(p.name for p in root.iterdir() if p.is_dir() and not hidden(p.name))
        if root is not None and root.is_dir()
        else []
    )
    if root is None or not names:
        raise DataNotFound(
            f"data.root={root}: data.name=domain_folder needs a folder with one subfolder for each domain"
        )
    parts, classes, first = [], 0, ""
    for name in names:
        data = folder("folder", root / name, keys.fold(name), size)
        found = data.note.partition(": ")[2]  # the classes, by name
        if first and found != first:
            raise ValueError(f"data.root={root}: {names[0]} has the classes {first}, {name} has {found}")
        first, classes = found, data.classes
        parts.append(_domain(name, data, limits, keys))
    shapes = {tuple(part.train[0].shape[1:]) for part in parts}
    if len(shapes) > 1:
        raise ValueError(f"data.root={root}: the domains differ in size; set data.size to bring them to one")
    return _joined(
        "domain_folder", f"the user's images in {root.name}, domains {', '.join(names)}: {first}", classes, parts
    )


def _domain(name: str, data: Dataset, limits: Limits, keys: Keys) -> Domain:
    train, test = limits.apply(data, keys.fold("domain", name))
    return Domain(name, _coloured(train), _coloured(test))


def _coloured(pair: Pair) -> Pair:
    x, y = pair
    return (x if x.shape[1] == 3 else x.expand(-1, 3, -1, -1).contiguous()), y


def _blended(domain: Domain, keys: Keys) -> Domain:
    rng = keys.fold("photos").numpy()
    train, test = ((on_photos(x[:, :1], rng), y) for x, y in (domain.train, domain.test))
    return Domain(domain.name, train, test)


def _typeset(limits: Limits, keys: Keys) -> Domain:
    rng = keys.fold("fonts").numpy()
    counts = (limit if limit is not None else made for limit, made in zip((limits.train, limits.test), MADE))
    train, test = (font_digits(count, rng) for count in counts)
    return Domain("font digits", train, test)


def _at_hand(root: Path | None, limits: Limits, keys: Keys) -> list[Domain]:
    out = []
    for name, label in (("svhn", "SVHN"), ("usps", "USPS")):
        try:
            data = vision_family(name, root, keys, download=False)
        except DataNotFound:
            continue
        out.append(_domain(label, data.limited(limits.train, limits.test, keys.fold(name)).resized(SIDE), limits, keys))
    return out


def _halves(data: Dataset) -> tuple[Dataset, Dataset]:
    def half(offset: int) -> Dataset:
        cut = [records.take(torch.arange(offset, len(records), 2)) for records in (data.train, data.test)]
        return Dataset(cut[0], cut[1], data.classes, data.name, data.note)

    return half(0), half(1)


def _joined(name: str, note: str, classes: int, parts: list[Domain]) -> Dataset:
    """One data set whose records remember their domain; ids are new, over all domains."""
    splits = [part.train for part in parts], [part.test for part in parts]
    train, test = ((torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])) for pairs in splits)
    domain, test_domain = (
        torch.cat([torch.full((len(y),), at) for at, (_, y) in enumerate(pairs)]) for pairs in splits
    )
    flat, names = dataset(name, note, classes, train, test), tuple(part.name for part in parts)
    return replace(flat, domains=names, domain=domain, test_domain=test_domain)
