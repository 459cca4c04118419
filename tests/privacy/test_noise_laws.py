"""Tests of ``privdd.privacy.noise_laws``."""

from __future__ import annotations

import dp_accounting as dpa
import pytest
import torch
from scipy import stats

from privdd.privacy.noise_laws import NOISE_LAWS, noise_law
from privdd.privacy.noise_laws.law import UnsupportedEvent


def test_every_file_beside_the_laws_is_found() -> None:
    assert set(NOISE_LAWS) == {"gaussian", "laplace"}
    assert noise_law(dpa.LaplaceDpEvent(1.0)) is NOISE_LAWS["laplace"]
    assert noise_law(dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.0))) is None


def test_laplace_residuals_become_normal_scores() -> None:
    residuals = torch.tensor([-3.0, -0.1, 0.1, 3.0], dtype=torch.float64)
    expected = stats.norm.ppf(stats.laplace.cdf(residuals.numpy()))
    assert NOISE_LAWS["laplace"].normal_scores(residuals).numpy() == pytest.approx(expected)


def test_gaussian_noise_has_no_loss_on_a_grid() -> None:
    with pytest.raises(UnsupportedEvent, match="gaussian"):
        NOISE_LAWS["gaussian"].loss_on_grid(1.0, 1.0, 1e-3)
