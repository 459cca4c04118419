"""What local work is handed of a client, and what the server is handed of the uploads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from privdd.core.types import ClientData, NotHandedOver, Received
from privdd.federated.aggregation import average, sum_uploads
from privdd.federated.simulation import WatchedValues
from privdd.methods.fedavg import FedAvg
from tests.methods import toy


@dataclass(frozen=True, kw_only=True)
class Looking(FedAvg):
    """Notes what ``local`` is handed, and picks something by the test records if it is told to."""

    by_test: bool = False

    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        assert type(shard) is ClientData and {*vars(shard)} == {
            "client",
            "train",
            "classes",
            "nulls",
        }
        assert not hasattr(shard, "test") and not hasattr(shard, "heldout")
        if self.by_test:
            ctx = ctx if len(shard.test) else None
        return super().local(broadcast, memory, shard, ctx)


def test_local_work_is_handed_training_records_alone() -> None:
    clients = toy.shards([20, 20])
    toy.federate(toy.make(Looking), clients, rounds=1)
    with pytest.raises(
        NotHandedOver, match=r"shard\.test: local gets client, train, nulls and classes alone"
    ):
        toy.federate(toy.make(Looking, by_test=True), clients, rounds=1)
    assert issubclass(NotHandedOver, ValueError)  # which a command tells in one line


def received(client: int, **tensors: float) -> Received:
    return Received(
        client, 2, {"update": {name: torch.tensor([value]) for name, value in tensors.items()}}
    )


@pytest.mark.parametrize(
    "add", [lambda inbox: average(inbox, "update"), lambda inbox: sum_uploads(inbox, "sum")]
)
@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"w": 1.0}, "lacks 'b'"),
        ({"w": 1.0, "b": 1.0, "c": 1.0}, "also has 'c'"),
        ({"w": 1.0, "c": 1.0}, "lacks 'b' and also has 'c'"),
    ],
)
def test_an_upload_with_a_tensor_missing_or_too_many_is_named(
    add: Any, other: dict[str, float], says: str
) -> None:
    assert add([received(0, w=1.0, b=2.0), received(1, w=3.0, b=4.0)])
    with pytest.raises(ValueError, match=f"round 2, client 1: 'update' {says}"):
        add([received(0, w=1.0, b=2.0), received(1, **other)])


def test_the_server_is_watched_for_the_messages_that_it_reads() -> None:
    read = set[str]()
    values = WatchedValues({"update": {}, "count": {}, "means": {}}, read)
    assert (
        "nothing" not in values and list(values) == ["update", "count", "means"] and read == set()
    )
    assert values["update"] == {} and read == {"update"}
    assert "count" in values and read == {"update", "count"}
    assert dict(values) and read == {"update", "count", "means"}
