"""What every stage of an examination needs: the mechanism, the budget, and a place for what is found."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from privdd.checking.accepted import accepted
from privdd.checking.called import BlackBox, Data
from privdd.checking.constant_parts import scaled
from privdd.checking.error_shares import ErrorShares
from privdd.checking.examined import Examined
from privdd.checking.looks import SPENT, Looked, Strength
from privdd.checking.neighbours import CLIENTS, RECORDS, SHAPES, Tried, pairs
from privdd.checking.sampled import Clock, affordable, drawn
from privdd.checking.stated import Stated
from privdd.core.errors import BadConfig

FEWEST = 100  # transcripts of an input: from fewer nothing is learned
TIMED = 20  # transcripts by which the cost of one is told, where they are cheap
AFTER = 6  # calls that may still tell what an earlier one left behind


@dataclass
class Examining:
    """One mechanism against one statement. step: told the name of each stage as it begins."""

    mechanism: BlackBox
    stated: Stated
    tried: Tried
    clock: Clock
    confidence: float
    step: Callable[[str], None]
    result: Examined = field(default_factory=Examined)
    worst: list[Tried] = field(default_factory=list)  # inputs along the directions in which most was seen

    def __post_init__(self) -> None:
        self.shares = ErrorShares(self.confidence)
        self.rng = np.random.default_rng([self.tried.seed, 3])
        of_tables = self.tried.tables != RECORDS
        tables = self.mechanism.kind == "records"
        self.shapes_given = of_tables if tables else self.tried.structures != SHAPES
        self.numbers_given = of_tables if tables else self.tried.crowds != CLIENTS
        self.tried, notes = accepted(self.mechanism, self.tried)
        self.result.notes += notes
        if not pairs(self.mechanism.kind, self.stated.relation, self.tried):
            raise BadConfig(
                "no neighbours: tables of two rows at least are needed, or nothing is left without the record"
            )

    def around(self, data: Data) -> list[Data]:
        """The calls that the statement is about."""
        return [data] * self.stated.calls

    def between(self, data: Data, like: Data | None = None, other: Data | None = None) -> list[Data]:
        """One call on the data, one before it and several after it on data that are nobody's.

        like: data of the size of those; neighbours of different sizes need the same ones (default: ``data``). other: those
        data themselves.
        """
        if other is None:
            other = scaled(self.mechanism.kind, self._like(data if like is None else like), 0.5)
        return [other, data, *[other] * AFTER]

    def _like(self, data: Data) -> Tried:
        """Inputs of the sizes of ``data``."""
        if self.mechanism.kind == "records":
            return replace(self.tried, tables=(data.shape,))
        updates = data[0] if self.mechanism.kind == "aggregate" else [data]
        shapes = tuple(np.shape(a) for a in updates[0])
        return replace(self.tried, structures=(shapes,), crowds=(len(updates),))

    def _test(self, bounds: int = 1) -> dict[str, float]:
        """What a test is asked for; each of its bounds takes a share of the error probability."""
        return {"delta": self.stated.delta, "confidence": self.shares.one(bounds)}

    def _seen_free(self) -> bool:
        """Whether a bound without assumptions refutes already: then the rest of the stage is left out."""
        return any(look.outcome == "refuted" and look.strength != "noise_law" for look in self.result.looks)

    def _left_out(self, name: str, how: str = "everywhere") -> None:
        """Say once that too little was left of the time or the calls."""
        note = f"{SPENT} before {name!r} could be looked at {how}"
        if note not in self.result.notes:
            self.result.notes.append(note)

    def _affordable(self, inputs: list[Data], share: float, wanted: int) -> int:
        for count in (2, TIMED):  # the first calls are slower than those that follow
            began = time.process_time()
            block = drawn(self.mechanism, inputs, count, self.clock)
            cost = (time.process_time() - began) / count
            if cost * TIMED > 0.005 * self.clock.left() or len(inputs) * TIMED > 0.001 * self.clock.calls:
                break
        calls = int(share * max(0, self.clock.calls - self.mechanism.calls) / len(inputs))
        return min(calls, affordable(cost, self.clock, share, wanted, block.rows[0].size))

    def _add_fault(self, name: str, epsilon: float, strength: Strength, fault: str, inputs: str) -> None:
        """A look for one fault, which is said to be there only where the bound refutes the statement."""
        says = fault if epsilon > self.stated.limit else f"not seen: {fault}"
        self._add(name, epsilon, strength, says, inputs)

    def _add(self, name: str, epsilon: float, strength: Strength, says: str, inputs: str, **numbers: float) -> None:
        outcome = "refuted" if epsilon > self.stated.limit else "not refuted"
        self.result.looks.append(Looked(name, outcome, says, epsilon, strength, inputs, numbers))
