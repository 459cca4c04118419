"""Flower's and Opacus's components as they are installed, as callables on arrays."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest

from privdd.blackbox.target import load_target
from privdd.integrations.components import COMPONENT_ADAPTERS, adapt_component

MOD = "flwr.clientapp.mod:LocalDpMod"
STRATEGIES = [name for name in COMPONENT_ADAPTERS if name.startswith("DifferentialPrivacy")]


PLACED = {
    "privdd.integrations.flower_components",
    "privdd.integrations.library_components",  # test_more_components
}


@pytest.fixture(scope="module", autouse=True)
def _flower() -> None:
    pytest.importorskip("flwr")


def made(target, args, stated=None):
    found = adapt_component(load_target(target), args, stated or {})
    assert found is not None
    return found[0](), found[1]


def test_local_dp_clips_adds_its_noise_and_states_its_epsilon() -> None:
    f, said = made(MOD, {"clipping_norm": 1, "sensitivity": 1e-4}, {"epsilon": 10.0, "delta": 1e-5})
    update = [np.full((3, 2), 100.0), np.full(4, 100.0)]
    sent = np.array([np.concatenate([a.ravel() for a in f(update)]) for _ in range(200)])
    std = 1e-4 * math.sqrt(2 * math.log(1.25e5)) / 10
    assert sent.mean(0) == pytest.approx(np.full(10, 1 / math.sqrt(10)), abs=1e-4)
    assert sent.std() == pytest.approx(std, rel=0.1)
    assert said["noise_multiplier"] == pytest.approx(std / 1e-4) and said["epsilon"] == 10


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_aggregate_by_weight(name: str) -> None:
    args = {"noise_multiplier": 1e-6, "clipping_norm": 1.0} if "Fixed" in name else {"noise_multiplier": 1e-6, "initial_clipping_norm": 1.0}
    f, said = made(f"flwr.serverapp.strategy:{name}", args)
    one, other = [np.array([100.0, 0.0])], [np.array([0.0, 0.1])]
    assert f([one, other], [300, 100])[0] == pytest.approx([0.75, 0.025], abs=1e-3)
    assert said["relation"] == "zero_out" and said["kind"] == "aggregate"


def opacus(name: str) -> str:
    modules = {"UniformWithReplacementSampler": "opacus.utils.uniform_sampler", "PrivacyEngine": "opacus"}
    return f"{modules.get(name, 'opacus.optimizers')}:{name}"


@pytest.mark.parametrize("name", ["DPOptimizer", "AdaClipDPOptimizer"])
def test_optimizers_sum_clipped_rows(name: str) -> None:
    f, _ = made(opacus(name), {"noise_multiplier": 1e-6, "max_grad_norm": 1.0})
    rows = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 0.5]])
    assert np.concatenate(f(rows)) == pytest.approx([0.6, 0.8, 0.5], abs=1e-4)


def test_layers_are_clipped_each() -> None:
    f, _ = made(opacus("DPPerLayerOptimizer"), {"noise_multiplier": 1e-6})
    assert np.concatenate(f(np.full((1, 3), 9.0))) == pytest.approx(np.ones(3), abs=1e-4)


def test_samplers_draw_as_they_say() -> None:
    f, said = made(opacus("UniformWithReplacementSampler"), {"noise_multiplier": 0.05, "sample_rate": 0.25})
    taken = np.array([np.concatenate(f(np.ones((1, 1))))[0] for _ in range(400)])
    assert 0.15 < (taken > 0.5).mean() < 0.35 and 0 < said["epsilon"] < math.inf
    for poisson, spread in ((True, True), (False, False)):
        f, _ = made(opacus("PrivacyEngine"), {"noise_multiplier": 0.05, "batches": 5, "poisson_sampling": poisson})
        sums = np.array([f(np.ones((20, 1)))[:, 0] for _ in range(20)])
        assert sums.shape[1] == 5 and (sums.std() > 0.8) == spread


def test_other_classes_are_left_alone_and_the_table_leads_somewhere() -> None:
    assert adapt_component(dict, {}, {}) is None
    assert {f"privdd.integrations.{place.partition(':')[0]}" for place in COMPONENT_ADAPTERS.values()} == PLACED
    for place in COMPONENT_ADAPTERS.values():
        file, _, function = place.partition(":")
        assert callable(getattr(importlib.import_module(f"privdd.integrations.{file}"), function))
