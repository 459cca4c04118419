"""The threshold that a method chooses on its own trials."""

import numpy as np
import pytest

from attacks.epsilon import (
    COMPARISON_CONFIDENCE,
    best_threshold,
    clopper_pearson,
    confusion_counts_at,
    from_scores,
    gaussian,
)

DELTA = 1e-5
BOUNDS = {"clopper_pearson": clopper_pearson, "gaussian": gaussian}


def drawn(n=600, seed=0):
    rng = np.random.default_rng(seed)
    inside = rng.random(n) < 0.5
    return rng.normal(size=n) + inside, inside


def test_counts_are_counted_one_by_one():
    values, inside = np.array([0.0, 1.0, 1.0, 2.0, 3.0]), np.array([False, True, False, True, True])
    for at, *four in zip([-1.0, 1.0, 2.5], *confusion_counts_at(values, inside, np.array([-1.0, 1.0, 2.5]))):
        hit = values >= at
        assert four == [(a & b).sum() for a, b in ((hit, inside), (~hit, inside), (hit, ~inside), (~hit, ~inside))]


@pytest.mark.parametrize("method", ["clopper_pearson", "gaussian"])
def test_each_method_ranks_by_its_own_bound(method):
    values, inside = drawn()
    at = best_threshold(values, inside, DELTA, method)

    def bound(threshold):
        hit = values >= threshold
        counts = [int((a & b).sum()) for a, b in ((hit, inside), (~hit, inside), (hit, ~inside), (~hit, ~inside))]
        return BOUNDS[method](*counts, delta=DELTA, confidence=COMPARISON_CONFIDENCE)

    assert bound(at) == pytest.approx(max(bound(value) for value in values), abs=0.1)


def test_the_gaussian_estimate_gains_from_its_own_threshold():
    rng = np.random.default_rng(1)
    split = [from_scores(*drawn(1000, s), delta=DELTA, method="gaussian", generator=rng).value for s in range(20)]
    assert np.median(split) > 2.2  # 1.2 with a threshold that Clopper-Pearson chose; 2.8 with 0.5 and all trials


def test_without_any_bound_the_widest_gap_is_taken():
    values, inside = np.array([0.0, 0.0, 1.0, 1.0]), np.array([False, True, False, True])
    assert best_threshold(values, inside, DELTA) in (0.0, 1.0)
    with pytest.raises(KeyError):
        best_threshold(values, inside, DELTA, "one_run")
    for seed in range(20):  # nine trials bound nothing
        values, inside = np.random.default_rng(seed).permutation(9) / 9.0, np.arange(9) < 3 + seed % 3
        gaps = {at: np.mean(values[inside] >= at) - np.mean(values[~inside] >= at) for at in values}
        assert gaps[best_threshold(values, inside, DELTA)] == pytest.approx(max(gaps.values()))
