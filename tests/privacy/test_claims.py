"""Tests of ``privdd.privacy.claims``."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import numpy as np
import pytest
import yaml

from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.privacy.accounting import epsilon as accounted
from privdd.privacy.claims import (
    FEATURE_THEOREMS,
    Claim,
    FeatureRun,
    MatchingRun,
    effective_std,
    feddm_3_1,
    feddm_3_2,
    feddm_membership,
    fedfed_3_3,
    fedfed_3_4,
    fedfed_3_4_source,
    fedfed_d_2,
    fedfed_published,
    fedlgd_attacks,
    fedlgd_no_extra_leakage,
    fedrd_1,
    fedrd_not_real,
    fedrd_secret_projection,
    fedrd_table_2,
    kairouz_composition,
    lemma_d_2,
    printed_composition,
    smallest_claim,
)

# What a claim may hold, and how it is written down.


def test_what_is_written_down() -> None:
    assert Claim("a", 1.5, True, "b").to_json() == {
        "source": "a",
        "epsilon": 1.5,
        "sound": True,
        "why": "b",
    }
    assert Claim("a", math.inf, True, "b").to_json()["epsilon"] == "inf"
    whole = Claim("a", None, False, "b", 1e-5, ("R = 2",), "a record", ("lira",)).to_json()
    assert (
        whole["epsilon"] == "no number" and whole["delta"] == 1e-5 and whole["choices"] == ["R = 2"]
    )
    assert whole["neighbours"] == "a record" and whole["tested_by"] == ["lira"]


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(-1.0, None), (math.nan, None), (1.0, 0.0), (1.0, 1.0)]
)
def test_numbers_without_meaning_are_refused(epsilon: float, delta: float | None) -> None:
    with pytest.raises(ValueError, match=r"epsilon=|delta="):
        Claim("a", epsilon, True, "b", delta)


def test_a_claim_without_a_number_is_never_the_boldest() -> None:
    claims = [
        Claim("words", None, False, ""),
        Claim("large", 3.0, False, ""),
        Claim("small", 0.0, False, ""),
    ]
    found = smallest_claim(claims)
    assert found is not None and found.source == "small"
    assert smallest_claim(claims[:1]) is None and smallest_claim([]) is None


# FedFed's formulas: what they print, what their source has, and where they give no number.


RUN = FeatureRun(variance=0.15, rho=0.1, rounds=1, clients=10)


@pytest.mark.parametrize(("rounds", "by_hand"), [(1, 0.876), (10, 2.77), (15, 3.39), (1000, 27.7)])
def test_lemma_d_2_grows_with_the_root_of_the_rounds(rounds: int, by_hand: float) -> None:
    """.1 * sqrt(R * 11.513) / .3873."""
    assert lemma_d_2(0.15, 0.1, 1e-5, rounds) == pytest.approx(by_hand, rel=3e-3)


def test_an_order_of_magnitude_is_no_number_and_both_readings_of_r_are_told() -> None:
    claim = fedfed_d_2(replace(RUN, rounds=10))
    assert claim.to_json()["epsilon"] == "no number" and not claim.sound and claim.delta == 1e-5
    told = " ".join(claim.choices)
    assert "set to 1: 2.77" in told and "R = 1, as in the proof's last line, 0.876" in told
    assert (
        "R = 1000 and sigma_s^2 = 0.15: 27.7" in told
        and "rho = 0.1" in told
        and "states no value" in told
    )
    assert "not clipped" in fedfed_d_2(replace(RUN, rho=None)).why
    assert "whole batch" in fedfed_d_2(replace(RUN, noise_per_record=False)).why


def test_only_theorem_3_4_and_the_published_value_give_numbers() -> None:
    numbered = [
        theorem(RUN).source for theorem in FEATURE_THEOREMS if theorem(RUN).epsilon is not None
    ]
    assert numbered == [
        fedfed_published(RUN).source,
        "Yang 2023, Theorem 3.4 as printed",
        "Yang 2023, Theorem 3.4 as its source has it",
    ]


def test_theorem_3_4_misprints_its_source_by_a_tenth_at_100_clients() -> None:
    """K = 100, epsilon .876 each: printed 71.0, the source 78.1; K = 10: k epsilon = 8.76 is the
    least of both."""
    many = replace(RUN, clients=100)
    assert fedfed_3_4(many).epsilon == pytest.approx(71.0, abs=0.05)
    assert fedfed_3_4_source(many).epsilon == pytest.approx(78.1, abs=0.05)
    assert (
        fedfed_3_4(RUN).epsilon == fedfed_3_4_source(RUN).epsilon == pytest.approx(8.76, abs=0.005)
    )
    assert "misprints" in fedfed_3_4(many).why and "misprints" not in fedfed_3_4_source(many).why


@pytest.mark.parametrize(
    ("clients", "total"), [(1, 2e-5), (10, 1.1e-4), (100, 1.01e-3), (1000, 1e-2)]
)
def test_theorem_3_4_holds_at_its_total_delta(clients: int, total: float) -> None:
    """1 - (1 - delta_hat) (1 - delta)^k."""
    claim = fedfed_3_4(replace(RUN, clients=clients))
    assert claim.delta == pytest.approx(total, rel=6e-3)
    assert claim.delta == pytest.approx(1 - (1 - 1e-5) * (1 - 1e-5) ** clients)


def test_composition_is_the_smallest_of_its_three_forms() -> None:
    eps = 0.1
    k = 100
    slack = 1e-5
    drift = (math.exp(eps) - 1) * eps * k / (math.exp(eps) + 1)
    root = drift + eps * math.sqrt(2 * k * math.log(1 / slack))
    other = drift + eps * math.sqrt(2 * k * math.log(math.e + math.sqrt(k * eps**2) / slack))
    printed = drift + eps * math.sqrt(2 * k * math.log(math.e + math.sqrt(k * eps**2 / slack)))
    assert kairouz_composition(eps, k, slack) == pytest.approx(min(k * eps, root, other))
    assert printed_composition(eps, k, slack) == pytest.approx(min(k * eps, root, printed))


def test_the_formula_of_theorem_3_4_is_no_claim_of_a_run() -> None:
    """It rests on a constant that the paper leaves out: nothing is judged against what comes of
    setting it to 1."""
    for claim in (fedfed_3_4(RUN), fedfed_3_4_source(RUN)):
        told = claim.to_json()
        assert (
            claim.number is None
            and told["epsilon"] == "no number"
            and told["choices"][0] == "the formula gives 8.76"
        )
        assert told["why"].startswith(
            "the paper's formula, not applicable here: it rests on Lemma D.2"
        )


def test_the_published_number_is_a_claim_where_its_conditions_are_met_and_false_there() -> None:
    """4.22 at variance 0.15, delta 1e-3, sensitivity 1; the Gaussian mechanism has 10.66."""
    met = fedfed_published(replace(RUN, norm=1.0))
    assert (
        met.number == pytest.approx(4.22, abs=0.005)
        and met.delta == 1e-3
        and met.surface == "features"
    )
    assert accounted(dpa.GaussianDpEvent(math.sqrt(0.15)), 1e-3) == pytest.approx(10.66, abs=0.02)
    for unmet, why in (
        ({"norm": 2.4}, "norm of 2.4"),
        ({"norm": None}, "nothing bounds"),
        ({"variance": 0.3}, "variance of 0.15"),
        ({"gaussian": False}, "Gaussian"),
        ({"noise_per_record": False}, "whole batch"),
    ):
        claim = fedfed_published(replace(RUN, **{"norm": 1.0, **unmet}))
        assert (
            claim.number is None and why in claim.not_applicable and why in claim.to_json()["why"]
        )


def test_theorem_3_3_compares_and_gives_no_number() -> None:
    """At equal epsilon and delta of one Gaussian release, noise over norm is equal: the scales are
    as rho to 1."""
    claim = fedfed_3_3(replace(RUN, rho=0.25))
    assert claim.epsilon is None and "0.25 of that for raw records" in claim.why
    assert "nothing to compare" in fedfed_3_3(replace(RUN, rho=None)).why


@pytest.mark.parametrize(
    "change", [{"variance": 0.0}, {"rho": -1.0}, {"rounds": 0}, {"clients": 0}, {"delta_hat": 1.0}]
)
def test_bad_runs_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="delta" if "delta_hat" in change else next(iter(change))):
        replace(RUN, **change)  # type: ignore[arg-type]


# FedDM's and FedRD's formulas give the papers' numbers, and say what is wrong with them.


RUN_THEOREMS = MatchingRun(
    noise_multiplier=5.0, steps=1000, sampling_rate=0.01, delta=1e-5, noise_init=True
)
GOOD = replace(RUN_THEOREMS, clipping="record", poisson=True)


def test_the_smaller_form_is_what_is_claimed() -> None:
    """sigma 5, T 50, q .02, by hand: ln(1e5) / 25 + 50 * .0004 = .4605 + .02; the second form is
    .921."""
    claim = feddm_3_2(replace(RUN_THEOREMS, steps=50, sampling_rate=0.02))
    assert claim.epsilon == pytest.approx(0.4805, abs=5e-5) and claim.delta == 1e-5
    assert "first form 0.481, second form 0.921" in claim.choices[0]
    assert fedrd_1(replace(RUN_THEOREMS, steps=50, sampling_rate=0.02)).epsilon == pytest.approx(
        0.4805, abs=5e-5
    )


@pytest.mark.parametrize(
    ("sigma", "ln", "log10"), [(1.0, "23", 10.0), (3.0, "2.56", 1.11), (5.0, "0.921", 0.40)]
)
def test_published_figures(sigma: float, ln: str, log10: float) -> None:
    """Table II of FedRD is the second form in base 10; the same form with ln stands beside it."""
    run = replace(RUN_THEOREMS, noise_multiplier=sigma, sampling_rate=0.001)
    assert f"second form {ln} " in feddm_3_2(run).choices[0]
    assert "gives 23, 2.56, 0.921" in feddm_3_2(run).choices[-1]
    assert fedrd_table_2(run).epsilon == pytest.approx(log10, abs=0.005)
    assert fedrd_1(run).epsilon == pytest.approx(math.log(1e5) / sigma**2 + 1000 * 1e-6)


@pytest.mark.parametrize("rate", [0.512, 0.02, 0.001])
def test_the_claim_satisfies_the_printed_inequality(rate: float) -> None:
    """sigma = sqrt(log(delta) / (T q^2 - epsilon)): the first form, whether or not the second
    applies."""
    run = replace(RUN_THEOREMS, sampling_rate=rate)
    eps = feddm_3_2(run).epsilon
    assert eps is not None
    assert math.sqrt(math.log(run.delta) / (run.steps_times_q_squared - eps)) == pytest.approx(5.0)
    second = math.sqrt(2 * math.log(1 / run.delta) / 5.0**2)
    assert ("does not apply" in feddm_3_2(run).choices[0]) is (
        run.steps_times_q_squared > second**2 / 2
    )


def test_where_the_second_forms_condition_fails_table_2_falls_back_to_the_first() -> None:
    run = replace(RUN_THEOREMS, sampling_rate=0.512)
    claim = fedrd_table_2(run)
    assert claim.epsilon == pytest.approx(5 / 25 + 1000 * 0.512**2)
    assert "fails" in claim.why and "Table II states 0.4" in claim.why
    assert "fails" not in fedrd_table_2(RUN_THEOREMS).why


def test_sound_only_where_every_condition_holds() -> None:
    assert feddm_3_2(GOOD).sound and fedrd_1(GOOD).sound
    for change, word in (
        ({"clipping": "aggregate"}, "mean"),
        ({"noise_init": False}, "real images"),
        ({"poisson": False}, "Poisson"),
        ({"private_map": True}, "embedding"),
    ):
        claim = feddm_3_2(replace(GOOD, **change))  # type: ignore[arg-type]
        assert not claim.sound and word in claim.why
    assert not fedrd_table_2(GOOD).sound and "log10" in fedrd_table_2(GOOD).why


def test_below_sigma_one_the_formula_fails_even_for_what_it_was_proved_for() -> None:
    """At sigma 1 on the boundary T q^2 = epsilon / 2 the formula states 23.03; the accountant needs
    27.5."""
    q = math.sqrt(math.log(1e5) / 1000)
    claim = feddm_3_2(replace(GOOD, noise_multiplier=1.0, sampling_rate=q))
    assert (
        claim.epsilon == pytest.approx(23.03, abs=0.005) and not claim.sound and "27.5" in claim.why
    )


def test_no_noise_claims_nothing() -> None:
    for run in (
        replace(RUN_THEOREMS, noise_multiplier=None),
        replace(RUN_THEOREMS, clipping="none"),
    ):
        assert {
            theorem(run).to_json()["epsilon"] for theorem in (feddm_3_2, fedrd_1, fedrd_table_2)
        } == {"inf"}


def test_constants_that_are_not_given_give_no_number() -> None:
    assert (
        feddm_3_1(RUN_THEOREMS).to_json()["epsilon"] == "no number"
        and "c1 and c2" in feddm_3_1(RUN_THEOREMS).why
    )


@pytest.mark.parametrize(
    "change",
    [
        {"delta": 0.0},
        {"sampling_rate": 0.0},
        {"steps": 0},
        {"noise_multiplier": math.nan},
        {"clipping": "all"},
    ],
)
def test_bad_runs_are_refused_theorems(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        replace(RUN_THEOREMS, **change)  # type: ignore[arg-type]


# What the papers say in words: no number, and named attacks that exist and measure it.


CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "attack"
ALL = [
    feddm_membership(),
    fedrd_not_real(real_start=True),
    fedrd_not_real(real_start=False),
    fedlgd_attacks(),
    fedrd_secret_projection(frozen=True),
    fedrd_secret_projection(frozen=False),
    fedlgd_no_extra_leakage(statistics=True),
    fedlgd_no_extra_leakage(statistics=False),
]


@pytest.mark.parametrize("claim", ALL, ids=lambda c: c.source)
def test_no_number_and_attacks_that_can_be_chosen(claim: Claim) -> None:
    assert claim.epsilon is None and claim.tested_by
    known = {path.stem for path in CONFIGS.glob("*.yaml") if yaml.safe_load(path.read_text())}
    assert set(claim.tested_by) <= known


def test_what_the_run_makes_of_the_sentence() -> None:
    assert (
        "start=real" in fedrd_not_real(real_start=True).why
        and "start=real" not in fedrd_not_real(real_start=False).why
    )
    assert "public" in fedrd_secret_projection(frozen=True).why
    assert (
        fedlgd_no_extra_leakage(statistics=False).sound
        and not fedlgd_no_extra_leakage(statistics=True).sound
    )


# ``effective_std``: several noised copies of one record against the best linear unbiased estimate
# of it.


STDS = [(0.15,), (0.15, 0.25), (0.25, 0.15), (0.2, 0.2), (0.01, 3.0), (0.1, 0.2, 0.4)]


def best_estimate(stds: tuple[float, ...]) -> tuple[np.ndarray, float]:
    """Weights that sum to one and the least standard deviation: minimise w' S w by its Lagrange
    equations."""
    k = len(stds)
    system = np.zeros((k + 1, k + 1))
    system[:k, :k] = 2 * np.diag(np.square(stds))
    system[:k, k] = system[k, :k] = 1
    weights = np.linalg.solve(system, np.eye(k + 1)[k])[:k]
    return weights, float(np.sqrt(weights @ np.diag(np.square(stds)) @ weights))


@pytest.mark.parametrize("stds", STDS)
def test_effective_std_is_that_of_the_best_linear_unbiased_estimate(
    stds: tuple[float, ...],
) -> None:
    assert effective_std(stds) == pytest.approx(best_estimate(stds)[1], rel=1e-9)
    assert effective_std(stds) <= min(stds) * (
        1 + 1e-12
    )  # another copy never hides a record better


def test_effective_std_is_what_an_attacker_who_averages_two_copies_sees() -> None:
    """Simulated: 200,000 numbers, two copies at 0.15 and 0.25; the standard error of a std is 0.16
    %."""
    stds = (0.15, 0.25)
    rng = np.random.default_rng(0)
    weights, _ = best_estimate(stds)
    error = sum(w * std * rng.standard_normal(200_000) for w, std in zip(weights, stds))
    assert np.std(error) == pytest.approx(effective_std(stds), rel=0.01)
    assert effective_std(stds) == pytest.approx(0.15 * 0.25 / np.hypot(0.15, 0.25))


def test_the_claim_of_fedfed_released_is_about_both_copies() -> None:
    """Its theorem is evaluated at the noise that remains after averaging, which costs more than
    either copy alone."""
    config = compose_config(
        "audit",
        ["algo=fedfed_released", "preset=smoke", "data=digits", "data.limit=60", "partition=iid"],
    )
    experiment = build_experiment(config)
    method: Any = experiment.plan.method
    claim = next(c for c in method.claims(experiment.plan, experiment.shards) if "3.4" in c.source)

    def printed(std: float) -> float | None:
        run = FeatureRun(
            variance=std**2,
            rho=None,
            rounds=method.base.rounds,
            clients=experiment.plan.problem.clients,
        )
        return fedfed_3_4(run).epsilon

    assert claim.source.startswith("Yang 2023, Theorem 3.4")
    assert claim.epsilon == pytest.approx(printed(best_estimate((0.2, 0.25))[1]))
    assert claim.epsilon > (printed(0.2) or 0) > (printed(0.25) or 0)
