"""Noise of uneven size: what it hides too little is found, and sound noise of any length is not accused."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from privdd.blackbox.claim import CheckedClaim
from privdd.blackbox.inputs import InputShapes
from privdd.blackbox.mechanism import BlackBox
from privdd.blackbox.noise_laws import NoiseFrame, _event_chance, fit_noise_frame, is_spherical, symmetric_epsilon
from privdd.blackbox.stages import NAME, UnevenNoiseStage
from privdd.blackbox.transcripts import BoundLevel, CallBudget, Transcripts
from tests.conformance.parts import DELTA, sigma

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
        return way / np.linalg.norm(way, axis=1, keepdims=True) * rng.gamma(numbers, 1 / epsilon, (n, 1))

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
def test_noise_of_density_exp_of_minus_the_length_is_not_accused(epsilon: float, numbers: int) -> None:
    """Twelve numbers: if each release were taken for normal noise of its size, bounds of 6.6 and 12.8 would come out."""
    assert _found(_sound(epsilon, numbers), 2000, 2, 0.0, np.full(numbers, 1 / np.sqrt(numbers))) < epsilon


def test_noise_that_looks_otherwise_from_its_corners_gives_nothing() -> None:
    assert _found(_laplace, 1500, 3, 0.0, RECORD / np.sqrt(D)) == 0.0


def test_the_chance_of_the_event_is_the_share_of_rotations_that_meet_it() -> None:
    rng, n = np.random.default_rng(4), 400_000
    seen = NoiseFrame(np.zeros(8), np.ones(8), np.eye(8)[0], 1.5)
    x = rng.standard_normal((n, 8))
    x *= 3.0 / np.linalg.norm(x, axis=1, keepdims=True)
    met = x[:, 0] > 0.75 + 2.0 * np.square(x[:, 1:]).sum(1) / (7 * 1.5)
    said = float(_event_chance(np.array([3.0]), 2.0, seen, 0.75, 1.0)[0])
    assert met.mean() == pytest.approx(said, abs=5 * np.sqrt(said / n)) and said > 1e-3


def test_directions_that_tell_the_length_are_seen() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((4000, D))
    view = NoiseFrame(np.zeros(D), np.ones(D), RECORD, 1.0).split_releases
    assert is_spherical(view(Transcripts(x[:, None], ["f"] * len(x))))
    along = x @ RECORD
    longer = np.where(np.abs(along) > 1, 2.0, 1.0)[:, None] * x
    assert not is_spherical(view(Transcripts(longer[:, None], ["f"] * len(x))))


def _examined(shares: int, draws: int = 150_000) -> UnevenNoiseStage:
    rng = np.random.default_rng(6)

    def mechanism(update: list[np.ndarray]) -> np.ndarray:
        share = (1 + rng.binomial(shares - 1, 0.5)) / shares
        flat = np.concatenate([a.ravel() for a in update])
        flat = flat / max(1.0, float(np.linalg.norm(flat)))
        return flat + sigma_of_four * math.sqrt(share) * rng.standard_normal(len(flat))

    sigma_of_four = sigma(4.0)
    said = CheckedClaim(4.0, DELTA, kind="update", relation="zero_out")
    box = BlackBox(lambda: mechanism, "update", fresh=False)
    return UnevenNoiseStage(box, said, InputShapes(), CallBudget(600, draws), 0.99, lambda name: None)


def test_the_stage_is_cheap_where_noise_is_of_one_size_and_finds_what_is_not() -> None:
    """With few calls nothing is said of it, but that it was not looked at."""
    sound = _examined(1)
    sound.examine_uneven_noise()
    assert not sound.result.looks and sound.mechanism.calls < 1500
    short = _examined(6, 6000)
    short.examine_uneven_noise()
    assert not short.result.looks and NAME in short.result.notes[-1]
    faulty = _examined(6)
    faulty.examine_uneven_noise()
    assert faulty.result.looks[0].outcome == "refuted" and faulty.shares.taken == 1
