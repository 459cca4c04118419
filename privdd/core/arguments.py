"""Commands of the form KEY=VALUE: each declares its keys once, and help, refusals and types come from there. Imports no torch."""

from __future__ import annotations

import difflib
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privdd.core.validation import (
    NUMBER,
    BadConfig,
    check_finite,
    check_integer,
    is_number,
    parse_integer,
    parse_literal,
)

Reader = Callable[[str, str], Any]  # (key, text) -> value; raises BadConfig, one line
HELP_WIDTH, HELP_INDENT = 120, 24
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
            raise BadConfig(f"{key}={text}: {_suggest(text, allowed)}allowed are {', '.join(allowed)}")
        return text

    return read_allowed


def read_shape(key: str, text: str) -> tuple[int, ...]:
    """The sizes of one record, as in 1,28,28."""
    sizes = tuple(parse_integer(key, part) for part in text.strip("()[]").split(",") if part.strip())
    if not sizes or not all(1 <= n <= 4096 for n in sizes) or math.prod(sizes) > 2**24:
        raise BadConfig(f"{key}={text}: sizes of one record are needed, as in 1,28,28")
    return sizes


def _suggest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean {close[0]}? " if close else ""


@dataclass(frozen=True)
class Key:
    """One key of a command: its name ("args.*": any name behind the dot), how its text is read, its value and meaning in the help."""

    name: str
    read: Reader
    shown: str = ""
    help: str = ""

    def matches(self, key: str) -> bool:
        return key == self.name or (
            self.name.endswith(".*") and key.startswith(self.name[:-1]) and key != self.name[:-1]
        )


@dataclass(frozen=True)
class Command:
    """A command that takes KEY=VALUE. usage: its first lines; about: what it does; closing: after the keys."""

    usage: str
    about: str
    keys: tuple[Key, ...]
    closing: str = ""
    unknown: str = "unknown"

    def parse(self, argv: Sequence[str]) -> dict[str, Any]:
        """Key -> value. Raises BadConfig, one line, for anything that is not understood, and for a key that is given twice."""
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
                allowed = f"allowed are {', '.join(names)}" if len(names) < MANY_KEYS else "see --help"
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
                    textwrap.fill(key.help, HELP_WIDTH, initial_indent=first, subsequent_indent=" " * HELP_INDENT)
                )
        return "\n".join([*lines, *(["", self.closing] if self.closing else []), ""])


def values_below(found: Mapping[str, Any], group: str) -> dict[str, Any]:
    """What was typed as GROUP.NAME=VALUE, by name."""
    return {key.removeprefix(f"{group}."): value for key, value in found.items() if key.startswith(f"{group}.")}
