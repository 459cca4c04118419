"""Tensors and words as Flower messages, and how a message from a machine that nobody vouches for is read.

What is inside a reply is checked before it is used: names, types and sizes first, then the bytes. Nothing is unpickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib import format as npy

from privdd.core.types import State


class FederationFailed(ValueError):
    """A client is missing, answered with an error, or answered something else."""


class BadReply(ValueError):
    """Why a reply cannot be used. uncovered: something that no planned mechanism covers has reached the server."""

    def __init__(self, reason: str, *, uncovered: bool = False) -> None:
        super().__init__(printable_line(reason))
        self.uncovered = uncovered


def printable_line(text: object, most: int = 200) -> str:
    """A stranger's text as one line of printable characters."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(str(text)[: 4 * most].split()))[:most]


def to_message_records(values: State, **words: str | int | float) -> RecordDict:
    """Tensors and words as one message; the order of names travels with them."""
    return RecordDict(
        {
            "tensors": ArrayRecord(values),
            "words": ConfigRecord({**words, "order": json.dumps(list(values))}),
        }
    )


def tensors_from_message(content: RecordDict, part: str = "") -> State:
    """The tensors of a message of one's own making, in their order."""
    stored = content.array_records[f"{part}tensors"].to_torch_state_dict()
    return {name: stored[name] for name in json.loads(str(content.config_records[f"{part}words"]["order"]))}


def read_reply_words(content: RecordDict, wanted: Mapping[str, type]) -> dict[str, Any]:
    """The words of a reply. Raises BadReply unless they are those of ``wanted``, each of its type."""
    if "words" not in content.config_records:
        raise BadReply("has no words")
    words = dict(content.config_records["words"])
    if set(words) != set(wanted):
        missing, unknown = sorted(set(wanted) - set(words)), sorted(set(words) - set(wanted))
        raise BadReply(f"its words lack {missing}, and have unknown {unknown}")
    for name, kind in wanted.items():
        if type(words[name]) is not kind:
            raise BadReply(f"{name}={printable_line(repr(words[name]), 60)}: a {kind.__name__} is needed")
    return words


def read_reply_arrays(content: RecordDict, order: str) -> dict[str, Array]:
    """The arrays of a reply by name, in the order that it states. Raises BadReply."""
    if set(content) != {"tensors", "words"} or "tensors" not in content.array_records:
        raise BadReply(f"holds the records {sorted(content)}; words and tensors are needed", uncovered=True)
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
        raise BadReply(f"{name}: stored as {printable_line(array.stype, 30)}; numpy.ndarray is needed")
    data = BytesIO(array.data)
    head = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(npy.read_magic(data))
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
