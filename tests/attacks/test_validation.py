"""Tests of ``attacks.validation``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from attacks.validation import (
    check_archive,
    check_below_one,
    check_counts,
    check_hook_names,
    check_non_negative,
    check_positive,
)

# What an npz file declares: too much, pickled or larger than its data is refused before it is
# unpacked.


def test_honest_arrays_pass_up_to_the_limit(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "a.npz", x=np.zeros(1000), y=np.arange(3, dtype=np.uint8), z=np.zeros((0, 3))
    )
    check_archive(tmp_path / "a.npz")
    check_archive(tmp_path / "a.npz", limit=8 * 1000 + 3 + 3 * 128)  # three headers
    with pytest.raises(ValueError, match="more than"):
        check_archive(tmp_path / "a.npz", limit=8 * 1000)


def test_pickles_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="pickled"):
        check_archive(tmp_path / "a.npz")


# A role's classes may name its hooks and their own settings; anything else is refused with a
# suggestion.


HOOKS = ("local", "aggregate", "claims", "remembers")


class Plain:
    helps: int = 3
    _own = 1

    def local(self) -> None: ...

    def _helper(self) -> None: ...


@dataclass(frozen=True)
class Settings:
    rounds: int = 2
    learning_rate: float = 0.1

    def aggregate(self) -> None: ...


class Misspelt:
    def claim(self) -> None: ...


class Foreign:
    def draw_a_figure(self) -> None: ...


class NearlyAHook:
    claim: int = 0


class Constant:
    localy: ClassVar[int] = 1


@pytest.mark.parametrize("cls", [Plain, Settings])
def test_hooks_settings_and_private_names_are_free(cls: type) -> None:
    check_hook_names(cls, "a method", HOOKS)


@pytest.mark.parametrize(
    ("cls", "name", "hint"),
    [
        (Misspelt, "claim", "did you mean claims?"),
        (NearlyAHook, "claim", "did you mean claims?"),
        (Constant, "localy", "did you mean local?"),
        (Foreign, "draw_a_figure", "known: aggregate, claims, local, remembers"),
    ],
)
def test_any_other_public_name_is_one_line(cls: type, name: str, hint: str) -> None:
    with pytest.raises(
        TypeError, match=rf"^{cls.__name__}\.{name}: no hook of a method; "
    ) as caught:
        check_hook_names(cls, "a method", HOOKS)
    assert hint in str(caught.value) and "\n" not in str(caught.value)


# Ranges of attacks' settings.


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "3"])
def test_a_count_below_the_least_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match="limit="):
        check_counts(SimpleNamespace(limit=value), "limit")


@pytest.mark.parametrize(
    ("check", "values"),
    [
        (check_positive, [0, -1.0]),
        (check_non_negative, [-1e-9, -1]),
        (check_below_one, [1, 1.0, -0.1]),
    ],
)
def test_a_number_out_of_range_is_refused_by_name(check: Any, values: list[float]) -> None:
    for value in [*values, math.inf, -math.inf, math.nan]:
        with pytest.raises(ValueError, match=f"^own\\.gamma={value}: a .*number .* is needed$"):
            check(SimpleNamespace(gamma=value), "gamma", under="own.")


def test_what_is_in_range_passes() -> None:
    check_counts(SimpleNamespace(limit=1, folds=np.int64(2)), "limit", "folds")
    check_counts(SimpleNamespace(folds=2), "folds", least=2)
    check_positive(SimpleNamespace(gamma=1e-9), "gamma")
    check_non_negative(SimpleNamespace(gamma=0, tv=2), "gamma", "tv")
    check_below_one(SimpleNamespace(momentum=0, other=0.999), "momentum", "other")
    with pytest.raises(ValueError, match="folds=1"):
        check_counts(SimpleNamespace(folds=1), "folds", least=2)
