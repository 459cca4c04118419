"""Lines of a mechanism's own code that run in a call."""

from __future__ import annotations

import sys
import sysconfig
import trace
from collections.abc import Callable
from functools import cache
from pathlib import Path

from privdd.blackbox.mechanism import InputRefused

OTHERS = ("numpy", "scipy", "torch", "pandas", "sklearn", "jax", "privdd")

CodeLine = tuple[str, int]  # file, number


def lines_of(call: Callable[[], None]) -> set[CodeLine]:
    """All lines that run of a mechanism's own code, in modules that have a ``__file__``; none of
    libraries of numbers or of the standard library."""
    tracer = trace.Trace(count=True, trace=False)
    before = sys.gettrace()
    try:
        tracer.runfunc(call)
    except InputRefused:
        return set()
    finally:
        sys.settrace(before)
    return {place for place in tracer.results().counts if _is_own_code(place[0])}


@cache
def _is_own_code(file: str) -> bool:
    path = Path(file)
    if not path.is_file():
        return False
    packages = set()
    for index, part in enumerate(path.parts[:-1]):
        if part.endswith("-packages"):
            packages.add(path.parts[index + 1])
    privdd = Path(__file__).resolve().parents[1]
    is_standard = not packages and file.startswith(sysconfig.get_paths()["stdlib"])
    is_library = bool(packages & set(OTHERS)) or privdd in path.resolve().parents
    return not (is_standard or is_library)
