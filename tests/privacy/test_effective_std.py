"""``effective_std``: several noised copies of one record against the best linear unbiased estimate of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.privacy.claims import FeatureRun, effective_std, fedfed_3_4

STDS = [(0.15,), (0.15, 0.25), (0.25, 0.15), (0.2, 0.2), (0.01, 3.0), (0.1, 0.2, 0.4)]


def best_estimate(stds: tuple[float, ...]) -> tuple[np.ndarray, float]:
    """Weights that sum to one and the least standard deviation: minimise w' S w by its Lagrange equations."""
    k = len(stds)
    system = np.zeros((k + 1, k + 1))
    system[:k, :k] = 2 * np.diag(np.square(stds))
    system[:k, k] = system[k, :k] = 1
    weights = np.linalg.solve(system, np.eye(k + 1)[k])[:k]
    return weights, float(np.sqrt(weights @ np.diag(np.square(stds)) @ weights))


@pytest.mark.parametrize("stds", STDS)
def test_effective_std_is_that_of_the_best_linear_unbiased_estimate(stds: tuple[float, ...]) -> None:
    assert effective_std(stds) == pytest.approx(best_estimate(stds)[1], rel=1e-9)
    assert effective_std(stds) <= min(stds) * (1 + 1e-12)  # another copy never hides a record better


def test_effective_std_is_what_an_attacker_who_averages_two_copies_sees() -> None:
    """Simulated: 200,000 numbers, two copies at 0.15 and 0.25; the standard error of a std is 0.16 %."""
    stds, rng = (0.15, 0.25), np.random.default_rng(0)
    weights, _ = best_estimate(stds)
    error = sum(w * std * rng.standard_normal(200_000) for w, std in zip(weights, stds))
    assert np.std(error) == pytest.approx(effective_std(stds), rel=0.01)
    assert effective_std(stds) == pytest.approx(0.15 * 0.25 / np.hypot(0.15, 0.25))


def test_the_claim_of_fedfed_released_is_about_both_copies() -> None:
    """Its theorem is evaluated at the noise that remains after averaging, which costs more than either copy alone."""
    config = compose_config(
        "audit", ["algo=fedfed_released", "preset=smoke", "data=digits", "data.limit=60", "partition=iid"]
    )
    experiment = build_experiment(config)
    method: Any = experiment.plan.method
    claim = method.claims(experiment.plan, experiment.shards)[0]

    def printed(std: float) -> float | None:
        run = FeatureRun(variance=std**2, rho=None, rounds=method.base.rounds, clients=experiment.plan.problem.clients)
        return fedfed_3_4(run).epsilon

    assert claim.source.startswith("Yang 2023, Theorem 3.4")
    assert claim.epsilon == pytest.approx(printed(best_estimate((0.15, 0.25))[1]))
    assert claim.epsilon > (printed(0.15) or 0) > (printed(0.25) or 0)
