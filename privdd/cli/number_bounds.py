"""Numbers that no run can use: infinities, NaN, and lengths of training or of a search that would not end."""

from __future__ import annotations

from typing import Any

from privdd.core.checks import check_finite, is_number, refused

LENGTHS = {
    "rounds",
    "epochs",
    "steps",
    "iterations",
    "networks",
    "turns",
    "matches",
    "reads",
    "restarts",
    "starts",
    "attempts",
}
LONG = ("algo.", "attack.")
MOST = 10**6


def check_numbers(key: str, value: Any, said: str) -> None:
    """A setting, or each of a list. said: the key that it was typed by. Raises BadConfig.

    The last word of its name tells whether it is a length: ``epochs`` of ``local_epochs``.
    """
    length = key.startswith(LONG) and key.replace("_", ".").rsplit(".", 1)[-1] in LENGTHS
    for one in value if isinstance(value, list) else [value]:
        if is_number(one):
            check_finite(said, one)
            if length and one > MOST:
                raise refused(said, one, f"at most {MOST} are allowed")
