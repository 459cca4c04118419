"""Every method learns digits, alone and with a shared set beside the private one."""

import pytest
import torch

from privdd.core.rng import Keys
from privdd.core.types import Problem, unpack
from privdd.federated.channel import ClientContext
from tests.methods.toy import METHODS, digits, federate, make, shards

SIZES = (300, 350, 400)
OPTIONS = {
    "fedadam": {"server_lr": 0.03},
    "vhl": {"per_class": 20},
    "scaffold": {"lr": 0.3},  # plain SGD: as large a step as momentum gives the others
}


@pytest.mark.nightly(but=["fednova", "fedadam"])
@pytest.mark.parametrize("name", METHODS)
def test_learns_digits(name):
    method = make(METHODS[name], **OPTIONS.get(name, {}))
    clients = shards(SIZES)
    server, memories = federate(method, clients, rounds=4)
    memory = memories[0] if method.accuracy_kind == "personal" else None
    test = clients[0].test
    assert (
        method.predict(server, memory, test.x).argmax(1) == test.y
    ).float().mean() > 0.6  # chance: 0.1


@pytest.mark.nightly(but=["fednova", "fedadam"])
@pytest.mark.parametrize("name", METHODS)
def test_shared_features_enter_local_training(name):
    """A client without classes 5-9 learns them from the shared set in its broadcast."""
    method = make(METHODS[name], local_epochs=12.0, **OPTIONS.get(name, {}))
    shard = shards((300,))[0]
    shard = shard.with_train(shard.train.take(shard.train.y < 5))
    others = digits().take(range(300, 700))
    others = others.take(others.y >= 5)
    problem = Problem((1, 8, 8), 10, 1)
    sent = method.broadcast(method.init(problem, Keys(0)))
    shared = {"features": {"x": others.x}, "labels": {"y": others.y}}

    def accuracy_on_others(broadcast):
        upload, memory = method.local(
            broadcast, {}, shard, ClientContext(0, 0, Keys(0).fold("client"), problem)
        )
        state = upload["update"].value if "update" in upload else unpack("personal", memory)
        logits = torch.func.functional_call(method.classifier(problem), state, (shard.test.x,))
        hard = shard.test.y >= 5
        return (logits.argmax(1) == shard.test.y)[hard].float().mean()

    assert accuracy_on_others(sent) < 0.05
    assert accuracy_on_others({**sent, **shared}) > 0.5
