"""How tasks and their results are written as bytes for a worker, and what is left out of them.

Left out are values that can be computed again: cached properties travel from no object, so a task
has the same size before and after its use. Objects that several tasks share can be written once,
apart from the tasks (``SharedParts``). A message to another machine does not hold the secret that
noise is drawn with (``privdd.runtime.noise_secret``)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from joblib.externals.loky.backend.reduction import get_loky_pickler, loads
from torch import Tensor, nn

from privdd.core.rng import Keys
from privdd.runtime.noise_secret import SecretLock, lock_secret, unlock_secret
from privdd.runtime.startup import keep_freed_memory

PROTOCOL = 5  # the pickle protocol that writes raw bytes unescaped
SMALL_TENSOR_BYTES = 2**14  # bytes
NOTHING_SHARED: Mapping[int, int] = {}
SHARED_LEAVES = (Tensor, nn.Module, np.ndarray)


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set torch's thread count, and restore it on the way out."""
    before = torch.get_num_threads()
    if count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count != before:
            torch.set_num_threads(before)


# Torch's own pickling sends every tensor through a separate file or through ``torch.save``, which
# costs a small client more time than its training. Here a tensor is sent as its raw bytes with type
# and shape.


def _reduce_tensor(tensor: Tensor) -> Any:
    plain = (
        tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.requires_grad
    )
    if not plain or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return tensor.__reduce_ex__(PROTOCOL)  # anything unusual is left to torch
    data = tensor.reshape(-1).view(torch.uint8).numpy()
    # an array is written without a copy, but costs more to describe than a few bytes to copy
    raw: bytearray | np.ndarray
    if data.size < SMALL_TENSOR_BYTES:
        raw = bytearray(data)
    else:
        raw = data
    return _restore_tensor, (raw, tensor.dtype, tuple(tensor.shape))


def _restore_tensor(
    data: np.ndarray | bytearray, dtype: torch.dtype, shape: tuple[int, ...]
) -> Tensor:
    if not len(data):
        return torch.empty(shape, dtype=dtype)
    # Clone into memory from torch's allocator: kernels may round differently on unaligned memory.
    return torch.frombuffer(data, dtype=dtype).clone().reshape(shape)


@functools.cache
def cached_property_names(kind: type) -> frozenset[str]:
    """The names of a class's cached properties, those of its bases included."""
    names = set[str]()
    for base in kind.__mro__:
        names |= {
            name
            for name, value in vars(base).items()
            if isinstance(value, functools.cached_property)
        }
    return frozenset(names)


def _reduce_without_caches(value: Any, names: frozenset[str]) -> Any:
    """The pickled form of an object without the values of its cached properties; NotImplemented: as
    it is."""
    if not names or names.isdisjoint(getattr(value, "__dict__", ())):
        return NotImplemented
    reduced = value.__reduce_ex__(PROTOCOL)
    if isinstance(reduced, str) or len(reduced) < 3 or not isinstance(reduced[2], dict):
        return NotImplemented
    function, arguments, state, *remaining = reduced
    uncached = {name: part for name, part in state.items() if name not in names}
    return (function, arguments, uncached, *remaining)


def _restore_keys(seed: int, path: tuple[str, ...], lock: SecretLock) -> Keys:
    return Keys(seed, path, unlock_secret(lock))


_parts_in_reading: list[Sequence[Any]] = []  # the shared parts of the message that is being decoded


def _restore_shared(number: int) -> Any:
    return _parts_in_reading[-1][number]


class _TaskPickler(get_loky_pickler()):  # type: ignore[misc]
    """Writes tensors as raw bytes and leaves cached properties out.

    locks_secrets: leaves out the noise secret too; numbers: id of a shared object -> what is
        written in its place."""

    def __init__(
        self, file: io.BytesIO, *, locks_secrets: bool, numbers: Mapping[int, int]
    ) -> None:
        super().__init__(file, reducers={Tensor: _reduce_tensor}, protocol=PROTOCOL)
        self.locks_secrets = locks_secrets
        self.numbers = numbers

    def reducer_override(self, value: Any) -> Any:
        if (number := self.numbers.get(id(value))) is not None:
            return _restore_shared, (number,)
        if self.locks_secrets and type(value) is Keys and value.secret:
            return _restore_keys, (value.seed, value.path, lock_secret(value.secret))
        reduced = _reduce_without_caches(value, cached_property_names(type(value)))  # type: ignore[arg-type]
        if reduced is NotImplemented:
            return super().reducer_override(value)
        return reduced


def encode_value(
    value: Any, *, locks_secrets: bool = False, numbers: Mapping[int, int] = NOTHING_SHARED
) -> bytes:
    """Any value as bytes; an object that occurs twice in it (a round's broadcast, its plan) is
    written once.

    locks_secrets: the noise secret is left out, and the reader has to hold it (``unlock_secret``).
        numbers: those of shared objects, which are left out too (``SharedParts``).
    """
    file = io.BytesIO()
    _TaskPickler(file, locks_secrets=locks_secrets, numbers=numbers).dump(value)
    return file.getvalue()


def decode_value(payload: Any) -> Any:
    """The value of ``encode_value``; only for what this program's own processes wrote."""
    return loads(payload)


@dataclasses.dataclass(frozen=True)
class SharedParts:
    """The objects that two or more tasks of a call hold: a round's plan and broadcast, a client's
    records, a view.

    They are written once, and every message has their numbers in their place. A worker reads them
    once and keeps them until those of another call come (``read_parts``), so tasks must not change
    what they are given; that holds for every engine, for tasks in one process share them as well.
    What a task computes in a cached property of such an object serves the worker's later tasks.
    """

    parts: tuple[Any, ...] = ()

    @functools.cached_property
    def numbers(self) -> dict[int, int]:
        """Id of an object -> its number. The objects are held here, so no id is used anew."""
        return {id(part): number for number, part in enumerate(self.parts)}

    def encode_parts(self, *, locks_secrets: bool) -> bytes:
        """The shared objects themselves. locks_secrets: as of ``encode_value``."""
        return encode_value(self.parts, locks_secrets=locks_secrets)

    def encode_call(
        self,
        fn: Callable[[Any], Any],
        items: Sequence[Any],
        threads: int,
        *,
        locks_secrets: bool,
    ) -> bytes:
        """The message to a worker: the function, some items in order, and the number of torch
        threads for each; numbers stand in the place of the shared objects."""
        return encode_value((fn, items, threads), locks_secrets=locks_secrets, numbers=self.numbers)


class _KeptParts:
    """In a worker: the shared parts of the latest call, decoded; the same in every message of that
    call."""

    digest = ""
    parts: tuple[Any, ...] = ()


def read_parts(content: Any, digest: str) -> tuple[Any, ...]:
    """In a worker: the shared objects of ``SharedParts.encode_parts``, decoded by the first message
    of a call. digest: ``digest_bytes`` of the content."""
    if _KeptParts.digest != digest:
        # first give back the memory of the call before
        _KeptParts.digest = ""
        _KeptParts.parts = ()
        _KeptParts.parts = decode_value(content)
        _KeptParts.digest = digest
    return _KeptParts.parts


def decode_call(payload: Any, parts: Sequence[Any]) -> Any:
    """(function, items, threads) of ``SharedParts.encode_call``. parts: the shared objects,
    decoded."""
    _parts_in_reading.append(parts)
    try:
        return decode_value(payload)
    finally:
        _parts_in_reading.pop()


def find_shared_parts(items: Sequence[Any]) -> SharedParts:
    """The dataclasses, tensors, arrays and networks that two or more of ``items`` hold, in fields,
    lists, tuples or mappings; of one inside another the outer one."""
    first_holder: dict[int, int] = {}  # id of an object -> the first item that holds it
    shared: dict[int, Any] = {}
    for number, item in enumerate(items):
        waiting = [item]
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                waiting.extend(value.values())
            elif isinstance(value, list | tuple):
                waiting.extend(value)
            elif (parts := _parts_of(value)) is not None:
                holder = first_holder.setdefault(id(value), number)
                if holder != number:
                    shared[id(value)] = value  # what it consists of goes with it
                elif id(value) not in shared:
                    waiting.extend(parts)
    return SharedParts(tuple(shared.values()))


def _parts_of(value: Any) -> list[Any] | None:
    """What an object that may be shared consists of; None for any other."""
    if isinstance(value, SHARED_LEAVES):
        return []
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [
            getattr(value, field.name)
            for field in dataclasses.fields(value)
            if hasattr(value, field.name)
        ]
    return None


def _picklable_error(error: Exception) -> Exception:
    """The error itself if it can be pickled, else a RuntimeError with its text."""
    try:
        decode_value(encode_value(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def run_call(
    fn: Callable[[Any], Any], items: Sequence[Any], threads: int
) -> tuple[Any, Any, float]:
    """In a worker: (results up to the first error, (error, its traceback) or None, seconds)."""
    keep_freed_memory()
    results = []
    error = None
    began = time.perf_counter()
    with torch_threads(threads):
        for item in items:
            try:
                results.append(fn(item))
            except Exception as caught:
                error = (_picklable_error(caught), traceback.format_exc())
                break
    return results, error, time.perf_counter() - began


def answer_call(payload: Any, shared: Any, digest: str) -> bytes:
    """In a worker of this machine: what ``run_call`` gives for a message, packed.

    Args:
        payload: ``SharedParts.encode_call``.
        shared: ``SharedParts.encode_parts``.
        digest: ``digest_bytes`` of ``shared``.
    """
    return encode_value(run_call(*decode_call(payload, read_parts(shared, digest))))


def digest_bytes(payload: Any) -> str:
    """Sixteen hexadecimal digits of a message's content."""
    return hashlib.blake2b(payload, digest_size=8).hexdigest()
