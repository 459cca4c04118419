"""Networks in turn are those of their iterations, on every device, and many of them travel together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from privdd.core.device import MAX_STEPS_PER_COPY
from privdd.core.rng import Keys
from privdd.core.types import State
from privdd.distillation.distribution_matching import (
    Networks,
    draw_in_ball,
    fixed_network,
    fresh_networks,
    iterate_networks,
    networks_in_ball,
)
from privdd.models import ModelSpec, build, initial
from tests.fake_device import fake_gpu, repeated

SHAPE, CLASSES = (1, 8, 8), 3
SPEC = ModelSpec(name="convnet", width=4, depth=2, norm="batch")  # whose buffers are integers as well
MODEL = build(SPEC, SHAPE, CLASSES)
STATE = initial(SPEC, SHAPE, CLASSES, Keys(3).torch())
X = torch.rand(5, *SHAPE, generator=Keys(1).torch())


def law(generator: torch.Generator) -> State:
    return initial(SPEC, SHAPE, CLASSES, generator)


def weights() -> list[str]:
    return [name for name, value in STATE.items() if value.is_floating_point() and "running" not in name]


def made(kind: str, device: str) -> Networks:
    state = {name: value.to(device) for name, value in STATE.items()}
    kinds: dict[str, Callable[[], Networks]] = {
        "ball": lambda: networks_in_ball(MODEL, state, weights(), 5.0, Keys(7), logits=True),
        "fresh": lambda: fresh_networks(MODEL, law, Keys(7), device=device),
        "fixed": lambda: fixed_network(MODEL, state),
        "any": lambda: lambda t: lambda x: x.flatten(1) * t,
    }
    return kinds[kind]()


@pytest.mark.parametrize("kind", ["ball", "fresh", "fixed", "any"])
def test_in_turn_they_are_those_of_each_iteration_and_of_the_cpu(kind: str) -> None:
    expected = [made(kind, "cpu")(t)(X) for t in range(4)]
    assert all(torch.equal(embed(X), own) for embed, own in zip(iterate_networks(made(kind, "cpu"), 4), expected, strict=True))
    with fake_gpu():
        for get in (lambda n: iterate_networks(n, 4), lambda n: map(n, range(4))):
            found = [embed(X.to("cuda")) for embed in get(made(kind, "cuda"))]  # type: ignore[no-untyped-call]
            assert all(f.is_cuda for f in found)
            assert all(torch.equal(f.cpu(), own) for f, own in zip(found, expected, strict=True))


def test_a_network_around_the_centre_is_the_draw_in_the_ball() -> None:
    moved = draw_in_ball(STATE, weights(), 5.0, Keys(7).fold(2).torch())
    assert torch.equal(made("ball", "cpu")(2)(X), fixed_network(MODEL, moved, logits=True)(0)(X))


@pytest.mark.parametrize("kind", ["ball", "fresh"])
def test_networks_of_many_iterations_are_sent_at_once(kind: str) -> None:
    def used(count: int) -> None:
        for embed in iterate_networks(made(kind, "cuda"), count):
            embed(X.to("cuda"))

    grown = repeated(used, 2, MAX_STEPS_PER_COPY)
    assert [place.split(":")[0] for place in grown] == ["tests/distillation/test_distribution_matching_networks.py"]  # the images of this test


@pytest.mark.parametrize("rho", [-1.0, float("nan")])
def test_a_radius_is_checked(rho: float) -> None:
    with pytest.raises(ValueError, match="rho"):
        draw_in_ball(STATE, weights(), rho, Keys(0).torch())
