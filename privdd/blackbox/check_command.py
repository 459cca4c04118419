"""The command line of a check. Imports no torch, so that its help is quick."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from privdd.blackbox.claim_words import Inputs, Kind, Law, Neighbours, Sampling
from privdd.core.command import (
    Command,
    Key,
    read_count,
    read_literal,
    read_number,
    read_text,
    read_truth,
    read_word,
)
from privdd.core.validation import BadConfig

TARGETS = ("mechanism", "method", "attack")


CHECK = Command(
    "privdd-check mechanism=package.module:Name stated.epsilon=E stated.delta=D [KEY=VALUE ...]",
    "Is the stated epsilon true? Calls the mechanism on neighbouring inputs and searches "
    "for a refutation.\n"
    "Exit status: 0 not refuted, 2 refuted, 4 not decided (a test was not made), 3 a "
    "threshold of the policy is violated or not "
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
            "an argument of the class's constructor, or of every call of a function",
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
            "calls that the tests share (default: up to a million, fewer of a slow "
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
            "writes check.html and findings.json there, and, if the statement is refuted, "
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
            "replays alone, without the search: changes by the record before noise, in "
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


def named_target(values: Mapping[str, Any]) -> tuple[str, str]:
    """(mechanism, method or attack; its name). Raises BadConfig if none is named, or several
    are."""
    named = [what for what in TARGETS if what in values]
    if len(named) != 1:
        raise BadConfig("one of mechanism=, method= and attack= is needed")
    (what,) = named
    return what, values[what]
