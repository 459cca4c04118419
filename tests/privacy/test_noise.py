"""Equal settings have one description, and any that differ another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from privdd.privacy.mechanisms import ClientLevel, ClippedSum
from privdd.privacy.noise import settings_hash


@dataclass(frozen=True)
class Mine:
    scale: float
    table: dict[str, Any] = field(default_factory=dict)


class Bare:
    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.function = lambda: scale


def test_equal_settings_have_one_description_and_others_another() -> None:
    assert settings_hash({"a": ClippedSum(1.0, 2.0)}) == settings_hash({"a": ClippedSum(1, 2)})
    assert settings_hash(Bare(1.0)) == settings_hash(
        Bare(1.0)
    )  # in every process: no address of an object is in it
    different = [
        {"a": ClippedSum(1.0, 2.0)},
        {"b": ClippedSum(1.0, 2.0)},
        {"a": ClippedSum(2.0, 2.0)},
        {"a": ClippedSum(1.0, 1.0)},
        {"a": ClippedSum(1.0, 2.0, normaliser=3)},
        {"a": ClippedSum(1.0, 2.0, 0.5)},
        {"a": ClientLevel(1.0, 2.0)},
        {},
        Mine(1.0),
        Mine(2.0),
        Mine(1.0, {"x": (1, 2)}),
        Mine(1.0, {"x": (1, 3)}),
        Bare(1.0),
        Bare(2.0),
        None,
        "None",
        True,
        1,
        torch.tensor([1.0]),
        torch.tensor([2.0]),
        float("inf"),
        2**60,
        2**60 + 1,
    ]
    assert len({settings_hash(value) for value in different}) == len(different)
