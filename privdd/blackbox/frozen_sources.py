"""Every source of randomness of this process, set to states that follow from a seed, and put
back."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

SPREAD = 1024  # seeds of different sources
HEAP = 1 << 9  # flag of types that Python code made: their instances hold what they like


@dataclass
class Generators:
    """Generators that exist in this process.

    Attributes:
        bits: numpy's bit generators, but for those of ``legacy``.
        legacy: numpy's old generators.
        plain: generators of ``random``.
        torch: generators of torch.
    """

    bits: list[Any] = field(default_factory=list)
    legacy: list[Any] = field(default_factory=list)
    plain: list[random.Random] = field(default_factory=list)
    torch: list[Any] = field(default_factory=list)


class FrozenSources:
    """While it is entered, ``restart(seed)`` sets every source to a state that follows from the
    seed; afterwards the states are put back.

    Sources: every generator of numpy, torch and ``random``, those made without a seed, ``secrets``
    and ``os.urandom``. Others, such as those of compiled libraries, go on as they like.
    """

    def __enter__(self) -> FrozenSources:
        self._generators = find_generators()
        self._saved = self._states()
        self._bits = random.Random(0)
        self._asked = False
        self._stack = ExitStack()
        self._system = os.urandom
        for module in [*sys.modules.values()]:
            self._replace_entropy(module)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._put_states(self._saved)

    def restart(self, seed: int, *, watch: bool = True) -> None:
        """Set every source to the state of ``seed``.

        Args:
            seed: any non-negative integer.
            watch: whether ``drawn_from`` will be asked.
        """
        for index, bits in enumerate(self._generators.bits):
            bits.state = type(bits)(np.random.SeedSequence([seed, index])).state
        for index, legacy in enumerate(self._generators.legacy):
            legacy.seed(SPREAD * seed + index)
        for index, plain in enumerate(self._generators.plain):
            plain.seed(SPREAD * seed + index)
        for index, generator in enumerate(self._generators.torch):
            generator.manual_seed(SPREAD * seed + index)
        self._bits.seed(seed)
        self._asked = False
        self._restarted = self._states() if watch else []

    def drawn_from(self) -> bool:
        """Whether any source was asked for a number since the restart."""
        return self._asked or not is_same_state(self._restarted, self._states())

    def _states(self) -> list[Any]:
        states = [bits.state for bits in self._generators.bits]
        states += [legacy.get_state(legacy=False) for legacy in self._generators.legacy]
        states += [plain.getstate() for plain in self._generators.plain]
        states += [torch.get_state().numpy().copy() for torch in self._generators.torch]
        return states

    def _put_states(self, states: list[Any]) -> None:
        rest = iter(states)
        for bits in self._generators.bits:
            bits.state = next(rest)
        for legacy in self._generators.legacy:
            legacy.set_state(next(rest))
        for plain in self._generators.plain:
            plain.setstate(next(rest))
        for generator in self._generators.torch:
            generator.set_state(sys.modules["torch"].from_numpy(next(rest)))

    def _replace_entropy(self, module: ModuleType | None) -> None:
        """The system's entropy, under whatever name a module holds it."""
        members = getattr(module, "__dict__", {})
        names = [name for name, value in members.items() if value is self._system]
        for name in names:
            self._stack.enter_context(mock.patch.object(module, name, self._random_bytes))
        if members.get("__name__") == "numpy.random.bit_generator" and "randbits" in members:
            self._stack.enter_context(mock.patch.object(module, "randbits", self._random_bits))

    def _random_bytes(self, count: int) -> bytes:
        self._asked = True
        return self._bits.randbytes(count)

    def _random_bits(self, count: int) -> int:
        self._asked = True
        return self._bits.getrandbits(count)


def find_generators() -> Generators:
    """All generators: the garbage collector knows who holds them."""
    torch = sys.modules.get("torch")
    torch_generator = getattr(torch, "Generator", None)
    generators = Generators()
    of_torch: dict[int, Any] = {}
    if torch is not None:
        of_torch[id(torch.default_generator)] = torch.default_generator
    for item in _tracked_objects():
        kind = type(item)
        if issubclass(kind, np.random.BitGenerator):
            generators.bits.append(item)
        elif issubclass(kind, np.random.RandomState) and isinstance(
            item._bit_generator, np.random.MT19937
        ):
            generators.legacy.append(item)
        elif issubclass(kind, random.Random):
            if not issubclass(kind, random.SystemRandom):
                generators.plain.append(item)
        elif torch_generator is not None and _may_hold_generators(kind):
            for held in gc.get_referents(item):
                if type(held) is torch_generator:
                    of_torch[id(held)] = held
    of_legacy = {id(legacy._bit_generator) for legacy in generators.legacy}
    generators.bits = [bits for bits in generators.bits if id(bits) not in of_legacy]
    generators.torch = [*of_torch.values()]
    return generators


def _tracked_objects() -> list[Any]:
    """All that the garbage collector tracks; what is frozen is not listed unless it is thawed."""
    was_frozen = gc.get_freeze_count() > 0
    if was_frozen:
        gc.unfreeze()
    objects = gc.get_objects()
    if was_frozen:
        gc.freeze()
    return objects


def _may_hold_generators(kind: type) -> bool:
    """Whether objects of a type may refer to a generator of torch, which the collector does not
    list itself."""
    return kind is dict or kind.__name__ == "cell" or bool(kind.__flags__ & HEAP)


def is_same_state(state: Any, later: Any) -> bool:
    """Whether two states of sources are equal, number by number."""
    if isinstance(state, Mapping):
        return all(is_same_state(state[key], later[key]) for key in state)
    if isinstance(state, (list, tuple)):
        return all(map(is_same_state, state, later))
    if isinstance(state, np.ndarray):
        return bool(np.array_equal(state, later))
    return bool(state == later)
