"""One check from beginning to end."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attacks.tradeoff import gaussian_epsilon
from privdd.blackbox.budgets import CallBudget
from privdd.blackbox.check_page import write_check_page
from privdd.blackbox.check_report import SingleTestResult
from privdd.blackbox.check_run import CheckRun, start_check_run
from privdd.blackbox.check_verdict import BREAKS, GUESSED, UNDECIDED, Checked, conclude_check
from privdd.blackbox.child_process import run_in_child
from privdd.blackbox.claims import CheckedClaim, zcdp_epsilon
from privdd.blackbox.examination import examine, examine_replays, find_counterexample
from privdd.blackbox.inputs import InputShapes, scaled_data
from privdd.blackbox.mechanism import BlackBox
from privdd.blackbox.reproduction import describe_case
from privdd.blackbox.stages.first_calls import first_numbers
from privdd.blackbox.target import (
    arguments_of_target,
    guess_kind,
    make_target,
    target_name,
    target_place,
)
from privdd.core.validation import BadConfig, setting_error

# of processor time: where a check is stopped, not what it is planned for
SECONDS = 300.0
CONFIDENCE = 0.99
WALL = 20  # seconds on the wall for each of processor time, on a machine that others use too
FEWEST_CALLS = 100_000  # if no number is named; for each call of a statement about several
LEAST_CALLS = 1000  # that may be named
MOST_CALLS = 1_000_000
MOST_STATED = 20  # calls of a statement up to which that is so
PLANNED = 15.0  # seconds of processor time for the calls of a slow mechanism, which gets fewer
LONGER = 0.2  # of the seconds that were asked for, if that is more
# the fastest block tells the cost of a call
TIMED_BLOCKS = 5
TIMED_CALLS = 10
# seconds between looks at the clock, and between notes on how far the check is
HEARTBEAT = 0.25
NOTE_SECONDS = 5.0
DEFAULT_DELTA = 1e-5  # at which zCDP and Gaussian DP are read
SAME = "two fresh starts gave the same noise: whoever runs the same code can subtract it"
Adapter = Callable[[Any, Mapping[str, Any], Mapping[str, Any]], "tuple[Any, dict[str, Any]] | None"]


@dataclass(frozen=True)
class CheckRequest:
    """What to check, and how much of it.

    Attributes:
        target: -> the callable or class, called in the child.
        name: of it.
        stated: fields of ``CheckedClaim``; kind may be missing.
        args: of a class, or keywords of a function.
        tried: sizes of inputs.
        adapter: turns components of other libraries into callables.
        restarts: whether a second process loads the mechanism afresh.
        seconds: of processor time, after which the check is stopped undecided; the limit on the
            wall is ``WALL`` times that.
        calls: that the looks share; None: ``plan_calls``.
        confidence: of all bounds together, in [0.5, 1).
        place: where others find the target, as ``load_target`` takes it.
        record: replays alone (``examine_replays``).
    """

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


Step = Callable[[str, float], None]  # called with the stage and the share of the calls made


def run_check(
    request: CheckRequest, step: Step = lambda stage, share: None, command: str = ""
) -> Checked:
    """Examine a mechanism in a child process.

    Args:
        request: what to check.
        step: called with the stage and the share of the calls that are made.
        command: that the result repeats.

    Raises:
        BadConfig: one line, for what cannot be checked.
    """
    has_calls = request.calls is None or request.calls >= LEAST_CALLS
    has_seconds = 0 < request.seconds < math.inf
    if not (has_seconds and has_calls and 0.5 <= request.confidence < 1):
        raise BadConfig(
            "finite seconds above 0, calls of at least 1000 and confidence in [0.5, 1) are needed"
        )
    wall = WALL * request.seconds

    def read_note(note: Mapping[str, Any]) -> None:
        step(str(note["stage"]), float(note["share"]))

    answer = run_in_child(lambda say: _examine_in_child(request, say), wall, read_note)
    result = Checked.from_json({**answer["checked"], "command": command})
    result = replace(result, case=answer["case"])
    may_restart = request.restarts and not request.record and not result.refuted
    if may_restart and answer["first"]:
        step("a second start", 1.0)
        second = run_in_child(lambda say: _first_calls_in_child(request), wall)
        if second["varies"] and second["first"] == answer["first"]:
            return _refute_by_restart(result)
    return result


def _refute_by_restart(result: Checked) -> Checked:
    """The result with the fact that two starts gave the same noise; undecided if the kind was
    guessed."""
    look = SingleTestResult("seeds", "refuted", SAME, math.inf, "certain")
    looks = (*result.looks, look)
    result = replace(result, looks=looks, certified=math.inf, certified_any=math.inf)
    if result.stated.kind_is_guessed:
        reason = GUESSED.format(kind=result.stated.kind)
        return replace(result, verdict=UNDECIDED, undecided=(reason,))
    return replace(result, verdict=BREAKS)


def _make_mechanism(request: CheckRequest) -> tuple[BlackBox, CheckedClaim]:
    # inputs with NaN and of extreme size make a sound mechanism warn too
    warnings.simplefilter("ignore")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    target = request.target()
    stated = dict(request.stated)
    args = dict(request.args)
    adapted = request.adapter(target, args, stated)
    if adapted is not None:
        target, defaults = adapted
        args = {}
        stated = {**defaults, **stated}
    make, fresh = make_target(target, args, stated_epsilon(stated))
    claim = read_claim(stated, make)
    return BlackBox(make, claim.kind, fresh=fresh, plain=adapted is None), claim


def stated_epsilon(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The statement with its epsilon: that of zCDP and Gaussian DP follows from rho and mu.

    Args:
        stated: fields of ``CheckedClaim``, one of epsilon, rho and mu among them.

    Raises:
        BadConfig: none of them is there, or several are, or one is out of range.
    """
    named = [name for name in ("epsilon", "rho", "mu") if name in stated]
    if not named:
        raise BadConfig(
            "stated.epsilon= is needed: the epsilon that is to be checked (or "
            "stated.rho=, stated.mu=)"
        )
    if len(named) > 1:
        keys = " and ".join(f"stated.{name}=" for name in named)
        raise BadConfig(f"{keys}: one statement at a time is checked")
    (name,) = named
    if name == "epsilon":
        if "delta" not in stated:
            raise BadConfig(
                "stated.delta= is needed: 0 for a pure epsilon (Laplace noise), else as "
                "in stated.delta=1e-5"
            )
        return dict(stated)
    value = float(stated[name])
    delta = float(stated.get("delta", DEFAULT_DELTA))
    if not 0 < value < math.inf:
        raise setting_error(f"stated.{name}", value, "a finite number above 0 is needed")
    if not 0 < delta < 1:
        raise setting_error(
            "stated.delta", delta, f"a number in (0, 1) is needed, at which stated.{name} is read"
        )
    if name == "rho":
        epsilon = zcdp_epsilon(value, delta)
    else:
        epsilon = gaussian_epsilon(value, delta)
    return {**stated, "delta": delta, "epsilon": epsilon}


def read_claim(stated: Mapping[str, Any], make: Callable[[], Any]) -> CheckedClaim:
    """The statement, with the kind of mechanism and the relation that nobody named.

    Args:
        stated: fields of ``CheckedClaim``.
        make: -> the callable, whose arguments tell its kind if nobody says it.

    Raises:
        BadConfig: a field is out of range, or the kind cannot be guessed.
    """
    kind = stated.get("kind") or guess_kind(make())
    usual = "zero_out" if kind == "update" else "add_remove"
    terms = {
        "kind": kind,
        "relation": stated.get("relation") or usual,
        "kind_is_guessed": not stated.get("kind"),
    }
    return CheckedClaim(**{**stated_epsilon(stated), **terms})


def plan_calls(mechanism: BlackBox, claim: CheckedClaim, tried: InputShapes, seconds: float) -> int:
    """How many calls the looks of a check share.

    ``MOST_CALLS``, and fewer of a mechanism whose calls take long, but never so few that a look
    could not be made: so the load of a machine decides no verdict.

    Args:
        mechanism: whose calls are timed.
        claim: the statement.
        tried: sizes of inputs.
        seconds: of processor time that were asked for.
    """
    data = scaled_data(mechanism.kind, tried, 1.0)
    cost = math.inf
    for _ in range(TIMED_BLOCKS):
        began = time.process_time()
        for _ in range(TIMED_CALLS):
            mechanism.transcript([data])
        cost = min(cost, (time.process_time() - began) / TIMED_CALLS)
    fewest = FEWEST_CALLS * min(claim.calls, MOST_STATED)
    planned_seconds = PLANNED
    if seconds > SECONDS:
        planned_seconds = max(PLANNED, LONGER * seconds)
    planned = planned_seconds / max(cost, 1e-7)
    return int(max(fewest, min(planned, MOST_CALLS)))


@dataclass
class ProgressNotes:
    """Tells how far a check is every few seconds, and stops it once its time is spent.

    Attributes:
        say: called with the stage and the share of the calls that are made.
        run: the check.
        stage: that it is in.
        checked: when the time was compared with the budget last, in seconds.
        noted: when a note was sent last.
    """

    say: Callable[[Mapping[str, Any]], None]
    run: CheckRun
    stage: str = ""
    checked: float = field(default_factory=time.monotonic)
    noted: float = field(default_factory=time.monotonic)

    def begin_stage(self, name: str) -> None:
        self.stage = name
        self._send_note(time.monotonic())

    def __call__(self) -> None:
        """Before each transcript. Raises OutOfTime."""
        now = time.monotonic()
        if now - self.checked < HEARTBEAT:
            return
        self.checked = now
        if now - self.noted >= NOTE_SECONDS:
            self._send_note(now)
        self.run.budget.check_time()

    def _send_note(self, now: float) -> None:
        self.noted = now
        share = self.run.mechanism.calls / self.run.budget.calls
        self.say({"stage": self.stage, "share": min(share, 1.0)})


def _start_run(request: CheckRequest) -> CheckRun:
    mechanism, claim = _make_mechanism(request)
    # after the imports, which are not the mechanism's time
    budget = CallBudget(request.seconds, request.calls or MOST_CALLS)
    run = start_check_run(mechanism, claim, request.tried, budget, request.confidence)
    if request.calls is None:
        budget.calls = plan_calls(mechanism, claim, run.inputs, request.seconds)
    return run


def _examine_in_child(
    request: CheckRequest, say: Callable[[Mapping[str, Any]], None]
) -> dict[str, Any]:
    began = time.process_time()
    run = _start_run(request)
    notes = ProgressNotes(say, run)
    run.mechanism.on_transcript = notes
    if request.record:
        report = examine_replays(run, notes.begin_stage)
    else:
        report = examine(run, begin_stage=notes.begin_stage)
    mechanism = run.mechanism
    result = conclude_check(
        request.name,
        run.claim,
        report,
        confidence=request.confidence,
        calls=mechanism.calls,
        seconds=time.process_time() - began,
    )
    case = None
    if result.refuted and mechanism.plain and request.place:
        arguments = arguments_of_target(
            request.target(), request.args, stated_epsilon(request.stated)
        )
        example = find_counterexample(run)
        case = describe_case(result, request.place, mechanism.torch, arguments, example)
    return {"checked": result.as_json(), "first": report.first, "case": case}


def _first_calls_in_child(request: CheckRequest) -> dict[str, Any]:
    """The same first calls, in another process."""
    first_request = replace(request, calls=FEWEST_CALLS)
    run = _start_run(first_request)
    run.mechanism.on_transcript = run.budget.check_time
    first = first_numbers(run)
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

    Args:
        mechanism: a function on arrays, or a class that makes one from ``args`` (made anew for each
            transcript).
        stated: {"epsilon": 1.0, "delta": 1e-5} and what else ``CheckedClaim`` takes, or {"rho":
            0.5} (zCDP) or {"mu": 1.0} (Gaussian DP), read at a delta of 1e-5 if none is given.
        kind: update, aggregate or records; None: guessed from the names of the arguments, and then
            nothing is refuted.
        relation: add_remove, replace or zero_out; None: zero_out for updates, else add_remove.
        calls: the statement covers so many on the same data.
        inputs: finite, or any: whether the statement holds for NaN and infinity too.
        args: of a class, or keywords of a function.
        tried: sizes of inputs; None: several.
        seconds: of processor time, after which the check is stopped and *not decided*.
        max_calls: that the looks share, at least 1000; None: as many as ``plan_calls`` says.
        confidence: of all bounds together, in [0.5, 1).
        record: replays with the mechanism's randomness held still, without the search, which
            decides nothing but what it refutes.
        out: a folder for check.html and findings.json.

    Returns:
        The verdict, with all looks.

    Raises:
        ValueError: one line, for what cannot be checked.

    Example:
        >>> stated = {"epsilon": 1.0, "delta": 1e-5}
        >>> check(mechanism, stated=stated, kind="update").refuted  # doctest: +SKIP
        False
    """
    claim = {**stated, "calls": calls, "inputs": inputs}
    if kind is not None:
        claim["kind"] = kind
    if relation is not None:
        claim["relation"] = relation
    request = CheckRequest(
        target=lambda: mechanism,
        name=target_name(mechanism),
        stated=claim,
        args=args or {},
        tried=tried or InputShapes(),
        seconds=seconds,
        calls=max_calls,
        confidence=confidence,
        place=target_place(mechanism),
        record=record,
    )
    result = run_check(request)
    if out is not None:
        write_check_page(result, Path(out))
    return result


def assert_private(mechanism: Callable[..., Any], **settings: Any) -> Checked:
    """``check`` for a test.

    Args:
        mechanism: a function on arrays, or a class that makes one.
        **settings: those of ``check``.

    Raises:
        AssertionError: one line, if the statement is refuted or nothing is decided.
    """
    result = check(mechanism, **settings)
    if result.refuted or result.is_undecided:
        raise AssertionError(result.says)
    return result
