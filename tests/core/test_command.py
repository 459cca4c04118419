"""Commands of the form KEY=VALUE: what is refused, and the help."""

from __future__ import annotations

import pytest

from privdd.core.command import (
    Command,
    Key,
    read_count,
    read_literal,
    read_number,
    read_shape,
    read_word,
    values_below,
)
from privdd.core.validation import BadConfig

COMMAND = Command(
    "name KEY=VALUE",
    "What it does.",
    (
        Key("size", read_count(1, 9), "N", "how large"),
        Key("rate", read_number),
        Key("kind", read_word("red", "green"), "", "red or green"),
        Key("args.*", read_literal, "VALUE", "of a class"),
        Key("shape", read_shape),
    ),
)


def test_values_are_read_by_their_keys() -> None:
    found = COMMAND.parse(
        ["size=3.0", "rate=1e-3", "kind=red", "args.a=[1,2]", "args.b=x", "shape=(1,28,28)"]
    )
    assert found["size"] == 3 and found["rate"] == 1e-3 and found["shape"] == (1, 28, 28)
    assert values_below(found, "args") == {"a": [1, 2], "b": "x"}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("size", "size: KEY=VALUE is needed"),
        ("size=", "KEY=VALUE is needed"),
        ("sizes=1", "sizes: unknown; did you mean size?"),
        ("colour=1", r"unknown; allowed are size, rate, kind, args.\*, shape"),
        ("args.=1", "unknown"),
        ("size=10", "from 1 to 9"),
        ("rate=fast", "rate=fast: a number is needed"),
        ("rate=1e999", "a finite number"),
        ("kind=gren", "did you mean green"),
        ("shape=0", "sizes of one record"),
        ("shape=4096,4096,4096", "sizes of one record"),
    ],
)
def test_anything_else_is_refused_in_one_line(typed: str, said: str) -> None:
    with pytest.raises(BadConfig, match=said) as error:
        COMMAND.parse([typed])
    assert "\n" not in str(error.value)


def test_a_key_is_given_once() -> None:
    with pytest.raises(BadConfig, match="size: given twice"):
        COMMAND.parse(["size=1", "size=1"])


def test_help_has_a_line_for_each_key_with_a_meaning() -> None:
    shown = COMMAND.help_text()
    assert (
        shown.startswith("usage: name KEY=VALUE\n\nWhat it does.\n\n  size=N  ")
        and "  args.NAME=VALUE  " in shown
        and "rate" not in shown
    )
    assert max(map(len, shown.splitlines())) <= 120
