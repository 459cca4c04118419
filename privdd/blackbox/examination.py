"""Everything that is looked at, in an order in which most faults show early.

Conditions under which a statement holds: non-finite inputs, declared noise, low bits of
    floating-point numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from scipy import stats

from attacks.epsilon import best_threshold, from_scores
from attacks.low_bits import lowest_set_bits
from attacks.statistics import shared_confidence
from privdd.blackbox.dependence import DependenceStage
from privdd.blackbox.distinguishers import bound_by_distinguishing
from privdd.blackbox.inputs import (
    InputShapes,
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
    with_nonfinite_number,
)
from privdd.blackbox.mechanism import (
    TINY,
    BlackBox,
    CallBudget,
    CheckedClaim,
    Data,
    InputRefused,
    OutOfCalls,
    OutOfShares,
    OutOfTime,
    PairSample,
    Sides,
    draw_transcripts,
    join_transcripts,
)
from privdd.blackbox.noise_laws import (
    ShiftBound,
    bound_shift,
    exact_shift_bound,
    noise_law,
    sampled_epsilon,
    tail_epsilon,
)
from privdd.blackbox.stages import (
    FEWEST,
    IdentificationStages,
    LawConfirmation,
    NoiseTailStage,
    UnevenNoiseStage,
)
from privdd.blackbox.verdict import (
    CALLS_SPENT,
    CURSORY,
    MADE,
    SPENT,
    ExaminationResult,
    SingleTestResult,
)
from privdd.privacy.batch_bounds import bound_batch_epsilon

FINITE = 1e300
DEPTHS = (1000, 6000, 40_000)
ALL_LEFT = 400_000
SHARES = {DEPTHS[-1]: 0.25, ALL_LEFT: 0.8}  # of the calls that are left
USUAL = 0.15  # the share for other depths
FIRST_LOOKS = 0.3  # the share for the first looks at the best pairs, together
SLOW = 0.7  # the share for the best pair of a mechanism whose calls are too few for those
LEARN = 20_000  # transcripts a side, at most; rare events show in many only
KEEP = 12
NAMED = 3  # pairs with rare names that are looked at beside the first
SAME_SEEDS = "two instances, made alike, add the same noise: whoever knows the code subtracts it"
STAGES = (
    "first calls",
    "replays",
    "what depends on the record",
    "search",
    "directions",
    "numbers without noise",
    "conditions",
    "closer looks",
)


@dataclass
class Examination(
    DependenceStage, IdentificationStages, UnevenNoiseStage, NoiseTailStage, LawConfirmation
):
    """One mechanism against one statement."""

    names: ClassVar[tuple[str, ...]] = STAGES
    ranked: list[RankedPair] = field(default_factory=list)
    refused: list[NeighbouringInputs] = field(default_factory=list)  # of finite numbers
    _embedded: bool = False
    _bound: float = 0.0  # the largest for any mechanism, of the pair ``_nearest`` to a refutation
    _top: float = 0.0  # the largest of all, of the pair ``_foremost``
    _before: dict[int, tuple[NeighbouringInputs, Sides]] = field(default_factory=dict)

    def run(self) -> ExaminationResult:
        """Every stage, or as many as the budget pays for."""
        try:
            for name, stage in zip(self.names, self._stages()):
                if any(
                    look.outcome == "refuted" and math.isinf(look.epsilon)
                    for look in self.result.looks
                ):
                    break  # no number makes it worse
                self.step(name)
                stage()
        except OutOfShares:
            self._break_off(MADE, name)
        except OutOfCalls:
            self._break_off(CALLS_SPENT, name)
        except OutOfTime:
            self._break_off(SPENT, name)
        return self.result

    def _break_off(self, reason: str, stage: str) -> None:
        self.result.undecided.append(
            f"{reason} in the stage {stage!r}; what follows it was not looked at"
        )

    def _stages(self) -> tuple[Callable[[], None], ...]:
        return (
            self._examine_first_calls,
            self.replay_neighbours,
            self.examine_dependence,
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
        self.result.looks += check_declared_batches(self.stated)
        given = self.mechanism, self.stated, self.tried, self.clock
        self.result.looks += check_declared_noise(*given, self.shares.next_confidence)

    def first_numbers(self) -> list[float]:
        """At most 20 numbers of each of three transcripts; a second process that returns the same
        ones draws the same noise."""
        block = draw_transcripts(
            self.mechanism, [scaled_data(self.mechanism.kind, self.tried, 1.0)], 3, self.clock
        )
        return [float(x) for x in block.rows[:, 0, :20].ravel()]

    def _search_neighbours(self) -> None:
        tried = self.stated_neighbours()
        if not self.numbers_given:
            tried += pairs_at_revealing_sizes(
                self.mechanism, self.stated.relation, self.tried, self.clock
            )
        self.ranked, refusals = screen_pairs(
            self.mechanism, tried, self.stated_calls, self.clock, 0.3, keep=KEEP
        )
        if refusals:
            refused = f"{len(refusals)} of {len(tried)} pairs were refused"
            self.result.notes.append(f"{refused}, the first with: {refusals[0][1]}")
        self.refused = [pair for pair, _ in refusals if is_quiet(pair.present, FINITE)]
        top = self.ranked[0].score
        replayed = list(
            {id(pair): pair for pair in [*self.shifted, *self.dependent_pairs()]}.values()
        )
        self.ranked = [RankedPair(pair, top) for pair in replayed] + self.ranked
        self._nearest = self._foremost = self.ranked[0].pair
        foremost = self.ranked[: 2 + len(replayed)]
        # numbers rank pairs; a name that only the record brings may be rare beside them
        named = [one for one in rank_by_odds(self.ranked) if one.mixed and one not in foremost][
            :NAMED
        ]
        for one in [*foremost, *named]:
            self._bound_pair(
                one.pair,
                DEPTHS[0],
                self.stated_calls,
                "neighbours",
                FIRST_LOOKS / len(foremost + named),
            )

    def _search_worst_directions(self) -> None:
        """Neighbours along the directions in which the decoders saw most."""
        kind = self.mechanism.kind
        relation = self.stated.relation
        tried = [pair for one in self.worst for pair in neighbouring_pairs(kind, relation, one)]
        if tried:
            found, _ = screen_pairs(
                self.mechanism, tried, self.stated_calls, self.clock, 0.1, keep=2
            )
            for one in found[:1]:
                self._bound_pair(
                    one.pair, DEPTHS[0], self.stated_calls, "neighbours along the worst direction"
                )
            self.ranked = sorted([*self.ranked, *found], key=lambda one: -one.score)

    def _search_larger_data(self) -> None:
        """Where outcomes come back: the pairs with the best odds, among more of the same others."""
        best = rank_by_odds(self.ranked)[:2]
        tried = [pair for one in best for pair in enlarge_neighbours(one.pair, self.mechanism.kind)]
        if not tried or self.numbers_given:
            return
        count = self._affordable_count(
            self.stated_calls(tried[-1].present), USUAL / len(tried) / 2, DEPTHS[0]
        )
        if count < FEWEST:
            return
        for pair in tried:
            with suppress(InputRefused):
                self.ranked.append(
                    RankedPair(pair, 0.0, outcome_odds(*self._draw_pair(pair, count), 1.0))
                )

    def _refine_best_pairs(self) -> None:
        """Until something is refuted: more transcripts of the best pairs; then one call between
        public ones."""
        for look in (
            self.examine_uneven_noise,
            self.examine_noise_tails,
            self._search_worst_directions,
            self._refine_slow_mechanism,
            self._search_larger_data,
        ):
            if not self.result.is_refuted:
                look()
        for depth in DEPTHS[1:]:
            # the best pair and the next; where outcomes come back, two sizes of data with the best
            # odds
            few = _rank_by_odds(self.ranked, 2) or self.ranked[:2]
            for one in few if depth < DEPTHS[-1] else _best_by_size(self.ranked):
                if self.result.is_refuted and (depth > DEPTHS[1] or one is not self.ranked[0]):
                    return  # one closer look is made all the same: how far above is it?
                self._bound_pair(one.pair, depth, self.stated_calls, "neighbours")
            if depth == DEPTHS[1] and not self.result.is_refuted:
                self._examine_embedded_call()
        if not self.result.is_refuted:  # what is rare shows in many transcripts only
            self._bound_pair(
                self._nearest, ALL_LEFT, self.stated_calls, "neighbours, all that is left"
            )

    def _refine_slow_mechanism(self) -> None:
        """Few calls, shared by many looks, refute nothing: after a short look at the others, one
        pair gets the larger part."""
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
            self._bound_pair(
                self._foremost,
                ALL_LEFT,
                self.stated_calls,
                "neighbours, most of what is left",
                SLOW,
            )

    def _examine_embedded_call(self) -> None:
        """One call among others on public data, and among others on the data without the record;
        once."""
        pairs = [] if self._embedded else self.ranked[:1]
        self._embedded = True
        for one in pairs:
            for other, name in (
                (None, "between public calls"),
                (one.pair.absent, "between calls without the record"),
            ):
                if not self.result.is_refuted:
                    around = partial(self.embedded_call, like=one.pair.present, other=other)
                    self._bound_pair(one.pair, 2 * DEPTHS[0], around, f"neighbours, {name}")

    def _examine_conditions(self) -> None:
        given = self.mechanism, self.stated, self.tried, self.clock
        self.result.looks += check_nonfinite_inputs(*given)
        self.result.looks += check_failures(self.mechanism, self.refused, self.clock)
        if self.stated.low_bits or not self.result.is_refuted:
            self.result.looks += check_low_bits(*given, self.shares.next_confidence())

    def _draw_sides(
        self,
        pair: NeighbouringInputs,
        depth: int,
        around: Callable[[Data], list[Data]],
        share: float,
    ) -> tuple[Sides, Sides] | None:
        """Transcripts to learn from and new ones to judge: those of earlier looks at the same pair
        are learned from too."""
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
        sample = PairSample(
            *sides, pair.axis, self.shift_of(pair) if around == self.stated_calls else None
        )
        if depth < ALL_LEFT and len(sample.fresh[0]) < depth / 4:
            self._note_skipped(name, CURSORY)
        apart = bound_by_distinguishing(sample, self._next_level())
        seen = f"told apart by {apart.how}" if apart.epsilon else "not told apart"
        says = f"two inputs are {seen}, {apart.transcripts} transcripts"
        if around == self.stated_calls and apart.epsilon > self._bound:
            self._bound = apart.epsilon
            self._nearest = pair
        self._note_foremost(pair, apart.epsilon if around == self.stated_calls else 0.0)
        self._add_result(
            name, apart.epsilon, "finite_sample", says, pair.says, transcripts=apart.transcripts
        )
        held = partial(self.confirmed_epsilon, around(pair.absent), sample)
        if around == self.stated_calls and is_quiet(pair.absent, self.tried.nothing):
            tail = held("gaussian", tail_epsilon(sample, self._next_level()))
            says = (
                "the share of releases that the record moves far is more than the law of the "
                "noise allows"
            )
            self._add_fault(f"{name}, tail of the noise law", tail, "noise_law", says, pair.says)
            often = held("gaussian", sampled_epsilon(sample, self._next_level()))
            says = (
                "the record moves the release by a chance amount, further or more often than stated"
            )
            self._add_fault(
                f"{name}, moments under the noise law", often, "noise_law", says, pair.says
            )
        level = self._next_level()
        moved = exact_shift_bound(sample, level) or bound_shift(sample, level)
        if not moved.transcripts:
            return
        if moved.epsilon and not held(moved.law, moved.epsilon, exact=moved.exact):
            moved = ShiftBound("other", moved.mu, 0.0, 0.0, 0.0, moved.transcripts)
        if around == self.stated_calls:
            self.keep_shift(moved, pair)
            self._note_foremost(pair, moved.epsilon)
        says = f"the record shifts the release by {moved.mu:.3g} times its {moved.law} noise"
        if moved.exact:
            says += f", exactly: epsilon is {moved.about:.4g} by this law and this shift"
        name = f"{name}, noise law"
        trusts = {"exact": moved.exact, "law": moved.law}
        self._add_result(name, moved.epsilon, "noise_law", says, pair.says, **trusts, mu=moved.mu)

    def find_counterexample(self) -> tuple[str, list[Data], list[Data]] | None:
        """(words, calls with the record, calls without it) of the neighbours on which most was
        shown; None where none were judged."""
        refuted = [
            one
            for one in self.result.looks
            if one.outcome == "refuted" and one.inputs in self.calls_by_words
        ]
        if refuted:
            words = max(refuted, key=lambda one: one.epsilon).inputs
            return words, *self.calls_by_words[words]
        pair = self.ranked[0].pair if self.ranked else None
        return (
            None
            if pair is None
            else (pair.says, self.stated_calls(pair.present), self.stated_calls(pair.absent))
        )

    def _note_foremost(self, pair: NeighbouringInputs, epsilon: float) -> None:
        if epsilon > self._top:
            self._top = epsilon
            self._foremost = pair


def _merge_sides(before: Sides | None, new: Sides) -> Sides:
    """At most LEARN of each side, the later ones; the new ones alone where they are of another
    size."""
    if before and all(
        one.rows.shape[1:] == other.rows.shape[1:] for one, other in zip(before, new)
    ):
        new = join_transcripts(before[0], new[0]), join_transcripts(before[1], new[1])
    return new[0][-LEARN:], new[1][-LEARN:]


def _rank_by_odds(ranked: list[RankedPair], count: int) -> list[RankedPair]:
    """Those with the best odds; before them the best pair of all where its outcomes are too many to
    come back."""
    found = rank_by_odds(ranked)[:count]
    whole = not found or ranked[0] in found or (ranked[0].odds and not ranked[0].mixed)
    return found if whole else [ranked[0], *found]


def _best_by_size(ranked: list[RankedPair]) -> list[RankedPair]:
    """The pairs with the best odds, or the best of each size of data and of a record alone: what is
    rare shows in no average."""
    if found := _rank_by_odds(ranked, 3):
        return found
    best = {size_of_data(one.pair.present): one for one in reversed(ranked)}
    few = sorted(best.values(), key=ranked.index)[:3]
    return few + [one for one in pairs_of_record_alone(ranked)[:1] if one not in few]


CONDITION_CALLS = 30
FAILED = 10  # calls on each side of a pair that was refused
PAIRS = 3  # of those
SCALAR = (
    (),
    (5,),
)  # shapes of an update with a number of no dimensions, such as a counter of batch normalisation


def check_nonfinite_inputs(
    mechanism: BlackBox, stated: CheckedClaim, tried: InputShapes, clock: CallBudget
) -> list[SingleTestResult]:
    """Whether a record with NaN or infinity shows in the release in every call, and never without
    it."""
    found = _check_scalars(mechanism, tried, clock) if mechanism.kind != "records" else []
    if stated.inputs == "any":
        return found  # NaN and infinity were among the neighbours
    pair = neighbouring_pairs(mechanism.kind, stated.relation, tried)[0]
    for value, name in ((np.nan, "NaN"), (np.inf, "infinity")):
        now = with_nonfinite_number(pair, mechanism.kind, value)
        try:
            sides = [
                draw_transcripts(mechanism, [side], CONDITION_CALLS, clock)
                for side in (now.present, now.absent)
            ]
        except InputRefused as no:
            found.append(
                SingleTestResult(
                    f"a record with {name}", "not refuted", f"is refused: {no}", inputs=now.says
                )
            )
            continue
        codes = [Counter(block.codes) for block in sides]
        if not codes[0].keys() & codes[1].keys():
            says = (
                f"a record with {name} shows in every release; without it none does: numbers "
                "must be finite"
            )
            found.append(SingleTestResult("finite inputs", "condition", says, inputs=now.says))
            break
    return found


def check_failures(
    mechanism: BlackBox, refused: Sequence[NeighbouringInputs], clock: CallBudget
) -> list[SingleTestResult]:
    """Whether calls fail on some inputs and never on their neighbours: the failure is an answer
    without noise."""
    for pair in refused[:PAIRS]:
        present, absent = (
            _failure_messages(mechanism, side, clock) for side in (pair.present, pair.absent)
        )
        if sorted((len(present), len(absent))) == [0, FAILED]:
            says = (
                "calls fail on some inputs and not on their neighbours "
                f"({(present or absent)[0]}): inputs must be such that none fails"
            )
            return [
                SingleTestResult("inputs without failures", "condition", says, inputs=pair.says)
            ]
    return []


def _failure_messages(mechanism: BlackBox, data: Data, clock: CallBudget) -> list[str]:
    """What was said in those of ``FAILED`` calls that failed."""
    said = []
    for _ in range(FAILED):
        try:
            draw_transcripts(mechanism, [data], 1, clock)
        except InputRefused as no:
            said.append(str(no))
    return said


def _check_scalars(
    mechanism: BlackBox, tried: InputShapes, clock: CallBudget
) -> list[SingleTestResult]:
    """Whether numbers of no dimensions come out without noise where arrays have some."""
    one = replace(tried, structures=(SCALAR,))
    try:
        blocks = [
            draw_transcripts(
                mechanism, [scaled_data(mechanism.kind, one, size)], CONDITION_CALLS, clock
            )
            for size in (1.0, 2.0)
        ]
    except InputRefused:
        return []
    first, second = (block.rows[:, 0] for block in blocks)
    if first.shape != second.shape or first.shape[1] < 2:
        return []
    noise = np.ptp(first, axis=0)
    if noise[0] == 0 and noise[1:].max() > 0 and first[0, 0] != second[0, 0]:
        says = (
            "an array of no dimensions (a scalar) is released without noise: arrays must "
            "have at least one dimension"
        )
        return [
            SingleTestResult("scalars", "condition", says, inputs="an update of shapes (), (5,)")
        ]
    return []


DECLARED_CALLS = 1500
ROUNDING = 0.98  # of the declared scale: what a printed number may be off by


def check_declared_noise(
    mechanism: BlackBox,
    stated: CheckedClaim,
    tried: InputShapes,
    clock: CallBudget,
    confidence: Callable[[], float],
) -> list[SingleTestResult]:
    """Rows for the declared law and scale of each number's noise; none where nothing is declared.
    confidence: -> that of the next test."""
    if stated.noise is None and stated.noise_std is None:
        return []
    try:
        block = draw_transcripts(
            mechanism, [scaled_data(mechanism.kind, tried, 1.0)], DECLARED_CALLS, clock
        )
    except InputRefused:
        return []
    values = block.rows[:, 0]
    residuals = values - values.mean(0)
    found = []
    law = noise_law(residuals)
    if stated.noise is not None:
        confidence()  # the law's test takes its share too
        outcome = "not refuted" if law == stated.noise else "refuted"
        says = f"noise of the {stated.noise} law is declared, and its law is {law}"
        found.append(SingleTestResult("law of the noise", outcome, says, strength="finite_sample"))
    if stated.noise_std is not None:
        std = residuals.std(0, ddof=1)
        least = int(np.argmin(std))
        width = math.sqrt(
            _fourth_moment(stated.noise or law, residuals) - 1.0
        )  # of a sum of squares
        tail = stats.norm.isf((1 - confidence()) / len(std))
        highest = float(std[least]) ** 2 * (1 + tail * width / math.sqrt(DECLARED_CALLS))
        outcome = "refuted" if highest < (ROUNDING * stated.noise_std) ** 2 else "not refuted"
        says = (
            f"the noise of number {least} has standard deviation {std[least]:.4g}; "
            f"{stated.noise_std:g} is declared"
        )
        found.append(
            SingleTestResult("scale of the noise", outcome, says, strength="finite_sample")
        )
    return found


def check_declared_batches(stated: CheckedClaim) -> list[SingleTestResult]:
    """A row for batches that are no Poisson samples, as they are declared; none where nothing is.
    The mechanism is not called."""
    if stated.sampling is None or stated.noise_multiplier is None:
        return []
    formed: dict[str, Any] = {
        name: getattr(stated, name) for name in ("sampling", "batches", "epochs")
    }
    low, high = bound_batch_epsilon(stated.noise_multiplier, max(stated.delta, TINY), **formed)
    says = (
        f"of {stated.sampling.replace('_', ' ')} batches, {stated.batches} in each of "
        f"{stated.epochs} epochs, epsilon is {low:.4g} to {high:.4g}"
    )
    outcome = "refuted" if low > stated.refutation_limit else "not refuted"
    return [SingleTestResult("declared batches", outcome, says, low, "declared")]


def _fourth_moment(law: str, residuals: np.ndarray) -> float:
    """Of noise of this law, at deviation 1; of another law twice that of all residuals (n, m),
    which saw little of a heavy tail."""
    std = residuals.std(0)
    if law in ("gaussian", "laplace") or not std.any():
        return 6.0 if law == "laplace" else 3.0
    return 2 * float(np.mean((residuals[:, std > 0] / std[std > 0]) ** 4))


LOW_BIT_CALLS = 4000
SHOWN = 600  # where it only is a condition
TRIED = 6  # pairs
FEW = 0.1  # different values for each call: fewer are outcomes that come back
LOW_BIT_SHARE = 0.05  # of the calls left, spent where it only is a condition


def check_low_bits(
    mechanism: BlackBox,
    stated: CheckedClaim,
    tried: InputShapes,
    clock: CallBudget,
    confidence: float,
) -> list[SingleTestResult]:
    """One row: whether low bits alone tell a record from its absence. x + noise in floating point
    keeps the grid of x where they nearly cancel (Mironov 2012; Jin et al. 2022). Unless a statement
    says ``stated.low_bits=true``, it is taken to be about real numbers, and this is a condition of
    it."""
    small = replace(
        tried, structures=tried.structures[-1:], tables=tried.tables[:1]
    )  # few numbers: the record is most
    every = neighbouring_pairs(mechanism.kind, stated.relation, small)
    chosen = [p for p in every if "one number" in p.says][:TRIED] or every[:1]
    count = LOW_BIT_CALLS if stated.low_bits else SHOWN
    best = (0.0, "")
    budget = clock.split_share(mechanism, LOW_BIT_SHARE)
    looked = 0
    for pair in chosen:
        if looked and not stated.low_bits and budget.is_spent(mechanism):
            break
        looked += 1
        try:
            sides = [
                draw_transcripts(mechanism, [side], count, clock)
                for side in (pair.present, pair.absent)
            ]
        except InputRefused:
            continue
        if sides[0].rows.shape != sides[1].rows.shape or not sides[0].rows.size:
            continue
        if not stated.low_bits and all(len(np.unique(side.rows)) <= FEW * count for side in sides):
            continue  # a choice among a few values is no sum that was rounded
        numbers = [block.rows[:, 0] for block in sides]
        if numbers[0].shape[1] == len(pair.axis):  # that in which the record is largest
            numbers = [rows[:, [int(np.argmax(np.abs(pair.axis)))]] for rows in numbers]
        scores = [np.asarray(lowest_set_bits(rows)).min(1) for rows in numbers]  # type: ignore[arg-type]
        half = count // 2
        level = shared_confidence(confidence, 2 * TRIED)
        first, second = (
            np.concatenate([s[w] for s in scores]) for w in (slice(half), slice(half, None))
        )
        inside = [np.arange(2 * n) < n for n in (half, count - half)]
        for sign in (1.0, -1.0):
            at = best_threshold(sign * first, inside[0], stated.delta)
            bound = from_scores(
                sign * second, inside[1], delta=stated.delta, confidence=level, thresholds=[at]
            )
            best = max(best, (bound.value, pair.says))
    says = "the lowest bits of the released numbers tell the record from its absence"
    if stated.low_bits:
        outcome = "refuted" if best[0] > stated.refutation_limit else "not refuted"
        return [SingleTestResult("low bits", outcome, says, best[0], "finite_sample", best[1])]
    if best[0] > 0:
        says = f"{says}: the statement holds for real numbers"
        return [SingleTestResult("low bits", "condition", says, best[0], "finite_sample", best[1])]
    left = (
        f"; {looked} of {len(chosen)} pairs of inputs were looked at"
        if looked < len(chosen)
        else ""
    )
    return [SingleTestResult("low bits", "not refuted", f"no bit was seen to tell anything{left}")]
