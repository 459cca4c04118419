"""Which of the inputs that are tried does the mechanism take at all?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from privdd.checking.called import BlackBox, Refused
from privdd.checking.constant_parts import scaled
from privdd.checking.neighbours import Tried
from privdd.core.errors import BadConfig


def accepted(mechanism: BlackBox, tried: Tried) -> tuple[Tried, list[str]]:
    """Inputs that the mechanism takes, and a note on those that it refuses.

    They are tensors if it takes no arrays, with nearly zeros if it takes no zeros. Raises BadConfig where it takes none.
    """
    said = ""
    for torch in (False, True):
        mechanism.torch = torch
        for nothing in (0.0, 1e-9):
            now = replace(tried, nothing=nothing)
            good, refused, said_now = _taken(mechanism, now)
            said = said or said_now
            if good is not None:
                note = f"inputs of {refused} of the sizes that are tried were refused, the first with: {said_now}"
                return good, [note] if refused else []
    raise BadConfig(f"the mechanism refuses every input that was tried; the first error: {said}")


def _taken(mechanism: BlackBox, tried: Tried) -> tuple[Tried | None, int, str]:
    """What is left of ``tried``, how many sizes are refused, and the first error."""
    said, name = "", "tables" if mechanism.kind == "records" else "structures"
    kept: list[Any] = []
    for part in getattr(tried, name):
        one = _with(tried, name, (part,))
        plain, empty = scaled(mechanism.kind, one, 1.0), scaled(mechanism.kind, one, 0.0)
        if tried.nothing:
            empty = scaled(mechanism.kind, one, tried.nothing)
        try:
            mechanism.transcript([plain])
            mechanism.transcript([empty])
        except Refused as no:
            said = said or str(no)
            continue
        kept.append(part)
    refused = len(getattr(tried, name)) - len(kept)
    return _with(tried, name, tuple(kept)) if kept else None, refused, said


def _with(tried: Tried, name: str, parts: Any) -> Tried:
    return replace(tried, tables=parts) if name == "tables" else replace(tried, structures=parts)
