"""Per-record gradients of synthetic images: exact, bounded, and what the papers' clip lets
through."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from privdd.core.rng import Keys
from privdd.core.types import Records
from privdd.distillation.distribution_matching import MatchingSettings, MatchingStreams
from privdd.distillation.private_matching import (
    images_by_class,
    match_noised_gradients,
    mean_image_gradients,
    record_image_gradients,
    release_gradients,
)
from privdd.privacy.mechanisms import AggregateClip, ClippedSum
from tests.contexts import CLASSES, SHAPE, batch_sizes, context, network, records
from tests.fake_device import repeated

NET = network(seed=1)
CLIP = 0.05


def embed(x: Tensor) -> Tensor:
    return NET[:4](x)  # type: ignore[index]


def synthetic(images: int = 3) -> Tensor:
    return torch.rand(CLASSES, images, *SHAPE, generator=torch.Generator().manual_seed(7))


def by_hand(images: Tensor, x: Tensor) -> Tensor:
    """Gradient of ||h(x) - mean h(S)||^2 through a plain graph, one record at a time."""
    rows = []
    for one in x:
        leaf = images.clone().requires_grad_(True)
        loss = (embed(one[None]).detach()[0] - embed(leaf).mean(0)).square().sum()
        rows.append(torch.autograd.grad(loss, leaf)[0])
    return torch.stack(rows)


@pytest.mark.parametrize("chunk", [None, 1, 4, 64])
def test_record_gradients_are_those_of_a_plain_graph(chunk: int | None) -> None:
    images = synthetic()[0]
    x = records(9).x
    assert torch.allclose(
        record_image_gradients(images, embed, x, chunk=chunk), by_hand(images, x), atol=1e-6
    )


def test_their_mean_is_the_gradient_of_the_matching_loss() -> None:
    images = synthetic()[0]
    x = records(9).x
    leaf = images.clone().requires_grad_(True)
    loss = (embed(x).mean(0).detach() - embed(leaf).mean(0)).square().sum()
    expected = torch.autograd.grad(loss, leaf)[0]
    assert torch.allclose(record_image_gradients(images, embed, x).mean(0), expected, atol=1e-6)
    assert torch.allclose(mean_image_gradients(images[None], embed, [x])[0], expected, atol=1e-6)


def test_release_sums_clipped_gradients_of_each_class() -> None:
    data = records(20)
    images = synthetic()
    ctx = context({"synthetic_gradient": ClippedSum(1.0, CLIP, 1.0, 5.0)}, silent=True)
    released = release_gradients(images, embed, data, range(CLASSES), ctx)
    for label in range(CLASSES):
        rows = by_hand(images[label], data.x[data.y == label]).flatten(1)
        factors = (CLIP / rows.norm(dim=1)).clamp_max(1)
        assert torch.allclose(released[label].flatten(), (factors @ rows) / 5.0, atol=1e-6)
    assert [row.partition for row in ctx.rows] == [f"label:{c}" for c in range(CLASSES)]


def moved(
    data: Records, extra: Records, images: Tensor, mechanism: ClippedSum | AggregateClip
) -> float:
    """How far one more record moves the released sum (mean) before noise."""
    values = []
    for part in (data, Records.concat([data, extra])):
        ctx = context({"synthetic_gradient": mechanism}, silent=True)
        values.append(release_gradients(images, embed, part, range(CLASSES), ctx))
    return float((values[0] - values[1]).norm())


def crafted() -> list[Tensor]:
    stripes = torch.zeros(SHAPE)
    stripes[:, ::2] = 1
    return [torch.ones(SHAPE), torch.zeros(SHAPE), stripes, 1e3 * torch.ones(SHAPE)]


def near_copies(n: int = 64) -> Records:
    """Many copies of one image: matching has converged, so the mean gradient is small."""
    return Records(torch.full((n, *SHAPE), 0.5), torch.zeros(n, dtype=torch.int64), torch.arange(n))


def one(x: Tensor) -> Records:
    return Records(x[None], torch.zeros(1, dtype=torch.int64), torch.tensor([999]))


def test_sensitivity_of_record_clipping_is_at_most_one() -> None:
    images = torch.full((CLASSES, 3, *SHAPE), 0.5)
    kappas = [moved(near_copies(), one(x), images, ClippedSum(1.0, CLIP)) / CLIP for x in crafted()]
    assert 0.9 < max(kappas) <= 1 + 1e-4


def test_sensitivity_of_exchanging_a_record_is_at_most_two() -> None:
    images = torch.full((CLASSES, 3, *SHAPE), 0.5)
    base = near_copies(16)
    values = []
    for x in crafted():
        ctx = context({"synthetic_gradient": ClippedSum(1.0, CLIP)}, silent=True)
        values.append(
            release_gradients(images, embed, Records.concat([base, one(x)]), range(CLASSES), ctx)
        )
    kappas = [float((a - b).norm()) / CLIP for a in values for b in values]
    assert 1 < max(kappas) <= 2 + 1e-4


def test_sensitivity_of_aggregate_clipping_exceeds_what_its_proof_assumes() -> None:
    """kappa = |B| * move / C: the proof needs 1 (2 for an exchange); the accounting allows 2|B|."""
    images = torch.full((CLASSES, 3, *SHAPE), 0.5)
    size = 64
    kappas = [
        size * moved(near_copies(size), one(x), images, AggregateClip(5.0, CLIP)) / CLIP
        for x in crafted()
    ]
    assert 2 < max(kappas) <= 2 * size


def test_poisson_sampling_and_absent_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    data = records(200, classes=1)
    sizes = batch_sizes(monkeypatch, ClippedSum)
    ctx = context({"synthetic_gradient": ClippedSum(1.0, CLIP, 0.25, 5.0)})
    release_gradients(synthetic(1), embed, data, range(CLASSES), ctx)
    assert 25 < sizes[0] < 80 and sizes[1:] == [0, 0, 0]
    assert [row.partition for row in ctx.rows] == [
        f"label:{c}" for c in range(CLASSES)
    ]  # held or not


def test_the_papers_batches_have_a_fixed_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = batch_sizes(monkeypatch, AggregateClip)
    ctx = context({"synthetic_gradient": AggregateClip(5.0, CLIP)})
    release_gradients(synthetic(1), embed, records(200, classes=2), range(CLASSES), ctx, batch=32)
    assert sizes == [32, 32, 1, 1]


@pytest.mark.parametrize(
    "mechanism",
    [ClippedSum(1.0, CLIP, 1.0, 5.0), ClippedSum(1.0, CLIP, 0.5, 5.0), AggregateClip(5.0, CLIP)],
)
def test_records_cut_by_class_beforehand_give_the_same_release(
    mechanism: ClippedSum | AggregateClip,
) -> None:
    data = records(40)
    images = synthetic()
    one, other = (
        release_gradients(
            images, embed, part, range(CLASSES), context({"synthetic_gradient": mechanism}), batch=4
        )
        for part in (data, images_by_class(data, range(CLASSES)))
    )
    assert torch.equal(one, other)


@pytest.mark.parametrize("q", [1.0, 0.5])
def test_a_step_on_a_device_cuts_no_classes_and_waits_for_no_mask(q: float) -> None:
    """What a step sends and fetches is its sample's positions, and what the mechanism does."""

    def run(steps: int) -> None:
        ctx = context({"synthetic_gradient": ClippedSum(1.0, CLIP, q, 5.0)})
        settings = MatchingSettings(steps)
        streams = MatchingStreams(Keys(1).fold("batch"), Keys(1).fold("augment"))
        match_noised_gradients(
            synthetic().to("cuda"), lambda t: there, records(30).to("cuda"), settings, streams, ctx
        )

    def there(x: Tensor) -> Tensor:
        return torch.tanh(x.flatten(1))

    grown = repeated(run, 2, 5)
    own = {
        place: now - before
        for place, (before, now) in grown.items()
        if place.startswith("privdd/distillation")
    }
    assert sum(own.values()) == (0 if q == 1 else 3 * CLASSES), grown
