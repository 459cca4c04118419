"""Every sound version of a paper's method learns at ``preset=smoke``, at the noise that its yaml
sets."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from scipy import stats

from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.federated.simulation import run_round, start_training
from privdd.federated.trainer import measure_accuracy
from privdd.runtime.engine import Engine
from tests.federations import PUBLIC_MAP

pytestmark = pytest.mark.nightly

torch.set_num_threads(1)
ALGOS = sorted(
    path.stem for path in (Path(__file__).parents[2] / "configs" / "algo").glob("[!_]*_dp.yaml")
)
TWICE_CHANCE = 0.2  # digits, ten classes


@pytest.mark.parametrize(
    "algo",
    [
        pytest.param(algo, marks=[pytest.mark.extra("lpips_weights")] if algo in PUBLIC_MAP else [])
        for algo in ALGOS
    ],
)
def test_it_is_well_above_chance(algo: str) -> None:
    """The exact lower limit of its accuracy, at one in a thousand, is above twice that of
    guessing."""
    made = build_experiment(compose_config("train", [f"algo={algo}", "preset=smoke"]))
    progress = start_training(made.plan, made.new_ledger())
    engine = Engine(threads=1)
    seen = None
    while progress.round < made.plan.method.rounds:
        progress, _, seen = run_round(made.plan, progress, made.shards, engine, seen)
    right = round(
        measure_accuracy(made.plan, progress, made.test_records, made.shards)
        * len(made.test_records)
    )
    n = len(made.test_records)
    assert stats.beta.ppf(1e-3, right, n - right + 1) > TWICE_CHANCE, f"{right} of {n}"
    assert math.isfinite(progress.ledger.epsilon()), "it is protected"
