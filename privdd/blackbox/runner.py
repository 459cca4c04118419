"""One check from beginning to end, from a command, from Python, or as an assertion in a test."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from privdd.blackbox.claim import CheckedClaim
from privdd.blackbox.examination import STAGES, Examination
from privdd.blackbox.grey_box import RECORD_STAGES, GreyBox
from privdd.blackbox.inputs import InputShapes
from privdd.blackbox.mechanism import BlackBox, run_in_child
from privdd.blackbox.reproduction import describe_case
from privdd.blackbox.target import arguments_of_target, guess_kind, make_target, target_name, target_place
from privdd.blackbox.transcripts import CallBudget
from privdd.blackbox.verdict import BREAKS, Checked, SingleTestResult, conclude_check
from privdd.core.validation import BadConfig

SECONDS, CALLS, CONFIDENCE = 45.0, 4_000_000, 0.99
WALL = 20  # seconds on the wall for each of processor time, on a machine that others use too
SAME = "two fresh starts gave the same noise: whoever runs the same code can subtract it"
Adapter = Callable[[Any, Mapping[str, Any], Mapping[str, Any]], "tuple[Any, dict[str, Any]] | None"]


@dataclass(frozen=True)
class CheckRequest:
    """target: -> the callable or class, asked in the child; name: of it; place: where others find it, as ``load_target``
    takes it. stated: fields of ``CheckedClaim``, kind may be missing.

    args: of a class, or keywords of a function. adapter: turns components of other libraries into callables. restarts:
    whether a second process loads the mechanism afresh. record: replays alone (``grey_box``). seconds: of processor time; the wall limit is ``WALL`` times that.
    """

    target: Callable[[], Any]
    name: str
    stated: Mapping[str, Any]
    args: Mapping[str, Any]
    tried: InputShapes = InputShapes()
    adapter: Adapter = lambda target, args, stated: None
    restarts: bool = False
    seconds: float = SECONDS
    calls: int = CALLS
    confidence: float = CONFIDENCE
    place: str = ""
    record: bool = False


def run_check(request: CheckRequest, step: Callable[[str], None] = lambda name: None, command: str = "") -> Checked:
    """Examine a mechanism in a child process. Raises BadConfig, one line, for what cannot be checked."""
    if not (0 < request.seconds < math.inf and request.calls >= 1000 and 0.5 <= request.confidence < 1):
        raise BadConfig("finite seconds above 0, calls of at least 1000 and confidence in [0.5, 1) are needed")
    answer = run_in_child(
        lambda say: _examine_in_child(request, say), WALL * request.seconds, lambda note: step(str(note["step"]))
    )
    result = replace(Checked.from_json({**answer["checked"], "command": command}), case=answer["case"])
    if request.restarts and not request.record and not result.refuted and answer["first"]:
        again = run_in_child(lambda say: _first_calls_in_child(request), WALL * request.seconds)
        if again["varies"] and again["first"] == answer["first"]:
            look = SingleTestResult("seeds", "refuted", SAME, math.inf, "certain")
            result = replace(
                result, verdict=BREAKS, certified=math.inf, certified_any=math.inf, looks=(*result.looks, look)
            )
    return result


def _make_mechanism(request: CheckRequest) -> tuple[BlackBox, CheckedClaim]:
    import sys
    import warnings

    warnings.simplefilter("ignore")  # inputs with NaN and of extreme size make a sound mechanism warn too
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    target, stated, args = request.target(), dict(request.stated), dict(request.args)
    adapted = request.adapter(target, args, stated)
    if adapted is not None:
        (target, defaults), args = adapted, {}
        stated = {**defaults, **stated}
    if "epsilon" not in stated:
        raise BadConfig("stated.epsilon= is needed: the epsilon that is to be checked")
    if "delta" not in stated:
        raise BadConfig(
            "stated.delta= is needed: 0 for a pure epsilon (Laplace noise), else the one stated, as stated.delta=1e-5"
        )
    make, fresh = make_target(target, args, stated)
    kind = stated.get("kind") or guess_kind(make())
    relation = stated.get("relation") or ("zero_out" if kind == "update" else "add_remove")
    whole = CheckedClaim(**{**stated, "kind": kind, "relation": relation})
    return BlackBox(make, whole.kind, fresh=fresh, plain=adapted is None), whole


def _examine_in_child(request: CheckRequest, say: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    began = time.process_time()
    mechanism, stated = _make_mechanism(request)
    clock = CallBudget(request.seconds, request.calls)
    examine = GreyBox if request.record else Examination
    examination = examine(mechanism, stated, request.tried, clock, request.confidence, lambda name: say({"step": name}))
    found = examination.run()
    result = conclude_check(
        request.name,
        stated,
        found,
        confidence=request.confidence,
        calls=mechanism.calls,
        seconds=time.process_time() - began,
    )
    case = None
    if result.refuted and mechanism.plain and request.place:
        arguments = arguments_of_target(request.target(), request.args, request.stated)
        case = describe_case(result, request.place, mechanism.torch, arguments, examination.find_counterexample())
    return {"checked": {**result.as_json(), "stated": asdict(stated)}, "first": found.first, "case": case}


def _first_calls_in_child(request: CheckRequest) -> dict[str, Any]:
    """The same first calls, in another process."""
    mechanism, stated = _make_mechanism(request)
    clock = CallBudget(request.seconds, request.calls)
    examination = Examination(mechanism, stated, request.tried, clock, request.confidence, lambda name: None)
    first = examination.first_numbers()
    third = len(first) // 3
    return {"first": first, "varies": first[:third] != first[third : 2 * third]}


def stage_count(record: bool = False) -> int:
    return len(RECORD_STAGES if record else STAGES)


def check(
    mechanism: Callable[..., Any],
    *,
    stated: Mapping[str, Any],
    kind: str | None = None,
    relation: str | None = None,
    calls: int = 1,
    inputs: str = "finite",
    args: Mapping[str, Any] | None = None,
    tried: InputShapes | None = None,
    seconds: float = SECONDS,
    max_calls: int = CALLS,
    confidence: float = CONFIDENCE,
    record: bool = False,
    out: Path | str | None = None,
) -> Checked:
    """Look for what refutes a stated epsilon; the mechanism runs in a forked process.

    mechanism: a function on arrays, or a class that makes one from ``args`` (made anew for each transcript).
    stated: {"epsilon": 1.0, "delta": 1e-5} and what else ``CheckedClaim`` takes; kind and relation as there, guessed from the
    arguments if None; calls: the statement covers so many on the same data; seconds: of processor time; record: replays
    with the mechanism's randomness held still, instead of the search; out: a folder for check.html and findings.json.

    >>> check(mechanism, stated={"epsilon": 1.0, "delta": 1e-5}, kind="update").refuted  # doctest: +SKIP
    False

    Raises ValueError, one line, for what cannot be checked.
    """
    given = {**stated, "calls": calls, "inputs": inputs}
    given |= {name: value for name, value in (("kind", kind), ("relation", relation)) if value is not None}
    name = target_name(mechanism)
    request = CheckRequest(lambda: mechanism, name, given, args or {}, tried or InputShapes(), seconds=seconds, calls=max_calls,
                      confidence=confidence, place=target_place(mechanism), record=record)  # fmt: skip
    result = run_check(request)
    if out is not None:
        from privdd.blackbox.page import write_check_page

        write_check_page(result, Path(out))
    return result


def assert_private(mechanism: Callable[..., Any], **settings: Any) -> Checked:
    """``check`` for a test: AssertionError, one line, where the statement is refuted."""
    result = check(mechanism, **settings)
    if result.refuted:
        raise AssertionError(result.says)
    return result
