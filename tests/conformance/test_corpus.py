"""A part of the corpus, with few calls; ``benchmarks/conformance.py`` runs all of it with many."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privdd.api import check
from privdd.blackbox.inputs import InputShapes
from tests.conformance import of_answers as answered
from tests.conformance import of_plans as plans
from tests.conformance import of_records as records
from tests.conformance import of_shapes as shapes
from tests.conformance.cases import CASES
from tests.conformance.parts import RNG, norm, poisson_epsilon, rows_clipped

pytestmark = pytest.mark.nightly

FEW = {
    "max_calls": 45_000,
    "tried": InputShapes(structures=(((3, 2), (2,)),), tables=((4, 3),), crowds=(10,)),
}
QUICK = [
    "sensitivity apart from the clip",
    "weighted mean",
    "one noise for a batch",
    "an uncounted metric",
    "kept for the same data",
    "noise along the update only",
    "noise taken off in the next call",
    "permute and flip without the permutation",
    "half precision",
    "a text that seldom tells",
]


def test_the_corpus_is_one_of_pairs() -> None:
    assert len(CASES) >= 24 and len({case.name for case in CASES}) == len(CASES)
    assert all(case.faulty is not case.twin for case in CASES)
    assert norm([np.array([3.0, 4.0])]) == 5 and rows_clipped(
        np.array([[3.0, 4.0]])
    ) == pytest.approx(np.array([[0.6, 0.8]]))


@pytest.mark.parametrize(
    ("epsilon", "q", "noise", "steps"),
    [
        (1.0, records.Q, records.SAMPLED, 1),
        (records.EPOCH, 1 / records.BATCHES, records.EPOCH_NOISE, records.BATCHES),
        (1.0, plans.Q, plans.RATE, 1),
        (1.5, plans.Q, plans.CYCLE, 10),
    ],
)
def test_sampled_mechanisms_have_the_noise_that_they_state(
    epsilon: float, q: float, noise: float, steps: int
) -> None:
    """Up to 0.1 %, by another library's accounting."""
    assert poisson_epsilon(q, noise, steps) == pytest.approx(epsilon, rel=1e-3)


def test_twins_with_noise_of_other_shapes_follow_their_law(same_draws: None) -> None:
    """Up to four standard errors of 20,000 draws: densities near and far of the piecewise
    mechanism, a mean direction, stairs."""
    n = 20_000
    end = (math.e + 1) / (math.e - 1)
    answers = answered.near_with_half_of_epsilon(np.full((n, 1), 0.3))
    left = (end + 1) / 2 * 0.3 - (end - 1) / 2
    near = (answers >= left) & (answers <= left + end - 1)
    assert (
        near.mean() == pytest.approx(math.e / (math.e + 1), abs=0.013)
        and np.abs(answers).max() <= end
    )
    assert answers.mean() == pytest.approx(0.3, abs=4 * answers.std() / n**0.5)
    along = np.mean(
        [shapes.pointed_with_half_of_epsilon([np.array([3.0, 0.0, 0.0])])[0] for _ in range(n)]
    )
    assert along == pytest.approx(1 / math.tanh(1) - 1, abs=0.017)
    stairs = np.array(
        [abs(shapes.stairs_as_wide_as_a_record(np.zeros((0, 1)))[0]) for _ in range(n)]
    )
    tread = 1 / (1 + math.exp(0.5))
    counts = np.histogram(stairs, [0, tread, 1, 1 + tread])[0] / np.array([tread, 1 - tread, tread])
    assert counts[0] / counts[1] == pytest.approx(math.e, rel=0.1) and counts[1] / counts[
        2
    ] == pytest.approx(1, rel=0.1)


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
