"""A client's reply against the plan: the server writes the ledger, the client's own rows only countersign it.

From the plan come the events, their number, sensitivities, norms and flags; from the received tensors names, shapes,
types and digests; from the federation the round and the node's own client number. Only the client knows the digest of
what its mechanisms released inside local work, and whether a side condition of a proof failed: it may say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Literal, get_args

import dp_accounting as dpa
import torch
from flwr.app import Message

from attacks.types import Surface
from privdd.adapters.flower_messages import BadReply, arrays_of, one_line, tensor_of, words_of
from privdd.adapters.rehearsal import Expected, Layout
from privdd.core.checks import check_choice, check_number, refused
from privdd.core.state import mark, nested
from privdd.core.types import Received, State, Tensors
from privdd.federated.channel import digest, shapes
from privdd.federated.simulation import Task
from privdd.privacy.events import to_form
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import Row

OnBadReply = Literal["stop", "drop"]
WORDS = {"client": int, "round": int, "asked": str, "rows": str, "remembers": int, "order": str}
DIGEST = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class ReplyRules:
    """What a server does about replies that it cannot use, and what it cannot use.

    bad_reply: stop = the federation ends, to be resumed; drop = the round goes on without that client.
    largest: no number of a reply may be further from zero; above 0.
    """

    bad_reply: OnBadReply = "stop"
    largest: float = 1e9

    def __post_init__(self) -> None:
        check_choice("bad_reply", self.bad_reply, get_args(OnBadReply))
        check_number("largest", self.largest)
        if not self.largest > 0:
            raise refused("largest", self.largest, "a number above 0 is needed")


def checked(
    task: Task, reply: Message, expected: Expected, asked: str, rules: ReplyRules
) -> tuple[Received, list[Row], State]:
    """What the server receives, the ledger rows, and whether the client remembers. Raises BadReply.

    asked: digest of the broadcast that the reply must be an answer to.
    """
    try:
        words = words_of(reply.content, WORDS)
        _check_words(words, task, asked)
        values = _values(reply, words["order"], expected, rules)
        stated = _stated(words["rows"], expected)
        rows = countersigned(derived(expected, values, stated), stated)
    except BadReply:
        raise
    except Exception as error:  # whatever a stranger's bytes do to a reader, it is this reply that is wrong
        raise BadReply(f"cannot be read ({type(error).__name__}: {error})") from None
    # the server learns that a client remembers something (replays must then start at its first round), never what
    return Received(task.client, task.round, values), rows, mark() if words["remembers"] else {}


def _check_words(words: Mapping[str, Any], task: Task, asked: str) -> None:
    if words["client"] != task.client:
        raise BadReply(f"answers as client {words['client']}")
    if words["round"] != task.round:
        raise BadReply(f"answers round {words['round']}")
    if words["asked"] != asked:
        raise BadReply("answers another broadcast than the one it was sent")
    if words["remembers"] not in (0, 1):
        raise BadReply(f"remembers={words['remembers']}: 0 or 1 is needed")


# --- tensors --------------------------------------------------------------------------------------


def _values(reply: Message, order: str, expected: Expected, rules: ReplyRules) -> Mapping[str, Tensors]:
    arrays, wanted = arrays_of(reply.content, order), expected.layouts
    if unknown := sorted(set(arrays) - set(wanted)):
        raise BadReply(f"sends {unknown[:5]}, which the plan does not have", uncovered=True)
    if missing := sorted(set(wanted) - set(arrays)):
        raise BadReply(f"lacks {missing[:5]}")
    found = {name: tensor_of(name, array, wanted[name].dtype) for name, array in arrays.items()}
    for name, tensor in found.items():
        _check_tensor(name, tensor, wanted[name], rules, expected.classes)
    _check_lengths(found, wanted)
    return nested({name: found[name] for name in wanted})


def _check_tensor(name: str, tensor: torch.Tensor, layout: Layout, rules: ReplyRules, classes: int) -> None:
    shape = tuple(tensor.shape)
    if len(shape) != len(layout.shape) or shape[layout.free :] != layout.shape[layout.free :]:
        raise BadReply(f"{name} has shape {shape}; {_needed(layout)} is needed")
    if not torch.isfinite(tensor).all():
        raise BadReply(f"{name} holds NaN or infinity")
    if tensor.numel() and float(tensor.double().abs().max()) > rules.largest:
        raise BadReply(f"{name} holds {float(tensor.double().abs().max()):.3g}; at most {rules.largest:g} is allowed")
    if (
        layout.surface == Surface.LABELS
        and tensor.numel()
        and not 0 <= float(tensor.min()) <= float(tensor.max()) < classes
    ):
        raise BadReply(f"{name} holds a label outside 0 to {classes - 1}")
    if layout.surface == Surface.COUNTS and bool((tensor < 0).any()):
        raise BadReply(f"{name} holds a negative count")


def _needed(layout: Layout) -> str:
    return f"({', '.join(['any length'] * layout.free + [str(n) for n in layout.shape[layout.free :]])})"


def _check_lengths(found: Mapping[str, torch.Tensor], wanted: Mapping[str, Layout]) -> None:
    """Images and their labels are as many; so are features and labels, as often as each is shared."""
    sets = [name for name in wanted if wanted[name].free and wanted[name].shape[0]]
    for one, other in pairwise(sets):
        if len(found[one]) * wanted[other].shape[0] != len(found[other]) * wanted[one].shape[0]:
            raise BadReply(
                f"{one} and {other} have {len(found[one])} and {len(found[other])} entries, which do not match"
            )


# --- rows -----------------------------------------------------------------------------------------


def _stated(text: str, expected: Expected) -> list[Row]:
    """The client's own rows. Raises BadReply for more of them than the plan has."""
    releases = Ledger.from_json(text).releases
    rows = [Row(**{f.name: getattr(release, f.name) for f in fields(Row)}) for release in releases]
    if len(rows) != len(expected.rows):
        more = len(rows) > len(expected.rows)
        raise BadReply(f"states {len(rows)} ledger rows where the plan has {len(expected.rows)}", uncovered=more)
    return rows


def derived(expected: Expected, values: Mapping[str, Tensors], stated: Sequence[Row]) -> list[Row]:
    """The ledger rows of what was received. stated: the client's, for the digests that only it knows."""
    rows = []
    for at, row in enumerate(expected.rows):
        if at >= expected.inner:
            rows.append(replace(row, shape=shapes(values[row.name]), digest=digest(values[row.name])))
        elif len(stated[at].digest) != 32 or not DIGEST.issuperset(stated[at].digest):
            raise BadReply(f"row {at} ({row.name}) states digest {one_line(stated[at].digest, 40)!r}")
        else:
            rows.append(replace(row, digest=stated[at].digest))
    return rows


def countersigned(rows: Sequence[Row], stated: Sequence[Row]) -> list[Row]:
    """The derived rows, where the client's agree field by field. Raises BadReply, naming the first that does not."""
    kept = []
    for at, (row, theirs) in enumerate(zip(rows, stated, strict=True)):
        row = _admitting(row, theirs)
        for field in fields(Row):
            mine, other = getattr(row, field.name), getattr(theirs, field.name)
            if field.name == "event":
                mine, other = to_form(mine), to_form(other)
            if field.name == "noise_std" and isinstance(row.event, dpa.NonPrivateDpEvent):
                row = replace(row, noise_std=other)  # nothing is promised; the scale may be the data's
            elif mine != other:
                said = f"row {at} ({row.name}) states {field.name} {one_line(other, 50)}; the plan and what came say "
                raise BadReply(f"{said}{one_line(mine, 50)}", uncovered=field.name == "event" and _costs(theirs))
        kept.append(row)
    return kept


def _admitting(row: Row, theirs: Row) -> Row:
    """A client may say that a side condition failed, which only makes its release non-private."""
    broken = sorted(name for name, holds in theirs.flags.items() if not holds and row.flags.get(name))
    if not broken:
        return row
    reason = f"side conditions fail: {', '.join(sorted(n for n, holds in theirs.flags.items() if not holds))}"
    flags = {name: holds and name not in broken for name, holds in row.flags.items()}
    return replace(row, flags=flags, event=dpa.NonPrivateDpEvent(), nonprivate_reason=reason)


def _costs(row: Row) -> bool:
    return not isinstance(row.event, dpa.NoOpDpEvent)
