"""Sealed canaries in a real federation beside the simulated audit's canaries, on the same seeds.

    python -m benchmarks.sealed_canaries [--seeds 5] [--canaries 200] [--servers] [override ...]

FedAvg with DP-SGD on Flower: the audited client adds the heads of its ``site-hospital.npz`` to its
records and records what it sends with ``privdd_tap``; ``privdd.canary open`` scores the recorded
updates. Its bound stands beside that of ``audit_experiment.canaries``, which simulates the same
seed and reads every noised step, and its accuracy beside that of the same federation without
canaries. Messages go through a grid in this process, with --servers through a SuperLink and two
SuperNodes over loopback, which takes longer. Coins and canaries are drawn anew each time."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from attacks.command_line import CommandParser
from privdd.auditing.pipeline import audit_experiment
from privdd.canary.__main__ import main as canary
from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.cli.run import prepare_run_folder
from privdd.core.types import Records, Shard
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Plan
from privdd.integrations.flower import client_app, run_on_grid
from privdd.integrations.flower_app import load_experiment
from privdd.integrations.flower_recorder import privdd_tap
from privdd.models.build import build
from privdd.privacy.ledger import Ledger
from privdd.runtime.files import read_json
from privdd.runtime.run_folder import RunFolder
from tests.system import flower_loopback

SETTINGS = [
    "preset=default",
    "data=fashion_mnist",
    "data.limit=4000",
    "data.test_limit=2000",
    "partition=iid",
    "partition.clients=2",
    "model=mlp",
    "algo=fedavg",
    "algo.rounds=20",
    "algo.lr=3",
    "algo.momentum=0",
    "algo.weight_decay=0",
    "privacy=dpsgd",
    "privacy.sampling_probability=1",
    "privacy.expected_batch=2000",
    "privacy.noise_multiplier=1.4",
    "privacy.clip_norm=1",
    "attack=[]",
    "algo.local_epochs=1",
    "audit.worlds=2",
    "audit.federations=0",
]
SITE = "hospital"
LIMIT = 1800  # seconds for a federation over servers
APP = """
import os
from pathlib import Path
from benchmarks.sealed_canaries import with_canaries
from privdd.integrations.flower import client_app
from privdd.integrations.flower_app import load_experiment, server
from privdd.integrations.flower_recorder import privdd_tap

PLACE, VICTIM = Path(os.environ["SEALED_PLACE"]), int(os.environ["SEALED_VICTIM"])


def mine(context):
    experiment = load_experiment(str(context.run_config["config"]))[1]
    shard = experiment.shards[int(context.node_config["partition-id"])]
    if shard.client == VICTIM:
        shard = with_canaries(shard, PLACE / "secrets" / "site-hospital.npz")
    return experiment.plan, experiment.new_ledger(), shard


client = client_app(mine, simulation=True, mods=[privdd_tap(PLACE / "run")])
__all__ = ["client", "server"]
"""


@dataclass(frozen=True)
class Compared:
    """Of one seed: what is stated, both bounds, accuracy with and without sealed canaries
    (0..1)."""

    stated: float
    simulated: float
    sealed: float
    accuracy: float
    plain: float

    @property
    def cost(self) -> float:
        """Points of accuracy that the canaries cost."""
        return 100 * (self.plain - self.accuracy)


class Loop:
    """A grid in this process; node ids are 100 + client."""

    def __init__(
        self, experiment: Experiment, shards: Sequence[Shard], mods: Sequence[Any] = ()
    ) -> None:
        def own(context: Context) -> tuple[Plan, Ledger, Shard]:
            return (
                experiment.plan,
                experiment.new_ledger(),
                shards[int(context.node_config["partition-id"])],
            )

        self.contexts = {
            100 + k: Context(1, 100 + k, {"partition-id": k}, RecordDict(), {})
            for k in range(len(shards))
        }
        self.app = client_app(own, simulation=True, mods=mods)
        TaskIdentity.run_id = 1
        TaskIdentity.node_id = 0
        TaskIdentity.task_id = 1

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        replies = []
        for message in messages:
            replies.append(self.app(message, self.contexts[message.metadata.dst_node_id]))
            replies[-1].metadata._src_node_id = message.metadata.dst_node_id
        return replies

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)


def with_canaries(shard: Shard, file: Path) -> Shard:
    """The site's own records and after them those of its sealed file."""
    held = np.load(file, allow_pickle=False)
    ids = torch.from_numpy(held["id"]) + int(shard.train.ids.max()) + 1
    more = Records(
        torch.from_numpy(held["x"]).to(shard.train.x),
        torch.from_numpy(held["y"]).to(shard.train.y),
        ids,
    )
    return shard.with_train(Records.concat([shard.train, more]))


def network(folder: str) -> torch.nn.Module:
    """The run's network, for ``model=``; its outputs are logits."""
    experiment = load_experiment(folder)[1]
    problem = experiment.plan.problem
    return build(experiment.plan.method.model, problem.shape, problem.classes)  # type: ignore[attr-defined]


def compared(
    place: Path, seed: int, canaries: int, servers: bool, overrides: Sequence[str]
) -> Compared:
    """One seed, in the folder ``place``."""
    config = compose_config(
        "audit", [*SETTINGS, *overrides, f"seed={seed}", f"audit.canaries={canaries}"]
    )
    experiment = build_experiment(config)
    audited = audit_experiment(experiment, {}, RunFolder(place / "simulated"))
    (bound,) = [
        f.measures.epsilon_shown for f in audited.findings if f.attack == "one_run_canaries"
    ]
    stated = audited.finished_run.progress.ledger.epsilon()
    shards = list(experiment.shards)
    victim = experiment.plan.victim
    problem = experiment.plan.problem
    plain = run_on_grid(experiment, Loop(experiment, shards), RunFolder(place / "plain")).accuracy[
        -1
    ]  # type: ignore[arg-type]
    sealed = place / "sealed"
    run = place / "run"
    folder = prepare_run_folder(place / "config", config)
    issue = [
        f"sealed={sealed}",
        f"secrets={place / 'secrets'}",
        f"sites={SITE}",
        f"count={canaries}",
        f"shape={','.join(map(str, problem.shape))}",
    ]
    said(
        [
            "issue",
            *issue,
            f"classes={problem.classes}",
            f"stated={stated}",
            f"delta={experiment.privacy.delta}",
        ]
    )
    if servers:
        accuracy = deployed(place, victim)
    else:
        shards[victim] = with_canaries(shards[victim], place / "secrets" / f"site-{SITE}.npz")
        found = run_on_grid(
            experiment, Loop(experiment, shards, [privdd_tap(run)]), RunFolder(place / "flower")
        )  # type: ignore[arg-type]
        accuracy = found.accuracy[-1]
    model = [
        "model=benchmarks.sealed_canaries:network",
        f"args.folder={folder.path}",
        f"clip={config.privacy.clip_norm}",
    ]
    own = experiment.shards[victim].train
    np.savez(place / "known.npz", x=own.x.numpy(), y=own.y.numpy())
    said(
        [
            "open",
            f"sealed={sealed}",
            f"secret={place / 'secrets' / 'secret.json'}",
            f"updates={run}",
            f"client.{SITE}={victim}",
            f"known.{SITE}={place / 'known.npz'}",
            *model,
        ]
    )
    return Compared(
        stated, float(bound), float(read_json(sealed / "opened.json")["bound"]), accuracy, plain
    )


def said(argv: Sequence[str]) -> str:
    """What the command prints. Raises RuntimeError for an error."""
    out = StringIO()
    with redirect_stdout(out):
        status = canary(argv)
    if status == 1:
        raise RuntimeError(f"{argv[0]} failed")
    return out.getvalue()


def deployed(place: Path, victim: int) -> float:
    """The federation on a SuperLink and two SuperNodes over loopback -> its accuracy."""
    os.environ |= {"SEALED_PLACE": str(place), "SEALED_VICTIM": str(victim)}
    seconds = flower_loopback.deployed(place, LIMIT, APP)
    print(f"servers over loopback: {seconds:.0f} s")
    return float(
        json.loads((place / "deployed" / "state" / "checkpoint.json").read_text())["accuracy"][-1]
    )


def main() -> None:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--canaries", type=int, default=200)
    parser.add_argument("--servers", action="store_true")
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| seed | stated | simulated audit | sealed canaries | ratio | accuracy without "
        "| with | cost in points |\n|" + "---|" * 8
    )
    rows = []
    for seed in range(given.first, given.first + given.seeds):
        with tempfile.TemporaryDirectory() as name:
            rows.append(
                row := compared(Path(name), seed, given.canaries, given.servers, given.overrides)
            )
        ratio = row.sealed / row.simulated if row.simulated else float("nan")
        figures = (
            f"{row.simulated:.2f} | {row.sealed:.2f} | {ratio:.2f} | {row.plain:.3f} | "
            f"{row.accuracy:.3f} | {row.cost:+.2f}"
        )
        print(f"| {seed} | {row.stated:.1f} | {figures} |", flush=True)
    mean = [
        float(np.mean([getattr(row, key) for row in rows]))
        for key in ("simulated", "sealed", "cost")
    ]
    print(
        f"\nmean: simulated {mean[0]:.2f}, sealed {mean[1]:.2f}, ratio "
        f"{mean[1] / mean[0]:.2f}, cost {mean[2]:+.2f} points"
    )


if __name__ == "__main__":
    main()
