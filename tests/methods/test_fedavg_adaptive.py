"""Adaptive clipping against the printed algorithm (Andrew et al. 2021), written out, and against
closed forms."""

import math
from dataclasses import replace

import dp_accounting as dpa
import pytest
import torch

from privdd.cli.build import build_experiment
from privdd.core.rng import Keys
from privdd.core.types import Problem, Received
from privdd.federated.channel import Channel, ClientContext
from privdd.methods.fedavg import FedAvg
from privdd.methods.fedavg_adaptive import BIT, FedAvgAdaptive
from privdd.privacy.accounting import epsilon
from privdd.privacy.mechanisms import ClientLevel
from tests.federations import finished, tiny, tiny_config, trained
from tests.methods.toy import make, shards

WEIGHT = torch.arange(6.0).reshape(2, 3)


def method(**more: object) -> FedAvgAdaptive:
    return make(FedAvgAdaptive, update_is_delta=True, weighting="uniform", **more)


def whole(change: dict[str, torch.Tensor]) -> float:
    return float(torch.cat([t.double().flatten() for t in change.values()]).norm())


def rounds_of(m: FedAvgAdaptive, sizes: list[int], mechanisms: dict | None = None):
    """(server before, what was received, server after, unclipped changes by client) of one
    round."""
    held = shards(sizes)
    problem = Problem((1, 8, 8), 10, len(sizes))
    server = m.init(problem, Keys(0).fold("init"))
    sent = m.broadcast(server)
    channel = Channel(m.uploads, mechanisms or {})
    inbox = []
    changes = []
    for shard in held:
        ctx = ClientContext(
            0, shard.client, Keys(0).fold("round", 0, "client", shard.client), problem
        )
        inbox.append(channel.send(m.local(sent, {}, shard, ctx)[0], ctx)[0])
        plain = make(FedAvg, update_is_delta=True, weighting="uniform")
        ctx = ClientContext(
            0, shard.client, Keys(0).fold("round", 0, "client", shard.client), problem
        )
        changes.append(dict(plain.local(sent, {}, shard, ctx)[0]["update"].value))
    return server, inbox, m.aggregate(server, inbox, Keys(0).fold("server")), changes


def test_one_round_is_the_printed_algorithm() -> None:
    """Clip to C, average; C exp(-eta (share of norms <= C, minus gamma)): with some clients
    clipped, some not."""
    changes = rounds_of(method(), [20, 40, 120, 200])[3]
    clip = sum(sorted(whole(change) for change in changes)[1:3]) / 2
    m = method(clip_start=clip, quantile=0.3, clip_lr=0.7)
    server, _, after, changes = rounds_of(m, [20, 40, 120, 200])
    norms = [whole(change) for change in changes]
    assert sum(norm <= clip for norm in norms) == 2
    for name in changes[0]:
        mean = sum(c[name].double() * min(1.0, clip / norm) for c, norm in zip(changes, norms)) / 4
        torch.testing.assert_close(
            after[f"model/{name}"].double(),
            server[f"model/{name}"].double() + mean,
            rtol=1e-5,
            atol=1e-6,
        )
    assert float(after["clip/norm"]) == pytest.approx(
        clip * math.exp(-0.7 * (2 / 4 - 0.3)), rel=1e-5
    )


@pytest.mark.nightly(cases=["0.5"])
@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
def test_the_clip_norm_comes_to_the_quantile_through_the_noise(quantile: float) -> None:
    m = make(
        FedAvgAdaptive, update_is_delta=True, weighting="uniform", quantile=quantile, rounds=80
    )
    norms = torch.randn(200, generator=Keys(1).torch()).mul(0.5).exp() * 3
    server = {"model/w": torch.zeros(2, 3), "clip/norm": torch.ones(1)}
    noise = Keys(2).torch()
    for t in range(80):
        bits = m.bit_share * (2.0 * (norms <= float(server["clip/norm"])) - 1) + torch.randn(
            200, generator=noise
        )
        inbox = [
            Received(k, t, {"update": {"w": torch.zeros(2, 3), BIT: bits[k : k + 1]}})
            for k in range(200)
        ]
        server = m.aggregate(server, inbox, Keys(0))
    assert float((norms <= float(server["clip/norm"])).double().mean()) == pytest.approx(
        quantile, abs=0.12
    )


@pytest.mark.parametrize(("z", "share"), [(1.0, 0.2), (3.0, 0.05), (0.7, 0.9)])
def test_one_multiplier_accounts_for_changes_and_bits(z: float, share: float) -> None:
    """Theorem 1: the ledger's one Gaussian costs what the two releases cost that the paper
    composes."""
    m = method(bit_share=share)
    # noise over the clip norm, and of the bit b
    change = z / math.sqrt(1 - m.bit_share**2)
    bit = z / (2 * share)
    two = dpa.ComposedDpEvent([dpa.GaussianDpEvent(change), dpa.GaussianDpEvent(2 * bit)])
    assert epsilon(two, 1e-5) == pytest.approx(epsilon(ClientLevel(z, 1.0).event, 1e-5), rel=1e-3)
    assert (1 / change**2 + 1 / (2 * bit) ** 2) ** -0.5 == pytest.approx(z)


@pytest.mark.parametrize("clip", [1e-3, 0.5, 1e3])
def test_what_is_sent_is_never_longer_than_1(clip: float) -> None:
    m = method(clip_start=clip)
    _, inbox, _, changes = rounds_of(m, [20, 200])
    for received, change in zip(inbox, changes):
        sent = received.values["update"]
        assert whole(dict(sent)) <= 1
        assert float(sent[BIT]) == pytest.approx(m.bit_share * (1 if whole(change) <= clip else -1))
        expected = m._max_change_norm * min(1.0, whole(change) / clip)
        assert whole({n: t for n, t in sent.items() if n != BIT}) == pytest.approx(
            expected, rel=1e-4
        )


def test_a_client_without_records_sends_zeros_alone() -> None:
    """It is the neighbour of every client: its bit would otherwise be worth twice as much."""
    sent = rounds_of(method(), [0, 50])[1][0].values["update"]
    assert not any(bool(t.any()) for t in sent.values())


def test_an_update_shorter_than_the_clip_norm_is_read_back() -> None:
    m = method(clip_start=100.0)
    server, inbox, _, changes = rounds_of(m, [50])
    model = m.model_state("update", inbox[0].values["update"], m.broadcast(server))
    assert model is not None and BIT not in model
    for name, change in changes[0].items():
        torch.testing.assert_close(
            model[name], server[f"model/{name}"] + change, rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("trust", ["local", "secagg"])
def test_every_release_of_a_run_is_accounted_once(trust: str) -> None:
    progress = finished(tiny("fedavg_adaptive", f"trust={trust}", "privacy.noise_multiplier=2"))
    rows = [row for row in progress.ledger.releases if row.client == 0]
    assert [(row.name, row.sensitivity, row.clip_norm) for row in rows] == [
        ("update", 1.0, 1.0)
    ] * 2
    event = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(2.0), 2)
    assert progress.ledger.epsilon() == pytest.approx(epsilon(event, 1e-5, relation="zero_out"))


class Tells(FedAvgAdaptive):
    """The fault: the bit leaves a second time, as it is."""

    def outcome(self, turn, trained):
        values, memory = super().outcome(turn, trained)
        return {**values, "count": {"n": values["update"][BIT]}}, memory


def test_a_bit_that_leaves_without_noise_is_not_covered() -> None:
    experiment = tiny("fedavg_adaptive")
    wrong = replace(
        experiment, plan=replace(experiment.plan, method=Tells(**vars(experiment.plan.method)))
    )
    assert finished(wrong).ledger.epsilon() == math.inf
    assert finished(experiment).ledger.epsilon() < math.inf


def test_the_norm_travels_and_lives_in_the_servers_state() -> None:
    progress = trained("fedavg_adaptive")[0]
    assert float(progress.server["clip/norm"]) != 1
    assert tiny("fedavg_adaptive").plan.method.broadcast(progress.server)["clip"].keys() == {"norm"}


@pytest.mark.parametrize(
    "key",
    [
        "algo.clip_start=0",
        "algo.quantile=1.1",
        "algo.clip_lr=-1",
        "algo.bit_share=1",
        "privacy.clip_norm=2",
    ],
)
def test_bad_settings_are_named(key: str) -> None:
    with pytest.raises(ValueError, match=key.split("=")[0].partition(".")[2]):
        build_experiment(tiny_config("fedavg_adaptive", key))


def test_without_client_level_privacy_it_is_fedavg() -> None:
    one, other = (rounds_of(make(kind), [30, 60])[2] for kind in (FedAvgAdaptive, FedAvg))
    assert all(torch.equal(one[n], other[n]) for n in other)
