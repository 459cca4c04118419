"""Methods on virtual data: FedLGD's images, another method's training."""

from __future__ import annotations

import pytest
import torch

from privdd.core.types import Shard, unpack
from privdd.methods.fedprox import FedProx
from privdd.methods.virtual_data import VirtualData
from tests.federations import equal, tiny, trained

INNER = ["fedavg", "fedprox", "fednova", "scaffold", "moon", "fedproto", "vhl"]


def first_round(algo: str, *more: str):
    experiment = tiny(algo, *more)
    plan = experiment.plan
    shard = experiment.shards[0]
    sent = plan.method.broadcast(plan.method.init(plan.problem, plan.keys.fold("public", "init")))
    return plan, sent, shard, plan.method.local(sent, {}, shard, plan.client_context(0, 0))


def test_the_images_are_those_of_fedlgds_first_stage():
    """The paper's baselines train on "local virtual data from our initialization stage": equal to
    the bit."""
    ours = first_round("virtual_data")[3][1]
    theirs = first_round("fedlgd", "algo.tau=0")[3][1]
    assert equal({n: ours[n] for n in theirs}, theirs) and ours["images/x"].shape[1] == 10


@pytest.mark.nightly(but=["fedproto"])
@pytest.mark.parametrize("inner", INNER)
def test_every_baseline_trains_on_the_images_alone(inner):
    """What is sent is the inner method's upload on a client that holds the images, in both
    rounds."""
    plan, sent, shard, (upload, memory) = first_round("virtual_data", f"algo/inner={inner}")
    method = plan.method
    assert (
        isinstance(method, VirtualData)
        and method.rounds == 2
        and method.uploads == method.inner.uploads
    )
    x = memory["images/x"]
    y = memory["images/label"]
    assert set(y.tolist()) == set(shard.train.y.tolist())
    own = shard.with_train(
        type(shard.train)(x.flatten(0, 1), y.repeat_interleave(10), torch.arange(10 * len(y)))
    )
    alone, inner_memory = method.inner.local(sent, {}, own, plan.client_context(0, 0))
    assert equal({n: a.value for n, a in upload.items()}, {n: a.value for n, a in alone.items()})
    assert equal(unpack("inner", memory), inner_memory)
    again, later = method.local(sent, memory, shard, plan.client_context(1, 0))
    empty = Shard(
        shard.client, shard.train.take(range(0)), shard.test, shard.heldout, shard.classes
    )
    # the records are not tested again
    blind, _ = method.local(sent, memory, empty, plan.client_context(1, 0))
    assert equal({n: a.value for n, a in again.items()}, {n: a.value for n, a in blind.items()})
    assert torch.equal(later["images/x"], x)


@pytest.mark.parametrize("inner", ["fedavg", "fedproto"])
def test_whole_federations_end_finite_and_predict(inner):
    progress = trained("virtual_data", f"algo/inner={inner}")[0]
    experiment = tiny("virtual_data", f"algo/inner={inner}")
    logits = experiment.plan.method.predict(
        progress.server, progress.memories[0], experiment.test_records.x
    )
    assert logits.shape == (len(experiment.test_records), 10) and all(
        t.isfinite().all() for t in progress.server.values()
    )


def test_an_auditor_sees_the_images_in_place_of_the_records():
    plan, _, _, (_, memory) = first_round("virtual_data", "algo/inner=fedprox", "algo.inner.mu=0.3")
    assert isinstance(plan.method.inner, FedProx) and plan.method.inner.mu == 0.3
    seen = plan.method.surrogate_images(memory, plan.problem)
    assert (
        torch.equal(seen, memory["images/x"].flatten(0, 1))
        and plan.method.surrogate_images({}, plan.problem) is None
    )
    assert plan.method.upload_uses_memory(1, memory) and plan.method.settings(50)["momentum"] == 0.0


def test_batch_norm_is_refused():
    with pytest.raises(ValueError, match="batch"):
        tiny("virtual_data", "model=convnet", "model.norm=batch")
