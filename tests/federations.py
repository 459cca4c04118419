"""Tiny federations on the embedded digits, by the name of their yaml in configs/algo."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config, config_dir, group_choices
from privdd.core.types import Received, Shard, State
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import (
    ClientTask,
    Plan,
    Progress,
    client_step,
    run_round,
    start_training,
)
from privdd.runtime.engine import Engine
from tests import stand_in_weights

# read AlexNet's weights
PUBLIC_MAP = {"feddm_public_dp", "feddm_guided_dp", "dp_head", "dp_means", "dp_moments", "fedcgs"}
ALGOS = sorted({*group_choices("algo", [config_dir()])})
stand_in_weights.install()
Nested = torch.Tensor | Mapping[Any, Any]
TINY = [
    "preset=smoke",
    "data=digits",
    "data.limit=150",
    "data.test_limit=40",
    "partition=iid",
    "partition.clients=3",
]
SHORT = {
    "algo.rounds": 2,
    "algo.distill_rounds": 1,
    "algo.base.rounds": 1,
    "algo.local_epochs": 1,
    "algo.inner.rounds": 2,
    "algo.inner.local_epochs": 1,
    "algo.inner.per_class": 5,
    "algo.matching.iterations": 2,
    "algo.fitting.steps": 2,
    "algo.server.epochs": 1,
    "algo.virtual.warmup.iterations": 2,
    "algo.virtual.refine.iterations": 2,
    "algo.global_iterations": 2,
    "algo.projection_epochs": 1,
    "algo.per_class": 5,
    "algo.rows.width": 20,
    "algo.guiding.images": 40,
    "algo.generation.networks": 2,
    "algo.generation.steps": 1,
    "privacy.sampling_probability": 0.5,
}


def tiny_config(algo: str, *more: str, command: str = "train") -> DictConfig:
    """The config of ``algo`` on 120 digits and three clients, with the fewest rounds and steps."""
    typed = {item.split("=")[0] for item in more}
    seen = [] if "trust" in typed else ["trust=local"]
    config = compose_config(command, [f"algo={algo}", *TINY, *seen, *more])
    for key, value in SHORT.items():
        if key not in typed and OmegaConf.select(config, key) is not None:
            OmegaConf.update(config, key, value)
    return config


@lru_cache(maxsize=64)
def tiny(algo: str, *more: str) -> Experiment:
    return build_experiment(tiny_config(algo, *more))


@lru_cache(maxsize=64)
def trained(algo: str, *more: str) -> tuple[Progress, tuple[Received, ...], tuple[State, ...]]:
    """(the state after all rounds, everything that was received, the server before each round)."""
    experiment = tiny(algo, *more)
    inboxes = []
    servers = []
    progress = start_training(experiment.plan, experiment.new_ledger())
    while progress.round < experiment.plan.method.rounds:
        servers.append(progress.server)
        progress, inbox, _ = run_round(experiment.plan, progress, experiment.shards, Engine())
        inboxes.extend(inbox)
    return progress, tuple(inboxes), tuple(servers)


def finished(experiment: Experiment) -> Progress:
    """The state after all rounds."""
    progress = start_training(experiment.plan, experiment.new_ledger())
    while progress.round < experiment.plan.method.rounds:
        progress = run_round(experiment.plan, progress, experiment.shards, Engine())[0]
    return progress


def turn(plan: Plan, progress: Progress, shard: Shard, round: int) -> Received:
    """One client's round, through the channel."""
    broadcast = plan.method.broadcast(progress.server)
    return client_step(
        ClientTask(
            plan, round, shard.client, broadcast, progress.memories.get(shard.client, {}), shard
        )
    )[0]


def equal(a: Nested, b: Nested) -> bool:
    """Bit-identical nested mappings of tensors."""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return (
            isinstance(a, torch.Tensor)
            and isinstance(b, torch.Tensor)
            and a.dtype == b.dtype
            and torch.equal(a, b)
        )
    return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
