"""Tests of ``privdd.blackbox.distinguishers``."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attacks.tradeoff import gaussian_epsilon
from privdd.blackbox.budgets import BoundLevel, CallBudget
from privdd.blackbox.distinguishers import bound_by_distinguishing, learn_statistics
from privdd.blackbox.identification_games import GameSetting, direction_games, play_direction_game
from privdd.blackbox.inputs import InputShapes
from privdd.blackbox.law_recognition import noise_law
from privdd.blackbox.mechanism import BlackBox
from privdd.blackbox.noise_metric import NoiseMetric
from privdd.blackbox.pair_screening import outcome_odds
from privdd.blackbox.release_marks import MIN_VALUES, ReleaseMarks, most_revealing_marks
from privdd.blackbox.shift_bounds import bound_shift
from privdd.blackbox.transcripts import PairSample, Transcripts, draw_transcripts

# Rare names, shapes and flags beside continuous noise: ranked by their own odds, and no sound
# choice of keys is accused.


RNG = np.random.default_rng(3)
EPSILON = 1.0
DELTA = 1e-5
AXIS = np.array([1.0])


def histogram(keys: list[int], threshold: float) -> dict[int, float]:
    """Noised counts of the keys that are there, those above a threshold."""
    noised = {key: keys.count(key) + RNG.laplace(0, 1 / EPSILON) for key in sorted(set(keys))}
    return {key: count for key, count in noised.items() if count > threshold}


def of_keys(keys: list[int], threshold: float, n: int) -> Transcripts:
    found = [histogram(keys, threshold) for _ in range(n)]
    size = max((len(one) for one in found), default=0)
    rows = np.array([[*one.values(), *[0.0] * (size - len(one))] for one in found])
    return Transcripts(rows[:, None], [f"dict{[str(key) for key in one]}" for one in found])


def flagged(share: float, n: int) -> Transcripts:
    """A number with noise, shifted by nothing, and a flag that is seldom set."""
    return Transcripts(
        np.stack([RNG.normal(size=n), RNG.random(n) < share], 1)[:, None], ["float;int"] * n
    )


def seen(present: Transcripts, absent: Transcripts, more: tuple[Transcripts, Transcripts]) -> float:
    return bound_by_distinguishing(
        PairSample((present, absent), more, AXIS), BoundLevel(DELTA, 0.999)
    ).epsilon


OTHERS = [1, 1, 1, 2, 2, 2, 2, 3, 3, 3]


def test_a_key_of_one_side_alone_refutes_a_threshold_that_is_too_low_and_not_the_right_one() -> (
    None
):
    for threshold, least, most in (
        (2.0, 3.0, math.inf),
        (1 + math.log(1 / (2 * DELTA)), 0.0, EPSILON),
    ):
        sides = [of_keys(keys, threshold, 3000) for keys in ([*OTHERS, 9], OTHERS) * 2]
        assert least <= seen(sides[0], sides[1], (sides[2], sides[3])) <= most


def test_marks_are_ranked_by_log_odds_less_their_standard_error() -> None:
    """Rare on one side before frequent on both; as odds are of shares, sides may have different
    sizes."""
    sides = (flagged(0.5, 400), flagged(0.5, 800))
    counts = {
        "even": (100, 200),
        "double": (100, 100),
        "tenfold": (100, 20),
        "never": (0, 300),
        "once": (1, 0),
        "all": (400, 800),
    }
    assert most_revealing_marks(counts, sides, 5) == ["never", "tenfold", "double", "even"]
    assert most_revealing_marks(counts, sides, 2) == ["never", "tenfold"]


@pytest.mark.parametrize(("share", "least"), [(0.03, 1.5), (0.0, 0.0)])
def test_a_flag_that_is_seldom_set_counts_by_its_own_odds(share: float, least: float) -> None:
    sides = [flagged(q, 4000) for q in (share, 0.0) * 2]
    found = seen(sides[0], sides[1], (sides[2], sides[3]))
    assert found >= least if share else found == 0
    assert (outcome_odds(flagged(share, 300), flagged(0.0, 300), 0.5) > 0) is bool(share)


def test_marks_are_words_their_order_and_values_that_come_back() -> None:
    n = 40
    noise = RNG.normal(size=(n, 2))
    noise[::2, 1] = 0.25  # a number that comes back beside noise
    rows = noise[:, None]
    codes = ["dict['a', 'b']"] * n
    other = Transcripts(
        RNG.normal(size=(n, 1, 2)), ["dict['b', 'a']"] * (n // 2) + ["dict['b']"] * (n // 2)
    )
    marks = ReleaseMarks.from_sides(Transcripts(rows, codes), other)
    assert marks is not None and marks.atoms == ((1, 0.25),)
    assert {"dict['a', 'b']", "dict['b', 'a']", "'a'"} <= {
        *marks.words
    } and "'b'" not in marks.words
    assert marks.find_marks(Transcripts(rows, codes)).sum(0).tolist() == [
        n if w in ("'a'", codes[0]) else 0 for w in marks.words
    ] + [n // 2]
    assert ReleaseMarks.from_sides(Transcripts(rows, codes), other, values=MIN_VALUES).atoms == ()  # type: ignore[union-attr]


def test_noise_alone_has_no_marks() -> None:
    one, other = (Transcripts(RNG.normal(size=(50, 1, 3)), ["float64(3,)"] * 50) for _ in range(2))
    assert ReleaseMarks.from_sides(one, other) is None and outcome_odds(one, other, 0.5) == 0


# The tests on blocks of transcripts, against mechanisms whose epsilon is known in closed form.


RNG_APART = np.random.default_rng(5)


def block(values: np.ndarray, code: str = "x") -> Transcripts:
    return Transcripts(values.reshape(len(values), 1, -1), [code] * len(values))


def gaussian_blocks(
    gap: np.ndarray, n: int
) -> tuple[tuple[Transcripts, Transcripts], tuple[Transcripts, Transcripts]]:
    sides = [
        [block(c * gap + RNG_APART.standard_normal((n, len(gap)))) for c in (1, 0)]
        for _ in range(2)
    ]
    return (sides[0][0], sides[0][1]), (sides[1][0], sides[1][1])


def test_the_bound_of_a_shift_is_below_the_truth_and_near_it() -> None:
    gap = np.array([0.6, 0.0, 0.8])
    values = []
    for _ in range(20):
        trained, fresh = gaussian_blocks(gap, 3000)
        found = bound_shift(PairSample(trained, fresh, gap), BoundLevel(1e-5, 0.95))
        assert found.law == "gaussian"
        values.append(found.epsilon)
    true = gaussian_epsilon(1.0, 1e-5)
    assert np.mean(np.array(values) > true) <= 0.1 and np.median(values) > 0.85 * true


def test_laplace_is_told_from_gaussian_and_costs_its_sum_of_shifts() -> None:
    draws = [
        [block(c * np.full(4, 0.5) + RNG_APART.laplace(size=(4000, 4))) for c in (1, 0)]
        for _ in range(2)
    ]
    found = bound_shift(
        PairSample((draws[0][0], draws[0][1]), (draws[1][0], draws[1][1]), None),
        BoundLevel(0.0, 0.99),
    )
    assert found.law == "laplace" and 1.5 < found.epsilon < 2.0
    assert noise_law(RNG_APART.standard_normal((4000, 3))) == "gaussian"
    assert noise_law(RNG_APART.uniform(size=(4000, 3))) == "other"


def test_inputs_are_told_apart_by_shape_by_scale_and_not_by_chance() -> None:
    zero = np.zeros((600, 2))
    shapes = [(block(zero, "(2,)"), block(zero, "(3,)")) for _ in range(2)]
    assert bound_by_distinguishing(PairSample(*shapes, None), BoundLevel(1e-5, 0.99)).epsilon > 3.5
    scales = [
        tuple(block(s * RNG_APART.standard_normal((600, 30))) for s in (3, 1)) for _ in range(2)
    ]
    assert bound_by_distinguishing(PairSample(*scales, None), BoundLevel(1e-5, 0.99)).epsilon > 3.5
    wrong = [
        bound_by_distinguishing(
            PairSample(*gaussian_blocks(np.zeros(3), 300), None), BoundLevel(0.0, 0.9)
        ).epsilon
        > 0
        for _ in range(60)
    ]
    assert np.mean(wrong) <= 0.15


def test_transcripts_of_another_size_than_those_that_were_learned_on_bound_nothing() -> None:
    trained, _ = gaussian_blocks(np.array([5.0, 0.0, 0.0]), 400)
    _, other = gaussian_blocks(np.array([5.0, 0.0]), 400)
    for fresh in ((other[0], other[1]), (trained[0], other[1])):
        assert (
            bound_by_distinguishing(
                PairSample(trained, fresh, np.array([1.0, 0.0, 0.0])), BoundLevel(1e-5, 0.99)
            ).epsilon
            == 0
        )


def test_statistics_see_values_that_come_back_and_the_metric_sees_shared_noise() -> None:
    coins = [block(RNG_APART.integers(0, 3, (200, 1)) + c) for c in (0.5, 0.0)]
    assert learn_statistics(coins[0], coins[1], None)["values that come back"](coins[0]).mean() == 1
    shared = RNG_APART.standard_normal((500, 1)) + np.zeros(3)
    whitened = NoiseMetric.from_sides(shared).whiten_vector(np.array([1.0, -1.0, 0.0]))
    assert abs(whitened).max() > 1e6  # nothing noises a difference


@pytest.mark.parametrize(
    ("shared", "least", "most"), [(True, 20.0, math.inf), (False, 0.0, gaussian_epsilon(1.0, 1e-5))]
)
def test_one_noise_for_all_numbers_is_read_through(shared: bool, least: float, most: float) -> None:
    rng = np.random.default_rng(3)

    def mechanism(update):
        flat = np.concatenate([a.ravel() for a in update])
        flat = flat / max(1.0, float(np.linalg.norm(flat)))
        return flat + (rng.standard_normal() if shared else rng.standard_normal(len(flat)))

    game = next(direction_games("update", InputShapes()))
    setting = GameSetting(
        BlackBox(lambda: mechanism, "update"),
        CallBudget(60, 10**6),
        rng,
        1.0,
        BoundLevel(1e-5, 0.99),
    )
    found = play_direction_game(setting, game, lambda data: [data], 800)
    assert least <= found.epsilon <= most


def test_a_flag_that_says_where_to_look_is_read_together_with_the_number() -> None:
    """The number alone is a mixture of one in five; with the flag it is a shift by 4."""

    def sides(n: int) -> tuple[Transcripts, Transcripts]:
        drawn = RNG_APART.random((2, n)) < 0.2
        numbers = RNG_APART.standard_normal((2, n)) + 4 * drawn * np.array([[1], [0]])
        made = [block(np.stack([numbers[k], drawn[k]], 1)) for k in (0, 1)]
        return made[0], made[1]

    trained = sides(8000)
    fresh = sides(8000)
    made = learn_statistics(*trained, None)
    gaps = {
        how: abs(of(fresh[0]).mean() - of(fresh[1]).mean()) / max(of(fresh[1]).std(), 1e-9)
        for how, of in made.items()
    }
    assert gaps["numbers and their products"] > 1.2 * max(
        gap for how, gap in gaps.items() if how.startswith("shift")
    )
    assert "numbers and their products" not in learn_statistics(
        *gaussian_blocks(np.ones(40), 200)[0], None
    )


def test_calls_with_less_noise_count_for_more() -> None:
    """Three calls, of which the second has a tenth of the noise."""
    std = np.array([1.0, 0.1, 1.0])[:, None]

    def side(shift: float) -> Transcripts:
        return Transcripts(shift + std * RNG_APART.standard_normal((1500, 3, 1)), ["x"] * 1500)

    made = learn_statistics(side(0.2), side(0.0), np.ones(1))
    one = side(0.2)
    other = side(0.0)
    gaps = {
        how: (of(one).mean() - of(other).mean()) / max(of(other).std(), 1e-9)
        for how, of in made.items()
    }
    assert (
        gaps["shift 0, calls weighed"] == pytest.approx(0.2 * np.sqrt(102), rel=0.15)
        and gaps["shift 0"] < 0.6
    )


def test_outcomes_are_weighed_by_their_odds() -> None:
    """Five outcomes whose odds go up and down: no threshold on their number orders them."""
    odds = np.array([[0.1, 0.4, 0.1, 0.3, 0.1], [0.3, 0.1, 0.3, 0.1, 0.2]])
    sides = [block(RNG_APART.choice(5, (20_000, 1), p=p).astype(float)) for p in odds]
    of = learn_statistics(sides[0], sides[1], None)["odds of the outcome"]
    each = [float(of(block(np.array([[float(k)]])))[0]) for k in range(5)]
    assert each == pytest.approx(np.log(odds[0] / odds[1]).tolist(), abs=0.12)
    assert "odds of the outcome" not in learn_statistics(*gaussian_blocks(np.ones(2), 200)[0], None)


def test_releases_whose_usual_size_is_chance_are_not_told_apart_by_it() -> None:
    """Lists of one, two or three numbers, on both sides alike: numbers of a list that is not of the
    usual size are not kept."""
    rng = np.random.default_rng(0)

    def block(chances: tuple[float, ...], count: int) -> Transcripts:
        answers = [[0.0] * k + [1.0] for k in rng.choice(3, count, p=chances)]
        rest = iter(answers)
        mechanism = BlackBox(lambda: lambda x: next(rest), "records", fresh=False)
        return draw_transcripts(mechanism, [np.zeros((1, 1))], count, CallBudget(1e6, 10**6))

    longer = (0.35, 0.45, 0.2)
    shorter = (0.45, 0.35, 0.2)
    for _ in range(12):
        trained = (block(longer, 1500), block(longer, 1500))
        fresh = (block(longer, 3000), block(shorter, 3000))
        widths = [one.rows.shape[2] for one in (*trained, *fresh)]
        assert widths == [2, 2, 2, 1]
        assert bound_by_distinguishing(
            PairSample(trained, fresh, None), BoundLevel(0.0, 0.999)
        ).epsilon <= math.log(0.45 / 0.35)
