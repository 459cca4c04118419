"""Tests of ``privdd.privacy.account`` and of the command: epsilon of trainings that are described
by numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import dp_accounting as dpa
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from privdd.account import main, parse_arguments
from privdd.core.validation import BadConfig
from privdd.privacy.account import NoisedSteps, account, equivalent_mu

DELTA = 1e-5


def test_full_batches_have_the_closed_form() -> None:
    answer = account(NoisedSteps(noise_multiplier=1.6, steps=20), delta=DELTA)
    assert answer.epsilon == pytest.approx(dpa.get_epsilon_gaussian(1.6 / math.sqrt(20), DELTA))
    assert answer.epsilon_attained == answer.epsilon
    assert answer.mu == pytest.approx(math.sqrt(20) / 1.6, rel=1e-6)


def test_steps_follow_from_epochs_batches_and_rounds() -> None:
    line = NoisedSteps(noise_multiplier=4.0, records=500, batch=50, epochs=5, rounds=3)
    assert line.steps_of_round == 50
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    event = dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(4.0))
    accountant.compose(event, 150)
    answer = account(line, delta=DELTA)
    assert answer.epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=0.005)
    assert answer.epsilon_attained <= answer.epsilon
    assert answer.epsilon_attained == pytest.approx(answer.epsilon, rel=0.02)
    assert any("One step an epoch" in note for note in answer.notes)


@pytest.mark.nightly(cases=["line1-2.17", "line2-6.32", "line0-95.3"])
@pytest.mark.parametrize(
    ("line", "rdp"),
    [  # integer-order RDP, computed apart from this code
        (NoisedSteps(noise_multiplier=1, records=500, batch=50, epochs=5, rounds=100), 95.3),
        (NoisedSteps(noise_multiplier=1, records=600, batch=10, epochs=5), 2.17),
        (NoisedSteps(noise_multiplier=1, records=1000, batch=64, steps=16, rounds=10), 6.32),
        (
            NoisedSteps(
                noise_multiplier=1, records=1000, batch=64, steps=16, rounds=10, disjoint=True
            ),
            2.84,
        ),
    ],
)
def test_published_trainings_cost_as_computed_elsewhere(line: NoisedSteps, rdp: float) -> None:
    answer = account(line, delta=DELTA)
    assert answer.epsilon_rdp == pytest.approx(rdp, rel=0.05)
    assert answer.epsilon < answer.epsilon_rdp


def test_several_lines_compose() -> None:
    lines = (NoisedSteps(noise_multiplier=3.0, steps=4), NoisedSteps(noise_multiplier=6.0, steps=9))
    mu = math.sqrt(4 / 9 + 9 / 36)
    assert account(*lines, delta=DELTA).epsilon == pytest.approx(
        dpa.get_epsilon_gaussian(1 / mu, DELTA)
    )


def test_stated_releases_compose_at_most_linearly_and_no_less_than_one() -> None:
    answer = account(NoisedSteps(release_epsilon=0.5, rounds=10), delta=DELTA)
    assert 0.5 < answer.epsilon <= 5.0 + 1e-3
    many = account(NoisedSteps(release_epsilon=0.1, release_delta=1e-8, rounds=100), delta=DELTA)
    assert many.epsilon < 6  # far below 10: advanced composition


@pytest.mark.parametrize("epsilon", [0.5, 3.0, 20.0])
def test_noise_is_found_for_an_epsilon(epsilon: float) -> None:
    answer = account(NoisedSteps(steps=20), delta=DELTA, epsilon=epsilon)
    assert 0.98 * epsilon <= answer.epsilon <= epsilon
    again = account(*answer.training, delta=DELTA)
    assert again.epsilon == answer.epsilon


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0])
def test_the_equivalent_mu_has_this_epsilon(epsilon: float) -> None:
    mu = equivalent_mu(epsilon, DELTA)
    assert dpa.get_epsilon_gaussian(1 / mu, DELTA) == pytest.approx(epsilon, rel=1e-5)


def test_batches_without_a_proof_have_no_epsilon() -> None:
    line = NoisedSteps(noise_multiplier=1, records=1000, batch=50, epochs=2, sampling="shuffled")
    answer = account(line, delta=DELTA)
    assert math.isinf(answer.epsilon)
    assert "no proven epsilon" in answer.proof
    by_epoch = account(line, delta=DELTA, relation="zero_out")
    assert by_epoch.epsilon == pytest.approx(dpa.get_epsilon_gaussian(1 / math.sqrt(2), DELTA))
    assert 0 < by_epoch.epsilon_attained <= by_epoch.epsilon


def test_fixed_size_batches_under_exchange_have_the_bound_of_the_library() -> None:
    line = NoisedSteps(noise_multiplier=4, records=1000, batch=50, steps=10, sampling="fixed_size")
    answer = account(line, delta=DELTA, relation="replace")
    accountant = RdpAccountant(neighboring_relation=dpa.NeighboringRelation.REPLACE_ONE)
    noise = dpa.GaussianDpEvent(2.0)  # a changed record changes the sum by twice the norm
    accountant.compose(dpa.SampledWithoutReplacementDpEvent(1000, 50, noise), 10)
    assert answer.epsilon_rdp == pytest.approx(accountant.get_epsilon(DELTA))
    one_more = account(line, delta=DELTA)
    assert one_more.epsilon == pytest.approx(dpa.get_epsilon_gaussian(2.0 / math.sqrt(10), DELTA))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["steps=20", "delta=1e-5"], "noise_multiplier must be given"),
        (["noise_multiplier=0", "steps=1", "delta=1e-5"], "noise_multiplier=0.0: must be"),
        (["noise_multiplier=1", "epochs=2", "delta=1e-5"], "epochs must come with batch"),
        (
            ["noise_multiplier=1", "batch=2", "delta=1e-5"],
            "batch and records must be given together",
        ),
        (["noise_multiplier=1", "steps=1"], "delta must be given"),
        (["noise_multiplier=1", "steps=1", "delta=2"], "delta=2"),
        (
            ["noise_multiplier=1", "delta=1e-5", "+", "noise_multiplier=1", "delta=1e-5"],
            "given twice",
        ),
        (["noise_multiplyer=1", "delta=1e-5"], "did you mean noise_multiplier"),
    ],
)
def test_a_bad_line_is_refused_in_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    shown = capsys.readouterr().err.strip().splitlines()
    assert len(shown) == 1
    assert says in shown[0]


def test_the_command_compares_with_a_published_epsilon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "answer.json"
    numbers = ["noise_multiplier=1.6", "steps=20", "delta=1e-5"]
    assert main([*numbers, "stated.epsilon=3", f"out={out}"]) == 2
    shown = capsys.readouterr().out
    assert shown.startswith("stated ε = 3 is too small")
    assert "15.22" in shown
    assert "add/remove one record" in shown
    assert json.loads(out.read_text())["refuted"] is True
    assert main([*numbers, "stated.epsilon=16"]) == 0
    assert main([*numbers, "stated.epsilon=15.2"]) == 0  # 15.22, rounded as papers print it
    assert main([*numbers, "stated.epsilon=15"]) == 2


def test_lines_are_separated_by_a_plus() -> None:
    training, request = parse_arguments(
        ["noise_multiplier=1", "steps=2", "+", "noise_multiplier=2", "steps=3", "delta=1e-6"]
    )
    assert [line.steps for line in training] == [2, 3]
    assert request == {"delta": 1e-6}


def test_a_claimed_unit_is_the_answers_unit() -> None:
    assert account(NoisedSteps(noise_multiplier=1), delta=DELTA, unit="client").unit == "client"
    with pytest.raises(BadConfig, match="unit=group"):
        account(NoisedSteps(noise_multiplier=1), delta=DELTA, unit="group")  # type: ignore[arg-type]
