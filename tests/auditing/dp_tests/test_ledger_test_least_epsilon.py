"""The lower bound of a composition's epsilon: near what an accountant states, and never above."""

from __future__ import annotations

import dp_accounting as dpa
import pytest

from attacks.epsilon import gaussian_epsilon
from privdd.auditing.dp_tests.ledger_test import epsilon_lower_bound
from privdd.core.setting_types import Relation
from privdd.privacy.accounting import epsilon

G, P, L = dpa.GaussianDpEvent, dpa.PoissonSampledDpEvent, dpa.LaplaceDpEvent
CASES = {
    "gaussians": [(G(1.0), 3)],
    "sampled": [(P(0.25, G(5.0)), 8), (G(20.0), 2)],
    "steps": [(P(0.1, G(1.0)), 80)],
    "laplace": [(L(1.0), 3)],
    "composed": [(dpa.SelfComposedDpEvent(P(0.2, G(1.0)), 5), 1), (dpa.ComposedDpEvent([G(1.0), G(2.0)]), 1)],
}


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_just_below_the_accountant(case: str, relation: Relation) -> None:
    event = dpa.ComposedDpEvent([dpa.SelfComposedDpEvent(one, n) for one, n in CASES[case]])
    stated = epsilon(event, 1e-5, relation=relation)
    assert 0.94 * stated < epsilon_lower_bound(CASES[case], 1e-5, relation) <= stated * (1 + 1e-6)


def test_a_gaussian_is_exact_and_an_exchange_moves_it_twice_as_far() -> None:
    assert epsilon_lower_bound([(G(2.0), 4)], 1e-5, "zero_out") == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-6)
    assert epsilon_lower_bound([(G(2.0), 4)], 1e-5, "replace") == pytest.approx(gaussian_epsilon(2.0, 1e-5), rel=1e-6)


def test_nothing_is_said_of_an_unknown_law() -> None:
    assert epsilon_lower_bound([(dpa.ZCDpEvent(0.1), 1), (G(1.0), 1)], 1e-5, "zero_out") == 0.0


@pytest.mark.parametrize("delta", [1e-13, 1e-15, 1e-20, 1e-100, 1e-320])
@pytest.mark.parametrize("case", ["sampled", "steps", "laplace"])
def test_a_tiny_delta_is_no_infinite_loss(case: str, delta: float) -> None:
    """It was, where delta is below the tails that are cut off: a sound ledger was refuted."""
    event = dpa.ComposedDpEvent([dpa.SelfComposedDpEvent(one, n) for one, n in CASES[case]])
    assert 0 < epsilon_lower_bound(CASES[case], delta, "add_remove") <= epsilon(event, delta) * (1 + 1e-6)
