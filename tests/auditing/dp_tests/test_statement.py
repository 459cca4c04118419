"""The finding ``t3_curve``: healthy releases are on the accountant's curve, faulty ones below
it."""

import dp_accounting as dpa
import pytest
import torch

from attacks.certificates import subsampled_log_ratio
from attacks.types import Surface
from privdd.auditing.dp_tests.statement import Statement, curve_finding
from privdd.auditing.verdicts import decide_verdict
from privdd.privacy.accounting import epsilon
from privdd.privacy.mechanisms import ClippedSum
from tests.auditing.dp_tests.subjects import DELTA, feddm, subject

FINITE = {"pld": 1.0, "rdp": 1.0}


def statement(event):
    one = subject(feddm(), {"embedding": ClippedSum(5.0, 1.0, 1.0, 10.0)})
    return Statement(one, Surface.SYNTHETIC_IMAGES, epsilon(event, DELTA), "accounted", "embedding")


def ratios(mu, q, steps, runs, present, generator):
    """ln P/Q, as the adversary computes it for noise that shifts by ``mu``, of ``steps`` sampled
    releases."""
    taken = torch.rand(runs, steps, generator=generator) < q
    x = mu * (taken & present) + torch.randn(runs, steps, generator=generator, dtype=torch.float64)
    return subsampled_log_ratio(mu * x - mu * mu / 2, q)


def found(claimed, real, q, steps, runs=600, seed=0):
    gaussian = dpa.GaussianDpEvent(1 / claimed)
    event = dpa.SelfComposedDpEvent(
        dpa.PoissonSampledDpEvent(q, gaussian) if q < 1 else gaussian, steps
    )
    generator = torch.Generator().manual_seed(seed)
    sides = [ratios(real, q, steps, runs, present, generator) for present in (True, False)]
    return curve_finding(statement(event), *sides, event, "a test")


@pytest.mark.nightly(cases=["0.3-6"])
@pytest.mark.parametrize(("q", "steps"), [(1.0, 1), (0.3, 6)])
def test_a_release_that_meets_its_accounting_is_not_contradicted(q, steps):
    for seed in range(2):
        finding = found(1.0, 1.0, q, steps, seed=seed)
        assert 0 < finding.measures.epsilon_shown < finding.measures.epsilon_stated
        assert decide_verdict(FINITE, None, [finding]) == "consistent"
    assert (finding.attack, finding.measures.epsilon_validity, finding.measures.n) == (
        "t3_curve",
        "curve",
        1200,
    )


@pytest.mark.nightly(cases=["0.3-6-1.1"])
@pytest.mark.parametrize(("q", "steps", "least"), [(1.0, 1, 1.3), (0.3, 6, 1.1)])
def test_half_the_noise_is_a_contradiction(q, steps, least):
    finding = found(1.0, 2.0, q, steps)
    assert finding.measures.epsilon_shown > least * finding.measures.epsilon_stated
    assert (
        decide_verdict(FINITE, None, [finding]) == "contradiction"
        and "below the accountant" in finding.measures.note
    )


def test_runs_that_show_nothing_measure_zero():
    event = dpa.GaussianDpEvent(10.0)
    nothing = torch.zeros(40, dtype=torch.float64)
    finding = curve_finding(statement(event), nothing, nothing, event, "constant outputs")
    assert finding.measures.epsilon_shown == 0.0
