"""Components of jax-privacy, pfl-research and NVFlare, where they are installed.

``privdd.integrations.library_components``, ``privdd.integrations.library_components``, ``privdd.integrations.library_components``.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from privdd.blackbox.target import load_target
from privdd.core.validation import BadConfig
from privdd.integrations.components import adapt_component
from tests.conformance.parts import sigma

PFL = {"gaussian": "pfl.privacy.gaussian_mechanism:GaussianMechanism", "laplace": "pfl.privacy.laplace_mechanism:LaplaceMechanism"}
UPDATE = [np.full((3, 2), 100.0), np.full(4, 100.0)]


def made(target, args):
    found = adapt_component(load_target(target), args, {})
    assert found is not None
    return found[0](), found[1]


def test_jax_privacy_clips_rows_sums_and_adds_its_noise() -> None:
    pytest.importorskip("jax_privacy")
    f, said = made("jax_privacy.clipping:clipped_fun", {"noise_multiplier": 0.5, "l2_clip_norm": 2.0})
    rows = np.array([[300.0, 400.0, 0.0], [0.0, 0.0, 0.5]])
    sent = np.array([f(rows) for _ in range(600)])
    assert sent.mean(0) == pytest.approx([1.2, 1.6, 0.5], abs=0.2) and sent.std(0) == pytest.approx(np.ones(3), rel=0.15)
    assert len(np.unique(sent)) == sent.size and said["relation"] == "add_remove"
    assert sigma(said["epsilon"]) == pytest.approx(0.5, rel=1e-3)  # dp-accounting's calibration, the other way round
    with pytest.raises(BadConfig, match="noise_multiplier"):
        made("jax_privacy.clipping:clipped_fun", {})


def test_pfl_clips_over_all_arrays_and_adds_what_epsilon_needs() -> None:
    pytest.importorskip("pfl")
    f, said = made(PFL["gaussian"], {"epsilon": 2.0})
    sent = np.array([np.concatenate([a.ravel() for a in f(UPDATE)]) for _ in range(600)])
    assert sent.mean(0) == pytest.approx(np.full(10, 1 / math.sqrt(10)), abs=0.35)
    assert sent.std() == pytest.approx(sigma(2.0), rel=0.05) and said["epsilon"] == 2.0


def test_pfls_laplace_noise_is_that_of_its_l1_clip() -> None:
    pytest.importorskip("pfl")
    f, said = made(PFL["laplace"], {"epsilon": 2.0, "clipping_bound": 3.0})
    sent = np.array([np.concatenate([a.ravel() for a in f(UPDATE)]) for _ in range(600)])
    assert stats.kstest((sent - 0.3).ravel(), stats.laplace(scale=1.5).cdf).pvalue > 1e-4
    assert said == {"epsilon": 2.0, "delta": 0.0, "kind": "update", "relation": "zero_out"}


def test_pfls_metrics_are_released_only_where_asked_for() -> None:
    pytest.importorskip("pfl")
    assert len(made(PFL["gaussian"], {"epsilon": 2.0})[0](UPDATE)) == 2
    told = made(PFL["gaussian"], {"epsilon": 2.0, "with_metrics": True})[0](UPDATE)[-1]
    assert any(value == pytest.approx(math.sqrt(10) * 100) for value in told)  # the norm before the clip
    with pytest.raises(BadConfig, match="epsilon"):
        made(PFL["gaussian"], {})


def test_nvflares_filter_states_what_its_own_accountant_says_and_sends_a_share() -> None:
    pytest.importorskip("nvflare")
    f, said = made("nvflare.app_common.filters.svt_privacy:SVTPrivacy", {"fraction": 0.2, "gamma": 1.0, "tau": 0.1, "epsilon": 3.0})
    sent = np.array([np.concatenate([a.ravel() for a in f(UPDATE)]) for _ in range(200)])
    assert f.filter.get_privacy_spent() == pytest.approx(200 * said["epsilon"]) and said["delta"] == 0.0
    assert (np.count_nonzero(sent, axis=1) <= 2).all() and np.count_nonzero(sent) > 200
