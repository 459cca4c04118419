"""Checks of what others bring: ranges of settings, names that a subclass may define, npz files from
strangers. Imports no torch.

A check of a range raises ValueError, one line, for the first field of ``settings`` that is out of
it; infinity and NaN always are. A hook that is not declared is never called, and an audit that
skips it would under-report the leak."""

from __future__ import annotations

import difflib
import math
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from math import inf
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

MAX_ARCHIVE_BYTES = 4 * 2**30  # bytes of all arrays together
# similarity (difflib's ratio) from which a setting's name is taken for a misspelt hook
MISSPELLING_SIMILARITY = 0.8


def check_archive(path: str | Path, limit: int = MAX_ARCHIVE_BYTES) -> None:
    """ValueError for arrays of more than ``limit`` bytes together, for pickled ones, and for a
    shape without its data.

    A zip of some megabytes can declare terabytes; nothing of that size is unpacked or allocated
    here."""
    total = 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            total += member.file_size
            if total > limit:
                raise ValueError(f"more than {limit >> 20} MiB of arrays")
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                if version == (1, 0):
                    read = np.lib.format.read_array_header_1_0
                else:
                    read = np.lib.format.read_array_header_2_0
                shape, _, dtype = read(file)
            if dtype.hasobject:
                raise ValueError(f"{member.filename}: pickled objects")
            if math.prod(shape) * dtype.itemsize > member.file_size:
                raise ValueError(f"{member.filename}: shape {shape} is larger than its data")


def check_hook_names(cls: type, role: str, hooks: Collection[str]) -> None:
    """Refuse a public name of ``cls`` that is no known hook, and a setting whose name is nearly
    one.

    Settings are annotated fields (not ClassVar); names with a leading underscore are the class's
    own. Raises TypeError, one line with a suggestion.
    """
    for name, setting in _public_names(cls):
        close = difflib.get_close_matches(
            name, hooks, 1, MISSPELLING_SIMILARITY if setting else 0.6
        )
        if name in hooks or (setting and not close):
            continue
        if close:
            hint = f"did you mean {close[0]}?"
        else:
            hint = f"known: {', '.join(sorted(hooks))}"
        if setting:
            advice = ""
        else:
            advice = "; a name of its own starts with an underscore"
        raise TypeError(f"{cls.__name__}.{name}: no hook of {role}; {hint}{advice}")


def _public_names(cls: type) -> Iterator[tuple[str, bool]]:
    """(name, whether it is a setting) of every public name that the class itself defines."""
    annotations = {name: str(kind) for name, kind in vars(cls).get("__annotations__", {}).items()}
    settings = {name for name, kind in annotations.items() if "ClassVar" not in kind}
    for name in dict.fromkeys((*vars(cls), *annotations)):
        if not name.startswith("_"):
            yield name, name in settings


def declared_hooks(cls: type) -> frozenset[str]:
    """The public names that a role's base class defines or annotates: its hooks."""
    return frozenset(name for name, _ in _public_names(cls))


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_fields(
    settings: object, names: Sequence[str], under: str, fits: Callable[[Any], bool], needed: str
) -> None:
    for name in names:
        value = getattr(settings, name)
        if not fits(value):
            raise ValueError(f"{under}{name}={value!r}: {needed} is needed")


def check_counts(settings: object, *names: str, least: int = 1, under: str = "") -> None:
    """Whole numbers of at least ``least``, numpy's among them."""
    fits = lambda n: isinstance(n, Integral) and not isinstance(n, bool) and int(n) >= least  # noqa: E731
    _check_fields(settings, names, under, fits, f"a whole number of at least {least}")


def check_positive(settings: object, *names: str, under: str = "") -> None:
    _check_fields(
        settings, names, under, lambda x: _is_number(x) and 0 < x < inf, "a finite number above 0"
    )


def check_epochs(settings: object, *names: str) -> None:
    """Passes over a client's records: a whole number, or a fraction for a part of one pass."""
    _check_fields(
        settings,
        names,
        "",
        lambda x: _is_number(x) and 0 < x < inf,
        "at least 1 epoch (or a part of one, as 0.5)",
    )


def check_non_negative(settings: object, *names: str, under: str = "") -> None:
    _check_fields(settings, names, under, lambda x: 0 <= x < inf, "a finite number from 0")


def check_probability(settings: object, *names: str) -> None:
    _check_fields(settings, names, "", lambda x: _is_number(x) and 0 < x <= 1, "a number in (0, 1]")


def check_below_one(settings: object, *names: str, under: str = "") -> None:
    _check_fields(settings, names, under, lambda x: 0 <= x < 1, "a number in [0, 1)")
