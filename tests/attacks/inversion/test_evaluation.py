"""Pictures one by one: a record that shows is seen among others that do not, and chance is paid
for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attacks.images import psnr
from attacks.inversion import evaluation as module
from attacks.inversion.evaluation import (
    CLEAR,
    ChanceOfGain,
    chance_of_gain,
    compare_with_records,
    pictures,
)
from attacks.types import Adversary, Knowledge, Surface, Truth, View
from tests.attacks.pictures import digits


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without LPIPS and intervals of the mean, which nothing here reads."""
    monkeypatch.setattr(module, "load_pretrained_trunk", lambda: None)
    monkeypatch.setattr(module, "bootstrap_interval", lambda *_: (0.0, 0.0))


def scene(seed: int, count: int) -> tuple[View, Truth, Tensor]:
    """A view with 350 public records, the truth with 100 held out, and for each record another one
    of its class."""
    x, y = digits()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    own, held, public, rest = order.split([count, 100, 350, len(x) - 450 - count])
    view = View(
        Surface.FEATURES, Adversary.SERVER, (), Knowledge((1, 8, 8), 10, x[public], y[public])
    )
    other = torch.stack([x[rest[y[rest] == label][i]] for i, label in enumerate(y[own])])
    return (
        view,
        Truth(x[own], y[own], x[held], y[held], torch.bincount(y[own], minlength=10)),
        other,
    )


def found(seed: int, count: int, shown: int, paired: bool) -> dict[str, Any]:
    """``shown`` of the pictures are their records with a little noise, the others of somebody
    else."""
    view, truth, images = scene(seed, count)
    noise = 0.04 * torch.randn(truth.x.shape, generator=torch.Generator().manual_seed(seed))
    images[:shown] = (truth.x + noise)[:shown].clamp(0, 1)
    return dict(
        compare_with_records(
            images, view, truth, torch.arange(count) if paired else None
        ).measures.pictures
    )


@pytest.mark.parametrize("paired", [True, False])
def test_pictures_of_others_do_not_stand_out(paired: bool) -> None:
    """In 60 nulls each test errs in 2.5 %: that more than six do has a chance of one in a hundred
    thousand."""
    told = [found(seed, 4, 0, paired) for seed in range(60)]
    assert sum(one["clear"] > 0 and one["chance_best"] < 0.025 for one in told) <= 6
    assert sum(one["clear"] > 0 and 1 - (1 - one["chance"]) ** 4 < 0.025 for one in told) <= 6


@pytest.mark.parametrize("paired", [True, False])
def test_one_record_among_four_is_seen_and_not_in_the_median(paired: bool) -> None:
    told = [found(seed, 4, 1, paired) for seed in range(10)]
    assert sum(one["chance_best"] < 0.01 for one in told) >= 9 and all(
        one["clear"] >= 1 for one in told
    )
    assert (
        all(one["best"] > 25 for one in told)
        and sum(one["median"] < one["guess"] for one in told) >= 7
    )


def test_the_closest_guess_of_each_record_is_kept() -> None:
    view, truth, images = scene(3, 4)
    compared = compare_with_records(images, view, truth, torch.arange(4))
    public = view.knowledge.public_x
    guesses = compared.figures["guess"]
    assert guesses.shape == truth.x.shape
    for record, guess in zip(truth.x, guesses):
        assert ((record - guess) ** 2).sum() <= ((record - public) ** 2).flatten(1).sum(1).min()
    best = compared.measures.pictures["best_guess"]
    assert any(abs(float(value) - best) < 1e-3 for value in psnr(guesses, truth.x))


def test_the_median_is_no_mean() -> None:
    quality = torch.tensor([10.0, 11.0, 12.0, 200.0])
    guess = torch.tensor([13.0, 9.0, 13.0, 13.0])
    seen = pictures(quality, [guess, guess - 1], guess)
    assert seen["median"] == np.median(quality) == 11.5 and seen["guess"] == 13
    assert (seen["clear"], seen["best"], seen["best_guess"], seen["n"]) == (
        1,
        200,
        13,
        4,
    ) and "chance" not in seen


@pytest.mark.parametrize("dimension", [2, 4])
def test_the_dimension_is_found_and_not_two_thirds_of_it(dimension: int) -> None:
    """Uniform points in a cube: the lower end lies below the truth, and little below it."""
    draw = torch.Generator().manual_seed(2)
    public, held = (torch.rand(count, 1, 1, dimension, generator=draw) for count in (2000, 2000))
    assert 0.85 * dimension < chance_of_gain(public, held, 10).dimension < 1.02 * dimension


def test_the_chance_of_a_gain_by_hand() -> None:
    """Half the squared error is a distance of 10 ** (-3 / 20): in two dimensions half of that
    area."""
    chance = ChanceOfGain(9, 2.0)
    assert chance.at(CLEAR) == pytest.approx(0.1 * 10 ** (-0.3)) and chance.at(
        0.0
    ) == pytest.approx(0.1)
    assert (
        ChanceOfGain(9, 2.0, choices=3).at(CLEAR, 2) == pytest.approx(6 * chance.at(CLEAR))
        and chance.at(-5.0, 100) == 1.0
    )
    public = torch.zeros(5, 1, 1, 2)
    held = torch.ones(0, 1, 1, 2)
    assert chance_of_gain(public, held, 4).at(30.0) == pytest.approx(
        0.2
    )  # nothing says how much closer is how rare
