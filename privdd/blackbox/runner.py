"""One check from beginning to end, from a command, from Python, or as an assertion in a test."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from privdd.blackbox.examination import STAGES, Examination
from privdd.blackbox.grey_box import RECORD_STAGES, GreyBox
from privdd.blackbox.inputs import InputShapes
from privdd.blackbox.mechanism import (
    BlackBox,
    CallBudget,
    CheckedClaim,
    Inputs,
    Kind,
    Law,
    Neighbours,
    Sampling,
    run_in_child,
)
from privdd.blackbox.target import arguments_of_target, guess_kind, load_target, make_target, target_name, target_place
from privdd.blackbox.verdict import BREAKS, Checked, SingleTestResult, conclude_check, describe_case, write_check_page
from privdd.core.validation import (
    BadConfig,
    Command,
    Key,
    read_count,
    read_literal,
    read_number,
    read_text,
    read_word,
    values_below,
)

SECONDS, CALLS, CONFIDENCE = 45.0, 4_000_000, 0.99
WALL = 20  # seconds on the wall for each of processor time, on a machine that others use too
SAME = "two fresh starts gave the same noise: whoever runs the same code can subtract it"
Adapter = Callable[[Any, Mapping[str, Any], Mapping[str, Any]], "tuple[Any, dict[str, Any]] | None"]


@dataclass(frozen=True)
class CheckRequest:
    """target: -> the callable or class, asked in the child; name: of it; place: where others find it, as ``load_target``
    takes it. stated: fields of ``CheckedClaim``, kind may be missing. args: of a class, or keywords of a function.
    adapter: turns components of other libraries into callables. restarts: whether a second process loads the mechanism
    afresh. record: replays alone (``grey_box``). seconds: of processor time; the wall limit is ``WALL`` times that."""

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
    wall = WALL * request.seconds
    answer = run_in_child(lambda say: _examine_in_child(request, say), wall, lambda note: step(str(note["step"])))
    result = replace(Checked.from_json({**answer["checked"], "command": command}), case=answer["case"])
    if request.restarts and not request.record and not result.refuted and answer["first"]:
        again = run_in_child(lambda say: _first_calls_in_child(request), wall)
        if again["varies"] and again["first"] == answer["first"]:
            look = SingleTestResult("seeds", "refuted", SAME, math.inf, "certain")
            surely: dict[str, Any] = {"verdict": BREAKS, "certified": math.inf, "certified_any": math.inf}
            result = replace(result, looks=(*result.looks, look), **surely)
    return result


def _make_mechanism(request: CheckRequest) -> tuple[BlackBox, CheckedClaim]:
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
        raise BadConfig("stated.delta= is needed: 0 for a pure epsilon (Laplace noise), else as in stated.delta=1e-5")
    make, fresh = make_target(target, args, stated)
    kind = stated.get("kind") or guess_kind(make())
    relation = stated.get("relation") or ("zero_out" if kind == "update" else "add_remove")
    whole = CheckedClaim(**{**stated, "kind": kind, "relation": relation})
    return BlackBox(make, whole.kind, fresh=fresh, plain=adapted is None), whole


def _start_examination(request: CheckRequest, step: Callable[[str], None]) -> Examination:
    made, examine = _make_mechanism(request), GreyBox if request.record else Examination
    clock = CallBudget(request.seconds, request.calls)  # after the imports, which are not the mechanism's time
    return examine(*made, request.tried, clock, request.confidence, step)


def _examine_in_child(request: CheckRequest, say: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    began = time.process_time()
    examination = _start_examination(request, lambda name: say({"step": name}))
    found, mechanism = examination.run(), examination.mechanism
    spent = {"confidence": request.confidence, "calls": mechanism.calls, "seconds": time.process_time() - began}
    result, case = conclude_check(request.name, examination.stated, found, **spent), None
    if result.refuted and mechanism.plain and request.place:
        arguments = arguments_of_target(request.target(), request.args, request.stated)
        case = describe_case(result, request.place, mechanism.torch, arguments, examination.find_counterexample())
    return {"checked": result.as_json(), "first": found.first, "case": case}


def _first_calls_in_child(request: CheckRequest) -> dict[str, Any]:
    """The same first calls, in another process."""
    first = _start_examination(request, lambda name: None).first_numbers()
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
    budget: dict[str, Any] = {"seconds": seconds, "calls": max_calls, "confidence": confidence, "record": record}
    place, shapes = target_place(mechanism), tried or InputShapes()
    result = run_check(CheckRequest(lambda: mechanism, name, given, args or {}, shapes, place=place, **budget))
    if out is not None:
        write_check_page(result, Path(out))
    return result


def assert_private(mechanism: Callable[..., Any], **settings: Any) -> Checked:
    """``check`` for a test: AssertionError, one line, where the statement is refuted."""
    result = check(mechanism, **settings)
    if result.refuted:
        raise AssertionError(result.says)
    return result


TARGETS = ("mechanism", "method", "attack")
CLAIM_KEYS = ("kind", "relation", "calls", "inputs")  # of the claim, though typed without "stated."


def read_truth(key: str, text: str) -> bool:
    return read_word("true", "false")(key, text) == "true"


CHECK = Command(
    "privdd-check mechanism=package.module:Name stated.epsilon=E stated.delta=D [KEY=VALUE ...]",
    "Is the stated epsilon true? Calls the mechanism on neighbouring inputs and looks for what refutes it.\n"
    "Exit status: 0 not refuted, 2 refuted, 3 a limit of the policy is broken or not decided, 1 error.",
    (
        Key("mechanism", read_text, "NAME", "a function or class: package.module:Name or file.py:Name; or of another library as it is installed (docs/components.md)"),
        Key("args.*", read_literal, "VALUE", "what a class is made with; for a function, a keyword of every call"),
        Key("kind", read_word(*get_args(Kind)), "", "update: f(list of arrays) -> list of arrays; aggregate: f(list of updates, list of weights) -> list of arrays; records: f(array (n, d)) -> array. Everything that is returned counts as released"),
        Key("relation", read_word(*get_args(Neighbours)), "", "add_remove, replace or zero_out (default: zero_out for updates, else add_remove)"),
        Key("calls", read_count(1), "T", "the stated epsilon covers T calls on the same data (default 1)"),
        Key("inputs", read_word(*get_args(Inputs)), "", "finite (default) or any: whether the statement holds for NaN and infinity too"),
        Key("stated.epsilon", read_number, "E", "the statement, with stated.delta=D"),
        Key("stated.delta", read_number),
        Key("stated.noise", read_word(*get_args(Law)), "", "gaussian or laplace: the law of the noise as declared, tested as well; stated.noise_std=S: its scale"),
        Key("stated.noise_std", read_number),
        Key("stated.noise_multiplier", read_number, "Z", "noise over sensitivity, declared: kappa is in its units"),
        Key("stated.sampling", read_word(*get_args(Sampling)), "", "shuffled or balls_in_bins: how batches are formed, declared, with stated.batches=N of an epoch and stated.epochs=E"),
        Key("stated.batches", read_count(1)),
        Key("stated.epochs", read_count(1)),
        Key("stated.low_bits", read_truth, "true", "the statement is about the released floats, to the last bit"),
        Key("stated.tolerance", read_number, "0.05", "refuted only above (1 + tolerance) epsilon"),
        Key("input.shapes", read_literal, "[[4,3],[4]]", "inputs of this shape only; input.rows=[20,6] and input.clients=10 likewise"),
        Key("input.rows", read_literal),
        Key("input.clients", read_literal),
        Key("seconds", read_number, "45", "processor time to spend; max_calls=4000000 confidence=0.99 seed=0"),
        Key("max_calls", read_count()),
        Key("confidence", read_number),
        Key("seed", read_count()),
        Key("out", read_text, "DIR", "writes check.html and findings.json there, and where the statement is refuted reproduce.py, which shows it without privdd"),
        Key("policy", read_text, "FILE", "limits that the result has to keep, else exit status 3; fail_on.LIMIT=VALUE: one of them (docs/tutorials/gate.md)"),
        Key("fail_on.*", read_text),
        Key("record", read_truth, "true", "no search: replays with the mechanism's randomness held still say what the record changes before noise, in names, shapes, noise and lines that run (docs/explanation/grey-box.md)"),
        Key("components", read_text, "FILE.md", "alone: checks the components of other libraries that are known here and writes their table"),
        Key("method", read_text, "NAME", "or attack=NAME: a plugin class of privdd itself, package.Name: does it keep its contract? (args.NAME=VALUE)"),
        Key("attack", read_text),
    ),
)  # fmt: skip


def named_target(found: Mapping[str, Any]) -> tuple[str, str]:
    """(mechanism, method or attack; its name). Raises BadConfig where none is named, or several are."""
    named = [what for what in TARGETS if what in found]
    if len(named) != 1:
        raise BadConfig("one of mechanism=, method= and attack= is needed")
    return named[0], found[named[0]]


def check_request(found: Mapping[str, Any], adapter: Adapter) -> CheckRequest:
    """The check that was typed. Raises BadConfig, one line, for inputs that are of no such form."""
    name = named_target(found)[1]
    stated = values_below(found, "stated") | {key: found[key] for key in CLAIM_KEYS if key in found}
    return CheckRequest(
        lambda: load_target(name), name, stated, values_below(found, "args"), _parse_inputs(found), adapter, True,
        found.get("seconds", SECONDS), found.get("max_calls", CALLS), found.get("confidence", CONFIDENCE),
        name, found.get("record", False),
    )  # fmt: skip


def _parse_inputs(found: Mapping[str, Any]) -> InputShapes:
    given: dict[str, Any] = {"seed": found.get("seed", 0)}
    try:
        if "input.shapes" in found:
            given["structures"] = (tuple(tuple(int(n) for n in shape) for shape in found["input.shapes"]),)
        if "input.rows" in found:
            n, d = (int(k) for k in found["input.rows"])
            given["tables"] = ((n, d),)
        if "input.clients" in found:
            given["crowds"] = (int(found["input.clients"]),)
    except (TypeError, ValueError, OverflowError):
        raise BadConfig("input.shapes=[[4,3],[4]], input.rows=[20,6] and input.clients=10 are of this form") from None
    tried = InputShapes(**given)
    sizes = [k for s in tried.structures for shape in s for k in shape] + [k for t in tried.tables for k in t]
    if not all(1 <= k <= 100_000 for k in [*sizes, *tried.crowds]) or not all(tried.structures):
        raise BadConfig("input.*: sizes from 1 to 100000 are needed")
    return tried
