"""How a data set is dealt to clients, as one validated description (configs/partition/*.yaml)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from privdd.core import Keys
from privdd.data.dataset import Dataset
from privdd.data.partition import Index, classes_per_client, dirichlet, iid, subset

NAMES = ("dirichlet", "classes", "subset", "iid", "domains", "corrupted")
BY_DOMAIN = ("domains", "corrupted")


@dataclass(frozen=True)
class Partition:
    """name: dirichlet | classes | subset | iid (by label), domains | corrupted (one domain after the other).

    clients: how many (None for the two by domain: per_domain clients for each domain). alpha: of
    dirichlet and corrupted. classes: held by each client. main: share of a class that its dominant
    clients hold. min_size: records that each client must get at least.
    heldout: records of each client that are never trained on, a fraction in [0, 1) or a number (at most
    half of what the client has). test_fraction: share of each client's records kept for its own test
    (FedRD: 0.2); 0 takes the common test records in the client's class proportions instead.
    """

    name: str = "dirichlet"
    clients: int | None = 10
    alpha: float = 0.5
    classes: int = 2
    main: float = 0.9
    min_size: int = 10
    per_domain: int = 1
    heldout: float | int = 0.2
    test_fraction: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ValueError(f"partition.name={self.name!r}: one of {', '.join(NAMES)}")
        if self.name in BY_DOMAIN:
            object.__setattr__(self, "clients", None)
        elif self.clients is None:
            raise ValueError("partition.clients=None: an integer >= 1 is needed")
        check_heldout(self.heldout)
        check_test_fraction(self.test_fraction)
        if isinstance(self.per_domain, bool) or not isinstance(self.per_domain, int) or not self.per_domain >= 1:
            raise ValueError(f"partition.per_domain={self.per_domain!r}: an integer >= 1 is needed")

    def deal(self, data: Dataset, keys: Keys) -> list[Index]:
        """Positions in ``data.train`` of each client. Raises ValueError where the rule cannot be met."""
        labels = data.train.y.numpy()
        rng = keys.fold("partition", self.name).numpy()
        if self.name in BY_DOMAIN:
            return self._by_domain(labels, data, rng)
        return self._rule(labels, self.clients or 1, rng)

    def _rule(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> list[Index]:
        rules: dict[str, Callable[[], list[Index]]] = {
            "iid": lambda: iid(labels, clients, rng),
            "dirichlet": lambda: dirichlet(labels, clients, self.alpha, rng, self.min_size),
            "classes": lambda: classes_per_client(labels, clients, self.classes, rng, self.min_size),
            "subset": lambda: subset(labels, clients, self.main, rng, self.min_size),
            "domains": lambda: iid(labels, clients, rng),
            "corrupted": lambda: dirichlet(labels, clients, self.alpha, rng, self.min_size),
        }
        return rules[self.name]()

    def _by_domain(self, labels: NDArray[np.int64], data: Dataset, rng: np.random.Generator) -> list[Index]:
        if data.domain is None:
            raise ValueError(f"partition.name={self.name!r}: data.name={data.name!r} has no domains")
        out = []
        for domain in range(len(data.domains)):
            at = torch.nonzero(data.domain == domain).flatten().numpy()
            if not len(at):
                raise ValueError(f"data.limit: domain {data.domains[domain]!r} is left without a record")
            out += [at[part] for part in self._rule(labels[at], self.per_domain, rng)]
        return out


def check_heldout(heldout: float | int) -> None:
    """A fraction in [0, 1) or a whole number >= 0; ValueError otherwise."""
    number = isinstance(heldout, int | float) and not isinstance(heldout, bool) and math.isfinite(heldout)
    if not number or heldout < 0 or (isinstance(heldout, float) and heldout >= 1):
        raise ValueError(f"partition.heldout={heldout!r}: a fraction in [0, 1) or a number of records is needed")


def check_test_fraction(fraction: float) -> None:
    """A fraction in [0, 1); ValueError otherwise."""
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction < 1:
        raise ValueError(f"partition.test_fraction={fraction!r}: a fraction in [0, 1) is needed")
