"""Plain values against declared types, and the words in which a wrong one is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from attacks.types import Surface
from privdd.cli.type_check import fits, hint_at, holds_target, needed, parameters

CASES: list[tuple[Any, list[Any], list[Any]]] = [
    (int, [0, -3], [True, 1.0, "1", None]),
    (float, [0, 0.5], [False, "0.5", None]),
    (bool, [True], [1, 0, "true"]),
    (str, ["", "a"], [1, None]),
    (int | None, [1, None], ["a", True]),
    (Literal["a", 1], ["a", 1], ["b", True, 1.0]),
    (Path, ["a/b"], [1]),
    (Surface, ["update"], ["updates", 1]),
    (Sequence[float], [[], [1, 0.5]], [["a"], 1, "1", [True]]),
    (Mapping[str, int], [{}, {"a": 1}], [{"a": "b"}, [1]]),
    (Any, [1, None, {}], []),
]


@pytest.mark.parametrize(("kind", "value"), [(k, v) for k, good, _ in CASES for v in good])
def test_a_value_of_the_type_fits(kind: Any, value: Any) -> None:
    assert fits(value, kind)


@pytest.mark.parametrize(("kind", "value"), [(k, v) for k, _, wrong in CASES for v in wrong])
def test_another_value_does_not(kind: Any, value: Any) -> None:
    assert not fits(value, kind)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (int, "a whole number is needed"),
        (float | None, "a number is needed (or null)"),
        (Literal["loop", "auto"], "allowed are loop, auto"),
        (Sequence[int], "a list of whole numbers is needed"),
        (Mapping[str, int], "a mapping is needed"),
    ],
)
def test_what_is_needed_is_said_in_words(kind: Any, words: str) -> None:
    assert needed(kind) == words


class Own:
    def __init__(self, rate: float, *, steps: int = 1) -> None: ...

    @classmethod
    def small(cls, scale: float = 0.1, **settings: Any) -> Own:
        return cls(scale, **settings)


def test_parameters_of_a_class_and_of_its_constructor_function() -> None:
    assert parameters(Own) == ({"rate": float, "steps": int}, False)
    assert parameters(Own.small) == ({"rate": float, "steps": int, "scale": float}, False)
    assert parameters(lambda x, **more: x)[1]


def test_a_target_is_found_at_any_depth_and_a_near_miss_named() -> None:
    assert holds_target([{"a": {"_target_": "x"}}]) and not holds_target({"a": [1, "_target_"]})
    assert hint_at("stepps", ["rate", "steps"], "algo") == "did you mean algo.steps?"
    assert hint_at("zzz", ["rate"], "algo") == "known there: rate"
