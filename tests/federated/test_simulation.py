"""The order in which clients work or report changes nothing, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from privdd.federated.simulation import run_round, start_training
from privdd.runtime.engine import Engine
from tests.federations import ALGOS, equal, tiny, trained


class Backwards(Engine):
    """Works on the last client first and reports in the order asked."""

    def map(self, fn: Callable, items: Iterable) -> Iterator:
        done = [fn(item) for item in reversed(list(items))]
        yield from reversed(done)


@pytest.mark.parametrize("algo", ALGOS)
def test_clients_working_backwards(algo):
    experiment, (expected, *_) = tiny(algo), trained(algo)
    progress = start_training(experiment.plan, experiment.new_ledger())
    while progress.round < experiment.plan.method.rounds:
        progress, _, _ = run_round(experiment.plan, progress, experiment.shards, Backwards())
    assert equal(progress.server, expected.server) and equal(progress.memories, expected.memories)
    assert progress.ledger.to_json() == expected.ledger.to_json()


@pytest.mark.parametrize("algo", ALGOS)
def test_aggregation_of_a_shuffled_inbox(algo):
    plan, (_, received, servers) = tiny(algo).plan, trained(algo)
    for t, server in enumerate(servers):
        inbox = [r for r in received if r.round == t]
        keys = plan.keys.fold("round", t, "server")
        assert equal(plan.method.aggregate(server, inbox, keys), plan.method.aggregate(server, inbox[::-1], keys))
        assert len(inbox) == 3
