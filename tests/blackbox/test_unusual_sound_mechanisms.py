"""Sound mechanisms that look unlike the usual ones are not accused, and faults much like them are
found."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from privdd.api import check
from privdd.blackbox.budgets import BoundLevel, CallBudget
from privdd.blackbox.check_verdict import Checked
from privdd.blackbox.claims import CheckedClaim
from privdd.blackbox.declarations import check_declared_noise
from privdd.blackbox.distinguishers import learn_statistics
from privdd.blackbox.identification_games import GameSetting, bound_series, direction_games
from privdd.blackbox.inputs import InputShapes
from privdd.blackbox.law_recognition import law_of_calls
from privdd.blackbox.mechanism import BlackBox
from privdd.blackbox.neighbours import neighbouring_pairs
from privdd.blackbox.stages.conditions import check_failures
from privdd.blackbox.stages.law_confirmation import OTHER, is_law_confirmed
from privdd.blackbox.transcripts import Transcripts
from tests.conformance.parts import DELTA, sigma

Update = list[np.ndarray]
SIGMA = sigma(1.0)
GAUSSIAN = {"epsilon": 1.0, "delta": DELTA}


def _checked(
    mechanism: object,
    stated: dict[str, float],
    kind: str = "update",
    calls: int = 20_000,
    **more: object,
) -> Checked:
    return check(mechanism, stated=stated, kind=kind, seconds=120, max_calls=calls, **more)


def _flat(update: Update) -> np.ndarray:
    return np.concatenate([a.ravel() for a in update])


def _clipped(v: np.ndarray, order: int = 2) -> np.ndarray:
    return v / max(1.0, float(np.linalg.norm(v, order)))


@pytest.mark.nightly(cases=["laplace"])
@pytest.mark.parametrize("noise", ["laplace", "normal"])
def test_the_same_noised_numbers_in_two_forms_are_one_release(noise: str) -> None:
    """The update, and public weights with the update added; rounding differs where a weight is 1,
    and nothing else does."""
    rng = np.random.default_rng(1)
    order = 1 if noise == "laplace" else 2
    scale = 1.0 if noise == "laplace" else SIGMA

    def sound(update: Update) -> dict[str, np.ndarray]:
        v = _clipped(_flat(update), order)
        noised = v + getattr(rng, noise)(0.0, scale, v.shape)
        return {"delta": noised, "weights": np.linspace(-1, 1, v.size) + noised}

    stated, calls = (
        ({"epsilon": 1.0, "delta": 0}, 40_000) if noise == "laplace" else (GAUSSIAN, 20_000)
    )
    found = _checked(sound, stated, calls=calls)
    assert not found.refuted and found.certified > 0.5, found.says


def test_what_pieces_of_the_same_noise_differ_in_by_rounding_is_no_statistic() -> None:
    """(a, a - 1): the difference is 1 to the last bit where a is in [0.5, 2], and nearly so
    elsewhere."""
    rng = np.random.default_rng(8)
    sides = []
    for at in (1.0, 0.0):
        a = at * np.eye(4)[0] + rng.standard_normal((2000, 4))
        sides.append(
            Transcripts(np.concatenate([a, a - np.eye(4)[0]], axis=1)[:, None], ["f"] * 2000)
        )
    spread = learn_statistics(sides[0], sides[1], np.eye(4)[0])["spread over calls"]
    assert len({*spread(sides[0]), *spread(sides[1])}) == 1


def test_the_same_numbers_with_noise_of_their_own_are_two_releases() -> None:
    rng = np.random.default_rng(2)

    def faulty(update: Update) -> dict[str, np.ndarray]:
        v = _clipped(_flat(update), 1)
        return {name: v + rng.laplace(0.0, 1.0, v.shape) for name in ("delta", "weights")}

    assert _checked(faulty, {"epsilon": 1.0, "delta": 0}, calls=30_000).refuted


def _huber(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Density exp(-huber(z)), normal up to 3: the log odds of a record of L1 norm 1 are 3 at most,
    under normal noise any."""
    outside = 2 * math.exp(-4.5) / 3
    share = outside / (outside + math.sqrt(2 * math.pi) * math.erf(3 / math.sqrt(2)))
    z = rng.standard_normal(shape)
    while (far := np.abs(z) > 3).any():
        z[far] = rng.standard_normal(int(far.sum()))
    return np.where(
        rng.random(shape) < share,
        (3 + rng.exponential(1 / 3, shape)) * rng.choice([-1.0, 1.0], shape),
        z,
    )


@pytest.mark.nightly
def test_noise_that_is_normal_up_to_three_deviations_only_is_not_taken_for_normal() -> None:
    rng = np.random.default_rng(3)
    all_moved = np.ones(25, bool)
    for law, draw in (
        ("gaussian", rng.standard_normal),
        ("laplace", lambda shape: rng.laplace(size=shape)),
    ):
        assert is_law_confirmed(law, Transcripts(draw((24_000, 1, 25)), ["f"] * 24_000), all_moved)
    for _ in range(2):
        odd = _huber(rng, (24_000, 1, 25))
        assert law_of_calls(Transcripts(odd[:1500], ["f"] * 1500)) == "gaussian"
        assert not is_law_confirmed("gaussian", Transcripts(odd, ["f"] * 24_000), all_moved)
        beside = np.concatenate([rng.standard_normal((24_000, 1, 25)), odd], axis=2)
        assert not is_law_confirmed(
            "gaussian", Transcripts(beside, ["f"] * 24_000), np.arange(50) >= 25
        )
    found = _checked(
        lambda update: _clipped(_flat(update), 1) + _huber(rng, (25,)),
        {"epsilon": 3.0, "delta": 0},
        calls=120_000,
        tried=InputShapes(structures=(((25,),),)),
    )
    assert not found.refuted and found.certified > 1.5, found.says
    assert OTHER.format(law="gaussian") in found.notes


def test_no_other_number_of_records_is_tried_than_the_one_that_was_asked_for() -> None:
    """Though it is one of those that are tried without being asked."""
    rng = np.random.default_rng(4)

    def sound_for_64(table: np.ndarray) -> np.ndarray:
        return rng.normal(0.0, 1.0, 3) if len(table) == 64 else table

    found = _checked(
        sound_for_64,
        GAUSSIAN,
        "records",
        8000,
        tried=InputShapes(tables=((64, 4),)),
        relation="replace",
    )
    assert not found.refuted, found.says
    assert _checked(sound_for_64, GAUSSIAN, "records", 8000, relation="replace").refuted


def _geometric(rng: np.random.Generator, epsilon: float, n: int) -> np.ndarray:
    return np.subtract(*(rng.geometric(1 - math.exp(-epsilon), n) for _ in range(2))).astype(float)


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_the_deviation_of_noise_with_heavy_tails_may_be_declared_without_its_law(
    epsilon: float,
) -> None:
    rng = np.random.default_rng(5)
    p = math.exp(-epsilon)
    tried = InputShapes(structures=(((25,),),))

    def looks(of_noise: float, declared_std: float) -> list[str]:
        box = BlackBox(
            lambda: lambda update: _flat(update) + _geometric(rng, of_noise, 25), "update"
        )
        stated = CheckedClaim(epsilon=epsilon, noise_std=declared_std, relation="zero_out")
        return [
            look.outcome
            for look in check_declared_noise(
                box, stated, tried, CallBudget(60.0, 10**6), lambda: 0.9999
            )
        ]

    std = math.sqrt(2 * p) / (1 - p)
    assert [looks(epsilon, std) for _ in range(5)] == [["not refuted"]] * 5
    assert looks(2 * epsilon, std) == ["refuted"]


def _noised(rng: np.random.Generator, update: Update) -> np.ndarray:
    v = _clipped(_flat(update))
    return v + rng.normal(0.0, SIGMA, v.shape)


def test_a_call_that_fails_for_a_record_and_not_without_it_is_a_condition() -> None:
    rng = np.random.default_rng(6)

    def fails(update: Update) -> np.ndarray:
        if np.abs(_flat(update)).max() > 100:
            raise OverflowError("gradient exploded")
        return _noised(rng, update)

    def at_random(update: Update) -> np.ndarray:
        if rng.random() < 0.3:
            raise OSError("connection lost")
        return _noised(rng, update)

    some = neighbouring_pairs("update", "zero_out", InputShapes())[:1]
    assert not check_failures(BlackBox(lambda: at_random, "update"), some, CallBudget(60.0, 10**6))
    told = [says for says in _checked(fails, GAUSSIAN, calls=20_000).conditions if "fail" in says]
    assert len(told) == 1 and "gradient exploded" in told[0]


class Ring:
    """A store of 64 noise vectors, filled anew when it is used up, or begun again."""

    def __init__(self, again: bool, seed: int) -> None:
        self.again = again
        self.rng = np.random.default_rng(seed)
        self.at = 0
        self.noise: dict[int, np.ndarray] = {}

    def __call__(self, update: Update) -> np.ndarray:
        v = _clipped(_flat(update))
        place = self.at % 64
        self.at += 1
        if not self.again or place not in self.noise:
            self.noise[place] = self.rng.normal(0.0, SIGMA, v.shape)
        return v + self.noise[place]


@pytest.mark.parametrize("again", [True, False])
def test_noise_that_comes_back_after_dozens_of_calls_shows(again: bool) -> None:
    seeds = iter(range(1000))
    box = BlackBox(lambda: Ring(again, next(seeds)), "update", fresh=True)
    game = next(iter(direction_games("update", InputShapes())))
    setting = GameSetting(
        box, CallBudget(60.0, 10**6), np.random.default_rng(7), 1.05, BoundLevel(DELTA, 0.999)
    )
    bound = bound_series(setting, game, 150, late=True)
    assert bound is not None and (bound > 1.05) == again


class Sticky:
    """A count with noise of a secret seed: one for each call, or one for each answer."""

    def __init__(self, by_answer: bool, secrets: Callable[[], int]) -> None:
        self.by_answer = by_answer
        self.secret = secrets()
        self.calls = 0

    def __call__(self, table: np.ndarray) -> float:
        count = int((table.sum(1) > 0).sum())
        self.calls += 1
        return count + float(
            np.random.default_rng([self.secret, count if self.by_answer else self.calls]).laplace()
        )


@pytest.mark.nightly
@pytest.mark.parametrize("by_answer", [True, False])
def test_noise_that_depends_on_the_answer_shows_between_calls_without_the_record(
    by_answer: bool,
) -> None:
    secrets = iter(range(10**9))
    made = partial(Sticky, by_answer, lambda: next(secrets))
    found = _checked(
        type("Made", (), {"__new__": lambda cls: made()}),
        {"epsilon": 1.0, "delta": 0},
        "records",
        80_000,
    )
    assert found.refuted == by_answer, found.says
