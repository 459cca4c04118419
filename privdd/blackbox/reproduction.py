"""``reproduce.py``: one file that shows a counterexample without this project, for a report to a mechanism's authors."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privdd.blackbox import counterexample
from privdd.blackbox.mechanism import Data
from privdd.blackbox.verdict import Checked
from privdd.runtime.files import to_plain_json, write_bytes

EMPTY_CASE = 'json.loads(r"""{}""")'
MOST_CALLS = 300
MOST = 200_000  # numbers of both inputs: more are no file to read


def describe_case(
    found: Checked,
    place: str,
    torch: bool,
    arguments: Mapping[str, Any],
    example: tuple[str, Sequence[Data], Sequence[Data]] | None,
) -> dict[str, Any] | None:
    """What ``counterexample`` is told; None without an example, and for inputs or arguments that no file can hold.

    place: of the mechanism, as ``load_target`` takes it; example: words, calls with the record and calls without it.
    """
    if example is None or len(example[1]) > MOST_CALLS:
        return None
    stated, (words, present, absent) = found.stated, example
    case = {
        "mechanism": place, "kind": stated.kind, "relation": stated.relation, "epsilon": stated.epsilon,
        "delta": stated.delta, "law": found.law, "inputs": words, "torch": torch, "arguments": dict(arguments),
        "present": [_plain_data(one) for one in present], "absent": [_plain_data(one) for one in absent],
    }  # fmt: skip
    try:
        small = sum(json.dumps(case[side], allow_nan=False).count(",") for side in ("present", "absent")) < MOST
        json.dumps(case["arguments"])
    except (TypeError, ValueError):
        return None
    return case if small else None


def _plain_data(data: Any) -> Any:
    if isinstance(data, np.ndarray):
        return {"shape": list(data.shape), "values": data.ravel().tolist()}
    return [_plain_data(part) for part in data] if isinstance(data, list | tuple) else to_plain_json(data)


def write_reproduction(found: Checked, folder: Path) -> Path | None:
    """``folder/reproduce.py``; None where the check holds no case that could be shown."""
    if found.case is None:
        return None
    case = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.case.items())
    text = inspect.getsource(counterexample).replace(EMPTY_CASE, f'json.loads(r"""{{\n{case}\n}}""")', 1)
    write_bytes(folder / "reproduce.py", text.encode())
    return folder / "reproduce.py"
