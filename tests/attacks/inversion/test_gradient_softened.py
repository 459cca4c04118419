"""Networks with rounded corners: they become the victim's own, and the search keeps what it found there alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from attacks.images import match, psnr
from attacks.inversion.evaluation import class_mean_images
from attacks.inversion.gradient import SOFTENED_SHARE, InvertingGradients, SharpeningObjective, soften_relus
from tests.attacks.pictures import convnet, digits, rng, sent


def test_a_softened_network_is_near_the_victims_and_in_the_end_equal() -> None:
    model, x = convnet(8, side=8, depth=1), digits()[0][:4]
    twin, corners = soften_relus(model)
    relus = sum(isinstance(m, nn.ReLU) for m in model.modules())
    assert len(corners) == relus > 0 and not any(isinstance(m, nn.ReLU) for m in twin.modules())
    assert [n for n, _ in twin.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert torch.equal(twin(x), model(x))
    gaps = []
    for beta in (10.0, 100.0, 1000.0):
        for corner in corners:
            corner.beta = beta
        gaps.append(float((twin(x) - model(x)).abs().max()))
    assert 0 < gaps[2] < gaps[1] < gaps[0] < 1


def test_corners_sharpen_and_are_put_back() -> None:
    _, corners = soften_relus(convnet(2, side=8, depth=1))
    seen: list[float] = []
    blank = torch.zeros(1)

    def slope(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        seen.append(corners[0].beta)
        return blank, blank, images

    sharpening = SharpeningObjective(slope, corners, 10.0, 20)
    for _ in range(20):
        sharpening(blank)
    assert seen[0] == 10 and seen[: int(20 * SOFTENED_SHARE)] == sorted(seen[: int(20 * SOFTENED_SHARE)])
    assert seen[int(20 * SOFTENED_SHARE) - 1] < 1000 and set(seen[int(20 * SOFTENED_SHARE) :]) == {0.0}


@pytest.mark.parametrize("better", [{"soften": 100.0}, {"objective": "absolute"}])
def test_eight_records_are_found_where_the_published_recipe_stalls(better: dict[str, float | str]) -> None:
    (x, y), model = digits(), convnet(32, side=8, depth=2)
    quality, gradients = [], [g[None] for g in sent(model, x[:8], y[:8])]
    near = {"start": class_mean_images(x[300:], y[300:], 10)[y[:8]], "spread": 0.1}
    published = InvertingGradients(iterations=250, tv=1e-4, lr=0.03, schedule="cosine")
    for attack in (published, replace(published, **better)):  # type: ignore[arg-type]
        found = attack.reconstruct_each(model, gradients, (8, 1, 8, 8), labels=y[None, :8], generator=rng(1), **near)[0]  # type: ignore[arg-type]
        quality.append(float(psnr(found.images[match(found.images, x[:8])], x[:8]).mean()))
        assert abs(found.objective - attack.evaluate_objective(model, [g[0] for g in gradients], found.images, y[:8])) < 1e-4
    assert quality[1] > quality[0] + 3
