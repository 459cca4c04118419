"""Each test of residuals and coins keeps its false-alarm rate under its own hypothesis, and sees a planted fault."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import pytest
import torch
from scipy import stats
from torch import Tensor

from privdd.auditing.guarantees.residual_law import (
    Look,
    echoes,
    extremes,
    rate,
    reuse,
    same_coins,
    same_noise,
    scale,
    shape,
    shifted,
    single_numbers,
    single_records,
    smallest,
    spread,
)
from privdd.federated.noise_record import echo

RUNS, LEVEL = 400, 0.05
Trial = Callable[[torch.Generator], Look]


def normal(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def coins(g: torch.Generator, draws: int, count: int, q: float) -> Tensor:
    return torch.rand(draws, count, generator=g) < q


def sums(rows: Tensor) -> dict[str, tuple[int, float]]:
    return {str(i): (len(row), float(row.square().sum())) for i, row in enumerate(rows)}


def by_name(rows: Tensor) -> dict[str, Tensor]:
    return {str(i): row for i, row in enumerate(rows)}


def batches(taken: Tensor, q: float) -> Look:
    return spread(taken.sum(1).tolist(), [taken.shape[1]] * len(taken), q, "client")


HEALTHY: dict[str, Trial] = {
    "scale": lambda g: scale(sums(normal(g, 6, 40))),
    "single numbers": lambda g: single_numbers({"w": (8, normal(g, 8, 30).square().sum(0))}),
    "shape": lambda g: shape(list(normal(g, 5, 200))),
    "reuse": lambda g: reuse(by_name(normal(g, 12, 20))),
    "same noise": lambda g: same_noise(normal(g, 30), normal(g, 30), ""),
    "rate": lambda g: rate(int(coins(g, 10, 50, 0.1).sum()), [50] * 10, 0.1, "client"),
    "spread": lambda g: batches(coins(g, 20, 30, 0.1), 0.1),
    "spread of large batches": lambda g: batches(coins(g, 6, 400, 0.3), 0.3),
    "single records": lambda g: single_records(coins(g, 40, 30, 0.1).sum(0), 40, 0.1, "client"),
    "same coins": lambda g: same_coins(by_name(coins(g, 12, 60, 0.1)), 0.1),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_false_alarms_are_no_more_than_the_level(name: str) -> None:
    """At most 5 % of 400 healthy cases below p = 0.05, with three standard errors of room."""
    g = torch.Generator().manual_seed(1)
    alarms = sum(HEALTHY[name](g).p < LEVEL for _ in range(RUNS))
    assert alarms <= RUNS * LEVEL + 3 * sqrt(RUNS * LEVEL * (1 - LEVEL))


@pytest.mark.parametrize("name", [n for n in HEALTHY if n not in ("same coins", "single records", "rate")])
def test_a_p_value_is_not_always_large(name: str) -> None:
    """Tests of continuous values use up a fair part of their level: p-values above what they should be see nothing."""
    g = torch.Generator().manual_seed(2)
    assert sum(HEALTHY[name](g).p < 0.2 for _ in range(RUNS)) > RUNS * 0.2 / 4


def fixed(g: torch.Generator, draws: int, count: int, size: int) -> Tensor:
    order = torch.rand(draws, count, generator=g).argsort(1)
    return order < size


def with_one_always(g: torch.Generator) -> Tensor:
    taken = coins(g, 40, 30, 0.1)
    taken[:, 7] = True
    return taken


FAULTY: dict[str, Trial] = {
    "no noise": lambda g: scale({"w": (3, 0.0)}),
    "0.9 of the noise": lambda g: scale(sums(0.9 * normal(g, 4, 2000))),
    "one number without noise": lambda g: single_numbers({"w": (8, torch.cat([torch.zeros(1), torch.full((29,), 8.0)]))}),
    "uniform noise of the right size": lambda g: shape([(torch.rand(4000, generator=g) - 0.5) * sqrt(12)]),
    "two releases share their noise": lambda g: reuse(by_name(normal(g, 5, 10)[[0, 1, 2, 3, 4, 2]])),
    "shared noise with the sign turned": lambda g: same_noise(a := normal(g, 10), -a, ""),
    "noise that is shared in part": lambda g: same_noise(a := normal(g, 300), a + normal(g, 300), ""),
    "twice the rate": lambda g: rate(int(coins(g, 10, 100, 0.2).sum()), [100] * 10, 0.1, "client"),
    "batches of one size": lambda g: batches(fixed(g, 20, 50, 5), 0.1),
    "everybody or nobody": lambda g: batches((torch.rand(40, 1, generator=g) < 0.1).expand(40, 50), 0.1),
    "one record always": lambda g: single_records(with_one_always(g).sum(0), 40, 0.1, "client"),
    "the same records twice": lambda g: same_coins(by_name(coins(g, 6, 200, 0.1)[[0, 1, 2, 3, 4, 5, 3]]), 0.1),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_seen_in_one_look(name: str) -> None:
    g = torch.Generator().manual_seed(3)
    assert all(FAULTY[name](g).p < 1e-4 for _ in range(5)), FAULTY[name](g)


def test_larger_noise_than_stated_is_no_fault() -> None:
    g = torch.Generator().manual_seed(4)
    more = 1.5 * normal(g, 4, 1000)
    assert min(scale(sums(more)).p, shape(list(more)).p) > 1e-3


def test_the_smallest_p_value_pays_for_all() -> None:
    found = smallest([(0.2, "a"), (0.01, "b"), (0.7, "c")])
    assert (found.p, found.says) == (pytest.approx(0.03), "b") and smallest([]).p == 1.0


def test_noise_that_comes_back_elsewhere_is_told() -> None:
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(60, generator=g), torch.randn(80, generator=g)
    signs = torch.randn(60, generator=g).sign()
    for other in (torch.cat([b[:9], a]), torch.cat([b[:9], a]).flip(0), a * signs):
        assert shifted({"a": a}, {"a": a, "other": other}).p < 1e-9
    assert shifted({"a": a}, {"a": a, "b": b}).p > 1e-3
    assert shifted({"a": a.repeat(2)}, {"a": a.repeat(2)}).p < 1e-9
    assert echoes({"a": echo(a.repeat(2))}).p < 1e-9 and echoes({"a": echo(a)}).p > 1e-3


def test_releases_too_short_to_be_shifted_tell_nothing() -> None:
    short = {"a": torch.ones(3), "b": torch.ones(0)}
    for own, all_ in ((short, short), ({}, {}), (short, {"c": torch.randn(500, generator=torch.Generator().manual_seed(0))})):
        assert shifted(own, all_).p == 1.0


def test_p_values_of_shifts_and_echoes_hold_for_independent_noise() -> None:
    """Of 200 each, at most 5 % below 0.05 but for chance (binomial, one in a thousand)."""
    g = torch.Generator().manual_seed(1)
    draws = [{n: torch.randn(int(torch.randint(9, 60, (1,), generator=g)), generator=g) for n in "abcd"} for _ in range(200)]
    most = int(stats.binom.ppf(0.999, 200, 0.05))
    assert sum(shifted({"a": d["a"]}, d).p < 0.05 for d in draws) <= most
    assert sum(echoes({"a": echo(d["a"])}).p < 0.05 for d in draws) <= most
    assert sum(extremes(list(d.values())).p < 0.05 for d in draws) <= most


def test_noise_that_is_cut_is_told_by_its_largest_value() -> None:
    sample = torch.randn(300, generator=torch.Generator().manual_seed(2))
    assert extremes([sample.clamp(-2, 2)]).p < 1e-4 < extremes([sample]).p
