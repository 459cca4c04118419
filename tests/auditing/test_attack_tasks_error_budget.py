"""How the error of a run is shared by the bounds that can decide its verdict."""

from __future__ import annotations

import pytest

from privdd.auditing.attack_tasks import ErrorBudget, error_budget


def test_the_error_budget_counts_every_bound_and_reaches_each_of_them() -> None:
    """audit.confidence over 12 membership tests and six bounds for each of two mechanisms, and one for the whole run."""
    shared = error_budget(0.9, 12, 2)
    assert shared.to_json() == {"alpha": 0.1, "tests": 25}
    assert shared.tests * (1 - shared.confidence) == pytest.approx(0.1)
    assert error_budget(0.95, 0, 0).confidence == pytest.approx(0.95)
    for alpha, tests in ((0.0, 1), (1.0, 1), (0.05, 0)):
        with pytest.raises(ValueError, match="is needed"):
            ErrorBudget(alpha, tests)
