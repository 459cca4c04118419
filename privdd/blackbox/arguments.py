"""Arguments of ``python -m privdd.check``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from privdd.blackbox.claim import Inputs, Kind, Law, Neighbours, Sampling
from privdd.blackbox.inputs import InputShapes
from privdd.blackbox.runner import CALLS, CONFIDENCE, SECONDS, Adapter, CheckRequest
from privdd.blackbox.target import load_target
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

TARGETS = ("mechanism", "method", "attack")
CLAIM_KEYS = ("kind", "relation", "calls", "inputs")  # of the claim, though typed without "stated."


def read_truth(key: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise BadConfig(f"{key}={text}: true or false is needed")
    return text == "true"


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
    tried = InputShapes(seed=found.get("seed", 0))
    try:
        if "input.shapes" in found:
            shapes = tuple(tuple(int(n) for n in shape) for shape in found["input.shapes"])
            tried = replace(tried, structures=(shapes,))
        if "input.rows" in found:
            n, d = (int(k) for k in found["input.rows"])
            tried = replace(tried, tables=((n, d),))
        if "input.clients" in found:
            tried = replace(tried, crowds=(int(found["input.clients"]),))
    except (TypeError, ValueError, OverflowError):
        raise BadConfig("input.shapes=[[4,3],[4]], input.rows=[20,6] and input.clients=10 are of this form") from None
    sizes = [k for s in tried.structures for shape in s for k in shape] + [k for t in tried.tables for k in t]
    if not all(1 <= k <= 100_000 for k in [*sizes, *tried.crowds]) or not all(tried.structures):
        raise BadConfig("input.*: sizes from 1 to 100000 are needed")
    return tried
