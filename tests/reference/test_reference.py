"""Every method ends where a plain loop of torch.optim and autograd ends, number by number.

In float64, so that rounding (which Adam, max pooling and ReLU amplify in float32) cannot hide a
difference. The loops share the random streams and the data types with the stack, and nothing else:
a test reads their imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from privdd.core.rng import Keys
from privdd.core.types import Shard
from privdd.distillation import class_cells
from privdd.distillation.distribution_matching import COLOUR_STRATEGY, draw_transform
from privdd.methods import vhl
from privdd.models import ModelSpec, build, initial
from tests.methods.toy import shards
from tests.reference import draws
from tests.reference.compare import (
    arithmetic,
    bare,
    difference,
    double_precision,
    exact_difference,
    in_double,
    through_stack,
)
from tests.reference.draws import augmentation
from tests.reference.networks import fresh, network
from tests.reference.pairs import PAIRS, Size

HERE = Path(__file__).parent
SETS_AGAINST = {"pairs", "compare", "test_reference"}  # these know both sides
SHARED = {"privdd.core.rng", "privdd.core.types"}
SIZE = Size(width=8, depth=2, iterations=3, batch=16, images=4, epochs=2, anchors=10)
# FedRD's Adam and max pooling amplify 1e-16 to 1e-9; a wrong term is off by far more
TOLERANCE = 1e-7
BOOKKEEPING = {"round", "clients"}


@pytest.fixture
def clients() -> Iterator[list[Shard]]:
    """Two clients of unequal size (so weights and step counts differ), one of which lacks a
    class."""
    large, small = shards([70, 45])
    small = small.with_train(small.train.take(small.train.y != 3))
    yield [large, small]


@pytest.mark.nightly(cases=["fedrd", "fedlgd", "fedfed"])
@pytest.mark.parametrize("name", PAIRS)
def test_stack_ends_where_the_bare_loop_ends(name: str, clients: list[Shard]) -> None:
    with double_precision():
        own = in_double(clients)
        loop = bare(PAIRS[name], SIZE, own)
        stack = through_stack(PAIRS[name], SIZE, own)
    assert set(stack) - set(loop) <= BOOKKEEPING  # nothing that the stack ends with goes unchecked
    assert all(
        value.dtype == torch.float64
        for key, value in loop.items()
        if value.is_floating_point() and "count" not in key
    )
    assert difference(loop, stack) < TOLERANCE


@pytest.mark.nightly(but=["fedavg", "fedprox", "fedavgm"])
@pytest.mark.parametrize("name", PAIRS)
def test_neither_skips_nor_adds_work(name: str, clients: list[Shard]) -> None:
    """Convolutions and matrix products, backward passes included; 2 % is what weighted means by
    product cost."""
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


@pytest.mark.nightly(cases=["feddm", "fedrd", "fedlgd", "fedfed"])
@pytest.mark.parametrize("name", PAIRS)
def test_a_small_change_is_seen(name: str, clients: list[Shard]) -> None:
    """The comparison has teeth: the same loop with one setting a little off ends elsewhere."""
    pair = PAIRS[name]
    change = CHANGES.get(name, {"lr": 0.0505})
    other = replace(
        pair, loop=lambda m, shards, keys: pair.loop(replace(m, **change), shards, keys)
    )
    assert exact_difference(other, SIZE, clients) > 10 * TOLERANCE


def test_double_precision_leaves_nothing_behind(clients: list[Shard]) -> None:
    exact_difference(PAIRS["fedavg"], SIZE, clients)
    assert torch.get_default_dtype() == torch.float32
    assert all(
        v.dtype == torch.float32 for v in through_stack(PAIRS["fedavg"], SIZE, clients).values()
    )


# --- the loops' own draws -------------------------------------------------------------------------


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    found = {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    return found | {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}


def test_the_loops_share_streams_and_data_types_alone() -> None:
    loops = [p for p in HERE.glob("*.py") if p.stem not in SETS_AGAINST]
    assert len(loops) >= 9
    for path in loops:
        found = imported(path)
        ours = {n for n in found if n.split(".")[0] in ("privdd", "attacks")}
        assert ours <= SHARED, f"{path.name} shares {ours - SHARED}"
        assert not {f"tests.reference.{name}" for name in SETS_AGAINST} & found


@pytest.mark.parametrize(
    "name", ["none", "color", "crop", "cutout", "flip", "scale", "rotate", COLOUR_STRATEGY]
)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 12)])
def test_augmentation_agrees(name: str, shape: tuple[int, int, int]) -> None:
    """Forty draws of each: the same pictures, the same gradients, and a stream left at the same
    place."""
    x = torch.rand(2, *shape, generator=Keys(1).torch(), dtype=torch.float64).requires_grad_()
    weights = torch.rand(2, *shape, generator=Keys(2).torch(), dtype=torch.float64)
    with double_precision():
        for i in range(40):
            ours = Keys(i).torch()
            theirs = Keys(i).torch()
            mine = augmentation(name, shape, ours)(x)
            other = draw_transform(name, shape, theirs)(x)
            assert torch.allclose(mine, other, rtol=0, atol=1e-12)
            slopes = [torch.autograd.grad((y * weights).sum(), x)[0] for y in (mine, other)]
            assert torch.allclose(*slopes, rtol=0, atol=1e-12)
            assert torch.equal(ours.get_state(), theirs.get_state())


@pytest.mark.parametrize("seed", range(5))
def test_priorities_agree(seed: int) -> None:
    ids = torch.randint(0, 2**62, (200,), generator=Keys(seed).torch())
    assert torch.equal(
        draws.priorities(ids, Keys(seed)), class_cells.record_priorities(ids, Keys(seed))
    )


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 12, 20)])
def test_anchors_agree(shape: tuple[int, int, int]) -> None:
    with double_precision():
        x, y = draws.anchors(shape, 4, 3, Keys(5))
        stack = vhl.draw_anchors(shape, 4, 3, Keys(5))
    assert torch.equal(y, stack.y) and torch.allclose(x, stack.x, rtol=0, atol=1e-12)


SPECS = [
    ModelSpec(name="convnet", width=8, depth=2),
    ModelSpec(name="convnet", width=8, depth=2, norm="batch", pooling="max"),
    ModelSpec(name="projection"),
    ModelSpec(name="vae", width=8, latent=16, norm="group"),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.name}-{s.norm}")
def test_networks_and_their_initial_values_agree(spec: ModelSpec) -> None:
    shape = (3, 16, 12)
    classes = 5
    with double_precision():
        mine = fresh(spec, shape, classes, Keys(3).torch())
        other = initial(spec, shape, classes, Keys(3).torch())
        assert list(mine) == list(other)
        assert all(torch.allclose(mine[k], other[k], rtol=0, atol=1e-15) for k in mine)
        nets = network(spec, shape, classes, mine), build(spec, shape, classes)
        nets[1].load_state_dict(other)
        x = torch.rand(4, *shape, generator=Keys(4).torch())
        more = [torch.randn(4, 16, generator=Keys(6).torch())] if spec.name == "vae" else []
        outs = [net(x, *more) for net in nets]
    pairs = zip(*outs) if spec.name == "vae" else [outs]
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in pairs)
