"""Tests of ``attacks.inversion.drawn_weights``."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attacks.inversion.drawn_weights import draw_weights, uninitialised_layer


def draw_network(seed: int) -> nn.Module:
    network = nn.Sequential(
        uninitialised_layer(nn.Conv2d, 4, 64, 3), uninitialised_layer(nn.Linear, 512, 256)
    )
    draw_weights(network, torch.Generator().manual_seed(seed))
    return network


def test_weights_have_kaimings_spread_and_biases_are_zero() -> None:
    """Standard deviation sqrt(2 / fan), the fan being 4 * 3 * 3 and 512 (He et al. 2015)."""
    convolution, linear = draw_network(0)
    assert convolution.weight.std().item() == pytest.approx((2 / 36) ** 0.5, rel=0.05)
    assert linear.weight.std().item() == pytest.approx((2 / 512) ** 0.5, rel=0.02)
    assert not convolution.bias.any() and not linear.bias.any()


def test_weights_follow_their_stream_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (draw_network(seed)[1].weight for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)
