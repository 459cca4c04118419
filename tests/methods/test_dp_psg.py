"""dp_psg: what is released is DP-SGD's, nothing else reads the records, and the images follow
algorithm 1 of the paper."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from privdd.cli.build import build_experiment
from privdd.core.types import State
from privdd.distillation import gradient_matching
from privdd.distillation.gradient_matching import (
    SET_GRADIENT_QUERY,
    SetGeneration,
    generate_set,
    match_gradient,
    noised_gradient,
    plain_gradient,
)
from privdd.federated.simulation import ClientTask, client_step, start_training
from privdd.models import ModelSpec, build, initial
from privdd.privacy.mechanisms import ClippedSum
from tests.contexts import CLASSES, SHAPE, context, records
from tests.federations import finished, tiny, tiny_config

torch.set_num_threads(1)
SPEC = ModelSpec(name="convnet", width=4, depth=1)
CLIP = 0.3


def drawn(seed: int) -> State:
    return initial(SPEC, SHAPE, CLASSES, torch.Generator().manual_seed(seed))


def slopes(state: State, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """``all_slopes`` of the parameters of two axes or more."""
    return {name: slope for name, slope in all_slopes(state, x, y).items() if slope.ndim >= 2}


def all_slopes(state: State, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """Autograd's gradient of the mean cross-entropy."""
    model = build(SPEC, SHAPE, CLASSES)
    model.load_state_dict(state)
    named = dict(model.named_parameters())
    return dict(zip(named, torch.autograd.grad(F.cross_entropy(model(x), y), list(named.values()))))


def test_a_read_is_the_noised_sum_of_clipped_gradients_of_the_sample() -> None:
    own = records(12)
    state = drawn(1)
    read = noised_gradient(
        build(SPEC, SHAPE, CLASSES),
        own,
        ctx := context({SET_GRADIENT_QUERY: ClippedSum(1e-6, CLIP, 0.5)}, silent=True),
    )
    found = read(state)
    taken = ctx.taken[0][1]
    assert 0 < int(taken.sum()) < 12
    expected = {name: torch.zeros_like(value) for name, value in found.items()}
    for at in taken.nonzero()[:, 0].tolist():
        one = slopes(state, own.x[at : at + 1], own.y[at : at + 1])
        norm = torch.stack([g.square().sum() for g in one.values()]).sum().sqrt()
        for name, gradient in one.items():
            expected[name] += gradient * min(1.0, CLIP / float(norm))
    assert found.keys() == slopes(state, own.x, own.y).keys()
    assert all(torch.allclose(found[name], expected[name], atol=1e-5) for name in expected)


def test_without_a_mechanism_it_is_the_gradient_of_all_records() -> None:
    own = records(9)
    state = drawn(2)
    found = plain_gradient(build(SPEC, SHAPE, CLASSES), own)(state)
    expected = slopes(state, own.x, own.y)
    assert found.keys() == expected.keys() and all(
        torch.allclose(found[n], expected[n], atol=1e-6) for n in expected
    )


def test_images_learn_network_by_network_and_networks_learn_from_them() -> None:
    """The order of algorithm 1: reads in a new network, then the network's training on the images,
    then reads again."""
    model = build(SPEC, SHAPE, CLASSES)
    own = records(20)
    labels = torch.arange(4)
    keys = context({}).keys
    settings = SetGeneration(networks=2, turns=2, reads=1, lr=0.5, net_lr=0.2, net_epochs=3)
    seen: list[State] = []

    def read(state: State) -> State:
        seen.append(state)
        return slopes(state, own.x, own.y)

    images = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(3))
    found = generate_set(images, labels, model, drawn, read, settings, keys)
    assert [
        all(torch.equal(state[n], drawn(k)[n]) for n in state)
        for k, state in zip((0, 0, 1, 1), seen)
    ] == [True, False, True, False]
    for at, state in enumerate(seen):
        target = slopes(state, own.x, own.y)
        images = match_gradient(
            model, state, target, images, labels, iterations=1, lr=0.5, momentum=0.5
        )
        if at in (0, 2):  # the network's three full steps on these images
            for _ in range(3):
                state = {
                    n: v - 0.2 * all_slopes(state, images, labels).get(n, 0)
                    for n, v in state.items()
                }
            assert all(torch.allclose(state[n], seen[at + 1][n], atol=1e-5) for n in state)
    assert torch.allclose(images, found, atol=1e-6)


def test_reads_in_new_networks_come_before_the_images_follow_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing read depends on the images then; groups of networks bound what is kept."""
    model = build(SPEC, SHAPE, CLASSES)
    own = records(10)
    labels = torch.arange(4)
    events = list[str]()
    settings = SetGeneration(networks=5, turns=1, reads=2, steps=2, lr=0.5)

    def read(state: State) -> State:
        events.append("r")
        return slopes(state, own.x, own.y)

    def follow(*given: object, **settings: float) -> torch.Tensor:
        events.append("f")
        return match_gradient(*given, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(gradient_matching, "match_gradient", follow)
    images = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(3))
    for at_once, order in ((64, "r" * 10 + "f" * 10), (2, "rrrrffff" * 2 + "rrff")):
        monkeypatch.setattr(gradient_matching, "NETWORKS_AT_ONCE", at_once)
        found = generate_set(images, labels, model, drawn, read, settings, context({}).keys)
        expected = images
        for number in range(5):
            for _ in range(2):
                target = slopes(drawn(number), own.x, own.y)
                expected = match_gradient(
                    model,
                    drawn(number),
                    target,
                    expected,
                    labels,
                    iterations=2,
                    lr=0.5,
                    momentum=0.5,
                )
        assert torch.equal(found, expected)
        assert "".join(events) == order
        events.clear()


def test_one_client_spends_what_it_says_and_sends_every_class() -> None:
    plan = (experiment := tiny("dp_psg", *FEW)).plan
    sent = plan.method.broadcast(start_training(plan, experiment.new_ledger()).server)
    few = experiment.shards[0].train.take(experiment.shards[0].train.y < 3)
    received, rows, _ = client_step(
        ClientTask(plan, 0, 0, sent, {}, experiment.shards[0].with_train(few))
    )
    assert [(r.name, r.count, r.surface) for r in rows[:1]] == [(SET_GRADIENT_QUERY, 6, "gradient")]
    assert plan.method.releases_per_round(0, plan.mechanisms) == {SET_GRADIENT_QUERY: 6}
    assert received.values["labels"]["y"].tolist() == [k for k in range(10) for _ in range(5)]


def test_without_privacy_a_client_sends_what_it_holds() -> None:
    plan = (experiment := tiny("dp_psg", *FEW, "privacy=none")).plan
    sent = plan.method.broadcast(start_training(plan, experiment.new_ledger()).server)
    own = experiment.shards[0]
    for kept in (own.train.take(own.train.y < 2), own.train.take([])):
        received, _, _ = client_step(ClientTask(plan, 0, 0, sent, {}, own.with_train(kept)))
        assert received.values["labels"]["y"].unique().tolist() == kept.y.unique().tolist()
        assert len(received.values["images"]["x"]) == len(received.values["labels"]["y"])


FEW = (
    "algo.generation.networks=3",
    "algo.generation.turns=2",
    "algo.generation.reads=1",
    "algo.generation.net_epochs=2",
)


def test_the_budget_that_was_asked_for_is_spent() -> None:
    assert 2.9 < finished(tiny("dp_psg", *FEW, "privacy.epsilon=3")).ledger.epsilon() <= 3.0 + 1e-6


def test_digits_are_learned_where_noise_is_small() -> None:
    """Chance is 0.1; 120 records."""
    longer = (
        "algo.generation.networks=10",
        "algo.generation.steps=10",
        "algo.server.epochs=30",
        "model=mlp",
    )
    experiment = build_experiment(
        tiny_config(
            "dp_psg", "privacy.noise_multiplier=0.1", "privacy.sampling_probability=1", *longer
        )
    )
    progress = finished(experiment)
    test = experiment.test_records
    found = experiment.plan.method.predict(progress.server, None, test.x).argmax(1)
    assert float((found == test.y).float().mean()) > 0.4


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("algo.generation.networks=0", "generation.networks=0"),
        ("algo.generation.lr=0", "generation.lr=0"),
        ("algo.generation.momentum=1", "generation.momentum=1"),
        ("algo.ipc=0", "ipc=0"),
        ("algo.start=real", "start"),
        ("model.norm=batch", "norm=batch"),
    ],
)
def test_settings_without_a_meaning_are_refused(override: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refusal:
        tiny("dp_psg", override)
    assert "\n" not in str(refusal.value)
