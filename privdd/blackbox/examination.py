"""Everything that is looked at, in an order in which most faults show early."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np

from privdd.blackbox import conditions
from privdd.blackbox.distinguishers import bound_by_distinguishing
from privdd.blackbox.inputs import (
    NeighbouringInputs,
    RankedPair,
    enlarge_neighbours,
    is_quiet,
    neighbouring_pairs,
    outcome_odds,
    pairs_at_revealing_sizes,
    pairs_of_record_alone,
    rank_by_odds,
    scaled_data,
    screen_pairs,
    size_of_data,
)
from privdd.blackbox.mechanism import (
    Data,
    InputRefused,
    OutOfShares,
    OutOfTime,
    PairSample,
    Sides,
    draw_transcripts,
    join_transcripts,
)
from privdd.blackbox.noise_laws import ShiftBound, bound_shift, exact_shift_bound, sampled_epsilon, tail_epsilon
from privdd.blackbox.replays import ReplayStage
from privdd.blackbox.stages import FEWEST, IdentificationStages, LawConfirmation, NoiseTailStage, UnevenNoiseStage
from privdd.blackbox.verdict import CURSORY, MADE, SPENT, ExactEpsilon, ExaminationResult

FINITE = 1e300
DEPTHS = (1000, 6000, 40_000)
ALL_LEFT = 400_000
SHARES = {DEPTHS[-1]: 0.25, ALL_LEFT: 0.8}  # of the time and the calls that are left
USUAL = 0.15  # the share for other depths
FIRST_LOOKS = 0.3  # the share for the first looks at the best pairs, together
SLOW = 0.7  # the share for the best pair of a mechanism whose calls are too few for those
LEARN = 20_000  # transcripts a side, at most; rare events show in many only
KEEP = 12
NAMED = 3  # pairs with rare names that are looked at beside the first
SAME_SEEDS = "two instances, made alike, add the same noise: whoever knows the code subtracts it"
STAGES = ("first calls", "replays", "search", "directions", "numbers without noise", "conditions", "closer looks")


@dataclass
class Examination(ReplayStage, IdentificationStages, UnevenNoiseStage, NoiseTailStage, LawConfirmation):
    """One mechanism against one statement."""

    names: ClassVar[tuple[str, ...]] = STAGES
    ranked: list[RankedPair] = field(default_factory=list)
    refused: list[NeighbouringInputs] = field(default_factory=list)  # of finite numbers
    _best: float = 0.0
    _embedded: bool = False
    _bound: float = 0.0  # the largest for any mechanism, of the pair ``_nearest`` to a refutation
    _top: float = 0.0  # the largest of all, of the pair ``_foremost``
    _before: dict[int, tuple[NeighbouringInputs, Sides]] = field(default_factory=dict)

    def run(self) -> ExaminationResult:
        """Every stage, or as many as the budget pays for."""
        try:
            for name, stage in zip(self.names, self._stages()):
                if any(look.strength == "certain" and look.outcome == "refuted" for look in self.result.looks):
                    break  # no number makes it worse
                self.step(name)
                stage()
        except OutOfShares:
            self.result.notes.append(f"{MADE} in the stage {name!r}; what follows it was not looked at")
        except OutOfTime:
            self.result.notes.append(f"{SPENT} in the stage {name!r}; what follows it was not looked at")
        return self.result

    def _stages(self) -> tuple[Callable[[], None], ...]:
        return (
            self._examine_first_calls,
            self.replay_neighbours,
            self._search_neighbours,
            self.examine_directions,
            self.examine_noiseless_numbers,
            self._examine_conditions,
            self._refine_best_pairs,
        )

    def _examine_first_calls(self) -> None:
        data = scaled_data(self.mechanism.kind, self.tried, 1.0)
        self.result.first = self.first_numbers()
        if self.mechanism.fresh and self.result.first:
            one, two = (self.mechanism.transcript([data, data]) for _ in range(2))
            half = len(one.numbers) // 2
            changes = not np.array_equal(one.numbers[:half], one.numbers[half:])
            if changes and np.array_equal(one.numbers, two.numbers):
                self._add_certain("seeds", SAME_SEEDS)
        self.result.looks += conditions.check_declared_batches(self.stated)
        given = self.mechanism, self.stated, self.tried, self.clock
        self.result.looks += conditions.check_declared_noise(*given, self.shares.next_confidence)

    def first_numbers(self) -> list[float]:
        """Of three transcripts alike, at most 20 numbers each: another process that gives them has the same noise."""
        block = draw_transcripts(self.mechanism, [scaled_data(self.mechanism.kind, self.tried, 1.0)], 3, self.clock)
        return [float(x) for x in block.rows[:, 0, :20].ravel()]

    def _search_neighbours(self) -> None:
        tried = self.stated_neighbours()
        if not self.numbers_given:
            tried += pairs_at_revealing_sizes(self.mechanism, self.stated.relation, self.tried, self.clock)
        self.ranked, refusals = screen_pairs(self.mechanism, tried, self.stated_calls, self.clock, 0.3, keep=KEEP)
        if refusals:
            refused = f"{len(refusals)} of {len(tried)} pairs were refused"
            self.result.notes.append(f"{refused}, the first with: {refusals[0][1]}")
        self.refused = [pair for pair, _ in refusals if is_quiet(pair.present, FINITE)]
        top = self.ranked[0].score
        self.ranked = [RankedPair(pair, top) for pair in self.shifted] + self.ranked
        self._nearest = self._foremost = self.ranked[0].pair
        foremost = self.ranked[: 2 + len(self.shifted)]
        # numbers rank pairs; a name that only the record brings may be rare beside them
        named = [one for one in rank_by_odds(self.ranked) if one.mixed and one not in foremost][:NAMED]
        for one in [*foremost, *named]:
            self._bound_pair(one.pair, DEPTHS[0], self.stated_calls, "neighbours", FIRST_LOOKS / len(foremost + named))

    def _search_worst_directions(self) -> None:
        """Neighbours along the directions in which the decoders saw most."""
        kind, relation = self.mechanism.kind, self.stated.relation
        tried = [pair for one in self.worst for pair in neighbouring_pairs(kind, relation, one)]
        if tried:
            found, _ = screen_pairs(self.mechanism, tried, self.stated_calls, self.clock, 0.1, keep=2)
            for one in found[:1]:
                self._bound_pair(one.pair, DEPTHS[0], self.stated_calls, "neighbours along the worst direction")
            self.ranked = sorted([*self.ranked, *found], key=lambda one: -one.score)

    def _search_larger_data(self) -> None:
        """Where outcomes come back: the pairs with the best odds, among more of the same others."""
        best = rank_by_odds(self.ranked)[:2]
        tried = [pair for one in best for pair in enlarge_neighbours(one.pair, self.mechanism.kind)]
        if not tried or self.numbers_given:
            return
        count = self._affordable_count(self.stated_calls(tried[-1].present), USUAL / len(tried) / 2, DEPTHS[0])
        if count < FEWEST:
            return
        for pair in tried:
            with suppress(InputRefused):
                self.ranked.append(RankedPair(pair, 0.0, outcome_odds(*self._draw_pair(pair, count), 1.0)))

    def _refine_best_pairs(self) -> None:
        """Until something is refuted: more transcripts of the best pairs; then one call between public ones."""
        for look in (
            self.examine_uneven_noise, self.examine_noise_tails, self._search_worst_directions, self._refine_slow_mechanism,
            self._search_larger_data,
        ):  # fmt: skip
            if not self.result.is_refuted:
                look()
        for depth in DEPTHS[1:]:
            # the best pair and the next; where outcomes come back, two sizes of data with the best odds
            few = _rank_by_odds(self.ranked, 2) or self.ranked[:2]
            for one in few if depth < DEPTHS[-1] else _best_by_size(self.ranked):
                if self.result.is_refuted and (depth > DEPTHS[1] or one is not self.ranked[0]):
                    return  # one closer look is made all the same: how far above is it?
                self._bound_pair(one.pair, depth, self.stated_calls, "neighbours")
            if depth == DEPTHS[1] and not self.result.is_refuted:
                self._examine_embedded_call()
        if not self.result.is_refuted:  # what is rare shows in many transcripts only
            self._bound_pair(self._nearest, ALL_LEFT, self.stated_calls, "neighbours, all that is left")

    def _refine_slow_mechanism(self) -> None:
        """Few calls, shared by many looks, refute nothing: after a short look at the others, one pair gets the larger part."""
        inputs = self.stated_calls(self._foremost.present)
        try:
            enough = self._affordable_count(inputs, USUAL, 2 * DEPTHS[1]) >= 2 * DEPTHS[1]
        except InputRefused:
            return
        if not enough:
            self._examine_embedded_call()  # while there are calls for it
            for one in _best_by_size(self.ranked):
                if id(one.pair) not in self._before and not self.result.is_refuted:
                    self._bound_pair(one.pair, FEWEST, self.stated_calls, "neighbours")
            self._bound_pair(self._foremost, ALL_LEFT, self.stated_calls, "neighbours, most of what is left", SLOW)

    def _examine_embedded_call(self) -> None:
        """One call among others on public data, and among others on the data without the record; once."""
        pairs, self._embedded = ([] if self._embedded else self.ranked[:1]), True
        for one in pairs:
            for other, name in ((None, "between public calls"), (one.pair.absent, "between calls without the record")):
                if not self.result.is_refuted:
                    around = partial(self.embedded_call, like=one.pair.present, other=other)
                    self._bound_pair(one.pair, 2 * DEPTHS[0], around, f"neighbours, {name}")

    def _examine_conditions(self) -> None:
        given = self.mechanism, self.stated, self.tried, self.clock
        self.result.looks += conditions.check_nonfinite_inputs(*given)
        self.result.looks += conditions.check_failures(self.mechanism, self.refused, self.clock)
        if self.stated.low_bits or not self.result.is_refuted:
            self.result.looks += conditions.check_low_bits(*given, self.shares.next_confidence())

    def _draw_sides(
        self, pair: NeighbouringInputs, depth: int, around: Callable[[Data], list[Data]], share: float
    ) -> tuple[Sides, Sides] | None:
        """Transcripts to learn from and new ones to judge: those of earlier looks at the same pair are learned from too."""
        count = self._affordable_count(around(pair.present), share, 2 * depth, 2 * FEWEST) // 2
        if count < FEWEST:
            return None
        same = around == self.stated_calls
        before = self._before[id(pair)][1] if same and id(pair) in self._before else None
        known = len(before[0]) if before else 0
        learn = min(max(0, count // 3 - known) if known else count // 2, LEARN)
        new = [self._draw_pair(pair, n, around) for n in (learn, count - learn) if n]
        fresh = new[-1]
        trained = _merge_sides(before, new[0]) if learn else before
        if trained is None:
            return None
        if same:
            self._before[id(pair)] = (pair, _merge_sides(trained, fresh))
        return trained, fresh

    def _bound_pair(
        self,
        pair: NeighbouringInputs,
        depth: int,
        around: Callable[[Data], list[Data]],
        name: str,
        share: float | None = None,
    ) -> None:
        """Every bound on one pair."""
        try:
            sides = self._draw_sides(pair, depth, around, share or SHARES.get(depth, USUAL))
        except InputRefused as no:
            self.result.notes.append(f"{name}: refused with: {no}")
            return
        if sides is None:
            self._note_skipped(name, CURSORY if id(pair) in self._before else "everywhere")
            return
        sample = PairSample(*sides, pair.axis, self.shift_of(pair) if around == self.stated_calls else None)
        if depth < ALL_LEFT and len(sample.fresh[0]) < depth / 4:
            self._note_skipped(name, CURSORY)
        apart = bound_by_distinguishing(sample, self._next_level())
        seen = f"told apart by {apart.how}" if apart.epsilon else "not told apart"
        says = f"two inputs are {seen}, {apart.transcripts} transcripts"
        if around == self.stated_calls and apart.epsilon > self._bound:
            self._bound, self._nearest = apart.epsilon, pair
        self._note_foremost(pair, apart.epsilon if around == self.stated_calls else 0.0)
        self._add_result(name, apart.epsilon, "finite_sample", says, pair.says, transcripts=apart.transcripts)
        held = partial(self.confirmed_epsilon, around(pair.absent), sample)
        if around == self.stated_calls and is_quiet(pair.absent, self.tried.nothing):
            tail = held("gaussian", tail_epsilon(sample, self._next_level()))
            says = "the share of releases that the record moves far is more than the law of the noise allows"
            self._add_fault(f"{name}, tail of the noise law", tail, "noise_law", says, pair.says)
            often = held("gaussian", sampled_epsilon(sample, self._next_level()))
            says = "the record moves the release by a chance amount, further or more often than stated"
            self._add_fault(f"{name}, moments under the noise law", often, "noise_law", says, pair.says)
        level = self._next_level()
        moved = exact_shift_bound(sample, level) or bound_shift(sample, level)
        if not moved.transcripts:
            return
        if moved.epsilon and not held(moved.law, moved.epsilon, exact=moved.exact):
            moved = ShiftBound("other", moved.mu, 0.0, 0.0, 0.0, moved.transcripts)
        if around == self.stated_calls:
            self._keep_shift(moved, pair)
            self._note_foremost(pair, moved.epsilon)
        says = f"the record shifts the release by {moved.mu:.3g} times its {moved.law} noise"
        if moved.exact:
            says += f", exactly: epsilon is {moved.about:.4g} by this law and this shift"
        name = f"{name}, noise law"
        self._add_result(name, moved.epsilon, "noise_law", says, pair.says, exact=moved.exact, mu=moved.mu)

    def find_counterexample(self) -> tuple[str, list[Data], list[Data]] | None:
        """(words, calls with the record, calls without it) of the neighbours on which most was shown; None where none were judged."""
        refuted = [one for one in self.result.looks if one.outcome == "refuted" and one.inputs in self.calls_by_words]
        if refuted:
            words = max(refuted, key=lambda one: one.epsilon).inputs
            return words, *self.calls_by_words[words]
        pair = self.ranked[0].pair if self.ranked else None
        return None if pair is None else (pair.says, self.stated_calls(pair.present), self.stated_calls(pair.absent))

    def _note_foremost(self, pair: NeighbouringInputs, epsilon: float) -> None:
        if epsilon > self._top:
            self._top, self._foremost = epsilon, pair

    def _keep_shift(self, moved: ShiftBound, pair: NeighbouringInputs) -> None:
        calls = self.stated.calls
        if moved.law == "other":
            return
        if self.result.kappa is None or moved.epsilon > self._best:
            self._best = moved.epsilon  # the best guess is that of the best bound: the largest guess is a lucky one
            of_laplace = moved.about / max(self.stated.epsilon, 1e-12)  # its epsilon grows with the shift
            of_gaussian = moved.mu / (self.stated.gaussian_mu_per_call * calls**0.5)
            self.result.kappa = of_gaussian if moved.law.endswith("gaussian") else of_laplace
            self.result.about = moved.about
            self.result.law, self.result.worst = moved.law, pair.says
        shift, best = self.shift_of(pair), self.result.exact
        more = best is None or moved.transcripts > best.transcripts
        if moved.exact and shift is not None and not self.unknown and more:
            norms = float(np.abs(shift).sum()), float(np.linalg.norm(shift))
            seen = {"transcripts": moved.transcripts, "pairs": self.compared}
            self.result.exact = ExactEpsilon(moved.law, moved.about, moved.epsilon, *norms, **seen, inputs=pair.says)


def _merge_sides(before: Sides | None, new: Sides) -> Sides:
    """At most LEARN of each side, the later ones; the new ones alone where they are of another size."""
    if before and all(one.rows.shape[1:] == other.rows.shape[1:] for one, other in zip(before, new)):
        new = join_transcripts(before[0], new[0]), join_transcripts(before[1], new[1])
    return new[0][-LEARN:], new[1][-LEARN:]


def _rank_by_odds(ranked: list[RankedPair], count: int) -> list[RankedPair]:
    """Those with the best odds; before them the best pair of all where its outcomes are too many to come back."""
    found = rank_by_odds(ranked)[:count]
    whole = not found or ranked[0] in found or (ranked[0].odds and not ranked[0].mixed)
    return found if whole else [ranked[0], *found]


def _best_by_size(ranked: list[RankedPair]) -> list[RankedPair]:
    """The pairs with the best odds, or the best of each size of data and of a record alone: what is rare shows in no
    average."""
    if found := _rank_by_odds(ranked, 3):
        return found
    best = {size_of_data(one.pair.present): one for one in reversed(ranked)}
    few = sorted(best.values(), key=ranked.index)[:3]
    return few + [one for one in pairs_of_record_alone(ranked)[:1] if one not in few]
