"""FedLGD: its schedule, its gradients, worlds against replays, guarantees, and that it learns."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from privdd.core.rng import Keys
from privdd.core.types import Records, unpack
from privdd.distillation.virtual_images import VirtualImages, class_mmd
from privdd.methods.fedlgd import FedLGD
from privdd.models import build
from privdd.training.sgd import evaluate_model
from tests.federations import tiny, trained
from tests.methods.distilling import (
    COUNTED,
    PROBLEM,
    SOUND,
    context,
    matching,
    releases_per_class,
    replayed_uploads_are_equal,
    without,
)
from tests.methods.toy import SPEC, receive, shards

VIRTUAL = VirtualImages(
    warmup=matching(4, momentum=0.5),
    refine=matching(2, momentum=0.5),
    ipc=3,
    warmup_reads=2,
    refine_reads=1,
)
SMALL = {
    "model": SPEC,
    "rounds": 4,
    "virtual": VIRTUAL,
    "tau": 2,
    "tau_step": 2,
    "lr": 0.1,
    "contrast": 1.0,
    "global_ipc": 2,
    "global_iterations": 3,
}
RELEASED = {
    "target": "displacement",
    "server_start": "statistics",
    "always_mixed": True,
    "refine_first": False,
    "stale": True,
}


def make(**more: object) -> FedLGD:
    return FedLGD(**{**SMALL, **more})  # type: ignore[arg-type]


def noise(method: FedLGD) -> FedLGD:
    return replace(method, virtual=replace(method.virtual, start="noise"))


def test_schedules_of_paper_and_code() -> None:
    paper = make(rounds=100, tau=10, tau_step=5)
    code = replace(paper, refine_first=False)
    assert (
        [t for t in range(100) if paper.is_selected_round(t)]
        == list(range(0, 50, 5))
        == [t for t in range(100) if paper.refines_in_round(t)]
    )
    assert [t for t in range(100) if code.refines_in_round(t)] == list(range(5, 51, 5))
    assert [t for t in range(100) if code._server_matches(t)] == list(range(0, 51, 5))


def test_the_released_code_has_the_contrastive_loss_in_rounds_that_do_not_distil() -> None:
    """Both sets in all rounds; cross-entropy alone in rounds 0, 5, ..., 50."""
    weak = make(**RELEASED)
    strong = make(**{**RELEASED, "contrast": 9.0})
    shard = shards([60])[0]
    state = weak.init(PROBLEM, Keys(0))
    _, memory = weak.local(weak.broadcast(state), {}, shard, context(weak))
    for t in (2, 3):  # of steps of two: distils, does not
        own = {**memory, "trained_in": torch.tensor([t - 1])}
        a, b = (
            m.local(m.broadcast(state), own, shard, context(m, t))[0]["update"].value
            for m in (weak, strong)
        )
        assert (
            all(torch.equal(a[name], b[name]) for name in a) == weak._server_matches(t) == (t == 2)
        )


def test_in_a_selected_round_the_update_is_one_gradient_of_the_virtual_images() -> None:
    method = make()
    shard = shards([60])[0]
    sent = method.broadcast(method.init(PROBLEM, Keys(0)))
    upload, memory = method.local(sent, {}, shard, context(method))
    model = build(SPEC, (1, 8, 8), 10)
    model.load_state_dict(sent["model"])
    x = memory["images/x"].flatten(0, 1)
    y = memory["images/label"].repeat_interleave(3)
    F.cross_entropy(model(x), y).backward()
    for name, parameter in model.named_parameters():
        step = (sent["model"][name] - upload["update"].value[name]) / 0.1
        assert torch.allclose(step, parameter.grad, atol=1e-4)  # type: ignore[arg-type]


def test_other_rounds_keep_the_images_and_train_on_both_sets() -> None:
    method = make()
    shard = shards([60])[0]
    server = method.init(PROBLEM, Keys(0))
    sent = method.broadcast(server)
    _, memory = method.local(sent, {}, shard, context(method))
    upload, kept = method.local(sent, memory, shard, context(method, round=1))
    assert torch.equal(kept["images/x"], memory["images/x"])
    other = {**sent, "images": {"x": sent["images"]["x"] + 1}}
    changed, _ = method.local(other, memory, shard, context(method, round=1))
    assert not torch.equal(
        upload["update"].value["head.weight"], changed["update"].value["head.weight"]
    )
    _, refined = method.local(sent, memory, shard, context(method, round=2))
    assert not torch.equal(refined["images/x"], memory["images/x"])


def test_the_server_averages_uniformly_and_matches_in_selected_rounds_only() -> None:
    method = make()
    clients = shards([60, 20, 40])
    server = method.init(PROBLEM, Keys(0))
    memories = {}
    for t, moves in ((0, True), (1, False)):
        inbox = receive(method, server, memories, clients, t, 0)
        new = method.aggregate(server, inbox, Keys(0))
        mean = sum(r.values["update"]["head.weight"] for r in inbox) / 3
        assert torch.allclose(new["model/head.weight"], mean, atol=1e-6)
        assert torch.equal(new["images/x"], server["images/x"]) is not moves
        server = new


def test_released_profile_sends_statistics_once_and_starts_the_server_from_them() -> None:
    method = make(**RELEASED, global_iterations=0)
    method = replace(method, virtual=replace(VIRTUAL, released_statistics=True), global_ipc=50)
    clients = shards([60, 60])
    memories = {}
    server = method.init(PROBLEM, Keys(0))
    inbox = receive(method, server, memories, clients, 0, 0)
    new = method.aggregate(server, inbox, Keys(0))
    mean = sum(r.values["class_statistics"]["mean"] for r in inbox) / 2
    share = torch.stack(
        [(s.train.x * (s.train.y == 3)[:, None, None, None]).sum() / (60 * 64) for s in clients]
    ).mean()
    assert float(mean[3]) == pytest.approx(float(share), rel=1e-4)
    images = new["images/x"].unflatten(0, (10, 50))
    assert torch.allclose(images.mean((1, 2, 3, 4)), mean[:, 0], atol=0.03)
    later = receive(method, new, memories, clients, 1, 0)
    assert all(set(r.values) == {"update"} for r in later)


def test_a_stale_client_goes_on_from_its_own_model() -> None:
    sent_by = make(**RELEASED)
    server = sent_by.init(PROBLEM, Keys(0))
    sent = sent_by.broadcast(server)
    shard = shards([60])[0]
    for method, differs in ((sent_by, True), (make(**{**RELEASED, "stale": False}), False)):
        _, memory = method.local(sent, {}, shard, context(method))
        other = {**memory, **{n: t + 0.1 for n, t in memory.items() if n.startswith("trained/")}}
        a, b = (
            method.local(sent, m, shard, context(method, round=3))[0]["update"].value["head.bias"]
            for m in (memory, other)
        )
        assert torch.equal(a, b) is not differs


def test_worlds_of_the_first_round_equal_calls_of_local() -> None:
    method = make()
    shard = shards([70])[0]
    fixed = shard.train.take(range(45))
    candidates = shard.train.take(range(45, 70))
    masks = torch.rand((4, 25), generator=Keys(1).torch()) < 0.5
    sent = method.broadcast(method.init(PROBLEM, Keys(0)))
    clients = [shard.with_train(Records.concat([fixed, candidates.take(mask)])) for mask in masks]
    contexts = [context(method) for _ in masks]
    got = method.local_batched(sent, [{}] * 4, clients, contexts)
    assert got is not None and len(got) == 4
    for alone, (upload, kept) in zip(clients, got):
        expected, memory = method.local(sent, {}, alone, context(method))
        assert kept.keys() == memory.keys()
        assert all(torch.allclose(kept[n].float(), t.float(), atol=1e-5) for n, t in memory.items())
        gaps = [
            (upload["update"].value[n] - t).abs().max() for n, t in expected["update"].value.items()
        ]
        assert float(torch.stack(gaps).max()) < 1e-5
    assert method.local_batched(sent, [memory] * 4, clients, [context(method, round=2)] * 4) is None


@pytest.mark.parametrize("mechanisms", [SOUND, COUNTED], ids=["embedding", "counted"])
def test_updates_read_the_records_through_mechanisms_alone(mechanisms: dict) -> None:  # type: ignore[type-arg]
    replayed_uploads_are_equal(noise(make()), mechanisms, rounds=3)


def test_planned_releases_are_those_that_happen() -> None:
    method = noise(make())
    assert (
        releases_per_class(method, COUNTED)
        == method.releases_per_round(0, COUNTED)
        == {"embedding": 3, "class_counts": 2}
    )
    assert method.releases_per_round(1, COUNTED) == {"embedding": 0, "class_counts": 0}


@pytest.mark.parametrize("method", [make(), make(**RELEASED)], ids=["start", "statistics"])
def test_what_breaks_the_guarantee_is_refused(method: FedLGD) -> None:
    with pytest.raises(ValueError, match="guarantee"):
        method.local(
            method.broadcast(method.init(PROBLEM, Keys(0))),
            {},
            shards([40])[0],
            context(method, mechanisms=SOUND),
        )


def test_an_empty_client_sends_the_model_back_or_trains_on_the_servers_images() -> None:
    method = make()
    shard = without(shards([40])[0], 0)
    sent = method.broadcast(method.init(PROBLEM, Keys(0)))
    upload, memory = method.local(sent, {}, shard, context(method))
    assert all(torch.equal(t, sent["model"][n]) for n, t in upload["update"].value.items())
    upload, _ = method.local(sent, memory, shard, context(method, round=1))
    assert not torch.equal(upload["update"].value["head.weight"], sent["model"]["head.weight"])


@pytest.mark.parametrize(
    "bad",
    [
        {"target": "x"},
        {"server_start": "real"},
        {"temperature": 0.0},
        {"model": replace(SPEC, norm="batch")},
    ],
)
def test_bad_settings_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        make(**bad)


@pytest.mark.nightly(but=["paper"])
@pytest.mark.parametrize("more", [{}, RELEASED], ids=["paper", "released"])
def test_it_learns(more: dict[str, object]) -> None:
    virtual = replace(VIRTUAL, warmup=matching(15, momentum=0.5), ipc=8)
    method = make(virtual=virtual, local_epochs=3, lr=0.15, **more)
    clients = shards([150, 150, 150])
    server = method.init(PROBLEM, Keys(0))
    memories = {}
    for t in range(5):
        server = method.aggregate(
            server, receive(method, server, memories, clients, t, 0), Keys(0).fold(t)
        )
    assert (
        evaluate_model(build(SPEC, (1, 8, 8), 10), unpack("model", server), clients[0].test)[0]
        > 0.35
    )


def test_the_mmd_regulariser_is_bounded_and_of_common_classes():
    """By hand, a sum over pairs, on three classes of which two are common; and one override selects
    it, with another end."""

    def by_pairs(one: torch.Tensor, two: torch.Tensor) -> float:
        both = torch.cat([one, two]).double()
        width = sum(float((s - t).square().sum()) for s in both for t in both) / len(both) ** 2
        mean = {
            at: sum(
                math.exp(-float((s.double() - t.double()).square().sum()) / width)
                for s in p
                for t in q
            )
            / (len(p) * len(q))
            for at, (p, q) in enumerate(((one, one), (two, two), (one, two)))
        }
        return mean[0] + mean[1] - 2 * mean[2]

    a = torch.randn(6, 4, generator=Keys(0).torch())
    b = torch.randn(5, 4, generator=Keys(1).torch())
    y = torch.tensor([0, 0, 1, 1, 1, 2])
    z = torch.tensor([0, 1, 1, 4, 4])
    by_hand = sum(by_pairs(a[y == c], b[z == c]) for c in (0, 1)) / 2
    assert class_mmd(a, y, b, z).item() == pytest.approx(by_hand, rel=1e-5)
    assert class_mmd(a, y, b, z + 7).item() == 0 and class_mmd(a, y, 1e4 + b, z).item() <= 2
    one, other = (
        trained("fedlgd", *more)[0].server
        for more in (("algo.tau_step=2",), ("algo.tau_step=2", "algo.regulariser=mmd"))
    )
    assert not torch.equal(one["model/head.weight"], other["model/head.weight"])
    with pytest.raises(ValueError, match="regulariser='mean'"):
        replace(tiny("fedlgd").plan.method, regulariser="mean")
