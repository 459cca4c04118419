"""Shares of noise: their sum has the stated scale and law, and clients without a noise to share are
refused."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from privdd.core.rng import Keys
from privdd.core.types import Tensors
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.mechanisms import ClientLevel, ClippedSum, FeatureNoise
from privdd.privacy.mechanisms.noise_share import noise_share_of, share_count_of, unshared_mechanism
from privdd.privacy.noise import SeededNoise

WHOLE = {"sum": ClippedSum(2.0, 1.5, normaliser=3.0), "client": ClientLevel(2.0, 1.5)}
NUMBERS = 20_000


def released(mechanism: Mechanism, client: int, value: Tensors) -> Output:
    return mechanism(value, SeededNoise(Keys(0).fold("client", client).torch()))


def contribution(kind: str, client: int) -> Tensors:
    rows = torch.randn(3, NUMBERS, generator=Keys(1).fold(client).torch())
    return {"x": rows if kind == "sum" else rows[0]}


@pytest.mark.parametrize("kind", WHOLE)
def test_the_sum_has_the_noise_of_the_closed_form(kind: str) -> None:
    """Chi-squared at 1e-6 each way: the right scale is accepted, 2/3 and 3/2 of it are not."""
    whole = WHOLE[kind]
    parts = 5
    outputs = [
        released(noise_share_of(whole, parts), k, contribution(kind, k)) for k in range(parts)
    ]
    gap = torch.stack([o.value["x"] - o.exact["x"] for o in outputs]).sum(0)
    std = whole.noise_multiplier * whole.clip_norm / (3.0 if kind == "sum" else 1.0)
    square = float(gap.double().square().sum())
    p = lambda scale: stats.chi2.cdf(square / (scale * std) ** 2, NUMBERS)  # noqa: E731
    assert 1e-6 < p(1.0) < 1 - 1e-6
    assert p(2 / 3) > 1 - 1e-6 and p(3 / 2) < 1e-6
    assert all(
        o.noise_std * math.sqrt(o.shares) == pytest.approx(std) and o.event == whole.event
        for o in outputs
    )


@pytest.mark.parametrize("kind", WHOLE)
def test_a_share_clips_as_the_whole_does(kind: str) -> None:
    """So what T1 finds of the whole mechanism holds for a share; the share's lattice is finer."""
    whole = WHOLE[kind]
    value = {"x": 5 * contribution(kind, 0)["x"]}
    one, other = (released(mechanism, 0, value) for mechanism in (whole, noise_share_of(whole, 7)))
    records = 3 if kind == "sum" else 1
    assert one.lattice is not None and other.exact is not None and one.exact is not None
    assert torch.allclose(
        one.exact["x"].double(), other.exact["x"].double(), rtol=1e-6, atol=records * one.lattice
    )
    alone = released(
        noise_share_of(whole, 7), 0, {"x": value["x"][:1] if kind == "sum" else value["x"]}
    )
    assert alone.exact is not None and 0.99 * whole.clip_norm < float(alone.exact["x"].norm()) * (
        3 if kind == "sum" else 1
    )
    assert alone.sensitivity == one.sensitivity >= float(alone.exact["x"].norm())


@pytest.mark.parametrize("kind", WHOLE)
def test_shares_and_their_sum_are_whole_steps_of_one_lattice(kind: str) -> None:
    outputs = [released(noise_share_of(WHOLE[kind], 7), k, contribution(kind, k)) for k in range(7)]
    step = outputs[0].lattice
    assert step is not None and {o.lattice for o in outputs} == {step}
    total = torch.stack([o.value["x"] for o in outputs]).sum(0)
    assert total.dtype == torch.float64
    assert all(
        torch.equal(v / step, (v / step).round()) for v in (total, *(o.value["x"] for o in outputs))
    )


def rounded_gaussian(std: float, reach: int) -> np.ndarray:
    at = np.arange(-reach, reach + 1)
    return stats.norm.cdf(at + 0.5, scale=std) - stats.norm.cdf(at - 0.5, scale=std)


def rounded_and_blurred(std: float, blurs: int, reach: int) -> np.ndarray:
    """P(round(N(0, std**2) + blurs uniform draws) = k), by integrating on a grid of 2**-8 steps."""
    fine = 2**8
    edges = np.arange(-(reach + 8) * fine, (reach + 8) * fine + 1) / fine
    mass = np.diff(stats.norm.cdf(edges, scale=std))
    box = np.full(fine, 1 / fine)
    for _ in range(blurs):
        mass = np.convolve(mass, box, mode="same")
    tail = np.concatenate([[0], np.cumsum(mass)])
    shift = 0.5 / fine * blurs  # "same" leaves an even box half a cell to one side
    at = lambda x: np.interp(x + shift, edges, tail)  # noqa: E731
    ends = [at(k + 0.5) for k in range(-reach - 1, reach + 1)]
    return np.array([b - a for a, b in pairwise(ends)])


def test_the_sum_of_rounded_shares_is_a_rounding_of_the_ideal_sum() -> None:
    """The proof's bound at a step so coarse that it can be seen; without the uniform draws it does
    not hold."""
    parts = 3
    std = 1.4
    reach = 40
    one = rounded_gaussian(std, reach)
    law = np.convolve(np.convolve(one, one), one)[2 * reach : -2 * reach]
    bound = 3 * parts * math.exp(-((math.pi * std) ** 2) / 2)
    assert np.abs(law - rounded_and_blurred(math.sqrt(parts) * std, parts - 1, reach)).max() < bound
    assert np.abs(law - rounded_gaussian(math.sqrt(parts) * std, reach)).max() > 2 * bound


def test_what_a_share_is_a_share_of() -> None:
    for mechanism in WHOLE.values():
        share = noise_share_of(mechanism, 4)
        assert unshared_mechanism(share) == mechanism == unshared_mechanism(mechanism)
        assert (share_count_of(share), share_count_of(mechanism)) == (4, 1)


def test_noise_on_each_record_is_not_shared() -> None:
    with pytest.raises(ValueError, match="FeatureNoise adds its noise to what one client sends"):
        noise_share_of(FeatureNoise(clip_norm=1.0, noise_multiplier=1.0), 3)
