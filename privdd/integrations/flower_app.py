"""Ready-made Flower apps: ``privdd.integrations.flower_app:client`` and ``:server``.

Both read one config.yaml of a run (``run_config["config"]``, the same on every machine); a client's
number is ``partition-id`` in its node's config; the server writes the run folder
``run_config["folder"]``. Classes of one's own are named in that config only with
``run_config["trust_code"]``, their packages. The data are the config's, cut into clients: a study,
so clients tell their accuracy where a method needs it, and may draw noise from the seed.
``run_config["bad_reply"]`` (stop | drop) and ``run_config["largest"]``: see ``ReplyRules``. A
deployment whose data already lies at the clients builds its own with ``client_app(own)``."""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from privdd.cli.build import build_experiment
from privdd.cli.run import prepare_run_folder
from privdd.cli.stored_config import load_stored_config, parse_trusted_packages
from privdd.core.types import Shard
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Plan
from privdd.integrations.flower import client_app, client_shard, run_on_grid
from privdd.integrations.reply_check import ReplyRules
from privdd.privacy.ledger import Ledger

RULE_NAMES = {rule.name for rule in fields(ReplyRules)}


@lru_cache(maxsize=1)
def load_experiment(folder: str, trust: str = "") -> tuple[Any, Experiment]:
    """A folder's config.yaml, with calibrated noise where it asks for that, and its run; once per
    process."""
    config = load_stored_config(Path(folder), parse_trusted_packages(trust) if trust else ())
    experiment = build_experiment(config, noise_here=False)  # the server has no client's secret
    torch.set_num_threads(experiment.engine.threads)  # the same bits as the simulation
    return config, experiment


def own_data_of_node(context: Context) -> tuple[Plan, Ledger, Shard]:
    """Plan, empty ledger and the node's own shard."""
    _, experiment = load_experiment(
        str(context.run_config["config"]), str(context.run_config.get("trust_code", ""))
    )
    return (
        experiment.plan,
        experiment.new_ledger(),
        client_shard(experiment, int(context.node_config["partition-id"])),
    )


client = client_app(own_data_of_node, tells_accuracy=True, simulation=True)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    config, experiment = load_experiment(
        str(context.run_config["config"]), str(context.run_config.get("trust_code", ""))
    )
    folder = prepare_run_folder(Path(str(context.run_config["folder"])), config)
    chosen: dict[str, Any] = {
        name: value for name, value in context.run_config.items() if name in RULE_NAMES
    }
    run_on_grid(experiment, grid, folder, rules=ReplyRules(**chosen))
