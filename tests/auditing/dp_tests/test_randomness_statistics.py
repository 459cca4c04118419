"""Each test of residuals and coins keeps its false-alarm rate under its own hypothesis, and sees a
planted fault."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import pytest
import torch
from scipy import stats
from torch import Tensor

from privdd.auditing.dp_tests.joint_noise_statistics import (
    block_variance_p_value,
    conditional_variance_p_value,
    direction_alignment_p_value,
    empty_frequency_p_value,
    normal_lengths,
    power_spectrum,
    weak_place_p_value,
)
from privdd.auditing.dp_tests.outcomes import CheckOutcome, combine_outcomes
from privdd.auditing.dp_tests.residual_statistics import (
    autocorrelation_p_value,
    correlation_p_value,
    fewest_visible_zeros,
    least_visible_cut,
    magnitude_count_p_value,
    maximum_p_value,
    normality_p_value,
    same_noise_p_value,
    shifted_reuse_p_value,
    single_number_p_value,
    variance_p_value,
)
from privdd.auditing.dp_tests.sampling_statistics import (
    batch_size_p_value,
    record_count_p_value,
    same_coins_p_value,
    sampling_rate_p_value,
)
from privdd.auditing.dp_tests.tie_statistics import near_tie_p_value, tie_p_value
from privdd.federated.noise_log import autocorrelation_peak, chosen_sizes, count_magnitudes

RUNS = 400
LEVEL = 0.05
Trial = Callable[[torch.Generator], CheckOutcome]


def normal(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def coins(g: torch.Generator, draws: int, count: int, q: float) -> Tensor:
    return torch.rand(draws, count, generator=g) < q


def sums(rows: Tensor) -> dict[str, tuple[int, float]]:
    return {str(i): (len(row), float(row.square().sum())) for i, row in enumerate(rows)}


def by_name(rows: Tensor) -> dict[str, Tensor]:
    return {str(i): row for i, row in enumerate(rows)}


def batches(taken: Tensor, q: float) -> CheckOutcome:
    return batch_size_p_value(taken.sum(1).tolist(), [taken.shape[1]] * len(taken), q, "client")


STEP = 2.0**-16


def lattice(rows: Tensor) -> Tensor:
    return (rows / STEP).round() * STEP


def tied(rows: Tensor) -> CheckOutcome:
    return tie_p_value(
        [lattice(row).float() for row in rows],
        [STEP] * len(rows),
        [str(i) for i in range(len(rows))],
        [True] * len(rows),
    )


def tied_in_a_share(rows: Tensor) -> CheckOutcome:
    found = [chosen_sizes(lattice(row), 0.2) for row in rows]
    return tie_p_value(
        found,
        [STEP] * len(rows),
        [str(i) for i in range(len(rows))],
        [True] * len(rows),
        [rows.shape[1]] * len(rows),
        0.2,
    )


def tied_nearly(rows: Tensor) -> CheckOutcome:
    """Each release at a scale of its own, so on a lattice of its own."""
    scales = torch.linspace(0.7, 1.0, len(rows))
    found = [(row / STEP / s).round() * STEP * s for row, s in zip(rows, scales)]
    return near_tie_p_value(
        [row.float() for row in found],
        [STEP] * len(rows),
        [str(i) for i in range(len(rows))],
        [True] * len(rows),
    )


def counted(rows: Tensor) -> CheckOutcome:
    near, far = (
        torch.tensor([count_magnitudes(lattice(row))[at] for row in rows]) for at in (0, 1)
    )
    groups = {"all": range(len(rows)), **{str(i): [i] for i in range(len(rows))}}
    return magnitude_count_p_value(
        [rows.shape[1]] * len(rows), [STEP] * len(rows), near, far, groups
    )  # type: ignore[arg-type]


def frequencies(rows: Tensor) -> CheckOutcome:
    power, sums = power_spectrum(rows)
    looks = (
        block_variance_p_value(power, 2, ""),
        empty_frequency_p_value(power, ""),
        variance_p_value({"": (len(sums), float(sums.square().sum()))}),
    )
    return combine_outcomes((look.p, look.says) for look in looks)


def lengths(rows: Tensor) -> CheckOutcome:
    return variance_p_value({"": (len(rows), float(normal_lengths(rows).square().sum()))})


HEALTHY: dict[str, Trial] = {
    "ties": lambda g: tied(normal(g, 6, 900)),
    "ties in a share": lambda g: tied_in_a_share(normal(g, 2, 12_000)),
    "ties at several scales": lambda g: tied_nearly(normal(g, 6, 900)),
    "sizes": lambda g: counted(normal(g, 4, 1000)),
    "pivots of releases": lambda g: conditional_variance_p_value(normal(g, 12, 40), ""),
    "pivots of numbers": lambda g: conditional_variance_p_value(normal(g, 40, 12), ""),
    "alignment": lambda g: direction_alignment_p_value(
        {"a": normal(g, 6, 40), "b": normal(g, 4, 200)}
    ),
    "blocks": lambda g: block_variance_p_value(normal(g, 5, 300).square(), 1, ""),
    "frequencies": lambda g: frequencies(normal(g, 5, 300)),
    "weak places": lambda g: weak_place_p_value(normal(g, 5, 300), ""),
    "lengths": lambda g: lengths(normal(g, 8, 50)),
    "scale": lambda g: variance_p_value(sums(normal(g, 6, 40))),
    "single numbers": lambda g: single_number_p_value({"w": (8, normal(g, 8, 30).square().sum(0))}),
    "shape": lambda g: normality_p_value(list(normal(g, 5, 200))),
    "reuse": lambda g: correlation_p_value(by_name(normal(g, 12, 20))),
    "same noise": lambda g: same_noise_p_value(normal(g, 30), normal(g, 30), ""),
    "rate": lambda g: sampling_rate_p_value(
        int(coins(g, 10, 50, 0.1).sum()), [50] * 10, 0.1, "client"
    ),
    "spread": lambda g: batches(coins(g, 20, 30, 0.1), 0.1),
    "spread of large batches": lambda g: batches(coins(g, 6, 400, 0.3), 0.3),
    "single records": lambda g: record_count_p_value(
        coins(g, 40, 30, 0.1).sum(0), 40, 0.1, "client"
    ),
    "spread of records": lambda g: batches(coins(g, 30, 40, 0.1).T, 0.1),
    "same coins": lambda g: same_coins_p_value(by_name(coins(g, 12, 60, 0.1)), 0.1),
}


DISCRETE = (
    "same coins",
    "single records",
    "rate",
    "ties",
    "ties in a share",
    "sizes",
    "weak places",
)


@pytest.mark.nightly(
    cases=["ties at several scales", "blocks", "sizes", "frequencies", "ties", "ties in a share"]
)
@pytest.mark.parametrize("name", HEALTHY)
def test_false_alarms_are_no_more_than_the_level(name: str) -> None:
    """At most 5 % of 400 healthy cases below p = 0.05, with three standard errors of room."""
    g = torch.Generator().manual_seed(1)
    alarms = sum(HEALTHY[name](g).p < LEVEL for _ in range(RUNS))
    assert alarms <= RUNS * LEVEL + 3 * sqrt(RUNS * LEVEL * (1 - LEVEL))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", [n for n in HEALTHY if n not in (*DISCRETE, "ties at several scales")]
)
def test_a_p_value_is_not_always_large(name: str) -> None:
    """Tests of continuous values use up a fair part of their level: p-values above what they should
    be see nothing."""
    g = torch.Generator().manual_seed(2)
    assert sum(HEALTHY[name](g).p < 0.2 for _ in range(RUNS)) > RUNS * 0.2 / 4


def fixed(g: torch.Generator, draws: int, count: int, size: int) -> Tensor:
    order = torch.rand(draws, count, generator=g).argsort(1)
    return order < size


def in_passes(g: torch.Generator, draws: int, count: int, q: float) -> Tensor:
    """Every record is drawn once in each pass over the data, in a batch that a coin decides."""
    steps = round(1 / q)
    batch = torch.randint(steps, (draws // steps, count), generator=g)
    return torch.cat([torch.stack([one == step for step in range(steps)]) for one in batch])


def with_one_always(g: torch.Generator) -> Tensor:
    taken = coins(g, 40, 30, 0.1)
    taken[:, 7] = True
    return taken


def cancelling(rows: Tensor, g: torch.Generator) -> Tensor:
    """Each row's second half is minus its first, elsewhere."""
    half = rows.shape[1] // 2
    made = [torch.cat([row[:half], -row[:half][torch.randperm(half, generator=g)]]) for row in rows]
    return torch.stack(made)


def placed(rows: Tensor) -> Tensor:
    size = torch.where(torch.arange(rows.shape[1]) % 3 == 0, 0.5, 1.17)
    return rows * size


FAULTY: dict[str, Trial] = {
    "noise that takes itself off elsewhere": lambda g: tied(cancelling(normal(g, 2, 200), g)),
    "the same of many numbers": lambda g: tied_in_a_share(cancelling(normal(g, 2, 20_000), g)),
    "noise of another release elsewhere": lambda g: tied(
        torch.stack([a := normal(g, 200), a[torch.randperm(200, generator=g)]])
    ),
    "the same at another scale": lambda g: tied_nearly(
        torch.stack([a := normal(g, 200), a[torch.randperm(200, generator=g)]])
    ),
    "large noise cut": lambda g: tied(normal(g, 4, 8000).clamp(-3.5, 3.5)),
    "one number in a hundred left out": lambda g: counted(
        normal(g, 4, 500) * (torch.arange(500) % 100 > 0)
    ),
    "one number in a thousand left out": lambda g: counted(
        normal(g, 4, 4000) * (torch.arange(4000) % 1000 > 0)
    ),
    "the large ones drawn again": lambda g: counted(
        torch.where((a := normal(g, 4, 8000)).abs() < 3.5, a, normal(g, 4, 8000).clamp(-3, 3))
    ),
    "rounds that add up to nothing": lambda g: conditional_variance_p_value(
        (a := normal(g, 20, 300)) - a.mean(0), ""
    ),
    "numbers of few dimensions": lambda g: conditional_variance_p_value(
        normal(g, 60, 10) @ normal(g, 10, 20) / sqrt(10), ""
    ),
    "releases in half of the directions": lambda g: direction_alignment_p_value(
        {"": normal(g, 16, 100) @ normal(g, 100, 200) / 10}
    ),
    "a part with half of the noise": lambda g: block_variance_p_value(
        torch.cat([normal(g, 3, 200), normal(g, 3, 60) / 2], 1).square(), 1, ""
    ),
    "sums of zero": lambda g: frequencies((a := normal(g, 8, 300)) - a.mean(1, keepdim=True)),
    "sums of tens of zero": lambda g: frequencies(
        ((a := normal(g, 4, 30, 10)) - a.mean(2, keepdim=True)).flatten(1)
    ),
    "columns of zero sum": lambda g: frequencies(
        ((a := normal(g, 4, 30, 10)) - a.mean(1, keepdim=True)).flatten(1)
    ),
    "half of the frequencies": lambda g: frequencies(
        torch.fft.irfft(torch.fft.rfft(normal(g, 4, 300)) * (torch.arange(151) % 2))
    ),
    "a scale for each place": lambda g: weak_place_p_value(placed(normal(g, 6, 400)), ""),
    "one length": lambda g: lengths(
        torch.nn.functional.normalize(normal(g, 8, 50), dim=1) * sqrt(50)
    ),
    "no noise": lambda g: variance_p_value({"w": (3, 0.0)}),
    "0.9 of the noise": lambda g: variance_p_value(sums(0.9 * normal(g, 4, 2000))),
    "one number without noise": lambda g: single_number_p_value(
        {"w": (8, torch.cat([torch.zeros(1), torch.full((29,), 8.0)]))}
    ),
    "uniform noise of the right size": lambda g: normality_p_value(
        [(torch.rand(4000, generator=g) - 0.5) * sqrt(12)]
    ),
    "two releases share their noise": lambda g: correlation_p_value(
        by_name(normal(g, 5, 10)[[0, 1, 2, 3, 4, 2]])
    ),
    "shared noise with the sign turned": lambda g: same_noise_p_value(a := normal(g, 10), -a, ""),
    "noise that is shared in part": lambda g: same_noise_p_value(
        a := normal(g, 300), a + normal(g, 300), ""
    ),
    "twice the rate": lambda g: sampling_rate_p_value(
        int(coins(g, 10, 100, 0.2).sum()), [100] * 10, 0.1, "client"
    ),
    "batches of one size": lambda g: batches(fixed(g, 20, 50, 5), 0.1),
    "everybody or nobody": lambda g: batches(
        (torch.rand(40, 1, generator=g) < 0.1).expand(40, 50), 0.1
    ),
    "each record once in a pass": lambda g: batches(in_passes(g, 40, 60, 0.1).T, 0.1),
    "one record always": lambda g: record_count_p_value(
        with_one_always(g).sum(0), 40, 0.1, "client"
    ),
    "the same records twice": lambda g: same_coins_p_value(
        by_name(coins(g, 6, 200, 0.1)[[0, 1, 2, 3, 4, 5, 3]]), 0.1
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_seen_in_one_look(name: str) -> None:
    g = torch.Generator().manual_seed(3)
    assert all(FAULTY[name](g).p < 1e-4 for _ in range(5)), FAULTY[name](g)


def test_larger_noise_than_stated_is_no_fault() -> None:
    g = torch.Generator().manual_seed(4)
    more = 1.5 * normal(g, 4, 1000)
    looks = [
        variance_p_value(sums(more)),
        normality_p_value(list(more)),
        tied(more),
        counted(more),
        conditional_variance_p_value(more, ""),
        direction_alignment_p_value({"": more}),
        block_variance_p_value(more.square(), 1, ""),
        frequencies(more),
        weak_place_p_value(more, ""),
        lengths(more),
    ]
    assert min(look.p for look in looks) > 1e-3


def test_what_so_many_numbers_cannot_show() -> None:
    """At 3.8 standard deviations 100 000 numbers miss a cut with a chance of 5e-7; without noise,
    10 numbers show."""
    assert (1 - 2 * stats.norm.sf(least_visible_cut(100_000, 1e-6))) ** 100_000 == pytest.approx(
        1e-6, rel=1e-3
    )
    few = fewest_visible_zeros([50_000, 50_000], [STEP, STEP], 1e-6)
    mean = 0.52 * 100_000 * STEP
    assert stats.poisson.sf(few - 1, mean) < 1e-6 <= stats.poisson.sf(few - 2, mean)


def test_the_smallest_p_value_pays_for_all() -> None:
    found = combine_outcomes([(0.2, "a"), (0.01, "b"), (0.7, "c")])
    assert (found.p, found.says) == (pytest.approx(0.03), "b") and combine_outcomes([]).p == 1.0


def test_noise_that_comes_back_elsewhere_is_told() -> None:
    g = torch.Generator().manual_seed(0)
    a = torch.randn(60, generator=g)
    b = torch.randn(80, generator=g)
    signs = torch.randn(60, generator=g).sign()
    for other in (torch.cat([b[:9], a]), torch.cat([b[:9], a]).flip(0), a * signs):
        assert shifted_reuse_p_value({"a": a}, {"a": a, "other": other}).p < 1e-9
    assert shifted_reuse_p_value({"a": a}, {"a": a, "b": b}).p > 1e-3
    assert shifted_reuse_p_value({"a": a.repeat(2)}, {"a": a.repeat(2)}).p < 1e-9
    assert (
        autocorrelation_p_value({"a": autocorrelation_peak(a.repeat(2))}).p < 1e-9
        and autocorrelation_p_value({"a": autocorrelation_peak(a)}).p > 1e-3
    )


def test_releases_too_short_to_be_shifted_tell_nothing() -> None:
    short = {"a": torch.ones(3), "b": torch.ones(0)}
    for own, all_ in (
        (short, short),
        ({}, {}),
        (short, {"c": torch.randn(500, generator=torch.Generator().manual_seed(0))}),
    ):
        assert shifted_reuse_p_value(own, all_).p == 1.0


def test_p_values_of_shifts_and_echoes_hold_for_independent_noise() -> None:
    """Of 200 each, at most 5 % below 0.05 but for chance (binomial, one in a thousand)."""
    g = torch.Generator().manual_seed(1)
    draws = [
        {n: torch.randn(int(torch.randint(9, 60, (1,), generator=g)), generator=g) for n in "abcd"}
        for _ in range(200)
    ]
    most = int(stats.binom.ppf(0.999, 200, 0.05))
    assert sum(shifted_reuse_p_value({"a": d["a"]}, d).p < 0.05 for d in draws) <= most
    assert (
        sum(autocorrelation_p_value({"a": autocorrelation_peak(d["a"])}).p < 0.05 for d in draws)
        <= most
    )
    assert sum(maximum_p_value(list(d.values())).p < 0.05 for d in draws) <= most


def test_noise_that_is_cut_is_told_by_its_largest_value() -> None:
    sample = torch.randn(300, generator=torch.Generator().manual_seed(2))
    assert maximum_p_value([sample.clamp(-2, 2)]).p < 1e-4 < maximum_p_value([sample]).p
