"""The tail of the noise's law against mixtures of two normal distributions, whose epsilon is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from privdd.blackbox.inputs import InputShapes, neighbouring_pairs
from privdd.blackbox.noise_laws import is_quiet, tail_epsilon
from privdd.blackbox.transcripts import BoundLevel, PairSample, Transcripts

DELTA, CONFIDENCE = 1e-5, 0.95


def block(values: np.ndarray) -> Transcripts:
    return Transcripts(values.reshape(len(values), 1, -1), ["x"] * len(values))


def sides(q: float, shift: float, n: int, rng: np.random.Generator, noise=None):
    noise = noise or rng.standard_normal
    made = [(block(shift * (rng.random((n, 1)) < q) + noise((n, 1))), block(noise((n, 1)))) for _ in range(2)]
    return made[0], made[1]


def truth(q: float, shift: float) -> float:
    """Of (1 - q) N(0, 1) + q N(shift, 1) against N(0, 1): the set where the ratio exceeds e^epsilon is a half line."""

    def spent(epsilon: float) -> float:
        at = np.log((np.expm1(epsilon) + q) / q) / shift + shift / 2
        return q * norm.sf(at - shift) + (1 - q - np.exp(epsilon)) * norm.sf(at) - DELTA

    return float(brentq(spent, 1e-3, 30))


@pytest.mark.parametrize(("q", "shift", "least"), [(0.1, 4.0, np.log(4000)), (0.2, 1.0, 0.0), (0.02, 5.0, np.log(4000))])
def test_the_bound_is_below_the_truth_and_above_what_counting_can_say(q: float, shift: float, least: float) -> None:
    rng = np.random.default_rng(8)
    found = [tail_epsilon(PairSample(*sides(q, shift, 4000, rng), None), BoundLevel(DELTA, CONFIDENCE)) for _ in range(16)]
    true = truth(q, shift)
    assert np.mean(np.array(found) > true) <= 0.13 and np.median(found) >= least
    if q * shift == 0.4:
        assert np.median(found) > np.log(4000)  # counting on both sides cannot say as much


def test_nothing_is_said_of_noise_of_another_law_or_of_none() -> None:
    rng = np.random.default_rng(9)
    for noise in (rng.laplace, lambda size: rng.standard_t(5, size), lambda size: np.zeros(size)):
        assert tail_epsilon(PairSample(*sides(0.1, 4.0, 6000, rng, noise), None), BoundLevel(DELTA, CONFIDENCE)) == 0
    nulls = [tail_epsilon(PairSample(*sides(0.0, 4.0, 2000, rng), None), BoundLevel(DELTA, CONFIDENCE)) > 0 for _ in range(30)]
    assert np.mean(nulls) <= 0.13


def test_only_data_of_nothing_but_zeros_are_quiet() -> None:
    for kind in ("update", "aggregate", "records"):
        made = neighbouring_pairs(kind, "zero_out", InputShapes())
        told = [pair for pair in made if is_quiet(pair.absent, 0.0)]
        assert told and all("against zeros" in pair.says for pair in told) and not any(is_quiet(p.present, 0.0) for p in made)
        assert kind == "update" or len(told) < len(made)
