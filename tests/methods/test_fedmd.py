"""FedMD's consensus by its equations, and what a client sends and learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import trim_mean

from privdd.core.rng import Keys
from privdd.core.types import Problem, unpack
from privdd.federated.channel import ClientContext
from privdd.methods.fedmd import (
    FedMD,
    average_logits,
    draw_public_images,
    sharpened_average,
    trimmed_average,
)
from privdd.models import ModelSpec
from tests.methods.toy import federate, make, receive, shards

SENT = torch.randn(7, 5, 4, generator=torch.Generator().manual_seed(0)).double()
PROBLEM = Problem((1, 8, 8), 10, 2)


def softmaxes(logits: torch.Tensor) -> np.ndarray:
    return softmax(logits.numpy(), axis=-1)


def test_consensus_of_each_paper() -> None:
    np.testing.assert_allclose(average_logits(SENT), SENT.numpy().mean(0))
    sharpened = softmaxes(sharpened_average(SENT, 0.1))
    np.testing.assert_allclose(sharpened, softmax(softmaxes(SENT).mean(0) / 0.1, axis=-1))
    trimmed = trim_mean(softmaxes(SENT), 0.2, axis=0)
    expected = trimmed / trimmed.sum(1, keepdims=True)
    np.testing.assert_allclose(softmaxes(trimmed_average(SENT, 0.2)), expected)


def test_a_share_above_zero_leaves_out_at_least_one_of_three() -> None:
    """Else a robust mean of four clients would be their mean."""
    median = np.median(softmaxes(SENT[:3]), axis=0)
    expected = median / median.sum(1, keepdims=True)
    np.testing.assert_allclose(softmaxes(trimmed_average(SENT[:3], 0.2)), expected)
    assert torch.equal(trimmed_average(SENT[:2], 0.2), trimmed_average(SENT[:2], 0.0))


def test_a_liar_moves_the_mean_and_not_the_trimmed_mean() -> None:
    """One client of seven that is sure of the first class."""
    lying = SENT.clone()
    lying[0] = torch.tensor([1e3, 0, 0, 0])
    assert (average_logits(lying).argmax(1) == 0).all()
    assert not (trimmed_average(lying, 0.2).argmax(1) == 0).all()


def test_sharpening_lowers_the_entropy() -> None:
    def entropy(logits: torch.Tensor) -> float:
        return float(torch.distributions.Categorical(logits=logits).entropy().mean())

    colder, warmer = (entropy(sharpened_average(SENT, t)) for t in (0.1, 1.0))
    assert colder < 0.9 * warmer


def test_everybody_draws_the_same_images() -> None:
    images = draw_public_images(20, (3, 8, 8), 1)
    assert images.shape == (20, 3, 8, 8) and images.min() >= 0 and images.max() <= 1
    draw_public_images.cache_clear()
    assert torch.equal(images, draw_public_images(20, (3, 8, 8), 1))
    assert not torch.equal(images, draw_public_images(20, (3, 8, 8), 2))


@pytest.mark.parametrize("kind", ["mean", "era", "trim"])
def test_a_client_sends_its_own_networks_logits_and_digests_the_consensus(kind: str) -> None:
    method = make(FedMD, images=60, consensus=kind, digest_epochs=3.0)
    clients = shards((60, 90))
    server, memories = federate(method, clients, rounds=1)
    sent = receive(method, server, memories, clients, 1, 0)
    images = method.public_images(PROBLEM, 0)
    expected = method.predict(server, memories[0], images)
    torch.testing.assert_close(sent[0].values["logits"]["logits"], expected)

    target = server["consensus/logits"]
    untaught = {"consensus": {"logits": torch.zeros_like(target)}}

    def gap(broadcast: dict) -> float:
        """How far a client's network is from the consensus before its own training."""
        _, memory = make(FedMD, images=60, consensus=kind, lr=1e-9).local(
            broadcast, memories[0], clients[0], context()
        )
        logits = method.predict(server, memory, images)
        if kind == "mean":
            return float((logits - target).abs().mean())
        return float(torch.nn.functional.cross_entropy(logits, target.softmax(1)))

    assert gap(method.broadcast(server)) < gap(untaught)


def context() -> ClientContext:
    return ClientContext(1, 0, Keys(0).fold("round", 1, "client", 0), PROBLEM)


def test_before_the_first_consensus_a_client_trains_alone() -> None:
    method = make(FedMD, images=60)
    alone = make(FedMD, images=60, digest_epochs=0.0)
    clients = shards((60, 90))
    _, memories = federate(method, clients, rounds=1)
    _, others = federate(alone, clients, rounds=1)
    own, other = (unpack("personal", kept[0]) for kept in (memories, others))
    assert own and all(torch.equal(own[name], other[name]) for name in own)


def test_clients_take_the_networks_in_turn_and_learn_from_each_other() -> None:
    """Each sends and predicts with its own network, as if all had that one."""
    method = make(FedMD, images=60, networks=["mlp", "convnet"])
    clients = shards((60, 90, 50))
    server, memories = federate(method, clients, rounds=2)
    widths = [{name: t.shape for name, t in memories[k].items()} for k in range(3)]
    assert widths[0] == widths[2] != widths[1]
    images = method.public_images(PROBLEM, 0)
    sent = receive(method, server, memories, clients, 2, 0)
    for k in range(3):
        expected = method.predict(server, memories[k], images)
        torch.testing.assert_close(sent[k].values["logits"]["logits"], expected)
    same = make(FedMD, images=60, model=ModelSpec("mlp"))
    _, alone = federate(same, clients, rounds=1)
    _, mixed = federate(method, clients, rounds=1)
    own, other = (unpack("personal", kept[0]) for kept in (alone, mixed))
    assert all(torch.equal(own[name], other[name]) for name in own)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"consensus": "median"}, "consensus='median': allowed are mean, era, trim"),
        ({"trim": 0.5}, "trim=0.5: a share in"),
        ({"temperature": 0}, "temperature"),
        ({"images": 0}, "images"),
        ({"networks": ["vae"]}, "networks: 'vae' is unknown; must be one of convnet"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(FedMD, **setting)
