"""Checks of single settings, and commands of the form KEY=VALUE. Imports no torch.

Each message names the key, the value and what is allowed, in one line. A command declares its keys
once, and help, refusals and types come from there.
"""

from __future__ import annotations

import ast
import difflib
import math
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any


class BadConfig(ValueError):
    """A config that cannot be run; the message is one line for the user."""


class DataNotFound(ValueError):
    """The data set is neither on this machine nor could it be fetched; the message says what was
    tried."""


LARGEST_INTEGER = 2**63
FINITE = "a finite number below 2**63 is needed"
TEXT = "text is needed"
NUMBER = "a number is needed"
INTEGER = "a whole number is needed"


def setting_error(key: str, value: Any, needed: str) -> BadConfig:
    return BadConfig(f"{key}={value!r}: {needed}")


def is_number(value: Any) -> bool:
    """An int or a float; True and False are neither."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_finite(key: str, value: float) -> None:
    """Raises BadConfig for NaN, the infinities and what no 64-bit integer holds."""
    if abs(value) >= LARGEST_INTEGER or not math.isfinite(
        value
    ):  # in this order: isfinite overflows at 10**400
        raise setting_error(key, value, FINITE)


def check_number(key: str, value: Any, *, optional: bool = False) -> None:
    """A finite int or float; null too where it is optional."""
    if optional and value is None:
        return
    if not is_number(value):
        raise setting_error(key, value, f"{NUMBER} (or null)" if optional else NUMBER)
    check_finite(key, value)


def check_share(
    key: str, value: Any, needed: str = "a number in (0, 1) is needed", *, one: bool = False
) -> None:
    """A number above 0 and below 1; ``one``: 1 itself is allowed too."""
    check_number(key, value)
    if not 0 < value < 1 and not (one and value == 1):
        raise setting_error(key, value, needed)


def check_integer(
    key: str, value: Any, least: int = 0, needed: str = "", *, most: int | None = None
) -> int:
    """``value`` as an int from ``least`` to ``most``; 12.0 is 12. needed: what is said of a smaller
    number instead."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        value = int(value)  # numpy's
    check_number(key, value)
    if int(value) != value:
        raise setting_error(key, value, INTEGER if needed else describe_integer_range(least, most))
    if value < least:
        raise setting_error(key, value, needed or describe_integer_range(least, most))
    if most is not None and value > most:
        raise setting_error(
            key,
            value,
            f"at most {most} are allowed" if needed else describe_integer_range(least, most),
        )
    return int(value)


def describe_integer_range(least: int, most: int | None = None) -> str:
    return f"a whole number from {least}{'' if most is None else f' to {most}'} is needed"


def check_count(key: str, value: object, needed: str = "an integer >= 1 is needed") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not value >= 1:
        raise ValueError(f"{key}={value!r}: {needed}")


def check_text(key: str, value: Any, *, optional: bool = False) -> None:
    if not isinstance(value, str) and not (optional and value is None):
        raise setting_error(key, value, f"{TEXT} (or null)" if optional else TEXT)


def check_choice(key: str, value: Any, allowed: Collection[str]) -> None:
    """Check that a value is one of a few words."""
    if not isinstance(value, str) or value not in allowed:
        raise BadConfig(f"{key}={value}: allowed are {', '.join(allowed)}")


MAX_LIST_LENGTH = 100  # numbers of one list


def parse_integer(key: str, text: str, least: int = 0, most: int | None = None) -> int:
    """A text of digits as an int. Raises BadConfig for any other text, and for a number out of
    range."""
    digits = text.strip()
    plain = (
        digits.isascii() and digits.isdigit() and len(digits) < 20
    )  # of thousands of digits int() raises
    if not plain or not least <= int(digits) <= (LARGEST_INTEGER - 1 if most is None else most):
        raise BadConfig(f"{key}={text}: {describe_integer_range(least, most)}")
    return int(digits)


def parse_integer_list(key: str, text: str) -> tuple[int, ...]:
    """Different numbers from 0, as in 0-4 or 0,3. Raises BadConfig."""
    first, dash, last = text.partition("-")
    if not dash:
        return tuple(dict.fromkeys(parse_integer(key, part) for part in text.split(",")))
    low = parse_integer(key, first)
    high = parse_integer(key, last)
    if not low <= high < low + MAX_LIST_LENGTH:
        raise BadConfig(f"{key}={text}: from the smaller to the larger, at most {MAX_LIST_LENGTH}")
    return tuple(range(low, high + 1))


def parse_literal(text: str) -> Any:
    """true, false, null, or a Python literal; else the text itself."""
    if text in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


Reader = Callable[[str, str], Any]  # (key, text) -> value; raises BadConfig, one line
HELP_WIDTH = 120
HELP_INDENT = 24
MANY_KEYS = 16  # of a command: fewer are listed where a key is unknown


def read_text(key: str, text: str) -> str:
    return text


def read_path(key: str, text: str) -> Path:
    return Path(text)


def read_literal(key: str, text: str) -> Any:
    return parse_literal(text)


def read_number(key: str, text: str) -> float:
    value = parse_literal(text)
    if not is_number(value):
        raise BadConfig(f"{key}={text}: {NUMBER}")
    check_finite(key, value)
    return float(value)


def read_count(least: int = 0, most: int | None = None) -> Reader:
    """Whole numbers from ``least`` to ``most``, 1e3 among them."""
    return lambda key, text: check_integer(key, parse_literal(text), least, most=most)


def read_word(*allowed: str) -> Reader:
    """One of a few words."""

    def read_allowed(key: str, text: str) -> str:
        if text not in allowed:
            raise BadConfig(
                f"{key}={text}: {_suggest(text, allowed)}allowed are {', '.join(allowed)}"
            )
        return text

    return read_allowed


def read_shape(key: str, text: str) -> tuple[int, ...]:
    """The sizes of one record, as in 1,28,28."""
    sizes = tuple(
        parse_integer(key, part) for part in text.strip("()[]").split(",") if part.strip()
    )
    if not sizes or not all(1 <= n <= 4096 for n in sizes) or math.prod(sizes) > 2**24:
        raise BadConfig(f"{key}={text}: sizes of one record are needed, as in 1,28,28")
    return sizes


def _suggest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean {close[0]}? " if close else ""


@dataclass(frozen=True)
class Key:
    """One key of a command: its name ("args.*": any name behind the dot), how its text is read, its
    value and meaning in the help."""

    name: str
    read: Reader
    shown: str = ""
    help: str = ""

    def matches(self, key: str) -> bool:
        prefix = self.name.removesuffix("*")
        return key == self.name or (
            self.name.endswith(".*") and key.startswith(prefix) and key != prefix
        )


@dataclass(frozen=True)
class Command:
    """A command that takes KEY=VALUE. usage: its first lines; about: what it does; closing: after
    the keys."""

    usage: str
    about: str
    keys: tuple[Key, ...]
    closing: str = ""
    unknown: str = "unknown"

    def parse(self, argv: Sequence[str]) -> dict[str, Any]:
        """Key -> value. Raises BadConfig, one line, for anything that is not understood, and for a
        key that is given twice."""
        found: dict[str, Any] = {}
        for item in argv:
            key, equals, text = item.partition("=")
            if not equals or not text:
                raise BadConfig(f"{item}: KEY=VALUE is needed")
            if key in found:
                raise BadConfig(f"{key}: given twice")
            known = next((one for one in self.keys if one.matches(key)), None)
            if known is None:
                names = [one.name for one in self.keys]
                allowed = (
                    f"allowed are {', '.join(names)}" if len(names) < MANY_KEYS else "see --help"
                )
                raise BadConfig(f"{key}: {self.unknown}; {_suggest(key, names) or allowed}".strip())
            found[key] = known.read(key, text)
        return found

    def describe(self) -> str:
        """Usage and purpose."""
        return f"usage: {self.usage}\n\n{self.about}"

    def help_text(self) -> str:
        """Usage, purpose, and a line for each key that has a meaning of its own."""
        lines = [self.describe(), ""]
        for key in self.keys:
            if key.help:
                head = f"  {key.name.replace('*', 'NAME')}={key.shown}"
                first = head.ljust(HELP_INDENT) if len(head) < HELP_INDENT else f"{head}  "
                lines.append(
                    textwrap.fill(
                        key.help,
                        HELP_WIDTH,
                        initial_indent=first,
                        subsequent_indent=" " * HELP_INDENT,
                    )
                )
        return "\n".join([*lines, *(["", self.closing] if self.closing else []), ""])


def values_below(found: Mapping[str, Any], group: str) -> dict[str, Any]:
    """What was typed as GROUP.NAME=VALUE, by name."""
    return {
        key.removeprefix(f"{group}."): value
        for key, value in found.items()
        if key.startswith(f"{group}.")
    }
