"""Training on rows of a table against training on images of the same numbers: a perceptron reads
both alike, so that what is sent has to be the same bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from privdd.core.rng import Keys
from privdd.core.types import Problem, Shard
from privdd.federated.channel import ClientContext
from privdd.methods.fedavg import FedAvg
from privdd.methods.fedmd import draw_public_images
from privdd.methods.fedproto import FedProto
from privdd.methods.moon import Moon
from privdd.methods.scaffold import Scaffold
from privdd.models import ModelSpec
from tests.methods.toy import make, shards

PERCEPTRON = ModelSpec("mlp", width=16)


def as_rows(shard: Shard) -> Shard:
    """The client, its images (n, 1, 8, 8) as rows (n, 64)."""
    parts = {
        name: replace(getattr(shard, name), x=getattr(shard, name).x.flatten(1))
        for name in ("train", "test", "heldout")
    }
    return replace(shard, **parts)


def sent_in_first_round(method: Any, clients: list[Shard], together: bool) -> list[Any]:
    """The tensors that each client sends."""
    problem = Problem(clients[0].shape, 10, len(clients))
    broadcast = method.broadcast(method.init(problem, Keys(0)))
    contexts = [
        ClientContext(0, one.client, Keys(3).fold("client", one.client), problem) for one in clients
    ]
    if together:
        work = method.local_batched(broadcast, [{}] * len(clients), clients, contexts)
    else:
        work = [method.local(broadcast, {}, *pair) for pair in zip(clients, contexts)]
    return [{name: dict(part.value) for name, part in upload.items()} for upload, _ in work]


@pytest.mark.parametrize(
    ("kind", "together"),
    [
        (FedAvg, False),
        (FedAvg, True),
        (Scaffold, False),
        (Scaffold, True),
        (Moon, False),
        (FedProto, False),
    ],
)
def test_rows_are_trained_on_as_images_of_the_same_numbers_are(kind: type, together: bool) -> None:
    settings = {"momentum": 0.0} if kind is Scaffold else {}
    method = make(kind, model=PERCEPTRON, **settings)
    clients = shards([40, 31])
    images = sent_in_first_round(method, clients, together)
    rows = sent_in_first_round(method, [as_rows(one) for one in clients], together)
    for one, other in zip(images, rows):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert all(torch.equal(value[key], other[name][key]) for key in value)


def test_public_rows_lie_in_their_ranges() -> None:
    rows = draw_public_images(50, (7,), 0)
    assert rows.shape == (50, 7) and float(rows.min()) >= 0 and float(rows.max()) <= 1
    assert float(rows.std(0).min()) > 0.1  # no two alike
