"""Numbers that are printed as they come out of a formula: FedFed's claim over rounds, a ledger's epsilon at any delta."""

from __future__ import annotations

import math

import dp_accounting as dpa
import pytest

from privdd.privacy.accounting import epsilon
from privdd.privacy.claims import fedfed_3_3
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import Row


@pytest.mark.parametrize("rounds", [1, 4, 15])
def test_fedfed_3_3_grows_with_the_root_of_the_rounds(rounds: int) -> None:
    claim = fedfed_3_3(variance=0.15, rho=0.1, delta=1e-5, rounds=rounds, clipped=True, noise_per_record=True)
    assert claim.epsilon == pytest.approx(0.1 * math.sqrt(rounds * math.log(1e5)) / math.sqrt(0.15)) and not claim.sound


def test_a_ledgers_epsilon_is_taken_at_the_delta_asked_for() -> None:
    ledger, event = Ledger(delta=1e-5), dpa.GaussianDpEvent(2.0)
    ledger.append([Row(0, 0, "x", "update", ("server",), {"x": (1,)}, "", event, count=3)])
    three = dpa.SelfComposedDpEvent(event, 3)
    for delta in (None, 1e-5, 1e-3, 1e-7):
        expected = epsilon(three, 1e-5 if delta is None else delta)
        assert ledger.epsilon(delta) == pytest.approx(expected, rel=1e-9)
    assert ledger.epsilon(1e-3) < ledger.epsilon() < ledger.epsilon(1e-7)
