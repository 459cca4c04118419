"""Siamese augmentation: each operation against its definition, one draw for all images, no global
generator."""

from __future__ import annotations

import pytest
import torch

from privdd.core.rng import Keys
from privdd.distillation.distribution_matching import (
    COLOUR_STRATEGY,
    DIGIT_STRATEGY,
    Transform,
    draw_transform,
    parse_strategy,
)

SHAPE = (3, 8, 8)


def images(count: int = 4) -> torch.Tensor:
    return torch.rand((count, *SHAPE), generator=Keys(1).torch())


def drawn(name: str, seed: int) -> Transform:
    return draw_transform(name, SHAPE, Keys(seed).torch())


def test_crop_moves_by_at_most_an_eighth_and_fills_with_zeros() -> None:
    x = images()
    seen = set()
    for seed in range(60):
        t = drawn("crop", seed)
        rows = int(t.numbers["rows"])
        columns = int(t.numbers["columns"])
        seen.add((rows, columns))
        expected = torch.zeros_like(x)
        for i in range(8):
            for j in range(8):
                if 0 <= i - rows < 8 and 0 <= j - columns < 8:
                    expected[..., i, j] = x[..., i - rows, j - columns]
        assert torch.equal(t(x), expected)
    assert {r for r, _ in seen} == {-1, 0, 1} == {c for _, c in seen}


def test_cutout_erases_one_square_of_half_the_side_or_what_lies_inside() -> None:
    x = torch.ones(2, *SHAPE)
    sizes = set()
    for seed in range(60):
        gone = drawn("cutout", seed)(x) == 0
        assert torch.equal(gone[0], gone[1])
        rows = gone[0, 0].any(1)
        columns = gone[0, 0].any(0)
        assert int(gone[0, 0].sum()) == int(rows.sum()) * int(columns.sum())
        sizes.add((int(rows.sum()), int(columns.sum())))
    assert max(sizes) == (4, 4) and min(min(s) for s in sizes) >= 2


def test_colour_is_brightness_then_saturation_then_contrast() -> None:
    x = images()
    t = drawn("color", 5)
    n = t.numbers
    assert (
        -0.5 <= n["brightness"] <= 0.5 and 0 <= n["saturation"] <= 2 and 0.5 <= n["contrast"] <= 1.5
    )
    for image, got in zip(x, t(x)):
        y = image + n["brightness"]
        y = (y - y.mean(0)) * n["saturation"] + y.mean(0)
        y = (y - y.mean()) * n["contrast"] + y.mean()
        assert torch.allclose(got, y, atol=1e-6)


def test_flip_happens_half_of_the_time() -> None:
    x = images()
    flips = [torch.equal(drawn("flip", seed)(x), x.flip(-1)) for seed in range(400)]
    assert all(f or torch.equal(drawn("flip", s)(x), x) for s, f in enumerate(flips[:20]))
    assert 150 < sum(flips) < 250  # five standard deviations


def test_rotation_turns_and_scale_stretches_about_the_centre() -> None:
    quarter = Transform("rotate", {"a": 0.0, "b": -1.0, "c": 1.0, "d": 0.0})
    x = images()
    assert torch.allclose(quarter(x), torch.rot90(x, 1, (2, 3)), atol=1e-5)
    for seed in range(30):
        n = drawn("rotate", seed).numbers
        assert (
            n["a"] == n["d"] and n["b"] == -n["c"] and n["a"] ** 2 + n["b"] ** 2 == pytest.approx(1)
        )
        assert abs(n["b"]) <= torch.deg2rad(torch.tensor(15.0)) + 1e-6
        s = drawn("scale", seed).numbers
        assert 1 / 1.2 <= s["a"] <= 1.2 and 1 / 1.2 <= s["d"] <= 1.2 and s["b"] == s["c"] == 0
    assert torch.allclose(
        Transform("scale", {"a": 1.0, "b": 0.0, "c": 0.0, "d": 1.0})(x), x, atol=1e-6
    )


@pytest.mark.parametrize("strategy", [COLOUR_STRATEGY, DIGIT_STRATEGY, "none"])
def test_a_draw_treats_each_image_alone_and_leaves_the_global_generator(strategy: str) -> None:
    x = images(6)
    before = torch.get_rng_state()
    for seed in range(25):
        t = draw_transform(strategy, SHAPE, Keys(seed).torch())
        together = t(x)
        assert torch.allclose(together, torch.cat([t(part) for part in x.split(1)]), atol=1e-6)
        assert torch.allclose(t(torch.cat([x[:2], images(9)]))[:2], together[:2], atol=1e-6)
        assert torch.equal(together, draw_transform(strategy, SHAPE, Keys(seed).torch())(x))
    assert torch.equal(before, torch.get_rng_state())


def test_every_operation_is_drawn_about_as_often() -> None:
    generator = Keys(0).torch()
    names = [draw_transform(COLOUR_STRATEGY, SHAPE, generator).name for _ in range(1200)]
    counts = [names.count(name) for name in parse_strategy(COLOUR_STRATEGY)]
    assert sum(counts) == 1200 and all(140 < c < 260 for c in counts)  # 200 expected, sd 13


def test_gradients_pass_through() -> None:
    for name in parse_strategy(COLOUR_STRATEGY):
        x = images().requires_grad_(True)
        drawn(name, 3)(x).square().sum().backward()
        assert x.grad is not None and float(x.grad.abs().sum()) > 0


def test_unknown_operations_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown"):
        draw_transform("color_mixup", SHAPE, Keys(0).torch())
