"""Images by gradient matching: their slope by finite differences, and that they come nearer to the records' gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from privdd.core.rng import Keys
from privdd.core.types import Problem, Records, Shard
from privdd.distillation.class_cells import ClassCells, RealBatch, draw_real_batches, single_client_cells
from privdd.distillation.gradient_matching import (
    GradientImages,
    class_matching_gradient,
    gradient_distance,
    weight_gradients,
)
from privdd.federated.channel import ClientContext
from privdd.models import ModelSpec, initial
from privdd.models.build import build
from privdd.training.contrastive import as_records
from privdd.training.sgd import local_sgd
from tests.fake_device import fake_gpu, repeated

SHAPE, CLASSES = (1, 4, 4), 3
SPEC = ModelSpec("mlp", width=6)


def client(seed: int = 0) -> Shard:
    """Twelve records of two of three classes."""
    x = torch.rand((12, *SHAPE), generator=Keys(seed).torch(), dtype=torch.float64)
    records = Records(x, torch.tensor([0, 2] * 6), torch.arange(12))
    return Shard(0, records, records, records, CLASSES)


def weights(seed: int = 1) -> dict[str, torch.Tensor]:
    return {name: t.double() for name, t in initial(SPEC, SHAPE, CLASSES, Keys(seed).torch()).items()}


def distance(shard: Shard, images: torch.Tensor) -> float:
    """The summed distance of classes 0 and 2, each to the gradient of all of its records."""
    network, state, total = build(SPEC, SHAPE, CLASSES), weights(), 0.0
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
    shard, step = client(), 1e-6
    images = torch.rand((2, 3, *SHAPE), generator=Keys(5).torch(), dtype=torch.float64)
    cells = single_client_cells(shard.train, CLASSES)
    slope = class_matching_gradient(build(SPEC, SHAPE, CLASSES), weights(), cells, images, drawn(cells, 100, Keys(2)))
    for seed in range(3):
        way = torch.randn(images.shape, generator=Keys(seed).torch(), dtype=torch.float64)
        change = (distance(shard, images + step * way) - distance(shard, images - step * way)) / (2 * step)
        assert float((slope * way).sum()) == pytest.approx(change, rel=1e-4)
    few = class_matching_gradient(build(SPEC, SHAPE, CLASSES), weights(), cells, images, drawn(cells, 2, Keys(2)))
    assert not torch.allclose(few, slope)  # two records of a class are not all six


def distilled(more: dict[str, object], shard: Shard | None = None) -> dict[str, torch.Tensor]:
    settings = {"ipc": 3, "networks": 1, "matches": 1, "batch": 100, "lr": 0.05, "network_steps": 1, "start": "noise"}
    ctx = ClientContext(0, 0, Keys(0), Problem(SHAPE, CLASSES, 1))
    shard = shard or client()
    return GradientImages(**{**settings, **more}).distil(  # type: ignore[arg-type]
        SPEC, replace(shard, train=replace(shard.train, x=shard.train.x.float())), ctx
    )


def test_images_take_the_steps_of_momentum_along_one_network() -> None:
    """One step by hand in the network that the client draws; the next one starts from another network, trained on them."""
    start, one = (distilled({"networks": n})["images/x"] for n in (0, 1))
    keys, ctx = Keys(0), ClientContext(0, 0, Keys(0), Problem(SHAPE, CLASSES, 1))
    first = initial(SPEC, SHAPE, CLASSES, ctx.public("gradient", "networks").fold(0).torch())
    whole = client().train
    cells = single_client_cells(replace(whole, x=whole.x.float()), CLASSES)
    where = keys.fold("gradient", 0).fold("batch", 0)
    assert torch.allclose(start - 0.05 * class_matching_gradient(build(SPEC, SHAPE, CLASSES), first, cells, start, drawn(cells, 100, where)), one)
    two = distilled({"matches": 2})["images/x"]
    still = distilled({"matches": 2, "network_lr": 1e-12})["images/x"]
    again = class_matching_gradient(build(SPEC, SHAPE, CLASSES), first, cells, one, drawn(cells, 100, keys.fold("gradient", 0).fold("batch", 1)))
    assert torch.allclose(still, one - 0.05 * (0.5 * (start - one) / 0.05 + again), atol=1e-6)
    assert not torch.allclose(two, still, atol=1e-5)


def test_bits_are_those_of_the_plain_loop() -> None:
    """Every step takes its batch and its network by itself; two records of six, so that a batch shows its stream."""
    keys, ctx = Keys(0), ClientContext(0, 0, Keys(0), Problem(SHAPE, CLASSES, 1))
    whole, network = client().train, build(SPEC, SHAPE, CLASSES)
    cells = single_client_cells(replace(whole, x=whole.x.float()), CLASSES)
    images = distilled({"networks": 0})["images/x"]
    for k in range(2):
        state = initial(SPEC, SHAPE, CLASSES, ctx.public("gradient", "networks").fold(k).torch())
        own, velocity = keys.fold("gradient", k), torch.zeros_like(images)
        for t in range(3):
            if t:
                seen = as_records(images.flatten(0, 1), cells.labels.repeat_interleave(3))
                generator = own.fold("training", t).torch()
                state, _ = local_sgd(network, state, seen, lr=0.01, steps=1, batch_size=256, generator=generator)
            velocity = 0.5 * velocity + class_matching_gradient(network, state, cells, images, drawn(cells, 2, own.fold("batch", t)))
            images = images - 0.05 * velocity
    assert torch.equal(distilled({"networks": 2, "matches": 3, "batch": 2})["images/x"], images)


@pytest.mark.parametrize(("many", "trained"), [({"networks": 5}, 0), ({"networks": 2, "matches": 6}, 10)])
def test_more_networks_and_matches_on_a_device_send_nothing_more(many: dict[str, object], trained: int) -> None:
    """But one transfer for each training of a network, however long: its batches come from a generator of its own."""

    def run(steps: int) -> None:
        distilled({"batch": 2, "network_steps": 9, "start": "noise", **(many if steps else {"networks": 2})}, there())

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
    before, after = (distilled({"networks": n, "matches": 2, "lr": 0.2})["images/x"].double() for n in (0, 40))
    assert distance(shard, after) < 0.8 * distance(shard, before)


def test_classes_without_records_have_no_images_and_nobody_has_none() -> None:
    assert distilled({})["images/label"].tolist() == [0, 2]
    empty = replace(client(), train=client().train.take(range(0)))
    assert len(distilled({}, empty)["images/x"]) == 0


@pytest.mark.parametrize(
    ("setting", "value"), [("ipc", 0), ("networks", -1), ("matches", 2.5), ("lr", 0), ("network_lr", float("nan")), ("momentum", 1.0), ("start", "black")]
)  # fmt: skip
def test_bad_settings_are_refused(setting: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{setting}="):
        distilled({setting: value})
