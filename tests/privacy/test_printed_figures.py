"""A number that is printed as it comes out of a formula: a ledger's epsilon at any delta."""

from __future__ import annotations

import dp_accounting as dpa
import pytest

from privdd.privacy.accounting import epsilon
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import LedgerRow


def test_a_ledgers_epsilon_is_taken_at_the_delta_asked_for() -> None:
    ledger, event = Ledger(delta=1e-5), dpa.GaussianDpEvent(2.0)
    ledger.append([LedgerRow(0, 0, "x", "update", ("server",), {"x": (1,)}, "", event, count=3)])
    three = dpa.SelfComposedDpEvent(event, 3)
    for delta in (None, 1e-5, 1e-3, 1e-7):
        expected = epsilon(three, 1e-5 if delta is None else delta)
        assert ledger.epsilon(delta) == pytest.approx(expected, rel=1e-9)
    assert ledger.epsilon(1e-3) < ledger.epsilon() < ledger.epsilon(1e-7)
