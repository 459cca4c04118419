"""Scores of canaries: exact where they do not overlap, decorrelated where they do, and their bounds
cover."""

import math

import numpy as np
import pytest
from scipy.special import logsumexp

from attacks.canaries import CanaryScores
from attacks.one_run import one_run_from_scores
from attacks.tradeoff import gaussian_epsilon

DELTA = 1e-5


def transcript(m, p, mu, releases, q, rng, overlap=0.0):
    """One run: coins (m,), and a release y = sum z a + noise of standard deviation 1 / mu for
    each."""
    coins = rng.random(m) < 0.5
    found = CanaryScores(m)
    for _ in range(releases):
        effects = rng.normal(size=(m, p)) + overlap * rng.normal(size=p)
        effects /= np.linalg.norm(effects, axis=1, keepdims=True)
        z = coins & (rng.random(m) < q)
        found.add_release(np.arange(m), effects, z @ effects + rng.normal(size=p) / mu, 1 / mu, q)
    return coins, found


def test_a_lone_canary_has_its_exact_likelihood_ratio():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(1, 5))
    y = rng.normal(size=5)
    full = CanaryScores(1)
    sampled = CanaryScores(1)
    full.add_release(np.array([0]), a, y, 0.7, 1.0)
    sampled.add_release(np.array([0]), a, y, 0.7, 0.2)
    exact = (np.square(y) - np.square(y - a[0])).sum() / (2 * 0.49)
    assert full.canary_scores()[0] == pytest.approx(exact)
    assert sampled.canary_scores()[0] == pytest.approx(math.log(0.8 + 0.2 * math.exp(exact)))


def test_two_overlapping_canaries_are_scored_as_the_gaussian_approximation_of_their_sum():
    """Against the marginal likelihood with the other coin summed out; the linear score replaces it
    by a Gaussian."""
    a = np.array([[1.0, 0.0], [0.8, 0.6]])
    y = np.array([0.9, 0.2])
    std = 1.5
    found = CanaryScores(2)
    found.add_release(np.arange(2), a, y, std, 1.0)
    like = lambda z: -np.square(y - np.array(z) @ a).sum() / (2 * std**2)  # noqa: E731
    exact = [
        logsumexp([like((1, o)) for o in (0, 1)]) - logsumexp([like((0, o)) for o in (0, 1)]),
        logsumexp([like((o, 1)) for o in (0, 1)]) - logsumexp([like((o, 0)) for o in (0, 1)]),
    ]
    np.testing.assert_allclose(found.canary_scores(), exact, atol=0.02)


def test_decorrelation_sees_through_a_common_part():
    """Canaries that share most of their direction: matched filters confuse them, the regression
    does not."""
    rng = np.random.default_rng(2)
    regressed = []
    matched = []
    for _ in range(20):
        m = 40
        p = 400
        effects = rng.normal(size=(m, p)) + 4 * rng.normal(size=p)
        effects /= np.linalg.norm(effects, axis=1, keepdims=True)
        coins = rng.random(m) < 0.5
        y = coins @ effects + 0.05 * rng.normal(size=p)
        found = CanaryScores(m)
        found.add_release(np.arange(m), effects, y, 0.05, 1.0)
        regressed.append(((found.canary_scores() > 0) == coins).mean())
        filtered = effects @ (y - 0.5 * effects.sum(0))
        matched.append(((filtered > 0) == coins).mean())
    assert np.mean(regressed) > 0.95 > np.mean(matched) + 0.2


@pytest.mark.nightly(but=["1-1.0"])
@pytest.mark.parametrize(("releases", "q"), [(1, 1.0), (5, 1.0), (5, 0.3)])
def test_bounds_from_the_scores_stay_below_the_truth_and_are_not_idle(releases, q):
    """200 canaries in 600 dimensions: bounded by the Gaussian of all releases, as if nothing were
    sampled."""
    rng = np.random.default_rng(3)
    mu = 4.0 / math.sqrt(releases)
    truth = gaussian_epsilon(4.0, DELTA)
    found = []
    for _ in range(10):
        coins, scored = transcript(200, 600, mu, releases, q, rng, overlap=0.5)
        options = {"delta": DELTA, "generator": rng, "guesses": [(10, 10), (50, 50)]}
        found.append(
            one_run_from_scores(
                scored.canary_scores(), coins, method="fdp_one_run", **options
            ).value
        )
    assert max(found) < truth and np.median(found) > (1.5 if q == 1 else 0.3)


def test_less_noise_than_is_stated_is_seen_and_used():
    """Two canaries that almost coincide, told apart only by who knows that there is hardly any
    noise."""
    rng = np.random.default_rng(5)
    right = []
    for _ in range(40):
        effects = np.zeros((2, 60))
        effects[:, 0], effects[0, 1], effects[1, 2] = 1.0, 0.1, 0.1
        coins = rng.random(2) < 0.5
        found = CanaryScores(2)
        found.add_release(
            np.arange(2), effects, coins @ effects + 1e-3 * rng.normal(size=60), 1.0, 1.0
        )
        right += ((found.canary_scores() > 0) == coins).tolist()
    assert np.mean(right) == 1.0


def test_scores_of_canaries_without_effect_are_zero():
    found = CanaryScores(3)
    found.add_release(np.arange(3), np.zeros((3, 4)), np.ones(4), 1.0, 1.0)
    np.testing.assert_allclose(found.canary_scores(), 0.0, atol=1e-9)
    with pytest.raises(ValueError, match="canaries"):
        found.add_release(np.arange(2), np.zeros((3, 4)), np.ones(4), 1.0, 1.0)
