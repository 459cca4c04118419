"""More transcripts of the best pairs, until something is refuted; then one call between public
ones."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from privdd.blackbox.check_run import FEWEST, CheckRun
from privdd.blackbox.inputs import NeighbouringInputs, enlarge_neighbours, size_of_data
from privdd.blackbox.mechanism import Data, InputRefused
from privdd.blackbox.neighbours import neighbouring_pairs
from privdd.blackbox.pair_screening import (
    RankedPair,
    outcome_odds,
    pairs_of_record_alone,
    rank_by_odds,
    screen_pairs,
)
from privdd.blackbox.stages.noise_tails import examine_noise_tails
from privdd.blackbox.stages.pair_bounds import (
    ALL_LEFT,
    CLOSER_DEPTH,
    CLOSEST_DEPTH,
    FIRST_DEPTH,
    USUAL_SHARE,
    bound_pair,
)
from privdd.blackbox.stages.uneven_noise import examine_uneven_noise

SCREEN_SHARE = 0.1  # of the calls that are left, for pairs along the worst directions
# of the calls that are left, for the best pair of a mechanism with too few calls for many looks
SLOW_SHARE = 0.7


def refine_pairs(run: CheckRun) -> None:
    """Special looks, then closer and closer ones at the best pairs."""
    for stage in (
        examine_uneven_noise,
        examine_noise_tails,
        search_worst_directions,
        refine_slow_mechanism,
        search_larger_data,
    ):
        if not run.report.is_refuted:
            stage(run)
    if not _look_closer(run) or not _look_closest(run):
        return
    if not run.report.is_refuted:  # what is rare shows in many transcripts only
        bound_pair(
            run,
            _pair_or_best(run, run.strongest_any.pair),
            ALL_LEFT,
            run.stated_calls,
            "neighbours, all that is left",
        )


def _look_closer(run: CheckRun) -> bool:
    """At the best pair, even if the statement is refuted (how far is epsilon above?), and at the
    next. Whether none refutes it."""
    for ranked in rank_by_repetition(run.pairs, 2) or run.pairs[:2]:
        if run.report.is_refuted and ranked is not run.pairs[0]:
            return False
        bound_pair(run, ranked.pair, CLOSER_DEPTH, run.stated_calls, "neighbours")
    if not run.report.is_refuted:
        examine_embedded_call(run)
    return True


def _look_closest(run: CheckRun) -> bool:
    """At the best pair of each size of data. Whether none refutes the statement before the last."""
    for ranked in best_by_size(run.pairs):
        if run.report.is_refuted:
            return False
        bound_pair(run, ranked.pair, CLOSEST_DEPTH, run.stated_calls, "neighbours")
    return True


def search_worst_directions(run: CheckRun) -> None:
    """Neighbours along the directions in which the decoders saw most."""
    pairs: list[NeighbouringInputs] = []
    for inputs in run.fitted_inputs:
        pairs += neighbouring_pairs(run.mechanism.kind, run.claim.relation, inputs)
    if not pairs:
        return
    screened, _ = screen_pairs(
        run.mechanism, pairs, run.stated_calls, run.budget, SCREEN_SHARE, keep=2
    )
    for ranked in screened[:1]:
        bound_pair(
            run,
            ranked.pair,
            FIRST_DEPTH,
            run.stated_calls,
            "neighbours along the worst direction",
        )
    run.pairs = sorted([*run.pairs, *screened], key=lambda ranked: -ranked.score)


def search_larger_data(run: CheckRun) -> None:
    """If outcomes come back: the pairs with the best odds, among more of the same others."""
    pairs: list[NeighbouringInputs] = []
    for ranked in rank_by_odds(run.pairs)[:2]:
        pairs += enlarge_neighbours(ranked.pair, run.mechanism.kind)
    if not pairs or run.has_chosen_numbers:
        return
    inputs = run.stated_calls(pairs[-1].present)
    share = USUAL_SHARE / len(pairs) / 2
    count = run.affordable_transcripts(inputs, share, FIRST_DEPTH)
    if count < FEWEST:
        return
    for pair in pairs:
        with suppress(InputRefused):
            odds = outcome_odds(*run.draw_pair(pair, count), 1.0)
            run.pairs.append(RankedPair(pair, 0.0, odds))


def refine_slow_mechanism(run: CheckRun) -> None:
    """Few calls, shared by many looks, refute nothing: after a short look at the others, one pair
    gets the larger part."""
    inputs = run.stated_calls(_pair_or_best(run, run.strongest.pair).present)
    wanted = 2 * CLOSER_DEPTH
    try:
        affordable = run.affordable_transcripts(inputs, USUAL_SHARE, wanted)
    except InputRefused:
        return
    if affordable >= wanted:
        return
    examine_embedded_call(run)  # while there are calls for it
    for ranked in best_by_size(run.pairs):
        if id(ranked.pair) not in run.transcripts and not run.report.is_refuted:
            bound_pair(run, ranked.pair, FEWEST, run.stated_calls, "neighbours")
    bound_pair(
        run,
        _pair_or_best(run, run.strongest.pair),
        ALL_LEFT,
        run.stated_calls,
        "neighbours, most of the rest",
        SLOW_SHARE,
    )


def _pair_or_best(run: CheckRun, pair: NeighbouringInputs | None) -> NeighbouringInputs:
    """The pair with the largest bound, or the most promising one if there was none."""
    return run.pairs[0].pair if pair is None else pair


def examine_embedded_call(run: CheckRun) -> None:
    """One call among others on public data, and among others on the data without the record;
    once."""
    if run.embedded_call_examined:
        return
    run.embedded_call_examined = True
    for ranked in run.pairs[:1]:
        pair = ranked.pair
        _bound_embedded(run, pair, None, "between public calls")
        _bound_embedded(run, pair, pair.absent, "between calls without the record")


def _bound_embedded(
    run: CheckRun, pair: NeighbouringInputs, around: Data | None, words: str
) -> None:
    if not run.report.is_refuted:
        calls_of = partial(run.embedded_call, like=pair.present, around=around)
        bound_pair(run, pair, 2 * FIRST_DEPTH, calls_of, f"neighbours, {words}")


def rank_by_repetition(ranked: list[RankedPair], count: int) -> list[RankedPair]:
    """The ``count`` pairs with the best odds of outcomes that come back.

    Before them the best pair of all if its outcomes are too many to come back; nothing if none
    comes back.
    """
    best = rank_by_odds(ranked)[:count]
    comes_back = ranked[0].odds and not ranked[0].mixed
    if not best or ranked[0] in best or comes_back:
        return best
    return [ranked[0], *best]


def best_by_size(ranked: list[RankedPair]) -> list[RankedPair]:
    """The pairs with the best odds, or the best of each size of data and of a record alone: what is
    rare shows in no average."""
    by_odds = rank_by_repetition(ranked, 3)
    if by_odds:
        return by_odds
    best = {size_of_data(item.pair.present): item for item in reversed(ranked)}
    chosen = sorted(best.values(), key=ranked.index)[:3]
    alone = [item for item in pairs_of_record_alone(ranked)[:1] if item not in chosen]
    return chosen + alone
