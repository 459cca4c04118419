"""What is noted of a run's noise: residuals by hand, and nothing where nothing can be known."""

from __future__ import annotations

import dp_accounting as dpa
import pytest
import torch
from scipy import stats
from torch import Tensor

from privdd.federated import noise_log
from privdd.federated.noise_log import (
    NoiseLog,
    RoundLog,
    compute_residuals,
    count_magnitudes,
    noise_law_of,
    residual_spacing,
)
from privdd.privacy.mechanism import Output
from privdd.privacy.mechanisms import ClippedSum, FeatureNoise
from privdd.privacy.noise import SeededNoise

GAUSSIAN = dpa.GaussianDpEvent(1.0)


def noise(seed: int = 0) -> SeededNoise:
    return SeededNoise(torch.Generator().manual_seed(seed))


def test_the_law_is_that_of_the_event() -> None:
    assert noise_law_of(dpa.PoissonSampledDpEvent(0.1, GAUSSIAN)) == "gaussian"
    assert noise_law_of(dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(1.0), 3)) == "laplace"
    assert noise_law_of(dpa.ComposedDpEvent([GAUSSIAN, dpa.GaussianDpEvent(2.0)])) == "gaussian"
    assert noise_law_of(dpa.ComposedDpEvent([GAUSSIAN, dpa.LaplaceDpEvent(2.0)])) is None
    assert noise_law_of(dpa.NoOpDpEvent()) is None


def test_residuals_are_what_was_added_over_the_stated_scale() -> None:
    output = Output(
        {"a": torch.tensor([3.0, -1.0])},
        GAUSSIAN,
        noise_std=2.0,
        exact={"a": torch.tensor([1.0, 0.0])},
    )
    assert compute_residuals(ClippedSum(1.0, 1.0), output)["a"].tolist() == [[1.0, -0.5]]


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_each_copy_has_its_own_scale_and_laplace_becomes_normal(law: str) -> None:
    """Two copies with noise 0.5 and 2: pooled, 20 000 residuals are standard normal (Kolmogorov,
    Smirnov)."""
    mechanism = FeatureNoise(clip_norm=1.0, noise_std=[0.5, 2.0], copies=2, distribution=law)  # type: ignore[arg-type]
    output = mechanism({"x": torch.rand(1000, 1, 2, 5)}, noise())
    gaps = compute_residuals(mechanism, output)["x"]
    assert gaps.shape == (2, 1000, 1, 2, 5)
    assert min(stats.kstest(copy.flatten().numpy(), "norm").pvalue for copy in gaps) > 1e-3


SILENT = {
    "no clean value": (Output({"a": torch.zeros(2)}, GAUSSIAN, noise_std=1.0), "shows no value"),
    "no noise stated": (
        Output({"a": torch.zeros(2)}, GAUSSIAN, exact={"a": torch.zeros(2)}),
        "scale",
    ),
    "an unknown law": (
        Output(
            {"a": torch.zeros(2)},
            dpa.ComposedDpEvent([]),
            noise_std=1.0,
            exact={"a": torch.zeros(2)},
        ),
        "no known law",
    ),
    "other numbers": (
        Output({"a": torch.zeros(3)}, GAUSSIAN, noise_std=1.0, exact={"a": torch.zeros(2)}),
        "released of",
    ),
    "not finite": (
        Output(
            {"a": torch.full((2,), torch.nan)}, GAUSSIAN, noise_std=1.0, exact={"a": torch.zeros(2)}
        ),
        "not finite",
    ),
}


@pytest.mark.parametrize("why", SILENT)
def test_what_cannot_be_known_says_so(why: str) -> None:
    output, said = SILENT[why]
    watch = RoundLog(0, 0, True)
    watch.on_release(ClippedSum(1.0, 1.0), "query", output)
    assert said in watch.releases[0].missing and not len(watch.releases[0].sample)


def test_releases_that_promise_nothing_are_left_out() -> None:
    watch = RoundLog(0, 0, True)
    broken = Output(
        {"a": torch.zeros(2)},
        GAUSSIAN,
        noise_std=1.0,
        exact={"a": torch.zeros(2)},
        flags={"clipped": False},
    )
    watch.on_release(ClippedSum(1.0, 1.0), "query", broken)
    watch.on_release(
        ClippedSum(1.0, 1.0), "query", Output({"a": torch.zeros(2)}, dpa.NonPrivateDpEvent())
    )
    assert watch.releases == []


def test_squares_are_added_up_number_by_number_over_rows_and_releases() -> None:
    """Rows with residuals (1, 2), (3, 4), (5, 6) twice: 2 (1 + 9 + 25) and 2 (4 + 16 + 36); one
    release is one row else."""
    value = torch.tensor([[2.0, 4.0], [6.0, 8.0], [10.0, 12.0]])
    output = Output(
        {"x": value},
        GAUSSIAN,
        noise_std=2.0,
        exact={"x": torch.zeros(3, 2)},
        flags={"relation:zero_out": True},
    )
    by_rows = RoundLog(0, 0, True)
    whole = RoundLog(0, 0, True)
    for _ in range(2):
        by_rows.on_release(ClippedSum(1.0, 1.0), "features", output)
        whole.on_release(ClippedSum(1.0, 1.0), "query", output, given={"x": torch.zeros(5, 3, 2)})
    count, total = by_rows.columns["features", "x"]
    assert (count, total.tolist()) == (6, [70.0, 112.0])
    count, total = whole.columns["query", "x"]
    assert (count, total.tolist()) == (2, [[2.0, 8.0], [18.0, 32.0], [50.0, 72.0]])


def test_memory_is_bounded_and_samples_of_clients_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_log, "ROUND_RESIDUALS", 10_000)
    monkeypatch.setattr(noise_log, "RUN_RESIDUALS", 300)
    mechanism = ClippedSum(1.0, 1.0)
    record = NoiseLog(victim=0)
    for client in (0, 1, 2):
        watch = RoundLog(0, client, client == 0)
        for _ in range(4):
            watch.on_release(
                mechanism,
                "query",
                mechanism({"a": torch.zeros(1, 20_000)}, noise()),
                None,
                {"a": torch.zeros(1, 1)},
            )
        record.add_round(watch)
    kept = {
        client: [len(r.sample) for r in record.rounds[0, client].releases] for client in (0, 1, 2)
    }
    assert kept == {
        0: [4096] + [256] * 3,
        1: [256] * 4,
        2: [0] * 4,
    }  # past half of ROUND; past RUN; past twice RUN
    assert all(
        r.squares["a"][0] == 20_000 for watch in record.rounds.values() for r in watch.releases
    )
    own = RoundLog(0, 0, True)
    other = RoundLog(0, 1, False)
    for watch in (own, other):
        watch.on_release(mechanism, "query", mechanism({"a": torch.zeros(1, 20_000)}, noise()))
    assert len(own.releases[0].sample) == 4096 and torch.equal(
        own.releases[0].sample, other.releases[0].sample
    )


def test_sizes_of_all_residuals_are_counted() -> None:
    gaps = torch.tensor([0.0, 2.0**-11, -(2.0**-8), 0.03, -1.0, 2.6, -3.2, 7.0])
    near, far = count_magnitudes(gaps)
    assert near == (1, 2, 3, 4) and far == (3, 2, 1, 1, 1, 1)
    output = Output(
        {"a": gaps}, GAUSSIAN, noise_std=1.0, exact={"a": torch.zeros(8)}, lattice=2.0**-16
    )
    watch = RoundLog(0, 1, False)
    watch.on_release(ClippedSum(1.0, 1.0), "query", output)
    (noted,) = watch.releases
    assert (noted.near, noted.far, noted.number_count, noted.step) == (near, far, 8, 2.0**-16)


def test_equal_sizes_of_large_releases_are_all_chosen_or_none() -> None:
    """Of 20 000 numbers and their negatives, elsewhere in another release: the same 4096 of each,
    but for chance."""
    gaps = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    watch = RoundLog(0, 1, False)
    for values in (gaps, -gaps.flip(0)):
        watch.on_release(
            ClippedSum(1.0, 1.0),
            "query",
            Output({"a": values}, GAUSSIAN, noise_std=1.0, exact={"a": torch.zeros(20_000)}),
        )
    one, other = (release.marked.sort().values for release in watch.releases)
    assert torch.equal(one, other) and abs(len(one) - 4096) < 5 * 4096**0.5
    assert watch.releases[0].share == 4096 / 20_000


def test_the_grid_of_residuals_is_that_of_the_coarsest_reason() -> None:
    """The lattice; float32 at 1000 (a step of 2**-23 of it); half precision; values rounded to
    tenths after the noise."""
    values = torch.randn(2000, generator=torch.Generator().manual_seed(0))

    def of(value: Tensor) -> float:
        return residual_spacing(Output({"a": value}, GAUSSIAN, noise_std=2.0, lattice=2.0**-15))

    assert of(values) == 2.0**-16 and of(values + 1000) >= 1000 * 2.0**-24
    assert of(values.half()) >= 2.0**-10 and of((values * 10).round() / 10) == pytest.approx(
        0.05, rel=1e-3
    )
