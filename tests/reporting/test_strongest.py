"""The rule of significance against scipy's binomial interval."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta, binomtest, norm

from privdd.reporting.schema import FindingRow, TprAt
from privdd.reporting.strongest import (
    above_chance,
    beats_guessing,
    bound,
    lower_end,
    measured_epsilon,
    ranks,
    worst_membership,
)
from tests.reporting.test_decision import run


@pytest.mark.parametrize("n", [1, 2, 12, 40, 281])
@pytest.mark.parametrize("chance", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("looks", [1, 80])
def test_above_chance_is_the_exact_interval(n: int, chance: float, looks: int) -> None:
    """At a confidence that all looks share (Bonferroni)."""
    for hits in range(n + 1):
        low = binomtest(hits, n).proportion_ci(1 - 0.05 / looks, method="exact").low
        assert above_chance(hits / n, chance, n, looks) is bool(low > chance), (hits, n)


def test_a_bound_counts_at_the_confidence_that_all_tests_share() -> None:
    alone = row(0.1, (0.05, 0.2), epsilon_measured=3.0, epsilon_validity="finite_sample")
    shared = alone.model_copy(update={"diagnostics": {"epsilon_familywise": 0.5}})
    assert (bound(alone), bound(shared), measured_epsilon([shared])) == (3.0, 0.5, 0.5)


def test_without_a_count_nothing_is_above_chance() -> None:
    assert not above_chance(1.0, 0.1, None) and not above_chance(1.0, 0.1, 0)


def test_guessing_reaches_the_false_positive_rate() -> None:
    at = TprAt(tpr=0.016, ci=(0.0019, 0.057), resolvable=True)  # 1.6 % at 1 %: what an early page called "found"
    assert not beats_guessing(at, 0.01) and beats_guessing(at, 0.001)


@pytest.mark.parametrize("looks", [1, 20, 120])
def test_all_intervals_of_a_run_hold_together(looks: int) -> None:
    """Of runs whose attacks all guess, at most 5 % have any rate above guessing; uncorrected, most do."""
    rng, n, fpr = np.random.default_rng(3), 400, 0.1
    hits = rng.binomial(n, fpr, (2000, looks))
    low = beta.ppf(0.025, hits, n - hits + 1)
    corrected = np.vectorize(lower_end)(hits / n, np.nan_to_num(low), looks)
    assert (corrected > fpr).any(axis=1).mean() <= 0.05
    assert looks == 1 or (low > fpr).any(axis=1).mean() > 0.3


def test_the_widened_end_is_that_of_a_normal_interval() -> None:
    """Near one half and with many tries, arcsine and plain normal intervals agree."""
    for looks in (1, 7, 60):
        z = norm.isf(0.025 / looks)
        assert lower_end(0.52, 0.52 - 1.96 * 0.004, looks) == pytest.approx(0.52 - z * 0.004, abs=5e-5)


def test_a_strong_attack_is_found_in_a_report_of_many_rates() -> None:
    """The same 10 % to 20 % interval counts alone, and not among 80 rates; a clear leak counts among 80."""
    weak = row(0.147, (0.105, 0.196))
    assert worst_membership([weak]).beats_guessing and not worst_membership(several([weak])).beats_guessing
    assert worst_membership(several([row(0.6, (0.52, 0.68))])).beats_guessing


def test_the_largest_auc_of_many_is_no_attack_by_itself() -> None:
    lucky = row(0.1, (0.05, 0.2), auc=0.55, auc_ci=(0.505, 0.595))
    assert ranks(lucky) and not ranks(several([lucky])[0])


def row(tpr: float, ci: tuple[float, float], **more: object) -> FindingRow:
    at = TprAt(tpr=tpr, ci=ci, resolvable=True)
    known = {
        "surface": "features",
        "attack": "lira",
        "family": "membership",
        "adversary": "server",
        "tpr_at_fpr": {"0.1": at},
    }
    return FindingRow.model_validate(known | more)


def several(rows: list[FindingRow]) -> list[FindingRow]:
    """The rows as findings of a run that looks at 80 rates and more."""
    all_rows = [*rows, *[row(0.1, (0.06, 0.15))] * (80 - len(rows))]
    return run([one.model_dump(exclude_none=True) for one in all_rows], "unprotected", "inf").findings[: len(rows)]
