"""Values as they are typed on a command line."""

from __future__ import annotations

import ast
from typing import Any


def plain_value(text: str) -> Any:
    """true, false, null, or a Python literal; else the text itself."""
    if text in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
