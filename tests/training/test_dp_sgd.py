"""Tests of ``privdd.training.dp_sgd``."""

from __future__ import annotations

import pytest
import torch
from opacus import GradSampleModule
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.types import Surface
from privdd.core.rng import Keys
from privdd.core.types import Problem, Records, State, Tensors
from privdd.federated.channel import ClientContext
from privdd.privacy.mechanisms import ClippedSum
from privdd.training.dp_sgd import (
    check_model,
    count_private_steps,
    cross_entropy_of,
    dp_local_sgd,
    record_gradients,
)
from privdd.training.sgd import SharedBatches
from tests.contexts import CLASSES, context, network, records

# DP-SGD: per-record gradients against brute force and Opacus; reduction to plain SGD; refusals.


def start(net: nn.Module) -> State:
    return {name: value.detach().clone() for name, value in net.named_parameters()}


def test_record_gradients_are_those_of_single_batches() -> None:
    net = network()
    data = records(6)
    found = record_gradients(cross_entropy_of(net), start(net), data.x, data.y)
    for i in range(6):
        expected = torch.autograd.grad(
            F.cross_entropy(net(data.x[i : i + 1]), data.y[i : i + 1]), list(net.parameters())
        )
        for (name, _), grad in zip(net.named_parameters(), expected, strict=True):
            assert torch.allclose(found[name][i], grad, atol=1e-6)


def test_record_gradients_are_opacus_ones() -> None:
    net = network()
    data = records(8)
    found = record_gradients(cross_entropy_of(net), start(net), data.x, data.y)
    hooked = GradSampleModule(network(), loss_reduction="sum")
    F.cross_entropy(hooked(data.x), data.y, reduction="sum").backward()
    for name, value in hooked._module.named_parameters():
        assert torch.allclose(found[name], value.grad_sample, atol=1e-5)


def test_without_noise_and_clipping_it_is_sgd() -> None:
    """Full batches, a huge clip norm, no noise: PyTorch's SGD with momentum and weight decay."""
    net = network()
    data = records(20)
    ctx = context({"dpsgd": ClippedSum(1e-6, 1e6, 1.0, 20.0)}, silent=True)
    ours = dp_local_sgd(
        net, start(net), data, lr=0.1, momentum=0.9, weight_decay=0.01, steps=5, ctx=ctx
    )
    theirs = network()
    optimiser = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for _ in range(5):
        optimiser.zero_grad()
        F.cross_entropy(theirs(data.x), data.y).backward()
        optimiser.step()
    for name, value in theirs.named_parameters():
        assert torch.allclose(ours[name], value, atol=1e-5)


def test_every_step_is_a_release_of_one_poisson_sample() -> None:
    net = network()
    data = records(300)
    ctx = context({"dpsgd": ClippedSum(1.0, 1.0, 0.1, 30.0)})
    dp_local_sgd(net, start(net), data, lr=0.1, momentum=0.0, weight_decay=0.0, steps=7, ctx=ctx)
    (row,) = ctx.rows
    assert row.count == 7 and type(row.event).__name__ == "PoissonSampledDpEvent"
    assert len({float(out["0.bias"].sum()) for out in ctx.outputs}) == 7


def test_steps_are_expected_passes_over_the_chance_to_be_sampled() -> None:
    sampled = ClippedSum(1.0, 1.0, 0.1, 30.0)
    assert [count_private_steps(sampled, epochs) for epochs in (3, 0.5, 0.01)] == [30, 5, 1]


def test_an_empty_batch_still_makes_a_step_of_noise() -> None:
    net = network()
    ctx = context({"dpsgd": ClippedSum(1.0, 1.0, 0.5, 10.0)})
    after = dp_local_sgd(
        net, start(net), records(0), lr=0.1, momentum=0.0, weight_decay=0.0, steps=1, ctx=ctx
    )
    assert not torch.equal(after["0.weight"], start(net)["0.weight"])


def test_sensitivity_of_a_step_is_at_most_one() -> None:
    net = network()
    data = records(21)
    moves = []
    for scale in (1.0, 1e3, -5.0):
        harsh = type(data)(data.x * scale, data.y, data.ids)
        exact = []
        for part in (harsh, harsh.take(range(20))):
            ctx = context({"dpsgd": ClippedSum(1.0, 0.1, 1.0, 20.0)})
            dp_local_sgd(
                net, start(net), part, lr=0.1, momentum=0.0, weight_decay=0.0, steps=1, ctx=ctx
            )
            exact.append(
                torch.cat([t.flatten() for t in ctx.observer.outputs[0][1].exact.values()])
            )  # type: ignore[index, union-attr]
        moves.append(float((exact[0] - exact[1]).norm()) * 20.0 / 0.1)
    assert 0.9 < max(moves) <= 1 + 1e-4


def test_what_leaves_depends_on_the_mechanism_alone() -> None:
    net = network()
    q = 0.3
    ctx = context({"dpsgd": ClippedSum(1.0, 1.0, q, 10.0)})
    run = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "steps": 4}
    first = dp_local_sgd(net, start(net), records(30), ctx=ctx, **run)  # type: ignore[arg-type]
    other = context({"dpsgd": ClippedSum(1.0, 1.0, q, 10.0)}, seed=5)
    other.transcript = [dict(out) for out in ctx.outputs]
    again = dp_local_sgd(net, start(net), records(11, seed=2), ctx=other, **run)  # type: ignore[arg-type]
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_corrections_act_after_the_noise() -> None:
    """A proximal pull alone, with the released gradient dropped, moves as its formula says."""
    net = network()
    begin = start(net)
    ctx = context({"dpsgd": ClippedSum(1.0, 1.0)})
    after = dp_local_sgd(
        net,
        begin,
        records(5),
        lr=0.1,
        momentum=0.0,
        weight_decay=0.0,
        steps=1,
        ctx=ctx,
        correct=lambda params, grads: {name: 2.0 * value for name, value in params.items()},
    )
    assert all(torch.allclose(after[name], 0.8 * begin[name], atol=1e-6) for name in begin)


def test_other_losses_and_their_own_draws() -> None:
    net = network()
    data = records(5)
    draws = torch.arange(5.0)

    def loss(params: State, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (weight * params["4.bias"].sum() * x.mean()).sum()

    found = record_gradients(loss, start(net), data.x, data.y, (draws,))
    expected = (draws * data.x.mean((1, 2, 3)))[:, None].expand(5, CLASSES)
    assert torch.allclose(found["4.bias"], expected, atol=1e-6)
    ctx = context({"dpsgd": ClippedSum(1.0, 1.0, 0.5, 5.0)})
    run = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "steps": 2}
    dp_local_sgd(
        net,
        start(net),
        data,
        ctx=ctx,
        loss=loss,
        draws=lambda step, ids: (torch.ones(len(ids)),),
        **run,
    )  # type: ignore[arg-type]


def test_batch_norm_is_refused_with_its_cure() -> None:
    with pytest.raises(ValueError, match=r"model\.norm=group") as refusal:
        check_model(network("batch"))
    assert "\n" not in str(refusal.value)


def test_checking_leaves_the_mode_alone() -> None:
    net = network().eval()
    check_model(net)
    assert not net.training


# DP-SGD beside records that everyone knows: their gradient is added after the noise, exactly.


SHAPE = (1, 2, 2)
CLASSES_PUBLIC = 3
RATE = 0.5
WEIGHT = 0.25


def records_public(count: int, seed: int) -> Records:
    g = torch.Generator().manual_seed(seed)
    return Records(
        torch.rand(count, *SHAPE, generator=g),
        torch.arange(count) % CLASSES_PUBLIC,
        torch.arange(count),
    )


def model() -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, CLASSES_PUBLIC))
    for value in net.parameters():
        value.data = torch.randn(value.shape, generator=torch.Generator().manual_seed(3))
    return net


def mean_gradient(params: Tensors, of: Records) -> dict[str, Tensor]:
    """Of the mean cross-entropy of a linear model, by hand."""
    x = of.x.flatten(1)
    error = (x @ params["1.weight"].T + params["1.bias"]).softmax(1) - torch.eye(CLASSES_PUBLIC)[
        of.y
    ]
    return {"1.weight": error.T @ x / len(of), "1.bias": error.mean(0)}


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_two_steps_follow_the_release_the_correction_and_the_shared_records(
    corrected: bool, shared: bool
) -> None:
    """What the mechanism releases is given here, so each step is known: release, plus 0.1 w, plus
    weight times theirs."""
    net = model()
    public = records_public(6, 1)
    begin = {name: value.detach().clone() for name, value in net.named_parameters()}
    given = [
        {name: torch.full_like(value, 0.2 + i) for name, value in begin.items()} for i in range(2)
    ]
    mechanism = {"dpsgd": ClippedSum(1.0, 1.0, 0.5)}
    queries = {"dpsgd": Surface.GRADIENT}
    ctx = ClientContext(
        0, 0, Keys(0), Problem(SHAPE, CLASSES_PUBLIC, 1), mechanism, queries, transcript=given
    )

    def pull(params: Tensors, grads: Tensors) -> State:
        return {name: grads[name] + 0.1 * params[name] for name in grads}

    extra = (
        SharedBatches(public, torch.Generator().manual_seed(0), len(public), WEIGHT)
        if shared
        else None
    )
    trained = dp_local_sgd(
        net,
        begin,
        records_public(9, 2),
        lr=RATE,
        steps=2,
        ctx=ctx,
        correct=pull if corrected else None,
        extra=extra,
    )
    expected = begin
    for released in given:
        theirs = mean_gradient(expected, public)
        expected = {
            name: value
            - RATE * (released[name] + 0.1 * corrected * value + WEIGHT * shared * theirs[name])
            for name, value in expected.items()
        }
    assert all(torch.allclose(trained[name], value, atol=1e-5) for name, value in expected.items())
