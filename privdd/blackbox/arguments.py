"""Arguments of ``python -m privdd.check``: KEY=VALUE, each understood or refused in one line."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from privdd.blackbox.inputs import InputShapes
from privdd.blackbox.runner import CALLS, CONFIDENCE, SECONDS
from privdd.core.validation import BadConfig, check_integer, check_number, parse_literal

USAGE = """usage: privdd-check mechanism=package.module:Name stated.epsilon=E stated.delta=D [KEY=VALUE ...]

Is the stated epsilon true? Calls the mechanism on neighbouring inputs and looks for what refutes it.
Exit status: 0 not refuted, 2 refuted, 1 error.

  mechanism=NAME      a function or class: package.module:Name or file.py:Name; also of flwr and opacus (docs/components.md)
  args.NAME=VALUE     what a class is made with; for a function, keywords of every call
  kind=               update: f(list of arrays) -> list of arrays; aggregate: f(list of updates, list of weights) -> list of
                      arrays; records: f(array (n, d)) -> array. Everything that is returned counts as released
  relation=           add_remove, replace or zero_out (default: zero_out for updates, else add_remove)
  calls=T             the stated epsilon covers T calls on the same data (default 1)
  inputs=             finite (default) or any: whether the statement holds for NaN and infinity too
  stated.epsilon= stated.delta=             the statement
  stated.noise=gaussian|laplace stated.noise_std=S     declared noise, tested as well
  stated.noise_multiplier=Z                 noise over sensitivity, declared: kappa is in its units
  stated.low_bits=true                      the statement is about the released floats, to the last bit
  stated.tolerance=0.05                     refuted only above (1 + tolerance) epsilon
  input.shapes=[[4,3],[4]] input.rows=[20,6] input.clients=10     inputs of this shape only
  seconds=45          processor time to spend; max_calls=4000000; confidence=0.99; seed=0
  out=DIR             writes check.html and findings.json there

  components=FILE.md  checks the components of other libraries that are known here and writes their table

  method=package.Name | attack=package.Name   a plugin class of privdd itself: does it keep its contract? (args.NAME=VALUE)
"""
TOP = ("mechanism", "method", "attack", "kind", "relation", "calls", "inputs", "seconds", "max_calls", "confidence",
       "seed", "out")  # fmt: skip
STATED = ("epsilon", "delta", "noise", "noise_std", "noise_multiplier", "low_bits", "tolerance")
INPUT = ("shapes", "rows", "clients")


@dataclass(frozen=True)
class CheckArguments:
    """The command line. what: mechanism, method or attack; name: of the class or function."""

    what: str
    name: str
    stated: Mapping[str, Any]
    args: Mapping[str, Any]
    tried: InputShapes = InputShapes()
    seconds: float = SECONDS
    calls: int = CALLS
    confidence: float = CONFIDENCE
    out: Path | None = None
    given: Sequence[str] = field(default=())


def parse_arguments(argv: Sequence[str]) -> CheckArguments:
    """Raises BadConfig, one line, for anything that is not understood."""
    found: dict[str, Any] = {}
    for item in argv:
        key, equals, text = item.partition("=")
        if not equals or text == "":
            hint = f"; did you mean mechanism={item}?" if ":" in item and not equals else ""
            raise BadConfig(f"{item}: KEY=VALUE is needed{hint}")
        if key in found:
            raise BadConfig(f"{key}: given twice")
        found[_check_key(key)] = text if key in ("mechanism", "method", "attack", "out") else parse_literal(text)
    whats = [what for what in ("mechanism", "method", "attack") if what in found]
    if len(whats) != 1:
        raise BadConfig("one of mechanism=, method= and attack= is needed")
    stated = {key.removeprefix("stated."): value for key, value in found.items() if key.startswith("stated.")}
    stated |= {key: found[key] for key in ("kind", "relation", "calls", "inputs") if key in found}
    for key in ("epsilon", "delta", "noise_std", "noise_multiplier", "tolerance", "calls"):
        if key in stated:
            stated[key] = (
                check_integer(key, stated[key], 1) if key == "calls" else _parse_number(f"stated.{key}", stated[key])
            )
    if stated.get("low_bits", False) not in (True, False):
        raise BadConfig(f"stated.low_bits={stated['low_bits']}: true or false is needed")
    return CheckArguments(
        whats[0],
        found[whats[0]],
        stated,
        {key.removeprefix("args."): value for key, value in found.items() if key.startswith("args.")},
        _parse_inputs(found),
        _parse_number("seconds", found.get("seconds", SECONDS)),
        check_integer("max_calls", found.get("max_calls", CALLS)),
        _parse_number("confidence", found.get("confidence", CONFIDENCE)),
        Path(found["out"]) if "out" in found else None,
        tuple(argv),
    )


def _check_key(key: str) -> str:
    keys = [*TOP, *(f"stated.{name}" for name in STATED), *(f"input.{name}" for name in INPUT)]
    if key in keys or (key.startswith("args.") and key[5:].isidentifier()):
        return key
    close = difflib.get_close_matches(key, keys, 1)
    raise BadConfig(f"{key}: unknown; {f'did you mean {close[0]}?' if close else 'see --help'}")


def _parse_number(name: str, value: Any) -> float:
    check_number(name, value)
    return float(value)


def _parse_inputs(found: Mapping[str, Any]) -> InputShapes:
    tried = InputShapes(seed=check_integer("seed", found.get("seed", 0)))
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
