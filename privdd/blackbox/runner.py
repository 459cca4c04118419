"""One check from beginning to end, from a command, from Python, or as an assertion in a test."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from attacks.epsilon import gaussian_epsilon
from privdd.blackbox.examination import Examination
from privdd.blackbox.grey_box import GreyBox
from privdd.blackbox.inputs import InputShapes, scaled_data
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
    zcdp_epsilon,
)
from privdd.blackbox.target import (
    arguments_of_target,
    guess_kind,
    load_target,
    make_target,
    target_name,
    target_place,
)
from privdd.blackbox.verdict import (
    BREAKS,
    GUESSED,
    UNDECIDED,
    Checked,
    SingleTestResult,
    conclude_check,
    describe_case,
    write_check_page,
)
from privdd.core.command import (
    Command,
    Key,
    read_count,
    read_literal,
    read_number,
    read_text,
    read_word,
    values_below,
)
from privdd.core.validation import BadConfig, setting_error

# of processor time: where a check is stopped, not what it is planned for
SECONDS = 300.0
CONFIDENCE = 0.99
WALL = 20  # seconds on the wall for each of processor time, on a machine that others use too
FEWEST_CALLS = (
    100_000  # of a check that names no number; for each call of a statement about several
)
MOST_CALLS = 1_000_000
MOST_STATED = 20  # calls of a statement up to which that is so
PLANNED = 15.0  # seconds of processor time for the calls of a slow mechanism, which gets fewer
LONGER = 0.2  # of the seconds that were asked for, where that is more
# the fastest block tells the cost of a call
TIMED_BLOCKS = 5
TIMED_CALLS = 10
# seconds between looks at the clock, and between notes on how far the check is
HEARTBEAT = 0.25
TOLD_EVERY = 5.0
DEFAULT_DELTA = 1e-5  # at which zCDP and Gaussian DP are read
SAME = "two fresh starts gave the same noise: whoever runs the same code can subtract it"
Adapter = Callable[[Any, Mapping[str, Any], Mapping[str, Any]], "tuple[Any, dict[str, Any]] | None"]


@dataclass(frozen=True)
class CheckRequest:
    """target: -> the callable or class, asked in the child; name: of it; place: where others find
    it, as ``load_target``
    takes it. stated: fields of ``CheckedClaim``, kind may be missing. args: of a class, or keywords
        of a function.
    adapter: turns components of other libraries into callables. restarts: whether a second process
        loads the mechanism
    afresh. record: replays alone (``grey_box``). calls: that the looks share; None: ``plan_calls``.
        seconds: of processor time, after which the check is stopped undecided; the wall limit is
            ``WALL`` times that."""

    target: Callable[[], Any]
    name: str
    stated: Mapping[str, Any]
    args: Mapping[str, Any]
    tried: InputShapes = InputShapes()
    adapter: Adapter = lambda target, args, stated: None
    restarts: bool = False
    seconds: float = SECONDS
    calls: int | None = None
    confidence: float = CONFIDENCE
    place: str = ""
    record: bool = False


Step = Callable[[str, float], None]  # told the stage, and the share of the calls that are made


def run_check(
    request: CheckRequest, step: Step = lambda stage, share: None, command: str = ""
) -> Checked:
    """Examine a mechanism in a child process. Raises BadConfig, one line, for what cannot be
    checked."""
    enough = request.calls is None or request.calls >= 1000
    if not (0 < request.seconds < math.inf and enough and 0.5 <= request.confidence < 1):
        raise BadConfig(
            "finite seconds above 0, calls of at least 1000 and confidence in [0.5, 1) are needed"
        )
    wall = WALL * request.seconds

    def read_note(note: Mapping[str, Any]) -> None:
        step(str(note["stage"]), float(note["share"]))

    answer = run_in_child(lambda say: _examine_in_child(request, say), wall, read_note)
    result = replace(
        Checked.from_json({**answer["checked"], "command": command}), case=answer["case"]
    )
    if request.restarts and not request.record and not result.refuted and answer["first"]:
        step("a second start", 1.0)
        again = run_in_child(lambda say: _first_calls_in_child(request), wall)
        if again["varies"] and again["first"] == answer["first"]:
            look = SingleTestResult("seeds", "refuted", SAME, math.inf, "certain")
            surely: dict[str, Any] = {"certified": math.inf, "certified_any": math.inf}
            result = replace(result, looks=(*result.looks, look), **surely)
            if result.stated.kind_is_guessed:
                return replace(
                    result, verdict=UNDECIDED, undecided=(GUESSED.format(kind=result.stated.kind),)
                )
            return replace(result, verdict=BREAKS)
    return result


def _make_mechanism(request: CheckRequest) -> tuple[BlackBox, CheckedClaim]:
    warnings.simplefilter(
        "ignore"
    )  # inputs with NaN and of extreme size make a sound mechanism warn too
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    target = request.target()
    stated = dict(request.stated)
    args = dict(request.args)
    adapted = request.adapter(target, args, stated)
    if adapted is not None:
        (target, defaults), args = adapted, {}
        stated = {**defaults, **stated}
    make, fresh = make_target(target, args, stated_epsilon(stated))
    whole = read_claim(stated, make)
    return BlackBox(make, whole.kind, fresh=fresh, plain=adapted is None), whole


def stated_epsilon(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The statement with its epsilon: that of zCDP and Gaussian DP follows from rho and mu. Raises
    BadConfig."""
    named = [name for name in ("epsilon", "rho", "mu") if name in stated]
    if not named:
        raise BadConfig(
            "stated.epsilon= is needed: the epsilon that is to be checked (or "
            "stated.rho=, stated.mu=)"
        )
    if len(named) > 1:
        raise BadConfig(
            f"{' and '.join(f'stated.{name}=' for name in named)}: one statement at a "
            "time is checked"
        )
    if named == ["epsilon"]:
        if "delta" not in stated:
            raise BadConfig(
                "stated.delta= is needed: 0 for a pure epsilon (Laplace noise), else as "
                "in stated.delta=1e-5"
            )
        return dict(stated)
    (name,) = named
    value = float(stated[name])
    delta = float(stated.get("delta", DEFAULT_DELTA))
    if not 0 < value < math.inf:
        raise setting_error(f"stated.{name}", value, "a finite number above 0 is needed")
    if not 0 < delta < 1:
        raise setting_error(
            "stated.delta", delta, f"a number in (0, 1) is needed, at which stated.{name} is read"
        )
    epsilon = zcdp_epsilon(value, delta) if name == "rho" else gaussian_epsilon(value, delta)
    return {**stated, "delta": delta, "epsilon": epsilon}


def read_claim(stated: Mapping[str, Any], make: Callable[[], Any]) -> CheckedClaim:
    """The statement; what kind of mechanism it is about is guessed from ``make()`` where nobody
    says. Raises BadConfig."""
    kind = stated.get("kind") or guess_kind(make())
    relation = stated.get("relation") or ("zero_out" if kind == "update" else "add_remove")
    terms = {"kind": kind, "relation": relation, "kind_is_guessed": not stated.get("kind")}
    return CheckedClaim(**{**stated_epsilon(stated), **terms})


def plan_calls(
    mechanism: BlackBox, stated: CheckedClaim, tried: InputShapes, seconds: float
) -> int:
    """How many calls the looks of a check share. ``MOST_CALLS``, and fewer of a mechanism whose
    calls take long, but never so few
    that a look could not be made: so the load of a machine decides no verdict."""
    data = scaled_data(mechanism.kind, tried, 1.0)
    cost = math.inf
    for _ in range(TIMED_BLOCKS):
        began = time.process_time()
        for _ in range(TIMED_CALLS):
            mechanism.transcript([data])
        cost = min(cost, (time.process_time() - began) / TIMED_CALLS)
    fewest = FEWEST_CALLS * min(stated.calls, MOST_STATED)
    planned = max(PLANNED, LONGER * seconds if seconds > SECONDS else 0.0) / max(cost, 1e-7)
    return int(max(fewest, min(planned, MOST_CALLS)))


@dataclass
class ProgressNotes:
    """Tells how far a check is every few seconds, and stops it once its time is spent."""

    say: Callable[[Mapping[str, Any]], None]
    examination: Examination
    stage: str = ""
    looked: float = field(default_factory=time.monotonic)
    told: float = field(default_factory=time.monotonic)

    def begin_stage(self, name: str) -> None:
        self.stage = name
        self._tell(time.monotonic())

    def __call__(self) -> None:
        """Before each transcript. Raises OutOfTime."""
        now = time.monotonic()
        if now - self.looked < HEARTBEAT:
            return
        self.looked = now
        if now - self.told >= TOLD_EVERY:
            self._tell(now)
        self.examination.clock.check_time()

    def _tell(self, now: float) -> None:
        self.told = now
        share = self.examination.mechanism.calls / self.examination.clock.calls
        self.say({"stage": self.stage, "share": min(share, 1.0)})


def _start_examination(
    request: CheckRequest, say: Callable[[Mapping[str, Any]], None]
) -> Examination:
    mechanism, stated = _make_mechanism(request)
    examine = GreyBox if request.record else Examination
    # after the imports, which are not the mechanism's time
    clock = CallBudget(request.seconds, request.calls or MOST_CALLS)
    examination = examine(
        mechanism, stated, request.tried, clock, request.confidence, lambda name: None
    )
    if request.calls is None:
        clock.calls = plan_calls(mechanism, stated, examination.tried, request.seconds)
    notes = ProgressNotes(say, examination)
    examination.step = notes.begin_stage
    mechanism.on_transcript = notes
    return examination


def _examine_in_child(
    request: CheckRequest, say: Callable[[Mapping[str, Any]], None]
) -> dict[str, Any]:
    began = time.process_time()
    examination = _start_examination(request, say)
    found = examination.run()
    mechanism = examination.mechanism
    spent = {
        "confidence": request.confidence,
        "calls": mechanism.calls,
        "seconds": time.process_time() - began,
    }
    result = conclude_check(request.name, examination.stated, found, **spent)
    case = None
    if result.refuted and mechanism.plain and request.place:
        arguments = arguments_of_target(
            request.target(), request.args, stated_epsilon(request.stated)
        )
        case = describe_case(
            result, request.place, mechanism.torch, arguments, examination.find_counterexample()
        )
    return {"checked": result.as_json(), "first": found.first, "case": case}


def _first_calls_in_child(request: CheckRequest) -> dict[str, Any]:
    """The same first calls, in another process."""
    few = replace(request, calls=FEWEST_CALLS)
    first = _start_examination(few, lambda note: None).first_numbers()
    third = len(first) // 3
    return {"first": first, "varies": first[:third] != first[third : 2 * third]}


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
    max_calls: int | None = None,
    confidence: float = CONFIDENCE,
    record: bool = False,
    out: Path | str | None = None,
) -> Checked:
    """Look for what refutes a stated epsilon; the mechanism runs in a forked process.

    mechanism: a function on arrays, or a class that makes one from ``args`` (made anew for each
        transcript).
    stated: {"epsilon": 1.0, "delta": 1e-5} and what else ``CheckedClaim`` takes, or {"rho": 0.5}
        (zCDP) or {"mu": 1.0} (Gaussian DP), read at a delta of 1e-5 if none is given; kind and
        relation as there. kind None: guessed from the names of the
    arguments, and then nothing is refuted. calls: the statement covers so many on the same data;
    max_calls: that the looks
    share, None: as many as ``plan_calls`` says; seconds: of processor time, after which the check
        is stopped and *not decided*;
    record: replays with the mechanism's randomness held still, without the search, which decides
        nothing but what it refutes;
    out: a folder for check.html and findings.json.

    >>> check(mechanism, stated={"epsilon": 1.0, "delta": 1e-5}, kind="update").refuted  # doctest: +SKIP
    False

    Raises ValueError, one line, for what cannot be checked.
    """
    given = {**stated, "calls": calls, "inputs": inputs}
    given |= {
        name: value for name, value in (("kind", kind), ("relation", relation)) if value is not None
    }
    name = target_name(mechanism)
    budget: dict[str, Any] = {
        "seconds": seconds,
        "calls": max_calls,
        "confidence": confidence,
        "record": record,
    }
    place = target_place(mechanism)
    shapes = tried or InputShapes()
    result = run_check(
        CheckRequest(lambda: mechanism, name, given, args or {}, shapes, place=place, **budget)
    )
    if out is not None:
        write_check_page(result, Path(out))
    return result


def assert_private(mechanism: Callable[..., Any], **settings: Any) -> Checked:
    """``check`` for a test: AssertionError, one line, where the statement is refuted or nothing is
    decided."""
    result = check(mechanism, **settings)
    if result.refuted or result.is_undecided:
        raise AssertionError(result.says)
    return result


TARGETS = ("mechanism", "method", "attack")
CLAIM_KEYS = ("kind", "relation", "calls", "inputs")  # of the claim, though typed without "stated."


def read_truth(key: str, text: str) -> bool:
    return read_word("true", "false")(key, text) == "true"


CHECK = Command(
    "privdd-check mechanism=package.module:Name stated.epsilon=E stated.delta=D [KEY=VALUE ...]",
    "Is the stated epsilon true? Calls the mechanism on neighbouring inputs and looks "
    "for what refutes it.\n"
    "Exit status: 0 not refuted, 2 refuted, 4 not decided (a look was not made), 3 a "
    "limit of the policy is broken or not "
    "decided, 1 error.",
    (
        Key(
            "mechanism",
            read_text,
            "NAME",
            "a function or class: package.module:Name or file.py:Name; or of another library "
            "as it is installed (docs/components.md)",
        ),
        Key(
            "args.*",
            read_literal,
            "VALUE",
            "what a class is made with; for a function, a keyword of every call",
        ),
        Key(
            "kind",
            read_word(*get_args(Kind)),
            "",
            "update: f(list of arrays) -> list of arrays; aggregate: f(list of updates, list "
            "of weights) -> list of arrays; records: f(array (n, d)) -> array. Everything "
            "that is returned counts as released",
        ),
        Key(
            "relation",
            read_word(*get_args(Neighbours)),
            "",
            "add_remove, replace or zero_out (default: zero_out for updates, else add_remove)",
        ),
        Key(
            "calls",
            read_count(1),
            "T",
            "the stated epsilon covers T calls on the same data (default 1)",
        ),
        Key(
            "inputs",
            read_word(*get_args(Inputs)),
            "",
            "finite (default) or any: whether the statement holds for NaN and infinity too",
        ),
        Key("stated.epsilon", read_number, "E", "the statement, with stated.delta=D"),
        Key("stated.delta", read_number),
        Key(
            "stated.rho",
            read_number,
            "R",
            "instead of an epsilon: R-zCDP; stated.mu=M: M-Gaussian DP. Both are read at "
            "stated.delta (default 1e-5)",
        ),
        Key("stated.mu", read_number),
        Key(
            "stated.noise",
            read_word(*get_args(Law)),
            "",
            "gaussian or laplace: the law of the noise as declared, tested as well; "
            "stated.noise_std=S: its scale",
        ),
        Key("stated.noise_std", read_number),
        Key(
            "stated.noise_multiplier",
            read_number,
            "Z",
            "noise over sensitivity, declared: kappa is in its units",
        ),
        Key(
            "stated.sampling",
            read_word(*get_args(Sampling)),
            "",
            "shuffled or balls_in_bins: how batches are formed, declared, with "
            "stated.batches=N of an epoch and stated.epochs=E",
        ),
        Key("stated.batches", read_count(1)),
        Key("stated.epochs", read_count(1)),
        Key(
            "stated.low_bits",
            read_truth,
            "true",
            "the statement is about the released floats, to the last bit",
        ),
        Key("stated.tolerance", read_number, "0.05", "refuted only above (1 + tolerance) epsilon"),
        Key(
            "input.shapes",
            read_literal,
            "[[4,3],[4]]",
            "inputs of this shape only; input.rows=[20,6] and input.clients=10 likewise",
        ),
        Key("input.rows", read_literal),
        Key("input.clients", read_literal),
        Key(
            "max_calls",
            read_count(),
            "N",
            "calls that the looks share (default: up to a million, fewer of a slow "
            "mechanism); confidence=0.99 seed=0",
        ),
        Key(
            "seconds",
            read_number,
            "300",
            "processor time after which the check is stopped, and not decided",
        ),
        Key("confidence", read_number),
        Key("seed", read_count()),
        Key(
            "out",
            read_text,
            "DIR",
            "writes check.html and findings.json there, and where the statement is refuted "
            "reproduce.py, which shows it without privdd",
        ),
        Key(
            "policy",
            read_text,
            "FILE",
            "limits that the result has to keep, else exit status 3; fail_on.LIMIT=VALUE: "
            "one of them (docs/tutorials/gate.md)",
        ),
        Key("fail_on.*", read_text),
        Key(
            "record",
            read_truth,
            "true",
            "replays alone, without the search: what the record changes before noise, in "
            "names, shapes, noise and lines that run (docs/explanation/grey-box.md); it "
            "refutes, or is not decided",
        ),
        Key(
            "components",
            read_text,
            "FILE.md",
            "alone: checks the components of other libraries that are known here and writes "
            "their table",
        ),
        Key(
            "method",
            read_text,
            "NAME",
            "or attack=NAME: a plugin class of privdd itself, package.Name: does it keep its "
            "contract? (args.NAME=VALUE)",
        ),
        Key("attack", read_text),
    ),
)


def named_target(found: Mapping[str, Any]) -> tuple[str, str]:
    """(mechanism, method or attack; its name). Raises BadConfig where none is named, or several
    are."""
    named = [what for what in TARGETS if what in found]
    if len(named) != 1:
        raise BadConfig("one of mechanism=, method= and attack= is needed")
    return named[0], found[named[0]]


def check_request(found: Mapping[str, Any], adapter: Adapter) -> CheckRequest:
    """The check that was typed. Raises BadConfig, one line, for inputs that are of no such form."""
    name = named_target(found)[1]
    stated = values_below(found, "stated") | {key: found[key] for key in CLAIM_KEYS if key in found}
    return CheckRequest(
        lambda: load_target(name),
        name,
        stated,
        values_below(found, "args"),
        _parse_inputs(found),
        adapter,
        True,
        found.get("seconds", SECONDS),
        found.get("max_calls"),
        found.get("confidence", CONFIDENCE),
        name,
        found.get("record", False),
    )


def _parse_inputs(found: Mapping[str, Any]) -> InputShapes:
    given: dict[str, Any] = {"seed": found.get("seed", 0)}
    try:
        if "input.shapes" in found:
            given["structures"] = (
                tuple(tuple(int(n) for n in shape) for shape in found["input.shapes"]),
            )
        if "input.rows" in found:
            n, d = (int(k) for k in found["input.rows"])
            given["tables"] = ((n, d),)
        if "input.clients" in found:
            given["crowds"] = (int(found["input.clients"]),)
    except (TypeError, ValueError, OverflowError):
        raise BadConfig(
            "input.shapes=[[4,3],[4]], input.rows=[20,6] and input.clients=10 are of this form"
        ) from None
    tried = InputShapes(**given)
    sizes = [k for s in tried.structures for shape in s for k in shape] + [
        k for t in tried.tables for k in t
    ]
    if not all(1 <= k <= 100_000 for k in [*sizes, *tried.crowds]) or not all(tried.structures):
        raise BadConfig("input.*: sizes from 1 to 100000 are needed")
    return tried
