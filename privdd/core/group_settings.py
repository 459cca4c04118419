"""Neighbouring relations, privacy units, hard examples, and rules of the settings groups whose
classes need torch: stated once, checked by the classes and, before torch is imported, of what was
    typed. Each rule raises ValueError, one line with key, value and what is allowed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from privdd.core.validation import (
    BadConfig,
    DataNotFound,
    check_choice,
    check_integer,
    is_number,
    setting_error,
)

PARTITION_NAMES = ("dirichlet", "classes", "subset", "iid", "domains", "corrupted")
BY_DOMAIN = ("domains", "corrupted")
MOST_CLIENTS = 10**6
MOST_RECORDS = 10**8
DATASET_NAMES = (
    "digits",
    "mnist",
    "fashion_mnist",
    "cifar10",
    "cifar100",
    "svhn",
    "usps",
    "emnist",
    "npz",
    "folder",
    "domain_folder",
    "digit_domains",
    "corrupted",
)
LARGEST_SIDE = 4096
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
MOST_WORKERS = 1024  # torch dies of tens of thousands of threads
SETTINGS_BY_KIND = {  # kind of engine -> the settings that it reads
    "auto": ("workers", "threads", "retries"),
    "serial": ("threads",),
    "processes": ("workers", "threads", "retries"),
    "ray": ("workers", "threads", "retries", "address", "mixed", "timeout"),
}
NO_SHUFFLE = (
    "trust=shuffle: not offered. Amplification by shuffling (Feldman, McMillan and "
    "Talwar 2021) needs uploads that say "
    "little about all of a client's data; under privacy.unit=record an upload hides one "
    "record, and under unit=client its "
    "Gaussian noise has no pure local epsilon. Allowed are local, secagg"
)
NORMS = ("instance", "group", "batch", "none")
POOLINGS = ("avg", "max")
INITS = ("default", "uniform_half")
LARGEST = {
    "width": 2**20,
    "depth": 1000,
    "groups": 2**20,
    "latent": 2**24,
}  # beyond, a network takes hours to lay out
# What a field left at None means, by network; networks that lack a field ignore it.
MODEL_DEFAULTS: dict[str, dict[str, Any]] = {
    "convnet": {"width": 128, "norm": "instance", "pooling": "avg"},
    "resnet18": {"width": 64, "norm": "instance"},
    "smallcnn": {"width": 32, "depth": 2, "norm": "none", "pooling": "max"},
    "simplecnn": {"width": 6},
    "lenet": {"width": 12, "depth": 3},
    "mlp": {"width": 128, "depth": 2},
    "vae": {"width": 32, "norm": "batch", "latent": 2048},
    "resnet_generator": {"width": 32, "norm": "batch"},
    "zero": {},
    "projection": {"width": 16, "depth": 2},
}


def reads_files(name: str, source: str | None = None) -> bool:
    """Whether the data set ``name`` (of ``corrupted``: the one that it corrupts) is read from
    files, in data.root."""
    return (source if name == "corrupted" else name) != "digits"


def check_partition(partition: Any) -> None:
    if partition.name not in PARTITION_NAMES:
        raise ValueError(f"partition.name={partition.name!r}: one of {', '.join(PARTITION_NAMES)}")
    if partition.name not in BY_DOMAIN:
        if partition.clients is None:
            raise ValueError("partition.clients=None: an integer >= 1 is needed")
        if not 1 <= partition.clients <= MOST_CLIENTS:
            raise BadConfig(
                f"partition.clients={partition.clients}: from 1 to {MOST_CLIENTS} clients "
                "are needed"
            )
    check_heldout(partition.heldout)
    check_test_fraction(partition.test_fraction)
    check_count("partition.per_domain", partition.per_domain)
    if partition.name in ("dirichlet", "corrupted"):
        check_alpha(partition.alpha)
    if partition.name == "classes":
        check_count("partition.classes", partition.classes)
    if partition.name == "subset":
        check_main(partition.main)
    if partition.name not in ("iid", "domains"):
        check_count("partition.min_size", partition.min_size)


def check_alpha(alpha: float) -> None:
    if not (alpha > 0 and math.isfinite(alpha)):
        raise ValueError(f"partition.alpha={alpha}: a finite number > 0 is needed")


def check_main(main: float) -> None:
    if not 0 <= main <= 1:
        raise ValueError(f"partition.main={main}: a fraction in [0, 1] is needed")


def check_count(key: str, value: object, needed: str = "an integer >= 1 is needed") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not value >= 1:
        raise ValueError(f"{key}={value!r}: {needed}")


def check_heldout(heldout: float | int) -> None:
    """A fraction in [0, 1) or a number of records."""
    number = is_number(heldout) and math.isfinite(heldout)
    if number and heldout > MOST_RECORDS:
        raise ValueError(
            f"partition.heldout={heldout!r}: at most {MOST_RECORDS} records can be held out"
        )
    if not number or heldout < 0 or (isinstance(heldout, float) and heldout >= 1):
        raise ValueError(
            f"partition.heldout={heldout!r}: a fraction in [0, 1) or a number of records is needed"
        )


def check_test_fraction(fraction: float) -> None:
    if not is_number(fraction) or not 0 <= fraction < 1:
        raise ValueError(f"partition.test_fraction={fraction!r}: a fraction in [0, 1) is needed")


def check_data(data: Any) -> None:
    for field in ("size", "limit", "test_limit"):
        if (value := getattr(data, field)) is not None:
            check_count(f"data.{field}", value, "an integer >= 1 or null is needed")
    if data.size is not None and data.size > LARGEST_SIDE:
        raise ValueError(f"data.size={data.size}: from 1 to {LARGEST_SIDE} pixels are needed")
    if data.name not in DATASET_NAMES:
        raise ValueError(f"data.name={data.name!r}: one of {', '.join(DATASET_NAMES)}")
    if data.standardise:
        published_scale(data.name)


# data sets of the user's own: what data.root has to name, whether that is a file, and what it holds
OWN_DATA = {
    "npz": ("FILE", True, "a .npz file with arrays x and y"),
    "folder": ("DIR", False, "a folder with one subfolder for each class"),
    "domain_folder": ("DIR", False, "a folder with one subfolder for each domain"),
}


def own_data_place(name: str, root: Any) -> Path:
    """Where data of the user's own lie; name: one of ``OWN_DATA``. Raises DataNotFound if they are
    not named, or not there."""
    shown, is_file, needed = OWN_DATA[name]
    if root is None:
        raise DataNotFound(f"data={name}: data.root={shown} is needed, {needed}")
    place = Path(str(root)).expanduser()
    if not (place.is_file() if is_file else place.is_dir()):
        raise DataNotFound(
            f"data.root={root}: no such {'file' if is_file else 'folder'}; data={name} "
            f"needs {needed}"
        )
    return place


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


def check_engine(settings: Any) -> None:
    if settings.kind not in SETTINGS_BY_KIND:
        raise ValueError(
            f"engine.kind={settings.kind!r}: allowed are {', '.join(SETTINGS_BY_KIND)}"
        )
    for name, least in (("workers", 0), ("threads", 1), ("retries", 0)):
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"engine.{name}={value!r}: an integer of at least {least} is needed")
        if value > MOST_WORKERS:
            raise ValueError(f"engine.{name}={value}: at most {MOST_WORKERS}")
    if not isinstance(settings.mixed, bool):
        raise ValueError(f"engine.mixed={settings.mixed!r}: allowed are true, false")
    seconds = settings.timeout
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 1 <= seconds < math.inf
    ):
        raise ValueError(f"engine.timeout={seconds!r}: a number of seconds, at least 1, is needed")


def check_capture(capture: Any) -> None:
    """Its rounds and clients; which surfaces there are, ``CaptureSettings`` knows."""
    for name, words in (("rounds", ("all", "first_last")), ("clients", ("all", "auto", "victim"))):
        value = getattr(capture, name)
        chosen = isinstance(value, list | tuple) and all(
            type(one) is int and one >= 0 for one in value
        )
        if not chosen and value not in words:
            raise ValueError(
                f"capture.{name}={value}: allowed are {', '.join(words)} or a list of "
                "whole numbers from 0"
            )


def check_trust(trust: Any) -> None:
    check_choice("trust", trust.name, ("local", "secagg", "shuffle"))
    if trust.name == "shuffle":
        raise BadConfig(NO_SHUFFLE)
    if trust.least is not None:
        check_integer(
            "trust.least",
            trust.least,
            2,
            "a whole number from 2 is needed, or null for all clients of a round",
        )
    check_integer("trust.colluding", trust.colluding)
    if not is_number(trust.dropout) or not 0 <= trust.dropout < 1:
        raise setting_error("trust.dropout", trust.dropout, "a number in [0, 1) is needed")
    if trust.name != "secagg" and (trust.least, trust.dropout, trust.colluding) != (None, 0.0, 0):
        raise BadConfig("trust.least, trust.dropout, trust.colluding: these need trust=secagg")


def check_model(model: Any) -> None:
    if model.name not in MODEL_DEFAULTS:
        raise ValueError(f"model.name={model.name!r}: one of {', '.join(MODEL_DEFAULTS)}")
    for field, most in LARGEST.items():
        value = getattr(model, field)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most
        ):
            raise ValueError(f"model.{field}={value!r}: an integer from 1 to {most} is needed")
    for field, allowed in (("norm", NORMS), ("pooling", POOLINGS), ("init", INITS)):
        value = getattr(model, field)
        if value is not None and value not in allowed:
            raise ValueError(f"model.{field}={value!r}: one of {', '.join(allowed)}")
    if model.name == "projection" and (model.depth or 2) > 4:
        raise ValueError(f"model.depth={model.depth}: the projection has 1 to 4 convolutions")
    if model.name == "projection" and model.width and math.isqrt(model.width) ** 2 != model.width:
        raise ValueError(
            f"model.width={model.width}: the projection needs a square number (1, 4, 9, 16, ...)"
        )


Relation = Literal["add_remove", "zero_out", "replace"]
RELATIONS: tuple[str, ...] = get_args(Relation)
UNITS = ("record", "client")


@dataclass(frozen=True)
class HardExamples:
    """How many audited records get another label, and how many become a near-duplicate, with
    another label, of a record that the client always trains on. 0 and more; none by default."""

    mislabelled: int = 0
    near_duplicates: int = 0

    @property
    def size(self) -> int:
        return self.mislabelled + self.near_duplicates
