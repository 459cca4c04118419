"""Flower's own SecAgg+ hands its server the sum that ``trust=secagg`` says a server is handed, and
nothing else.

Bell et al. (CCS 2020) as Flower ships it: its mod in every client, its workflow at the server,
keys, shares, masks and quantisation included. A grid in this process passes the messages on.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import bytes_to_ndarray, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

from privdd.core.types import Received
from privdd.federated.aggregation import SUM_CLIENT
from privdd.federated.simulation import (
    ClientTask,
    Plan,
    Progress,
    client_step,
    run_round,
    start_training,
)
from privdd.runtime.engine import Engine
from tests.federations import tiny
from tests.integrations.plain_grid import PlainGrid

torch.set_num_threads(1)
STEPS = 2**22  # Flower's default: as many values between the ends of the range
CASES = {
    "a sum": ("dp_head_random", "trust=secagg", "partition.clients=5"),
    "a mean": ("fedavg", "privacy=client", "trust=secagg", "model=mlp", "partition.clients=5"),
}
DROPPING = ("trust.least=3", "trust.dropout=.3", "algo.rounds=8")
Sent = Mapping[int, Received]  # by client


class SumGrid(PlainGrid):
    """Clients that send what ``uploads`` holds for them, one list of arrays each; those ``gone``
    share their keys and
    are not heard of again. log: every masked vector that reached the server, by client."""

    run = property(lambda self: SimpleNamespace(run_id=1))  # type: ignore[assignment]

    def __init__(self, uploads: Mapping[int, list[np.ndarray]], gone: Iterable[int] = ()) -> None:
        def client(context: Context) -> Any:
            own = uploads[int(context.node_config["partition-id"])]

            class Uploading(NumPyClient):
                def fit(self, parameters: Any, config: Any) -> tuple[Any, int, dict[str, Any]]:
                    return own, 1, {}

            return Uploading().to_client()

        super().__init__(
            ClientApp(client_fn=client, mods=[secaggplus_mod]), range(1, 1 + len(uploads))
        )
        self.gone = {1 + k for k in gone}
        self.log = dict[int, list[np.ndarray]]()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            stage = message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
            if node in self.gone and stage in (Stage.COLLECT_MASKED_VECTORS, Stage.UNMASK):
                replies.append(Message(Error(code=0, reason="gone"), reply_to=message))
                replies[-1].metadata._src_node_id = node
                continue
            replies.extend(super().send_and_receive([copy.deepcopy(message)]))
            if stage == Stage.COLLECT_MASKED_VECTORS:
                content = replies[-1].content
                assert not any(content.array_records.values())  # no upload beside the masked one
                masked = cast(
                    list[bytes], content.config_records[RECORD_KEY_CONFIGS][Key.MASKED_PARAMETERS]
                )
                # first: the weight
                self.log[node - 1] = [bytes_to_ndarray(one) for one in masked][1:]
        return replies


class Keeping(FedAvg):
    """FedAvg that keeps the mean it was given."""

    mean: list[np.ndarray]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        assert parameters is not None
        self.mean = parameters_to_ndarrays(parameters)
        return parameters, metrics


def arrays(received: Received) -> list[np.ndarray]:
    """What one client sends, in the order of its names."""
    return [t.double().numpy() for value in received.values.values() for t in value.values()]


def aggregated(grid: SumGrid, reach: float, threshold: int) -> list[np.ndarray]:
    """The sum that Flower's server holds after one round of SecAgg+; reach: no number is further
    from 0."""
    nodes = len(grid.contexts)
    strategy = Keeping(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=nodes,
        min_available_clients=nodes,
        initial_parameters=ndarrays_to_parameters([np.zeros(1)]),
    )
    context = LegacyContext(
        Context(1, 0, {}, RecordDict(), {}), ServerConfig(num_rounds=1), strategy
    )
    fit = SecAggPlusWorkflow(
        nodes, threshold, max_weight=1.0, clipping_range=reach, quantization_range=STEPS
    )
    DefaultWorkflow(fit_workflow=fit)(grid, context)
    return [len(grid.log) * one for one in strategy.mean]


def round_of(plan: Plan, at: Progress, shards: Sequence[Any]) -> tuple[Sent, Received, Progress]:
    """(every client's upload, what the ideal functionality hands the server, the state after
    it)."""
    sent = plan.method.broadcast(at.server)
    alone = {
        k: client_step(ClientTask(plan, at.round, k, sent, {}, shard))[0]
        for k, shard in enumerate(shards)
    }
    moved, (total,), _ = run_round(plan, at, shards, Engine())
    return alone, total, moved


def dropping(plan: Plan) -> int:
    """The first round that somebody drops out of and that has a sum all the same."""
    return next(
        t for t in range(plan.method.rounds) if 0 < len(plan.participants(t)) < plan.problem.clients
    )


@pytest.mark.parametrize(("case", "more"), [("a sum", ()), ("a mean", ()), ("a sum", DROPPING)])
def test_flowers_protocol_gives_the_sum_of_the_ideal_functionality(
    case: str, more: tuple[str, ...]
) -> None:
    experiment = tiny(*CASES[case], *more)
    plan = experiment.plan
    begun = start_training(plan, experiment.new_ledger())
    begun = replace(begun, round=dropping(plan)) if more else begun
    stay = plan.participants(begun.round)
    uploads, ideal, moved = round_of(plan, begun, experiment.shards)
    reach = float(
        2
        ** math.ceil(math.log2(max(abs(a).max() for one in uploads.values() for a in arrays(one))))
    )
    grid = SumGrid({k: arrays(one) for k, one in uploads.items()}, gone=set(uploads) - set(stay))
    found = aggregated(grid, reach, threshold=3)
    over = len(stay) if plan.method.aggregation_kind(plan.mechanisms) == "mean" else 1
    quantum = 2 * reach / STEPS  # each client rounds every number up or down
    for ours, theirs in zip(arrays(ideal), found, strict=True):
        assert np.allclose(theirs / over, ours, rtol=1e-6, atol=len(stay) * quantum / over)
    _unseen(grid, uploads, stay, reach)
    if over == 1:  # and it moves the model where the ideal functionality's sum moves it
        told = {
            n: dict(zip(v, (torch.from_numpy(found.pop(0)).float() for _ in v)))
            for n, v in ideal.values.items()
        }
        server = plan.method.aggregate(
            begun.server, [Received(SUM_CLIENT, begun.round, told)], plan.keys
        )
        assert torch.allclose(
            server["model/head.weight"], moved.server["model/head.weight"], atol=1e-3
        )


def _unseen(grid: SumGrid, uploads: Sent, stay: Sequence[int], reach: float) -> None:
    """Single masked vectors lie all over the modulus, and agree with the upload in hardly any
    number."""
    assert sorted(grid.log) == list(stay)
    for client, masked in grid.log.items():
        seen = np.concatenate([one.ravel() for one in masked]).astype(np.float64)
        own = np.concatenate([one.ravel() for one in arrays(uploads[client])])
        assert np.mean(abs(seen - (own + reach) * STEPS / (2 * reach)) < 2) < 0.01
        assert (
            abs(seen.mean() / 2**32 - 0.5) < 5 * (1 / 12 / len(seen)) ** 0.5 and seen.max() > 2**31
        )


def test_what_is_left_is_not_revealed_where_too_few_stay() -> None:
    """Flower halts below its threshold, as the ideal functionality has no sum of fewer than
    ``trust.least``."""
    own = {k: [np.full((3, 2), float(k))] for k in range(5)}
    grid = SumGrid(own, gone=(0, 1, 2))
    with pytest.raises(AttributeError, match="mean"):
        aggregated(grid, 8.0, threshold=3)
    assert np.allclose(
        aggregated(SumGrid(own, gone=(0, 1)), 8.0, threshold=3), 9.0, atol=3 * 16 / STEPS
    )
