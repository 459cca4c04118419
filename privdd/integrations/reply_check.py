"""A client's reply against the plan: the server writes the ledger, the client's own rows only
countersign it.

Names, types and sizes are checked first, then the bytes; nothing is unpickled. What a reply must
look like is known before it
comes: the server works the round out on records that nobody owns, for everything public about a
    reply is the same for any records, as the tests of what leaves a client hold every method to.
    From the plan come the events, their number,
sensitivities, norms and flags; from the received tensors names, shapes, types and digests. Only the
client knows the digest of what its mechanisms released inside local work, and whether a side
condition of a proof failed: it may say so."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from io import BytesIO
from itertools import pairwise
from typing import Any, Literal, get_args

import dp_accounting as dpa
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.lib import format as npy

from attacks.types import Surface
from privdd.core.types import (
    Received,
    Records,
    Shard,
    State,
    Tensors,
    flatten_values,
    nest_values,
    remote_memory_marker,
)
from privdd.core.validation import check_choice, check_number, setting_error
from privdd.federated.channel import digest_tensors, tensor_shapes
from privdd.federated.simulation import ClientTask, Plan, client_step
from privdd.privacy.events import event_to_json
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import LedgerRow

SET_SURFACES = frozenset(
    {Surface.SYNTHETIC_IMAGES, Surface.SYNTHETIC_REPRESENTATIONS, Surface.FEATURES, Surface.LABELS}
)
REPLY_WORDS = {
    "client": int,
    "round": int,
    "asked": str,
    "rows": str,
    "remembers": int,
    "order": str,
}
HEX_DIGITS = frozenset("0123456789abcdef")


class FederationFailed(ValueError):
    """A client is missing, answered with an error, or answered something else."""


class BadReply(ValueError):
    """Why a reply cannot be used. uncovered: something that no planned mechanism covers has reached
    the server."""

    def __init__(self, reason: str, *, uncovered: bool = False) -> None:
        super().__init__(printable_line(reason))
        self.uncovered = uncovered


def printable_line(text: object, most: int = 200) -> str:
    """A stranger's text as one line of printable characters."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(str(text)[: 4 * most].split()))[
        :most
    ]


def to_message_records(values: State, **words: str | int | float) -> RecordDict:
    """Tensors and words as one message; the order of names travels with them."""
    return RecordDict(
        {
            "tensors": ArrayRecord(values),
            "words": ConfigRecord({**words, "order": json.dumps(list(values))}),
        }
    )


def tensors_from_message(content: RecordDict) -> State:
    """The tensors of a message of one's own making, in their order."""
    stored = content.array_records["tensors"].to_torch_state_dict()
    return {
        name: stored[name] for name in json.loads(str(content.config_records["words"]["order"]))
    }


def read_reply_words(content: RecordDict, wanted: Mapping[str, type]) -> dict[str, Any]:
    """The words of a reply. Raises BadReply unless they are those of ``wanted``, each of its
    type."""
    if "words" not in content.config_records:
        raise BadReply("has no words")
    words = dict(content.config_records["words"])
    if set(words) != set(wanted):
        missing = sorted(set(wanted) - set(words))
        unknown = sorted(set(words) - set(wanted))
        raise BadReply(f"its words lack {missing}, and have unknown {unknown}")
    for name, kind in wanted.items():
        if type(words[name]) is not kind:
            raise BadReply(
                f"{name}={printable_line(repr(words[name]), 60)}: a {kind.__name__} is needed"
            )
    return words


def read_reply_arrays(content: RecordDict, order: str) -> dict[str, Array]:
    """The arrays of a reply by name, in the order that it states. Raises BadReply."""
    if set(content) != {"tensors", "words"} or "tensors" not in content.array_records:
        raise BadReply(
            f"holds the records {sorted(content)}; words and tensors are needed", uncovered=True
        )
    stored = dict(content.array_records["tensors"])
    names = json.loads(order)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadReply("order: a list of names is needed")
    if len(set(names)) != len(names) or set(names) != set(stored):
        raise BadReply(f"order names {sorted(names)[:5]}, its tensors are {sorted(stored)[:5]}")
    return {name: stored[name] for name in names}


def read_reply_tensor(name: str, array: Array, dtype: torch.dtype) -> torch.Tensor:
    """The tensor behind an array, once its bytes are what its head says. Raises BadReply."""
    if array.stype != "numpy.ndarray":
        raise BadReply(
            f"{name}: stored as {printable_line(array.stype, 30)}; numpy.ndarray is needed"
        )
    data = BytesIO(array.data)
    head = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(
        npy.read_magic(data)
    )
    if head is None:
        raise BadReply(f"{name}: an unknown version of numpy's format")
    shape, _, kind = head(data)
    if kind.hasobject or kind != torch.empty(0, dtype=dtype).numpy().dtype:
        raise BadReply(f"{name} holds {kind}; {str(dtype).removeprefix('torch.')} is needed")
    if len(array.data) - data.tell() != math.prod(shape) * kind.itemsize:
        raise BadReply(f"{name}: {len(array.data)} bytes are not an array of shape {shape}")
    return torch.from_numpy(
        np.ascontiguousarray(np.load(BytesIO(array.data), allow_pickle=False)).copy().reshape(shape)
    )


@dataclass(frozen=True)
class TensorLayout:
    """The layout of one tensor of a reply. shape: with the length of the rehearsal; free: a client
    may send another length."""

    surface: Surface
    dtype: torch.dtype
    shape: tuple[int, ...]
    free: bool


@dataclass(frozen=True)
class ExpectedReply:
    """layouts: "upload/tensor" -> what it looks like; rows: the ledger rows, those inside local
    work first;
    classes: labels lie below."""

    layouts: Mapping[str, TensorLayout]
    rows: Sequence[LedgerRow]
    classes: int

    @property
    def inner_row_count(self) -> int:
        """Rows of what is released within local work and never travels by itself."""
        return len(self.rows) - len({name.split("/", 1)[0] for name in self.layouts})


def rehearse_round(task: ClientTask) -> ExpectedReply:
    """One client's round on made-up records."""
    # of made-up records: no secret is needed, and none is here
    plan = replace(task.plan, noise_source="seed")
    task = replace(task, plan=plan)
    made_up = replace(task, shard=made_up_shard(plan, task.client), memory={})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the made-up records lack says nothing of anyone's
        received, rows, memory = client_step(made_up)
        if (
            task.memory and memory
        ):  # a client that was here before: its round may differ from a first one
            received, rows, _ = client_step(replace(made_up, memory=memory))
    layouts = {}
    for name, tensor in flatten_values(received.values).items():
        surface = plan.method.uploads[name.split("/", 1)[0]]
        layouts[name] = TensorLayout(
            surface, tensor.dtype, tuple(tensor.shape), surface in SET_SURFACES and tensor.ndim > 0
        )
    return ExpectedReply(layouts, rows, plan.problem.classes)


def made_up_shard(plan: Plan, client: int) -> Shard:
    """A few random images of every class."""
    problem = plan.problem
    each = max(2, plan.method.audit_hooks.images_per_class())
    y = torch.tensor(problem.class_list).repeat_interleave(each)
    generator = plan.keys.fold("public", "rehearsal").torch()
    records = Records(
        torch.rand(len(y), *problem.shape, generator=generator), y, torch.arange(len(y))
    )
    none = records.take([])
    return Shard(client, records, none, none, problem.classes)


class Rehearsals:
    """Remembers rehearsals: rounds that are alike in all that decides a reply's form need only
    one."""

    def __init__(self) -> None:
        self._known: dict[object, ExpectedReply] = {}

    def expected_reply(self, task: ClientTask, *, anew: bool = False) -> ExpectedReply:
        """The expected form of ``task``'s reply. anew: for this very round, whatever is
        remembered."""
        key = _rehearsal_key(task)
        if anew or key not in self._known:
            self._known[key] = rehearse_round(task)
        expected = self._known[key]
        mine = [replace(row, round=task.round, client=task.client) for row in expected.rows]
        return replace(expected, rows=mine)


def _rehearsal_key(task: ClientTask) -> object:
    """The key of all that a reply's form may depend on; a method without public costs is rehearsed
    every round."""
    method = task.plan.method
    round = task.round
    spends = method.releases_per_round(round, task.plan.mechanisms)
    when: int | tuple[bool, str, tuple[tuple[str, int], ...]]
    if spends is None:
        when = round
    else:
        when = (round == 0, method.audit_hooks.phase(round), tuple(sorted(spends.items())))
    sent = tuple(
        sorted(
            (name, tuple(tensor.shape)) for name, tensor in flatten_values(task.broadcast).items()
        )
    )
    return when, sent, bool(task.memory)


OnBadReply = Literal["stop", "drop"]


@dataclass(frozen=True)
class ReplyRules:
    """A server's rules for unusable replies, and the bounds that make a reply unusable.

    bad_reply: stop = the federation ends, to be resumed; drop = the round goes on without that
        client.
    largest: no number of a reply may be further from zero; above 0.
    """

    bad_reply: OnBadReply = "stop"
    largest: float = 1e9

    def __post_init__(self) -> None:
        check_choice("bad_reply", self.bad_reply, get_args(OnBadReply))
        check_number("largest", self.largest)
        if not self.largest > 0:
            raise setting_error("largest", self.largest, "a number above 0 is needed")


def check_reply(
    task: ClientTask, reply: Message, expected: ExpectedReply, asked: str, rules: ReplyRules
) -> tuple[Received, list[LedgerRow], State]:
    """The checked reply: received messages, ledger rows, and whether the client has a memory.
    Raises BadReply.

    asked: digest of the broadcast that the reply must be an answer to.
    """
    try:
        words = read_reply_words(reply.content, REPLY_WORDS)
        _check_words(words, task, asked)
        values = _read_values(reply, words["order"], expected, rules)
        stated = _stated_rows(words["rows"], expected)
        rows = countersign_rows(derive_rows(expected, values, stated), stated)
    except BadReply:
        raise
    except (
        Exception
    ) as error:  # whatever a stranger's bytes do to a reader, it is this reply that is wrong
        raise BadReply(f"cannot be read ({type(error).__name__}: {error})") from None
    # the server learns that a client remembers something (replays must then start at its first
    # round), never what
    return (
        Received(task.client, task.round, values),
        rows,
        remote_memory_marker() if words["remembers"] else {},
    )


def _check_words(words: Mapping[str, Any], task: ClientTask, asked: str) -> None:
    if words["client"] != task.client:
        raise BadReply(f"answers as client {words['client']}")
    if words["round"] != task.round:
        raise BadReply(f"answers round {words['round']}")
    if words["asked"] != asked:
        raise BadReply("answers another broadcast than the one it was sent")
    if words["remembers"] not in (0, 1):
        raise BadReply(f"remembers={words['remembers']}: 0 or 1 is needed")


def _read_values(
    reply: Message, order: str, expected: ExpectedReply, rules: ReplyRules
) -> Mapping[str, Tensors]:
    arrays = read_reply_arrays(reply.content, order)
    wanted = expected.layouts
    if unknown := sorted(set(arrays) - set(wanted)):
        raise BadReply(f"sends {unknown[:5]}, which the plan does not have", uncovered=True)
    if missing := sorted(set(wanted) - set(arrays)):
        raise BadReply(f"lacks {missing[:5]}")
    tensors = {
        name: read_reply_tensor(name, array, wanted[name].dtype) for name, array in arrays.items()
    }
    for name, tensor in tensors.items():
        _check_tensor(name, tensor, wanted[name], rules, expected.classes)
    _check_lengths(tensors, wanted)
    return nest_values({name: tensors[name] for name in wanted})


def _check_tensor(
    name: str, tensor: torch.Tensor, layout: TensorLayout, rules: ReplyRules, classes: int
) -> None:
    shape = tuple(tensor.shape)
    if len(shape) != len(layout.shape) or shape[layout.free :] != layout.shape[layout.free :]:
        needed = ", ".join(
            ["any length"] * layout.free + [str(n) for n in layout.shape[layout.free :]]
        )
        raise BadReply(f"{name} has shape {shape}; ({needed}) is needed")
    if not torch.isfinite(tensor).all():
        raise BadReply(f"{name} holds NaN or infinity")
    if tensor.numel():
        largest = float(tensor.double().abs().max())
    else:
        largest = 0.0
    if largest > rules.largest:
        raise BadReply(f"{name} holds {largest:.3g}; at most {rules.largest:g} is allowed")
    if layout.surface == Surface.LABELS and not bool(((tensor >= 0) & (tensor < classes)).all()):
        raise BadReply(f"{name} holds a label outside 0 to {classes - 1}")
    if layout.surface == Surface.COUNTS and bool((tensor < 0).any()):
        raise BadReply(f"{name} holds a negative count")


def _check_lengths(found: Mapping[str, torch.Tensor], wanted: Mapping[str, TensorLayout]) -> None:
    """Images and their labels are as many; so are features and labels, as often as each is
    shared."""
    sets = [name for name in wanted if wanted[name].free and wanted[name].shape[0]]
    for name, other in pairwise(sets):
        if len(found[name]) * wanted[other].shape[0] != len(found[other]) * wanted[name].shape[0]:
            counts = f"{len(found[name])} and {len(found[other])}"
            raise BadReply(f"{name} and {other} have {counts} entries, which do not match")


def _stated_rows(text: str, expected: ExpectedReply) -> list[LedgerRow]:
    """The client's own rows. Raises BadReply for more of them than the plan has."""
    releases = Ledger.from_json(text).releases
    names = [field.name for field in fields(LedgerRow)]
    rows = []
    for release in releases:
        values = {name: getattr(release, name) for name in names}
        rows.append(LedgerRow(**values))
    if len(rows) != len(expected.rows):
        has_extra = len(rows) > len(expected.rows)
        raise BadReply(
            f"states {len(rows)} ledger rows, but the plan has {len(expected.rows)}",
            uncovered=has_extra,
        )
    return rows


def derive_rows(
    expected: ExpectedReply, values: Mapping[str, Tensors], stated: Sequence[LedgerRow]
) -> list[LedgerRow]:
    """The ledger rows of what was received. stated: the client's, for the digests that only it
    knows."""
    rows = []
    for index, row in enumerate(expected.rows):
        if index >= expected.inner_row_count:
            rows.append(
                replace(
                    row,
                    shape=tensor_shapes(values[row.name]),
                    digest=digest_tensors(values[row.name]),
                )
            )
        elif len(stated[index].digest) != 32 or not HEX_DIGITS.issuperset(stated[index].digest):
            raise BadReply(
                f"row {index} ({row.name}) states digest "
                f"{printable_line(stated[index].digest, 40)!r}"
            )
        else:
            rows.append(replace(row, digest=stated[index].digest))
    return rows


def countersign_rows(rows: Sequence[LedgerRow], stated: Sequence[LedgerRow]) -> list[LedgerRow]:
    """The derived rows, where the client's agree field by field. Raises BadReply, naming the first
    that does not."""
    countersigned = []
    for index, (row, theirs) in enumerate(zip(rows, stated, strict=True)):
        row = _admit_failed_condition(row, theirs)
        for field in fields(LedgerRow):
            mine = getattr(row, field.name)
            their_value = getattr(theirs, field.name)
            if field.name == "event":
                mine = event_to_json(mine)
                their_value = event_to_json(their_value)
            if field.name == "noise_std" and isinstance(row.event, dpa.NonPrivateDpEvent):
                # nothing is promised; the scale may be the data's
                row = replace(row, noise_std=their_value)
            elif mine != their_value:
                complaint = (
                    f"row {index} ({row.name}) states {field.name} "
                    f"{printable_line(their_value, 50)}; "
                    "the plan and what came say "
                )
                costs = field.name == "event" and not isinstance(theirs.event, dpa.NoOpDpEvent)
                raise BadReply(f"{complaint}{printable_line(mine, 50)}", uncovered=costs)
        countersigned.append(row)
    return countersigned


def _admit_failed_condition(row: LedgerRow, theirs: LedgerRow) -> LedgerRow:
    """A client may say that a side condition failed, which only makes its release non-private."""
    broken = sorted(
        name for name, holds in theirs.flags.items() if not holds and row.flags.get(name)
    )
    if not broken:
        return row
    reason = (
        "side conditions fail: "
        f"{', '.join(sorted(n for n, holds in theirs.flags.items() if not holds))}"
    )
    flags = {name: holds and name not in broken for name, holds in row.flags.items()}
    return replace(row, flags=flags, event=dpa.NonPrivateDpEvent(), nonprivate_reason=reason)
