"""Generators that are held still while neighbours are replayed: those of the test, not of all that
pytest has loaded."""

from __future__ import annotations

import gc
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privdd.blackbox import frozen_sources


def _held_by(module: Any) -> list[Any]:
    """The dicts of a module and of its own classes, and the generators in them; and the global ones
    of numpy and ``random``."""
    own = [
        one
        for one in vars(module).values()
        if isinstance(one, type) and one.__module__ == module.__name__
    ]
    dicts = [
        vars(module),
        *(held for one in own for held in gc.get_referents(one) if type(held) is dict),
    ]
    values = [value for held in dicts for value in held.values()]
    bits = [one.bit_generator for one in values if isinstance(one, np.random.Generator)]
    others = [
        one
        for one in values
        if isinstance(one, np.random.BitGenerator | np.random.RandomState | random.Random)
    ]
    return [*dicts, *bits, *others, np.random.mtrand._rand, random._inst]  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def search_own_generators(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """To look through the 700,000 objects of all collected tests takes a second, in each check.
    They are frozen (tests/conftest), so that the others are what tests made."""
    held = _held_by(request.module)
    listed = lambda: [*gc.get_objects(), *held]  # noqa: E731
    monkeypatch.setattr(
        frozen_sources,
        "gc",
        SimpleNamespace(
            get_freeze_count=lambda: 0, get_objects=listed, get_referents=gc.get_referents
        ),
    )
