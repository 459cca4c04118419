"""Tests of ``privdd.auditing.dp_tests.clean_values``."""

from __future__ import annotations

import pytest
import torch

from privdd.auditing.dp_tests.clean_values import (
    clean_numbers,
    sensitivity_unit,
    stated_multiplier,
    value_before_noise,
)
from privdd.privacy.mechanisms import ClippedSum
from privdd.privacy.noise import ZERO_NOISE

MECHANISM = ClippedSum(2.0, 3.0, 0.1, 10.0)


def test_the_unit_is_what_the_multiplier_allows_one_record() -> None:
    output = MECHANISM({"x": torch.ones(2, 1)}, ZERO_NOISE)
    assert stated_multiplier(output) == 2.0
    assert sensitivity_unit(output) == pytest.approx(3.0 / 10.0)


def test_the_value_before_noise_is_the_clipped_sum() -> None:
    rows = {"x": torch.tensor([[6.0], [1.0]])}
    assert value_before_noise(MECHANISM, rows)["x"].tolist() == pytest.approx([0.4], abs=1e-3)
    assert clean_numbers(MECHANISM, rows).tolist() == pytest.approx([0.4], abs=1e-3)
