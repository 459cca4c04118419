"""A role's classes may name its hooks and their own settings; anything else is refused with a suggestion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from attacks.validation import check_hook_names

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
    with pytest.raises(TypeError, match=rf"^{cls.__name__}\.{name}: no hook of a method; ") as caught:
        check_hook_names(cls, "a method", HOOKS)
    assert hint in str(caught.value) and "\n" not in str(caught.value)
