"""``train_privately`` beside records that everyone knows: their gradient is added after the noise, exactly."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attacks.types import Surface
from privdd.core.rng import Keys
from privdd.core.types import Problem, Records, State, Tensors
from privdd.federated.channel import ClientContext
from privdd.privacy.mechanisms import ClippedSum
from privdd.training.dp_sgd import train_privately
from privdd.training.sgd import SharedBatches

SHAPE, CLASSES, RATE, WEIGHT = (1, 2, 2), 3, 0.5, 0.25


def records(count: int, seed: int) -> Records:
    g = torch.Generator().manual_seed(seed)
    return Records(torch.rand(count, *SHAPE, generator=g), torch.arange(count) % CLASSES, torch.arange(count))


def model() -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, CLASSES))
    for value in net.parameters():
        value.data = torch.randn(value.shape, generator=torch.Generator().manual_seed(3))
    return net


def mean_gradient(params: Tensors, of: Records) -> dict[str, Tensor]:
    """Of the mean cross-entropy of a linear model, by hand."""
    x = of.x.flatten(1)
    error = (x @ params["1.weight"].T + params["1.bias"]).softmax(1) - torch.eye(CLASSES)[of.y]
    return {"1.weight": error.T @ x / len(of), "1.bias": error.mean(0)}


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_two_steps_follow_the_release_the_correction_and_the_shared_records(corrected: bool, shared: bool) -> None:
    """What the mechanism releases is given here, so each step is known: release, plus 0.1 w, plus weight times theirs."""
    net, public = model(), records(6, 1)
    begin = {name: value.detach().clone() for name, value in net.named_parameters()}
    given = [{name: torch.full_like(value, 0.2 + i) for name, value in begin.items()} for i in range(2)]
    mechanism = {"dpsgd": ClippedSum(1.0, 1.0, 0.5)}
    queries = {"dpsgd": Surface.GRADIENT}
    ctx = ClientContext(0, 0, Keys(0), Problem(SHAPE, CLASSES, 1), mechanism, queries, transcript=given)

    def pull(params: Tensors, grads: Tensors) -> State:
        return {name: grads[name] + 0.1 * params[name] for name in grads}

    extra = SharedBatches(public, torch.Generator().manual_seed(0), len(public), WEIGHT) if shared else None
    trained, steps = train_privately(
        net, begin, records(9, 2), lr=RATE, momentum=0.0, weight_decay=0.0, epochs=1, ctx=ctx,
        correct=pull if corrected else None, extra=extra,
    )  # fmt: skip
    expected = begin
    for released in given:
        theirs = mean_gradient(expected, public)
        expected = {
            name: value
            - RATE * (released[name] + 0.1 * corrected * value + WEIGHT * shared * theirs[name])
            for name, value in expected.items()
        }  # fmt: skip
    assert steps == 2 and all(torch.allclose(trained[name], value, atol=1e-5) for name, value in expected.items())
