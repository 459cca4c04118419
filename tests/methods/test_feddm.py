"""FedDM: reductions, worlds against replays, guarantees, odd clients, and that it learns."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import pytest
import torch

from privdd.cli.compose import compose_config
from privdd.core.rng import Keys
from privdd.core.types import Records, Shard, unpack
from privdd.distillation.distribution_matching import networks_in_ball
from privdd.methods.feddm import FedDM
from privdd.models import build
from privdd.training.sgd import evaluate_model, local_sgd
from tests.federations import trained
from tests.methods.distilling import (
    COUNTED,
    PRINTED,
    PROBLEM,
    SOUND,
    STEPWISE,
    context,
    matching,
    releases_per_class,
    replayed_uploads_are_equal,
    server,
    without,
)
from tests.methods.toy import SPEC, digits, receive, shards

SMALL = {"model": SPEC, "rounds": 2, "matching": matching(), "server": server(), "rho": 2.5}


def make(**more: object) -> FedDM:
    return FedDM(**{**SMALL, **more})  # type: ignore[arg-type]


def train(method: FedDM, clients: list[Shard], rounds: int = 2, **more: object) -> float:
    state = method.init(PROBLEM, Keys(0))
    memories = {}
    for t in range(rounds):
        state = method.aggregate(
            state, receive(method, state, memories, clients, t, 0, **more), Keys(0).fold(t)
        )
    return evaluate_model(build(SPEC, (1, 8, 8), 10), unpack("model", state), clients[0].test)[0]


def balanced(per_class: int, skip: int) -> Records:
    at = [(digits().y == c).nonzero()[skip : skip + per_class, 0] for c in range(10)]
    return digits().take(torch.cat(at).sort().values)


def test_all_records_as_images_and_no_steps_is_server_training_on_the_pooled_shards() -> None:
    clients = [replace(s, train=balanced(4, 4 * k)) for k, s in enumerate(shards([10, 10, 10]))]
    method = make(
        ipc=4,
        matching=matching(0),
        rho=1e9,
        server=server(epochs=6, batch_size=10_000, weight_decay=5e-4),
    )
    state = method.init(PROBLEM, Keys(0))
    inbox = receive(method, state, {}, clients, 0, 0)
    got = unpack("model", method.aggregate(state, inbox, Keys(0)))
    pooled = Records.concat([s.train for s in clients])
    assert len(pooled) == sum(len(r.values["images"]["x"]) for r in inbox)
    expected, _ = local_sgd(
        build(SPEC, (1, 8, 8), 10),
        unpack("model", state),
        pooled,
        lr=0.05,
        momentum=0.9,
        weight_decay=5e-4,
        batch_size=10_000,
        epochs=6,
        generator=Keys(1).torch(),
    )
    assert max(float((got[n] - expected[n]).abs().max()) for n in got) < 1e-4
    assert max(float((got[n] - unpack("model", state)[n]).abs().max()) for n in got) > 1e-2


def test_the_server_stays_in_the_ball() -> None:
    clients = shards([60, 60, 60])
    for rho, active in ((0.3, True), (1e3, False)):
        method = make(rho=rho)
        state = method.init(PROBLEM, Keys(0))
        new = method.aggregate(state, receive(method, state, {}, clients, 0, 0), Keys(0))
        moved = float(torch.cat([(new[n] - state[n]).flatten() for n in state]).norm())
        assert (moved == pytest.approx(rho, rel=1e-4)) if active else moved < 20


@pytest.mark.parametrize("start", ["real", "noise", "statistics"])
def test_worlds_in_one_pass_equal_calls_of_local(start: str) -> None:
    method = make(start=start, matching=matching(batch=5))
    shard = shards([80])[0]
    fixed = shard.train.take(range(50))
    candidates = shard.train.take(range(50, 80))
    masks = torch.rand((5, 30), generator=Keys(1).torch()) < 0.5
    sent = method.broadcast(method.init(PROBLEM, Keys(0)))
    clients = [shard.with_train(Records.concat([fixed, candidates.take(mask)])) for mask in masks]
    got = method.local_batched(sent, [{}] * 5, clients, [context(method) for _ in clients])
    assert got is not None and len(got) == 5
    for alone, (upload, kept) in zip(clients, got):
        expected, memory = method.local(sent, {}, alone, context(method))
        assert kept == memory == {}
        assert torch.equal(upload["labels"].value["y"], expected["labels"].value["y"])
        assert torch.allclose(upload["images"].value["x"], expected["images"].value["x"], atol=2e-5)
    noised = [context(method, mechanisms=SOUND) for _ in clients]
    assert method.local_batched(sent, [{}] * 5, clients, noised) is None


@pytest.mark.nightly(cases=["stepwise"])
@pytest.mark.parametrize(
    "mechanisms", [SOUND, COUNTED, STEPWISE], ids=["embedding", "counted", "stepwise"]
)
def test_uploads_read_the_records_through_mechanisms_alone(mechanisms: dict) -> None:  # type: ignore[type-arg]
    method = make(start="noise", carry_over=True, ipc=2, reads=2)
    sent = replayed_uploads_are_equal(method, mechanisms, rounds=2)
    assert sent[0]["labels/y"].tolist() == [c for c in range(10) for _ in range(2)]
    assert not torch.equal(sent[0]["images/x"], sent[1]["images/x"])


def test_as_printed_a_client_sends_the_classes_that_it_holds_and_claims_nothing_of_them() -> None:
    """Sound variants send every class of the public list: which ones a client holds is protected by
    nothing."""
    method = make(start="noise", ipc=2, reads=2)
    shard = shards([60])[0]
    few = shard.with_train(shard.train.take((shard.train.y < 4).nonzero()[:, 0]))
    sent = method.broadcast(method.init(PROBLEM, Keys(0)))
    for mechanisms, classes in (
        (PRINTED, few.train.y.unique().tolist()),
        (STEPWISE, list(range(10))),
    ):
        ctx = context(method, mechanisms=mechanisms)
        upload, _ = method.local(sent, {}, few, ctx)
        assert upload["labels"].value["y"].tolist() == [c for c in classes for _ in range(2)]
        assert {row.partition for row in ctx.rows} == {f"label:{c}" for c in classes}
        assert all(
            one.private == (mechanisms is STEPWISE) and not one.public for one in upload.values()
        )


def test_without_a_mechanism_the_upload_does_depend_on_the_records() -> None:
    method, (a, b) = make(start="noise"), shards([60, 60])
    sent = method.broadcast(method.init(PROBLEM, Keys(0)))
    first, second = (method.local(sent, {}, s, context(method))[0] for s in (a, b))
    assert not first["images"].private and not torch.equal(
        first["images"].value["x"][:5], second["images"].value["x"][:5]
    )


def test_planned_releases_are_those_that_happen() -> None:
    method = make(start="noise", reads=3, ipc=1)
    for mechanisms in (SOUND, COUNTED, STEPWISE):
        assert releases_per_class(method, mechanisms) == method.releases_per_round(0, mechanisms)


def test_other_starts_are_refused_under_a_guarantee() -> None:
    method = make(start="real")
    with pytest.raises(ValueError, match="start='real'"):
        method.local(
            method.broadcast(method.init(PROBLEM, Keys(0))),
            {},
            shards([40])[0],
            context(method, mechanisms=SOUND),
        )


def test_empty_clients_and_small_classes(caplog: pytest.LogCaptureFixture) -> None:
    method = make()
    shard = shards([40])[0]
    sent = method.broadcast(method.init(PROBLEM, Keys(0)))
    with caplog.at_level(logging.WARNING, "privdd"):
        upload, _ = method.local(sent, {}, without(shard, 0), context(method))
        assert (
            upload["images"].value["x"].shape == (0, 1, 8, 8)
            and len(upload["labels"].value["y"]) == 0
        )
        upload, _ = method.local(sent, {}, without(shard, 12), context(method))
    held = shard.train.y[:12].unique()
    assert len(upload["labels"].value["y"]) == 10 * len(held)
    assert "holds no records" in caplog.text and "fewer than ipc=10" in caplog.text
    server_state = method.init(PROBLEM, Keys(0))
    kept = method.aggregate(
        server_state, receive(method, server_state, {}, [without(shard, 0)], 0, 0), Keys(0)
    )
    assert all(torch.equal(kept[n], server_state[n]) for n in server_state)


def test_carry_over_goes_on_from_the_last_images() -> None:
    method = make(start="noise", carry_over=True, matching=matching(0))
    shard = shards([40])[0]
    sent = method.broadcast(method.init(PROBLEM, Keys(0)))
    first, memory = method.local(sent, {}, shard, context(method))
    second, _ = method.local(sent, memory, shard, context(method, round=1))
    assert torch.equal(first["images"].value["x"], second["images"].value["x"])
    assert method.local_batched(sent, [memory], [shard], [context(method, round=1)]) is None
    ((upload, kept),) = method.local_batched(sent, [{}], [shard], [context(method)]) or ()
    assert torch.equal(kept["images/label"], memory["images/label"])
    assert torch.allclose(kept["images/x"], memory["images/x"], atol=2e-5)
    assert torch.allclose(upload["images"].value["x"], first["images"].value["x"], atol=2e-5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rho", 0.0),
        ("ipc", 0),
        ("start", "zeros"),
        ("carry_over", True),
        ("model", replace(SPEC, norm="batch")),
    ],
)
def test_bad_settings_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError):
        make(**{field: value})


def test_it_learns_with_and_without_noise() -> None:
    clients = shards([150, 150, 150])
    assert train(make(matching=matching(10)), clients) > 0.8
    noisy = make(start="noise", carry_over=True, reads=4, matching=matching(30, lr=10.0))
    assert train(noisy, clients, 3, mechanisms=SOUND) > 0.45


def test_the_printed_step_has_no_accounted_epsilon() -> None:
    """The noise of its mean tells the size of a small class: the ledger says so and gives no
    number."""
    progress, _, _ = trained("feddm", "privacy=aggregate_clip", "algo.start=noise")
    rows = [r for r in progress.ledger.releases if r.name == "synthetic_gradient"]
    assert rows and {r.nonprivate_reason for r in rows} == {
        "side conditions fail: noise_scale_public"
    }
    assert (
        progress.ledger.epsilon()
        == math.inf
        == progress.ledger.epsilon(surfaces=["synthetic_images"])
    )


def _class_means(embedded: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.stack([embedded[y == c].mean(0) for c in range(10)])


def matched_loss(lr: float) -> tuple[float, float]:
    """Squared gaps of class means, features and logits, before and after matching around a model
    that digits trained."""
    (client,) = shards([200])
    model = build(SPEC, (1, 8, 8), 10)
    start = unpack("model", make().init(PROBLEM, Keys(0)))
    trained_on = {
        "lr": 0.05,
        "momentum": 0.9,
        "batch_size": 32,
        "epochs": 5,
        "generator": Keys(1).torch(),
    }
    sent = {"model": local_sgd(model, start, client.train, **trained_on)[0]}  # type: ignore[arg-type]
    found = []
    for steps in (0, 20):
        total = 0.0
        method = make(matching=matching(steps, lr=lr))
        upload, _ = method.local(sent, {}, client, context(method, 3))
        x = upload["images"].value["x"]
        y = upload["labels"].value["y"]
        unseen = networks_in_ball(
            model, sent["model"], sent["model"], method.rho, Keys(7), logits=True
        )
        with torch.no_grad():
            for t in range(5):
                real, made = (
                    _class_means(unseen(t)(a), b)
                    for a, b in ((client.train.x, client.train.y), (x, y))
                )
                total += float((real - made).square().sum())
        found.append(total)
    return found[0], found[1]


def test_matching_brings_images_that_start_real_nearer_at_the_rate_of_the_settings() -> None:
    """eta_c = 1 of the paper is that of standardised pixels: in [0, 1] a trained model's images run
    away at it."""
    before, after = matched_loss(compose_config("train", ["algo=feddm"]).algo.matching.lr)
    assert after < 0.5 * before
    assert matched_loss(1.0)[1] > 2 * before
    for start, rate in (("noise", 1.0), ("statistics", 0.1)):
        assert (
            compose_config("train", ["algo=feddm", f"algo.start={start}"]).algo.matching.lr == rate
        )
