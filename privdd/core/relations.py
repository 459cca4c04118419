"""What is in or out of the data, and how two neighbouring data sets differ: the words, for what needs no accountant."""

from __future__ import annotations

from typing import Literal, get_args

Relation = Literal["add_remove", "zero_out", "replace"]
RELATIONS: tuple[str, ...] = get_args(Relation)
UNITS = ("record", "client")
