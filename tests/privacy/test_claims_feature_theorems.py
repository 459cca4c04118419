"""FedFed's formulas: what they print, what their source has, and where they give no number."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from privdd.privacy.claims import (
    FEATURE_THEOREMS,
    FeatureRun,
    fedfed_3_3,
    fedfed_3_4,
    fedfed_3_4_source,
    fedfed_d_2,
    kairouz_composition,
    lemma_d_2,
    printed_composition,
)

RUN = FeatureRun(variance=0.15, rho=0.1, rounds=1, clients=10)


@pytest.mark.parametrize(("rounds", "by_hand"), [(1, 0.876), (10, 2.77), (15, 3.39), (1000, 27.7)])
def test_lemma_d_2_grows_with_the_root_of_the_rounds(rounds: int, by_hand: float) -> None:
    """.1 * sqrt(R * 11.513) / .3873."""
    assert lemma_d_2(variance=0.15, rho=0.1, delta=1e-5, rounds=rounds) == pytest.approx(by_hand, rel=3e-3)


def test_an_order_of_magnitude_is_no_number_and_both_readings_of_r_are_told() -> None:
    claim = fedfed_d_2(replace(RUN, rounds=10))
    assert claim.to_json()["epsilon"] == "no number" and not claim.sound and claim.delta == 1e-5
    told = " ".join(claim.choices)
    assert "set to 1: 2.77" in told and "R = 1, as in the proof's last line, 0.876" in told
    assert "R = 1000 and sigma_s^2 = 0.15: 27.7" in told and "rho = 0.1" in told and "states no value" in told
    assert "not clipped" in fedfed_d_2(replace(RUN, rho=None)).why
    assert "whole batch" in fedfed_d_2(replace(RUN, noise_per_record=False)).why


def test_only_theorem_3_4_gives_numbers() -> None:
    numbered = [theorem(RUN).source for theorem in FEATURE_THEOREMS if theorem(RUN).epsilon is not None]
    assert numbered == ["Yang 2023, Theorem 3.4 as printed", "Yang 2023, Theorem 3.4 as its source has it"]


def test_theorem_3_4_misprints_its_source_by_a_tenth_at_100_clients() -> None:
    """K = 100, epsilon .876 each: printed 71.0, the source 78.1; K = 10: k epsilon = 8.76 is the least of both."""
    many = replace(RUN, clients=100)
    assert fedfed_3_4(many).epsilon == pytest.approx(71.0, abs=0.05)
    assert fedfed_3_4_source(many).epsilon == pytest.approx(78.1, abs=0.05)
    assert fedfed_3_4(RUN).epsilon == fedfed_3_4_source(RUN).epsilon == pytest.approx(8.76, abs=0.005)
    assert "misprints" in fedfed_3_4(many).why and "misprints" not in fedfed_3_4_source(many).why


@pytest.mark.parametrize(("clients", "total"), [(1, 2e-5), (10, 1.1e-4), (100, 1.01e-3), (1000, 1e-2)])
def test_theorem_3_4_holds_at_its_total_delta(clients: int, total: float) -> None:
    """1 - (1 - delta_hat) (1 - delta)^k."""
    claim = fedfed_3_4(replace(RUN, clients=clients))
    assert claim.delta == pytest.approx(total, rel=6e-3)
    assert claim.delta == pytest.approx(1 - (1 - 1e-5) * (1 - 1e-5) ** clients)


def test_composition_is_the_smallest_of_its_three_forms() -> None:
    eps, k, slack = 0.1, 100, 1e-5
    drift = (math.exp(eps) - 1) * eps * k / (math.exp(eps) + 1)
    root = drift + eps * math.sqrt(2 * k * math.log(1 / slack))
    other = drift + eps * math.sqrt(2 * k * math.log(math.e + math.sqrt(k * eps**2) / slack))
    printed = drift + eps * math.sqrt(2 * k * math.log(math.e + math.sqrt(k * eps**2 / slack)))
    assert kairouz_composition(eps, k, slack) == pytest.approx(min(k * eps, root, other))
    assert printed_composition(eps, k, slack) == pytest.approx(min(k * eps, root, printed))


def test_theorem_3_3_compares_and_gives_no_number() -> None:
    """At equal epsilon and delta of one Gaussian release, noise over norm is equal: the scales are as rho to 1."""
    claim = fedfed_3_3(replace(RUN, rho=0.25))
    assert claim.epsilon is None and "0.25 of that for raw records" in claim.why
    assert "nothing to compare" in fedfed_3_3(replace(RUN, rho=None)).why


@pytest.mark.parametrize("change", [{"variance": 0.0}, {"rho": -1.0}, {"rounds": 0}, {"clients": 0}, {"delta_hat": 1.0}])
def test_bad_runs_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="delta" if "delta_hat" in change else next(iter(change))):
        replace(RUN, **change)  # type: ignore[arg-type]
