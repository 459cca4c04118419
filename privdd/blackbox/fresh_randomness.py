"""Seeds, keys and generators that a mechanism asks for as an argument: fresh ones in every call, as
whoever deploys it has them."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

NAMES = ("seed", "key", "rng", "generator", "random_state")
LARGEST_SEED = 2**32  # what every library takes


def needed_parameters(f: Any) -> list[inspect.Parameter]:
    """Those without a default."""
    try:
        return [p for p in inspect.signature(f).parameters.values() if p.default is p.empty]
    except (TypeError, ValueError):
        return []


def is_randomness(name: str) -> bool:
    """Whether an argument of this name holds a source of randomness: ``seed``, ``noise_seed``,
    ``prng_key``."""
    word = name.lower().strip("_")
    return any(word == source or word.endswith(f"_{source}") for source in NAMES)


def with_fresh_randomness(f: Callable[..., Any]) -> Callable[..., Any]:
    """``f`` itself, or with every such argument that has no default filled."""
    sources = [p for p in needed_parameters(f) if is_randomness(p.name)]
    return _Filled(f, sources) if sources else f


class _Filled:
    """The first form of randomness that a call accepts is kept: an integer, or a generator of
    numpy, jax or torch."""

    def __init__(self, f: Callable[..., Any], sources: list[inspect.Parameter]) -> None:
        functools.update_wrapper(self, f, updated=())
        self.f = f
        self.names = [p.name for p in sources if p.kind is not p.POSITIONAL_ONLY]
        self.draw: Callable[[], Any] | None = None
        entropy = int.from_bytes(os.urandom(16), "little")
        self.source = np.random.default_rng(entropy)  # replays hold it still
        parameters = inspect.signature(f).parameters.values()
        self.__signature__ = inspect.Signature([p for p in parameters if p.name not in self.names])

    def __call__(self, *data: Any) -> Any:
        if self.draw is not None:
            return self._call_with(self.draw, data)
        refused: Exception | None = None
        for draw in self._forms():
            try:
                released = self._call_with(draw, data)
            except Exception as error:  # this mechanism refuses the form, or the data
                refused = refused or error
                continue
            self.draw = draw
            return released
        raise refused or TypeError("no form of randomness is known")

    def _call_with(self, draw: Callable[[], Any], data: tuple[Any, ...]) -> Any:
        return self.f(*data, **{name: draw() for name in self.names})

    def _forms(self) -> Iterator[Callable[[], Any]]:
        generators = [self._numpy_generator]
        if "torch" in sys.modules:
            generators.append(self._torch_generator)
        if "jax" in sys.modules:
            generators.insert(0, self._jax_key)
        integers = all(name.lower().endswith(("seed", "random_state")) for name in self.names)
        yield from [self._integer, *generators] if integers else [*generators, self._integer]

    def _integer(self) -> int:
        return int(self.source.integers(LARGEST_SEED))

    def _numpy_generator(self) -> np.random.Generator:
        return np.random.default_rng(self._integer())

    def _jax_key(self) -> Any:
        return sys.modules["jax"].random.PRNGKey(self._integer())

    def _torch_generator(self) -> Any:
        return sys.modules["torch"].Generator().manual_seed(self._integer())
