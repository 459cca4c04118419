"""``load_dataset``: any data set by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from privdd.core.group_settings import check_data
from privdd.core.rng import Keys
from privdd.data.custom import load_image_folder, load_npz
from privdd.data.dataset import Dataset
from privdd.data.dataset import describe_standardisation as seen_as
from privdd.data.domains import DomainLimits, corrupt_domains, load_digit_domains, load_domain_folder
from privdd.data.readers import TORCHVISION_DATASETS, load_digits_dataset, load_idx_dataset, load_torchvision_dataset

SOURCES = {
    "digits": load_digits_dataset,
    "mnist": load_idx_dataset,
    "fashion_mnist": load_idx_dataset,
    **{name: load_torchvision_dataset for name in TORCHVISION_DATASETS},
    "npz": load_npz,
}


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
    keys: Keys,
) -> Dataset:
    """The data set ``name`` as images in [0, 1].

    root: folder (or npz file) to look in. size: side in pixels after resizing. limit: at most so many
    training records, test_limit (limit where None) test records, drawn by ``keys``; of each domain for
    digit_domains, domain_folder and corrupted. source, severity, corruptions: of ``corrupt_domains`` only. standardise: networks
    standardise the images by published constants, which stay in [0, 1] here; the note says so. Raises ValueError
    for an unknown name or bad number and DataNotFound (a ValueError) where the data cannot be had.
    """
    check_data(SimpleNamespace(name=name, size=size, limit=limit, test_limit=test_limit, standardise=standardise))
    if standardise:
        found = load_dataset(name, root=root, size=size, limit=limit, test_limit=test_limit, keys=keys)
        return replace(found, note=f"{found.note}; {seen_as(name)}")
    place = None if root is None else Path(root).expanduser()
    limits = DomainLimits(limit, limit if test_limit is None else test_limit)
    here = keys.fold("data", name)
    if name == "digit_domains":
        return load_digit_domains(place, limits, here).resized(size)
    if name == "domain_folder":
        return load_domain_folder(place, size, limits, here)
    if name == "corrupted":
        if source in ("corrupted", "digit_domains", "domain_folder"):
            raise ValueError(f"data.source={source!r}: a data set of one domain is needed")
        return corrupt_domains(
            load_dataset(source, root=root, size=size, keys=keys), severity, corruptions, limits, here
        )
    whole = load_image_folder(name, place, here, size) if name == "folder" else SOURCES[name](name, place, here)
    return whole.limited(limits.train, limits.test, here.fold("limit")).resized(size)
