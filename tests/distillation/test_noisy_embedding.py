"""Noisy mean embeddings of ``privdd.distillation.private_matching``."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from privdd.core.types import Records
from privdd.distillation.private_matching import (
    estimation_weights,
    release_class_counts,
    release_embeddings,
)
from privdd.privacy.mechanisms import ClippedSum
from tests.contexts import CLASSES, SHAPE, batch_sizes, context, network, records

# Noisy mean embeddings: right on average, and one record moves one row by at most the clip norm.


N = 10.0
CLIP = 0.5


def embed(net: nn.Module, x: Tensor) -> Tensor:
    """Features and logits of one image, side by side."""
    features = net[:4](x)  # type: ignore[index]
    return torch.cat([features, net[4](features)], 1)  # type: ignore[index]


def release(
    data: Records,
    *,
    clip: float = CLIP,
    z: float = 2.0,
    silent: bool = True,
    q: float = 1.0,
    norm: str = "group",
    **kw: object,
):  # type: ignore[no-untyped-def]
    ctx = context({"embedding": ClippedSum(z, clip, q, N)}, silent=silent)
    nets = [network(norm, seed=s) for s in (1, 2)]
    targets = release_embeddings(
        [lambda x, n=n: embed(n, x) for n in nets], data, range(CLASSES), ctx, **kw
    )  # type: ignore[arg-type, misc]
    return targets, ctx


def test_targets_are_clipped_sums_around_the_centre() -> None:
    data = records(30)
    net = network(seed=2)
    centre = 0.1 * torch.ones(CLASSES, 68)
    (_, target), _ = release(data, centres=[centre, centre])
    with torch.no_grad():
        for label in range(CLASSES):
            total = torch.zeros(68)
            for x in data.x[data.y == label]:
                row = embed(net, x[None])[0] - centre[label]
                total += row * min(1.0, CLIP / float(row.norm()))
            assert torch.allclose(target[label], centre[label] + total / N, atol=1e-5)


def test_counts_make_it_the_mean_where_nothing_is_clipped() -> None:
    data = records(30)
    counts = torch.bincount(data.y, minlength=CLASSES).float()
    (target, _), _ = release(data, clip=1e4, z=1e-6, counts=counts)
    with torch.no_grad():
        rows = embed(network(seed=1), data.x)
    for label in range(CLASSES):
        assert torch.allclose(target[label], rows[data.y == label].mean(0), atol=1e-5)


def test_counts_shrink_towards_the_centre_by_the_least_squared_error() -> None:
    """Among all multiples of the noised sum, the returned one is best on average over noise."""
    g = torch.Generator().manual_seed(0)
    mechanism = ClippedSum(6.0, CLIP, 1.0, N)
    width = 50
    n = 20.0
    reads = 4
    mean = torch.randn(width, generator=g)
    mean *= CLIP / mean.norm()
    sums = (n * mean + 6.0 * CLIP * torch.randn(4000, reads, width, generator=g).mean(1)) / N
    best = float(estimation_weights(torch.tensor([n]), mechanism, width, reads))
    errors = {
        f: float((f * best * sums - mean).square().sum(1).mean())
        for f in (0.0, 0.8, 1.0, 1.25, N / n / best)
    }
    assert min(errors, key=errors.__getitem__) == 1.0


def test_every_class_is_released_whether_present_or_not() -> None:
    data = records(12)
    data = data.take(data.y != 3)
    targets, ctx = release(data, silent=False)
    assert [row.partition for row in ctx.rows] == [f"label:{c}" for c in range(CLASSES)]
    assert all(row.count == 2 for row in ctx.rows)
    assert float(targets[0][3].std()) == pytest.approx(2.0 * CLIP / N, rel=0.3)


def test_an_empty_client_releases_noise() -> None:
    targets, _ = release(records(0), silent=False)
    assert all(torch.isfinite(t).all() and t.shape == (CLASSES, 68) for t in targets)


def crafted(base: Records) -> list[Tensor]:
    """Records that were chosen to hurt: white, black, stripes, huge, negative, a near copy."""
    stripes = torch.zeros(SHAPE)
    stripes[:, ::2] = 1
    return [
        torch.ones(SHAPE),
        torch.zeros(SHAPE),
        stripes,
        1e4 * torch.ones(SHAPE),
        -torch.ones(SHAPE),
        base.x[0] + 1e-4,
    ]


def kappas(base: Records, x: Tensor, label: int, **kw: object) -> tuple[float, float]:
    """(largest move of a release in units of clip norm / N, largest move of any other class's
    row)."""
    extra = Records(x[None], torch.tensor([label]), torch.tensor([10_000]))
    (_, with_it), (_, without) = release(Records.concat([base, extra]), **kw), release(base, **kw)
    own = other = 0.0
    for row, (_, a), (_, b) in zip(
        list(range(CLASSES)) * 2, with_it.observer.outputs, without.observer.outputs
    ):
        move = float((a.exact["embedding"] - b.exact["embedding"]).norm()) * N / CLIP  # type: ignore[index]
        own, other = (max(own, move), other) if row == label else (own, max(other, move))
    return own, other


def test_sensitivity_of_adding_any_crafted_record_is_at_most_one() -> None:
    base = records(40)
    copies = Records(
        base.x[:1].repeat(40, 1, 1, 1), torch.zeros(40, dtype=torch.int64), torch.arange(40)
    )
    moves = [
        kappas(data, x, label) for data in (base, copies) for x in crafted(base) for label in (0, 3)
    ]
    assert max(own for own, _ in moves) <= 1 + 1e-4
    assert (
        max(own for own, _ in moves) > 0.9
    )  # the search reaches the bound, so it would see a breach
    assert max(other for _, other in moves) == 0


def test_sensitivity_of_exchanging_a_record_is_at_most_two() -> None:
    """Within a class; an exchange that changes the label moves two rows by one each."""
    base = records(40)
    whole = []
    for x, label in [(x, label) for x in crafted(base) for label in (0, 3)]:
        extra = Records(x[None], torch.tensor([label]), torch.tensor([10_000]))
        _, ctx = release(Records.concat([base, extra]))
        outputs = [output.exact["embedding"] for _, output in ctx.observer.outputs]  # type: ignore[index]
        whole.append((label, torch.stack(outputs).unflatten(0, (2, CLASSES))))
    for label, a in whole:
        for other, b in whole:
            move = float((a - b).flatten(2).norm(dim=2).square().sum(1).sqrt().max()) * N / CLIP
            assert move <= (2 if label == other else 2**0.5) + 1e-4


def test_the_falsifier_catches_batch_norm() -> None:
    base = records(40)
    own, other = (
        max(v) for v in zip(*(kappas(base, x, 0, norm="batch") for x in crafted(base)), strict=True)
    )
    assert own > 1.5 and other > 0.1


def test_poisson_sampling_takes_each_record_with_its_probability(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = records(400, classes=1)
    sizes = batch_sizes(monkeypatch, ClippedSum)
    _, ctx = release(data, q=0.25, silent=False)
    assert sizes and all(
        60 < size < 140 for size in sizes[::CLASSES]
    )  # of class 0, which all records have
    assert "PoissonSampled" in type(ctx.rows[0].event).__name__


def test_what_leaves_depends_on_the_mechanism_alone() -> None:
    """Replaying one client's outputs on another client's records gives the same targets to the
    bit."""
    first, ctx = release(records(30), silent=False)
    other = context({"embedding": ClippedSum(2.0, CLIP, 1.0, N)})
    other.transcript = [dict(out) for out in ctx.outputs]
    nets = [network(seed=s) for s in (1, 2)]
    maps = [lambda x, n=n: embed(n, x) for n in nets]  # type: ignore[misc]
    again = release_embeddings(maps, records(17, seed=9), range(CLASSES), other)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_centres_must_match_the_maps() -> None:
    with pytest.raises(ValueError, match="centres"):
        release(records(5), centres=[torch.zeros(68)])


# Protected counts, without noise equal to the plain ones.


def test_counts_without_noise_are_the_counts() -> None:
    data = records(30)
    ctx = context({"class_counts": ClippedSum(1.0, 1.0)}, silent=True)
    expected = torch.bincount(data.y, minlength=CLASSES)
    assert torch.allclose(
        release_class_counts(data, range(CLASSES), ctx), expected.float(), atol=1e-3
    )


def test_one_record_changes_the_counts_by_one() -> None:
    data = records(30)
    values = []
    for part in (data, data.take(range(29))):
        ctx = context({"class_counts": ClippedSum(1.0, 1.0)}, silent=True)
        release_class_counts(part, range(CLASSES), ctx)
        values.append(ctx.observer.outputs[0][1].exact["count"])  # type: ignore[index]
    assert float((values[0] - values[1]).norm()) <= 1
