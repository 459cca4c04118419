"""The request that the command line of a check makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privdd.blackbox.check_command import named_target
from privdd.blackbox.inputs import InputShapes
from privdd.blackbox.runner import CONFIDENCE, SECONDS, Adapter, CheckRequest
from privdd.blackbox.target import load_target
from privdd.core.command import values_below
from privdd.core.validation import BadConfig

LARGEST_SIZE = 100_000  # of an array, a table or a crowd
CLAIM_KEYS = ("kind", "relation", "calls", "inputs")  # of the claim, though typed without "stated."


def check_request(values: Mapping[str, Any], adapter: Adapter) -> CheckRequest:
    """The check that was typed.

    Args:
        values: key -> value of the command line.
        adapter: turns components of other libraries into callables.

    Raises:
        BadConfig: one line, for inputs that are of no such form.
    """
    _, name = named_target(values)
    stated = values_below(values, "stated")
    stated |= {key: values[key] for key in CLAIM_KEYS if key in values}
    return CheckRequest(
        target=lambda: load_target(name),
        name=name,
        stated=stated,
        args=values_below(values, "args"),
        tried=_parse_inputs(values),
        adapter=adapter,
        restarts=True,
        seconds=values.get("seconds", SECONDS),
        calls=values.get("max_calls"),
        confidence=values.get("confidence", CONFIDENCE),
        place=name,
        record=values.get("record", False),
    )


def _parse_inputs(values: Mapping[str, Any]) -> InputShapes:
    sizes: dict[str, Any] = {"seed": values.get("seed", 0)}
    try:
        if "input.shapes" in values:
            shapes = tuple(tuple(int(n) for n in shape) for shape in values["input.shapes"])
            sizes["structures"] = (shapes,)
        if "input.rows" in values:
            n, d = (int(k) for k in values["input.rows"])
            sizes["tables"] = ((n, d),)
        if "input.clients" in values:
            sizes["crowds"] = (int(values["input.clients"]),)
    except (TypeError, ValueError, OverflowError):
        raise BadConfig(
            "input.shapes=[[4,3],[4]], input.rows=[20,6] and input.clients=10 are of this form"
        ) from None
    tried = InputShapes(**sizes)
    lengths = [*tried.crowds]
    for shapes in tried.structures:
        for shape in shapes:
            lengths += shape
    for table in tried.tables:
        lengths += table
    if not all(1 <= length <= LARGEST_SIZE for length in lengths) or not all(tried.structures):
        raise BadConfig("input.*: sizes from 1 to 100000 are needed")
    return tried
