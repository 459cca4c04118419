"""A GPU that is not there: torch's modes hold tensors on the CPU and refuse what a GPU would
refuse.

Tensors "on the device" are ordinary ones whose storage is marked; ``.to("cuda")``, factories with
``device=`` and every result computed from a marked tensor mark theirs. As on a GPU, an operation
that mixes a marked tensor with an unmarked one of at least one dimension raises, so does NumPy of a
marked tensor, and a CPU generator that fills one. What moves between the two, and what makes the
host wait for the device, is noted with the line of the code that asked for it.

Not modelled: streams, rounding, memory. What torch itself creates in a backward pass or a recorded
graph fits either side."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).resolve().parents[1]
CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
aten = torch.ops.aten

# Packets of operations for which the host waits: their result is read, or its size depends on
# values.
WAITING = {
    aten._local_scalar_dense,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
    aten.unique_consecutive,
    aten.unique_dim,
    aten.bincount,
    aten.equal,
    aten.is_nonzero,
    aten.item,
    aten._linalg_check_errors,
}
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
ACCESSORS = {Tensor.device.__get__: None, Tensor.is_cuda.__get__: None}  # type: ignore[attr-defined]
TO_HOST = {Tensor.numpy, Tensor.__array__, Tensor.tolist}


class WrongDevice(RuntimeError):
    """What torch says of a tensor on the wrong device."""


@dataclass
class Traffic:
    """Where tensors moved and where the host waited: line of code -> how often."""

    sent: Counter[str] = field(default_factory=Counter)  # to the device
    # from the device: the host waits as well
    fetched: Counter[str] = field(default_factory=Counter)
    waited: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> Counter[str]:
        return self.sent + self.fetched + self.waited


@dataclass
class Marks:
    """Which storages are on the device; ``either``: those that torch made inside a backward
    pass."""

    there: dict[int, StorageWeakRef] = field(default_factory=dict)
    either: dict[int, StorageWeakRef] = field(default_factory=dict)
    inside: bool = False  # inside a call whose arguments are on the device
    traffic: Traffic = field(default_factory=Traffic)

    def on(self, tensor: Tensor) -> bool:
        return self._key(tensor) in self.there

    def neutral(self, tensor: Tensor) -> bool:
        return self._key(tensor) in self.either

    def mark(self, value: Any, book: dict[int, StorageWeakRef] | None = None) -> None:
        for tensor in _tensors(value):
            if (storage := _storage(tensor)) is not None:
                kept = self.there if book is None else book
                # the reference keeps the address from being used again
                kept[storage._cdata] = StorageWeakRef(storage)

    def unmark(self, value: Any) -> None:
        for tensor in _tensors(value):
            self.there.pop(self._key(tensor), None)

    @staticmethod
    def _key(tensor: Tensor) -> int:
        storage = _storage(tensor)
        return 0 if storage is None else storage._cdata


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return None  # e.g. a fake tensor
    with torch._C.DisableTorchFunction():
        return None if tensor.is_meta else tensor.untyped_storage()


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _place() -> str:
    """The innermost line of ours that led here."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if (
            file.startswith(str(ROOT)) and "site-packages" not in file and file != __file__
        ):  # an environment may lie in the tree
            return f"{Path(file).relative_to(ROOT)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"


class _Calls(TorchFunctionMode):
    """What is asked of torch in Python: devices as arguments and as answers."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self.marks = marks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        marks = self.marks
        if func in ACCESSORS:
            if not marks.on(args[0]):
                return func(*args)
            return CUDA if func == Tensor.device.__get__ else True  # type: ignore[attr-defined]
        if func in (Tensor.to, Tensor.cpu, Tensor.cuda):
            return self._moved(func, args, kwargs)
        there = any(marks.on(t) for t in _tensors([args, kwargs]))
        if there and func in TO_HOST:
            if func is not Tensor.tolist and not kwargs.pop("force", False):
                raise WrongDevice(f"can't convert cuda:0 device type tensor to numpy ({_place()})")
            marks.traffic.fetched[_place()] += 1
            return func(args[0].detach(), *args[1:], **kwargs)
        if there and func in (Tensor.__getitem__, Tensor.__setitem__) and marks.on(args[0]):
            args = (args[0], self._sent(args[1]), *args[2:])
        # of a recorded graph, in which the device is the real one
        replayed = isinstance(func, torch._ops.OpOverload)
        asked = None if replayed else kwargs.get("device")
        if _is_cuda(asked):
            kwargs["device"] = "cpu"
            if kwargs.get("generator") is not None:
                raise WrongDevice(
                    f"Expected a 'cuda' device type for generator but found 'cpu' ({_place()})"
                )
        before = marks.inside
        marks.inside = there or _is_cuda(asked)
        try:
            found = func(*args, **kwargs)
        finally:
            marks.inside = before
        if _is_cuda(asked):
            if func in (torch.tensor, torch.as_tensor) and not there:
                marks.traffic.sent[_place()] += 1
            marks.mark(found)
        elif asked is not None and torch.device(asked).type == "cpu" and there:
            marks.unmark(found)
        elif func is Tensor.__deepcopy__ and there:
            marks.mark(found)
        elif replayed and not _tensors([args, kwargs]):
            marks.mark(found, marks.either)
        return found

    def _sent(self, index: Any) -> Any:
        """An index on the CPU travels with the call."""
        if isinstance(index, tuple):
            return tuple(self._sent(one) for one in index)
        if not isinstance(index, Tensor) or not index.ndim or self.marks.on(index):
            return index
        self.marks.traffic.sent[_place()] += 1
        found = index.clone()
        self.marks.mark(found)
        return found

    def _moved(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        tensor, *rest = args
        here = self.marks.on(tensor)
        target = None
        more = {}
        if func is Tensor.to:
            other = rest[0] if rest and isinstance(rest[0], Tensor) else kwargs.get("other")
            if other is not None:
                target = CUDA if self.marks.on(other) else CPU
                more = {"dtype": other.dtype}
            else:
                copy = kwargs.pop("copy", False)
                target, dtype, _, order = torch._C._nn._parse_to(*rest, **kwargs)
                more = {"dtype": dtype or tensor.dtype, "copy": copy}
                more |= {} if order is None else {"memory_format": order}
        else:
            target = CPU if func is Tensor.cpu else CUDA
        if tensor.is_meta or (target is not None and target.type == "meta"):
            return func(*args, **kwargs)
        there = here if target is None else target.type == "cuda"
        if there == here:
            return tensor.to(**more) if more else tensor
        book = self.marks.traffic.sent if there else self.marks.traffic.fetched
        book[_place()] += 1
        found = tensor.to(**{"dtype": tensor.dtype, **more, "copy": True})
        (self.marks.mark if there else self.marks.unmark)(found)
        return found


class _Kernels(TorchDispatchMode):
    """What torch computes: whether all tensors are on one side."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self.marks = marks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        marks = self.marks
        given = [t for t in _tensors([args, kwargs]) if _storage(t) is not None]
        there = [t for t in given if marks.on(t)]
        packet = func.overloadpacket
        if not there:
            found = func(*args, **kwargs)
            if not given:
                self._born(found)
            elif all(marks.neutral(t) or not t.ndim for t in given) and any(
                marks.neutral(t) for t in given
            ):
                marks.mark(found, marks.either)
            return found
        if packet is aten.copy_:
            return self._copied(func, args, kwargs)
        self._check(func, packet, args, given)
        if kwargs.get("generator") is not None:
            raise WrongDevice(
                f"Expected a 'cuda' device type for generator but found 'cpu' ({func}, {_place()})"
            )
        if packet in WAITING or (
            packet is aten.repeat_interleave and kwargs.get("output_size") is None
        ):
            marks.traffic.waited[_place()] += 1
        found = func(*args, **kwargs)
        marks.mark(found)
        return found

    def _born(self, found: Any) -> None:
        """A tensor made of nothing: on the device where the call that made it works there."""
        if self.marks.inside:
            self.marks.mark(found)
        elif torch._C._current_graph_task_id() != -1:
            self.marks.mark(found, self.marks.either)

    def _copied(self, func: Any, args: Any, kwargs: Any) -> Any:
        onto = args[0]
        source = args[1]
        if (
            self.marks.on(onto) != self.marks.on(source)
            and not self.marks.neutral(source)
            and not self.marks.neutral(onto)
        ):
            book = self.marks.traffic.sent if self.marks.on(onto) else self.marks.traffic.fetched
            book[_place()] += 1
        return func(*args, **kwargs)

    def _check(self, func: Any, packet: Any, args: Any, given: list[Tensor]) -> None:
        marks = self.marks
        indices = []
        if (
            packet in INDEXING
        ):  # an index may be on the CPU, and then travels; a mask is searched for what it holds
            indices = [i for i in args[1] if i is not None]
            if not marks.on(args[0]) and not marks.neutral(args[0]):
                raise WrongDevice(
                    f"indices should be on the CPU, as the indexed tensor is ({func}, {_place()})"
                )
            filled = packet is not aten.index and len(args) > 2 and args[2].numel() == 1
            if any(i.dtype in (torch.bool, torch.uint8) for i in indices) and not (
                filled and len(indices) == 1
            ):
                marks.traffic.waited[_place()] += 1
            marks.traffic.sent[_place()] += sum(not marks.on(i) for i in indices)
            marks.traffic.sent += Counter()  # drops zeros
        away = [
            t
            for t in given
            if t.ndim
            and not marks.on(t)
            and not marks.neutral(t)
            and not any(t is i for i in indices)
        ]
        written = (
            func._schema.is_mutable
            and isinstance(args[0], Tensor)
            and not marks.on(args[0])
            and not marks.neutral(args[0])
        )
        if away or (written and args[0] is not None):
            raise WrongDevice(
                "Expected all tensors to be on the same device, but found at least two "
                f"devices, cuda:0 and cpu! ({func}, {_place()})"
            )


@contextmanager
def fake_gpu() -> Iterator[Marks]:
    """torch with a GPU that is this CPU; yields what is on it, and the traffic."""
    marks = Marks()
    with ExitStack() as held:
        held.enter_context(mock.patch.object(torch.cuda, "is_available", lambda: True))
        held.enter_context(mock.patch.object(torch.cuda, "device_count", lambda: 1))
        # no graphs here
        held.enter_context(
            mock.patch(
                "attacks.inversion.gradient_matching.record_cuda_graph",
                lambda compute, like: compute,
            )
        )
        held.enter_context(mock.patch.object(torch.cuda, "synchronize", lambda *_: None))
        held.enter_context(mock.patch.object(torch.cuda, "mem_get_info", lambda *_: (2**33, 2**34)))
        held.enter_context(mock.patch.object(torch.cuda, "max_memory_allocated", lambda *_: 2**30))
        held.enter_context(
            mock.patch.object(torch.cuda, "reset_peak_memory_stats", lambda *_: None)
        )
        held.enter_context(
            mock.patch.object(torch.cuda, "get_device_name", lambda *_: "a fake GPU")
        )
        held.enter_context(_Kernels(marks))
        held.enter_context(_Calls(marks))
        yield marks


def repeated(run: Callable[[int], Any], few: int, many: int) -> dict[str, tuple[int, int]]:
    """Lines whose transfers and waits are more with ``many`` steps of a loop than with ``few``:
    line -> (before, after).

    A run that sends nothing to the device fails: what stays on the CPU moves nothing either.
    """
    seen = []
    for steps in (few, many):
        with fake_gpu() as gpu:
            run(steps)
        assert gpu.traffic.sent, "nothing was on the device"
        seen.append(gpu.traffic.total)
    return {
        place: (seen[0][place], count) for place, count in seen[1].items() if count > seen[0][place]
    }
