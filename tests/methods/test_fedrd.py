"""FedRD: the projection stays at home, representations follow equation 5, the two-map design
holds."""

from __future__ import annotations

import math
from dataclasses import replace

import dp_accounting as dpa
import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from privdd.core.rng import Keys
from privdd.core.types import unpack
from privdd.distillation.distribution_matching import draw_transform
from privdd.federated.simulation import Plan
from privdd.methods.fedrd import FedRD
from privdd.models import ModelSpec, build, initial, projected_shape
from privdd.privacy.accounting import epsilon as accounted
from privdd.privacy.mechanisms import AggregateClip, ClippedSum
from privdd.training.sgd import local_adam
from tests.federations import tiny, trained
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

BATCH = replace(SPEC, norm="batch", pooling="max")
INSTANCE = replace(SPEC, pooling="max")
SMALL = {
    "model": BATCH,
    "rounds": 2,
    "matching": matching(augment="color_crop_cutout_scale_rotate"),
    "server": server(lr=0.01, optimiser="adam"),
    "projection_batch": 32,
    "projection_epochs": 2,
}


def make(**more: object) -> FedRD:
    return FedRD(**{**SMALL, **more})  # type: ignore[arg-type]


def sound(**more: object) -> FedRD:
    return make(
        **{
            "model": INSTANCE,
            "start": "noise",
            "frozen_projection": True,
            "reads": 2,
            "dpc": 2,
            **more,
        }
    )


def test_adam_is_that_of_pytorch() -> None:
    spec = replace(SPEC, norm="none")
    data = shards([50])[0].train
    state = initial(spec, (1, 8, 8), 10, Keys(0).torch())
    got = local_adam(
        build(spec, (1, 8, 8), 10),
        state,
        data,
        lr=0.01,
        batch_size=50,
        epochs=4,
        generator=Keys(1).torch(),
    )
    model = build(spec, (1, 8, 8), 10)
    model.load_state_dict(state)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(4):
        adam.zero_grad()
        F.cross_entropy(model(data.x), data.y).backward()
        adam.step()
    assert all(torch.allclose(got[n], p.detach(), atol=2e-4) for n, p in model.named_parameters())


def test_real_start_without_steps_sends_projected_records_and_the_projection_stays() -> None:
    method = make(matching=matching(0), dpc=3)
    shard = shards([60])[0]
    upload, memory = method.local(
        method.broadcast(method.init(PROBLEM, Keys(0))), {}, shard, context(method)
    )
    assert set(upload) == {"representations", "labels"} and set(memory) == {
        f"projection/body.{i}.{leaf}" for i in (0, 2) for leaf in ("weight", "bias")
    }
    project = method.maps({}, memory, PROBLEM)["projection"]
    sent = upload["representations"].value["x"]
    own = project(shard.train.x)
    assert sent.shape[1:] == projected_shape(method.projection, (1, 8, 8)) == (1, 8, 8)
    for x, y in zip(sent, upload["labels"].value["y"]):
        assert float((own[shard.train.y == y] - x).flatten(1).norm(dim=1).min()) < 1e-4


def test_one_step_follows_equation_5() -> None:
    method = make(
        matching=matching(1, lr=0.5, augment="flip"), model=INSTANCE, dpc=2, start="noise"
    )
    shard = shards([60])[0]
    ctx = context(method)
    sent = method.broadcast(method.init(PROBLEM, Keys(0)))
    upload, memory = method.local(sent, {}, shard, ctx)
    start, _ = replace(method, matching=matching(0)).local(sent, {}, shard, context(method))
    transform = draw_transform("flip", (1, 8, 8), ctx.public("augment", 0).torch())
    state = initial(INSTANCE, (1, 8, 8), 10, ctx.public("networks", 0).torch())
    model = build(INSTANCE, (1, 8, 8), 10)
    model.load_state_dict(state)
    project = method.maps({}, memory, PROBLEM)["projection"]
    s = start["representations"].value["x"].clone().requires_grad_(True)
    labels = start["labels"].value["y"]
    loss = torch.zeros(())
    for c in labels.unique():
        real: Tensor = model.features(project(transform(shard.train.x[shard.train.y == c]))).mean(0)  # type: ignore[operator]
        loss = loss + (real.detach() - model.features(s[labels == c]).mean(0)).square().sum()  # type: ignore[operator]
    expected = s - 0.5 * torch.autograd.grad(loss, s)[0]
    assert torch.allclose(upload["representations"].value["x"], expected.detach(), atol=1e-5)


def test_the_projection_is_trained_through_the_frozen_task_model_from_where_it_was() -> None:
    method = make()
    shard = shards([80])[0]
    sent = method.broadcast(method.init(PROBLEM, Keys(0)))
    kept = {n: {k: t.clone() for k, t in v.items()} for n, v in sent.items()}
    task = method.classifier(PROBLEM).eval()

    def loss(memory: dict[str, Tensor]) -> float:
        x = method.maps({}, memory, PROBLEM)["projection"](shard.train.x)
        return float(
            F.cross_entropy(
                functional_call(task, {**sent["model"], **sent["buffers"]}, (x,)), shard.train.y
            )
        )

    _, fresh = replace(method, projection_lr=1e-12).local(sent, {}, shard, context(method))
    _, first = method.local(sent, {}, shard, context(method))
    _, second = method.local(sent, first, shard, context(method, round=1))
    assert loss(second) < loss(first) < loss(fresh)
    assert all(torch.equal(sent[n][k], t) for n, v in kept.items() for k, t in v.items())


@pytest.mark.parametrize("mechanisms", [SOUND, STEPWISE], ids=["embedding", "stepwise"])
def test_the_personal_projection_never_feeds_a_protected_upload(mechanisms: dict) -> None:  # type: ignore[type-arg]
    replayed_uploads_are_equal(sound(), mechanisms, rounds=2)


def test_planned_releases_are_those_that_happen() -> None:
    for mechanisms in (SOUND, STEPWISE):
        assert releases_per_class(sound(), mechanisms) == sound().releases_per_round(0, mechanisms)


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"frozen_projection": False}, "frozen"),
        ({"model": BATCH}, "norm=batch"),
        ({"start": "real"}, "start="),
    ],
)
def test_what_breaks_the_guarantee_is_refused(more: dict[str, object], match: str) -> None:
    method = sound(**more)
    with pytest.raises(ValueError, match=match):
        method.local(
            method.broadcast(method.init(PROBLEM, Keys(0))),
            {},
            shards([40])[0],
            context(method, mechanisms=SOUND),
        )


def test_an_empty_client_sends_an_empty_set_and_nobody_predicts_without_a_projection() -> None:
    method = make()
    shard = shards([40])[0]
    state = method.init(PROBLEM, Keys(0))
    upload, _ = method.local(method.broadcast(state), {}, without(shard, 0), context(method))
    assert upload["representations"].value["x"].shape == (0, 1, 8, 8)
    with pytest.raises(ValueError, match="memory"):
        method.predict(state, None, shard.test.x)


def test_wrong_projection_is_refused() -> None:
    with pytest.raises(ValueError, match="projection"):
        make(projection=ModelSpec(name="mlp"))


@pytest.mark.nightly(cases=["True"])
@pytest.mark.parametrize("private", [False, True])
def test_it_learns(private: bool) -> None:
    clients = shards([150, 150, 150])
    fit = {"projection_epochs": 8}
    method = make(matching=matching(10, augment="none"), **fit)
    if private:
        method = sound(matching=matching(30, lr=0.1), dpc=10, reads=4, **fit)
    state = method.init(PROBLEM, Keys(0))
    memories = {}
    more = {"mechanisms": SOUND} if private else {}
    for t in range(2):
        state = method.aggregate(
            state, receive(method, state, memories, clients, t, 0, **more), Keys(0).fold(t)
        )
    test = digits().take(range(1200, 1500))
    right = [
        (method.predict(state, m, test.x).argmax(1) == test.y).float().mean()
        for m in memories.values()
    ]
    assert float(torch.stack(right).mean()) > 0.5
    assert bool(unpack("projection", state)) is private


# --- a personal projection by DP-SGD
# ----------------------------------------------------------------

PERSONAL = {**COUNTED, "dpsgd": ClippedSum(1.0, 1.0, 0.5, 30.0)}


def personal(**more: object) -> FedRD:
    return make(
        **{
            "model": INSTANCE,
            "start": "noise",
            "reads": 2,
            "dpc": 2,
            "projection_epochs": 2,
            **more,
        }
    )


def test_a_private_projection_and_its_representations_come_from_releases_alone() -> None:
    """Bit by bit on other records; and the map is the client's own, kept and trained on."""
    replayed_uploads_are_equal(personal(), PERSONAL, rounds=2)
    assert (
        releases_per_class(personal(), PERSONAL)
        == personal().releases_per_round(0, PERSONAL)
        == {"embedding": 2, "class_counts": 1, "dpsgd": 4}
    )
    method, (a, b) = personal(), shards([60, 60])
    sent = method.broadcast(method.init(PROBLEM, Keys(0)))
    assert "projection" not in sent
    own, again = (
        method.local(sent, {}, a, context(method, mechanisms=PERSONAL))[1] for _ in range(2)
    )
    other = method.local(sent, {}, b, context(method, client=1, mechanisms=PERSONAL))[1]
    later = method.local(sent, own, a, context(method, 1, mechanisms=PERSONAL))[1]
    assert (
        all(torch.equal(own[name], again[name]) for name in own)
        and own.keys() == other.keys() == later.keys()
    )
    for changed in (other, later):
        assert not any(torch.equal(own[name], changed[name]) for name in own)
    first, second = (
        method.local(sent, memory, a, context(method, 1, mechanisms=PERSONAL))[0]
        for memory in (own, {})
    )
    assert not torch.equal(
        first["representations"].value["x"], second["representations"].value["x"]
    )


def test_one_private_step_is_the_clipped_mean_gradient_of_equation_2() -> None:
    """Record by record with autograd, at hardly any noise."""
    method = personal(projection_epochs=1, private_lr=0.7)
    shard = shards([40])[0]
    quiet = {**SOUND, "dpsgd": ClippedSum(1e-4, 0.05, 1.0, 25.0)}
    ctx = context(method, mechanisms=quiet)
    sent = method.broadcast(method.init(PROBLEM, Keys(0)))
    got = unpack("projection", method.local(sent, {}, shard, ctx)[1])
    net = build(method.projection, (1, 8, 8), 10)
    net.load_state_dict(
        initial(method.projection, (1, 8, 8), 10, ctx.keys.fold("projection").torch())
    )
    task = build(INSTANCE, (1, 8, 8), 10).eval()
    total = [torch.zeros_like(p) for p in net.parameters()]
    task.load_state_dict(sent["model"])
    for x, y in zip(shard.train.x, shard.train.y, strict=True):
        parts = torch.autograd.grad(
            F.cross_entropy(task(net(x[None])), y[None]), list(net.parameters())
        )
        factor = min(1.0, 0.05 / float(torch.stack([p.norm() for p in parts]).norm()))
        total = [t + factor * p for t, p in zip(total, parts, strict=True)]
    for (name, start), moved in zip(net.named_parameters(), total, strict=True):
        assert torch.allclose(got[name], start - 0.7 * moved / 25, atol=1e-5)


def test_the_ledger_composes_projection_and_representations() -> None:
    """Two rounds of a run: the accountant's epsilon of every step and every read, as composed by
    hand."""
    progress = trained("fedrd_personal_dp")[0]
    rows = [r for r in progress.ledger.releases if r.client == 0]
    assert {r.name for r in rows if r.is_protected} == {"dpsgd", "embedding", "class_counts"}
    made = tiny("fedrd_personal_dp").plan
    counts = {
        name: made.method.rounds * count
        for name, count in made.method.releases_per_round(0, made.mechanisms).items()
    }
    events = [
        dpa.SelfComposedDpEvent(made.mechanisms[name].event, count)
        for name, count in counts.items()
    ]
    whole, maps = (accounted(dpa.ComposedDpEvent(part), 1e-5) for part in (events, events[1:]))
    assert progress.ledger.epsilon() == pytest.approx(whole, rel=0.02) and maps < whole < float(
        "inf"
    )


def test_releases_under_a_guarantee_train_no_personal_projection() -> None:
    """The likelihood-ratio test asks for as many classes as it makes runs, more than the task model
    has."""
    made = tiny("fedrd_personal_dp")
    plan = made.plan
    shard = made.shards[0]
    count = plan.problem.classes + 3
    ctx = replace(
        plan.client_context(0, 0), problem=replace(plan.problem, class_list=tuple(range(count)))
    )
    records = replace(shard.train.take(range(count)), y=torch.arange(count))
    upload = plan.method.audit_hooks.protected_upload(
        plan.method.broadcast(plan.method.init(plan.problem, plan.keys)),
        shard.with_train(records),
        ctx,
    )
    assert {row.name for row in ctx.rows} == {"embedding", "class_counts"}
    assert len(upload["labels"].value["y"].unique()) == count


@pytest.mark.parametrize(
    ("more", "mechanisms"),
    [
        ({"frozen_projection": True}, PERSONAL),
        ({}, {"dpsgd": PERSONAL["dpsgd"]}),
        ({"printed": True}, {**PRINTED, "dpsgd": PERSONAL["dpsgd"]}),
    ],
)
def test_dp_sgd_protects_a_personal_projection_beside_its_representations_alone(
    more: dict[str, object], mechanisms: dict
) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match="privacy=private_projection"):
        personal(**more).check_mechanisms(mechanisms)


# --- equation 7 as printed ------------------------------------------------------------------------


def printed(**more: object) -> FedRD:
    return make(**{"start": "noise", "printed": True, "dpc": 2, **more})


def test_one_printed_step_is_equation_7_without_noise_and_clipping() -> None:
    """N(0, 1) starts, the client's own projection, batch norm over the whole batch, augmented
    records."""
    method = printed(matching=matching(1, lr=0.5, augment="flip"))
    shard = shards([60])[0]
    quiet = {"synthetic_gradient": AggregateClip(1e-12, 1e4)}
    ctx = context(method, mechanisms=quiet)
    sent = method.broadcast(method.init(PROBLEM, Keys(0)))
    upload, memory = method.local(sent, {}, shard, ctx)
    model = build(BATCH, (1, 8, 8), 10)
    model.load_state_dict(initial(BATCH, (1, 8, 8), 10, ctx.public("networks", 0).torch()))
    project = method.maps({}, memory, PROBLEM)["projection"]
    transform = draw_transform("flip", (1, 8, 8), ctx.public("augment", 0).torch())
    first = replace(method, matching=matching(0)).local(
        sent, {}, shard, context(method, mechanisms=quiet)
    )[0]
    s = first["representations"].value["x"].clone().requires_grad_(True)
    assert (
        abs(float(s.detach().mean())) < 0.2 and 0.8 < float(s.detach().std()) < 1.2
    )  # N(0, 1), not projected noise
    y = shard.train.y
    order = [i for c in PROBLEM.class_list for i in (y == c).nonzero()[:, 0].tolist()]
    rows = model.features(project(transform(shard.train.x[order]))).detach()  # type: ignore[operator]
    # type: ignore[operator]
    means = model.features(s).unflatten(0, (10, 2)).mean(1)
    loss = torch.zeros(())
    for at, c in enumerate(PROBLEM.class_list):
        own = rows[y[order] == c]
        if len(own):
            loss = loss + (own.mean(0) - means[at]).square().sum()
    expected = s - 0.5 * torch.autograd.grad(loss, s)[0]
    assert torch.allclose(upload["representations"].value["x"], expected.detach(), atol=1e-4)


def test_what_is_printed_states_no_guarantee() -> None:
    """No row is private, the claims name the private map, and nothing but the clipped mean is
    accepted."""
    method = printed()
    shard = shards([60])[0]
    sent = method.broadcast(method.init(PROBLEM, Keys(0)))
    upload, _ = method.local(sent, {}, shard, context(method, mechanisms=PRINTED))
    assert (
        not upload["representations"].private
        and not upload["labels"].private
        and not upload["labels"].public
    )
    few = shard.with_train(shard.train.take((shard.train.y < 4).nonzero()[:, 0]))
    held, _ = method.local(sent, {}, few, context(method, mechanisms=PRINTED))
    assert held["labels"].value["y"].unique().tolist() == few.train.y.unique().tolist()
    plan = Plan(Keys(0), PROBLEM, method, dict(PRINTED))
    claims = [
        c
        for c in method.claims(plan, shards([60, 60, 60]))
        if c.epsilon is not None and c.epsilon < math.inf
    ]
    assert len(claims) == 2 and not any(c.sound for c in claims)
    assert all("trained on the same records" in c.why for c in claims)
    with pytest.raises(ValueError, match="printed=True: equation 7 clips"):
        method.local(sent, {}, shard, context(method, mechanisms=STEPWISE))
    for wrong in ({"start": "real"}, {"frozen_projection": True}):
        with pytest.raises(ValueError, match="printed=True: table II"):
            printed(**wrong)


def test_the_chosen_model_is_the_task_model() -> None:
    assert (
        tiny("fedrd").plan.method.model.norm == "batch"
        and tiny("fedrd_dp").plan.method.model.norm == "instance"
    )
    other = tiny("fedrd", "model=smallcnn", "model.width=4").plan.method.model
    assert (other.name, other.width) == ("smallcnn", 4)
