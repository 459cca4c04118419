"""Ready-made Flower apps: ``privdd.adapters.flower_app:client`` and ``:server``.

Both read one config.yaml of a run (``run_config["config"]``, the same on every machine); a client's
number is ``partition-id`` in its node's config; the server writes the run folder ``run_config["folder"]``.
The data are the config's, cut into clients: a study, so clients tell their accuracy where a method needs it.
``run_config["bad_reply"]`` (stop | drop) and ``run_config["largest"]`` say what is done about replies that cannot be
used (``ReplyRules``). A deployment whose data already lies at the clients builds its own with ``client_app(own)``.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from privdd.adapters.flower import client_app, own_data
from privdd.adapters.flower_server import federate
from privdd.adapters.reply_check import ReplyRules
from privdd.cli.assemble import assemble
from privdd.cli.runs import prepare, stored_config
from privdd.core.types import Shard
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Plan
from privdd.privacy.ledger import Ledger


@lru_cache(maxsize=1)
def assembled(folder: str) -> tuple[Any, Experiment]:
    """A folder's config.yaml, with calibrated noise where it asks for that, and its run; once per process."""
    config = stored_config(Path(folder))
    experiment = assemble(config)
    torch.set_num_threads(experiment.engine.threads)  # the same bits as the simulation
    return config, experiment


def own(context: Context) -> tuple[Plan, Ledger, Shard]:
    """Plan, empty ledger and the node's own shard."""
    _, experiment = assembled(str(context.run_config["config"]))
    return experiment.plan, experiment.ledger(), own_data(experiment, int(context.node_config["partition-id"]))


RULES = {rule.name for rule in fields(ReplyRules)}
client = client_app(own, tells_accuracy=True)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    config, experiment = assembled(str(context.run_config["config"]))
    folder = prepare(Path(str(context.run_config["folder"])), config)
    chosen: dict[str, Any] = {name: value for name, value in context.run_config.items() if name in RULES}
    federate(experiment, grid, folder, rules=ReplyRules(**chosen))
