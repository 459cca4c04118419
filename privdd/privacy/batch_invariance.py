"""Rows that are computed together, each a function of its own record alone, to the last bit.

The proof in ``lattice`` needs a record's contribution to be a function of that record. Libraries
choose their kernels by the size of a batch (in batches of one to three records, for instance,
others than in larger ones), so that the last bits of one record's contribution could tell whether
another record is there; and weights under which sums cancel, which a server may send, lift a
difference in the last bit to any size. Therefore rows go through a function in passes of at least
``LEAST`` rows, and a shorter pass is filled up with rows of zeros, whose results are dropped.

What remains is a premise on the machine: in passes of these sizes a row has the same bits at every
place. Before a function is first used it is tested, at this number of threads, on random rows in
passes of several sizes, and again before a pass is larger than those. Where it fails, fewer sizes
are used (``SIZES``: kernels may differ up to 15 rows, or treat the last of an odd number of rows in
another way), or rows are computed one by one. A test is no proof: sizes between those that are
tested are taken to behave as those do.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from types import FunctionType, MethodType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from privdd.core.types import State, Tensors

LEAST = 8  # rows of the smallest pass
MOST = 64  # rows of the largest pass of the first test
# of passes: the least, and steps between them
SIZES = ((LEAST, 1), (16, 1), (LEAST, 8), (16, 16), (MOST, MOST))
TRIED = (0, 1, 3, 6, 15, 28, 55)  # which of the sizes are tested
HELD = 2**26  # numbers that a pass of that test holds at most

# (parameters, *rows (n, ...)) -> name -> (n, ...), each row from its own alone
RowFunction = Callable[..., Tensors]
_TESTED: dict[Hashable, PassSizes] = {}
_LAYERS: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


class PassSizes(NamedTuple):
    """Numbers of rows at which a row has the same bits: least, least + step, ..., most; final: no
    larger pass is the same."""

    least: int
    step: int
    most: int
    final: bool = False

    def holding(self, count: int) -> int:
        """The smallest size that has room for ``count`` rows, whatever ``most`` is."""
        return self.least + -(-max(0, count - self.least) // self.step) * self.step


def compute_rows(function: RowFunction, params: Tensors, *rows: Tensor, at_most: int = 0) -> State:
    """``function(params, *rows)``, where the bits of a row do not depend on which other rows there
    are; n = 0 allowed.

    at_most: rows of a pass (0: all of them).
    """
    size = max(1, min(len(rows[0]), at_most or len(rows[0])))
    sizes = _pass_sizes(function, params, rows, size)
    passes = zip(*(tensor.split(min(sizes.holding(size), sizes.most)) for tensor in rows))
    parts = []
    for part in passes:
        outputs = function(params, *(filled(tensor, sizes.holding(len(tensor))) for tensor in part))
        parts.append({name: value[: len(part[0])] for name, value in outputs.items()})
    if len(parts) == 1:
        return parts[0]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def filled(rows: Tensor, count: int) -> Tensor:
    """``rows`` (n, ...), and as many rows of zeros as are missing to ``count``."""
    missing = count - len(rows)
    if missing > 0:
        return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
    return rows


def _pass_sizes(
    function: RowFunction, params: Tensors, rows: Sequence[Tensor], size: int
) -> PassSizes:
    if (
        torch._C._functorch.peek_interpreter_stack() is not None
    ):  # a simulation of many runs: nothing is released
        return PassSizes(LEAST, 1, max(size, LEAST))
    shapes = [(name, value.shape, value.dtype) for name, value in params.items()]
    inputs = [(tensor.shape[1:], tensor.dtype, tensor.device) for tensor in rows]
    key = (_kind(function), tuple(shapes), tuple(inputs), torch.get_num_threads())
    if key not in _TESTED:
        _TESTED[key] = _first_sizes(_trial(function, params, rows))
    if size > _TESTED[key].most and not _TESTED[key].final:
        _TESTED[key] = _larger_sizes(_trial(function, params, rows), _TESTED[key], size)
    return _TESTED[key]


def _trial(
    function: RowFunction, params: Tensors, rows: Sequence[Tensor]
) -> Callable[[Tensor], State]:
    """Numbers of rows (n,) -> what the function makes of these random rows, at random
    parameters."""
    tensors = {
        name: _random(value, value.shape[1:], name, value.shape) for name, value in params.items()
    }

    def of(at: Tensor) -> State:
        rows_of_trial = [
            torch.stack([_random(t, (), i, t.shape[1:]) for i in at.tolist()]) for t in rows
        ]
        return dict(function(tensors, *rows_of_trial))

    return of


def _random(like: Tensor, inputs: Sequence[int], name: str | int, shape: Sequence[int]) -> Tensor:
    """Random numbers of ``shape``, as large as weights with so many ``inputs`` usually are; zeros
    for whole numbers (they are labels)."""
    if not like.is_floating_point():
        return like.new_zeros(tuple(shape))
    generator = torch.Generator().manual_seed(name if isinstance(name, int) else sum(name.encode()))
    return (torch.randn(tuple(shape), generator=generator) / math.sqrt(math.prod(inputs))).to(like)


def _first_sizes(trial: Callable[[Tensor], State]) -> PassSizes:
    numbers = sum(value.numel() for value in trial(torch.arange(LEAST)).values()) // LEAST
    most = min(MOST, max(2 * LEAST, HELD // max(1, numbers)) // 16 * 16)
    outputs = trial(torch.arange(most))
    for least, step in SIZES:
        sizes = range(least, most + 1, step)
        if sizes and all(_same(trial(index), outputs, index) for index in _places(sizes, most)):
            return PassSizes(least, step, most, final=len(sizes) == 1)
    warnings.warn(
        "this machine computes a record with other bits in other batches: records go one by one",
        stacklevel=2,
    )
    return PassSizes(1, 1, 1, final=True)


def _places(sizes: Sequence[int], most: int) -> Iterator[Tensor]:
    """Rows of passes of some of the sizes: the first, the last and the middle ones of ``most``,
    then all in another order."""
    for number, index in enumerate(index for index in TRIED if index < len(sizes)):
        first = (most - sizes[index]) * (number % 3) // 2
        yield torch.arange(first, first + sizes[index])
    yield torch.arange(most).roll(1)


def _larger_sizes(trial: Callable[[Tensor], State], known: PassSizes, size: int) -> PassSizes:
    """``known``, or for passes of ``size`` rows and a quarter more."""
    most = known.holding(size + size // 4)
    now = known.holding(size)
    outputs = trial(torch.arange(most))
    parts = [*torch.arange(most).split(known.most), torch.arange(most - now, most)]
    is_invariant = all(
        _same(trial(at), outputs, at) for at in parts if len(at) == known.holding(len(at))
    )
    if is_invariant:
        return known._replace(most=most)
    return known._replace(final=True)


def _same(part: State, whole: State, at: Tensor) -> bool:
    pairs = [(part[name], value[at.to(value.device)]) for name, value in whole.items()]
    return all(bool(((a == b) | (a.isnan() & b.isnan())).all()) for a, b in pairs)


def _kind(part: Any) -> Hashable:
    """The key of the kernels that a function runs: its code, layers and settings, not its numbers,
    which change by step."""
    if isinstance(part, nn.Module):
        if part not in _LAYERS:
            _LAYERS[part] = repr(part)
        return _LAYERS[part]
    if isinstance(part, MethodType):
        return _kind(part.__func__), _kind(part.__self__)
    if isinstance(part, FunctionType):
        inner = [cell.cell_contents for cell in part.__closure__ or ()]
        return part.__code__, *(
            _kind(held) for held in inner if callable(held) or isinstance(held, str)
        )
    if is_dataclass(part) and callable(part):
        return type(part), *(_kind(getattr(part, field.name)) for field in fields(part))
    if isinstance(part, list | tuple):
        return tuple(item for item in part if isinstance(item, str | int))
    if isinstance(part, str | int):
        return part
    return type(part).__qualname__
