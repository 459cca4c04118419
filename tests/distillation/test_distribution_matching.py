"""Tests of ``privdd.distillation.distribution_matching``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attacks.tensors import STEPS_PER_TRANSFER
from privdd.core.rng import Keys
from privdd.core.types import Records, Shard, State
from privdd.distillation.class_cells import (
    ClassCells,
    ClassSubsets,
    batched_cells,
    cut_cells,
    draw_initial_images,
    draw_real_batches,
    first_records,
    labelled_images,
    record_priorities,
    single_client_cells,
    take_smallest,
)
from privdd.distillation.distribution_matching import (
    COLOUR_STRATEGY,
    MatchingSettings,
    MatchingStreams,
    Networks,
    Transform,
    build_embedder,
    draw_in_ball,
    draw_transform,
    embed_images,
    fixed_network,
    fresh_networks,
    iterate_networks,
    match_distributions,
    matching_gradient,
    mean_real_embeddings,
    networks_in_ball,
    project_to_ball,
)
from privdd.models import ModelSpec, build, initial
from tests.fake_device import fake_gpu, repeated

# Distribution matching, cells and worlds, networks and starts against plain loops.


torch.set_num_threads(1)
SHAPE = (1, 8, 8)
CLASSES = 6
SPEC = ModelSpec(name="convnet", width=8, depth=2)
MODEL = build(SPEC, SHAPE, CLASSES)
STATE = initial(SPEC, SHAPE, CLASSES, Keys(3).torch())


def records(count: int, seed: int = 0, classes: int = CLASSES, start: int = 0) -> Records:
    g = Keys(seed).torch()
    x = torch.rand((count, *SHAPE), generator=g)
    y = torch.randint(classes, (count,), generator=g)
    return Records(x, y, start + 7 * torch.arange(count))


def streams() -> MatchingStreams:
    return MatchingStreams(Keys(0).fold("batch"), Keys(0).fold("augment"))


def forward(x: Tensor, logits: bool) -> Tensor:
    """Features (and logits) by the module itself, image by image."""
    model = build(SPEC, SHAPE, CLASSES)
    model.load_state_dict(STATE)
    f = torch.cat([model.features(one) for one in x.split(1)])  # type: ignore[operator]
    return torch.cat([f, model.head(f)], 1) if logits else f  # type: ignore[operator]


@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("chunk", [0, 3, 64])
def test_gradient_is_that_of_the_loss_written_out(logits: bool, chunk: int) -> None:
    data = records(40)
    cells = single_client_cells(data, CLASSES)
    embed = build_embedder(MODEL, STATE, logits=logits)
    (batch,) = draw_real_batches(cells, 1000, Keys(0).fold, 1)
    targets = mean_real_embeddings(
        batch, cells, embed, Transform(), MatchingSettings(1, batch=1000, chunk=chunk)
    )
    images = torch.randn((len(cells), 3, *SHAPE), generator=Keys(5).torch())
    x = images.clone().requires_grad_(True)
    loss = torch.zeros(())
    for cell, label in enumerate(cells.labels.tolist()):
        real = forward(data.x[data.y == label], logits)
        own = forward(x[cell], logits)
        f = slice(0, real.shape[1] - CLASSES) if logits else slice(None)
        loss = loss + (real[:, f].mean(0) - own[:, f].mean(0)).square().sum()
        if logits:
            loss = loss + (real[:, -CLASSES:].mean(0) - own[:, -CLASSES:].mean(0)).square().sum()
    expected = torch.autograd.grad(loss, x)[0]
    assert torch.allclose(
        matching_gradient(images, targets, embed, chunk=chunk), expected, atol=1e-5, rtol=1e-4
    )


def test_matching_is_sgd_with_momentum_on_the_same_network_and_batch_for_all_classes() -> None:
    data = records(40)
    settings = MatchingSettings(4, batch=3, lr=0.7, momentum=0.5, augment=COLOUR_STRATEGY)
    cells = single_client_cells(data, CLASSES)
    networks = networks_in_ball(MODEL, STATE, STATE, 0.5, Keys(9), logits=True)
    start = draw_initial_images("noise", cells, 2, SHAPE, Keys(4))
    got = match_distributions(cells, start, networks, settings, streams())
    x = start.clone().requires_grad_(True)
    sgd = torch.optim.SGD([x], lr=0.7, momentum=0.5)
    for t in range(4):
        transform = draw_transform(COLOUR_STRATEGY, SHAPE, streams().augment.fold(t).torch())
        loss = torch.zeros(())
        priority = record_priorities(data.ids, streams().batch.fold(t))
        for cell, label in enumerate(cells.labels.tolist()):
            mine = (data.y == label).nonzero()[:, 0]
            batch = mine[priority[mine].argsort()[:3]]
            real, own = (networks(t)(transform(part)).mean(0) for part in (data.x[batch], x[cell]))
            loss = loss + (real.detach() - own).square().sum()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    assert torch.allclose(got, x.detach(), atol=1e-4)


def made(kind: str, device: str = "cpu") -> Networks:
    state = {name: value.to(device) for name, value in STATE.items()}
    if kind == "fresh":
        return fresh_networks(
            MODEL, lambda g: initial(SPEC, SHAPE, CLASSES, g), Keys(9), device=device
        )
    return (
        networks_in_ball(MODEL, state, state, 0.5, Keys(9), logits=True)
        if kind == "ball"
        else fixed_network(MODEL, state)
    )


def worlds(seed: int, count: int = 3) -> ClassCells:
    """The cells of a client, or of some replays of it that hold about half of its records."""
    data = records(40, seed)
    if count == 1:
        return single_client_cells(data, CLASSES)
    masks = torch.rand((count, 40), generator=Keys(seed).torch()) < 0.5
    return batched_cells([holding(data.take(mask)) for mask in masks])


def plain(
    cells: ClassCells, images: Tensor, networks: Networks, settings: MatchingSettings
) -> Tensor:
    """The loop written out: every step draws and takes what it needs by itself."""
    velocity = torch.zeros_like(images)
    for t in range(settings.iterations):
        embed = networks(t)
        keys = streams().batch.fold(t)
        transform = draw_transform(settings.augment, SHAPE, streams().augment.fold(t).torch())
        priority = record_priorities(cells.pool.ids, keys)
        chosen = [take_smallest(priority[g.at], g.present, settings.batch) for g in cells.groups]
        used = [rows.any(0) for rows in chosen]
        x = transform(cells.pool.x[torch.cat([g.at[u] for g, u in zip(cells.groups, used)])])
        rows = embed_images(embed, x, settings.chunk).split([int(u.sum()) for u in used])
        weights = [c[:, u].to(e) for c, u, e in zip(chosen, used, rows)]
        targets = torch.cat([w @ e / w.sum(1, keepdim=True) for w, e in zip(weights, rows)])
        gradient = matching_gradient(
            images,
            targets,
            lambda x: embed(transform(x)),  # noqa: B023
            chunk=settings.chunk,
        )
        velocity = settings.momentum * velocity + gradient
        images = images - settings.lr * velocity
    return images


@pytest.mark.nightly(
    cases=[
        "ball-1-1",
        "ball-1-2",
        "ball-3-1",
        "ball-3-2",
        "fresh-1-1",
        "fresh-1-2",
        "fresh-3-1",
        "fresh-3-2",
        "fixed-1-1",
        "fixed-1-2",
        "fixed-3-1",
        "fixed-3-2",
    ]
)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", ["ball", "fresh", "fixed"])
def test_bits_are_those_of_the_plain_loop_on_the_cpu_and_on_a_device(
    kind: str, count: int, seed: int
) -> None:
    cells = worlds(seed, count)
    settings = MatchingSettings(4, batch=3, momentum=0.5, augment=COLOUR_STRATEGY)
    start = draw_initial_images("noise", cells, 2, SHAPE, Keys(seed))
    expected = plain(cells, start, made(kind), settings)
    assert torch.equal(match_distributions(cells, start, made(kind), settings, streams()), expected)
    with fake_gpu():
        there = match_distributions(
            moved(cells), start.to("cuda"), made(kind, "cuda"), settings, streams()
        )
        assert torch.equal(there.cpu(), expected)


def moved(cells: ClassCells) -> ClassCells:
    return replace(cells, pool=cells.pool.to("cuda"))


@pytest.mark.nightly(but=["fixed-1"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", ["ball", "fresh", "fixed"])
def test_more_steps_on_a_device_send_nothing_more_and_wait_for_nothing(
    kind: str, count: int
) -> None:
    def run(steps: int) -> None:
        cells = worlds(0, count)
        start = draw_initial_images("noise", cells, 2, SHAPE, Keys(4)).to("cuda")
        match_distributions(
            moved(cells),
            start,
            made(kind, "cuda"),
            MatchingSettings(steps, batch=3, augment="color_crop_flip"),
            streams(),
        )

    assert (
        repeated(run, 3, 12) == {}
    )  # cutout, scale and rotate make their masks and matrices by themselves


@pytest.mark.parametrize("start", ["real", "noise", "smooth", "statistics"])
def test_starts_on_a_device_are_those_of_the_cpu_and_no_class_or_world_sends_its_own(
    start: str,
) -> None:
    cells = worlds(0)
    keys = [Keys(4).fold(world) for world in cells.worlds.tolist()]
    for streams_of_start in (Keys(4), keys):
        expected = draw_initial_images(start, cells, 3, SHAPE, streams_of_start)
        with fake_gpu() as gpu:
            there = moved(cells)
            gpu.traffic.sent = type(gpu.traffic.sent)()
            found = draw_initial_images(start, there, 3, SHAPE, streams_of_start)
            assert (
                sum(n for place, n in gpu.traffic.sent.items() if place.startswith("privdd")) <= 2
            )  # noise, positions
            assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("start", ["real", "noise", "statistics"])
def test_worlds_in_one_pass_equal_separate_replays(start: str) -> None:
    fixed = records(30, 1, start=10_000)
    candidates = records(40, 2)
    masks = torch.rand((7, 40), generator=Keys(8).torch()) < 0.5
    masks[3] = False  # a world of fixed records only
    candidates = Records(
        candidates.x, torch.where(candidates.y == 5, 4, candidates.y), candidates.ids
    )
    # class 4 only by candidates
    fixed = Records(fixed.x, torch.where(fixed.y >= 4, 0, fixed.y), fixed.ids)
    settings = MatchingSettings(4, batch=5, momentum=0.5, augment=COLOUR_STRATEGY)
    networks = networks_in_ball(MODEL, STATE, STATE, 1.0, Keys(9), logits=True)

    def run(cells):  # type: ignore[no-untyped-def]
        return match_distributions(
            cells,
            draw_initial_images(start, cells, 3, SHAPE, Keys(4)),
            networks,
            settings,
            streams(),
        )

    cells = batched_cells(
        [holding(Records.concat([fixed, candidates.take(mask)])) for mask in masks]
    )
    together = run(cells)
    assert bool((cells.slot[3, 4:] == -1).all()) and bool((cells.slot[:, 5] == -1).all())
    for world, mask in enumerate(masks):
        # another order, too
        alone = single_client_cells(Records.concat([candidates.take(mask), fixed]), CLASSES)
        (x, y), (own_x, own_y) = (
            labelled_images(cells, together, world),
            labelled_images(alone, run(alone), 0),
        )
        assert torch.equal(y, own_y) and torch.allclose(x, own_x, atol=2e-5)


def holding(data: Records) -> Shard:
    return Shard(0, data, data.take([]), data.take([]), CLASSES)


def test_each_world_has_a_cell_of_each_class_that_it_holds() -> None:
    data = records(8, 2, classes=1)
    masks = torch.rand((50, 8), generator=Keys(8).torch()) < 0.5
    assert len(cut_cells(data, masks, CLASSES)) == int(masks.any(1).sum())


def test_what_all_worlds_hold_comes_first() -> None:
    data = records(30, 1)
    shards = [holding(data.take(at)) for at in ([3, 9, 12, 20], [1, 9, 12], [9, 4, 12])]
    cells = batched_cells(shards)
    assert cells.pool.ids.tolist() == data.ids[[9, 12, 1, 3, 4, 20]].tolist()
    for world, shard in enumerate(shards):
        held = {
            int(cells.pool.ids[i])
            for g in cells.groups
            for row in own_rows(cells, g, world)
            for i in g.at[row].tolist()
        }
        assert held == set(shard.train.ids.tolist())


def own_rows(cells: ClassCells, group: ClassSubsets, world: int) -> list[Tensor]:
    """The rows of a group's ``present`` that belong to one world."""
    first = sum(len(g.present) for g in cells.groups[: cells.groups.index(group)])
    at = int(cells.slot[world, group.label]) - first
    return [group.present[at]] if 0 <= at < len(group.present) else []


def test_ids_are_checked() -> None:
    data = records(5)
    with pytest.raises(ValueError, match="ids"):
        batched_cells([holding(Records.concat([data, data]))])


def test_batches_are_uniform_and_move_by_one_when_a_record_leaves() -> None:
    ids = torch.arange(20)
    all_in = torch.ones(1, 20, dtype=torch.bool)
    counts = torch.zeros(20)
    for t in range(2000):
        chosen = take_smallest(record_priorities(ids, Keys(0).fold(t)), all_in, 5)
        assert int(chosen.sum()) == 5
        counts += chosen[0]
    expected = 2000 * 5 / 20
    assert (
        float(((counts - expected).square() / (expected * 0.75)).sum()) < 45
    )  # chi-square, 19 df: p ~ 1e-3
    priority = record_priorities(ids, Keys(1))
    without = all_in.clone()
    without[0, int(priority.argmin())] = False
    both = take_smallest(priority, torch.cat([all_in, without]), 5)
    assert int((both[0] ^ both[1]).sum()) == 2
    assert first_records(priority, without[:, :], 25).shape == (1, 25)


def test_ball_draw_has_norm_rho_over_all_parameters_and_no_direction() -> None:
    draws = [draw_in_ball(STATE, STATE, 5.0, Keys(0).fold(t).torch()) for t in range(40)]
    gaps = torch.stack([torch.cat([(d[n] - STATE[n]).flatten() for n in STATE]) for d in draws])
    assert torch.allclose(gaps.norm(dim=1), torch.full((40,), 5.0), atol=1e-4)
    d = gaps.shape[1]
    assert float(gaps.mean(0).norm()) < 5 * 1.2 / 40**0.5  # a mean of 40 independent directions
    assert float(gaps.var()) == pytest.approx(25 / d, rel=0.05)
    assert (
        draw_in_ball(STATE, ["head.bias"], 1.0, Keys(0).torch())["head.weight"]
        is STATE["head.weight"]
    )


def test_projection_on_the_ball() -> None:
    far = {n: t + 1.0 for n, t in STATE.items()}
    near = project_to_ball(far, STATE, 2.0)
    gap = torch.cat([(near[n] - STATE[n]).flatten() for n in STATE])
    assert float(gap.norm()) == pytest.approx(2.0, rel=1e-5) and float(gap.std()) < 1e-5
    assert all(torch.equal(project_to_ball(near, STATE, 3.0)[n], near[n]) for n in STATE)


def test_fresh_networks_differ_by_iteration_and_repeat_by_key() -> None:
    def network(t: int) -> Tensor:
        law = lambda g: initial(SPEC, SHAPE, CLASSES, g)  # noqa: E731
        return fresh_networks(MODEL, law, Keys(0))(t)(records(2).x)

    assert torch.equal(network(0), network(0)) and not torch.allclose(network(0), network(1))


def test_starts() -> None:
    data = records(30)
    cells = single_client_cells(data, CLASSES)
    real = draw_initial_images("real", cells, 9, SHAPE, Keys(4))
    for cell, label in enumerate(cells.labels.tolist()):
        mine = data.x[data.y == label]
        hits = (real[cell][:, None] == mine[None]).flatten(2).all(2)
        assert bool(hits.any(1).all())
        assert int(hits.any(0).sum()) == min(
            9, len(mine)
        )  # no record twice before all were used once
    many = draw_initial_images("statistics", cells, 400, SHAPE, Keys(4))
    for cell, label in enumerate(cells.labels.tolist()):
        mine = data.x[data.y == label]
        assert float(many[cell].mean()) == pytest.approx(float(mine.mean()), abs=0.01)
        assert float(many[cell].std()) == pytest.approx(float(mine.std(correction=0)), rel=0.02)
    with pytest.raises(ValueError, match="start"):
        draw_initial_images("zeros", cells, 1, SHAPE, Keys(4))


@pytest.mark.parametrize(
    "bad",
    [{"iterations": -1}, {"batch": 0}, {"lr": float("nan")}, {"momentum": 1.0}, {"augment": "x"}],
)
def test_settings_are_checked(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        MatchingSettings(**{"iterations": 3, **bad})  # type: ignore[arg-type]


# Networks in turn are those of their iterations, on every device, and many of them travel together.


SHAPE_NETWORKS = (1, 8, 8)
CLASSES_NETWORKS = 3
# whose buffers are integers as well
SPEC_NETWORKS = ModelSpec(name="convnet", width=4, depth=2, norm="batch")
MODEL_NETWORKS = build(SPEC_NETWORKS, SHAPE_NETWORKS, CLASSES_NETWORKS)
STATE_NETWORKS = initial(SPEC_NETWORKS, SHAPE_NETWORKS, CLASSES_NETWORKS, Keys(3).torch())
X = torch.rand(5, *SHAPE_NETWORKS, generator=Keys(1).torch())


def law(generator: torch.Generator) -> State:
    return initial(SPEC_NETWORKS, SHAPE_NETWORKS, CLASSES_NETWORKS, generator)


def weights() -> list[str]:
    return [
        name
        for name, value in STATE_NETWORKS.items()
        if value.is_floating_point() and "running" not in name
    ]


def made_networks(kind: str, device: str) -> Networks:
    state = {name: value.to(device) for name, value in STATE_NETWORKS.items()}
    kinds: dict[str, Callable[[], Networks]] = {
        "ball": lambda: networks_in_ball(
            MODEL_NETWORKS, state, weights(), 5.0, Keys(7), logits=True
        ),
        "fresh": lambda: fresh_networks(MODEL_NETWORKS, law, Keys(7), device=device),
        "fixed": lambda: fixed_network(MODEL_NETWORKS, state),
        "any": lambda: lambda t: lambda x: x.flatten(1) * t,
    }
    return kinds[kind]()


@pytest.mark.parametrize("kind", ["ball", "fresh", "fixed", "any"])
def test_in_turn_they_are_those_of_each_iteration_and_of_the_cpu(kind: str) -> None:
    expected = [made_networks(kind, "cpu")(t)(X) for t in range(4)]
    assert all(
        torch.equal(embed(X), own)
        for embed, own in zip(
            iterate_networks(made_networks(kind, "cpu"), 4), expected, strict=True
        )
    )
    with fake_gpu():
        for get in (lambda n: iterate_networks(n, 4), lambda n: map(n, range(4))):
            found = [embed(X.to("cuda")) for embed in get(made_networks(kind, "cuda"))]  # type: ignore[no-untyped-call]
            assert all(f.is_cuda for f in found)
            assert all(torch.equal(f.cpu(), own) for f, own in zip(found, expected, strict=True))


def test_a_network_around_the_centre_is_the_draw_in_the_ball() -> None:
    moved = draw_in_ball(STATE_NETWORKS, weights(), 5.0, Keys(7).fold(2).torch())
    assert torch.equal(
        made_networks("ball", "cpu")(2)(X), fixed_network(MODEL_NETWORKS, moved, logits=True)(0)(X)
    )


@pytest.mark.nightly(but=["ball"])
@pytest.mark.parametrize("kind", ["ball", "fresh"])
def test_networks_of_many_iterations_are_sent_at_once(kind: str) -> None:
    def used(count: int) -> None:
        for embed in iterate_networks(made_networks(kind, "cuda"), count):
            embed(X.to("cuda"))

    grown = repeated(used, 2, STEPS_PER_TRANSFER)
    assert [place.split(":")[0] for place in grown] == [
        "tests/distillation/test_distribution_matching.py"
    ]  # the images of this test


@pytest.mark.parametrize("rho", [-1.0, float("nan")])
def test_a_radius_is_checked(rho: float) -> None:
    with pytest.raises(ValueError, match="rho"):
        draw_in_ball(STATE_NETWORKS, weights(), rho, Keys(0).torch())
