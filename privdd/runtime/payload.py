"""Tasks and results as bytes, to be sent between processes.

Torch's own pickling sends every tensor through a separate file or through ``torch.save``, which costs a small client
more time than its training. Here a tensor is sent as its raw bytes with type and shape.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from joblib.externals.loky.backend.reduction import dumps, loads
from torch import Tensor

from privdd.runtime.allocator import keep_memory
from privdd.runtime.workers import threads

PROTOCOL = 5  # the pickle protocol that writes raw bytes unescaped
SMALL = 2**14  # bytes


def packed(value: Any) -> bytes:
    """Any value as bytes; an object that occurs twice in it (a round's broadcast, its plan) is written once."""
    return bytes(dumps(value, reducers={Tensor: _reduced}, protocol=PROTOCOL))


def unpacked(payload: Any) -> Any:
    """The value of ``packed``; only for what this program's own processes wrote."""
    return loads(payload)


def _reduced(tensor: Tensor) -> Any:
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.requires_grad
    if not plain or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return tensor.__reduce_ex__(PROTOCOL)  # anything unusual is left to torch
    data = tensor.reshape(-1).view(torch.uint8).numpy()
    # an array is written without a copy, but costs more to describe than a few bytes to copy
    return _tensor, (bytearray(data) if data.size < SMALL else data, tensor.dtype, tuple(tensor.shape))


def _tensor(data: np.ndarray | bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not len(data):
        return torch.empty(shape, dtype=dtype)
    # Clone into memory from torch's allocator: kernels may round differently on unaligned memory.
    return torch.frombuffer(data, dtype=dtype).clone().reshape(shape)


def call(fn: Callable[[Any], Any], items: Sequence[Any], count: int) -> bytes:
    """The message to a worker: the function, some items in order, and the number of torch threads for each."""
    return packed((fn, items, count))


def _portable(error: Exception) -> Exception:
    """The error itself if it can be pickled, else a RuntimeError with its text."""
    try:
        unpacked(packed(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def answer(payload: Any) -> bytes:
    """In a worker: (results up to the first error, (error, its traceback) or None, seconds), packed."""
    keep_memory()
    fn, items, count = unpacked(payload)
    results, error, began = [], None, time.perf_counter()
    with threads(count):
        for item in items:
            try:
                results.append(fn(item))
            except Exception as caught:
                error = _portable(caught), traceback.format_exc()
                break
    return packed((results, error, time.perf_counter() - began))
