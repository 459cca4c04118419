"""One check from beginning to end: the mechanism in a process of its own, the verdict here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from privdd.checking.called import BlackBox
from privdd.checking.child import in_child
from privdd.checking.examination import STAGES, Examination
from privdd.checking.looks import Looked
from privdd.checking.named import guessed_kind, maker
from privdd.checking.neighbours import Tried
from privdd.checking.sampled import Clock
from privdd.checking.stated import Stated
from privdd.checking.verdict import BREAKS, Checked, concluded
from privdd.core.errors import BadConfig

SECONDS, CALLS, CONFIDENCE = 45.0, 4_000_000, 0.99
WALL = 20  # seconds on the wall for each of processor time, on a machine that others use too
SAME = "two fresh starts gave the same noise: whoever runs the same code can subtract it"
Adapter = Callable[[Any, Mapping[str, Any], Mapping[str, Any]], "tuple[Any, dict[str, Any]] | None"]


@dataclass(frozen=True)
class CheckRequest:
    """target: -> the callable or class, asked in the child; name: of it. stated: fields of ``Stated``, kind may be missing.

    args: of a class, or keywords of a function. adapter: turns components of other libraries into callables. restarts:
    whether a second process loads the mechanism afresh. seconds: of processor time; the wall limit is ``WALL`` times that.
    """

    target: Callable[[], Any]
    name: str
    stated: Mapping[str, Any]
    args: Mapping[str, Any]
    tried: Tried = Tried()
    adapter: Adapter = lambda target, args, stated: None
    restarts: bool = False
    seconds: float = SECONDS
    calls: int = CALLS
    confidence: float = CONFIDENCE


def checked(request: CheckRequest, step: Callable[[str], None] = lambda name: None, command: str = "") -> Checked:
    """Examine a mechanism in a child process. Raises BadConfig, one line, for what cannot be checked."""
    if not (0 < request.seconds < math.inf and request.calls >= 1000 and 0.5 <= request.confidence < 1):
        raise BadConfig("finite seconds above 0, calls of at least 1000 and confidence in [0.5, 1) are needed")
    answer = in_child(lambda say: _examine(request, say), WALL * request.seconds, lambda note: step(str(note["step"])))
    result = Checked.from_json({**answer["checked"], "command": command})
    if request.restarts and not result.refuted and answer["first"]:
        again = in_child(lambda say: _first(request), WALL * request.seconds)
        if again["varies"] and again["first"] == answer["first"]:
            look = Looked("seeds", "refuted", SAME, math.inf, "certain")
            result = replace(
                result, verdict=BREAKS, certified=math.inf, certified_any=math.inf, looks=(*result.looks, look)
            )
    return result


def _mechanism(request: CheckRequest) -> tuple[BlackBox, Stated]:
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
    make, fresh = maker(target, args, stated)
    kind = stated.get("kind") or guessed_kind(make())
    relation = stated.get("relation") or ("zero_out" if kind == "update" else "add_remove")
    whole = Stated(**{**stated, "kind": kind, "relation": relation})
    return BlackBox(make, whole.kind, fresh=fresh), whole


def _examine(request: CheckRequest, say: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    began = time.process_time()
    mechanism, stated = _mechanism(request)
    clock = Clock(request.seconds, request.calls)
    examination = Examination(
        mechanism, stated, request.tried, clock, request.confidence, lambda name: say({"step": name})
    )
    found = examination.run()
    result = concluded(
        request.name,
        stated,
        found,
        confidence=request.confidence,
        calls=mechanism.calls,
        seconds=time.process_time() - began,
    )
    return {"checked": {**result.as_json(), "stated": asdict(stated)}, "first": found.first}


def _first(request: CheckRequest) -> dict[str, Any]:
    """The same first calls, in another process."""
    mechanism, stated = _mechanism(request)
    clock = Clock(request.seconds, request.calls)
    examination = Examination(mechanism, stated, request.tried, clock, request.confidence, lambda name: None)
    first = examination.first_numbers()
    third = len(first) // 3
    return {"first": first, "varies": first[:third] != first[third : 2 * third]}


def stages() -> int:
    return len(STAGES)
