"""Tests of ``privdd.distillation.gradient_matching``."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from privdd.core.rng import Keys
from privdd.core.types import Problem, Records, Shard
from privdd.distillation.class_cells import (
    ClassCells,
    RealBatch,
    class_statistics,
    draw_real_batches,
    single_client_cells,
)
from privdd.distillation.gradient_matching import (
    GradientImages,
    class_matching_gradient,
    gradient_distance,
    match_gradient,
    weight_gradients,
)
from privdd.distillation.virtual_images import as_records, supervised_contrastive
from privdd.federated.channel import ClientContext
from privdd.models import ModelSpec, build, initial
from privdd.models.build import build as build_images
from privdd.training.sgd import local_sgd
from tests.fake_device import fake_gpu, repeated

# Gradient matching, the contrastive term and class statistics against plain implementations.


torch.set_num_threads(1)
SHAPE = (1, 8, 8)
CLASSES = 4
SPEC = ModelSpec(name="convnet", width=6, depth=2)


def setup() -> tuple[torch.nn.Module, dict[str, Tensor], Tensor, Tensor]:
    model = build(SPEC, SHAPE, CLASSES)
    state = initial(SPEC, SHAPE, CLASSES, Keys(0).torch())
    x = torch.rand((12, *SHAPE), generator=Keys(1).torch())
    return model, state, x, torch.arange(12) % CLASSES


def plain_gradient(
    model: torch.nn.Module, state: dict[str, Tensor], x: Tensor, y: Tensor
) -> dict[str, Tensor]:
    model.load_state_dict(state)
    loss = F.cross_entropy(model(x), y)
    slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return {n: g for (n, _), g in zip(model.named_parameters(), slopes)}


def plain_distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
    total = torch.zeros(())
    for name, left in a.items():
        if left.ndim == 1:
            continue
        for row, other in zip(left, b[name]):
            u = row.reshape(-1)
            v = other.reshape(-1)
            total = total + 1 - (u @ v) / (u.norm() * v.norm() + 1e-6)
    return total


def test_distance_by_output_unit_without_one_dimensional_tensors() -> None:
    model, state, x, y = setup()
    a, b = (
        {n: g.detach() for n, g in plain_gradient(model, state, z, y).items()}
        for z in (x, x.flip(0) ** 2)
    )
    assert float(gradient_distance(a, b)) == pytest.approx(float(plain_distance(a, b)), rel=1e-5)
    moved = {n: (g + 5 if g.ndim == 1 else g) for n, g in b.items()}
    assert float(gradient_distance(a, moved)) == pytest.approx(
        float(gradient_distance(a, b)), rel=1e-6
    )
    assert float(gradient_distance(a, {n: 1000 * g for n, g in a.items()})) < 1e-2


def test_matching_is_momentum_sgd_on_that_distance() -> None:
    model, state, x, y = setup()
    target = {
        n: g.detach()
        for n, g in plain_gradient(model, state, torch.rand_like(x), y.flip(0)).items()
    }
    got = match_gradient(model, state, target, x, y, iterations=3, lr=0.3, momentum=0.5)
    own = x.clone().requires_grad_(True)
    sgd = torch.optim.SGD([own], lr=0.3, momentum=0.5)
    for _ in range(3):
        sgd.zero_grad()
        plain_distance(plain_gradient(model, state, own, y), target).backward(inputs=[own])
        sgd.step()
    assert torch.allclose(got, own.detach(), atol=1e-5)


def test_matching_brings_the_gradients_together() -> None:
    model, state, x, y = setup()
    target = {n: g.detach() for n, g in plain_gradient(model, state, x, y).items()}
    start = torch.randn(x.shape, generator=Keys(5).torch())
    end = match_gradient(model, state, target, start, y, iterations=40, lr=1.0, momentum=0.5)
    before, after = (
        float(gradient_distance(plain_gradient(model, state, s, y), target).detach())
        for s in (start, end)
    )
    assert after < 0.7 * before


def test_supervised_contrast_by_a_double_loop() -> None:
    g = Keys(2).torch()
    # 3 is alone
    features = torch.randn((9, 5), generator=g)
    labels = torch.tensor([0, 0, 1, 1, 1, 2, 2, 0, 3])
    z = [f / f.norm() for f in features]
    terms = []
    for j in range(9):
        others = [a for a in range(9) if a != j]
        mates = [p for p in others if labels[p] == labels[j]]
        if not mates:
            continue
        below = sum(math.exp(float(z[j] @ z[a]) / 0.07) for a in others)
        terms.append(
            -sum(math.log(math.exp(float(z[j] @ z[p]) / 0.07) / below) for p in mates) / len(mates)
        )
    assert float(supervised_contrastive(features, labels)) == pytest.approx(
        sum(terms) / len(terms), rel=1e-4
    )


def test_contrast_without_pairs_is_zero_and_has_a_gradient() -> None:
    x = torch.randn((3, 4), generator=Keys(0).torch()).requires_grad_(True)
    loss = supervised_contrastive(x, torch.arange(3))
    loss.backward()
    assert float(loss.detach()) == 0 and x.grad is not None and not bool(x.grad.isnan().any())


def test_class_statistics_and_the_released_form() -> None:
    x = torch.rand((20, 3, 4, 4), generator=Keys(3).torch())
    y = torch.tensor([0] * 18 + [2] * 2)
    mean, std = class_statistics(Records(x, y, torch.arange(20)), 3)
    for label in (0, 2):
        mine = x[y == label].transpose(0, 1).flatten(1)
        assert torch.allclose(mean[label], mine.mean(1), atol=1e-6)
        assert torch.allclose(std[label], mine.std(1, correction=0), atol=1e-5)
    assert bool((mean[1] == 0).all()) and bool((std[1] == 0).all())
    flat = Records(torch.full((20, 3, 4, 4), 0.6), y, torch.arange(20))
    released, _ = class_statistics(flat, 3, released=True)
    assert released[0, 0] == pytest.approx(0.54, abs=1e-6) and released[2, 0] == pytest.approx(
        0.06, abs=1e-6
    )


# Images by gradient matching: their slope by finite differences, and that they come nearer to the
# records' gradient.


SHAPE_IMAGES = (1, 4, 4)
CLASSES_IMAGES = 3
SPEC_IMAGES = ModelSpec("mlp", width=6)


def client(seed: int = 0) -> Shard:
    """Twelve records of two of three classes."""
    x = torch.rand((12, *SHAPE_IMAGES), generator=Keys(seed).torch(), dtype=torch.float64)
    records = Records(x, torch.tensor([0, 2] * 6), torch.arange(12))
    return Shard(0, records, records, records, CLASSES_IMAGES)


def weights(seed: int = 1) -> dict[str, torch.Tensor]:
    return {
        name: t.double()
        for name, t in initial(
            SPEC_IMAGES, SHAPE_IMAGES, CLASSES_IMAGES, Keys(seed).torch()
        ).items()
    }


def distance(shard: Shard, images: torch.Tensor) -> float:
    """The summed distance of classes 0 and 2, each to the gradient of all of its records."""
    network = build_images(SPEC_IMAGES, SHAPE_IMAGES, CLASSES_IMAGES)
    state = weights()
    total = 0.0
    for x, label in zip(images, (0, 2)):
        real = shard.train.take(shard.train.y == label)
        found = weight_gradients(network, state, x, torch.full((len(x),), label))
        total += float(gradient_distance(found, weight_gradients(network, state, real.x, real.y)))
    return total


def drawn(cells: ClassCells, size: int, keys: Keys) -> RealBatch:
    """One batch from the stream ``keys``."""
    (batch,) = draw_real_batches(cells, size, lambda _: keys, 1)
    return batch


def test_the_slope_is_that_of_finite_differences() -> None:
    shard = client()
    step = 1e-6
    images = torch.rand((2, 3, *SHAPE_IMAGES), generator=Keys(5).torch(), dtype=torch.float64)
    cells = single_client_cells(shard.train, CLASSES_IMAGES)
    slope = class_matching_gradient(
        build_images(SPEC_IMAGES, SHAPE_IMAGES, CLASSES_IMAGES),
        weights(),
        cells,
        images,
        drawn(cells, 100, Keys(2)),
    )
    for seed in range(3):
        way = torch.randn(images.shape, generator=Keys(seed).torch(), dtype=torch.float64)
        change = (distance(shard, images + step * way) - distance(shard, images - step * way)) / (
            2 * step
        )
        assert float((slope * way).sum()) == pytest.approx(change, rel=1e-4)
    few = class_matching_gradient(
        build_images(SPEC_IMAGES, SHAPE_IMAGES, CLASSES_IMAGES),
        weights(),
        cells,
        images,
        drawn(cells, 2, Keys(2)),
    )
    assert not torch.allclose(few, slope)  # two records of a class are not all six


def distilled(more: dict[str, object], shard: Shard | None = None) -> dict[str, torch.Tensor]:
    settings = {
        "ipc": 3,
        "networks": 1,
        "matches": 1,
        "batch": 100,
        "lr": 0.05,
        "network_steps": 1,
        "start": "noise",
    }
    ctx = ClientContext(0, 0, Keys(0), Problem(SHAPE_IMAGES, CLASSES_IMAGES, 1))
    shard = shard or client()
    return GradientImages(**{**settings, **more}).distil(  # type: ignore[arg-type]
        SPEC_IMAGES, replace(shard, train=replace(shard.train, x=shard.train.x.float())), ctx
    )


def test_images_take_the_steps_of_momentum_along_one_network() -> None:
    """One step by hand in the network that the client draws; the next one starts from another
    network, trained on them."""
    start, one = (distilled({"networks": n})["images/x"] for n in (0, 1))
    keys = Keys(0)
    ctx = ClientContext(0, 0, Keys(0), Problem(SHAPE_IMAGES, CLASSES_IMAGES, 1))
    first = initial(
        SPEC_IMAGES,
        SHAPE_IMAGES,
        CLASSES_IMAGES,
        ctx.public("gradient", "networks").fold(0).torch(),
    )
    whole = client().train
    cells = single_client_cells(replace(whole, x=whole.x.float()), CLASSES_IMAGES)
    where = keys.fold("gradient", 0).fold("batch", 0)
    assert torch.allclose(
        start
        - 0.05
        * class_matching_gradient(
            build_images(SPEC_IMAGES, SHAPE_IMAGES, CLASSES_IMAGES),
            first,
            cells,
            start,
            drawn(cells, 100, where),
        ),
        one,
    )
    two = distilled({"matches": 2})["images/x"]
    still = distilled({"matches": 2, "network_lr": 1e-12})["images/x"]
    again = class_matching_gradient(
        build_images(SPEC_IMAGES, SHAPE_IMAGES, CLASSES_IMAGES),
        first,
        cells,
        one,
        drawn(cells, 100, keys.fold("gradient", 0).fold("batch", 1)),
    )
    assert torch.allclose(still, one - 0.05 * (0.5 * (start - one) / 0.05 + again), atol=1e-6)
    assert not torch.allclose(two, still, atol=1e-5)


def test_bits_are_those_of_the_plain_loop() -> None:
    """Every step takes its batch and its network by itself; two records of six, so that a batch
    shows its stream."""
    keys = Keys(0)
    ctx = ClientContext(0, 0, Keys(0), Problem(SHAPE_IMAGES, CLASSES_IMAGES, 1))
    whole = client().train
    network = build_images(SPEC_IMAGES, SHAPE_IMAGES, CLASSES_IMAGES)
    cells = single_client_cells(replace(whole, x=whole.x.float()), CLASSES_IMAGES)
    images = distilled({"networks": 0})["images/x"]
    for k in range(2):
        state = initial(
            SPEC_IMAGES,
            SHAPE_IMAGES,
            CLASSES_IMAGES,
            ctx.public("gradient", "networks").fold(k).torch(),
        )
        own = keys.fold("gradient", k)
        velocity = torch.zeros_like(images)
        for t in range(3):
            if t:
                seen = as_records(images.flatten(0, 1), cells.labels.repeat_interleave(3))
                generator = own.fold("training", t).torch()
                state, _ = local_sgd(
                    network, state, seen, lr=0.01, steps=1, batch_size=256, generator=generator
                )
            velocity = 0.5 * velocity + class_matching_gradient(
                network, state, cells, images, drawn(cells, 2, own.fold("batch", t))
            )
            images = images - 0.05 * velocity
    assert torch.equal(distilled({"networks": 2, "matches": 3, "batch": 2})["images/x"], images)


@pytest.mark.parametrize(
    ("many", "trained"), [({"networks": 5}, 0), ({"networks": 2, "matches": 6}, 10)]
)
def test_more_networks_and_matches_on_a_device_send_nothing_more(
    many: dict[str, object], trained: int
) -> None:
    """But one transfer for each training of a network, however long: its batches come from a
    generator of its own."""

    def run(steps: int) -> None:
        distilled(
            {
                "batch": 2,
                "network_steps": 9,
                "start": "noise",
                **(many if steps else {"networks": 2}),
            },
            there(),
        )

    assert sum(after - before for before, after in repeated(run, 0, 1).values()) == trained


def there() -> Shard:
    shard = client()
    return replace(shard, train=shard.train.to("cuda"))


@pytest.mark.parametrize("start", ["real", "noise"])
def test_a_device_gives_the_bits_of_the_cpu(start: str) -> None:
    settings = {"networks": 3, "matches": 2, "batch": 2, "start": start}
    expected = distilled(settings)["images/x"]
    with fake_gpu():
        assert torch.equal(distilled(settings, there())["images/x"].cpu(), expected)


def test_many_steps_bring_the_gradients_together() -> None:
    """In a network that they never saw."""
    shard = client()
    before, after = (
        distilled({"networks": n, "matches": 2, "lr": 0.2})["images/x"].double() for n in (0, 40)
    )
    assert distance(shard, after) < 0.8 * distance(shard, before)


def test_classes_without_records_have_no_images_and_nobody_has_none() -> None:
    assert distilled({})["images/label"].tolist() == [0, 2]
    empty = replace(client(), train=client().train.take(range(0)))
    assert len(distilled({}, empty)["images/x"]) == 0


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("ipc", 0),
        ("networks", -1),
        ("matches", 2.5),
        ("lr", 0),
        ("network_lr", float("nan")),
        ("momentum", 1.0),
        ("start", "black"),
    ],
)
def test_bad_settings_are_refused(setting: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{setting}="):
        distilled({setting: value})
