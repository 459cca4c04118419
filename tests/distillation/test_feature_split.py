"""Private training of FedFed's split: what one record adds to a batch depends on that record
alone."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from attacks.types import Surface
from privdd.core.rng import Keys
from privdd.core.types import Problem, Records, State
from privdd.distillation import feature_split
from privdd.distillation.feature_split import (
    FeatureSplit,
    SplitLoss,
    can_train_together,
    draw_record_noise,
    laplace_from_normal,
    train_split,
    train_split_privately,
    train_splits,
)
from privdd.federated.channel import ClientContext
from privdd.models import ModelSpec, build, initial
from privdd.privacy.clipping import clipped_sum
from privdd.privacy.lattice import Lattice
from privdd.privacy.mechanisms import ClippedSum
from privdd.training.dp_sgd import QUERY

SHAPE = (1, 8, 8)
SPECS = ModelSpec(name="vae", width=4, latent=8, norm="group"), ModelSpec(name="mlp", width=16)
LOSS = SplitLoss(stds=(0.4, 0.6), rho=0.5)
CLIP = 0.5
COUNT = 24
EPOCHS = 3


@lru_cache(maxsize=1)
def model() -> FeatureSplit:
    parts = []
    for i, spec in enumerate(SPECS):
        part = build(spec, SHAPE, 10)
        part.load_state_dict(initial(spec, SHAPE, 10, Keys(i).torch()))
        parts.append(part)
    return FeatureSplit(
        *parts
    ).double()  # batched kernels round by batch size: not in the digits compared


def everyone() -> Records:
    stream = Keys(5).torch()
    x = torch.rand(COUNT, *SHAPE, generator=stream, dtype=torch.float64)
    return Records(x, torch.randint(10, (COUNT,), generator=stream), 1000 + 7 * torch.arange(COUNT))


def test_noise_of_the_joint_loss_has_the_law_that_is_asked_for() -> None:
    """Laplace copies are the normal draws carried over to that law; normal ones are taken as they
    are."""
    records = everyone()
    normal = LOSS
    laplace = replace(LOSS, distribution="laplace")
    stream = Keys(2).torch()
    noise = {"latent": torch.zeros(COUNT, 8, dtype=torch.float64)}
    noise |= {
        f"copy_{i}": torch.randn(records.x.shape, generator=stream, dtype=torch.float64)
        for i in range(2)
    }
    carried = {name: laplace_from_normal(z) if name != "latent" else z for name, z in noise.items()}
    value = {kind: float(model()(records.x, records.y, noise, kind)) for kind in (normal, laplace)}
    assert value[laplace] == pytest.approx(
        float(model()(records.x, records.y, carried, normal)), rel=1e-12
    )
    assert abs(value[laplace] - value[normal]) > 1e-6
    assert kstest(carried["copy_0"].flatten().numpy(), "laplace").pvalue > 1e-3
    assert kstest(noise["copy_0"].flatten().numpy(), "laplace").pvalue < 1e-3


def contributions(records: Records, q: float) -> list[dict[int, State]]:
    """By step: record id -> what it adds before clipping. Coins belong to records, and parameters
    never move."""
    mechanism = ClippedSum(1.0, CLIP, q, 10.0)
    ctx = ClientContext(
        0,
        0,
        Keys(3).fold("round", 0),
        Problem(SHAPE, 10, 1),
        {QUERY: mechanism},
        {QUERY: Surface.UPDATE},
    )
    coins = Keys(8).numpy()
    seen = []
    taken = []

    def sample(name: str, count: int) -> Tensor:
        heads = torch.from_numpy(coins.random(COUNT) < q)[(records.ids - 1000) // 7]
        taken.append(records.ids[heads])
        return heads

    def release(name: str, rows: State) -> State:
        seen.append({int(i): {n: t[at] for n, t in rows.items()} for at, i in enumerate(taken[-1])})
        return {n: torch.zeros(t.shape[1:]) for n, t in rows.items()}

    # type: ignore[method-assign, assignment]
    ctx.sample = sample
    ctx.mechanism = release
    state = {name: t.detach() for name, t in model().named_parameters()}
    train_split_privately(
        model(), state, records, LOSS, lr=0.0, momentum=0.0, epochs=EPOCHS, ctx=ctx
    )
    return seen


@pytest.mark.nightly(cases=["1.0"])
@pytest.mark.parametrize("q", [1.0, 0.6])
def test_a_record_moves_the_clipped_sum_by_the_clip_norm_at_most(q: float) -> None:
    """Removed anywhere in the batch it takes its own contribution with it and changes no other
    one."""
    data = everyone()
    whole = contributions(data, q)
    moves = []
    lattice = Lattice.under(CLIP, CLIP)
    assert len(whole) == round(EPOCHS / q) and (q == 1 or any(len(step) < COUNT for step in whole))
    for gone in (0, COUNT // 2, COUNT - 1):
        left = data.take([i for i in range(COUNT) if i != gone])
        missing = int(data.ids[gone])
        for before, after in zip(whole, contributions(left, q), strict=True):
            assert before.keys() - {missing} == after.keys()
            for i, rows in after.items():
                for name, value in rows.items():
                    assert torch.allclose(value, before[i][name], rtol=1e-9, atol=1e-12), (
                        gone,
                        i,
                        name,
                    )
            stacked = [
                {n: torch.stack([r[n] for r in s.values()]) for n in rows} for s in (before, after)
            ]
            sums = [clipped_sum(part, CLIP, lattice) for part in stacked]
            moves.append(float(lattice.to_numbers(sums[0] - sums[1]).norm()))
    assert 0.9 * CLIP < max(moves) <= CLIP * (1 + 1e-6)


def test_draws_by_position_would_let_it_move_the_others_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As they once were: the first record gone, everybody after it has other draws, and the sum
    moves by more than C."""
    by_record = feature_split.draw_record_noise

    def by_position(ids: Tensor, *rest: Any) -> dict[str, Tensor]:
        return by_record(torch.arange(len(ids)), *rest)

    monkeypatch.setattr(feature_split, "draw_record_noise", by_position)
    data = everyone()
    lattice = Lattice.under(CLIP, CLIP)
    before, after = (contributions(part, 1.0)[0] for part in (data, data.take(range(1, COUNT))))
    names = next(iter(before.values()))
    stacked = [
        {n: torch.stack([rows[n] for rows in step.values()]) for n in names}
        for step in (before, after)
    ]
    sums = [clipped_sum(part, CLIP, lattice) for part in stacked]
    assert float(lattice.to_numbers(sums[0] - sums[1]).norm()) > 1.5 * CLIP


def drawn(ids: Tensor, step: int = 0) -> Tensor:
    """All draws of some records at one step, (n, numbers)."""
    noise = draw_record_noise(ids, Keys(11).fold(step), SHAPE, 8, 2)
    return torch.cat([noise[name].flatten(1) for name in sorted(noise)], 1)


def test_draws_belong_to_the_record_bit_by_bit() -> None:
    ids = torch.tensor([4, 0, 2**40, 17, 5])
    whole = drawn(ids)
    assert whole.dtype == torch.float32
    for order in ([3], [4, 2], [0, 1, 2, 3, 4][::-1]):
        assert torch.equal(drawn(ids[order]), whole[order])
    assert drawn(ids[:0]).shape == (0, whole.shape[1])


def test_draws_are_standard_normal_and_independent() -> None:
    """Between records (neighbouring ids), steps and numbers of one record; bounds are 5 standard
    errors."""
    ids = torch.arange(400)
    # (steps, records, numbers)
    values = torch.stack([drawn(ids, step) for step in range(4)]).double().numpy()
    assert kstest(values.ravel(), "norm").pvalue > 1e-3 and np.isfinite(values).all()
    assert len(np.unique(values)) > 0.99 * values.size
    for axis in range(3):
        lines = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
        assert max(kstest(line, "norm").statistic * np.sqrt(len(line)) for line in lines) < 2.8
        seen = np.corrcoef(lines) - np.eye(len(lines))
        assert np.abs(seen).max() * np.sqrt(lines.shape[1]) < 5.5
        squares = np.corrcoef(lines**2) - np.eye(len(lines))
        assert np.abs(squares).max() * np.sqrt(lines.shape[1]) < 8


@pytest.mark.parametrize("distribution", ["gaussian", "laplace"])
def test_splits_side_by_side_are_those_trained_alone(distribution: str) -> None:
    """In float64, where AdamW makes no steps of rounding; the numbers of records, and of steps,
    differ."""
    loss = replace(LOSS, distribution=distribution)
    state = {name: value.clone() for name, value in model().state_dict().items()}
    rows = [torch.arange(24), torch.arange(3, 20), torch.tensor([5, 1, 2, 23])]
    clients = [everyone().take(r) for r in rows]
    settings: dict[str, Any] = {"lr": 1e-2, "weight_decay": 1e-2, "batch_size": 5, "epochs": 2}
    assert can_train_together(model())
    streams = [Keys(k).torch() for k in range(3)]
    together = train_splits(model(), state, clients, loss, generators=streams, **settings)
    for k, client in enumerate(clients):
        alone, _ = train_split(
            model(), state, {}, client, loss, generator=Keys(k).torch(), **settings
        )
        assert alone.keys() == together[k].keys()
        for name, value in alone.items():
            assert torch.allclose(together[k][name], value, atol=1e-9), name
        assert not torch.allclose(
            together[k]["classifier.head.weight"], state["classifier.head.weight"], atol=1e-3
        )


def test_other_generators_are_trained_alone() -> None:
    zero = FeatureSplit(build(ModelSpec("zero"), SHAPE, 10), model().classifier)
    assert not can_train_together(zero)
