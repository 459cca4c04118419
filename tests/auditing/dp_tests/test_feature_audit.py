"""Tests of ``privdd.auditing.dp_tests.feature_audit``."""

from __future__ import annotations

import pytest
import torch

from privdd.auditing.dp_tests.feature_audit import _compare_rows
from privdd.core.rng import Keys
from privdd.privacy.mechanisms import FeatureNoise
from privdd.privacy.noise import SeededNoise


def test_a_guest_moves_its_own_row_by_one_unit_and_no_other() -> None:
    mechanism = FeatureNoise(clip_norm=1.0, noise_multiplier=2.0)
    rows = torch.zeros(3, 4)
    rows[:, 0] = torch.tensor([0.5, 0.25, 8.0])
    absent_rows = rows * torch.tensor([[1.0], [1.0], [0.0]])
    noise = SeededNoise(Keys(0).torch())
    present = mechanism({"x": rows}, noise)
    absent = mechanism({"x": absent_rows}, noise)
    tally = _compare_rows(mechanism, present, absent, 1)
    assert tally.changes == {0: pytest.approx(1.0, abs=1e-3)}
    assert tally.moved == 0
