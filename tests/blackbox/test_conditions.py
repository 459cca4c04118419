"""Conditions of a check: what is compared where a record holds NaN or infinity."""

from __future__ import annotations

import numpy as np

from privdd.blackbox.budgets import CallBudget
from privdd.blackbox.claims import CheckedClaim
from privdd.blackbox.inputs import InputShapes
from privdd.blackbox.mechanism import BlackBox
from privdd.blackbox.neighbours import neighbouring_pairs
from privdd.blackbox.stages.conditions import check_nonfinite_inputs

RNG = np.random.default_rng(3)
SMALL = InputShapes(tables=((4, 3),))


def noisy_sum(rows: np.ndarray) -> np.ndarray:
    return rows.sum(0) + RNG.normal(size=rows.shape[1])


def test_nan_is_put_into_the_record_of_the_first_neighbours() -> None:
    """The pair that all other stages begin with: what a reader is told to call is the same."""
    claim = CheckedClaim(1.0, 1e-5, kind="records", relation="add_remove")
    first = neighbouring_pairs("records", "add_remove", SMALL)[0]
    budget = CallBudget(60, 10**5)
    mechanism = BlackBox(lambda: noisy_sum, "records")
    results = check_nonfinite_inputs(mechanism, claim, SMALL, budget)
    assert [result.inputs for result in results] == [f"{first.says}, one number of it nan"]
    assert results[0].name == "finite inputs" and "with NaN" in results[0].says
