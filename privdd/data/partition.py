"""Who holds which record: label partitions by the rules of NIID-Bench (Li et al., ICDE 2022),
clients' shards, and audited records that are made hard to fit.

Each rule takes the labels (n,) and gives one sorted int64 index array per client; no record goes to
two clients. ``rng`` is the only source of chance. A shard is what a client trains on, its own test
records, and what the audit holds out. A model learns an ordinary record from its neighbours, and
has to memorise one whose label they speak against (Aerni, Zhang and Tramer 2024): an audit of
ordinary ones understates what the most exposed lose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privdd.core.hard_examples import HardExamples
from privdd.core.rng import Keys
from privdd.core.types import Records, Shard
from privdd.core.validation import BadConfig, check_count, is_number
from privdd.data.dataset import Dataset

Labels = NDArray[np.integer]
Index = NDArray[np.int64]
PARTITION_NAMES = ("dirichlet", "classes", "subset", "iid", "domains", "corrupted")
BY_DOMAIN = ("domains", "corrupted")
MOST_CLIENTS = 10**6
MOST_RECORDS = 10**8
ATTEMPTS = 1000  # Dirichlet draws before an unreachable min_size is reported
ENOUGH_TEST_RECORDS = 50  # personal test records worth having
# standard deviation of a near-duplicate's pixels around its twin's: too little to be seen
DUPLICATE_NOISE = 0.02


def check_partition(partition: Partition) -> None:
    """Raises ValueError for the first setting that is out of its range."""
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


def iid(labels: Labels, clients: int, rng: np.random.Generator) -> list[Index]:
    """A random permutation cut into ``clients`` parts whose sizes differ by at most one."""
    labels = _check_labels(labels, clients)
    return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]


def dirichlet(
    labels: Labels, clients: int, alpha: float, rng: np.random.Generator, min_size: int = 10
) -> list[Index]:
    """Each class is cut by proportions from Dirichlet(alpha); every record is given out.

    NIID-Bench's "noniid-labeldir" (FedDM, FedRD; FedFed with min_size = number of classes): a
    client that already holds its even share n / clients gets nothing of the next class, and the
    whole draw is repeated until every client has ``min_size`` records. Raises ValueError where that
    cannot be."""
    labels = _check_labels(labels, clients, min_size)
    check_alpha(alpha)
    values, counts = np.unique(labels, return_counts=True)
    for _ in range(ATTEMPTS):
        sizes = _dirichlet_counts(counts, clients, alpha, rng)
        if sizes.sum(0).min() >= min_size:
            return _deal_records(labels, values, sizes, rng)
    raise ValueError(
        f"partition.min_size={min_size}: not reached in {ATTEMPTS} draws with {clients} "
        "clients and "
        f"alpha={alpha}; lower it, raise alpha or take fewer clients"
    )


def classes_per_client(
    labels: Labels, clients: int, classes: int, rng: np.random.Generator, min_size: int = 1
) -> list[Index]:
    """Client i holds class i mod C and ``classes`` - 1 others at random (NIID-Bench's "#C = k").

    The holders of a class share its records evenly; classes that nobody holds are left out.
    """
    labels = _check_labels(labels, clients, min_size)
    values = np.unique(labels)
    if (
        isinstance(classes, bool)
        or not isinstance(classes, int | np.integer)
        or not 1 <= classes <= len(values)
    ):
        raise ValueError(
            f"partition.classes={classes}: an integer from 1 to {len(values)} (classes at hand)"
        )
    held = [_held_classes(client, classes, len(values), rng) for client in range(clients)]
    parts: list[list[Index]] = [[] for _ in range(clients)]
    for label, value in enumerate(values):
        holders = [client for client in range(clients) if label in held[client]]
        if holders:
            pieces = np.array_split(_shuffle_class(labels, value, rng), len(holders))
            for client, piece in zip(holders, pieces):
                parts[client].append(piece)
    return _join_parts(parts, min_size)


def subset(
    labels: Labels, clients: int, main: float, rng: np.random.Generator, min_size: int = 1
) -> list[Index]:
    """One dominant class for each client, a little of all others (FedFed's "Subset", after Lin et
    al.).

    Client i's class is i mod C. The clients of a class share the fraction ``main`` of it in [0, 1],
    everyone else shares the rest; a class that is nobody's is shared by all. Every record is given
    out."""
    labels = _check_labels(labels, clients, min_size)
    check_main(main)
    values = np.unique(labels)
    parts: list[list[Index]] = [[] for _ in range(clients)]
    for label, value in enumerate(values):
        owners = np.arange(clients) % len(values) == label
        count = int(owners.sum())
        share = np.full(clients, 1 / clients)
        if count not in (0, clients):
            share = np.where(owners, main / count, (1 - main) / (clients - count))
        index = _shuffle_class(labels, value, rng)
        ends = (np.cumsum(share)[:-1] * len(index)).astype(int)
        for client, piece in enumerate(np.split(index, ends)):
            parts[client].append(piece)
    return _join_parts(parts, min_size)


def _check_labels(labels: Labels, clients: int, min_size: int = 1) -> NDArray[np.int64]:
    labels = np.asarray(labels)
    if labels.ndim != 1 or (labels.size and not np.issubdtype(labels.dtype, np.integer)):
        raise ValueError(
            f"labels: an integer array (n,) is needed, got {labels.dtype} {labels.shape}"
        )
    for field, value in (("clients", clients), ("min_size", min_size)):
        check_count(f"partition.{field}", int(value) if isinstance(value, np.integer) else value)
    if clients > len(labels):
        raise ValueError(
            f"partition.clients={clients}: more clients than the {len(labels)} records"
        )
    if clients * min_size > len(labels):
        raise ValueError(
            f"partition.min_size={min_size}: {clients} clients need more than the "
            f"{len(labels)} records"
        )
    return labels.astype(np.int64)


def _shuffle_class(labels: Labels, value: int, rng: np.random.Generator) -> Index:
    return rng.permutation(np.flatnonzero(labels == value))


def _dirichlet_counts(
    counts: NDArray[np.int64], clients: int, alpha: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """How many records of each class each client gets: (classes, clients)."""
    sizes = np.zeros(clients, dtype=np.int64)
    sizes_by_class = np.zeros((len(counts), clients), dtype=np.int64)
    for label, count in enumerate(counts):
        room = sizes < counts.sum() / clients
        shares = rng.dirichlet(np.full(clients, alpha)) * room
        if not shares.sum() > 0:  # every client with a share is full, or the draw underflowed
            shares = room.astype(np.float64)
        ends = (np.cumsum(shares / shares.sum())[:-1] * count).astype(np.int64)
        sizes_by_class[label] = np.diff(ends, prepend=0, append=count)
        sizes += sizes_by_class[label]
    return sizes_by_class


def _deal_records(
    labels: Labels, values: Labels, sizes: NDArray[np.int64], rng: np.random.Generator
) -> list[Index]:
    pieces = [
        np.split(_shuffle_class(labels, value, rng), np.cumsum(row)[:-1])
        for value, row in zip(values, sizes)
    ]
    return [np.sort(np.concatenate(part)) for part in zip(*pieces)]


def _held_classes(client: int, count: int, classes: int, rng: np.random.Generator) -> set[int]:
    first = client % classes
    further = rng.permutation([c for c in range(classes) if c != first])[: count - 1]
    return {first, *(int(c) for c in further)}


def _join_parts(parts: list[list[Index]], min_size: int) -> list[Index]:
    out = [np.sort(np.concatenate(part)) if part else np.empty(0, np.int64) for part in parts]
    smallest = min(map(len, out))
    if smallest < min_size:
        raise ValueError(
            f"partition.min_size={min_size}: a client got {smallest}; take fewer clients "
            "or lower it"
        )
    return out


@dataclass(frozen=True)
class Partition:
    """name: dirichlet | classes | subset | iid (by label), domains | corrupted (one domain after the other).

    clients: None for the two by domain, which have per_domain clients for each. alpha: of dirichlet
        and corrupted. classes:
    held by each client. main: share of a class that its dominant clients hold. min_size: records
    that each client must get at
    least. heldout: records of each client that are never trained on, a fraction in [0, 1) or a
    number (at most half of what the client has). test_fraction: share of each client's records
    kept for its own test (FedRD: 0.2); 0 takes the common
    test records in the client's class proportions instead.
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
        check_partition(self)
        if self.name in BY_DOMAIN:
            object.__setattr__(self, "clients", None)

    def deal_records(self, data: Dataset, keys: Keys) -> list[Index]:
        """Positions in ``data.train`` of each client. Raises ValueError where the rule cannot be
        met."""
        labels = data.train.y.numpy()
        rng = keys.fold("partition", self.name).numpy()
        if self.name in BY_DOMAIN:
            return self._deal_by_domain(labels, data, rng)
        return self._apply_rule(labels, self.clients or 1, rng)

    def _apply_rule(
        self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator
    ) -> list[Index]:
        if self.name in ("iid", "domains"):
            return iid(labels, clients, rng)
        if self.name in ("dirichlet", "corrupted"):
            return dirichlet(labels, clients, self.alpha, rng, self.min_size)
        if self.name == "classes":
            return classes_per_client(labels, clients, self.classes, rng, self.min_size)
        return subset(labels, clients, self.main, rng, self.min_size)

    def _deal_by_domain(
        self, labels: NDArray[np.int64], data: Dataset, rng: np.random.Generator
    ) -> list[Index]:
        if data.domain is None:
            raise ValueError(
                f"partition.name={self.name!r}: data.name={data.name!r} has no domains"
            )
        out = []
        for domain in range(len(data.domains)):
            positions = torch.nonzero(data.domain == domain).flatten().numpy()
            if not len(positions):
                raise ValueError(
                    f"data.limit: domain {data.domains[domain]!r} is left without a record"
                )
            parts = self._apply_rule(labels[positions], self.per_domain, rng)
            out += [positions[part] for part in parts]
        return out


def make_shards(data: Dataset, partition: Partition, keys: Keys) -> list[Shard]:
    """Deal ``data`` by ``partition`` and cut each client's records at random into train, test,
    heldout.

    Held-out records are the audit's non-members. Raises ValueError where the partition cannot be
    met or a client would be left without a training record.
    """
    dealt = partition.deal_records(data, keys)
    heldout = partition.heldout
    fraction = partition.test_fraction
    return [
        _cut_shard(client, data, torch.from_numpy(positions), keys, heldout, fraction)
        for client, positions in enumerate(dealt)
    ]


def _cut_shard(
    client: int,
    data: Dataset,
    positions: Tensor,
    keys: Keys,
    heldout: float | int,
    fraction: float,
) -> Shard:
    size = len(positions)
    order = positions[torch.randperm(size, generator=keys.fold("shard", client).torch())]
    count_heldout = heldout
    if isinstance(heldout, float):
        count_heldout = round(heldout * size)
    count_heldout = min(int(count_heldout), size // 2)
    count_test = math.ceil(fraction * size)
    count_train = size - count_heldout - count_test
    if count_train <= 0:
        raise ValueError(
            f"partition.heldout={heldout}: client {client} has {size} records, {count_heldout} "
            f"held out and {count_test} for test leave none to train on"
        )
    held_out, test, train = (
        data.train.take(piece.sort().values)
        for piece in order.split([count_heldout, count_test, count_train])
    )
    if not count_test:
        test = _matching_test_records(data, positions, keys.fold("test", client))
    return Shard(client, train, test, held_out, data.classes)


def _matching_test_records(data: Dataset, positions: Tensor, keys: Keys) -> Records:
    """Common test records in the proportions of the classes at ``positions``, of the same domain
    if there are domains.

    They are as many as the scarcest class allows; if that is under ENOUGH_TEST_RECORDS, scarce
    classes fall short instead."""
    here = torch.arange(len(data.test))
    if data.domain is not None and data.test_domain is not None:
        here = here[data.test_domain == data.domain[positions[0]]]
    counts = torch.bincount(data.train.y[positions], minlength=data.classes).double()
    at_hand = torch.bincount(data.test.y[here], minlength=data.classes).double()
    held = (counts > 0) & (at_hand > 0)
    shares = torch.where(held, counts, 0.0)
    if not held.any():
        return data.test.take(here[:0])
    scale = max(
        float((at_hand[held] / shares[held]).min()), ENOUGH_TEST_RECORDS / float(shares.sum())
    )
    wanted = torch.minimum((shares * scale).round(), at_hand).long()
    shuffled = here[torch.randperm(len(here), generator=keys.torch())]
    labels = data.test.y[shuffled]
    picked = [shuffled[labels == c][: int(wanted[c])] for c in range(data.classes)]
    return data.test.take(torch.cat(picked).sort().values)


def draw_audited_positions(size: int, records: int, keys: Keys) -> Tensor:
    """The audited positions of a client with ``size`` records, in the order drawn: at most three
    quarters of them."""
    count = min(records, max(1, 3 * size // 4))
    return torch.randperm(size, generator=keys.fold("audited").torch())[:count]


def positions_by_kind(tail: HardExamples, audited: Tensor) -> dict[str, Tensor]:
    """kind -> its part of the audited positions, in the order drawn; kinds without a record are
    left out."""
    first = tail.mislabelled
    parts = {"mislabelled": audited[:first], "near_duplicates": audited[first : tail.size]}
    return {kind: positions for kind, positions in parts.items() if len(positions)}


def add_hard_examples(shard: Shard, tail: HardExamples, records: int, keys: Keys) -> Shard:
    """The shard with that many of its audited records made hard to fit; ids stay.

    keys: those that the audited records are drawn with. Labels are drawn among the client's own
        other classes. Raises BadConfig where the client cannot have this tail.
    """
    audited = draw_audited_positions(len(shard.train), records, keys)
    train = shard.train
    check_hard_examples(tail, len(audited), len(train), int(train.y.unique().numel()))
    x = train.x.clone()
    y = train.y.clone()
    generator = keys.fold("tail").torch()
    kinds = positions_by_kind(tail, audited)
    for position in kinds.get("mislabelled", audited[:0]).tolist():
        y[position] = _draw_other_label(int(train.y[position]), train, generator)
    never = torch.ones(len(train), dtype=torch.bool)
    never[audited] = False  # no coin is flipped for these: they are in every replay
    twins = never.nonzero()[:, 0]
    for position, twin in zip(kinds.get("near_duplicates", audited[:0]).tolist(), twins.tolist()):
        noise = torch.randn(train.x[twin].shape, generator=generator).to(train.x)
        x[position] = (train.x[twin] + DUPLICATE_NOISE * noise).clamp(0, 1)
        y[position] = _draw_other_label(int(train.y[twin]), train, generator)
    return shard.with_train(Records(x, y, train.ids))


def check_hard_examples(tail: HardExamples, audited: int, size: int, classes: int) -> None:
    """Raises BadConfig, one line, where a client with ``size`` records of so many classes cannot
    have this tail."""
    if tail.size > audited:
        raise BadConfig(
            f"audit.tail: {tail.size} records, and {audited} of the audited client are audited"
        )
    if tail.near_duplicates > size - audited:
        raise BadConfig(
            f"audit.tail.near_duplicates={tail.near_duplicates}: each needs a record that "
            "is never audited, and the audited "
            f"client has {size - audited}; audit fewer (audit.records)"
        )
    if tail.size and classes < 2:
        raise BadConfig(
            "audit.tail: the audited client must hold at least two classes; "
            "take another audit.client"
        )


def _draw_other_label(label: int, train: Records, generator: torch.Generator) -> int:
    """A label of the client's other than ``label``, uniform over its classes."""
    choices = [c for c in train.y.unique().tolist() if c != label]
    return int(choices[int(torch.randint(len(choices), (1,), generator=generator))])


def hard_example_counts(tail: HardExamples) -> Mapping[str, int]:
    """The kinds that there are, with their counts; empty without a tail."""
    return {kind: count for kind, count in vars(tail).items() if count}
