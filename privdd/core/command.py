"""Commands of the form KEY=VALUE, some with folders or files before. Imports no torch.

A command declares its keys once; help, refusals and types come from there.
"""

from __future__ import annotations

import ast
import difflib
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privdd.core.validation import (
    LARGEST_INTEGER,
    NUMBER,
    BadConfig,
    check_finite,
    check_integer,
    describe_integer_range,
    is_number,
)

Reader = Callable[[str, str], Any]  # (key, text) -> value; raises BadConfig, one line
HELP_WIDTH = 120
HELP_INDENT = 24
MANY_KEYS = 16  # of a command: fewer are listed where a key is unknown
MAX_LIST_LENGTH = 100  # numbers of one list
LARGEST_SIDE = 4096  # of one record
LARGEST_RECORD = 2**24  # numbers
HELP_OPTIONS = frozenset({"-h", "--help"})


def parse_integer(key: str, text: str, least: int = 0, most: int | None = None) -> int:
    """A text of digits as an int. Raises BadConfig for any other text, and for a number out of
    range."""
    digits = text.strip()
    # of thousands of digits int() raises
    plain = digits.isascii() and digits.isdigit() and len(digits) < 20
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


def read_text(key: str, text: str) -> str:
    return text


def read_path(key: str, text: str) -> Path:
    return Path(text)


def read_truth(key: str, text: str) -> bool:
    """true or false."""
    if text not in ("true", "false"):
        raise BadConfig(f"{key}={text}: allowed are true, false")
    return text == "true"


def read_quoted(key: str, text: str) -> str:
    """A text in Hydra's quotes, or in none."""
    return text.strip("'")


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
    is_allowed = all(1 <= n <= LARGEST_SIDE for n in sizes) and math.prod(sizes) <= LARGEST_RECORD
    if not sizes or not is_allowed:
        raise BadConfig(f"{key}={text}: sizes of one record are needed, as in 1,28,28")
    return sizes


def _suggest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f"did you mean {close[0]}? " if close else ""


@dataclass(frozen=True)
class Key:
    """One key of a command.

    Attributes:
        name: As typed; "args.*" stands for any name behind the dot.
        read: From the text to the value.
        shown: The value in the help.
        help: Its meaning in the help; a key without one is not listed.
    """

    name: str
    read: Reader
    shown: str = ""
    help: str = ""

    def matches(self, key: str) -> bool:
        prefix = self.name.removesuffix("*")
        is_below = self.name.endswith(".*") and key.startswith(prefix) and key != prefix
        return key == self.name or is_below


@dataclass(frozen=True)
class Places:
    """The folders or files that a command takes before its keys.

    Attributes:
        name: Of the list of paths among the parsed values.
        shown: One of them in messages.
        help: Their meaning in the help.
        least: How many are needed.
        most: How many are taken; None for any number.
    """

    name: str
    shown: str = "DIR"
    help: str = ""
    least: int = 1
    most: int | None = None

    def check_count(self, paths: Sequence[Path]) -> None:
        """Raises BadConfig, one line, for too few or too many."""
        if len(paths) < self.least:
            raise BadConfig(f"{self.shown} is needed: {self.help}")
        if self.most is not None and len(paths) > self.most:
            raise BadConfig(f"{paths[self.most]}: one {self.shown} is taken")


@dataclass(frozen=True)
class Command:
    """A command that takes KEY=VALUE.

    Attributes:
        usage: The first lines of the help.
        about: What it does.
        keys: What it takes.
        closing: The help behind the keys.
        unknown: What is said of a key that is none of these.
        places: Folders or files without a key; None where it takes none.
    """

    usage: str
    about: str
    keys: tuple[Key, ...]
    closing: str = ""
    unknown: str = "unknown"
    places: Places | None = None

    def parse(self, argv: Sequence[str]) -> dict[str, Any]:
        """Key -> value.

        Raises:
            BadConfig: One line, for anything that is not understood, for a key that is given twice,
                and for too few or too many places.
        """
        values: dict[str, Any] = {}
        paths: list[Path] = []
        for item in argv:
            key, equals, text = item.partition("=")
            if item.startswith("-"):
                raise BadConfig(f"{item}: {self._suggest_without_dashes(key.lstrip('-'))}")
            if self.places is not None and not self._is_assignment(item):
                paths.append(Path(item))
                continue
            if not equals or not text:
                raise BadConfig(f"{item}: KEY=VALUE is needed")
            if key in values:
                raise BadConfig(f"{key}: given twice")
            values[key] = self._key_of(key).read(key, text)
        if self.places is not None:
            self.places.check_count(paths)
            values[self.places.name] = paths
        return values

    def describe(self) -> str:
        """Usage and purpose."""
        return f"usage: {self.usage}\n\n{self.about}"

    def help_text(self) -> str:
        """Usage, purpose, and a line for each key that has a meaning of its own."""
        lines = [self.describe(), ""]
        if self.places is not None:
            lines.append(_help_line(f"  {self.places.shown}", self.places.help))
        for key in self.keys:
            if key.help:
                head = f"  {key.name.replace('*', 'NAME')}={key.shown}"
                lines.append(_help_line(head, key.help))
        if self.closing:
            lines += ["", self.closing]
        return "\n".join([*lines, ""])

    def _is_assignment(self, item: str) -> bool:
        """Whether an item is KEY=VALUE and no path with "=" in it."""
        key, equals, _ = item.partition("=")
        if any(declared.matches(key) for declared in self.keys):
            return True
        return bool(equals) and "/" not in key and not Path(item).exists()

    def _key_of(self, key: str) -> Key:
        for declared in self.keys:
            if declared.matches(key):
                return declared
        names = [declared.name for declared in self.keys]
        if len(names) < MANY_KEYS:
            allowed = f"allowed are {', '.join(names)}"
        else:
            allowed = "see --help"
        raise BadConfig(f"{key}: {self.unknown}; {_suggest(key, names) or allowed}".strip())

    def _suggest_without_dashes(self, name: str) -> str:
        """What to type instead of ``--policy FILE``."""
        word = name.replace("-", "_")
        for declared in self.keys:
            if declared.name.removesuffix(".*") == word:
                return f"keys have no dashes: write {declared.name}={declared.shown or 'VALUE'}"
        return "unknown option; see --help"


def _help_line(head: str, meaning: str) -> str:
    if len(head) < HELP_INDENT:
        first = head.ljust(HELP_INDENT)
    else:
        first = f"{head}  "
    indent = " " * HELP_INDENT
    return textwrap.fill(meaning, HELP_WIDTH, initial_indent=first, subsequent_indent=indent)


def values_below(values: Mapping[str, Any], group: str) -> dict[str, Any]:
    """What was typed as GROUP.NAME=VALUE, by name."""
    return {
        key.removeprefix(f"{group}."): value
        for key, value in values.items()
        if key.startswith(f"{group}.")
    }
