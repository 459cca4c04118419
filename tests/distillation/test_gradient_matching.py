"""Gradient matching, the contrastive term and class statistics against plain implementations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from privdd.core.rng import Keys
from privdd.core.types import Records
from privdd.distillation.gradient_matching import gradient_distance, match_gradient
from privdd.distillation.initial_images import class_statistics
from privdd.models import ModelSpec, build, initial
from privdd.training.contrastive import supervised_contrastive

torch.set_num_threads(1)
SHAPE, CLASSES = (1, 8, 8), 4
SPEC = ModelSpec(name="convnet", width=6, depth=2)


def setup() -> tuple[torch.nn.Module, dict[str, Tensor], Tensor, Tensor]:
    model, state = build(SPEC, SHAPE, CLASSES), initial(SPEC, SHAPE, CLASSES, Keys(0).torch())
    x = torch.rand((12, *SHAPE), generator=Keys(1).torch())
    return model, state, x, torch.arange(12) % CLASSES


def plain_gradient(model: torch.nn.Module, state: dict[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
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
            u, v = row.reshape(-1), other.reshape(-1)
            total = total + 1 - (u @ v) / (u.norm() * v.norm() + 1e-6)
    return total


def test_distance_by_output_unit_without_one_dimensional_tensors() -> None:
    model, state, x, y = setup()
    a, b = ({n: g.detach() for n, g in plain_gradient(model, state, z, y).items()} for z in (x, x.flip(0) ** 2))
    assert float(gradient_distance(a, b)) == pytest.approx(float(plain_distance(a, b)), rel=1e-5)
    moved = {n: (g + 5 if g.ndim == 1 else g) for n, g in b.items()}
    assert float(gradient_distance(a, moved)) == pytest.approx(float(gradient_distance(a, b)), rel=1e-6)
    assert float(gradient_distance(a, {n: 1000 * g for n, g in a.items()})) < 1e-2


def test_matching_is_momentum_sgd_on_that_distance() -> None:
    model, state, x, y = setup()
    target = {n: g.detach() for n, g in plain_gradient(model, state, torch.rand_like(x), y.flip(0)).items()}
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
        float(gradient_distance(plain_gradient(model, state, s, y), target).detach()) for s in (start, end)
    )
    assert after < 0.7 * before


def test_supervised_contrast_by_a_double_loop() -> None:
    g = Keys(2).torch()
    features, labels = torch.randn((9, 5), generator=g), torch.tensor([0, 0, 1, 1, 1, 2, 2, 0, 3])  # 3 is alone
    z, terms = [f / f.norm() for f in features], []
    for j in range(9):
        others = [a for a in range(9) if a != j]
        mates = [p for p in others if labels[p] == labels[j]]
        if not mates:
            continue
        below = sum(math.exp(float(z[j] @ z[a]) / 0.07) for a in others)
        terms.append(-sum(math.log(math.exp(float(z[j] @ z[p]) / 0.07) / below) for p in mates) / len(mates))
    assert float(supervised_contrastive(features, labels)) == pytest.approx(sum(terms) / len(terms), rel=1e-4)


def test_contrast_without_pairs_is_zero_and_has_a_gradient() -> None:
    x = torch.randn((3, 4), generator=Keys(0).torch()).requires_grad_(True)
    loss = supervised_contrastive(x, torch.arange(3))
    loss.backward()
    assert float(loss.detach()) == 0 and x.grad is not None and not bool(x.grad.isnan().any())


def test_class_statistics_and_the_released_form() -> None:
    x = torch.rand((20, 3, 4, 4), generator=Keys(3).torch())
    y = torch.tensor([0] * 18 + [2] * 2)
    found = class_statistics(Records(x, y, torch.arange(20)), 3)
    for label in (0, 2):
        mine = x[y == label].transpose(0, 1).flatten(1)
        assert torch.allclose(found.mean[label], mine.mean(1), atol=1e-6)
        assert torch.allclose(found.std[label], mine.std(1, correction=0), atol=1e-5)
    assert bool((found.mean[1] == 0).all()) and bool((found.std[1] == 0).all())
    flat = Records(torch.full((20, 3, 4, 4), 0.6), y, torch.arange(20))
    released = class_statistics(flat, 3, released=True)
    assert released.mean[0, 0] == pytest.approx(0.54, abs=1e-6) and released.mean[2, 0] == pytest.approx(0.06, abs=1e-6)
