"""Checks from Python, and as an assertion in a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from privdd.checking.named import named
from privdd.checking.neighbours import Tried
from privdd.checking.run_check import CALLS, CONFIDENCE, SECONDS, CheckRequest, checked
from privdd.checking.verdict import Checked


def check(
    mechanism: Callable[..., Any],
    *,
    stated: Mapping[str, Any],
    kind: str | None = None,
    relation: str | None = None,
    calls: int = 1,
    inputs: str = "finite",
    args: Mapping[str, Any] | None = None,
    tried: Tried | None = None,
    seconds: float = SECONDS,
    max_calls: int = CALLS,
    confidence: float = CONFIDENCE,
    out: Path | str | None = None,
) -> Checked:
    """Look for what refutes a stated epsilon; the mechanism runs in a forked process.

    mechanism: a function on arrays, or a class that makes one from ``args`` (made anew for each transcript).
    stated: {"epsilon": 1.0, "delta": 1e-5} and what else ``Stated`` takes; kind and relation as there, guessed from the
    arguments if None; calls: the statement covers so many on the same data; seconds: of processor time; out: a
    folder for check.html and findings.json.

    >>> check(mechanism, stated={"epsilon": 1.0, "delta": 1e-5}, kind="update").refuted  # doctest: +SKIP
    False

    Raises ValueError, one line, for what cannot be checked.
    """
    given = {**stated, "calls": calls, "inputs": inputs}
    given |= {name: value for name, value in (("kind", kind), ("relation", relation)) if value is not None}
    name = named(mechanism)
    request = CheckRequest(lambda: mechanism, name, given, args or {}, tried or Tried(), seconds=seconds, calls=max_calls,
                      confidence=confidence)  # fmt: skip
    result = checked(request)
    if out is not None:
        from privdd.checking.check_page import write

        write(result, Path(out))
    return result


def assert_private(mechanism: Callable[..., Any], **settings: Any) -> Checked:
    """``check`` for a test: AssertionError, one line, where the statement is refuted."""
    result = check(mechanism, **settings)
    if result.refuted:
        raise AssertionError(result.says)
    return result
