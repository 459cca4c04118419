"""DP-SGD inside the averaging methods: its limit without clipping and noise, and what leaves the
client."""

import pytest
import torch

from privdd.core.rng import Keys
from privdd.core.types import Problem
from privdd.federated.channel import Channel, ClientContext
from privdd.methods.fedavg import FedAvg
from privdd.privacy.mechanisms import ClippedSum
from tests.methods.toy import BATCH_NORM, METHODS, digits, make, shards

# Methods that average updates; FedMD's networks do not travel, only their logits do.
PRIVATE = [
    name
    for name, kind in METHODS.items()
    if "dpsgd" in kind.queries and "update" in make(kind).uploads
]
PROBLEM = Problem((1, 8, 8), 10, 1)


def mechanism(noise=1.0, clip=1.0, q=0.5, normaliser=20.0):
    return {"dpsgd": ClippedSum(noise, clip, q, normaliser)}


def context(method, mechanisms, **more):
    keys = Keys(0).fold("round", 0, "client", 0)
    return ClientContext(0, 0, keys, PROBLEM, mechanisms, method.queries, **more)


def full_batch(kind, **more):
    return make(kind, batch_size=10**6, local_epochs=4.0, **more)


def turn(method, ctx, shard, **shared):
    sent = {**method.broadcast(method.init(PROBLEM, Keys(0))), **shared}
    return method.local(sent, {}, shard, ctx)


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("shared", [False, True])
def test_without_clipping_and_noise_it_is_full_batch_training(name, shared):
    shard = shards((30,))[0]
    method = full_batch(METHODS[name], weight_decay=1e-3)
    other = digits().take(range(100, 130))
    more = {"features": {"x": other.x}, "labels": {"y": other.y}} if shared else {}
    plain, _ = turn(method, context(method, {}), shard, **more)
    private, _ = turn(method, context(method, mechanism(1e-7, 100.0, 1.0, 30.0)), shard, **more)
    for key, value in plain["update"].value.items():
        torch.testing.assert_close(private["update"].value[key], value, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("name", PRIVATE)
def test_uploads_depend_on_the_data_through_the_mechanism_alone(name):
    """Another client's data under the same mechanism outputs gives the same bits."""
    method = make(METHODS[name])
    first = context(method, mechanism())
    one, kept = turn(method, first, shards((80,))[0])
    assert "count" not in one and all(artifact.private for artifact in one.values())
    other = shards((80, 55))[1]
    replay = context(method, mechanism(), transcript=list(first.outputs))
    two, kept_two = turn(method, replay, other)
    fresh, _ = turn(method, context(method, mechanism()), other)
    assert one.keys() == two.keys() and kept.keys() == kept_two.keys()
    for key, artifact in one.items():
        assert all(torch.equal(artifact.value[n], two[key].value[n]) for n in artifact.value)
    assert any(
        not torch.equal(one["update"].value[n], fresh["update"].value[n])
        for n in one["update"].value
    )


def test_ledger_counts_every_step_and_spends_foretells_it():
    method = make(FedAvg, local_epochs=3.0)
    ctx = context(method, mechanism(q=0.25))
    upload, _ = turn(method, ctx, shards((50,))[0])
    _, rows = Channel(method.uploads).send(upload, ctx)
    assert [(r.name, r.count) for r in rows if r.name == "dpsgd"] == [("dpsgd", 12)]
    assert method.releases_per_round(0, mechanism(q=0.25)) == {"dpsgd": 12}
    assert make(FedAvg).client_private().releases_per_round(0, {"update": object()}) == {
        "update": 1
    }


def test_batch_norm_is_refused():
    method = make(FedAvg, model=BATCH_NORM)
    with pytest.raises(ValueError, match=r"norm=batch"):
        turn(method, context(method, mechanism()), shards((50,))[0])


def test_client_privacy_sends_changes_and_no_count():
    method = make(FedAvg).client_private()
    upload, _ = turn(method, context(method, {}), shards((50,))[0])
    plain, _ = turn(make(FedAvg), context(method, {}), shards((50,))[0])
    start = method.broadcast(method.init(PROBLEM, Keys(0)))["model"]
    assert upload.keys() == {"update"}
    for name, change in upload["update"].value.items():
        torch.testing.assert_close(start[name] + change, plain["update"].value[name])
