"""What a stated limit rests on, part by part, and which test looked at each part: verdicts follow from this list alone.

A test says in its finding (``diagnostics``) at which parts it looked, for the mechanisms that its ``signal`` names, and
in which rounds: ``covers`` = {part: rounds}. What it declined, left out, or could not read is ``untested`` = {part: why}.
A part that no test covers is untested, and so is one that any test had to leave out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dp_accounting as dpa

from attacks.types import Family, Finding
from privdd.privacy.ledger import Ledger, Release

NOISE = "noise"  # the law of each number's noise
JOINT_NOISE = "joint noise"  # numbers, releases, rounds and clients do not share it, and it does not take itself off
SAMPLING = "sampling"  # independent coins of the probability that the accounting counts on
SENSITIVITY = "sensitivity"  # how far one record (or client) moves the value before noise
MEMORY = "memory"  # what the client keeps of earlier rounds
MESSAGES = "messages"  # all that leaves beside the releases
LEDGER = "ledger"  # each release is in it, as it was made
WHOLE_RUN = "whole run"  # all releases of all rounds together

PARTS: Mapping[str, Sequence[str]] = {  # part -> the tests that can look at it
    NOISE: ("t0_noise",),
    JOINT_NOISE: ("t0_noise",),
    SAMPLING: ("t0_sampling",),
    SENSITIVITY: ("t1_sensitivity",),
    MEMORY: ("t1_told",),
    MESSAGES: ("t1_told",),
    LEDGER: ("t0_ledger",),
    WHOLE_RUN: ("t2_whole_run",),
}
FIRST = (NOISE, SAMPLING, SENSITIVITY)  # all that runs were judged by whose tests did not yet say what they looked at


@dataclass(frozen=True)
class TestedPart:
    """One part of what a mechanism's limit rests on. test: that covered it, in ``rounds``; why: of what is untested."""

    name: str
    part: str
    test: str = ""
    rounds: tuple[int, ...] = ()
    why: str = ""

    @property
    def untested(self) -> str:
        """As the page says it; "" where the part was tested."""
        return f"{self.name}, {self.part}: {self.why}" if self.why else ""


def covered(test: str, rounds: Collection[int]) -> dict[str, Any]:
    """For a finding's diagnostics: all parts that ``test`` can look at were looked at, in these rounds."""
    return {"covers": {part: sorted(rounds) for part in _parts(test)}}


def left_out(test: str, why: str) -> dict[str, Any]:
    """For a finding's diagnostics: none of them was, for the reason ``why``."""
    return {"untested": dict.fromkeys(_parts(test), why)}


def _parts(test: str) -> Iterator[str]:
    return (part for part, tests in PARTS.items() if test in tests)


def rests_on(ledger: Ledger, surface: str, findings: Sequence[Finding]) -> list[TestedPart]:
    """The list of a surface: every part of every mechanism that it was computed from."""
    rows: dict[str, list[Release]] = {}
    for row in ledger.closure([surface]):
        if row.protected:
            rows.setdefault(row.name, []).append(row)
    tests = [f for f in findings if f.family == Family.GUARANTEE]
    return [_look(name, part, tests) for name, made in sorted(rows.items()) for part in _needed(made, tests)]


def gaps(ledger: Ledger, surface: str, findings: Sequence[Finding]) -> list[str]:
    """What no test looked at of the mechanisms behind a surface, and why: "name, part: why" each."""
    return [look.untested for look in rests_on(ledger, surface, findings) if look.untested]


def _needed(rows: Sequence[Release], tests: Sequence[Finding]) -> Iterator[str]:
    sampled = any(isinstance(row.event, dpa.PoissonSampledDpEvent) for row in rows)
    told = any("covers" in _diagnostics(test) for test in tests)
    return (part for part in (PARTS if told else FIRST) if sampled or part != SAMPLING)


def _look(name: str, part: str, tests: Sequence[Finding]) -> TestedPart:
    found = [f for f in tests if f.attack in PARTS[part] and name in str(f.measures.get("signal", "")).split(", ")]
    missed = [why for why in (_missed(one, part) for one in found) if why]
    rounds = [(one.attack, _covers(one, part)) for one in found]
    done = [(test, at) for test, at in rounds if at]
    if done and not missed:
        return TestedPart(name, part, done[0][0], tuple(sorted({t for _, at in done for t in at})))
    return TestedPart(name, part, why=missed[0] if missed else _note(found) or "no test applies to it")


def _diagnostics(finding: Finding) -> Mapping[str, Any]:
    made: Mapping[str, Any] = finding.measures.get("diagnostics") or {}
    return made


def _covers(finding: Finding, part: str) -> Sequence[int] | None:
    """The rounds in which a test looked at a part; none or None where it did not. A row of a run that was stored before tests
    said so covers what it has measured, in some round."""
    said = _diagnostics(finding)
    if "covers" in said or "untested" in said:
        rounds: Sequence[int] | None = said.get("covers", {}).get(part)
        return rounds
    return (0,) if part in FIRST and ("kappa" in finding.measures or "p_value" in said) else None


def _missed(finding: Finding, part: str) -> str:
    said = _diagnostics(finding).get("untested") or {}
    return str(said if isinstance(said, str) else said.get(part, ""))


def _note(found: Sequence[Finding]) -> str:
    return str(found[0].measures.get("note", "")) if found else ""
