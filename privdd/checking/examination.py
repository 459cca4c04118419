"""Everything that is looked at, in an order in which most faults show early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from privdd.checking.called import Data, Refused
from privdd.checking.conditions import failures, unusual_inputs
from privdd.checking.constant_parts import scaled
from privdd.checking.crowded import crowded
from privdd.checking.declared_noise import declared
from privdd.checking.error_shares import OutOfShares
from privdd.checking.examined import Examined
from privdd.checking.examining import FEWEST
from privdd.checking.float_bits import bits
from privdd.checking.law_confirmed import BelievedLaw, Sides
from privdd.checking.looks import MADE, SPENT, Looked
from privdd.checking.neighbours import Neighbouring, broken, pairs
from privdd.checking.noise_tails import NoiseTails
from privdd.checking.sampled import Block, OutOfTime, drawn, joined_blocks
from privdd.checking.sampled_law import sampled_epsilon
from privdd.checking.screening import Ranked, alone, by_odds, odds, screened, size_of_data
from privdd.checking.secret_records import SecretRecords
from privdd.checking.shift_law import Shift, shift
from privdd.checking.tail_law import quiet, tail_epsilon
from privdd.checking.telling_sizes import at_telling_sizes
from privdd.checking.told_apart import told_apart
from privdd.checking.uneven_noise import UnevenNoise

DEPTHS = (1000, 6000, 40_000)
ALL_LEFT = 400_000
SHARES = {DEPTHS[-1]: 0.25, ALL_LEFT: 0.8}  # of the time and the calls that are left
USUAL = 0.15  # the share for other depths
SLOW = 0.7  # the share for the best pair of a mechanism whose calls are too few for those
LEARN = 20_000  # transcripts a side, at most; rare events show in many only
KEEP = 12
STAGES = ("first calls", "search", "directions", "numbers without noise", "conditions", "closer looks")


@dataclass
class Examination(SecretRecords, UnevenNoise, NoiseTails, BelievedLaw):
    """One mechanism against one statement."""

    ranked: list[Ranked] = field(default_factory=list)
    refused: list[Neighbouring] = field(default_factory=list)  # of finite numbers
    _best: float = 0.0
    _bound: float = 0.0  # the largest for any mechanism, of the pair ``_nearest`` to a refutation
    _top: float = 0.0  # the largest of all, of the pair ``_foremost``
    _before: dict[int, tuple[Neighbouring, Sides]] = field(default_factory=dict)

    def run(self) -> Examined:
        """Every stage, or as many as the budget pays for."""
        try:
            for name, stage in zip(
                STAGES, (self._first, self._search, self.directions, self.constants, self._conditions, self._closer)
            ):
                self.step(name)
                stage()
        except OutOfShares:
            self.result.notes.append(f"{MADE} in the stage {name!r}; what follows it was not looked at")
        except OutOfTime:
            self.result.notes.append(f"{SPENT} in the stage {name!r}; what follows it was not looked at")
        return self.result

    def _first(self) -> None:
        data = scaled(self.mechanism.kind, self.tried, 1.0)
        self.result.first = self.first_numbers()
        if self.mechanism.fresh and self.result.first:
            one, two = (self.mechanism.transcript([data, data]) for _ in range(2))
            half = len(one.numbers) // 2
            changes = not np.array_equal(one.numbers[:half], one.numbers[half:])
            if changes and np.array_equal(one.numbers, two.numbers):
                self._say("seeds", "two instances, made alike, add the same noise: whoever knows the code subtracts it")
        self.result.looks += declared(self.mechanism, self.stated, self.tried, self.clock, self.shares.one)

    def first_numbers(self) -> list[float]:
        """Of three transcripts alike, at most 20 numbers each: another process that gives them has the same noise."""
        block = drawn(self.mechanism, [scaled(self.mechanism.kind, self.tried, 1.0)], 3, self.clock)
        return [float(x) for x in block.rows[:, 0, :20].ravel()]

    def _say(self, name: str, says: str) -> None:
        self.result.looks.append(Looked(name, "refuted", says, float("inf"), "certain"))

    def _search(self) -> None:
        tried = pairs(self.mechanism.kind, self.stated.relation, self.tried)
        odd = [broken(pair, self.mechanism.kind, value) for pair in tried[:3] for value in (np.nan, np.inf)]
        tried = [*odd, *tried] if self.stated.inputs == "any" else tried
        if not self.numbers_given:
            tried += at_telling_sizes(self.mechanism, self.stated.relation, self.tried, self.clock)
        self.ranked, refusals = screened(self.mechanism, tried, self.around, self.clock, 0.3, keep=KEEP)
        if refusals:
            self.result.notes.append(
                f"{len(refusals)} of {len(tried)} pairs were refused, the first with: {refusals[0][1]}"
            )
        self.refused = [pair for pair, _ in refusals if all(pair is not one for one in odd)]
        self._nearest = self._foremost = self.ranked[0].pair
        for one in self.ranked[:2]:
            self._look(one.pair, DEPTHS[0], self.around, "neighbours")

    def _along_worst(self) -> None:
        """Neighbours along the directions in which the decoders saw most."""
        tried = [pair for one in self.worst for pair in pairs(self.mechanism.kind, self.stated.relation, one)]
        if tried:
            found, _ = screened(self.mechanism, tried, self.around, self.clock, 0.1, keep=2)
            for one in found[:1]:
                self._look(one.pair, DEPTHS[0], self.around, "neighbours along the worst direction")
            self.ranked = sorted([*self.ranked, *found], key=lambda one: -one.score)

    def _among_more(self) -> None:
        """Where outcomes come back: the pairs with the best odds, among more of the same others."""
        tried = [pair for one in by_odds(self.ranked)[:2] for pair in crowded(one.pair, self.mechanism.kind)]
        if not tried or self.numbers_given:
            return
        count = self._affordable(self.around(tried[-1].present), USUAL / len(tried) / 2, DEPTHS[0])
        if count < FEWEST:
            return
        for pair in tried:
            try:
                one, other = (
                    drawn(self.mechanism, self.around(side), count, self.clock) for side in (pair.present, pair.absent)
                )
            except Refused:
                continue
            self.ranked.append(Ranked(pair, 0.0, odds(one, other, 1.0)))

    def _closer(self) -> None:
        """Until something is refuted: more transcripts of the best pairs; then one call between public ones."""
        if not self.result.refuted:
            self.uneven()
        if not self.result.refuted:
            self.tails()
        if not self.result.refuted:
            self._if_slow()
        if not self.result.refuted:
            self._along_worst()
            self._among_more()
        for depth in DEPTHS[1:]:
            for one in self._worth_it() if depth < DEPTHS[-1] else _unalike(self.ranked):
                if self.result.refuted and (depth > DEPTHS[1] or one is not self.ranked[0]):
                    return  # one closer look is made all the same: how far above is it?
                self._look(one.pair, depth, self.around, "neighbours")
            if depth == DEPTHS[1] and not self.result.refuted:
                self._between()
        if not self.result.refuted:  # what is rare shows in many transcripts only
            self._look(self._nearest, ALL_LEFT, self.around, "neighbours, all that is left")

    def _worth_it(self) -> list[Ranked]:
        """The best pair and the next; where outcomes come back, two sizes of data with the best odds (``_by_odds``)."""
        return _by_odds(self.ranked, 2) or self.ranked[:2]

    def _if_slow(self) -> None:
        """Few calls, shared by many looks, refute nothing: one pair gets the larger part of what is left."""
        inputs = self.around(self._foremost.present)
        try:
            enough = self._affordable(inputs, USUAL, 2 * DEPTHS[1]) >= 2 * DEPTHS[1]
        except Refused:
            return
        if not enough:
            self._look(self._foremost, ALL_LEFT, self.around, "neighbours, most of what is left", SLOW)

    def _between(self) -> None:
        """One call among others on public data, and among others on the data without the record."""
        for one in self.ranked[:1]:
            for other, name in ((None, "between public calls"), (one.pair.absent, "between calls without the record")):
                if not self.result.refuted:
                    around = partial(self.between, like=one.pair.present, other=other)
                    self._look(one.pair, 2 * DEPTHS[0], around, f"neighbours, {name}")

    def _conditions(self) -> None:
        self.result.looks += unusual_inputs(self.mechanism, self.stated, self.tried, self.clock)
        self.result.looks += failures(self.mechanism, self.refused, self.clock)
        if self.result.refuted and not self.stated.low_bits:
            return
        self.result.looks += bits(self.mechanism, self.stated, self.tried, self.clock, self.shares.one())

    def _sides(
        self, pair: Neighbouring, depth: int, around: Callable[[Data], list[Data]], share: float
    ) -> tuple[Sides, Sides] | None:
        """Transcripts to learn from and new ones to judge: those of earlier looks at the same pair are learned from too."""
        count = self._affordable(around(pair.present), share, 2 * depth) // 2
        if count < FEWEST:
            return None
        same = around == self.around
        before = self._before[id(pair)][1] if same and id(pair) in self._before else None
        known = len(before[0]) if before else 0
        learn = min(max(0, count // 3 - known) if known else count // 2, LEARN)
        new = [
            [drawn(self.mechanism, around(side), n, self.clock) for side in (pair.present, pair.absent)]
            for n in (learn, count - learn)
            if n
        ]
        fresh = (new[-1][0], new[-1][1])
        trained = _both(before, (new[0][0], new[0][1])) if learn else before
        if trained is None:
            return None
        if same:
            self._before[id(pair)] = (pair, _both(trained, fresh))
        return trained, fresh

    def _look(
        self,
        pair: Neighbouring,
        depth: int,
        around: Callable[[Data], list[Data]],
        name: str,
        share: float | None = None,
    ) -> None:
        """Every bound on one pair."""
        try:
            sides = self._sides(pair, depth, around, share or SHARES.get(depth, USUAL))
        except Refused as no:
            self.result.notes.append(f"{name}: refused with: {no}")
            return
        if sides is None:
            self._left_out(name)
            return
        trained, fresh = sides
        if depth < ALL_LEFT and len(fresh[0]) < depth / 4:
            self._left_out(name, "as closely as planned")
        apart = told_apart(trained, fresh, pair.axis, **self._test())
        seen = f"told apart by {apart.how}" if apart.epsilon else "not told apart"
        says = f"two inputs are {seen}, {apart.transcripts} transcripts"
        if around == self.around and apart.epsilon > self._bound:
            self._bound, self._nearest = apart.epsilon, pair
        self._foremost_is(pair, apart.epsilon if around == self.around else 0.0)
        self._add(name, apart.epsilon, "finite_sample", says, pair.says, transcripts=apart.transcripts)
        held = partial(self.held, around(pair.absent), trained, fresh)
        if around == self.around and quiet(pair.absent, self.tried.nothing):
            tail = held("gaussian", tail_epsilon(trained, fresh, pair.axis, **self._test()))
            says = "the share of releases that the record moves far is more than the law of the noise allows"
            self._add_fault(f"{name}, tail of the noise law", tail, "noise_law", says, pair.says)
            often = held("gaussian", sampled_epsilon(trained, fresh, pair.axis, **self._test()))
            says = "the record moves the release by a chance amount, further or more often than stated"
            self._add_fault(f"{name}, moments under the noise law", often, "noise_law", says, pair.says)
        moved = shift(trained, fresh, pair.axis, **self._test())
        if not moved.transcripts:
            return
        if moved.epsilon and not held(moved.law, moved.epsilon):
            moved = Shift("other", moved.mu, 0.0, 0.0, 0.0, moved.transcripts)
        if around == self.around:
            self._keep(moved, pair)
            self._foremost_is(pair, moved.epsilon)
        says = f"the record shifts the release by {moved.mu:.3g} times its {moved.law} noise"
        self._add(f"{name}, noise law", moved.epsilon, "noise_law", says, pair.says, mu=moved.mu)

    def _foremost_is(self, pair: Neighbouring, epsilon: float) -> None:
        if epsilon > self._top:
            self._top, self._foremost = epsilon, pair

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


def _both(before: Sides | None, new: Sides) -> Sides:
    """At most LEARN of each side, the later ones; the new ones alone where they are of another size."""
    made = [joined_blocks(one, other) for one, other in zip(before, new)] if before else [None, None]
    one, other = new if made[0] is None or made[1] is None else (made[0], made[1])
    return Block(one.rows[-LEARN:], one.codes[-LEARN:]), Block(other.rows[-LEARN:], other.codes[-LEARN:])


def _by_odds(ranked: list[Ranked], count: int) -> list[Ranked]:
    """Those with the best odds; before them the best pair of all where its outcomes are too many to come back."""
    found = by_odds(ranked)[:count]
    whole = not found or ranked[0] in found or (ranked[0].odds and not ranked[0].mixed)
    return found if whole else [ranked[0], *found]


def _unalike(ranked: list[Ranked]) -> list[Ranked]:
    """The best pair of each size of data, and the best of a record alone: what happens rarely, or at the end of a range,
    shows in none of the averages that pairs are ranked by.

    Where outcomes come back, those with the best odds.
    """
    if found := _by_odds(ranked, 3):
        return found
    best: dict[tuple[Any, ...], Ranked] = {}
    for one in ranked:
        best.setdefault(size_of_data(one.pair.present), one)
    few = list(best.values())[:3]
    return few + [one for one in alone(ranked)[:1] if one not in few]
