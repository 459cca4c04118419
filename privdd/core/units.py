"""Units of privacy, and the neighbouring relations between data sets. Imports no torch."""

from __future__ import annotations

from typing import Literal, get_args

Relation = Literal["add_remove", "zero_out", "replace"]
RELATIONS: tuple[str, ...] = get_args(Relation)
UNITS = ("record", "client")
