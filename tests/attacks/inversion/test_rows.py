"""Rows of a table: inversion by column, and nothing of an image's neighbourhoods."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attacks.images import psnr
from attacks.inversion.analytic import reconstruct_from_layer
from attacks.inversion.evaluation import column_errors, image_qualities
from attacks.inversion.gradient import InvertingGradients
from attacks.inversion.victim import PixelScale
from attacks.membership.label_only import label_robustness
from attacks.types import DataColumn

COLUMNS = (DataColumn("sex", categories=("f", "m")), DataColumn("age", 20.0, 60.0))


def gradients_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    loss = nn.functional.cross_entropy(model(x), y)
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Sigmoid(), nn.Linear(16, 2))


def test_errors_of_columns_are_shares_of_wrong_words_and_parts_of_the_range():
    truth = torch.tensor([[1.0, 0, 0.5], [0, 1, 0.25], [0, 0, 1]])
    rows = torch.tensor([[0.6, 0.4, 0.6], [0.9, 0.1, 0.25], [0.5, 0.1, 0.4]])
    sex, age = column_errors(rows, truth, COLUMNS)
    assert sex["error"] == pytest.approx(2 / 3)  # wrong, and where no word is there to be read
    assert age["error"] == pytest.approx((0.1 + 0 + 0.6) / 3)
    assert (age["name"], age["low"], age["high"]) == ("age", 20.0, 60.0)
    assert sex["categories"] == ("f", "m")


def test_rows_have_a_distance_and_no_structure():
    a, b = torch.zeros(3, 4), torch.full((3, 4), 0.1)
    assert psnr(a, b).tolist() == pytest.approx([20.0] * 3, rel=1e-5)
    assert set(image_qualities(a, b)) == {"psnr"}


def test_one_row_is_read_exactly_from_its_gradient(network):
    x = torch.rand(1, 6)
    found = reconstruct_from_layer(network, gradients_of(network, x, torch.tensor([1])), (1, 6))
    assert found.images.shape == (1, 6) and torch.allclose(found.images, x, atol=1e-4)


def test_total_variation_says_nothing_of_a_row(network):
    x = torch.rand(1, 6)
    y = torch.tensor([1])
    images = [
        InvertingGradients(iterations=40, tv=tv)
        .reconstruct(
            network,
            gradients_of(network, x, y),
            (1, 6),
            labels=y,
            generator=torch.Generator().manual_seed(0),
        )
        .images
        for tv in (0.0, 1.0)
    ]
    assert torch.equal(*images)


def test_a_scale_keeps_the_shape_of_rows():
    x = torch.rand(2, 6)
    assert torch.equal(PixelScale().to_input(x), x)
    assert torch.allclose(PixelScale(0.5, 0.25).to_input(x), (x - 0.5) / 0.25)


def test_a_rows_robustness_does_not_depend_on_other_records(network):
    def labels_of(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return network(x).argmax(1)

    x = torch.rand(12, 6)
    y = labels_of(x)
    scores = [
        label_robustness(labels_of, x[:n], y[:n], 3, torch.Generator().manual_seed(0))
        for n in (12, 5)
    ]
    assert torch.equal(scores[0][:5], scores[1])
