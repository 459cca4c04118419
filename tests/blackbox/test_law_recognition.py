"""Tests of ``privdd.blackbox.law_recognition``."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from scipy.stats import norm

from privdd.blackbox.budgets import BoundLevel, CallBudget
from privdd.blackbox.check_run import CheckRun
from privdd.blackbox.claims import CheckedClaim
from privdd.blackbox.inputs import InputShapes, is_quiet
from privdd.blackbox.law_recognition import law_of_calls
from privdd.blackbox.mechanism import BlackBox
from privdd.blackbox.neighbours import neighbouring_pairs
from privdd.blackbox.rare_shift_bounds import (
    epsilon_from_moments,
    sampled_epsilon,
    tail_epsilon,
    two_point_epsilon,
    two_point_law,
)
from privdd.blackbox.shift_bounds import bound_shift
from privdd.blackbox.spherical_noise import (
    NoiseFrame,
    event_chance,
    fit_noise_frame,
    is_spherical,
    symmetric_epsilon,
)
from privdd.blackbox.stages.uneven_noise import NAME, examine_uneven_noise
from privdd.blackbox.transcripts import PairSample, Transcripts
from tests.conformance.parts import DELTA, poisson_epsilon, sigma

# A sum of calls is nearly normal in its middle, whatever noise the calls have; its tails are those
# of the calls.


Sides = tuple[Transcripts, Transcripts]
CALLS = 20


def _sides(noise: Callable[..., np.ndarray], n: int = 4000) -> Sides:
    """One number a call; the record moves it by 1 in each of twenty calls, under noise that is
    0.2-DP if it is Laplace."""
    one = noise(size=(n, CALLS, 1))
    other = noise(size=(n, CALLS, 1))
    return Transcripts(one + 1.0, ["f"] * n), Transcripts(other, ["f"] * n)


@pytest.mark.parametrize(("law", "found"), [("laplace", "other"), ("normal", "gaussian")])
def test_a_sum_of_calls_is_normal_only_where_each_call_is(law: str, found: str) -> None:
    rng = np.random.default_rng(1)
    noise = lambda size: getattr(rng, law)(0.0, 5.0, size)  # noqa: E731
    trained = _sides(noise)
    fresh = _sides(noise)
    asked = {"delta": 0.0, "confidence": 0.9999}
    assert law_of_calls(*fresh) == found and law_of_calls(fresh[1]) == found
    assert (
        law_of_calls(Transcripts(fresh[1].rows.sum(1, keepdims=True), fresh[1].codes)) == "gaussian"
    )
    moved = bound_shift(PairSample(trained, fresh, np.ones(1)), BoundLevel(**asked))
    assert (moved.law, moved.epsilon > 0) == (found, found == "gaussian")
    assert (tail_epsilon(PairSample(trained, fresh, np.ones(1)), BoundLevel(**asked)) > 0) == (
        found == "gaussian"
    )


def _one_number(noise: Callable[[int], np.ndarray], gap: float, n: int) -> tuple[Sides, Sides]:
    """Training and fresh transcripts of one number, moved by ``gap``."""
    made = [
        [Transcripts(noise(n)[:, None, None] + at, ["f"] * n) for at in (gap, 0.0)]
        for _ in range(2)
    ]
    return (made[0][0], made[0][1]), (made[1][0], made[1][1])


def test_logistic_noise_is_not_taken_for_normal_where_transcripts_are_few() -> None:
    """It is 1-DP; normal noise of its size would be 2.9-DP at 1e-12, and a few hundred transcripts
    tell them apart badly."""
    rng = np.random.default_rng(2)
    for n in (200, 500, 1000):
        for _ in range(20):
            trained, fresh = _one_number(lambda k: rng.logistic(0.0, 1.0, k), 1.0, n)
            assert (
                bound_shift(PairSample(trained, fresh, np.ones(1)), BoundLevel(0.0, 0.9999)).epsilon
                <= 1.05
            )


@pytest.mark.parametrize(("others", "noise"), [(30, 0.0), (16, 1.0), (100, 1.0)])
def test_logistic_noise_is_not_taken_for_that_of_the_numbers_beside_it(
    others: int, noise: float
) -> None:
    """A 4-DP count beside numbers that never change, or whose noise is normal: they are many, and
    say nothing of it."""
    rng = np.random.default_rng(4)

    def block(n: int, at: float) -> Transcripts:
        return Transcripts(
            np.column_stack([rng.logistic(at, 0.25, n), noise * rng.normal(size=(n, others))])[
                :, None
            ],
            ["f"] * n,
        )

    for n in (200, 500):
        for _ in range(10):
            trained, fresh = [(block(n, 1.0), block(n, 0.0)) for _ in range(2)]
            assert (
                bound_shift(
                    PairSample(trained, fresh, np.eye(others + 1)[0]), BoundLevel(1e-6, 0.9999)
                ).epsilon
                <= 4.0
            )


def test_a_normal_number_beside_many_is_believed_from_its_own_numbers_on() -> None:
    rng = np.random.default_rng(5)
    for n, law in ((200, "other"), (1000, "gaussian")):
        made = [
            [
                Transcripts((rng.normal(size=(n, 40)) + at * np.eye(40)[0])[:, None], ["f"] * n)
                for at in (1.0, 0.0)
            ]
            for _ in range(2)
        ]
        assert (
            bound_shift(
                PairSample((made[0][0], made[0][1]), (made[1][0], made[1][1]), None),
                BoundLevel(1e-6, 0.9999),
            ).law
            == law
        )


def test_a_number_whose_skew_the_record_turns_round_is_not_laplace_like_those_beside_it() -> None:
    """The piecewise mechanism (Wang et al. 2019) at epsilon 2, a number that goes from -1 to 1,
    beside Laplace noise."""
    rng = np.random.default_rng(3)
    n = 4000
    s = np.e
    ends = (s + 1) / (s - 1)

    def answers(sign: float) -> Transcripts:
        near = rng.random(n) < s / (s + 1)
        moved = sign * np.where(near, rng.uniform(1.0, ends, n), rng.uniform(-ends, 1.0, n))
        return Transcripts(np.column_stack([moved, rng.laplace(size=(n, 15))])[:, None], ["f"] * n)

    trained, fresh = [(answers(1.0), answers(-1.0)) for _ in range(2)]
    assert law_of_calls(*fresh) == "laplace"
    moved = bound_shift(PairSample(trained, fresh, np.eye(16)[0]), BoundLevel(0.0, 0.9999))
    assert (moved.law, moved.epsilon) == ("other", 0.0)


# Moments of a sampled record against the exact accountant, and against mechanisms whose epsilon is
# known.


AXIS = np.array([1.0, 0.0])


@pytest.mark.parametrize(("q", "z"), [(0.1, 1.26), (0.02, 0.8), (0.5, 2.0)])
def test_two_points_cost_what_the_accountant_says(q: float, z: float) -> None:
    assert two_point_epsilon(0.0, 1.0, q, z, DELTA) == pytest.approx(
        poisson_epsilon(q, z), rel=0.01
    )


def test_one_point_is_the_gaussian_mechanism() -> None:
    assert two_point_epsilon(0.0, 1.0, 1.0, sigma(1.0), DELTA) == pytest.approx(1.0, rel=0.01)


def test_no_law_with_the_same_moments_costs_less() -> None:
    """Laws of X on five points of either sign, in turn: epsilon of the two points is below
    theirs."""
    rng = np.random.default_rng(0)
    t = np.linspace(0.0, 16.0, 3000)
    for _ in range(100):
        places = rng.uniform(-1.5, 1.5, 5)
        shares = rng.dirichlet(np.ones(5))
        mean = float(shares @ places)
        low, high, q = two_point_law(mean, *(float(shares @ (places - mean) ** k) for k in (2, 3)))
        assert [(1 - q) * low**k + q * high**k for k in (1, 2, 3)] == pytest.approx(
            [shares @ places**k for k in (1, 2, 3)]
        )
        beyond = (shares[:, None] * ndtr(places[:, None] - t)).sum(0) - DELTA
        exact = float((np.log(np.maximum(beyond, 1e-300)) - log_ndtr(-t)).max())
        assert two_point_epsilon(low, high, q, 1.0, DELTA) <= max(0.0, exact) + 1e-3


def test_a_record_that_is_mirrored_at_times_is_not_accused() -> None:
    """Signs drawn after the clip keep the sensitivity. Two moments alone would give {0, 2} here,
    and an epsilon above the true one."""
    rng = np.random.default_rng(4)
    true = two_point_epsilon(-1.0, 1.0, 0.75, 2.0, DELTA)
    found = []
    for n in (6000, 20_000, 100_000):
        for _ in range(10):
            y = rng.normal(0.0, 2.0, n) + np.where(rng.random(n) < 0.25, -1.0, 1.0)
            found.append(epsilon_from_moments(y, rng.normal(0.0, 2.0, n), DELTA, 0.01))
    assert max(found) < true < two_point_epsilon(0.0, 2.0, 0.25, 2.0, DELTA) and min(found) > 0.5


def _blocks(
    q: float, z: float, n: int, rng: np.random.Generator, noise: str = "normal"
) -> tuple[Transcripts, Transcripts]:
    drawn = [getattr(rng, noise)(0.0, z, (n, 1, 2)) for _ in range(2)]
    drawn[0][:, 0] += (rng.random(n) < q)[:, None] * AXIS
    return Transcripts(drawn[0], ["f"] * n), Transcripts(drawn[1], ["f"] * n)


# the noise of epsilon 1 at a rate of a tenth
NOISE_AT_A_TENTH = 1.26


def test_twice_the_rate_is_seen() -> None:
    rng = np.random.default_rng(1)
    z = NOISE_AT_A_TENTH
    level = BoundLevel(DELTA, 0.99)
    found = [
        sampled_epsilon(
            PairSample(_blocks(0.2, z, 20_000, rng), _blocks(0.2, z, 150_000, rng), AXIS), level
        )
        for _ in range(3)
    ]
    assert min(found) > 1.05 and max(found) < poisson_epsilon(0.2, z)


@pytest.mark.nightly(cases=["60-3"])
@pytest.mark.parametrize(("checks", "most"), [(20, 1), (60, 3)])
def test_the_stated_rate_is_not_accused(checks: int, most: int) -> None:
    """Of a hundred checks one may accuse."""
    rng = np.random.default_rng(1)
    z = NOISE_AT_A_TENTH
    level = BoundLevel(DELTA, 0.99)
    true = poisson_epsilon(0.1, z)
    found = [
        sampled_epsilon(
            PairSample(_blocks(0.1, z, 5000, rng), _blocks(0.1, z, 20_000, rng), AXIS), level
        )
        for _ in range(checks)
    ]
    assert sum(value > true for value in found) <= most


def test_other_noise_gives_nothing() -> None:
    rng = np.random.default_rng(2)
    level = BoundLevel(DELTA, 0.99)
    assert (
        sampled_epsilon(
            PairSample(
                _blocks(0.2, 1.0, 5000, rng, "laplace"),
                _blocks(0.2, 1.0, 20_000, rng, "laplace"),
                AXIS,
            ),
            level,
        )
        == 0.0
    )


def test_a_fall_of_the_mean_gives_nothing() -> None:
    rng = np.random.default_rng(3)
    assert (
        epsilon_from_moments(rng.normal(-1.0, 1.0, 5000), rng.normal(0.0, 1.0, 5000), DELTA, 0.01)
        == 0.0
    )


# Noise of uneven size: what it hides too little is found, and sound noise of any length is not
# accused.


D = 64
RECORD = np.full(D, 1 / np.sqrt(D))
Noise = Callable[[int, np.random.Generator], np.ndarray]


def _shares(n: int, rng: np.random.Generator) -> np.ndarray:
    """One share of noise of six, and those of the other five that stayed."""
    share = (1 + rng.binomial(5, 0.5, n)) / 6
    return rng.standard_normal((n, D)) * sigma(4.0) * np.sqrt(share)[:, None]


def _sound(epsilon: float, numbers: int) -> Noise:
    """Density exp(-epsilon |x|): epsilon-DP for a record of norm 1."""

    def noise(n: int, rng: np.random.Generator) -> np.ndarray:
        way = rng.standard_normal((n, numbers))
        return (
            way
            / np.linalg.norm(way, axis=1, keepdims=True)
            * rng.gamma(numbers, 1 / epsilon, (n, 1))
        )

    return noise


def _laplace(n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.laplace(0.0, 1 / 50, (n, D))


def _found(noise: Noise, n: int, seed: int, delta: float, record: np.ndarray = RECORD) -> float:
    rng = np.random.default_rng(seed)

    def side(count: int, moved: float) -> Transcripts:
        return Transcripts((noise(count, rng) + moved * record)[:, None], ["f"] * count)

    trained, fresh = ((side(count, 1.0), side(count, 0.0)) for count in (n, 2 * n))
    seen = fit_noise_frame(*trained, record)
    assert seen is not None and seen.split_releases(trained[1]).is_uneven
    return symmetric_epsilon(seen, trained, fresh, BoundLevel(delta, 0.9999))


def test_shares_of_noise_that_went_missing_are_found() -> None:
    """Its epsilon is 9.7 where 4 is stated."""
    assert 4.2 < _found(_shares, 12_000, 1, DELTA) < 9.7


@pytest.mark.parametrize(("epsilon", "numbers"), [(4.0, D), (50.0, D), (4.0, 12), (8.0, 12)])
def test_noise_of_density_exp_of_minus_the_length_is_not_accused(
    epsilon: float, numbers: int
) -> None:
    """Twelve numbers: if each release were taken for normal noise of its size, bounds of 6.6 and
    12.8 would come out."""
    assert (
        _found(_sound(epsilon, numbers), 2000, 2, 0.0, np.full(numbers, 1 / np.sqrt(numbers)))
        < epsilon
    )


def test_noise_that_looks_otherwise_from_its_corners_gives_nothing() -> None:
    assert _found(_laplace, 1500, 3, 0.0, RECORD / np.sqrt(D)) == 0.0


def test_the_chance_of_the_event_is_the_share_of_rotations_that_meet_it() -> None:
    rng = np.random.default_rng(4)
    n = 400_000
    seen = NoiseFrame(np.zeros(8), np.ones(8), np.eye(8)[0], 1.5)
    x = rng.standard_normal((n, 8))
    x *= 3.0 / np.linalg.norm(x, axis=1, keepdims=True)
    met = x[:, 0] > 0.75 + 2.0 * np.square(x[:, 1:]).sum(1) / (7 * 1.5)
    said = float(event_chance(np.array([3.0]), 2.0, seen, 0.75, 1.0)[0])
    assert met.mean() == pytest.approx(said, abs=5 * np.sqrt(said / n)) and said > 1e-3


def test_directions_that_tell_the_length_are_seen() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((4000, D))
    view = NoiseFrame(np.zeros(D), np.ones(D), RECORD, 1.0).split_releases
    assert is_spherical(view(Transcripts(x[:, None], ["f"] * len(x))))
    along = x @ RECORD
    longer = np.where(np.abs(along) > 1, 2.0, 1.0)[:, None] * x
    assert not is_spherical(view(Transcripts(longer[:, None], ["f"] * len(x))))


def _run_of(shares: int, draws: int = 150_000) -> CheckRun:
    rng = np.random.default_rng(6)

    def mechanism(update: list[np.ndarray]) -> np.ndarray:
        share = (1 + rng.binomial(shares - 1, 0.5)) / shares
        flat = np.concatenate([a.ravel() for a in update])
        flat = flat / max(1.0, float(np.linalg.norm(flat)))
        return flat + sigma_of_four * math.sqrt(share) * rng.standard_normal(len(flat))

    sigma_of_four = sigma(4.0)
    claim = CheckedClaim(4.0, DELTA, kind="update", relation="zero_out")
    box = BlackBox(lambda: mechanism, "update", fresh=False)
    return CheckRun(box, claim, InputShapes(), CallBudget(600, draws))


def test_the_stage_is_cheap_where_noise_is_of_one_size_and_finds_what_is_not() -> None:
    """With few calls the check stays undecided, as the test was not made."""
    sound = _run_of(1)
    examine_uneven_noise(sound)
    assert not sound.report.looks and sound.mechanism.calls < 1500
    short = _run_of(6, 6000)
    examine_uneven_noise(short)
    assert not short.report.looks and NAME in short.report.undecided[-1]
    faulty = _run_of(6)
    examine_uneven_noise(faulty)
    assert faulty.report.looks[0].outcome == "refuted" and faulty.errors.taken == 1


# The tail of the noise's law against mixtures of two normal distributions, whose epsilon is known.


DELTA_TAIL = 1e-5
CONFIDENCE = 0.95


def block(values: np.ndarray) -> Transcripts:
    return Transcripts(values.reshape(len(values), 1, -1), ["x"] * len(values))


def sides(q: float, shift: float, n: int, rng: np.random.Generator, noise=None):
    noise = noise or rng.standard_normal
    made = [
        (block(shift * (rng.random((n, 1)) < q) + noise((n, 1))), block(noise((n, 1))))
        for _ in range(2)
    ]
    return made[0], made[1]


def truth(q: float, shift: float) -> float:
    """Of (1 - q) N(0, 1) + q N(shift, 1) against N(0, 1): the set where the ratio exceeds e^epsilon
    is a half line."""

    def spent(epsilon: float) -> float:
        at = np.log((np.expm1(epsilon) + q) / q) / shift + shift / 2
        return q * norm.sf(at - shift) + (1 - q - np.exp(epsilon)) * norm.sf(at) - DELTA_TAIL

    return float(brentq(spent, 1e-3, 30))


@pytest.mark.parametrize(
    ("q", "shift", "least"), [(0.1, 4.0, np.log(4000)), (0.2, 1.0, 0.0), (0.02, 5.0, np.log(4000))]
)
def test_the_bound_is_below_the_truth_and_above_what_counting_can_say(
    q: float, shift: float, least: float
) -> None:
    rng = np.random.default_rng(8)
    found = [
        tail_epsilon(
            PairSample(*sides(q, shift, 4000, rng), None), BoundLevel(DELTA_TAIL, CONFIDENCE)
        )
        for _ in range(16)
    ]
    true = truth(q, shift)
    assert np.mean(np.array(found) > true) <= 0.13 and np.median(found) >= least
    if q * shift == 0.4:
        assert np.median(found) > np.log(4000)  # counting on both sides cannot say as much


def test_nothing_is_said_of_noise_of_another_law_or_of_none() -> None:
    rng = np.random.default_rng(9)
    for noise in (rng.laplace, lambda size: rng.standard_t(5, size), lambda size: np.zeros(size)):
        assert (
            tail_epsilon(
                PairSample(*sides(0.1, 4.0, 6000, rng, noise), None),
                BoundLevel(DELTA_TAIL, CONFIDENCE),
            )
            == 0
        )
    nulls = [
        tail_epsilon(
            PairSample(*sides(0.0, 4.0, 2000, rng), None), BoundLevel(DELTA_TAIL, CONFIDENCE)
        )
        > 0
        for _ in range(30)
    ]
    assert np.mean(nulls) <= 0.13


def test_only_data_of_nothing_but_zeros_are_quiet() -> None:
    for kind in ("update", "aggregate", "records"):
        made = neighbouring_pairs(kind, "zero_out", InputShapes())
        told = [pair for pair in made if is_quiet(pair.absent, 0.0)]
        assert (
            told
            and all("against zeros" in pair.says for pair in told)
            and not any(is_quiet(p.present, 0.0) for p in made)
        )
        assert kind == "update" or len(told) < len(made)
