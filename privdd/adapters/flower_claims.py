"""What components of Flower say of their own privacy, read off their settings. Nothing of it is checked here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from privdd.core.checks import is_number

MOST = 50  # mods that are looked through
STRATEGIES = {
    "DifferentialPrivacyServerSideFixedClipping", "DifferentialPrivacyClientSideFixedClipping",
    "DifferentialPrivacyServerSideAdaptiveClipping", "DifferentialPrivacyClientSideAdaptiveClipping",
}  # fmt: skip
SETTINGS = ("clipping_norm", "sensitivity", "epsilon", "delta", "noise_multiplier", "num_sampled_clients")


def mods_below(call_next: Callable[..., Any]) -> Iterator[Any]:
    """The mods that a message still goes through: Flower keeps them in the closures that it chains them by."""
    for _ in range(MOST):
        inside = (
            dict(zip(call_next.__code__.co_freevars, call_next.__closure__ or ())) if _is_function(call_next) else {}
        )
        if not {"_ffn", "_mod"} <= set(inside):
            return
        yield inside["_mod"].cell_contents
        call_next = inside["_ffn"].cell_contents


def _is_function(value: Any) -> bool:
    return type(value) is type(_is_function)


def of_mods(call_next: Callable[..., Any]) -> tuple[dict[str, Any], ...]:
    """The claims of the mods below: those of ``LocalDpMod``, about the arrays of one reply to ``train``.

    Its formula is the classical one, noise = sensitivity sqrt(2 ln(1.25 / delta)) / epsilon.
    """
    return tuple(
        _claim(mod, "reply", math.sqrt(2 * math.log(1.25 / mod.delta)) / mod.epsilon)
        for mod in mods_below(call_next)
        if _flower(mod) == "LocalDpMod" and 0 < mod.epsilon < math.inf and 0 < mod.delta < 1
    )


def of_strategy(strategy: Any) -> tuple[dict[str, Any], ...]:
    """The claims of a strategy, about each aggregate that it returns."""
    if _flower(strategy) not in STRATEGIES or not strategy.noise_multiplier > 0:
        return ()
    return (_claim(strategy, "final", float(strategy.noise_multiplier)),)


def _flower(part: Any) -> str:
    """The name of a class of Flower's own; "" for anything else, a subclass included: it may do something else."""
    kind = type(part)
    return kind.__name__ if kind.__module__.split(".")[0] == "flwr" else ""


def _claim(part: Any, covers: str, multiplier: float) -> dict[str, Any]:
    settings = {name: value for name, value in vars(part).items() if name in SETTINGS and is_number(value)}
    return {"component": _flower(part), "settings": settings, "covers": covers, "noise_multiplier": multiplier}
