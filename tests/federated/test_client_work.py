"""Client work is moved once, and receives a client's training data alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from privdd.core.types import ClientData, Problem, Records, Shard
from privdd.federated.client_work import place_client_work

CONTEXT: Any = SimpleNamespace(problem=Problem((1, 2, 2), 2, 1))


class Trainer:
    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        return shard, memory

    def local_batched(self, broadcast: Any, memories: Any, shards: Any, contexts: Any) -> Any:
        return [
            self.local(broadcast, memory, shard, ctx)
            for memory, shard, ctx in zip(memories, shards, contexts)
        ]

    def predict(self, server: Any, memory: Any, x: Any) -> Any:
        return x


def make_shard() -> Shard:
    records = Records(torch.zeros(3, 1, 2, 2), torch.zeros(3, dtype=torch.long), torch.arange(3))
    return Shard(0, records, records, records, 2)


def test_work_receives_the_data_that_a_client_trains_on() -> None:
    place_client_work(Trainer)
    predict = Trainer.predict
    local = Trainer.local
    shard = make_shard()
    received, _ = Trainer().local({}, {}, shard, CONTEXT)
    assert type(received) is ClientData
    ((received, _),) = Trainer().local_batched({}, [{}], [shard], [CONTEXT])
    assert type(received) is ClientData
    place_client_work(Trainer)
    assert Trainer.local is local and Trainer.predict is predict
