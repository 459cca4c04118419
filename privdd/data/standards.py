"""Mean and standard deviation of each channel, as published: what ``data.standardise`` standardises by.

They are constants of the papers' code (the dataset condensation code of Zhao and Bilen, on which FedDM and FedLGD build;
torchvision's examples), computed by their authors over public training sets. Nothing is computed from the records at hand,
so that no statistic of theirs leaves a client.
"""

from __future__ import annotations

Scale = tuple[tuple[float, ...], tuple[float, ...]]

PUBLISHED: dict[str, Scale] = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2861,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
}


def note(name: str) -> str:
    """For a report: what networks see."""
    mean, std = (", ".join(f"{value:g}" for value in part) for part in PUBLISHED[name])
    return f"networks see it standardised by published constants (mean {mean}, standard deviation {std})"
