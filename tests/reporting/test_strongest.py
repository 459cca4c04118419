"""The rule of significance against scipy's binomial interval."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from privdd.reporting.schema import TprAt
from privdd.reporting.strongest import above_chance, beats_guessing


@pytest.mark.parametrize("n", [1, 2, 12, 40, 281])
@pytest.mark.parametrize("chance", [0.0, 0.1, 0.5, 0.99])
def test_above_chance_is_the_exact_interval(n: int, chance: float) -> None:
    for hits in range(n + 1):
        low = binomtest(hits, n).proportion_ci(0.95, method="exact").low
        assert above_chance(hits / n, chance, n) is bool(low > chance), (hits, n)


def test_without_a_count_nothing_is_above_chance() -> None:
    assert not above_chance(1.0, 0.1, None) and not above_chance(1.0, 0.1, 0)


def test_guessing_reaches_the_false_positive_rate() -> None:
    at = TprAt(tpr=0.016, ci=(0.0019, 0.057), resolvable=True)  # 1.6 % at 1 %: what an early page called "found"
    assert not beats_guessing(at, 0.01) and beats_guessing(at, 0.001)
