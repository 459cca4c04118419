"""Laws of noise that a release may have: one file a law, with a ``LAW``.

A file that is put beside these is found by itself: its events may then be released, written to a
ledger and accounted."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import dp_accounting as dpa

from privdd.privacy.noise_laws.law import NoiseLaw


def _find_laws() -> Iterator[NoiseLaw]:
    for module in pkgutil.iter_modules(__path__):
        law = getattr(importlib.import_module(f"{__name__}.{module.name}"), "LAW", None)
        if law is not None:
            yield law


NOISE_LAWS: dict[str, NoiseLaw] = {law.name: law for law in _find_laws()}


def noise_law(event: dpa.DpEvent) -> NoiseLaw | None:
    """The law of an event that is one release with noise; None for any other event."""
    return next((law for law in NOISE_LAWS.values() if isinstance(event, law.event)), None)


__all__ = ["NOISE_LAWS", "NoiseLaw", "noise_law"]
