"""Stages of a check: what is compared with what, and that nothing is left out in silence."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from privdd.blackbox import examination, identification_games, mechanism, stages
from privdd.blackbox.distinguishers import shift_directions
from privdd.blackbox.examination import Examination, _best_by_size
from privdd.blackbox.identification_games import GameSetting, direction_games
from privdd.blackbox.inputs import (
    InputShapes,
    RankedPair,
    _best_pairs,
    accepted_inputs,
    neighbouring_pairs,
)
from privdd.blackbox.mechanism import (
    BlackBox,
    BoundLevel,
    CallBudget,
    CheckedClaim,
    Transcripts,
    gaussian_mu,
)
from privdd.blackbox.stages import ExaminationState, IdentificationStages
from privdd.blackbox.verdict import ExaminationResult, SingleTestResult, conclude_check

RNG = np.random.default_rng(11)
STATED = {"epsilon": 2.0, "delta": 1e-5}
SMALL = InputShapes(structures=(((3,),),), tables=((4, 3),), crowds=(3,))
STD = 1 / gaussian_mu(2.0, 1e-5)


def clipped_sum(rows: np.ndarray) -> np.ndarray:
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
    return rows.sum(0) + RNG.normal(0, STD, rows.shape[1])


def of_clients(updates, weights):
    return clipped_sum(np.array([update[0] for update in updates]))


def examined(f, kind: str, *, calls: int = 10**6, **stated: object) -> Examination:
    said = CheckedClaim(**STATED, kind=kind, relation="add_remove", **stated)  # type: ignore[arg-type]
    made = Examination(
        BlackBox(lambda: f, kind, fresh=False),
        said,
        SMALL,
        CallBudget(60, calls),
        0.99,
        lambda name: None,
    )
    made.ranked = [
        RankedPair(pair, 1.0) for pair in neighbouring_pairs(kind, "add_remove", SMALL)[:1]
    ]
    return made


@pytest.mark.nightly(but=["clipped_sum-records"])
@pytest.mark.parametrize(("f", "kind"), [(clipped_sum, "records"), (of_clients, "aggregate")])
def test_public_calls_are_the_same_with_a_record_and_without_it(f, kind: str) -> None:
    made = examined(f, kind)
    made._examine_embedded_call()
    names = [look.name for look in made.result.looks if "law" not in look.name]
    assert names == [
        "neighbours, between public calls",
        "neighbours, between calls without the record",
    ]
    assert len(made.result.looks) == 4 and not made.result.is_refuted, made.result.looks


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
        counted(examination, name)
    counted(identification_games, "play_direction_game", 2)
    counted(identification_games, "bound_hidden_call")
    counted(identification_games, "bound_series")
    monkeypatch.setattr(mechanism, "SHARES", 8)
    made = examined(clipped_sum, "records", calls=60_000)
    result = made.run()
    assert 6 <= len(used) <= made.shares.taken <= 8 and all(each == 1 - 0.01 / 8 for each in used)
    assert any(
        reason.startswith("all tests that share the error probability were made")
        for reason in result.undecided
    )
    said = conclude_check("f", made.stated, result, confidence=0.99, calls=1, seconds=1.0)
    assert said.is_undecided and "all tests" in said.says


def test_noise_that_stops_and_noise_of_uneven_size_are_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []
    for name in ("_examine_hidden_call", "_play_series", "examine_uneven_noise"):
        monkeypatch.setattr(Examination, name, lambda self, *_, name=name: called.append(name))
    for name in (
        "_search_neighbours",
        "_examine_conditions",
        "_search_worst_directions",
        "_search_larger_data",
        "_bound_pair",
    ):
        monkeypatch.setattr(Examination, name, lambda *_: None)
    made = examined(clipped_sum, "records")
    made._nearest = made._foremost = made.ranked[0].pair
    made.run()
    assert called == [
        "_examine_hidden_call",
        "_play_series",
        "_play_series",
        "examine_uneven_noise",
    ]


def test_a_fault_that_was_not_found_is_not_said_to_be_there() -> None:
    made = examined(clipped_sum, "records")
    made.examine_directions()
    made._bound_pair(made.ranked[0].pair, 2000, made.stated_calls, "neighbours")
    sound = {look.name: look.says for look in made.result.looks if not made.result.is_refuted}
    names = (
        "directions, as released",
        "one call among many",
        "many calls, each on a record of its own",
        "neighbours, tail of the noise law",
        "neighbours, moments under the noise law",
    )
    assert all(sound[name].startswith("not seen: ") for name in names), sound
    assert sound["neighbours"].startswith("two inputs are ")
    bare = examined(
        lambda rows: rows.sum(0) / max(1.0, float(np.linalg.norm(rows.sum(0)))), "records"
    )
    bare.examine_directions()
    found = next(look for look in bare.result.looks if look.name == "directions, as released")
    assert (found.outcome, found.says) == ("refuted", stages.WITHOUT_NOISE)


def test_a_release_that_has_no_pieces_is_not_said_to_have_been_looked_at() -> None:
    made = examined(lambda rows: np.append(clipped_sum(rows), 0.0), "records")
    made.tried = InputShapes(tables=((4, 5),))
    made.examine_directions()
    outcomes = {look.name: look.outcome for look in made.result.looks}
    names = (
        "directions, as released",
        "one call among many",
        "many calls, each on a record of its own",
    )
    assert outcomes["directions"] == "not refuted" and {outcomes[name] for name in names} == {
        "not looked at"
    }


def test_a_share_for_each_bound() -> None:
    """The union bound over all of them is the confidence that is said."""
    shares = mechanism.ErrorShares(0.99)
    assert (
        shares.next_confidence(2) == shares.next_confidence() == 1 - 0.01 / 100
        and shares.taken == 3
    )
    shares.next_confidence(97)
    with pytest.raises(mechanism.OutOfShares):
        shares.next_confidence()


def test_a_pair_with_a_rare_name_is_looked_at_beside_those_whose_numbers_move_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A key that only one record has is seldom above a threshold: numbers of the keys that all
    share move further on average."""
    looked: list[object] = []
    monkeypatch.setattr(Examination, "_bound_pair", lambda self, pair, *_: looked.append(pair))
    made = examined(clipped_sum, "records")
    tried = neighbouring_pairs("records", "add_remove", SMALL)[:4]
    ranked = [RankedPair(pair, 1.0 - at / 10) for at, pair in enumerate(tried[:3])]
    for mixed, expected in ((True, [*tried[:2], tried[3]]), (False, tried[:2])):
        looked.clear()
        rare = RankedPair(tried[3], 0.1, odds=2.0, mixed=mixed)
        monkeypatch.setattr(
            examination, "screen_pairs", lambda *_, rare=rare, **__: ([*ranked, rare], [])
        )
        made._search_neighbours()
        assert [id(pair) for pair in looked] == [id(pair) for pair in expected]


def test_a_pair_whose_outcomes_are_too_many_to_come_back_is_looked_at_beside_those_with_odds() -> (
    None
):
    """Answers to sixteen queries come back too rarely to be counted one by one, those to six do
    not."""
    made = examined(clipped_sum, "records")
    many, *few = (
        RankedPair(made.ranked[0].pair, score, odds)
        for score, odds in ((0.6, 0.0), (0.4, 0.5), (0.2, 0.9))
    )
    made.ranked = [many, *few]
    assert examination._rank_by_odds(made.ranked, 2)[0] is many and {id(one) for one in few} <= {
        id(one) for one in examination._rank_by_odds(made.ranked, 2)
    }
    assert many in _best_by_size(made.ranked)
    made.ranked = [few[0], many, few[1]]
    assert many not in examination._rank_by_odds(made.ranked, 2) and many not in _best_by_size(
        made.ranked
    )


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
    assert ranked[-1] in _best_pairs(ranked, 4) and len(_best_pairs(ranked, 4)) == 4
    assert ranked[-1] in _best_by_size(ranked) and len(_best_by_size(ranked)) == 2
    assert (
        _best_pairs([*ranked, RankedPair(lone, 0.001)], 2) == ranked[:2]
    )  # two places are for the best


def test_what_no_time_is_left_for_is_said_once() -> None:
    made = examined(clipped_sum, "records", calls=500)
    made._examine_embedded_call()
    made._examine_embedded_call()
    assert made.result.looks == [] and made.result.undecided == [
        f"the calls were spent before 'neighbours, between {name}' could be looked at everywhere"
        for name in ("public calls", "calls without the record")
    ]


def test_the_fewest_transcripts_of_a_look_take_a_larger_share_and_no_more_than_that() -> None:
    made = examined(clipped_sum, "records", calls=10_000)
    inputs = made.stated_calls(made.ranked[0].pair.present)
    found = [made._affordable_count(inputs, 0.01, 500, fewest) for fewest in (0, 50, 400, 5000)]
    assert found[0] <= 100 and found[1] <= 100 and found[2] == 400 and 1800 < found[3] <= 2000


def test_a_pair_that_was_looked_at_before_is_looked_at_less_closely_and_not_left_out() -> None:
    made = examined(clipped_sum, "records", calls=5000)
    made._bound_pair(made.ranked[0].pair, 200, made.stated_calls, "neighbours")
    made.clock.calls = made.mechanism.calls + 60
    made._bound_pair(made.ranked[0].pair, 200, made.stated_calls, "neighbours")
    assert made.result.notes == [
        "the calls were spent before 'neighbours' could be looked at as closely as planned"
    ]
    assert made.result.undecided == []


def test_sizes_that_are_refused_are_said_and_one_row_alone_has_no_neighbours() -> None:
    def three_numbers(x):
        return clipped_sum(x) if x.shape[1] == 3 else 1 / 0

    box = BlackBox(lambda: three_numbers, "records", fresh=False)
    kept, notes = accepted_inputs(box, InputShapes(tables=((4, 3), (4, 6))))
    assert kept.tables == ((4, 3),) and "1 of the sizes that are tried were refused" in notes[0]
    with pytest.raises(ValueError, match="no neighbours"):
        Examination(
            box,
            CheckedClaim(**STATED, kind="records", relation="add_remove"),
            InputShapes(tables=((1, 3), (4, 6))),
            CallBudget(60, 10**6),
            0.99,
            lambda name: None,
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
        (seeded_by_the_data, "examine_noiseless_numbers", "looked up in a table"),
        (EveryFifthPlain, "examine_directions", "one call among many"),
    ],
)
def test_a_secret_record_is_named_from_what_has_no_noise(target, stage: str, name: str) -> None:
    fresh = isinstance(target, type)
    box = BlackBox(target if fresh else lambda: target, "update", fresh=fresh)
    made = IdentificationStages(
        box,
        CheckedClaim(**STATED, kind="update"),
        SMALL,
        CallBudget(60, 40_000),
        0.99,
        lambda name: None,
    )
    getattr(made, stage)()
    assert [look.name for look in made.result.looks if look.outcome == "refuted"] == [name]


def test_a_bound_is_compared_with_the_limit_and_not_with_epsilon_itself() -> None:
    box = BlackBox(lambda: clipped_sum, "records", fresh=False)
    made = ExaminationState(
        box,
        CheckedClaim(**STATED, kind="records", tolerance=0.1),
        SMALL,
        CallBudget(60, 10**4),
        0.99,
        lambda name: None,
    )
    for epsilon, refuted in ((2.19, False), (2.21, True)):
        made._add_result("a look", epsilon, "finite_sample", "says", "inputs")
        assert made.result.is_refuted == refuted
    assert not ExaminationResult(looks=[SingleTestResult("a look", "condition", "says")]).is_refuted


def test_a_mechanism_with_few_calls_spends_most_of_them_on_one_pair() -> None:
    """A share for each of many looks refutes nothing where calls are few."""
    made = examined(clipped_sum, "records", calls=9000)
    made._foremost = made.ranked[0].pair
    made._refine_slow_mechanism()
    looks = {look.name: look for look in made.result.looks}
    name = "neighbours, most of what is left"
    assert looks[name].numbers["transcripts"] > 0.3 * 9000  # of the judges alone
    plenty = examined(clipped_sum, "records")
    plenty._foremost = plenty.ranked[0].pair
    plenty._refine_slow_mechanism()
    assert not plenty.result.looks


def test_transcripts_of_earlier_looks_are_learned_from_and_never_judge() -> None:
    made = examined(clipped_sum, "records")
    pair = made.ranked[0].pair
    seen = []
    for depth in (200, 600, 900):
        seen.append(made._draw_sides(pair, depth, made.stated_calls, 0.5))
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
    examination = Examination(
        BlackBox(Fading, "records"), said, SMALL, CallBudget(60, 10**6), 0.99, lambda name: None
    )
    counted, examination.mechanism.make = [], lambda: counted.append(Fading()) or counted[-1]  # type: ignore[func-returns-value]
    game = next(direction_games("records", examination.tried))
    for late in (False, True):
        examination._play_series("series", game, late)
    assert bool(examination.result.looks) == made
    longest = max((round(np.log(one.std / 10) / np.log(0.9)) for one in counted), default=0)
    assert longest == {1: 300, 20: 0, 100: 100}[series]
    counted.clear()
    examination._examine_hidden_call(game)
    assert round(max(np.log(one.std / 10) / np.log(0.9) for one in counted)) == min(
        24, {1: 24}.get(series, series)
    )
