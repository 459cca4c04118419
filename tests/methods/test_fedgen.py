"""FedGen: its generator against torch's layers, its objective by hand, what leaves a client, and
FedAvg where it is switched off."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.inversion.labels import sent_class_counts
from privdd.core.rng import Keys
from privdd.core.types import Received, unpack
from privdd.methods.fedavg import FedAvg
from privdd.methods.fedgen import (
    FedGen,
    diversity_loss,
    generate_features,
    generator_loss,
)
from tests.federations import tiny, trained
from tests.methods.toy import federate, make, model_of, receive, shards

torch.set_num_threads(1)
CLASSES = 3
LATENT = 4
WIDTH = 5
SIZES = (60, 97)


def drawn(seed: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """A generator, noise and classes."""
    g = torch.Generator().manual_seed(seed)
    generator = {
        "first.weight": torch.randn(6, LATENT + CLASSES, generator=g),
        "first.bias": torch.randn(6, generator=g),
        "second.weight": torch.randn(WIDTH, 6, generator=g),
        "second.bias": torch.randn(WIDTH, generator=g),
    }
    noise = torch.randn(7, LATENT, generator=g)
    return generator, noise, torch.arange(7) % CLASSES


def test_features_are_those_of_two_layers() -> None:
    generator, noise, labels = drawn(0)
    layers = nn.Sequential(nn.Linear(LATENT + CLASSES, 6), nn.ReLU(), nn.Linear(6, WIDTH))
    names = ("first.weight", "first.bias", "second.weight", "second.bias")
    layers.load_state_dict(dict(zip(layers.state_dict(), (generator[name] for name in names))))
    expected = layers(torch.cat([noise, torch.eye(CLASSES)[labels]], 1))
    torch.testing.assert_close(generate_features(generator, noise, labels), expected)


def test_the_objective_is_that_of_the_mean_logits() -> None:
    generator, noise, labels = drawn(1)
    g = torch.Generator().manual_seed(2)
    heads = [
        {
            "weight": torch.randn(CLASSES, WIDTH, generator=g),
            "bias": torch.randn(CLASSES, generator=g),
        }
        for _ in range(3)
    ]
    total = 0.0
    for z, y in zip(noise, labels):
        h = generate_features(generator, z[None], y[None])[0]
        logits = sum(head["weight"] @ h + head["bias"] for head in heads) / 3
        total -= float(logits[y] - logits.logsumexp(0)) / len(noise)  # type: ignore[index]
    assert float(generator_loss(generator, heads, noise, labels)) == pytest.approx(total, rel=1e-5)


def test_diversity_by_loops() -> None:
    generator, noise, labels = drawn(3)
    features = generate_features(generator, noise, labels)
    total = 0.0
    for i in range(len(noise)):
        for j in range(len(noise)):
            apart = float((features[i] - features[j]).abs().mean())
            total += apart * float((noise[i] - noise[j]).norm())
    expected = math.exp(-total / len(noise) ** 2)
    assert float(diversity_loss(features, noise)) == pytest.approx(expected, rel=1e-3)


def test_switched_off_it_is_fedavg_bit_for_bit() -> None:
    plain = federate(make(FedAvg), shards(SIZES))[0]
    off = federate(make(FedGen, alpha=0.0, generator_steps=2), shards(SIZES))[0]
    assert torch.equal(model_of(off), model_of(plain))
    on = federate(make(FedGen, generator_steps=2), shards(SIZES))[0]
    assert not torch.equal(model_of(on), model_of(plain))


def test_generated_features_are_what_the_heads_take_them_for() -> None:
    """After one round: chance is 0.1."""
    method = make(FedGen, local_epochs=5.0, generator_steps=150, generator_lr=1e-2)
    server = federate(method, shards(SIZES), rounds=1)[0]
    generator = unpack("generator", server)
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(10).repeat(20)
    noise = torch.randn(200, method.latent, generator=g)
    features = generate_features(generator, noise, labels)
    logits = F.linear(features, server["model/head.weight"], server["model/head.bias"])
    assert float((logits.argmax(1) == labels).double().mean()) > 0.9


@pytest.mark.parametrize("seed", range(3))
def test_label_counts_are_exact_and_shares_follow_them(seed: int) -> None:
    method = make(FedGen, generator_steps=1)
    clients = shards(SIZES)
    server = federate(method, clients, rounds=1, seed=seed)[0]
    inbox: list[Received] = receive(method, server, {}, clients, 1, seed)
    total = torch.zeros(10)
    for received, shard in zip(inbox, clients):
        true = torch.bincount(shard.train.y, minlength=10)
        assert torch.equal(sent_class_counts(received.values["label_counts"], 10), true)
        total += true
    torch.testing.assert_close(server["generator/prior"], total / total.sum())


def test_without_weights_no_count_leaves() -> None:
    method = make(FedGen, weighting="uniform", generator_steps=1)
    clients = shards(SIZES)
    server = method.init(tiny("fedavg").plan.problem, Keys(0))
    server = federate(method, clients, rounds=1)[0]
    for received in receive(method, server, {}, clients, 1, 0):
        assert set(received.values) == {"update"}
    torch.testing.assert_close(server["generator/prior"], torch.full((10,), 0.1))


def test_changes_give_the_same_generator_as_models() -> None:
    plain = federate(make(FedGen, weighting="uniform", generator_steps=3), shards(SIZES))[0]
    changes = make(FedGen, generator_steps=3).client_private()
    delta = federate(changes, shards(SIZES))[0]
    for name in ("first.weight", "second.bias"):
        torch.testing.assert_close(
            delta[f"generator/{name}"], plain[f"generator/{name}"], rtol=1e-3, atol=1e-4
        )


def test_a_tiny_federation_sends_a_generator() -> None:
    progress, inboxes, _ = trained("fedgen")
    sent = tiny("fedgen").plan.method.broadcast(progress.server)
    assert set(sent) == {"model", "generator"}
    assert all("label_counts" in received.values for received in inboxes)


@pytest.mark.parametrize(
    ("override", "named"),
    [("algo.alpha=-1", "alpha"), ("algo.latent=0", "latent"), ("algo.generator_lr=0", "lr")],
)
def test_settings_without_a_meaning_are_refused(override: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        tiny("fedgen", override)
