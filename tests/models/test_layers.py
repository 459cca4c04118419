"""The order of pooling and ReLU changes the cost of a network and not a bit of its results."""

from __future__ import annotations

import torch
from torch import nn

from privdd.core.rng import Keys
from privdd.models import ModelSpec, build, initial
from privdd.models.networks import pool_layer, relu_and_pool


def values_and_slopes(block: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_(True)
    out = block(x)
    return out.detach(), torch.autograd.grad(out.square().sum() + out.sum(), x)[0]


def test_a_maximum_may_be_taken_before_relu_and_a_mean_may_not() -> None:
    # with ties and zeros
    x = torch.randn((8, 5, 8, 8), generator=Keys(1).torch()).round(decimals=1)
    for kind, swapped in (("max", True), ("avg", False)):
        parts = relu_and_pool(pool_layer(kind))
        assert isinstance(parts[0], nn.MaxPool2d) is swapped
        got = values_and_slopes(nn.Sequential(*parts), x)
        expected = values_and_slopes(nn.Sequential(nn.ReLU(), pool_layer(kind)), x)
        assert all(torch.equal(a, b) for a, b in zip(got, expected))


def test_a_small_cnn_is_convolution_relu_pool() -> None:
    """Against the network written out with functions."""
    spec = ModelSpec("smallcnn", width=4)
    shape = (1, 8, 8)
    state = initial(spec, shape, 10, Keys(0).torch())
    x = torch.rand((6, *shape), generator=Keys(2).torch())
    z = x
    for block in (0, 4):
        z = nn.functional.conv2d(
            z, state[f"body.{block}.weight"], state[f"body.{block}.bias"], padding=1
        )
        z = nn.functional.max_pool2d(z.relu(), 2)
    z = nn.functional.linear(z.flatten(1), state["neck.weight"], state["neck.bias"]).relu()
    expected = nn.functional.linear(z, state["head.weight"], state["head.bias"])
    torch.testing.assert_close(
        torch.func.functional_call(build(spec, shape, 10), state, (x,)), expected
    )
