"""Tests of ``privdd.core.device``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import attacks.tensors as module
from attacks.tensors import ALIGNMENT, STEPS_PER_TRANSFER
from privdd.core.device import copy_to_device, stream_to_device, to_device
from privdd.core.rng import Keys
from tests.fake_device import WrongDevice, fake_gpu

# What is sent together arrives as it was drawn: any shapes and types, in order, on aligned memory,
# within a bound.


CPU = torch.device("cpu")
CUDA = torch.device("cuda")


def drawn(t: int) -> dict[str, Tensor]:
    """Shapes and types that change with the step, an empty tensor and a scalar among them."""
    g = Keys(t).torch()
    return {
        "w": torch.randn(3 + t % 4, 2, generator=g),
        "none": torch.zeros(0, 5),
        "at": torch.randperm(2 + t % 3, generator=g),
        "mask": torch.rand(4, t % 5, generator=g) < 0.5,
        "count": torch.tensor(t),
        "turned": torch.randn(2, 3, generator=g).T,
    }


@pytest.mark.nightly(but=["0", "1"])
@pytest.mark.parametrize(
    "steps",
    [
        0,
        1,
        STEPS_PER_TRANSFER - 1,
        STEPS_PER_TRANSFER,
        STEPS_PER_TRANSFER + 1,
        2 * STEPS_PER_TRANSFER + 3,
    ],
)
def test_a_device_gets_the_bits_of_the_cpu(steps: int) -> None:
    there = []
    with fake_gpu() as gpu:
        for row in stream_to_device(drawn, steps, CUDA):
            assert all(t.is_cuda for t in row.values())
            there.append({name: t.cpu() for name, t in row.items()})
    assert gpu.traffic.sent.total() == 3 * -(
        -steps // STEPS_PER_TRANSFER
    )  # floats, integers and masks: one transfer each
    here = list(stream_to_device(drawn, steps, CPU))
    assert len(here) == len(there) == steps
    for t, (one, other) in enumerate(zip(here, there)):
        assert list(one) == list(other)
        assert all(torch.equal(one[n], other[n]) and one[n].dtype == other[n].dtype for n in one)
        assert all(torch.equal(one[n], value) for n, value in drawn(t).items())


def test_the_cpu_draws_when_a_step_comes_and_copies_nothing() -> None:
    asked: list[int] = []
    tensor = torch.ones(3)

    def draw(t: int) -> dict[str, Tensor]:
        asked.append(t)
        return {"x": tensor}

    rows = stream_to_device(draw, 5, CPU)
    assert next(rows)["x"] is tensor and asked == [0]
    assert copy_to_device([tensor], CPU)[0] is tensor


@pytest.mark.parametrize(
    ("bound", "together"), [(1, 1), (3 * 400, 3), (3 * 400 + 399, 3), (2**30, STEPS_PER_TRANSFER)]
)
def test_no_more_travels_at_once_than_the_bound_unless_one_step_does(
    bound: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BYTES_PER_TRANSFER", bound)
    asked: list[int] = []

    def draw(t: int) -> dict[str, Tensor]:
        asked.append(t)
        return {"x": torch.full((100,), float(t))}  # 400 bytes

    with fake_gpu():
        next(stream_to_device(draw, 2 * STEPS_PER_TRANSFER, CUDA))
    assert asked == list(range(together))


def test_parts_start_on_aligned_memory() -> None:
    """A network's weights behind a bias of odd length would else be read entry by entry, or by
    another kernel."""
    with fake_gpu():
        parts = copy_to_device([torch.ones(n) for n in (1, 7, ALIGNMENT, ALIGNMENT + 1, 3)], CUDA)
        assert [t.storage_offset() % ALIGNMENT for t in parts] == [0] * 5
        assert len({t.untyped_storage().data_ptr() for t in parts}) == 1


# What a task holds is placed once, wherever a tensor is kept in it.


@dataclass(frozen=True)
class Held:
    x: Tensor
    name: str = "a"
    more: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.x.device.type != "cpu":
            raise ValueError("made anew by its constructor, whose checks may read values")

    @cached_property
    def twice(self) -> Tensor:
        return 2 * self.x

    def add(self, x: Tensor) -> Tensor:
        return self.x + x


class Pair(NamedTuple):
    a: Tensor
    b: int


def closure(x: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda y: x + y


def plus(x: Tensor, y: Tensor, *, z: float = 0.0) -> Tensor:
    return x + y + z


def linear() -> nn.Module:
    layer = nn.utils.skip_init(nn.Linear, 3, 3)
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


X = torch.arange(3.0)
HOLDERS: dict[
    str, Callable[[], Callable[[Tensor], Tensor]]
] = {  # each adds something that it holds to its argument
    "closure": lambda: closure(X),
    "closure in a closure": lambda: (lambda f: lambda y: f(y))(closure(X)),
    "partial": lambda: functools.partial(plus, X, z=1.0),
    "bound method": lambda: Held(X).add,
    "network": lambda: linear(),
    "default": lambda: lambda y, x=X: x + y,
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_a_function_takes_what_it_holds_along(kind: str) -> None:
    held = HOLDERS[kind]()
    expected = held(X)
    with fake_gpu():
        there = to_device(held, "cuda")
        found = there(X.to("cuda"))
        assert found.device.type == "cuda" and torch.equal(found.cpu(), expected)
        with pytest.raises(WrongDevice):
            held(X.to("cuda"))  # the original stays where it was
        assert torch.equal(to_device(there, "cpu")(X), expected)


def test_containers_keep_their_kind_and_nothing_is_moved_twice() -> None:
    held = Held(X, more={"list": [X, 1], "pair": Pair(X, 2), "none": None})
    assert held.twice.tolist() == [0, 2, 4]
    with fake_gpu() as gpu:
        there = to_device(held, "cuda")
        assert gpu.traffic.sent.total() == 1  # one tensor, met three times
        assert there.x is there.more["list"][0] and there.x is there.more["pair"].a
        assert isinstance(there.more["pair"], Pair) and there.more["list"][1] == 1
        assert there.twice.device.type == "cuda"  # computed anew, where the tensor is
        assert held.x.device.type == "cpu"


def test_what_is_there_already_is_not_copied() -> None:
    for value in (Held(X), [X], {"x": X}, closure(X), linear(), Pair(X, 1), "word", 3):
        assert to_device(value, "cpu") is value
