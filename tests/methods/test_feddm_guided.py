"""FedDMGuided: three reads, one budget; the data set is post-processing; images, soft labels, a
network on them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from scipy.fft import dctn

from privdd.core.rng import Keys
from privdd.core.types import Records
from privdd.distillation.image_fitting import (
    GREY,
    ClassModel,
    CoarsePixels,
    FittingSettings,
    GradientPath,
    GuidanceSettings,
    add_texture,
    build_guided_set,
    draw_silhouettes,
    estimate_class_model,
    fit_to_gradients,
    mix_and_move,
    push_images,
)
from privdd.distillation.linear_head import head_gradients
from privdd.federated.channel import OutputLog
from privdd.methods.feddm_guided import FedDMGuided
from tests.federations import finished, tiny

torch.set_num_threads(1)
ALL = ("privacy.sampling_probability=1",)
GUIDED = (
    "feddm_guided_scattering",
    "algo.rows.width=60",
    "algo.rows.drawings=100",
    "algo.guiding.drawn=20",
    "algo.guiding.fitted=10",
)
SMALL = GuidanceSettings(images=30, drawn=6, steps=2)


def test_one_record_moves_each_read_by_its_clip_norm_and_no_more() -> None:
    experiment = tiny(*GUIDED, *ALL)
    plan = experiment.plan
    shard = experiment.shards[0]
    found = {}
    broadcast = plan.method.broadcast(plan.method.init(plan.problem, plan.keys))
    for x in (torch.ones(shard.shape), torch.zeros(shard.shape), -1e4 * torch.ones(shard.shape)):
        guest = Records(x[None], torch.tensor([3]), torch.tensor([10**6]))
        outputs = []
        for train in (shard.train, Records.concat([shard.train, guest])):
            ctx = replace(plan.client_context(0, 0), observer=OutputLog())
            plan.method.local(broadcast, {}, shard.with_train(train), ctx)
            outputs.append(ctx.observer.outputs)
        for (name, without), (_, inside) in zip(*outputs, strict=True):
            moved = torch.cat([(inside.exact[n] - t).flatten() for n, t in without.exact.items()])
            found.setdefault(name, []).append(float(moved.norm()) / without.sensitivity)
    assert found.keys() == {"head_gradient", "class_sums", "second_moments"}
    for changes in found.values():
        assert 0.95 < max(changes) <= 1 + 1e-4


def test_all_reads_are_paid_from_the_budget_that_was_asked_for() -> None:
    experiment = tiny(
        *GUIDED,
        *ALL,
        "privacy.epsilon=3",
        "algo.rounds=3",
        "algo.read_rounds=2",
        "algo.varied_rounds=1",
    )
    progress = finished(experiment)
    counts = {
        (r.round, r.name): r.count
        for r in progress.ledger.releases
        if r.is_protected and r.client == 0 and r.partition in (None, "label:0")
    }
    assert counts == {
        (0, "head_gradient"): 1,
        (0, "class_sums"): 1,
        (0, "second_moments"): 1,
        (1, "head_gradient"): 1,
        (1, "class_sums"): 1,
        (2, "head_gradient"): 1,
    }
    assert 2.9 < progress.ledger.epsilon() <= 3.0 + 1e-6


@pytest.mark.parametrize("more", [(), ("partition.clients=1", "partition=iid")])
def test_a_data_set_and_a_network_are_published_after_the_last_round_only(
    more: tuple[str, ...],
) -> None:
    experiment = tiny(*GUIDED, *ALL, *more)
    method = experiment.plan.method
    assert isinstance(method, FedDMGuided)
    before = method.broadcast(method.init(experiment.plan.problem, experiment.plan.keys))
    assert before.keys() == {"model"}
    sent = method.broadcast(finished(experiment).server)
    assert sent.keys() == {"model", "images", "labels", "network"}
    x = sent["images"]["x"]
    soft = sent["labels"]["soft"]
    assert (
        len(x) == len(soft) == method.guiding.images and float(x.min()) >= 0 and float(x.max()) <= 1
    )
    assert torch.allclose(soft.sum(1), torch.ones(len(soft)), atol=1e-5)
    assert torch.equal(sent["labels"]["y"], soft.argmax(1))


@pytest.mark.nightly
def test_images_are_fitted_to_all_gradients_that_were_released() -> None:
    experiment = tiny(*GUIDED, *ALL)
    method = experiment.plan.method
    server = finished(experiment).server
    assert isinstance(method, FedDMGuided)
    weights = server["path/weights"]
    gradients = server["path/gradients"]
    assert len(weights) == len(gradients) == method.rounds == 2 and not weights[0].any()
    velocity = method.momentum * gradients[0] + gradients[1]  # heavy ball
    assert torch.allclose(velocity, server["velocity/head.weight"], atol=1e-7)
    assert torch.allclose(
        gradients[0] / gradients[0].norm(), -weights[1] / weights[1].norm(), atol=1e-6
    )
    keys = experiment.plan.keys.fold("again")
    again = [
        method._publish_dataset({**server, "path/gradients": sign * gradients}, keys)["images/x"]
        for sign in (1, 1, -1)
    ]
    assert torch.equal(again[0], again[1]) and not torch.allclose(again[0], again[2], atol=0.05)


def test_the_network_learns_from_the_data_set_alone() -> None:
    """Chance is 0.1."""
    experiment = tiny(
        *GUIDED,
        *ALL,
        "privacy.noise_multiplier=0.1",
        "algo.rounds=10",
        "algo.rows.width=100",
        "algo.guiding.images=600",
        "algo.server.epochs=30",
    )
    progress = finished(experiment)
    test = experiment.test_records
    found = experiment.plan.method.predict(progress.server, None, test.x).argmax(1)
    assert float((found == test.y).float().mean()) > 0.35


def test_classes_look_as_their_records_do_however_often_they_were_read() -> None:
    """Without noise the class model is that of all clients' records, each look shortened to
    ``reach``: the sums of three reads, of parts of unit length, are undone to the last digit."""
    reads = ("algo.rounds=3", "algo.read_rounds=3", "algo.varied_rounds=2")
    experiment = tiny(*GUIDED, "privacy=none", "data.limit=600", *reads)
    method = experiment.plan.method
    assert isinstance(method, FedDMGuided)
    shape = experiment.plan.problem.shape
    model = method._estimate_classes(finished(experiment).server, shape)
    records = Records.concat([shard.train for shard in experiment.shards])
    looks = method.looks(records.x)
    lengths = looks.norm(dim=1, keepdim=True)
    assert bool((lengths > method.reach).any()) and bool((lengths < method.reach).any())
    looks = looks * (method.reach / lengths).clamp_max(1)
    varied = looks[:, method.varied.positions_in(method.looks, shape)]
    for label in experiment.plan.problem.class_list:
        of_class = records.y == label
        assert torch.allclose(model.means[label], looks[of_class].mean(0), atol=1e-6)
        spread = model.spread[label]
        covariance = torch.cov(varied[of_class].T, correction=0)
        assert torch.allclose(spread.T @ spread, covariance, atol=1e-6)


def class_data(n: int = 3000) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(looks (n, 8) of three classes, labels (n,), the spread of all classes (8, 8)): normal by
    class."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.zeros(8, 8)
    mix[0, 0], mix[1, 1], mix[1, 2] = 0.5, 0.3, 0.2
    y = torch.arange(n) % 3
    means = torch.randn(3, 8, generator=generator)
    return means[y] + torch.randn(n, 8, generator=generator) @ mix, y, mix.T @ mix


def sums_of(x: torch.Tensor, y: torch.Tensor, std: float) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = x.double()
    noise = (
        torch.randn(x.shape[1], x.shape[1], generator=generator, dtype=torch.float64).triu() * std
    )
    half = noise.triu(1) / 2**0.5
    member = F.one_hot(y).double().T
    return {
        "sum": member @ x
        + std * torch.randn(3, x.shape[1], generator=generator, dtype=torch.float64),
        "count": member.sum(1),
        "variance": torch.tensor([std**2]),
        "moments": (x.T @ x + noise.diag().diag() + half + half.T)[None],
        "moments_variance": torch.tensor([std**2]),
    }


def test_the_class_model_is_that_of_the_records_without_noise() -> None:
    x, y, spread = class_data()
    model = estimate_class_model(
        sums_of(x, y, 0.0), torch.zeros(8, dtype=torch.long), torch.arange(8)
    )
    means = torch.stack([x[y == c].mean(0) for c in range(3)])
    assert torch.allclose(model.means, means, atol=1e-5)
    residual = x - means[y]
    assert torch.allclose(model.spread.T @ model.spread, residual.T @ residual / len(x), atol=1e-4)
    drawn = model.draw_records(torch.arange(30000) % 3, torch.Generator().manual_seed(2))
    assert torch.allclose(torch.cov((drawn - means[torch.arange(30000) % 3]).T), spread, atol=0.03)


def test_noise_is_told_from_signal() -> None:
    """Directions that are noise alone are left out, and means are nearer than the noised ones
    are."""
    x, y, spread = class_data()
    sums = sums_of(x, y, 60.0)
    model = estimate_class_model(sums, torch.zeros(8, dtype=torch.long), torch.arange(8))
    assert len(model.spread) == 2 + 8  # as many as there are, and one number each
    assert torch.allclose(model.spread.T @ model.spread, spread, atol=0.15)
    means = torch.stack([x[y == c].mean(0) for c in range(3)])
    raw = (sums["sum"] / sums["count"][:, None]).float()
    assert float((model.means - means).norm()) < float((raw - means).norm())
    nothing = estimate_class_model(
        sums_of(0 * x, y, 60.0), torch.zeros(8, dtype=torch.long), torch.arange(8)
    )
    assert len(nothing.spread) == 8 and float(nothing.means.norm()) < float(raw.norm()) / 10
    assert float(nothing.spread.square().sum()) < 0.1  # of 60 / 3,000 in each number, averaged


def class_sums_of(x: torch.Tensor, y: torch.Tensor, std: float) -> dict[str, torch.Tensor]:
    """``sums_of``, with second moments of each class."""
    by_class = [sums_of(x[y == c], 0 * y[y == c], std)["moments"] for c in range(3)]
    return {**sums_of(x, y, std), "moments": torch.cat(by_class)}


def spread_data(n: int = 6000) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(looks (n, 8), labels, the covariance (3, 8, 8) of each class): the classes differ in one
    direction each."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    roots = torch.stack(
        [
            torch.diag(torch.tensor([0.2] * 8) + 0.8 * F.one_hot(torch.tensor(c), 8))
            for c in range(3)
        ]
    )
    x = torch.einsum("nq,nqr->nr", torch.randn(n, 8, generator=generator), roots[y])
    return x, y, roots.mT @ roots


def test_each_class_spreads_as_its_records_do() -> None:
    x, y, truth = spread_data()
    model = estimate_class_model(
        class_sums_of(x, y, 0.0), torch.zeros(8, dtype=torch.long), torch.arange(8)
    )
    assert torch.allclose(model.spread.mT @ model.spread, truth, atol=0.06)
    labels = torch.arange(30000) % 3
    drawn = model.draw_records(labels, torch.Generator().manual_seed(2))
    for c in range(3):
        assert torch.allclose(torch.cov(drawn[labels == c].T), truth[c], atol=0.08)


def test_a_class_differs_from_all_by_what_noise_does_not_hide_and_by_nothing_more() -> None:
    x, y, truth = spread_data()
    bands = torch.zeros(8, dtype=torch.long)
    at = torch.arange(8)
    shared = estimate_class_model(sums_of(x, y, 0.0), bands, at).spread
    for std, own in ((40.0, True), (4000.0, False)):
        model = estimate_class_model(class_sums_of(x, y, std), bands, at)
        found = model.spread.mT @ model.spread
        apart = (found - found.mean(0)).norm()
        assert (float(apart) > 0.5) == own, std
    near = estimate_class_model(class_sums_of(x, y, 40.0), bands, at).spread
    assert float((near.mT @ near - truth).norm()) < 0.5 * float((shared.T @ shared - truth).norm())


def test_what_stands_out_nowhere_is_spread_evenly_within_a_band() -> None:
    """Two bands of unlike variance, the directions of each below the noise's edge."""
    generator = torch.Generator().manual_seed(0)
    bands = torch.arange(40) // 20
    x = torch.randn(6000, 40, generator=generator).double() * torch.where(bands == 0, 0.15, 0.05)
    y = torch.arange(6000) % 3
    model = estimate_class_model(sums_of(x, y, 60.0), bands, torch.arange(40))
    variance = (model.spread.T @ model.spread).diag()
    assert 40 <= len(model.spread) <= 45  # hardly a direction stands out
    assert (
        abs(float(variance[:20].mean()) - 0.15**2) < 0.006
        and abs(float(variance[20:].mean()) - 0.05**2) < 0.006
    )


def test_coarse_pixels_are_the_cosine_transform_and_turn_back() -> None:
    x = torch.rand(3, 2, 8, 6, generator=torch.Generator().manual_seed(0))
    whole = CoarsePixels(9)
    assert torch.allclose(
        whole(x),
        torch.tensor(dctn(x.numpy() - GREY, axes=(2, 3), norm="ortho")).flatten(1) / 96**0.5,
        atol=1e-6,
    )
    assert torch.allclose(whole.to_images(whole(x), (2, 8, 6)), x, atol=1e-5)
    coarse = CoarsePixels(4)
    at = CoarsePixels(4).positions_in(CoarsePixels(6), (2, 8, 6))
    assert torch.allclose(coarse(x), CoarsePixels(6)(x)[:, at], atol=1e-6)
    assert torch.allclose(
        coarse(coarse.to_images(coarse(0.5 + 0 * x), (2, 8, 6))), coarse(0.5 + 0 * x), atol=1e-6
    )
    assert (
        float(whole(x).norm(dim=1).max())
        <= float((x - GREY).square().mean((1, 2, 3)).sqrt().max()) + 1e-6
    )
    assert coarse.frequency_bands((2, 8, 6))[:6].tolist() == [0, 1, 2, 3, 1, 1]


def test_varied_images_stay_images_and_are_the_pool_where_nothing_is_varied() -> None:
    pool = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))

    def made(count, mixing, moves):
        return mix_and_move(pool, count, mixing, moves, torch.Generator().manual_seed(0))

    x = made(30, 0.5, 0.1)
    assert x.shape == (30, 1, 8, 8) and float(x.min()) >= 0 and float(x.max()) <= 1
    assert torch.allclose(made(None, 0.0, 0.0), pool, atol=1e-5)
    still = made(30, 0.0, 0.0)
    nearest = (still[:, None] - pool).abs().amax((2, 3, 4)).min(1)
    assert float(nearest.values.max()) < 1e-5 and len(nearest.indices.unique()) == 5
    weights = torch.linalg.lstsq(
        pool.flatten(1).T, made(30, 0.5, 0.0).flatten(1).T
    ).solution.T  # five random images
    assert (
        torch.allclose(weights.sum(1), torch.ones(30), atol=1e-3) and float(weights.min()) > -1e-3
    )
    assert float(weights.max(1).values.min()) >= 0.499  # of two images, the first the larger part


def test_labels_are_the_heads_and_the_same_arguments_give_the_same_set() -> None:
    model = ClassModel(torch.rand(3, 64), torch.zeros(0, 64), torch.arange(64))
    guiding = replace(SMALL, temperature=2.0)
    looks = CoarsePixels(8)
    made = [
        build_guided_set(model, looks, lambda x: x.flatten(1)[:, :3], (1, 8, 8), guiding, Keys(3))
        for _ in range(2)
    ]
    assert all(torch.equal(first, second) for first, second in zip(*made, strict=True))
    x, soft = made[0]
    assert x.shape == (30, 1, 8, 8) and torch.allclose(
        soft, torch.softmax(2 * x.flatten(1)[:, :3], 1), atol=1e-6
    )


def test_pushed_images_become_their_class_by_small_steps_and_each_by_itself() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(70, 1, 12, 12, generator=generator)
    y = torch.arange(70) % 3
    score = lambda images: 20 * F.adaptive_avg_pool2d(images, (3, 1)).flatten(1)  # noqa: E731
    after = push_images(x, y, score, 12, 0.06, Keys(0))
    assert (
        float((score(x).argmax(1) == y).float().mean()) < 0.6
        and float((score(after).argmax(1) == y).float().mean()) > 0.9
    )
    moved = (after - x).square().mean((1, 2, 3)).sqrt()
    assert float(moved.mean()) > 0.02 and float(moved.max()) < 12 * 0.06
    assert float(after.min()) >= 0 and float(after.max()) <= 1
    one = push_images(x, y, score, 1, 0.06, Keys(0)) - x
    free = ((x > 0.2) & (x < 0.8)).expand_as(one)
    assert (
        float(one[free].abs().max()) > 0
        and float(one.square().mean((1, 2, 3)).sqrt().max()) <= 0.3 * 0.06 + 1e-6
    )
    other = x.clone()
    other[1:] = 0.5
    assert torch.allclose(push_images(other, y, score, 12, 0.06, Keys(0))[0], after[0], atol=1e-6)
    assert torch.equal(push_images(x, y, score, 0, 0.06, Keys(0)), x)


def path_of(x: torch.Tensor, y: torch.Tensor, longest: float | None) -> GradientPath:
    """Of six heads: the mean gradients of records x, as clients compute them."""
    weights = torch.randn(6, 3, 16, generator=torch.Generator().manual_seed(1))
    gradients = torch.stack(
        [head_gradients(w, x.flatten(1), y, longest).to_rows().mean(0) for w in weights]
    )
    return GradientPath(weights, gradients, torch.bincount(y, minlength=3).double(), longest)


@pytest.mark.parametrize("longest", [None, 0.3])
def test_gradients_of_images_are_those_that_clients_send(longest: float | None) -> None:
    """Also of fewer images in other proportions, which stand for all records of their class."""
    x = torch.rand(7, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    few = torch.tensor([0, 1, 2, 0, 1])
    y = torch.tensor([0, 1, 2, 0, 1, 1, 1])
    path = path_of(x, y, longest)
    assert torch.allclose(path.mean_gradients_of(x.flatten(1), y), path.gradients, atol=1e-6)
    # five images, of which two of one class stand for two records each
    records = x[[0, 1, 2, 3, 4, 1, 4]]
    assert torch.allclose(
        path.mean_gradients_of(x[:5].flatten(1), few),
        path_of(records, y, longest).gradients,
        atol=1e-6,
    )


def test_fitted_images_look_to_the_head_like_the_records() -> None:
    """Images that began alike have their class's mean look, which gradients tell and no image's
    label could."""
    generator = torch.Generator().manual_seed(0)
    x = 0.3 * torch.rand(300, 1, 4, 4, generator=generator)
    y = torch.arange(300) % 3
    x[y == 0, :, 0] += 0.6
    x[y == 1, :, :, 2] += 0.6
    path = path_of(x, y, None)
    labels = torch.arange(12) % 3
    start = torch.full((12, 1, 4, 4), 0.4)
    after = fit_to_gradients(
        start,
        labels,
        lambda images: images.flatten(1),
        path,
        FittingSettings(steps=60, lr=0.06, smoothness=1e-7),
    )
    assert float(after.min()) >= 0 and float(after.max()) <= 1

    def miss(images: torch.Tensor) -> float:
        return float((path.mean_gradients_of(images.flatten(1), labels) - path.gradients).norm())

    assert miss(after) < 0.1 * miss(start)
    means = torch.stack([x[y == c].mean(0) for c in range(3)])
    assert float((after - means[labels]).norm()) < 0.2 * float((start - means[labels]).norm())


def test_fitted_images_join_those_that_are_mixed() -> None:
    model = ClassModel(torch.rand(3, 64), torch.zeros(0, 64), torch.arange(64))
    seen: list[torch.Tensor] = []

    def fit(images: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(y)
        return torch.zeros_like(images)

    guiding = replace(
        SMALL, images=400, drawn=1, fitted=9, steps=0, mixing=0.0, moves=0.0, texture=0.0
    )
    x, _ = build_guided_set(
        model, CoarsePixels(8), lambda x: x.flatten(1)[:, :3], (1, 8, 8), guiding, Keys(3), fit
    )
    assert [y.tolist() for y in seen] == [[0, 1, 2] * 3]
    assert (
        0.85 < float((x.amax((1, 2, 3)) == 0).float().mean()) < 1
    )  # 18 of 19: as they were fitted, and pushed


def test_a_share_of_the_images_has_no_texture_and_drawings_may_stay_as_they_are() -> None:
    model = ClassModel(torch.rand(3, 64), torch.zeros(0, 64), torch.arange(64))
    looks = CoarsePixels(8)
    plain = replace(SMALL, drawn=3, steps=0, mixing=0.0, moves=0.0, clean=0.5, silhouettes=False)
    x, _ = build_guided_set(model, looks, lambda x: x.flatten(1)[:, :3], (1, 8, 8), plain, Keys(3))
    apart = (x[:, None] - looks.to_images(model.means, (1, 8, 8))).abs().amax((2, 3, 4)).amin(1)
    assert float(apart[:15].max()) < 1e-4 and float(apart[15:].min()) > 1e-3


def test_silhouettes_are_dark_outside_of_what_is_bright() -> None:
    images = torch.zeros(200, 1, 8, 8)
    images[..., 2:6, 2:6] = 1.0
    made = draw_silhouettes(images, torch.Generator().manual_seed(0))
    outside = made[(images == 0).expand_as(made)]
    assert float(made.min()) >= 0 and float(made.max()) <= 1 and float(outside.max()) < 0.25
    assert (
        float(made[..., 2:6, 2:6].mean()) > 0.6
        and float(made[..., 2:6, 2:6].std((1, 2, 3)).max()) > 0.1
    )


def test_textures_are_as_strong_as_they_may_be_and_none_where_there_are_to_be_none() -> None:
    images = torch.full((400, 2, 9, 7), 0.5)
    assert torch.equal(add_texture(images, 0.0, torch.Generator()), images)
    laid = add_texture(images, 0.1, torch.Generator().manual_seed(0))
    assert laid.shape == images.shape and float(laid.min()) >= 0 and float(laid.max()) <= 1
    assert 0.02 < float((laid - 0.5).std()) < 0.1
    rough = (laid[..., 1:] - laid[..., :-1]).square().mean((1, 2, 3)) / laid.var((1, 2, 3))
    assert float(rough.quantile(0.9)) > 5 * float(rough.quantile(0.1))  # of several scales


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("images", 0),
        ("drawn", 0),
        ("fitted", -1),
        ("steps", -1),
        ("rate", 2.0),
        ("temperature", 0.0),
        ("mixing", 2.0),
        ("moves", -1.0),
        ("texture", -0.1),
        ("clean", 1.5),
    ],
)
def test_settings_without_a_meaning_are_refused(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"guiding.{key}="):
        replace(SMALL, **{key: value})


@pytest.mark.nightly(
    cases=["algo.varied_rounds=9-varied_rounds=9: at least 1, and at most read_rounds=2"]
)
@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("algo.read_rounds=0", "read_rounds=0"),
        ("algo.varied_rounds=9", "varied_rounds=9: at least 1, and at most read_rounds=2"),
        ("algo.varied.side=21", "varied.side=21"),
        ("algo.reach=0", "reach=0"),
        ("algo.clip_norm=0", "clip_norm=0"),
        ("model.norm=batch", "model.norm=batch"),
    ],
)
def test_what_has_no_meaning_or_no_guarantee_is_refused(override: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        tiny(*GUIDED, override)


def test_fewer_drawings_than_classes_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^algo\.guiding\.drawn=9: at least 10, one for each class of the data$"
    ):
        tiny(*GUIDED, "algo.guiding.drawn=9")
    assert tiny(*GUIDED, "algo.guiding.drawn=10")
