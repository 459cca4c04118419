"""Client work on the problem's device, with the data that a client trains on and no others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from privdd.core.device import to_device
from privdd.core.types import Shard

DEVICE_MARK = "at_the_device"  # marks work that is moved already
CLIENT_WORK = frozenset({"local", "local_batched", "memory_after", "protected_upload"})


def place_client_work(cls: type) -> None:
    """Replaces the client work that a class defines by the same work on the problem's device."""
    for name in vars(cls).keys() & CLIENT_WORK:
        setattr(cls, name, _run_at_device(vars(cls)[name]))


def _run_at_device(work: Callable[..., Any]) -> Callable[..., Any]:
    """Work whose arguments are moved to the problem's device, and its results to the CPU.

    It receives ``ClientData`` in place of a shard, whoever calls it. Work that is part of other
    client work receives tensors that are on the device, and its results stay there.
    """
    if DEVICE_MARK in vars(work):  # another class's, taken over as it is
        return work

    @functools.wraps(work)
    def run_at_device(self: object, *arguments: Any) -> Any:
        *values, context = arguments
        client_values = [_to_client_data(value) for value in values]
        if isinstance(context, Sequence):
            first = context[0]
        else:
            first = context
        device_values = to_device(client_values, first.problem.device)
        result = work(self, *device_values, context)
        is_inner = device_values is client_values
        return result if is_inner else to_device(result, "cpu")

    vars(run_at_device)[DEVICE_MARK] = True
    return run_at_device


def _to_client_data(value: Any) -> Any:
    """A client's data without what it does not train on; anything else as it is."""
    if isinstance(value, Shard):
        return value.client_data
    if isinstance(value, list | tuple) and any(isinstance(item, Shard) for item in value):
        return [_to_client_data(item) for item in value]
    return value
