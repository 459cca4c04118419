"""The chance to name a record: never exceeded by an attacker, met by the best one, equal to what
theory gives."""

from __future__ import annotations

import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from privdd.privacy.events import tally_events
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import LedgerRow
from privdd.privacy.reconstruction import (
    attained_naming_rate,
    naming_bound_of_claim,
    naming_bounds,
    power_at_levels,
    reconstruction,
)


def bound(event: dpa.DpEvent, prior: float, relation: str = "add_remove") -> float:
    return naming_bounds(tally_events([(event, 1)]), [prior], relation=relation)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("mu", [0.25, 1.0, 2.5])
@pytest.mark.parametrize("k", [2, 10, 100])
def test_the_best_attacker_on_gaussian_noise_stays_below_and_comes_near(mu: float, k: int) -> None:
    """Candidates on a simplex, 40,000 draws; the likeliest is named. At k = 2 bound and attacker
    are the same."""
    rng = np.random.default_rng(k)
    n = 40_000
    # noise along each candidate; the simplex's centre cancels in the maximum
    scores = rng.standard_normal((n, k))
    scores[:, 0] += mu * math.sqrt(k / (k - 1))
    rate = float((scores.argmax(1) == 0).mean())
    error = 4 * math.sqrt(rate * (1 - rate) / n)
    proven = bound(dpa.GaussianDpEvent(1 / mu), 1 / k)
    assert rate <= proven + error
    assert attained_naming_rate(mu, k) == pytest.approx(rate, abs=error)
    assert rate >= 0.7 * proven if k > 2 else rate == pytest.approx(proven, abs=error)


def test_composed_gaussians_are_one_of_the_root_of_the_sum() -> None:
    event = dpa.ComposedDpEvent(
        [dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(5.0), 24), dpa.GaussianDpEvent(2.0)]
    )
    mu = math.sqrt(24 / 25 + 1 / 4)
    assert bound(event, 0.1) == pytest.approx(ndtr(mu + ndtri(0.1)), rel=1e-9)
    assert bound(event, 0.1, "replace") == pytest.approx(ndtr(2 * mu + ndtri(0.1)), rel=1e-9)


def blow_up(q: float, z: float, level: float) -> float:
    """By numerical integration: the power of the best test at ``level``, of N(0, 1) against the
    mixture or back."""
    shift = 1 / z

    def upper(t: float) -> tuple[float, float]:
        return 1 - ndtr(t), (1 - q) * (1 - ndtr(t)) + q * (1 - ndtr(t - shift))

    # the ratio rises with the output
    forth = upper(brentq(lambda t: upper(t)[0] - level, -12, 12))[1]
    back = brentq(lambda t: 1 - upper(t)[1] - level, -12, 12)
    mass = quad(lambda x: math.exp(-x * x / 2) / math.sqrt(2 * math.pi), -14, back)[0]
    return max(forth, mass)


@pytest.mark.nightly(but=["0.1-1.0"])
@pytest.mark.parametrize(("q", "z"), [(0.1, 1.0), (0.5, 0.7), (0.02, 0.5)])
def test_poisson_sampled_gaussian_against_the_integral(q: float, z: float) -> None:
    for level in (0.5, 0.1, 0.01, 0.001):
        made = bound(dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(z)), level)
        exact = blow_up(q, z, level)
        assert exact <= made <= exact * 1.002 + 1e-6
        assert made < ndtr(1 / z + ndtri(level))  # sampling helps


def test_two_sampled_steps_against_the_integral_over_both() -> None:
    """Level sets of the product of two likelihood ratios, by a fine grid over both outputs."""
    q = 0.3
    z = 1.0
    level = 0.05
    x = np.linspace(-7, 9, 1601) + 0.005
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * 0.01
    ratio = 1 - q + q * np.exp(x / z - 0.5 / z**2)
    ratios = np.outer(ratio, ratio).ravel()
    without = np.outer(density, density).ravel()

    def best(loss: np.ndarray, null: np.ndarray, other: np.ndarray) -> float:
        order = np.argsort(-loss)
        return float(np.interp(level, np.cumsum(null[order]), np.cumsum(other[order])))

    exact = max(best(ratios, without, without * ratios), best(-ratios, without * ratios, without))
    made = bound(
        dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(z)), 2), level
    )
    assert exact - 1e-4 <= made <= exact * 1.002


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_randomised_response(epsilon: float) -> None:
    """The true bit with chance e^eps / (1 + e^eps), against a fair coin: at level 1/2 the answer
    itself is the test."""
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    coin = {1: math.log(0.5), 0: math.log(0.5)}
    answer = {1: math.log(right), 0: math.log(1 - right)}
    loss = pld.from_two_probability_mass_functions(coin, answer, value_discretization_interval=1e-5)
    half, tenth = power_at_levels(loss, [0.5, 0.1])
    assert right <= half <= right + 1e-4
    assert 0.2 * right <= tenth <= 0.2 * right + 1e-4


def test_k_way_randomised_response_stays_below_what_its_epsilon_allows() -> None:
    for epsilon in (0.5, 2.0):
        for k in (2, 10, 100):
            right = math.exp(epsilon) / (math.exp(epsilon) + k - 1)
            assert right <= naming_bound_of_claim(epsilon, 0.0, 1 / k)
            assert naming_bound_of_claim(epsilon, 0.0, 1 / k) == pytest.approx(
                min(math.exp(epsilon) / k, 1 - math.exp(-epsilon) * (1 - 1 / k))
            )
    assert naming_bound_of_claim(math.inf, 1e-5, 0.1) == 1.0 and naming_bound_of_claim(
        0.0, 0.0, 0.1
    ) == pytest.approx(0.1)


def test_laplace_noise_against_its_closed_form() -> None:
    """P = Laplace(1, b), Q = Laplace(0, b): below level e^(-1/b) / 2 the power is e^(1/b) times the
    level."""
    assert 0.01 * math.e <= bound(dpa.LaplaceDpEvent(1.0), 0.01) <= 0.01 * math.e * 1.001
    middle = 1 - math.exp(-1) / 2  # level 1/2: the half line x > 0
    assert middle <= bound(dpa.LaplaceDpEvent(1.0), 0.5) <= middle * 1.001


def a_ledger(*rows: LedgerRow, relation: str = "add_remove") -> Ledger:
    ledger = Ledger(relation=relation)  # type: ignore[arg-type]
    ledger.append(rows)
    return ledger


def a_row(
    event: dpa.DpEvent, client: int = 0, surface: str = "update", **more: object
) -> LedgerRow:
    return LedgerRow(0, client, "x", surface, ("server",), {"x": (1,)}, "", event, **more)  # type: ignore[arg-type]


def test_a_ledger_is_as_bad_as_its_worst_client_and_cell() -> None:
    g = dpa.GaussianDpEvent
    ledger = a_ledger(
        a_row(g(2.0), 0, partition="label:0"),
        a_row(g(1.0), 0, partition="label:1"),
        a_row(g(4.0), 1),
        a_row(g(3.0), 0, "labels"),
    )
    mu = math.sqrt(1 + 1 / 9)
    whole = reconstruction(ledger, [10])[0]
    alone = reconstruction(ledger, [10], client=1)[0]
    assert whole.bound == pytest.approx(ndtr(mu + ndtri(0.1)))
    assert alone.bound == pytest.approx(ndtr(0.25 + ndtri(0.1)))
    assert reconstruction(ledger, [10], surfaces=["labels"])[0].bound == pytest.approx(
        ndtr(1 / 3 + ndtri(0.1))
    )
    assert whole.attained == pytest.approx(attained_naming_rate(mu, 10)) and whole.prior == 0.1


def test_nothing_protected_is_no_limit_and_nothing_released_is_chance() -> None:
    bare = reconstruction(a_ledger(a_row(dpa.NonPrivateDpEvent())))
    assert [n.bound for n in bare] == [1.0] * 4 and all(n.attained is None for n in bare)
    assert "attained" not in bare[0].to_json()
    assert [n.bound for n in reconstruction(Ledger())] == [0.5, 0.1, 0.01, 0.001]


@pytest.mark.parametrize("bad", [1, 0, 2.0, True])
def test_fewer_than_two_candidates_are_refused(bad: int) -> None:
    with pytest.raises(ValueError, match="candidates="):
        reconstruction(Ledger(), [bad])
