"""What a task holds is placed once, wherever a tensor is kept in it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from privdd.core.device import to_device
from tests.fake_device import WrongDevice, fake_gpu


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
HOLDERS: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {  # each adds something that it holds to its argument
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
