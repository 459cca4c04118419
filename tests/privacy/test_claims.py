"""The papers' formulas give the papers' numbers, and say what is wrong with them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from privdd.privacy.claims import MatchingRun, feddm_3_2, fedfed_3_3, fedfed_3_4, fedrd_1, kairouz

RUN = MatchingRun(noise_multiplier=5.0, steps=1000, sampling_rate=0.01, delta=1e-5, noise_init=True)
GOOD = replace(RUN, clipping="record", poisson=True)


@pytest.mark.parametrize(("sigma", "ln", "log10"), [(1.0, 23.03, 10.0), (3.0, 2.56, 1.11), (5.0, 0.92, 0.40)])
def test_published_figures(sigma: float, ln: float, log10: float) -> None:
    run = replace(RUN, noise_multiplier=sigma)
    assert feddm_3_2(run).epsilon == pytest.approx(ln, abs=0.005)
    assert fedrd_1(run).epsilon == pytest.approx(log10, abs=0.005)


def test_the_claim_satisfies_the_printed_inequality() -> None:
    """sigma = sqrt(log(delta) / (T q^2 - epsilon)) where the second form's condition fails."""
    run = replace(RUN, sampling_rate=0.512)
    eps = feddm_3_2(run).epsilon
    spent = run.steps * run.sampling_rate**2
    assert math.sqrt(math.log(run.delta) / (spent - eps)) == pytest.approx(5.0)
    assert "fails" in feddm_3_2(run).why


def test_sound_only_where_every_condition_holds() -> None:
    assert feddm_3_2(GOOD).sound
    for change, word in (
        ({"clipping": "aggregate"}, "mean"),
        ({"noise_init": False}, "real images"),
        ({"poisson": False}, "Poisson"),
        ({"private_map": True}, "embedding"),
    ):
        claim = feddm_3_2(replace(GOOD, **change))  # type: ignore[arg-type]
        assert not claim.sound and word in claim.why
    assert not fedrd_1(GOOD).sound and "log10" in fedrd_1(GOOD).why


def test_below_sigma_one_the_formula_fails_even_for_what_it_was_proved_for() -> None:
    """At sigma 1 on the boundary T q^2 = epsilon / 2 the formula states 23.03; the accountant needs 27.5."""
    q = math.sqrt(math.log(1e5) / 1000)
    claim = feddm_3_2(replace(GOOD, noise_multiplier=1.0, sampling_rate=q))
    assert not claim.sound and "27.5" in claim.why


def test_no_noise_claims_nothing() -> None:
    for run in (replace(RUN, noise_multiplier=None), replace(RUN, clipping="none")):
        assert feddm_3_2(run).to_json()["epsilon"] == "inf"


def test_fedfed_lemma_and_composition() -> None:
    client = fedfed_3_3(variance=0.15, rho=0.1, delta=1e-5, clipped=True, noise_per_record=True)
    assert client.epsilon == pytest.approx(0.88, abs=0.005) and not client.sound
    whole = fedfed_3_4(client=client, clients=10, delta_hat=1e-5)
    assert client.epsilon < whole.epsilon <= 10 * client.epsilon and "disjoint" in whole.why
    assert set(whole.to_json()) == {"source", "epsilon", "sound", "why"}


def test_composition_is_the_smallest_of_its_three_forms() -> None:
    eps, k, slack = 0.1, 100, 1e-5
    drift = (math.exp(eps) - 1) * eps * k / (math.exp(eps) + 1)
    root = drift + eps * math.sqrt(2 * k * math.log(1 / slack))
    other = drift + eps * math.sqrt(2 * k * math.log(math.e + math.sqrt(k * eps**2) / slack))
    assert kairouz(eps, k, slack) == pytest.approx(min(k * eps, root, other))


@pytest.mark.parametrize(
    "change",
    [{"delta": 0.0}, {"sampling_rate": 0.0}, {"steps": 0}, {"noise_multiplier": math.nan}, {"clipping": "all"}],
)
def test_bad_runs_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        replace(RUN, **change)  # type: ignore[arg-type]
