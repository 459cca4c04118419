"""The device that is not there refuses what a GPU refuses, and notes what moves and what waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from tests.fake_device import Marks, WrongDevice, fake_gpu, repeated

HERE = torch.arange(4.0)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


REFUSED: dict[str, Callable[[Tensor], object]] = {
    "sum with a tensor of the CPU": lambda x: x + HERE,
    "result written to the CPU": lambda x: torch.zeros(4).add_(x),
    "numpy": lambda x: x.numpy(),
    "index on the device": lambda x: HERE[x.long()],
    "generator of the CPU": lambda x: torch.randn(4, generator=seeded(), device="cuda"),
    "generator of the CPU, in place": lambda x: x.normal_(generator=seeded()),
    "network on the CPU": lambda x: F.linear(x, torch.ones(2, 4)),
    "inside vmap": lambda x: vmap(lambda row: row + HERE)(x.expand(3, 4)),
    "backward": lambda x: x.requires_grad_().square().backward(HERE),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_mixing_is_refused(kind: str) -> None:
    with fake_gpu(), pytest.raises(WrongDevice):
        REFUSED[kind](HERE.to("cuda"))


ALLOWED: dict[str, Callable[[Tensor], Tensor]] = {
    "numbers": lambda x: x * 2 + torch.tensor(1.0),
    "factory where x is": lambda x: x + torch.ones(4, device=x.device),
    "new_zeros": lambda x: x + x.new_zeros(4),
    "index from the CPU": lambda x: x[torch.tensor([0, 1])],
    "view": lambda x: x.view(2, 2).T,
    "vmap": lambda x: vmap(lambda row: row + torch.zeros(4, device=row.device))(x.expand(3, 4)),
}


@pytest.mark.parametrize("kind", ALLOWED)
def test_results_stay_on_the_device(kind: str) -> None:
    with fake_gpu():
        x = HERE.to("cuda")
        found = ALLOWED[kind](x)
        assert found.device.type == "cuda" and found.is_cuda
        assert torch.equal(found.cpu(), ALLOWED[kind](HERE))


COUNTED: dict[
    str, tuple[Callable[[Tensor], object], tuple[int, int, int]]
] = {  # (sent, fetched, waited)
    "float": (lambda x: float(x.sum()), (0, 0, 1)),
    "branch": (lambda x: bool((x > 0).any()), (0, 0, 1)),
    "mask": (lambda x: x[x > 1], (0, 0, 1)),
    "filled mask": (lambda x: x.__setitem__(x > 1, 0.0), (0, 0, 0)),
    "where": (lambda x: torch.where(x > 1, x, 0.0), (0, 0, 0)),
    "tolist": (lambda x: x.tolist(), (0, 1, 0)),
    "cpu": (lambda x: x.cpu(), (0, 1, 0)),
    "index": (lambda x: x[torch.tensor([0, 1])], (1, 0, 0)),
    "noise": (lambda x: x + torch.randn(4, generator=seeded()).to(x), (1, 0, 0)),
    "same place": (lambda x: x.to("cuda").to(x.device).double(), (0, 0, 0)),
}


@pytest.mark.parametrize("kind", COUNTED)
def test_what_moves_and_what_waits_is_counted(kind: str) -> None:
    run, (sent, fetched, waited) = COUNTED[kind]
    with fake_gpu() as gpu:
        x = HERE.to("cuda")
        gpu.traffic.sent.clear()
        run(x)
        seen = gpu.traffic
        assert (seen.sent.total(), seen.fetched.total(), seen.waited.total()) == (
            sent,
            fetched,
            waited,
        )


def test_training_and_recorded_gradients_stay_there() -> None:
    def gradients(gpu: Marks, net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(net, params, (x[None],)), y[None])

        def all_of(x: Tensor) -> dict[str, Tensor]:
            return vmap(grad(loss), in_dims=(None, 0, 0))(dict(net.named_parameters()), x, y)  # type: ignore[no-any-return]

        found = make_fx(all_of)(x)(x)
        assert all(gpu.on(g) for g in found.values())
        return {name: g.cpu() for name, g in found.items()}

    with fake_gpu() as gpu:
        net = nn.Sequential(
            nn.utils.skip_init(nn.Conv2d, 1, 2, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.utils.skip_init(nn.Linear, 8, 3),
        )
        for parameter in net.parameters():
            nn.init.uniform_(parameter, generator=seeded())
        net = net.to("cuda")
        x = torch.rand(2, 1, 4, 4, generator=seeded()).to("cuda")
        y = torch.tensor([0, 2]).to("cuda")
        each = gradients(gpu, net, x, y)
        F.cross_entropy(net(x), y).backward()
        for name, parameter in net.named_parameters():
            assert gpu.on(parameter.grad) and torch.allclose(
                parameter.grad.cpu(), each[name].mean(0), atol=1e-6
            )
        torch.optim.Adam(net.parameters()).step()
        assert all(parameter.device.type == "cuda" for parameter in net.parameters())


def test_lines_whose_traffic_grows_with_the_steps_are_named() -> None:
    def run(steps: int) -> None:
        x = HERE.to("cuda")
        for _ in range(steps):
            x = x + float(x.sum())

    (line,) = repeated(run, 3, 6)
    assert line.startswith("tests/test_fake_device.py:")


def test_a_loop_that_is_not_on_the_device_is_not_taken_for_one_that_moves_nothing() -> None:
    with pytest.raises(AssertionError, match="nothing was on the device"):
        repeated(lambda steps: HERE + steps, 3, 6)
