"""``reproduce.py``: a script that shows a refutation without privdd."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privdd.blackbox import counterexample
from privdd.blackbox.check_verdict import Checked
from privdd.blackbox.mechanism import Data
from privdd.runtime.files import to_plain_json, write_bytes

EMPTY_CASE = 'json.loads(r"""{}""")'  # in the source of ``counterexample``
MOST_CALLS = 300
MOST_NUMBERS = 200_000  # of both inputs: more are no file to read


def describe_case(
    result: Checked,
    place: str,
    torch: bool,
    arguments: Mapping[str, Any],
    example: tuple[str, Sequence[Data], Sequence[Data]] | None,
) -> dict[str, Any] | None:
    """What the script needs to know.

    Args:
        result: of the check.
        place: where others find the mechanism, file.py:Name or package.module:Name.
        torch: whether it wants tensors.
        arguments: of a class, or keywords of a function.
        example: (words, calls with the record, calls without it).

    Returns:
        None without an example, or if it is too large for a file.
    """
    if example is None:
        return None
    words, present, absent = example
    if len(present) > MOST_CALLS:
        return None
    claim = result.stated
    case = {
        "mechanism": place,
        "kind": claim.kind,
        "relation": claim.relation,
        "epsilon": claim.epsilon_by_law(result.law),
        "delta": claim.delta,
        "law": result.law,
        "inputs": words,
        "torch": torch,
        "arguments": dict(arguments),
        "present": [_plain_data(data) for data in present],
        "absent": [_plain_data(data) for data in absent],
    }
    try:
        numbers = sum(_count_numbers(case[side]) for side in ("present", "absent"))
        json.dumps(case["arguments"])
    except (TypeError, ValueError):
        return None
    return case if numbers < MOST_NUMBERS else None


def _count_numbers(data: Any) -> int:
    """About how many: by the commas. Raises ValueError for NaN and infinity."""
    return json.dumps(data, allow_nan=False).count(",")


def _plain_data(data: Any) -> Any:
    if isinstance(data, np.ndarray):
        return {"shape": list(data.shape), "values": data.ravel().tolist()}
    if isinstance(data, list | tuple):
        return [_plain_data(part) for part in data]
    return to_plain_json(data)


def write_reproduction(result: Checked, folder: Path) -> Path | None:
    """``folder/reproduce.py``; None if the check holds no case that could be shown."""
    if result.case is None:
        return None
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in result.case.items()]
    case = ",\n".join(lines)
    filled = f'json.loads(r"""{{\n{case}\n}}""")'
    source = inspect.getsource(counterexample).replace(EMPTY_CASE, filled, 1)
    path = folder / "reproduce.py"
    write_bytes(path, source.encode())
    return path
