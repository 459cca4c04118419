"""A part of the corpus, with few calls; ``benchmarks/conformance.py`` runs all of it with many."""

from __future__ import annotations

import numpy as np
import pytest

from privdd.api import check
from privdd.checking.neighbours import Tried
from tests.conformance import of_plans as plans
from tests.conformance import of_records as records
from tests.conformance.cases import CASES
from tests.conformance.parts import RNG, norm, poisson_epsilon, rows_clipped

FEW = {"max_calls": 45_000, "seconds": 6.0, "tried": Tried(structures=(((3, 2), (2,)),), tables=((4, 3),), crowds=(10,))}
QUICK = ["sensitivity apart from the clip", "weighted mean", "one noise for a batch", "an uncounted metric"]


def test_the_corpus_is_one_of_pairs() -> None:
    assert len(CASES) >= 24 and len({case.name for case in CASES}) == len(CASES)
    assert all(case.faulty is not case.twin for case in CASES)
    assert norm([np.array([3.0, 4.0])]) == 5 and rows_clipped(np.array([[3.0, 4.0]])) == pytest.approx(np.array([[0.6, 0.8]]))


@pytest.mark.parametrize(
    ("epsilon", "q", "noise", "steps"),
    [
        (1.0, records.Q, records.SAMPLED, 1), (records.EPOCH, 1 / records.BATCHES, records.EPOCH_NOISE, records.BATCHES),
        (1.0, plans.Q, plans.RATE, 1), (1.5, plans.Q, plans.CYCLE, 10),
    ],
)  # fmt: skip
def test_sampled_mechanisms_have_the_noise_that_they_state(epsilon: float, q: float, noise: float, steps: int) -> None:
    """Up to 0.1 %, by another library's accounting."""
    assert poisson_epsilon(q, noise, steps) == pytest.approx(epsilon, rel=1e-3)


@pytest.fixture
def same_draws() -> None:
    """Of the mechanisms in this process's children: a check is a statistical test."""
    RNG.bit_generator.state = np.random.default_rng(7).bit_generator.state


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_is_found_and_its_twin_is_not_accused(name: str, same_draws: None) -> None:
    case = next(case for case in CASES if case.name == name)
    asked = {**case.asked(), **FEW}
    assert check(case.faulty, **asked).refuted
    assert not check(case.twin, **asked).refuted
