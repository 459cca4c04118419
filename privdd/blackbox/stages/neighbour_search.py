"""All neighbours that are tried, ranked by how far the record moves a release, and a first look at
the best of them."""

from __future__ import annotations

from privdd.blackbox.check_run import CheckRun
from privdd.blackbox.input_sizes import pairs_at_revealing_sizes
from privdd.blackbox.inputs import is_quiet
from privdd.blackbox.pair_screening import RankedPair, rank_by_odds, screen_pairs
from privdd.blackbox.stages.pair_bounds import FIRST_DEPTH, bound_pair

FINITE = 1e300
SCREEN_SHARE = 0.3  # of the calls that are left
FIRST_LOOKS_SHARE = 0.3  # for the first looks at the best pairs, together
KEEP = 12
MOVED = 2  # pairs whose numbers move most that are looked at first, beside those of the replays
NAMED = 3  # pairs with rare names that are looked at too


def search_neighbours(run: CheckRun) -> None:
    """Rank all neighbours, those on which replays showed something before the others."""
    pairs = run.stated_neighbours()
    if not run.has_chosen_numbers:
        pairs += pairs_at_revealing_sizes(run.mechanism, run.claim.relation, run.inputs, run.budget)
    screened, refusals = screen_pairs(
        run.mechanism, pairs, run.stated_calls, run.budget, SCREEN_SHARE, keep=KEEP
    )
    if refusals:
        counts = f"{len(refusals)} of {len(pairs)} pairs were refused"
        run.report.notes.append(f"{counts}, the first with: {refusals[0][1]}")
    run.refused = [pair for pair, _ in refusals if is_quiet(pair.present, FINITE)]
    replayed = {}
    for pair in [*run.replays.shifted_pairs(), *run.replays.dependent_pairs()]:
        replayed[id(pair)] = RankedPair(pair, screened[0].score)
    run.pairs = [*replayed.values(), *screened]
    run.strongest.pair = run.pairs[0].pair
    run.strongest_any.pair = run.pairs[0].pair
    _look_at_best(run, len(replayed))


def _look_at_best(run: CheckRun, replayed: int) -> None:
    """Numbers rank pairs; a name that only the record brings may be rare beside them, so the pairs
    with the rarest names are looked at too."""
    foremost = run.pairs[: MOVED + replayed]
    named = [
        ranked for ranked in rank_by_odds(run.pairs) if ranked.mixed and ranked not in foremost
    ]
    looks = foremost + named[:NAMED]
    share = FIRST_LOOKS_SHARE / len(looks)
    for ranked in looks:
        bound_pair(run, ranked.pair, FIRST_DEPTH, run.stated_calls, "neighbours", share)
