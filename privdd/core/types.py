"""The types of the training stack (records, shards, artifacts, problems), and flat states: one
mapping of named tensors for every server state and client memory. Nothing here holds hidden state;
that is what makes replay, resume and distribution simple."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from attacks.types import DataColumn as DataColumn
from attacks.types import RecordShape as RecordShape
from attacks.types import is_image as is_image

Tensors = Mapping[str, Tensor]
State = dict[str, Tensor]
Values = Mapping[str, Tensors]  # what travels, by name
NOT_HANDED_OVER = (
    "local gets client, train, nulls and classes alone: no guarantee covers a client's "
    "test and held-out records, so no message may depend on them"
)
# no class: a partition by something else than the label, whose records only their contributions
# tell
UNKNOWN_CELL = -1
REMOTE_MEMORY = "remembered"


@dataclass(frozen=True)
class Records:
    """Private records: x (n, c, h, w) images or (n, d) rows of a table, float32 in [0, 1]; y (n,)
    int64, ids (n,) int64 unique."""

    x: Tensor
    y: Tensor
    ids: Tensor

    def __post_init__(self) -> None:
        if self.x.ndim not in (2, 4) or not len(self.x) == len(self.y) == len(self.ids):
            shapes = ", ".join(str(tuple(part.shape)) for part in (self.x, self.y, self.ids))
            raise ValueError(
                f"records need x (n, c, h, w) or (n, d), y (n,), ids (n,); got {shapes}"
            )

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Tensor | np.ndarray | Sequence[int]) -> Records:
        """The records at ``index`` (integer positions or a bool mask)."""
        positions = torch.as_tensor(index, device=self.y.device)
        positions = (
            positions if positions.numel() else positions.long()
        )  # an empty list has no integer type of its own
        return Records(self.x[positions], self.y[positions], self.ids[positions])

    def to(self, device: str | torch.device) -> Records:
        return Records(self.x.to(device), self.y.to(device), self.ids.to(device))

    @staticmethod
    def concat(parts: Sequence[Records]) -> Records:
        return Records(*(torch.cat([getattr(p, f) for p in parts]) for f in ("x", "y", "ids")))


class NotHandedOver(AttributeError, ValueError):
    """Records that client work asks for and is not given: one line for the user, and an absent
    attribute for Python."""


@dataclass(frozen=True)
class ClientData:
    """What ``Method.local`` is handed of a client's data: what it trains on, and nothing else.
    nulls: as of ``Shard``."""

    client: int
    train: Records
    classes: int
    nulls: Records | None = None

    @property
    def shape(self) -> RecordShape:
        return tuple(self.train.x.shape[1:])

    def with_train(self, train: Records) -> ClientData:
        return replace(self, train=train)

    def __getattr__(self, name: str) -> Records:
        """Says of other records of the client why they are not there."""
        if name in ("test", "heldout"):
            raise NotHandedOver(f"shard.{name}: {NOT_HANDED_OVER}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@dataclass(frozen=True)
class Shard:
    """One client's data, as the simulator holds them: train feeds its uploads, test its personal
    accuracy, heldout the audit.

    nulls: records that zero-out adjacency has replaced: black images, or rows of zeros, that keep
        id and label. They contribute zero to every query; a method that releases one row per record
        releases theirs too.
    """

    client: int
    train: Records
    test: Records
    heldout: Records
    classes: int
    nulls: Records | None = None

    @property
    def shape(self) -> RecordShape:
        return tuple(self.train.x.shape[1:])

    def with_train(self, train: Records) -> Shard:
        return replace(self, train=train)

    @property
    def client_data(self) -> ClientData:
        """What the client's work is handed."""
        return ClientData(self.client, self.train, self.classes, self.nulls)


@dataclass(frozen=True)
class Artifact:
    """One named value that a client hands to the channel.

    value: flat mapping of tensors. private=True claims that the value depends on the client's data
    only through outputs of ``ctx.mechanism``; the non-interference test holds every method to it.
    public: why the value needs no protection (for example: labels under zero-out adjacency), else
        empty.
    flags: side conditions of a mechanism's proof that only the method knows; a false one makes the
        release non-private."""

    value: Tensors
    private: bool = False
    public: str = ""
    flags: Mapping[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.private and self.public:
            raise ValueError("an artifact is private=True or public, not both")


Upload = Mapping[str, Artifact]
Work = tuple[Upload, State]  # what a round of a client makes: what it sends, and what it remembers


@dataclass(frozen=True)
class Received:
    """The messages that the server holds from one client after one round. Only ``Channel.send``
    makes these."""

    client: int
    round: int
    values: Mapping[str, Tensors]


@dataclass(frozen=True)
class Problem:
    """The public facts before training: record shape (c, h, w) or (d,), classes, clients.

    columns: what the numbers of a row of a table stand for; () of images."""

    shape: RecordShape
    classes: int
    clients: int
    device: str = "cpu"
    class_list: tuple[int, ...] = field(default=())
    columns: tuple[DataColumn, ...] = ()

    def __post_init__(self) -> None:
        if not self.class_list:
            object.__setattr__(self, "class_list", tuple(range(self.classes)))


def name_class_cell(label: int) -> str:
    """The partition of a release that holds the records of one class, as ledgers and recorded noise
    name it."""
    return f"label:{label}"


class BadCellName(ValueError):
    """A method releases a cell under a name that no ledger can be read by."""


def check_cell_name(partition: object, classes: Sequence[int]) -> None:
    """Checks the name of a release's cell.

    Args:
        partition: None for a release that is not partitioned; ``label:c`` for the records of class
            c; any other text for records that are grouped by something else.
        classes: those of the problem (``Problem.class_list``).

    Raises:
        BadCellName: for anything else, and for ``label:c`` without such a class.
    """
    if partition is None:
        return
    names = (
        f"{name_class_cell(classes[0])} to {name_class_cell(classes[-1])} mark a class's records"
    )
    if not isinstance(partition, str) or not partition.isprintable() or not partition.strip():
        raise BadCellName(f"partition={partition!r}: a name is needed; {names}")
    is_class_name = partition.startswith("label:")
    if is_class_name and partition not in map(name_class_cell, classes):
        raise BadCellName(f"partition={partition!r}: no such class; {names}")


def class_of_cell(partition: str | None) -> int | None:
    """The class of such a partition; None where a release is not partitioned, ``UNKNOWN_CELL``
    where its cells are no classes."""
    if partition is None:
        return None
    kind, _, label = partition.partition(":")
    if kind == "label" and label.isdecimal():
        return int(label)
    return UNKNOWN_CELL


def pack(prefix: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """{"a": t} -> {"prefix/a": t}."""
    return {f"{prefix}/{name}": tensor for name, tensor in values.items()}


def unpack(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part of ``state`` below ``prefix/``, with the prefix stripped."""
    start = f"{prefix}/"
    return {name[len(start) :]: tensor for name, tensor in state.items() if name.startswith(start)}


def flatten_values(values: Mapping[str, Tensors]) -> dict[str, Tensor]:
    """{"update": {"w": t}} -> {"update/w": t}."""
    flat: dict[str, Tensor] = {}
    for name, value in values.items():
        flat |= pack(name, value)
    return flat


def nest_values(state: State) -> dict[str, dict[str, Tensor]]:
    """The inverse of ``flatten_values``."""
    names = [key.split("/", 1)[0] for key in state]
    return {name: unpack(name, state) for name in dict.fromkeys(names)}


def remote_memory_marker() -> State:
    """In the place of a memory that stays with its client."""
    return {REMOTE_MEMORY: torch.ones(())}


def is_remote_memory(memory: State) -> bool:
    """Whether a memory is kept elsewhere."""
    return REMOTE_MEMORY in memory
