"""Tests of ``privdd.privacy.noise_laws``."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from scipy import stats

from privdd.privacy.accounting import epsilon_of, privacy_loss_of
from privdd.privacy.events import Tally
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


def test_a_law_without_a_divergence_is_accounted_by_its_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Noise of bounded support has none. Three releases of Laplace noise cost the same with it and
    without it by PLD, and have no bound by RDP."""
    total = Tally(other_laws=((("laplace", 4.0), 3),))
    expected = epsilon_of(total, 1e-5, relation="add_remove", accountant="pld")
    bounded = replace(NOISE_LAWS["laplace"], name="bounded", rdp_event=None)
    monkeypatch.setitem(NOISE_LAWS, "bounded", bounded)
    other = Tally(other_laws=((("bounded", 4.0), 3),))
    found = epsilon_of(other, 1e-5, relation="add_remove", accountant="pld")
    assert found == pytest.approx(expected) and 0 < found <= 0.75 + 1e-3
    assert math.isfinite(privacy_loss_of(other, 1e-5, "add_remove").get_epsilon_for_delta(1e-5))
    with pytest.raises(UnsupportedEvent, match="no Renyi divergence"):
        epsilon_of(other, 1e-5, relation="add_remove", accountant="rdp")


@pytest.mark.parametrize(
    ("name", "distribution", "summarise"),
    [("gaussian", stats.norm, np.mean), ("laplace", stats.laplace, np.max)],
)
def test_a_change_of_two_numbers_costs_what_its_norm_costs_in_one(
    name: str, distribution: Any, summarise: Any
) -> None:
    """The mean privacy loss of Gaussian noise follows the L_2 norm of a change, the largest of
    Laplace noise the L_1 norm."""

    def cost_of(change: float) -> float:
        noise = distribution.ppf((np.arange(20_000) + 0.5) / 20_000)
        losses = distribution.logpdf(noise) - distribution.logpdf(noise - change)
        return float(summarise(losses))

    norm = torch.tensor([0.5, 1.0]).norm(p=NOISE_LAWS[name].norm_order)
    assert cost_of(0.5) + cost_of(1.0) == pytest.approx(cost_of(float(norm)), rel=1e-2)
