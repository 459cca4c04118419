"""Tests of ``privdd.distillation.public_sets``."""

from __future__ import annotations

import torch
from torch import Tensor

from privdd.distillation.distribution_matching import MatchingSettings
from privdd.distillation.public_sets import PublicDistiller
from privdd.distillation.virtual_images import VirtualImages
from privdd.models import ModelSpec

CLASSES = 3


def distil(iterations: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """(records, images, labels): two images a class of 30 public records."""
    x = torch.rand(30, 1, 8, 8, generator=torch.Generator().manual_seed(5))
    y = torch.arange(30) % CLASSES
    steps = MatchingSettings(iterations=iterations, batch=8, lr=1.0)
    distiller = PublicDistiller(
        distiller=VirtualImages(start="real", warmup=steps, refine=steps),
        model=ModelSpec(name="mlp", width=8, depth=2),
    )
    images, labels = distiller(x, y, CLASSES, 2, torch.Generator().manual_seed(seed))
    return x, images, labels


def test_without_a_step_a_set_from_real_starts_holds_records_of_its_classes() -> None:
    x, images, labels = distil(0, seed=1)
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]
    for image, label in zip(images, labels):
        of_class = x[torch.arange(30) % CLASSES == label]
        assert (of_class - image).abs().flatten(1).amax(1).min() == 0


def test_steps_move_the_set_and_the_stream_decides_it() -> None:
    _, images, _ = distil(3, seed=1)
    _, again, _ = distil(3, seed=1)
    _, other, _ = distil(3, seed=2)
    _, start, _ = distil(0, seed=1)
    assert torch.equal(images, again)
    assert not torch.equal(images, other) and not torch.equal(images, start)
