"""A tiny federation for the tests of methods: scikit-learn's digits, a small ConvNet, rounds
through the channel."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from privdd.core.rng import Keys
from privdd.core.types import Problem, Received, Records, Shard, State
from privdd.federated.channel import Channel, ClientContext
from privdd.methods.fedadam import FedAdam
from privdd.methods.fedavg import FedAvg
from privdd.methods.fedavgm import FedAvgM
from privdd.methods.fedgen import FedGen
from privdd.methods.fedmd import FedMD
from privdd.methods.fednova import FedNova
from privdd.methods.fedproto import FedProto
from privdd.methods.fedprox import FedProx
from privdd.methods.moon import Moon
from privdd.methods.scaffold import Scaffold
from privdd.methods.vhl import VHL
from privdd.models import ModelSpec

torch.set_num_threads(1)
SPEC = ModelSpec(name="convnet", width=8, depth=2)
BATCH_NORM = ModelSpec(name="convnet", width=8, depth=2, norm="batch")
METHODS = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fednova": FedNova,
    "scaffold": Scaffold,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "moon": Moon,
    "fedproto": FedProto,
    "fedmd": FedMD,
    "vhl": VHL,
    "fedgen": FedGen,
}


def make(kind: type, **more: object):
    """A method of class ``kind`` at toy size."""
    plain = {"model": SPEC, "rounds": 2, "lr": 0.05, "batch_size": 32, "local_epochs": 1.0}
    return kind(**{**plain, **more})


@lru_cache
def digits() -> Records:
    """1,797 digits (n, 1, 8, 8) in [0, 1], shuffled once."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=Keys(7).torch())
    x = torch.tensor(data.images / 16, dtype=torch.float32)[:, None][order]
    return Records(x, torch.tensor(data.target, dtype=torch.int64)[order], torch.arange(len(order)))


def shards(sizes: Sequence[int]) -> list[Shard]:
    """Consecutive slices of the digits; the last 400 are everyone's test set."""
    test = digits().take(range(1397, 1797))
    at = 0
    out = []
    for client, size in enumerate(sizes):
        out.append(Shard(client, digits().take(range(at, at + size)), test, test, 10))
        at += size
    return out


def receive(
    method,
    server: State,
    memories: dict[int, State],
    clients: Sequence[Shard],
    t: int,
    seed: int,
    **more,
):
    """Every client's turn of round t, in the given order; memories are updated."""
    problem = Problem(clients[0].shape, 10, len(clients))
    inbox: list[Received] = []
    for shard in clients:
        keys = Keys(seed).fold("round", t, "client", shard.client)
        ctx = ClientContext(t, shard.client, keys, problem, queries=method.queries, **more)
        sent = method.broadcast(server)
        upload, memories[shard.client] = method.local(
            sent, memories.get(shard.client, {}), shard, ctx
        )
        inbox.append(Channel(method.uploads).send(upload, ctx)[0])
    return inbox


def federate(
    method, clients: Sequence[Shard], rounds: int = 2, seed: int = 0, double: bool = False
):
    """(server state, memories) after some rounds with every client."""
    problem = Problem(clients[0].shape, 10, len(clients))
    server = method.init(problem, Keys(seed).fold("public", "init"))
    server = {n: v.double() for n, v in server.items()} if double else server
    memories: dict[int, State] = {}
    for t in range(rounds):
        server = method.aggregate(
            server, receive(method, server, memories, clients, t, seed), Keys(seed)
        )
    return server, memories


def model_of(server: State) -> Tensor:
    """The global model as one vector."""
    return torch.cat([v.reshape(-1) for n, v in sorted(server.items()) if n.startswith("model/")])
