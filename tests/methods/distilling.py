"""What the tests of the distilling methods share: toy settings, a client's context, the two
replays."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from privdd.core.rng import Keys
from privdd.core.types import Problem, Records, Shard, State, Tensors
from privdd.distillation.distribution_matching import MatchingSettings
from privdd.federated.channel import ClientContext
from privdd.federated.method import Method
from privdd.privacy.mechanism import Mechanism
from privdd.privacy.mechanisms import AggregateClip, ClippedSum
from privdd.training.server import ServerTraining
from tests.methods.toy import SPEC, shards

PROBLEM = Problem((1, 8, 8), 10, 3)
SOUND: Mapping[str, Mechanism] = {"embedding": ClippedSum(1.0, 2.0, 1.0, 12.0)}
COUNTED = {**SOUND, "class_counts": ClippedSum(1.0, 1.0)}
STEPWISE = {"synthetic_gradient": ClippedSum(1.0, 1.0, 0.5, 12.0)}
PRINTED = {"synthetic_gradient": AggregateClip(1.0, 1.0)}
__all__ = ["SPEC", "shards"]


def matching(iterations: int = 3, **more: object) -> MatchingSettings:
    return MatchingSettings(**{"iterations": iterations, "batch": 64, **more})  # type: ignore[arg-type]


def server(**more: object) -> ServerTraining:
    plain = {"epochs": 30, "batch_size": 64, "lr": 0.05, "momentum": 0.9}
    return ServerTraining(**{**plain, **more})  # type: ignore[arg-type]


def context(method: Method, round: int = 0, client: int = 0, **more: object) -> ClientContext:
    keys = Keys(0).fold("round", round, "client", client)
    return ClientContext(round, client, keys, PROBLEM, queries=method.queries, **more)  # type: ignore[arg-type]


def without(shard: Shard, count: int) -> Shard:
    """The same client with only its first records."""
    return shard.with_train(shard.train.take(torch.arange(count)))


def replayed_uploads_are_equal(
    method: Method, mechanisms: Mapping[str, Mechanism], rounds: int = 1
) -> list[Tensors]:
    """Run a client, then another client's data on the first one's recorded mechanism outputs;
    compare bits."""
    own, other = shards([90, 70])
    other = other.with_train(
        Records(1 - other.train.x, (other.train.y * 3 + 1) % 10, other.train.ids)
    )
    state = method.init(PROBLEM, Keys(0))
    sent = []
    memories: list[State] = [{}, {}]
    for t in range(rounds):
        ctx = context(method, t, mechanisms=mechanisms)
        upload, memories[0] = method.local(method.broadcast(state), memories[0], own, ctx)
        again = context(method, t, mechanisms=mechanisms, transcript=list(ctx.outputs))
        replay, memories[1] = method.local(method.broadcast(state), memories[1], other, again)
        assert upload.keys() == replay.keys() and all(a.private for a in upload.values())
        assert len(ctx.outputs) == len(again.outputs)
        for name, artifact in upload.items():
            for key, tensor in artifact.value.items():
                assert torch.equal(tensor, replay[name].value[key]), (t, name, key)
        sent.append({f"{n}/{k}": v for n, a in upload.items() for k, v in a.value.items()})
    return sent


def releases_per_class(
    method: Method, mechanisms: Mapping[str, Mechanism], round: int = 0
) -> dict[str, int]:
    """How often each query was asked for one class, from the ledger rows of one client and
    round."""
    ctx = context(method, round, mechanisms=mechanisms)
    method.local(method.broadcast(method.init(PROBLEM, Keys(0))), {}, shards([60])[0], ctx)
    found: dict[str, int] = {}
    for row in ctx.rows:
        if row.partition in (None, "label:3"):
            found[row.name] = found.get(row.name, 0) + row.count
    return found
