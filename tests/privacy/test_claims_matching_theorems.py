"""FedDM's and FedRD's formulas give the papers' numbers, and say what is wrong with them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from privdd.privacy.claims import MatchingRun, feddm_3_1, feddm_3_2, fedrd_1, fedrd_table_2

RUN = MatchingRun(noise_multiplier=5.0, steps=1000, sampling_rate=0.01, delta=1e-5, noise_init=True)
GOOD = replace(RUN, clipping="record", poisson=True)


def test_the_smaller_form_is_what_is_claimed() -> None:
    """sigma 5, T 50, q .02, by hand: ln(1e5) / 25 + 50 * .0004 = .4605 + .02; the second form is .921."""
    claim = feddm_3_2(replace(RUN, steps=50, sampling_rate=0.02))
    assert claim.epsilon == pytest.approx(0.4805, abs=5e-5) and claim.delta == 1e-5
    assert "first form 0.481, second form 0.921" in claim.choices[0]
    assert fedrd_1(replace(RUN, steps=50, sampling_rate=0.02)).epsilon == pytest.approx(0.4805, abs=5e-5)


@pytest.mark.parametrize(("sigma", "ln", "log10"), [(1.0, "23", 10.0), (3.0, "2.56", 1.11), (5.0, "0.921", 0.40)])
def test_published_figures(sigma: float, ln: str, log10: float) -> None:
    """Table II of FedRD is the second form in base 10; the same form with ln stands beside it."""
    run = replace(RUN, noise_multiplier=sigma, sampling_rate=0.001)
    assert f"second form {ln} " in feddm_3_2(run).choices[0]
    assert "gives 23, 2.56, 0.921" in feddm_3_2(run).choices[-1]
    assert fedrd_table_2(run).epsilon == pytest.approx(log10, abs=0.005)
    assert fedrd_1(run).epsilon == pytest.approx(math.log(1e5) / sigma**2 + 1000 * 1e-6)


@pytest.mark.parametrize("rate", [0.512, 0.02, 0.001])
def test_the_claim_satisfies_the_printed_inequality(rate: float) -> None:
    """sigma = sqrt(log(delta) / (T q^2 - epsilon)): the first form, whether or not the second applies."""
    run = replace(RUN, sampling_rate=rate)
    eps = feddm_3_2(run).epsilon
    assert eps is not None
    assert math.sqrt(math.log(run.delta) / (run.steps_times_q_squared - eps)) == pytest.approx(5.0)
    second = math.sqrt(2 * math.log(1 / run.delta) / 5.0**2)
    assert ("does not apply" in feddm_3_2(run).choices[0]) is (run.steps_times_q_squared > second**2 / 2)


def test_where_the_second_forms_condition_fails_table_2_falls_back_to_the_first() -> None:
    run = replace(RUN, sampling_rate=0.512)
    claim = fedrd_table_2(run)
    assert claim.epsilon == pytest.approx(5 / 25 + 1000 * 0.512**2)
    assert "fails" in claim.why and "Table II states 0.4" in claim.why
    assert "fails" not in fedrd_table_2(RUN).why


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
    """At sigma 1 on the boundary T q^2 = epsilon / 2 the formula states 23.03; the accountant needs 27.5."""
    q = math.sqrt(math.log(1e5) / 1000)
    claim = feddm_3_2(replace(GOOD, noise_multiplier=1.0, sampling_rate=q))
    assert claim.epsilon == pytest.approx(23.03, abs=0.005) and not claim.sound and "27.5" in claim.why


def test_no_noise_claims_nothing() -> None:
    for run in (replace(RUN, noise_multiplier=None), replace(RUN, clipping="none")):
        assert {theorem(run).to_json()["epsilon"] for theorem in (feddm_3_2, fedrd_1, fedrd_table_2)} == {"inf"}


def test_constants_that_are_not_given_give_no_number() -> None:
    assert feddm_3_1(RUN).to_json()["epsilon"] == "no number" and "c1 and c2" in feddm_3_1(RUN).why


@pytest.mark.parametrize(
    "change",
    [{"delta": 0.0}, {"sampling_rate": 0.0}, {"steps": 0}, {"noise_multiplier": math.nan}, {"clipping": "all"}],
)
def test_bad_runs_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        replace(RUN, **change)  # type: ignore[arg-type]
