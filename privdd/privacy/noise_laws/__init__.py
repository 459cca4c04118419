"""Laws of noise that a release may have: one file a law, with a function ``law``.

A file that is put beside these is found by itself: its events may then be released, written to a
ledger and composed."""

from __future__ import annotations

import dp_accounting as dpa

from privdd.privacy.noise_laws.law import NoiseLaw, find_laws

NOISE_LAWS: dict[str, NoiseLaw] = {law.name: law for law in find_laws(__name__, __path__)}
__all__ = ["NOISE_LAWS", "NoiseLaw", "noise_law"]


def noise_law(event: dpa.DpEvent) -> NoiseLaw | None:
    """The law of an event that is one release with noise; None for any other event."""
    return next((law for law in NOISE_LAWS.values() if isinstance(event, law.event)), None)
