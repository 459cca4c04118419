"""Stages of a check: what is compared with what, and that nothing is left out in silence."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from privdd.blackbox import budgets, identification_games
from privdd.blackbox.budgets import BoundLevel, CallBudget
from privdd.blackbox.check_report import CheckReport, SingleTestResult
from privdd.blackbox.check_run import CheckRun, start_check_run
from privdd.blackbox.check_verdict import conclude_check
from privdd.blackbox.claims import CheckedClaim, gaussian_mu
from privdd.blackbox.examination import examine
from privdd.blackbox.identification_games import GameSetting, direction_games
from privdd.blackbox.input_sizes import accepted_inputs
from privdd.blackbox.inputs import InputShapes
from privdd.blackbox.mechanism import BlackBox
from privdd.blackbox.neighbours import neighbouring_pairs
from privdd.blackbox.noise_metric import shift_directions
from privdd.blackbox.pair_screening import RankedPair, best_pairs
from privdd.blackbox.stages import close_looks, directions, neighbour_search, pair_bounds
from privdd.blackbox.stages.close_looks import best_by_size, rank_by_repetition
from privdd.blackbox.stages.noiseless_numbers import examine_noiseless_numbers
from privdd.blackbox.transcripts import Transcripts

RNG = np.random.default_rng(11)
STATED = {"epsilon": 2.0, "delta": 1e-5}
SMALL = InputShapes(structures=(((3,),),), tables=((4, 3),), crowds=(3,))
STD = 1 / gaussian_mu(2.0, 1e-5)


def clipped_sum(rows: np.ndarray) -> np.ndarray:
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
    return rows.sum(0) + RNG.normal(0, STD, rows.shape[1])


def of_clients(updates, weights):
    return clipped_sum(np.array([update[0] for update in updates]))


def run_of(f, kind: str, *, calls: int = 10**6, **stated: object) -> CheckRun:
    claim = CheckedClaim(**STATED, kind=kind, relation="add_remove", **stated)  # type: ignore[arg-type]
    pairs = neighbouring_pairs(kind, "add_remove", SMALL)[:1]
    return CheckRun(
        BlackBox(lambda: f, kind, fresh=False),
        claim,
        SMALL,
        CallBudget(60, calls),
        pairs=[RankedPair(pair, 1.0) for pair in pairs],
    )


@pytest.mark.parametrize(("f", "kind"), [(clipped_sum, "records"), (of_clients, "aggregate")])
def test_public_calls_are_the_same_with_a_record_and_without_it(f, kind: str) -> None:
    run = run_of(f, kind)
    close_looks.examine_embedded_call(run)
    names = [look.name for look in run.report.looks if "law" not in look.name]
    assert names == [
        "neighbours, between public calls",
        "neighbours, between calls without the record",
    ]
    assert len(run.report.looks) == 4 and not run.report.is_refuted, run.report.looks


def test_no_more_bounds_are_made_than_share_the_error_probability(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted where every bound is made: a bound that is made without a share fails here."""
    used: list[float] = []

    def counted(module, name: str, bounds: int = 1) -> None:
        made = getattr(module, name)

        def with_count(*args, **kwargs):
            level = next(
                getattr(one, "level", one)
                for one in args
                if isinstance(one, BoundLevel | GameSetting)
            )
            used.extend([level.confidence] * bounds)
            return made(*args, **kwargs)

        monkeypatch.setattr(module, name, with_count)

    for name in ("bound_by_distinguishing", "tail_epsilon", "sampled_epsilon", "bound_shift"):
        counted(pair_bounds, name)
    counted(identification_games, "play_direction_game", 2)
    counted(identification_games, "bound_hidden_call")
    counted(identification_games, "bound_series")
    monkeypatch.setattr(budgets, "SHARES", 8)
    run = run_of(clipped_sum, "records", calls=60_000)
    result = examine(run)
    assert 6 <= len(used) <= run.errors.taken <= 8 and all(each == 1 - 0.01 / 8 for each in used)
    assert any(
        reason.startswith("all tests that share the error probability were made")
        for reason in result.undecided
    )
    said = conclude_check("f", run.claim, result, confidence=0.99, calls=1, seconds=1.0)
    assert said.is_undecided and "all tests" in said.says


def test_noise_that_stops_and_noise_of_uneven_size_are_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []

    def note(module, name: str) -> None:
        monkeypatch.setattr(module, name, lambda *_, **__: called.append(name))

    note(directions, "examine_hidden_call")
    note(directions, "examine_series")
    note(close_looks, "examine_uneven_noise")
    monkeypatch.setattr(close_looks, "bound_pair", lambda *_: None)
    run = run_of(clipped_sum, "records", calls=30_000)
    directions.examine_directions(run)
    close_looks.refine_pairs(run)
    assert called == [
        "examine_hidden_call",
        "examine_series",
        "examine_series",
        "examine_uneven_noise",
    ]


def test_a_fault_that_was_not_found_is_not_said_to_be_there() -> None:
    run = run_of(clipped_sum, "records")
    directions.examine_directions(run)
    pair_bounds.bound_pair(run, run.pairs[0].pair, 2000, run.stated_calls, "neighbours")
    sound = {look.name: look.says for look in run.report.looks if not run.report.is_refuted}
    names = (
        "directions, as released",
        "one call among many",
        "many calls, each on a record of its own",
        "neighbours, tail of the noise law",
        "neighbours, moments under the noise law",
    )
    assert all(sound[name].startswith("not seen: ") for name in names), sound
    assert sound["neighbours"].startswith("two inputs are ")
    bare = run_of(
        lambda rows: rows.sum(0) / max(1.0, float(np.linalg.norm(rows.sum(0)))), "records"
    )
    directions.examine_directions(bare)
    found = next(look for look in bare.report.looks if look.name == "directions, as released")
    assert (found.outcome, found.says) == ("refuted", directions.WITHOUT_NOISE)


def test_a_release_that_has_no_pieces_is_not_said_to_have_been_looked_at() -> None:
    run = run_of(lambda rows: np.append(clipped_sum(rows), 0.0), "records")
    run.inputs = InputShapes(tables=((4, 5),))
    directions.examine_directions(run)
    outcomes = {look.name: look.outcome for look in run.report.looks}
    names = (
        "directions, as released",
        "one call among many",
        "many calls, each on a record of its own",
    )
    assert outcomes["directions"] == "not refuted" and {outcomes[name] for name in names} == {
        "not tested"
    }


def test_a_share_for_each_bound() -> None:
    """The union bound over all of them is the confidence that is said."""
    shares = budgets.ErrorShares(0.99)
    assert (
        shares.next_confidence(2) == shares.next_confidence() == 1 - 0.01 / 100
        and shares.taken == 3
    )
    shares.next_confidence(97)
    with pytest.raises(budgets.OutOfShares):
        shares.next_confidence()


def test_a_pair_with_a_rare_name_is_looked_at_beside_those_whose_numbers_move_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A key that only one record has is seldom above a threshold: numbers of the keys that all
    share move further on average."""
    looked: list[object] = []
    monkeypatch.setattr(neighbour_search, "bound_pair", lambda run, pair, *_: looked.append(pair))
    run = run_of(clipped_sum, "records")
    tried = neighbouring_pairs("records", "add_remove", SMALL)[:4]
    ranked = [RankedPair(pair, 1.0 - at / 10) for at, pair in enumerate(tried[:3])]
    for mixed, expected in ((True, [*tried[:2], tried[3]]), (False, tried[:2])):
        looked.clear()
        rare = RankedPair(tried[3], 0.1, odds=2.0, mixed=mixed)
        monkeypatch.setattr(
            neighbour_search, "screen_pairs", lambda *_, rare=rare, **__: ([*ranked, rare], [])
        )
        neighbour_search.search_neighbours(run)
        assert [id(pair) for pair in looked] == [id(pair) for pair in expected]


def test_a_pair_whose_outcomes_are_too_many_to_come_back_is_looked_at_beside_those_with_odds() -> (
    None
):
    """Answers to sixteen queries come back too rarely to be counted one by one, those to six do
    not."""
    run = run_of(clipped_sum, "records")
    many, *few = (
        RankedPair(run.pairs[0].pair, score, odds)
        for score, odds in ((0.6, 0.0), (0.4, 0.5), (0.2, 0.9))
    )
    run.pairs = [many, *few]
    assert rank_by_repetition(run.pairs, 2)[0] is many and {id(one) for one in few} <= {
        id(one) for one in rank_by_repetition(run.pairs, 2)
    }
    assert many in best_by_size(run.pairs)
    run.pairs = [few[0], many, few[1]]
    assert many not in rank_by_repetition(run.pairs, 2) and many not in best_by_size(run.pairs)


def test_a_record_alone_is_kept_and_looked_at_closely_however_little_it_shifts() -> None:
    """A count that is redrawn until it is in its range moves least at the end of the range, and its
    odds are highest there."""
    among, lone = (
        next(
            pair
            for pair in neighbouring_pairs("records", "add_remove", InputShapes())
            if "of 4 records" in pair.says and crowd in pair.says
        )
        for crowd in ("others the same", "others zeros")
    )
    ranked = [*(RankedPair(among, 1.0 / at) for at in range(1, 9)), RankedPair(lone, 0.01)]
    assert ranked[-1] in best_pairs(ranked, 4) and len(best_pairs(ranked, 4)) == 4
    assert ranked[-1] in best_by_size(ranked) and len(best_by_size(ranked)) == 2
    assert (
        best_pairs([*ranked, RankedPair(lone, 0.001)], 2) == ranked[:2]
    )  # two places are for the best


def test_what_no_time_is_left_for_is_said_once() -> None:
    run = run_of(clipped_sum, "records", calls=500)
    close_looks.examine_embedded_call(run)
    close_looks.examine_embedded_call(run)
    assert run.report.looks == [] and run.report.undecided == [
        f"the calls were spent before 'neighbours, between {name}' could be tested everywhere"
        for name in ("public calls", "calls without the record")
    ]


def test_the_fewest_transcripts_of_a_look_take_a_larger_share_and_no_more_than_that() -> None:
    run = run_of(clipped_sum, "records", calls=10_000)
    inputs = run.stated_calls(run.pairs[0].pair.present)
    found = [run.affordable_transcripts(inputs, 0.01, 500, fewest) for fewest in (0, 50, 400, 5000)]
    assert found[0] <= 100 and found[1] <= 100 and found[2] == 400 and 1800 < found[3] <= 2000


def test_a_pair_that_was_looked_at_before_is_looked_at_less_closely_and_not_left_out() -> None:
    run = run_of(clipped_sum, "records", calls=5000)
    pair_bounds.bound_pair(run, run.pairs[0].pair, 200, run.stated_calls, "neighbours")
    run.budget.calls = run.mechanism.calls + 60
    pair_bounds.bound_pair(run, run.pairs[0].pair, 200, run.stated_calls, "neighbours")
    assert run.report.notes == [
        "the calls were spent before 'neighbours' could be tested as closely as planned"
    ]
    assert run.report.undecided == []


def test_sizes_that_are_refused_are_said_and_one_row_alone_has_no_neighbours() -> None:
    def three_numbers(x):
        return clipped_sum(x) if x.shape[1] == 3 else 1 / 0

    box = BlackBox(lambda: three_numbers, "records", fresh=False)
    kept, notes = accepted_inputs(box, InputShapes(tables=((4, 3), (4, 6))))
    assert kept.tables == ((4, 3),) and "1 of the sizes that are tried were refused" in notes[0]
    with pytest.raises(ValueError, match="no neighbours"):
        start_check_run(
            box,
            CheckedClaim(**STATED, kind="records", relation="add_remove"),
            InputShapes(tables=((1, 3), (4, 6))),
            CallBudget(60, 10**6),
            0.99,
        )


def seeded_by_the_data(update):
    return update[0] / max(1.0, np.linalg.norm(update[0])) + np.random.default_rng(
        abs(hash(update[0].tobytes()))
    ).normal(0, STD, 3)


class EveryFifthPlain:
    def __init__(self) -> None:
        self.at = 0

    def __call__(self, update):
        self.at += 1
        inside = update[0] / max(1.0, float(np.linalg.norm(update[0])))
        return inside if self.at % 5 == 0 else inside + RNG.normal(0, STD, 3)


@pytest.mark.parametrize(
    ("target", "stage", "name"),
    [
        (seeded_by_the_data, examine_noiseless_numbers, "looked up in a table"),
        (EveryFifthPlain, directions.examine_directions, "one call among many"),
    ],
)
def test_a_secret_record_is_named_from_what_has_no_noise(target, stage, name: str) -> None:
    fresh = isinstance(target, type)
    box = BlackBox(target if fresh else lambda: target, "update", fresh=fresh)
    run = CheckRun(box, CheckedClaim(**STATED, kind="update"), SMALL, CallBudget(60, 40_000))
    stage(run)
    assert [look.name for look in run.report.looks if look.outcome == "refuted"] == [name]


def test_a_bound_is_compared_with_the_limit_and_not_with_epsilon_itself() -> None:
    box = BlackBox(lambda: clipped_sum, "records", fresh=False)
    claim = CheckedClaim(**STATED, kind="records", tolerance=0.1)
    run = CheckRun(box, claim, SMALL, CallBudget(60, 10**4))
    for epsilon, refuted in ((2.19, False), (2.21, True)):
        run.add_result("a look", epsilon, "finite_sample", "says", "inputs")
        assert run.report.is_refuted == refuted
    assert not CheckReport(looks=[SingleTestResult("a look", "condition", "says")]).is_refuted


def test_a_mechanism_with_few_calls_spends_most_of_them_on_one_pair() -> None:
    """A share for each of many looks refutes nothing where calls are few."""
    run = run_of(clipped_sum, "records", calls=9000)
    close_looks.refine_slow_mechanism(run)
    looks = {look.name: look for look in run.report.looks}
    name = "neighbours, most of the rest"
    assert looks[name].numbers["transcripts"] > 0.3 * 9000  # of the judges alone
    plenty = run_of(clipped_sum, "records")
    close_looks.refine_slow_mechanism(plenty)
    assert not plenty.report.looks


def test_transcripts_of_earlier_looks_are_learned_from_and_never_judge() -> None:
    run = run_of(clipped_sum, "records")
    pair = run.pairs[0].pair
    seen = []
    for depth in (200, 600, 900):
        seen.append(pair_bounds.draw_sides(run, pair, depth, run.stated_calls, 0.5))
    for (trained, fresh), later in pairwise(seen):
        for side in (0, 1):
            known = {row.tobytes() for row in (*trained[side].rows, *fresh[side].rows)}
            assert known <= {row.tobytes() for row in later[0][side].rows}
            assert known.isdisjoint(row.tobytes() for row in later[1][side].rows)
            assert {r.tobytes() for r in later[0][side].rows}.isdisjoint(
                r.tobytes() for r in later[1][side].rows
            )
    assert len(seen[1][1][0]) >= 400  # earlier transcripts leave more of the new ones to judge


def test_what_is_released_several_times_is_looked_at_in_all_places() -> None:
    """One direction for three pieces of four numbers, of which the second has a tenth of the
    noise."""
    rng = np.random.default_rng(3)
    axis = np.full(4, 0.5)
    std = np.repeat([1.0, 0.1, 1.0], 4)
    blocks = [
        Transcripts(
            (s * np.tile(axis, 3) + std * rng.standard_normal((90, 12)))[:, None], ["x"] * 90
        )
        for s in (1, 0)
    ]
    best = np.tile(axis, 3) / std**2
    cosines = [
        abs(w @ best) / np.linalg.norm(best) for w in shift_directions(blocks[0], blocks[1], axis)
    ]
    assert len(cosines) >= 2 and max(cosines[1:]) > max(0.97, cosines[0])


class Fading:
    """Noise of a plan for twenty calls, which falls by a tenth with each: a call after these has
    next to none."""

    def __init__(self) -> None:
        self.std = 10.0

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        self.std *= 0.9
        return rows.sum(0) / max(1.0, float(np.linalg.norm(rows))) + RNG.normal(
            0, self.std, rows.shape[1]
        )


@pytest.mark.parametrize(("series", "made"), [(1, True), (20, False), (100, True)])
def test_no_call_is_judged_after_those_that_are_stated(series: int, made: bool) -> None:
    said = CheckedClaim(**STATED, kind="records", calls=series)  # type: ignore[arg-type]
    counted: list[Fading] = []

    def make() -> Fading:
        counted.append(Fading())
        return counted[-1]

    run = CheckRun(BlackBox(make, "records"), said, SMALL, CallBudget(60, 10**6))
    game = next(direction_games("records", run.inputs))
    for late in (False, True):
        directions.examine_series(run, "series", game, late=late)
    assert bool(run.report.looks) == made
    longest = max((round(np.log(one.std / 10) / np.log(0.9)) for one in counted), default=0)
    assert longest == {1: 300, 20: 0, 100: 100}[series]
    counted.clear()
    directions.examine_hidden_call(run, game)
    assert round(max(np.log(one.std / 10) / np.log(0.9) for one in counted)) == min(
        24, {1: 24}.get(series, series)
    )
