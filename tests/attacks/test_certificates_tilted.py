"""The tilted certificate against dominating pairs whose epsilon is known: near-tight, and not above the truth."""

from __future__ import annotations

import math
from functools import lru_cache

import dp_accounting as dpa
import numpy as np
import pytest

from attacks.certificates import TiltedDraws, certified_epsilon, draw_tilted_runs, step_losses
from privdd.privacy.accounting import epsilon

DELTA = 1e-5
CASES = {  # steps (q, z, how often) of one transcript
    "one Gaussian": [(1.0, 1.0, 1)],
    "a faint Gaussian": [(1.0, 4.0, 1)],
    "a loud Gaussian": [(1.0, 0.25, 1)],
    "two kinds of query": [(1.0, 5.0, 24), (1.0, 20.0, 6)],
    "subsampled steps": [(0.1, 1.0, 80)],
    "a few subsampled steps": [(0.1, 1.0, 10)],
    "steps, then a release": [(0.1, 1.0, 20), (1.0, 1.0, 1)],
}


def steps(case: list[tuple[float, float, int]]) -> tuple[np.ndarray, np.ndarray]:
    mus = np.concatenate([np.full(n, 1 / z) for _, z, n in case])
    return mus, np.concatenate([np.full(n, q) for q, _, n in case])


def truth(case: list[tuple[float, float, int]]) -> float:
    parts = [
        dpa.SelfComposedDpEvent(g if q == 1 else dpa.PoissonSampledDpEvent(q, g), n)
        for q, z, n in case
        for g in [dpa.GaussianDpEvent(z)]
    ]
    return epsilon(dpa.ComposedDpEvent(parts), DELTA)


@lru_cache(maxsize=256)
def drawn(case: tuple[tuple[float, float, int], ...], runs: int, seed: int) -> TiltedDraws:
    return draw_tilted_runs(*steps(list(case)), DELTA, runs, np.random.default_rng(seed))


def measured(case: list[tuple[float, float, int]], runs: int, seed: int, kappa: float = 1.0) -> float:
    """The bound from runs of a mechanism whose record moves every release by ``kappa`` times what was planned."""
    mus, q = steps(case)
    draws = drawn(tuple(case), runs, seed)
    losses = step_losses(draws.noise + draws.coins * kappa * mus, kappa * mus, q).sum(1)
    return certified_epsilon(draws, losses, DELTA)


@pytest.mark.parametrize("name", CASES)
def test_near_the_truth_at_600_runs_and_at_20(name: str) -> None:
    for runs, least in ((600, 0.98), (20, 0.93)):
        ratios = [measured(CASES[name], runs, seed) / truth(CASES[name]) for seed in range(3)]
        assert np.median(ratios) >= least
        assert max(ratios) <= 1.001  # the accountant rounds up by about so much


def test_eight_runs_are_enough_also_with_a_small_share_of_the_error() -> None:
    """As an audit of 200 bounds asks it: draws that are planned for a larger error leave some seeds at .85 or less."""
    case, confidence = CASES["subsampled steps"], 1 - 0.05 / 200
    mus, q = steps(case)
    for seed in range(4):
        draws = draw_tilted_runs(mus, q, DELTA, 8, np.random.default_rng(seed), confidence=confidence)
        assert certified_epsilon(draws, draws.planned, DELTA, confidence=confidence) > 0.88 * truth(case)


@pytest.mark.parametrize("name", ["one Gaussian", "a few subsampled steps"])
@pytest.mark.parametrize("kappa", [0.7, 1.0, 1.3])
def test_no_more_than_one_in_twenty_bounds_exceeds_the_truth(name: str, kappa: float) -> None:
    case = CASES[name]
    exact = truth([(q, z / kappa, n) for q, z, n in case])
    wrong = sum(measured(case, 40, seed, kappa) > exact * 1.0005 for seed in range(100))
    assert wrong <= 10  # 5 expected at most; 11 or more have probability 0.011 at 5 %


@pytest.mark.parametrize("kappa", [0.8, 1.0, 1.5])
def test_the_weights_turn_planned_draws_back_into_the_record_s_presence(kappa: float) -> None:
    """The mean of dP/dG (1 - e^(eps - L))_+ is delta(eps) of the mechanism that really runs (Balle and Wang 2018)."""
    mus, q = steps(CASES["two kinds of query"])
    mu = kappa * math.sqrt(float((mus**2).sum()))
    exact = dpa.get_epsilon_gaussian(1 / mu, DELTA)
    draws = [draw_tilted_runs(mus, q, DELTA, 4000, np.random.default_rng(seed)) for seed in range(4)]
    found = []
    for draw in draws:
        losses = step_losses(draw.noise + kappa * mus, kappa * mus, q).sum(1)
        found.append(float((np.exp(draw.log_weights) * np.maximum(0, -np.expm1(exact - losses))).mean()))
    assert np.mean(found) <= 1.02 * DELTA
    if kappa >= 1:  # below, some of what counts lies where no planned draw does
        assert np.mean(found) >= (0.9 if kappa == 1 else 0.6) * DELTA


def test_coins_and_noise_of_a_subsampled_step_have_the_tilted_law() -> None:
    """E_G[f] of the raw draws, weighted back, is E_P[f 1(Y > eps0)]: here f = the coin, by brute force on a grid."""
    mus, q = np.array([1.0]), np.array([0.2])
    draws = draw_tilted_runs(mus, q, 0.01, 20_000, np.random.default_rng(1))
    x = np.linspace(-10, 12, 200_001)
    density = np.exp(-np.square(x - 1) / 2) / math.sqrt(2 * math.pi)
    loss = step_losses(x, mus, q)
    level = float(draws.planned.min())
    exact = float((0.2 * density * (loss > level)).sum() * (x[1] - x[0]))
    found = (np.exp(draws.log_weights) * draws.coins[:, 0]).mean()
    count = (np.exp(draws.log_weights) * (~draws.coins[:, 0])).mean()
    outside = np.exp(-np.square(x) / 2) / math.sqrt(2 * math.pi)
    assert found == pytest.approx(exact, rel=0.1)
    assert count == pytest.approx(float((0.8 * outside * (loss > level)).sum() * (x[1] - x[0])), rel=0.15)


def test_a_record_that_leaves_no_trace_certifies_nothing() -> None:
    draws = draw_tilted_runs(np.ones(5), np.ones(5), DELTA, 50, np.random.default_rng(0))
    assert certified_epsilon(draws, np.zeros(len(draws)), DELTA) == 0


def test_a_record_that_is_seen_for_certain_is_infinite() -> None:
    draws = draw_tilted_runs(np.ones(5), np.ones(5), DELTA, 50, np.random.default_rng(0))
    assert certified_epsilon(draws, np.full(len(draws), math.inf), DELTA) == math.inf


def test_faults_show_even_with_few_runs() -> None:
    """Half the noise, or twice the sensitivity: far above what is accounted."""
    for name in ("two kinds of query", "subsampled steps"):
        assert measured(CASES[name], 20, 0, kappa=2.0) > 1.5 * truth(CASES[name])


def test_a_wrong_plan_is_valid() -> None:
    mus, q = np.full(4, 2.0), np.ones(4)
    draws = draw_tilted_runs(mus, q, DELTA, 100, np.random.default_rng(0))
    losses = step_losses(draws.noise[:, :1] + 0.5, np.array([0.5]), np.array([1.0])).sum(1)
    assert certified_epsilon(draws, losses, DELTA) <= dpa.get_epsilon_gaussian(2.0, DELTA)


def test_a_lone_draw_of_weight_one_refutes_nothing() -> None:
    one = TiltedDraws(np.ones((1, 1), bool), np.zeros((1, 1)), np.array([math.log(DELTA)]), np.array([5.0]), 0.0)
    assert certified_epsilon(one, np.array([50.0]), DELTA) == 0


@pytest.mark.parametrize(
    ("mus", "q"), [([], []), ([1.0], [0.0]), ([1.0], [1.5]), ([0.0], [1.0]), ([math.inf], [1.0]), ([1.0, 1.0], [1.0])]
)
def test_bad_steps_are_refused(mus: list[float], q: list[float]) -> None:
    with pytest.raises(ValueError, match="steps"):
        draw_tilted_runs(np.array(mus), np.array(q), DELTA, 10, np.random.default_rng(0))


def test_losses_that_are_no_numbers_are_refused() -> None:
    draws = draw_tilted_runs(np.ones(1), np.ones(1), DELTA, 5, np.random.default_rng(0))
    with pytest.raises(ValueError, match="losses"):
        certified_epsilon(draws, np.full(5, math.nan), DELTA)
