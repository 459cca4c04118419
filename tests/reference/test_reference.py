"""Every method ends where a plain loop of torch.optim and autograd ends, number by number.

In float64, so that rounding (which Adam, max pooling and ReLU amplify in float32) cannot hide a difference.
The loops are those of benchmarks/bare: they share the random streams and nothing of the training stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from privdd.core.types import Shard
from tests.methods.toy import shards
from tests.reference.compare import (
    arithmetic,
    bare,
    difference,
    double_precision,
    exact_difference,
    in_double,
    through_stack,
)
from tests.reference.pairs import PAIRS, Size

SIZE = Size(width=8, depth=2, iterations=3, batch=16, images=4, epochs=2, anchors=10)
TOLERANCE = 1e-7  # FedRD's Adam and max pooling amplify 1e-16 to 1e-9; a wrong term is off by far more
BOOKKEEPING = {"round", "clients"}


@pytest.fixture
def clients() -> Iterator[list[Shard]]:
    """Two clients of unequal size (so weights and step counts differ), one of which lacks a class."""
    large, small = shards([70, 45])
    small = small.with_train(small.train.take(small.train.y != 3))
    yield [large, small]


@pytest.mark.parametrize("name", PAIRS)
def test_stack_ends_where_the_bare_loop_ends(name: str, clients: list[Shard]) -> None:
    with double_precision():
        own = in_double(clients)
        loop, stack = bare(PAIRS[name], SIZE, own), through_stack(PAIRS[name], SIZE, own)
    assert set(stack) - set(loop) <= BOOKKEEPING  # nothing that the stack ends with goes unchecked
    assert all(
        value.dtype == torch.float64 for key, value in loop.items() if value.is_floating_point() and "count" not in key
    )
    assert difference(loop, stack) < TOLERANCE


@pytest.mark.parametrize("name", PAIRS)
def test_neither_skips_nor_adds_work(name: str, clients: list[Shard]) -> None:
    """Convolutions and matrix products, backward passes included; 2 % is what weighted means by product cost."""
    assert arithmetic(PAIRS[name], SIZE, clients) == pytest.approx(1.0, abs=0.02)


CHANGES = {
    "fedprox": {"mu": 0.011},
    "fedavgm": {"server_momentum": 0.899},
    "fedadam": {"tau": 1.01e-3},
    "moon": {"temperature": 0.501},
    "fedproto": {"weight": 1.01},
    "vhl": {"align": 0.101},
    "feddm": {"rho": 2.51},
    "fedrd": {"projection_lr": 0.0101},
    "fedlgd": {"contrast": 1.01},
    "fedfed": {"distill_lr": 1.01e-3},
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_small_change_is_seen(name: str, clients: list[Shard]) -> None:
    """The comparison has teeth: the same loop with one setting a little off ends elsewhere."""
    pair, change = PAIRS[name], CHANGES.get(name, {"lr": 0.0505})
    other = replace(pair, loop=lambda m, shards, keys: pair.loop(replace(m, **change), shards, keys))
    assert exact_difference(other, SIZE, clients) > 10 * TOLERANCE


def test_double_precision_leaves_nothing_behind(clients: list[Shard]) -> None:
    exact_difference(PAIRS["fedavg"], SIZE, clients)
    assert torch.get_default_dtype() == torch.float32
    assert all(v.dtype == torch.float32 for v in through_stack(PAIRS["fedavg"], SIZE, clients).values())
