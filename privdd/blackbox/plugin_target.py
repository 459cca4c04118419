"""Plugin classes that a check can make: attacks of others. Imports torch, so the blackbox modules import it lazily."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attacks.types import Attack
from privdd.core.validation import BadConfig


def make_plugin(what: str, target: Any, args: Mapping[str, Any]) -> Any:
    """An instance of the class. Raises BadConfig, one line, where it cannot be made or is none of its role."""
    if not isinstance(target, type):
        raise BadConfig(f"{what}={target!r}: a class is needed")
    try:
        made = target(**args)
    except Exception as error:  # a stranger's constructor
        raise BadConfig(f"{target.__name__}: {type(error).__name__}: {error}") from error
    if what == "attack" and not isinstance(made, Attack):
        raise BadConfig(f"{target.__name__} is no Attack: it must inherit from privdd.api.Attack")
    return made
