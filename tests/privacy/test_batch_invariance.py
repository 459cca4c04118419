"""A record's contribution is the same bits whichever records are computed with it, also at weights
that a server chose."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from privdd.core.rng import Keys
from privdd.core.types import State, Tensors
from privdd.distillation.distribution_matching import build_embedder, record_embeddings
from privdd.distillation.linear_head import head_gradients
from privdd.models import ModelSpec, build, initial
from privdd.privacy import batch_invariance
from privdd.privacy.batch_invariance import LEAST, MOST, PassSizes, compute_rows
from privdd.privacy.clipping import clipped_sum, record_norms
from privdd.privacy.lattice import Lattice
from privdd.training.dp_sgd import cross_entropy_of, record_gradients

SHAPE = (1, 8, 8)
CLASSES = 10
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 20)
NETWORKS = [
    ModelSpec("mlp", width=64),
    ModelSpec("lenet", width=12, depth=3),
    ModelSpec("smallcnn", width=16),
    ModelSpec("convnet", width=16, depth=2, norm="instance"),
]


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=Keys(seed).torch())


def gradients_of(spec: ModelSpec, state: State) -> Callable[[Tensor], Tensor]:
    loss = cross_entropy_of(build(spec, SHAPE, CLASSES))

    def of(x: Tensor) -> Tensor:
        y = (x.flatten(1).sum(1) * 7).long() % CLASSES
        return torch.cat(
            [part.flatten(1) for part in record_gradients(loss, state, x, y).values()], 1
        )

    return of


def embeddings_of(spec: ModelSpec, state: State) -> Callable[[Tensor], Tensor]:
    return lambda x: record_embeddings(
        build_embedder(build(spec, SHAPE, CLASSES), state, logits=True), x
    )


def head_of(x: Tensor) -> Tensor:
    return (
        head_gradients(
            drawn(CLASSES, 64, seed=2),
            x.flatten(1),
            (x.flatten(1).sum(1) * 7).long() % CLASSES,
            0.5,
        )
        .to_rows()
        .flatten(1)
    )


def cases() -> dict[str, Callable[[Tensor], Tensor]]:
    made: dict[str, Callable[[Tensor], Tensor]] = {
        "head": head_of,
        "norms": lambda x: record_norms({"x": x}),
    }
    for spec in NETWORKS:
        state = initial(spec, SHAPE, CLASSES, Keys(0).torch())
        made |= {
            f"gradients of {spec.name}": gradients_of(spec, state),
            f"embeddings of {spec.name}": embeddings_of(spec, state),
        }
    return made


@pytest.mark.nightly(cases=["gradients of lenet", "gradients of smallcnn"])
@pytest.mark.parametrize("name", cases())
def test_the_bits_of_a_row_depend_on_no_other_row(name: str) -> None:
    of = cases()[name]
    x = drawn(40, *SHAPE)
    whole = of(x)
    for size in SIZES:
        for first in (0, 11):
            assert torch.equal(of(x[first : first + size]), whole[first : first + size]), (
                size,
                first,
            )
    assert of(x[:0]).shape == whole[:0].shape


def cancelling(spec: ModelSpec) -> State:
    """Weights under which (a + b) x - a x - b x, which is 0 but for rounding, decides the whole
    gradient."""
    state = {
        name: value.clone()
        for name, value in initial(spec, SHAPE, CLASSES, Keys(0).torch()).items()
    }
    a = drawn(64, seed=3)
    b = drawn(64, seed=4)
    first = state["body.0.weight"]
    second = state["body.2.weight"]
    first[0], first[1], first[2], state["body.0.bias"][:3] = a + b, a, b, 0
    second[:2] = 0
    second[0, :3] = torch.tensor([1e7, -1e7, -1e7])
    second[1, :3] = -second[0, :3]
    state["head.weight"][0, 0] = state["head.weight"][1, 1] = 5
    return state


@pytest.mark.nightly(but=["5"])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 9])
def test_one_record_moves_the_sum_by_the_clip_norm_at_most_at_weights_that_a_server_chose(
    size: int,
) -> None:
    spec = ModelSpec("mlp", width=64)
    lattice = Lattice.under(1.0, 1.0)
    loss = cross_entropy_of(build(spec, SHAPE, CLASSES))
    state = cancelling(ModelSpec("mlp", width=64))
    x = drawn(200, *SHAPE)
    y = torch.randint(CLASSES, (200,), generator=Keys(5).torch())

    def total(at: Tensor) -> Tensor:
        return lattice.to_numbers(
            clipped_sum(record_gradients(loss, state, x[at], y[at]), 1.0, lattice), torch.float64
        )

    draws = [
        torch.randperm(200, generator=Keys(6, (str(turn),)).torch())[:size] for turn in range(60)
    ]
    moves = [float((total(at) - total(at[1:])).norm()) for at in draws]
    assert 0.9 < max(moves) <= 1


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch) -> dict[object, PassSizes]:
    monkeypatch.setattr(batch_invariance, "_TESTED", {})
    return batch_invariance._TESTED  # type: ignore[return-value]


def machine(error: Callable[[int], Tensor]) -> Callable[..., State]:
    """A function of rows on a machine whose kernels add ``error(rows of the pass)`` (n,) to
    them."""
    return lambda params, x: {"row": x.sum(1) * 3 + error(len(x))}


MACHINES = {
    "small passes differ": (lambda n: torch.full((n,), float(n < LEAST)), PassSizes(LEAST, 1, 187)),
    "somewhat larger ones too": (lambda n: torch.full((n,), float(n < 16)), PassSizes(16, 1, 187)),
    "the last of an odd number": (
        lambda n: (torch.arange(n) == n - 1) * (n % 2),
        PassSizes(LEAST, 8, 192),
    ),
    "small ones and odd ones": (
        lambda n: (torch.arange(n) == n - 1) * (n % 2 + (n < 16)),
        PassSizes(16, 16, 192),
    ),
    "sizes differ": (lambda n: torch.full((n,), float(n)), PassSizes(MOST, MOST, MOST, True)),
    "places differ": (lambda n: torch.arange(n) % 7, PassSizes(1, 1, 1, True)),
    "large passes differ": (
        lambda n: torch.full((n,), float(n > 100)),
        PassSizes(LEAST, 1, MOST, True),
    ),
}


@pytest.mark.filterwarnings("ignore:this machine computes")
@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_whose_kernels_differ_is_found_and_served(
    name: str, tested: dict[object, PassSizes]
) -> None:
    error, expected = MACHINES[name]
    of = machine(error)
    x = drawn(150, 5)
    compute_rows(of, {}, x[:3])
    whole = compute_rows(of, {}, x)["row"]
    for first, last in ((0, 1), (3, 7), (5, 150), (20, 30)):
        assert torch.equal(compute_rows(of, {}, x[first:last])["row"], whole[first:last])
    (found,) = tested.values()
    assert found == expected


def test_a_function_is_tested_once_and_again_only_for_larger_passes(
    tested: dict[object, PassSizes],
) -> None:
    calls: list[int] = []

    def once(spec: str, gain: float) -> Callable[..., State]:
        def of(params: Tensors, x: Tensor) -> State:
            calls.append(len(x))
            return {"row": x.sum(1) * gain + len(spec)}

        return of

    for turn in range(5):
        compute_rows(once("same", float(turn)), {}, drawn(20, 5))
    before = len(calls)
    compute_rows(once("same", 1.0), {}, drawn(30, 5))
    assert len(tested) == 1 and len(calls) == before + 1
    compute_rows(once("same", 1.0), {}, drawn(100, 5))
    compute_rows(once("same", 1.0), {}, drawn(120, 5))
    assert [sizes.most for sizes in tested.values()] == [125]
    compute_rows(once("another", 1.0), {}, drawn(20, 5))
    assert len(tested) == 2
