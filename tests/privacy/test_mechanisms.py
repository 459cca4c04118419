"""Mechanisms: what is clipped, how large the noise is, what the event says about it."""

from __future__ import annotations

import math

import dp_accounting as dpa
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from privdd.core.rng import Keys
from privdd.privacy.accounting import epsilon
from privdd.privacy.mechanisms import AggregateClip, ClientLevel, ClippedSum, FeatureNoise
from privdd.privacy.noise import Noise, noise_for

LARGE = 20_000
REFUSED = 1e-6
ACCEPTED = 1e-3


def noise(source: str = "seed", seed: int = 3) -> Noise:
    return noise_for(source, Keys(seed))  # type: ignore[arg-type]


def check_scale(draws: Tensor, std: float, law: str = "norm") -> None:
    """Kolmogorov-Smirnov must accept the stated scale and reject two thirds and three halves of
    it."""
    sample = draws.double().flatten().numpy()
    assert kstest(sample / std, law).pvalue > ACCEPTED
    for wrong in (2 / 3, 3 / 2):
        assert kstest(sample / (std * wrong), law).pvalue < REFUSED


@pytest.mark.parametrize("source", ["seed", "os"])
def test_clipped_sum_noise_has_the_stated_scale(source: str, system_bytes: None) -> None:
    mechanism = ClippedSum(noise_multiplier=2.0, clip_norm=3.0, normaliser=4.0)
    output = mechanism({"x": torch.rand(5, LARGE)}, noise(source))
    assert output.noise_std == 2.0 * 3.0 / 4.0
    check_scale(output.value["x"] - output.exact["x"], output.noise_std)  # type: ignore[index]


@pytest.mark.parametrize(("distribution", "law"), [("gaussian", "norm"), ("laplace", "laplace")])
def test_feature_noise_has_the_stated_scale(distribution: str, law: str) -> None:
    mechanism = FeatureNoise(clip_norm=2.0, noise_multiplier=0.5, distribution=distribution)  # type: ignore[arg-type]
    output = mechanism({"x": torch.rand(20, 1, 40, 25)}, noise())
    check_scale(output.value["x"] - output.exact["x"], 1.0, law)  # type: ignore[index]


@pytest.mark.parametrize("mechanism", [AggregateClip(5.0, 2.0), ClientLevel(5.0, 2.0)])
def test_noise_of_the_other_mechanisms(mechanism: AggregateClip | ClientLevel) -> None:
    output = mechanism({"x": torch.rand(10, LARGE)}, noise())
    std = 5.0 * 2.0 / (10 if isinstance(mechanism, AggregateClip) else 1)
    assert output.noise_std == std
    check_scale(output.value["x"] - output.exact["x"], std)  # type: ignore[index]


def test_the_noise_of_a_batch_mean_is_its_stream_tensor_by_tensor() -> None:
    """Who holds the seed draws the noise again, and takes it off: what is left is the clipped
    mean, to rounding."""
    mechanism = AggregateClip(0.5, 2.0)
    output = mechanism({"x": torch.rand(4, 6), "y": torch.rand(4, 2, 3)}, noise())
    stream = noise()
    assert output.exact is not None
    for name, exact in output.exact.items():
        drawn = mechanism.noise_multiplier * mechanism.clip_norm / 4 * stream.normal(exact.shape)
        assert torch.allclose(output.value[name] - drawn.to(exact), exact, atol=1e-6)


def test_all_tensors_of_a_record_are_clipped_together() -> None:
    g = torch.Generator().manual_seed(0)
    value = {"a": torch.randn(7, 3, 2, generator=g), "b": torch.randn(7, 5, generator=g)}
    whole = torch.cat([value["a"].flatten(1), value["b"]], 1)
    factors = [min(1.0, 1.5 / float(row.norm())) for row in whole]
    output = ClippedSum(1.0, 1.5, normaliser=10.0)(value, noise())
    for name, tensor in value.items():
        expected = sum(f * row for f, row in zip(factors, tensor)) / 10.0
        off = (output.exact[name] - expected).abs().max()  # type: ignore[index]
        assert float(off) < 7 * output.lattice + 1e-6  # type: ignore[operator]  # a step for each record


def test_a_batch_of_nobody_is_noise_alone() -> None:
    output = ClippedSum(1.0, 1.0, sampling_probability=0.1)({"x": torch.zeros(0, LARGE)}, noise())
    check_scale(output.value["x"], 1.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_record_that_is_not_finite_counts_for_nothing(bad: float) -> None:
    rows = torch.ones(3, 4)
    rows[1, 2] = bad
    for exact in (
        ClippedSum(1.0, 10.0)({"x": rows}, noise()).exact,
        FeatureNoise(clip_norm=10.0, noise_std=1.0)({"x": rows}, noise()).exact,
    ):
        assert torch.isfinite(exact["x"]).all()  # type: ignore[index]
        assert float(exact["x"].sum()) == 8.0  # type: ignore[index]


def test_events_are_noise_over_one_records_change() -> None:
    assert ClippedSum(2.0, 9.0, normaliser=50.0).event == dpa.GaussianDpEvent(2.0)
    assert ClippedSum(2.0, 9.0, 0.25).event == dpa.PoissonSampledDpEvent(
        0.25, dpa.GaussianDpEvent(2.0)
    )
    output = FeatureNoise(clip_norm=2.0, noise_std=1.0)({"x": torch.rand(3, 1, 4, 4)}, noise())
    assert output.event == dpa.GaussianDpEvent(0.5)
    assert ClientLevel(1.5, 7.0)({"x": torch.rand(3)}, noise()).event == dpa.GaussianDpEvent(1.5)


def test_events_can_be_planned_before_any_record_is_seen() -> None:
    value = {"x": torch.rand(3, 1, 4, 4)}
    for mechanism in (
        ClippedSum(2.0, 1.0),
        ClientLevel(2.0, 1.0),
        FeatureNoise(clip_norm=2.0, noise_std=(1.0, 3.0), copies=2),
        FeatureNoise(rho=0.1, noise_multiplier=2.0),
        FeatureNoise(noise_std=1.0),
    ):
        assert mechanism.event == mechanism(value, noise()).event
    with pytest.raises(ValueError, match="rho"):
        _ = FeatureNoise(rho=0.1, variance=0.15).event


def test_two_copies_cost_the_sum_of_their_precisions() -> None:
    mechanism = FeatureNoise(clip_norm=1.0, noise_std=(0.2, 0.25), copies=2)
    output = mechanism({"x": torch.rand(6, 1, 2, 2)}, noise())
    assert output.value["x"].shape == (12, 1, 2, 2)
    together = 1 / math.sqrt(1 / 0.2**2 + 1 / 0.25**2)
    assert together == pytest.approx(0.156, abs=5e-4)
    assert epsilon(output.event, 1e-5) == pytest.approx(
        epsilon(dpa.GaussianDpEvent(together), 1e-5), abs=1e-6
    )


def test_the_papers_variance_and_bound() -> None:
    """Variance 0.15, rho 0.1, 3x32x32: epsilon 163 if the record vanishes, 531 if it is
    exchanged."""
    output = FeatureNoise(variance=0.15, rho=0.1)({"x": torch.rand(2, 3, 32, 32)}, noise())
    assert output.noise_std == pytest.approx(0.387298, abs=1e-6)
    assert epsilon(output.event, 1e-5, relation="zero_out") == pytest.approx(163, abs=1)
    assert epsilon(output.event, 1e-5, relation="replace") == pytest.approx(531, abs=1)


def test_the_released_code_gives_its_features_away() -> None:
    """One noise image for 64 records: their differences leave exactly, whatever sigma is."""
    x = torch.rand(130, 1, 5, 5)
    mechanism = FeatureNoise(noise_std=(0.15, 0.25), copies=2, broadcast_batch=64)
    output = mechanism({"x": x}, noise())
    first = output.value["x"][:130]
    assert torch.allclose(first[:64] - first[0], x[:64] - x[0], atol=1e-6)
    assert not torch.allclose(first[64] - first[0], x[64] - x[0], atol=1e-2)
    assert output.event == dpa.NonPrivateDpEvent()
    assert output.flags["clipped"] is False and output.flags["noise_per_record"] is False


def test_aggregate_clip_takes_a_mean_as_so_many_equal_rows() -> None:
    mean = torch.rand(3, 4)
    whole = AggregateClip(5.0, 1.0)({"x": mean.expand(64, 3, 4)}, noise())
    assert torch.allclose(whole.exact["x"], mean * min(1.0, 1 / float(mean.norm())), atol=1e-5)  # type: ignore[index]
    assert whole.noise_std == 5 / 64


@pytest.mark.parametrize("count", [3, 10])
def test_the_printed_noise_tells_how_many_records_there_are(count: int) -> None:
    """All records are alike, so the mean is the same without one of them; the spread of one output
    tells."""
    mechanism = AggregateClip(5.0, 1.0)
    drawn = noise()
    rows = torch.full((count, 2000), 1e-3)
    stds = [
        mechanism({"x": part}, drawn).value["x"].std()
        for part in (rows, rows[:-1])
        for _ in range(20)
    ]
    assert max(stds[:20]) < min(stds[20:])
    output = mechanism({"x": rows}, drawn)
    assert output.event == dpa.NonPrivateDpEvent() and output.flags == {"noise_scale_public": False}


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: ClippedSum(0.0, 1.0), "noise_multiplier"),
        (lambda: ClippedSum(1.0, -1.0), "clip_norm"),
        (lambda: ClippedSum(math.nan, 1.0), "noise_multiplier"),
        (lambda: ClippedSum(1.0, 1.0, 0.0), "sampling_probability"),
        (lambda: ClippedSum(1.0, 1.0, 1.0, 0.0), "normaliser"),
        (lambda: AggregateClip(1.0, math.inf), "clip_norm"),
        (lambda: ClientLevel(None, 1.0), "noise_multiplier"),
        (lambda: FeatureNoise(clip_norm=1.0), "exactly one"),
        (lambda: FeatureNoise(clip_norm=1.0, noise_std=1.0, variance=1.0), "exactly one"),
        (lambda: FeatureNoise(noise_multiplier=1.0), "clip_norm"),
        (lambda: FeatureNoise(clip_norm=1.0, rho=0.1, noise_std=1.0), "rho"),
        (lambda: FeatureNoise(noise_std=(0.1, 0.2)), "copies"),
        (lambda: FeatureNoise(noise_std=1.0, copies=3), "copies"),
        (lambda: FeatureNoise(noise_std=-1.0), "noise_std"),
        (lambda: FeatureNoise(noise_std=1.0, distribution="cauchy"), "distribution"),
    ],
)
def test_bad_settings_are_refused_in_one_line(make: object, word: str) -> None:
    with pytest.raises(ValueError, match=word) as refusal:
        make()  # type: ignore[operator]
    assert "\n" not in str(refusal.value)
