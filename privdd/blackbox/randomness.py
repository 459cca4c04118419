"""Sources of randomness of this process, held still: a mechanism that draws from them gives two inputs the same noise."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np


class FrozenSources:
    """While it is entered, ``restart(seed)`` sets every source to a state that follows from the seed.

    Sources are the generators of numpy, torch and ``random`` that exist, wherever they are kept, those that a call makes
    without a seed, ``secrets`` and ``os.urandom``. Others, such as those of compiled libraries, go on as they like. States
    are put back at the end.
    """

    def __enter__(self) -> FrozenSources:
        self._numpy, self._legacy, self._plain, self._torch = _find_generators()
        self._saved = self._states()
        self._bits, self._asked = random.Random(0), False
        self._stack, self._system = ExitStack(), os.urandom
        for module in [*sys.modules.values()]:
            self._replace_entropy(module)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._put_states(self._saved)

    def restart(self, seed: int, *, watch: bool = True) -> None:
        """Every source as ``seed`` wants it; watch: whether ``drawn_from`` will be asked."""
        for at, one in enumerate(self._numpy):
            one.state = type(one)(np.random.SeedSequence([seed, at])).state
        for at, old in enumerate(self._legacy):
            old.seed(SPREAD * seed + at)
        for at, plain in enumerate(self._plain):
            plain.seed(SPREAD * seed + at)
        for at, other in enumerate(self._torch):
            other.manual_seed(SPREAD * seed + at)
        self._bits.seed(seed)
        self._asked = False
        self._restarted = self._states() if watch else []

    def drawn_from(self) -> bool:
        """Whether any source was asked for a number since the restart."""
        return self._asked or not _is_same_state(self._restarted, self._states())

    def _states(self) -> list[Any]:
        held = [*(one.state for one in self._numpy), *(one.get_state(legacy=False) for one in self._legacy)]
        return [
            *held,
            *(one.getstate() for one in self._plain),
            *(one.get_state().numpy().copy() for one in self._torch),
        ]

    def _put_states(self, states: list[Any]) -> None:
        rest = iter(states)
        for one in self._numpy:
            one.state = next(rest)
        for one in self._legacy:
            one.set_state(next(rest))
        for plain in self._plain:
            plain.setstate(next(rest))
        for other in self._torch:
            other.set_state(sys.modules["torch"].from_numpy(next(rest)))

    def _replace_entropy(self, module: ModuleType | None) -> None:
        """The system's entropy, under whatever name a module holds it."""
        held = getattr(module, "__dict__", {})
        for name in [name for name, value in held.items() if value is self._system]:
            self._stack.enter_context(mock.patch.object(module, name, self._random_bytes))
        if held.get("__name__") == "numpy.random.bit_generator" and "randbits" in held:
            self._stack.enter_context(mock.patch.object(module, "randbits", self._random_bits))

    def _random_bytes(self, count: int) -> bytes:
        self._asked = True
        return self._bits.randbytes(count)

    def _random_bits(self, count: int) -> int:
        self._asked = True
        return self._bits.getrandbits(count)


SPREAD = 1024  # seeds of different sources
HEAP = 1 << 9  # flag of types that Python code made: their instances hold what they like


def _find_generators() -> tuple[list[Any], list[Any], list[random.Random], list[Any]]:
    """numpy's bit generators and old generators, those of ``random``, and torch's: the garbage collector knows who holds these."""
    numpy, legacy, plain, others = [], [], [], {}
    torch = sys.modules.get("torch")
    kind = getattr(torch, "Generator", None)
    if torch is not None:
        others[id(torch.default_generator)] = torch.default_generator
    if frozen := gc.get_freeze_count() > 0:  # what is frozen is not listed
        gc.unfreeze()
    listed = gc.get_objects()
    if frozen:
        gc.freeze()
    for one in listed:
        sort = type(one)
        if issubclass(sort, np.random.BitGenerator):
            numpy.append(one)
        elif issubclass(sort, np.random.RandomState) and isinstance(one._bit_generator, np.random.MT19937):
            legacy.append(one)
        elif issubclass(sort, random.Random):
            plain += [] if issubclass(sort, random.SystemRandom) else [one]
        elif kind is not None and (sort is dict or sort.__name__ == "cell" or sort.__flags__ & HEAP):
            others |= {id(held): held for held in gc.get_referents(one) if type(held) is kind}
    seeded = {id(one._bit_generator) for one in legacy}
    return [one for one in numpy if id(one) not in seeded], legacy, plain, [*others.values()]


def _is_same_state(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return all(_is_same_state(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return all(map(_is_same_state, one, other))
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)
