"""Everything that is looked at, in an order in which most faults show early."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from privdd.checking.accepted import accepted
from privdd.checking.called import BlackBox, Data, Refused
from privdd.checking.conditions import unusual_inputs
from privdd.checking.constant_parts import constant_part, scaled
from privdd.checking.declared_noise import declared
from privdd.checking.direction_game import games, play
from privdd.checking.float_bits import bits
from privdd.checking.looks import SPENT, Looked, Strength
from privdd.checking.neighbours import Neighbouring, Tried, broken, pairs
from privdd.checking.sampled import Clock, OutOfTime, affordable, drawn
from privdd.checking.screening import Ranked, screened
from privdd.checking.shift_law import Shift, shift
from privdd.checking.stated import Stated
from privdd.checking.told_apart import told_apart
from privdd.core.errors import BadConfig

FEWEST = 100  # transcripts of an input: from fewer nothing is learned
LOOKS = 48  # tests that share the error probability; at most so many are made
GAMES = 1200
DEPTHS = (1000, 6000, 40_000)
ALL_LEFT = 400_000
SHARES = {DEPTHS[-1]: 0.35, ALL_LEFT: 0.9}  # of the time and the calls that are left
LEARN = 20_000  # transcripts a side, at most; rare events show in many only
KEEP = 12
AFTER = 6  # calls that may still tell what an earlier one left behind
STAGES = ("first calls", "search", "directions", "numbers without noise", "conditions", "closer looks")


@dataclass
class Examined:
    """looks, and what was found out about the mechanism on the way."""

    looks: list[Looked] = field(default_factory=list)
    kappa: float | None = None
    about: float | None = None  # best guess of epsilon, under the noise's law
    law: str = ""
    worst: str = ""
    notes: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)

    @property
    def refuted(self) -> bool:
        return any(look.outcome == "refuted" for look in self.looks)


@dataclass
class Examination:
    """One mechanism against one statement. step: told the name of each stage as it begins."""

    mechanism: BlackBox
    stated: Stated
    tried: Tried
    clock: Clock
    confidence: float
    step: Callable[[str], None]
    result: Examined = field(default_factory=Examined)
    _best: float = 0.0
    _bound: float = 0.0  # the largest for any mechanism, of the pair ``_nearest`` to a refutation

    def __post_init__(self) -> None:
        self.each = 1 - (1 - self.confidence) / LOOKS
        self.rng = np.random.default_rng([self.tried.seed, 3])
        self.tried, notes = accepted(self.mechanism, self.tried)
        self.result.notes += notes
        if not pairs(self.mechanism.kind, self.stated.relation, self.tried):
            raise BadConfig(
                "no neighbours: tables of two rows at least are needed, or nothing is left without the record"
            )

    def run(self) -> Examined:
        """Every stage, or as many as the budget pays for."""
        try:
            for name, stage in zip(
                STAGES, (self._first, self._search, self._directions, self._constants, self._conditions, self._closer)
            ):
                self.step(name)
                stage()
        except OutOfTime:
            self.result.notes.append(f"{SPENT} in the stage {name!r}; what follows it was not looked at")
        return self.result

    def around(self, data: Data) -> list[Data]:
        """The calls that the statement is about."""
        return [data] * self.stated.calls

    def between(self, data: Data, like: Data | None = None) -> list[Data]:
        """One call on the data, one before it and several after it on data that are nobody's.

        like: data of the size of those; neighbours of different sizes need the same ones (default: ``data``).
        """
        other = scaled(self.mechanism.kind, self._like(data if like is None else like), 0.5)
        return [other, data, *[other] * AFTER]

    def _like(self, data: Data) -> Tried:
        """Inputs of the sizes of ``data``."""
        if self.mechanism.kind == "records":
            return replace(self.tried, tables=(data.shape,))
        updates = data[0] if self.mechanism.kind == "aggregate" else [data]
        shapes = tuple(np.shape(a) for a in updates[0])
        return replace(self.tried, structures=(shapes,), crowds=(len(updates),))

    def _first(self) -> None:
        data = scaled(self.mechanism.kind, self.tried, 1.0)
        self.result.first = self.first_numbers()
        if self.mechanism.fresh and self.result.first:
            one, two = (self.mechanism.transcript([data, data]) for _ in range(2))
            half = len(one.numbers) // 2
            changes = not np.array_equal(one.numbers[:half], one.numbers[half:])
            if changes and np.array_equal(one.numbers, two.numbers):
                self._say("seeds", "two instances, made alike, add the same noise: whoever knows the code subtracts it")
        self.result.looks += declared(self.mechanism, self.stated, self.tried, self.clock, self.each)

    def first_numbers(self) -> list[float]:
        """Of three transcripts alike, at most 20 numbers each: another process that gives them has the same noise."""
        block = drawn(self.mechanism, [scaled(self.mechanism.kind, self.tried, 1.0)], 3, self.clock)
        return [float(x) for x in block.rows[:, 0, :20].ravel()]

    def _say(self, name: str, says: str) -> None:
        self.result.looks.append(Looked(name, "refuted", says, float("inf"), "certain"))

    def _search(self) -> None:
        tried = pairs(self.mechanism.kind, self.stated.relation, self.tried)
        if self.stated.inputs == "any":
            tried = [
                broken(pair, self.mechanism.kind, value) for pair in tried[:3] for value in (np.nan, np.inf)
            ] + tried
        seconds = 0.3 * self.clock.left()
        self.ranked, refusals = screened(self.mechanism, tried, self.around, self.clock, seconds, keep=KEEP)
        if refusals:
            self.result.notes.append(
                f"{len(refusals)} of {len(tried)} pairs were refused, the first with: {refusals[0]}"
            )
        self._nearest = self.ranked[0].pair
        for one in self.ranked[:2]:
            self._look(one.pair, DEPTHS[0], self.around, "neighbours")

    def _directions(self) -> None:
        for around, name in ((self.around, "directions"), (self.between, "directions, between public calls")):
            for game in games(self.mechanism.kind, self.tried):
                if self.result.refuted and self._seen_free():
                    return
                try:
                    count = self._affordable(around(game.with_record(np.eye(game.dimensions)[0])), 0.1, GAMES)
                    if count < FEWEST:
                        self._left_out(name)
                        continue
                    found = play(self.mechanism, game, around, count, self.clock, self.rng,
                                 delta=self.stated.delta, confidence=self.each)  # fmt: skip
                except Refused as no:
                    self.result.notes.append(f"{name}: refused with: {no}")
                    continue
                says = f"the record's direction, one of a sphere, is read back with a cosine of {found.cosine:.3g}"
                self._add(name, found.epsilon, "finite_sample", says, found.says, transcripts=found.transcripts)

    def _seen_free(self) -> bool:
        """Whether a bound without assumptions refutes already: then the rest of the stage is left out."""
        return any(look.outcome == "refuted" and look.strength != "noise_law" for look in self.result.looks)

    def _constants(self) -> None:
        try:
            found = constant_part(self.mechanism, self.tried, self.clock, self.rng,
                                  delta=self.stated.delta, confidence=self.each)  # fmt: skip
        except Refused:
            return
        if found is not None:
            says = f"number {found.place} of the release has no noise and tells the record's size ({found.won} of 16 named)"
            self._add("numbers without noise", found.epsilon, "finite_sample", says, "a record of a secret norm")

    def _closer(self) -> None:
        """Until something is refuted: more transcripts of the best pairs; then one call between public ones."""
        for depth in DEPTHS[1:]:
            for one in self.ranked[:2] if depth < DEPTHS[-1] else _unalike(self.ranked):
                if self.result.refuted and (depth > DEPTHS[1] or one is not self.ranked[0]):
                    return  # one closer look is made all the same: how far above is it?
                self._look(one.pair, depth, self.around, "neighbours")
            if depth == DEPTHS[1] and not self.result.refuted:
                self._between()
        if not self.result.refuted:  # what is rare shows in many transcripts only
            self._look(self._nearest, ALL_LEFT, self.around, "neighbours, all that is left")

    def _between(self) -> None:
        for one in self.ranked[:1]:
            around = partial(self.between, like=one.pair.present)
            self._look(one.pair, 2 * DEPTHS[0], around, "neighbours, between public calls")

    def _conditions(self) -> None:
        self.result.looks += unusual_inputs(self.mechanism, self.stated, self.tried, self.clock)
        if self.result.refuted and not self.stated.low_bits:
            return
        self.result.looks += bits(self.mechanism, self.stated, self.tried, self.clock, self.each)

    def _left_out(self, name: str) -> None:
        """Say once that too little was left of the time or the calls."""
        note = f"{SPENT} before {name!r} could be looked at everywhere"
        if note not in self.result.notes:
            self.result.notes.append(note)

    def _affordable(self, inputs: list[Data], share: float, wanted: int) -> int:
        began = time.process_time()
        block = drawn(self.mechanism, inputs, 2, self.clock)
        cost = (time.process_time() - began) / 2
        calls = int(share * max(0, self.clock.calls - self.mechanism.calls) / len(inputs))
        return min(calls, affordable(cost, self.clock, share, wanted, block.rows[0].size))

    def _look(self, pair: Neighbouring, depth: int, around: Callable[[Data], list[Data]], name: str) -> None:
        """Half of the transcripts to learn from, the others to judge."""
        try:
            count = self._affordable(around(pair.present), SHARES.get(depth, 0.15), 2 * depth) // 2
            if count < FEWEST:
                self._left_out(name)
                return
            learn = min(count // 2, LEARN)
            sides = [
                [drawn(self.mechanism, around(side), n, self.clock) for side in (pair.present, pair.absent)]
                for n in (learn, count - learn)
            ]
        except Refused as no:
            self.result.notes.append(f"{name}: refused with: {no}")
            return
        trained, fresh = ((blocks[0], blocks[1]) for blocks in sides)
        apart = told_apart(trained, fresh, pair.axis, delta=self.stated.delta, confidence=self.each)
        seen = f"told apart by {apart.how}" if apart.epsilon else "not told apart"
        says = f"two inputs are {seen}, {apart.transcripts} transcripts"
        if around == self.around and apart.epsilon > self._bound:
            self._bound, self._nearest = apart.epsilon, pair
        self._add(name, apart.epsilon, "finite_sample", says, pair.says, transcripts=apart.transcripts)
        moved = shift(trained, fresh, pair.axis, delta=self.stated.delta, confidence=self.each)
        if not moved.transcripts:
            return
        if around == self.around:
            self._keep(moved, pair)
        says = f"the record shifts the release by {moved.mu:.3g} times its {moved.law} noise"
        self._add(f"{name}, noise law", moved.epsilon, "noise_law", says, pair.says, mu=moved.mu)

    def _keep(self, moved: Shift, pair: Neighbouring) -> None:
        calls = self.stated.calls
        if moved.law == "other":
            return
        if self.result.kappa is None or moved.epsilon > self._best:
            self._best = moved.epsilon  # the best guess is that of the best bound: the largest guess is a lucky one
            of_laplace = moved.about / max(self.stated.epsilon, 1e-12)  # its epsilon grows with the shift
            of_gaussian = moved.mu / (self.stated.mu * calls**0.5)
            self.result.kappa = of_laplace if moved.law == "laplace" else of_gaussian
            self.result.about = moved.about
            self.result.law, self.result.worst = moved.law, pair.says

    def _add(self, name: str, epsilon: float, strength: Strength, says: str, inputs: str, **numbers: float) -> None:
        outcome = "refuted" if epsilon > self.stated.limit else "not refuted"
        self.result.looks.append(Looked(name, outcome, says, epsilon, strength, inputs, numbers))


def _unalike(ranked: list[Ranked]) -> list[Ranked]:
    """The best pair of each size of data: what happens rarely shows in none of the averages that pairs are ranked by."""
    best: dict[tuple[Any, ...], Ranked] = {}
    for one in ranked:
        best.setdefault(_size(one.pair.present), one)
    return list(best.values())[:3]


def _size(data: Data) -> tuple[Any, ...]:
    if isinstance(data, np.ndarray):
        return data.shape
    return (len(data[0]), len(data[0][0])) if isinstance(data, tuple) else (len(data),)
