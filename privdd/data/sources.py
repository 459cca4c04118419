"""``load_dataset``: any data set by name; those of several domains: digits from several sources,
one source under corruptions.

Two digit domains can be made offline, digits over photo patches and digits typeset in fonts. They
stand in for MNIST-M (Ganin et al. 2016) and SynthDigits and are named for what they are:
"MNIST-M-like" and "font digits"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privdd.core.rng import Keys
from privdd.core.validation import DataNotFound, check_count
from privdd.data.corruptions import corrupt_images, corruption_names
from privdd.data.dataset import Dataset, dataset_from_pairs, mark_unpublished, published_scale
from privdd.data.dataset import describe_standardisation as seen_as
from privdd.data.readers import (
    TORCHVISION_DATASETS,
    find_idx_dataset,
    hidden,
    load_digits_dataset,
    load_idx_dataset,
    load_image_folder,
    load_npz,
    load_torchvision_dataset,
)
from privdd.data.tables import TableSettings, load_breast_cancer_dataset, load_table

DIGIT_SIDE = 28
FONTS = (
    "DejaVuSans.ttf",
    "DejaVuSans-Bold.ttf",
    "DejaVuSans-Oblique.ttf",
    "DejaVuSansMono.ttf",
    "DejaVuSansMono-Bold.ttf",
    "DejaVuSerif.ttf",
    "DejaVuSerif-Bold.ttf",
    "DejaVuSerif-Italic.ttf",
)
FONT_DIGIT_COUNTS = (10000, 2000)  # font digits for training and test where no limit is set
SOURCES = {
    "digits": load_digits_dataset,
    "mnist": load_idx_dataset,
    "fashion_mnist": load_idx_dataset,
    **{name: load_torchvision_dataset for name in TORCHVISION_DATASETS},
    "npz": load_npz,
}
TABLE_FILES = ("table", "adult", "location30")
TABLES = ("breast_cancer", *TABLE_FILES)
DATASET_NAMES = (*SOURCES, *TABLES, "folder", "domain_folder", "digit_domains", "corrupted")
# channels, height and width; classes; training records; test records
PUBLISHED_SHAPES = {
    "mnist": ((1, 28, 28), 10, 60_000, 10_000),
    "fashion_mnist": ((1, 28, 28), 10, 60_000, 10_000),
    "cifar10": ((3, 32, 32), 10, 50_000, 10_000),
    "cifar100": ((3, 32, 32), 100, 50_000, 10_000),
    "svhn": ((3, 32, 32), 10, 73_257, 26_032),
    "usps": ((1, 16, 16), 10, 7_291, 2_007),
    "emnist": ((1, 28, 28), 47, 112_800, 18_800),
}
LARGEST_SIDE = 4096


@lru_cache(maxsize=1)
def load_photos() -> tuple[tuple[str, ...], tuple[NDArray[np.floating], ...]]:
    """Natural photos that installed packages ship: their names, and images (h, w, 3) in [0, 1].

    scikit-learn's china and flower, which every installation has: the same command gives the same
    records everywhere."""
    from sklearn.datasets import load_sample_images

    images = tuple(np.asarray(image, np.float32) / 255 for image in load_sample_images().images)
    return ("china", "flower"), images


def blend_on_photos(digits: Tensor, rng: np.random.Generator) -> Tensor:
    """|photo patch - digit| (Ganin et al. 2016, section 4): (n, 1, s, s) -> (n, 3, s, s), both in
    [0, 1]."""
    _, images = load_photos()
    side = digits.shape[-1]
    which = rng.integers(len(images), size=len(digits))
    patches = np.empty((len(digits), side, side, 3), np.float32)
    for index, image in enumerate(which):
        height, width = images[image].shape[:2]
        top = rng.integers(height - side + 1)
        start = rng.integers(width - side + 1)
        patches[index] = images[image][top : top + side, start : start + side]
    return (torch.from_numpy(patches).permute(0, 3, 1, 2) - digits).abs()


def draw_font_digits(count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Digits in eight DejaVu fonts, random size, place, tilt (15 degrees) and colours: (n, 3, 28,
    28), (n,)."""
    labels = rng.integers(10, size=count)
    masks = np.empty((count, DIGIT_SIDE, DIGIT_SIDE), np.float32)
    for index, label in enumerate(labels):
        masks[index] = _draw_glyph(int(label), rng)
    ink, paper = _draw_colours(count, rng)
    shade = masks[:, None]
    images = shade * ink + (1 - shade) * paper
    images = np.clip(images + rng.normal(0, 0.05, images.shape), 0, 1)
    return torch.from_numpy(images.astype(np.float32)), torch.from_numpy(labels)


@lru_cache(maxsize=256)
def _load_font(name: str, size: int):  # type: ignore[no-untyped-def]  # Pillow's font type
    import matplotlib
    from PIL import ImageFont

    return ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/{name}", size)


def _draw_glyph(digit: int, rng: np.random.Generator) -> NDArray[np.floating]:
    """One digit as a mask (28, 28) in [0, 1]."""
    from PIL import Image, ImageDraw

    font = _load_font(FONTS[rng.integers(len(FONTS))], int(rng.integers(16, 27)))
    centre = tuple(DIGIT_SIDE / 2 + rng.uniform(-2.5, 2.5, size=2))
    canvas = Image.new("L", (DIGIT_SIDE, DIGIT_SIDE))
    ImageDraw.Draw(canvas).text(centre, str(digit), fill=255, font=font, anchor="mm")
    tilted = canvas.rotate(float(rng.uniform(-15, 15)), resample=Image.Resampling.BILINEAR)
    return np.asarray(tilted, np.float32) / 255


def _draw_colours(
    count: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ink and paper (n, 3, 1, 1) whose mean brightness differs by at least 0.3."""
    paper = rng.uniform(0, 1, (count, 3))
    gap = rng.uniform(0.3, 0.5, (count, 1))
    sign = np.where(paper.mean(1, keepdims=True) > 0.5, -1.0, 1.0)
    target = paper.mean(1, keepdims=True) + sign * gap
    ink = rng.uniform(-0.1, 0.1, (count, 3))
    ink = np.clip(target + ink - ink.mean(1, keepdims=True), 0, 1)
    return ink[..., None, None], paper[..., None, None]


Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Domain:
    name: str
    train: Pair
    test: Pair


@dataclass(frozen=True)
class DomainLimits:
    """At most so many training and test records of each domain."""

    train: int | None
    test: int | None


def load_digit_domains(root: Path | None, limits: DomainLimits, keys: Keys) -> Dataset:
    """Digits as (3, 28, 28), one domain for each source, under its honest name.

    MNIST (every second record), scikit-learn digits, digits over photo patches (the other MNIST
    records), font digits; SVHN and USPS where torchvision finds them in ``root``. MNIST is taken
    from ``root`` alone too: nothing is downloaded, and without ``root`` the records do not depend
    on the machine. Without MNIST the photo domain takes scikit-learn's digits, half for each.
    """
    digits = load_digits_dataset("digits", None, keys).resized(DIGIT_SIDE)
    if root is None:
        mnist = None
    else:
        mnist = find_idx_dataset("mnist", root)
    plain, blended = (_every_second(mnist or digits, first) for first in range(2))
    if mnist:
        label = "MNIST-M-like"
        parts = [
            _limited_domain("MNIST", plain, limits, keys),
            _limited_domain("scikit-learn digits", digits, limits, keys),
        ]
    else:
        label = "scikit-learn digits over photos"
        parts = [_limited_domain("scikit-learn digits", plain, limits, keys)]
    over_photos = _limited_domain(label, blended, limits, keys)
    rng = keys.fold("photos").numpy()
    parts.append(
        Domain(
            label,
            *(
                (blend_on_photos(x[:, :1], rng), y)
                for x, y in (over_photos.train, over_photos.test)
            ),
        )
    )
    rng = keys.fold("fonts").numpy()
    counts = (
        default if limit is None else limit
        for limit, default in zip((limits.train, limits.test), FONT_DIGIT_COUNTS)
    )
    parts.append(Domain("font digits", *(draw_font_digits(count, rng) for count in counts)))
    if root is not None:
        parts += _available_domains(root, limits, keys)
    sources = ", ".join(part.name for part in parts)
    return _join_domains(
        "digit_domains",
        f"digit domains {sources}; photos: {', '.join(load_photos()[0])}",
        10,
        parts,
    )


def _every_second(data: Dataset, first: int) -> Dataset:
    """Every second training and test record, from ``first`` on."""
    train, test = (
        records.take(torch.arange(first, len(records), 2)) for records in (data.train, data.test)
    )
    return replace(data, train=train, test=test)


def corrupt_domains(
    source: Dataset,
    severity: int,
    corruptions: str | Sequence[str],
    limits: DomainLimits,
    keys: Keys,
) -> Dataset:
    """``source`` cut into equal parts, each under one corruption: no record is in two domains."""
    names = corruption_names(source.shape[0], corruptions)
    splits = ((source.train, limits.train), (source.test, limits.test))
    orders = [
        torch.randperm(len(whole), generator=keys.fold(at).torch())
        for at, (whole, _) in enumerate(splits)
    ]
    dealt = [order.tensor_split(len(names)) for order in orders]
    parts = []
    for at, name in enumerate(names):
        taken = [whole.take(dealt[side][at][:limit]) for side, (whole, limit) in enumerate(splits)]
        streams = [keys.fold(name, side).torch() for side in range(2)]
        parts.append(
            Domain(
                name,
                *((corrupt_images(name, t.x, severity, g), t.y) for t, g in zip(taken, streams)),
            )
        )
    note = (
        f"{source.note}; under {len(names)} corruptions at severity {severity}, each record "
        "under one"
    )
    return replace(_join_domains("corrupted", note, source.classes, parts), origin=source.name)


def load_domain_folder(
    root: Path | None, size: int | None, limits: DomainLimits, keys: Keys
) -> Dataset:
    """data.root holds one subfolder for each domain, and each of them what ``custom.folder`` reads
    (FedLGD's RETINA).

    All images become (3, size, size). Raises DataNotFound without such subfolders, ValueError where
    two domains do not have the same classes.
    """
    if (
        root is None
        or not root.is_dir()
        or not (
            names := sorted(p.name for p in root.iterdir() if p.is_dir() and not hidden(p.name))
        )
    ):
        raise DataNotFound(
            f"data.root={root}: data.name=domain_folder needs a folder with one subfolder "
            "for each domain"
        )
    parts = []
    classes = 0
    first = ""
    for name in names:
        data = load_image_folder("folder", root / name, keys.fold(name), size)
        class_names = data.note.partition(": ")[2]
        if first and class_names != first:
            raise ValueError(
                f"data.root={root}: {names[0]} has the classes {first}, {name} has {class_names}"
            )
        first = class_names
        classes = data.classes
        parts.append(_limited_domain(name, data, limits, keys))
    shapes = {tuple(part.train[0].shape[1:]) for part in parts}
    if len(shapes) > 1:
        raise ValueError(
            f"data.root={root}: the domains differ in size; set data.size to bring them to one"
        )
    return _join_domains(
        "domain_folder",
        f"the user's images in {root.name}, domains {', '.join(names)}: {first}",
        classes,
        parts,
    )


def _limited_domain(name: str, data: Dataset, limits: DomainLimits, keys: Keys) -> Domain:
    cut = data.limited(limits.train, limits.test, keys.fold("domain", name))
    colour = [
        part.x if part.x.shape[1] == 3 else part.x.expand(-1, 3, -1, -1).contiguous()
        for part in (cut.train, cut.test)
    ]
    return Domain(name, (colour[0], cut.train.y), (colour[1], cut.test.y))


def _available_domains(root: Path | None, limits: DomainLimits, keys: Keys) -> list[Domain]:
    out = []
    for name, label in (("svhn", "SVHN"), ("usps", "USPS")):
        try:
            data = load_torchvision_dataset(name, root, keys, download=False)
        except DataNotFound:
            continue
        out.append(
            _limited_domain(
                label,
                data.limited(limits.train, limits.test, keys.fold(name)).resized(DIGIT_SIDE),
                limits,
                keys,
            )
        )
    return out


def _join_domains(name: str, note: str, classes: int, parts: list[Domain]) -> Dataset:
    """One data set whose records remember their domain; ids are new, over all domains."""
    train, domain = _join_pairs([part.train for part in parts])
    test, test_domain = _join_pairs([part.test for part in parts])
    flat = dataset_from_pairs(name, note, classes, train, test)
    names = tuple(part.name for part in parts)
    return replace(flat, domains=names, domain=domain, test_domain=test_domain)


def _join_pairs(pairs: list[Pair]) -> tuple[Pair, Tensor]:
    """All records of the domains, and the number of each record's domain (n,)."""
    x = torch.cat([x for x, _ in pairs])
    y = torch.cat([y for _, y in pairs])
    domain = torch.cat([torch.full((len(y),), index) for index, (_, y) in enumerate(pairs)])
    return (x, y), domain


def check_data_settings(
    name: str,
    *,
    size: int | None = None,
    limit: int | None = None,
    test_limit: int | None = None,
) -> None:
    """Check the settings that ``load_dataset`` can refuse before it reads anything.

    Raises:
        ValueError: One line with key, value and what is allowed.
    """
    for field, value in (("size", size), ("limit", limit), ("test_limit", test_limit)):
        if value is not None:
            check_count(f"data.{field}", value, "an integer >= 1 or null is needed")
    if size is not None and size > LARGEST_SIDE:
        raise ValueError(f"data.size={size}: from 1 to {LARGEST_SIDE} pixels are needed")
    if name not in DATASET_NAMES:
        raise ValueError(f"data.name={name!r}: one of {', '.join(DATASET_NAMES)}")


def load_dataset(
    name: str,
    *,
    root: str | Path | None = None,
    size: int | None = None,
    limit: int | None = None,
    test_limit: int | None = None,
    source: str = "digits",
    severity: int = 3,
    corruptions: str | Sequence[str] = "all",
    standardise: bool = False,
    columns: Mapping[str, Any] | list[float] | None = None,
    label: str | None = None,
    missing: str = "refuse",
    classes: list[str | int] | None = None,
    keys: Keys,
) -> Dataset:
    """The data set ``name`` as images, or rows of a table, in [0, 1].

    Args:
        name: one of ``DATASET_NAMES``.
        root: folder (or npz file) to look in.
        size: side in pixels after resizing; None: as the source has it.
        limit: at most so many training records, drawn by ``keys``; of each domain for
            digit_domains, domain_folder and corrupted.
        test_limit: the same for test records; None: ``limit``.
        source, severity, corruptions: of ``corrupt_domains`` only.
        standardise: networks standardise the images, which stay in [0, 1] here; the note says so.
        columns, label, missing, classes: of tables, what each column holds and how it is read
            (``TableSettings``).
        keys: of all draws.

    Raises:
        ValueError: for an unknown name or bad number.
        DataNotFound: (a ValueError) if the data cannot be had.
    """
    check_data_settings(name, size=size, limit=limit, test_limit=test_limit)
    if standardise:
        published_scale(name)
        dataset = load_dataset(
            name, root=root, size=size, limit=limit, test_limit=test_limit, keys=keys
        )
        return replace(dataset, note=f"{dataset.note}; {seen_as(name)}")
    if name == "corrupted":
        if source in ("corrupted", "digit_domains", "domain_folder", *TABLES):
            raise ValueError(f"data.source={source!r}: images of one domain are needed")
        dataset = load_dataset(source, root=root, size=size, keys=keys)
        limits = _domain_limits(limit, test_limit)
        return corrupt_domains(dataset, severity, corruptions, limits, keys.fold("data", name))
    table = TableSettings(columns, label, missing, classes)
    return _read_dataset(name, root, size, _domain_limits(limit, test_limit), table, keys)


def _domain_limits(limit: int | None, test_limit: int | None) -> DomainLimits:
    if test_limit is None:
        return DomainLimits(limit, limit)
    return DomainLimits(limit, test_limit)


def _read_dataset(
    name: str,
    root: str | Path | None,
    size: int | None,
    limits: DomainLimits,
    table: TableSettings,
    keys: Keys,
) -> Dataset:
    """A data set as its source holds it, of limited size."""
    place = None
    if root is not None:
        place = Path(root).expanduser()
    here = keys.fold("data", name)
    if name == "digit_domains":
        return load_digit_domains(place, limits, here).resized(size)
    if name == "domain_folder":
        return load_domain_folder(place, size, limits, here)
    if name == "breast_cancer":
        dataset = load_breast_cancer_dataset(table.columns, here)
    elif name in TABLE_FILES:
        dataset = load_table(name, place, table, here)
    elif name == "folder":
        dataset = load_image_folder(name, place, here, size)
    else:
        dataset = mark_unpublished(SOURCES[name](name, place, here))
    return dataset.limited(limits.train, limits.test, here.fold("limit")).resized(size)


def load_shape(
    name: str,
    *,
    size: int | None = None,
    limit: int | None = None,
    test_limit: int | None = None,
    source: str = "",
    severity: int = 3,
    corruptions: str | Sequence[str] = "all",
    keys: Keys,
    **unread: object,
) -> Dataset:
    """Noise of the shape, classes and size of a published data set, to price a run whose data are
    not at hand.

    Args:
        name: as of ``load_dataset``.
        size, limit, test_limit, source, severity, corruptions: as of ``load_dataset``.
        keys: random streams.
        unread: its other arguments, which change no price.

    Raises:
        DataNotFound: the shape of this data set is not known.
    """
    if test_limit is None:
        test_limit = limit
    streams = keys.fold("data", name)
    if name == "corrupted" and source in PUBLISHED_SHAPES:
        source_data = load_shape(source, size=size, keys=keys)
        limits = DomainLimits(limit, test_limit)
        return corrupt_domains(source_data, severity, corruptions, limits, streams)
    if name not in PUBLISHED_SHAPES:
        raise DataNotFound(f"data.name={name!r}: not at hand, and its shape is not known")
    shape, classes, train_size, test_size = PUBLISHED_SHAPES[name]
    if limit is not None:
        train_size = min(train_size, limit)
    if test_limit is not None:
        test_size = min(test_size, test_limit)
    train = _draw_noise(train_size, shape, classes, streams)
    test = _draw_noise(test_size, shape, classes, streams)
    return dataset_from_pairs(name, "noise of its shape", classes, train, test).resized(size)


def _draw_noise(
    count: int, shape: tuple[int, int, int], classes: int, keys: Keys
) -> tuple[Tensor, Tensor]:
    """Images (count, c, h, w) of bytes, and classes in turn."""
    images = torch.randint(256, (count, *shape), dtype=torch.uint8, generator=keys.torch())
    return images, torch.arange(count) % classes
