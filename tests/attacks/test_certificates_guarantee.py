"""Certificates (T2), attacks on runs (T3) and crafted records, against closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

from attacks.canaries import (
    Canaries,
    craft_canaries,
    join_canaries,
    mislabel_records,
    out_of_distribution_canaries,
    pattern_canary,
)
from attacks.certificates import bound_from_runs, gaussian_log_ratio, likelihood_ratio_certificate, subsampled_log_ratio
from attacks.epsilon import gaussian_epsilon


def test_certificate_never_exceeds_a_gaussian_mechanism_and_has_power():
    g, mu, above, found = torch.Generator().manual_seed(2), 3.0, 0, []
    for _ in range(200):
        outputs = mu * torch.tensor([[1.0, 0.0]]) + torch.randn(500, 2, generator=g)
        ratios = gaussian_log_ratio(outputs, torch.tensor([mu, 0.0]), torch.zeros(2), 1.0)
        certificate = likelihood_ratio_certificate(ratios)
        found.append(certificate.epsilon)
        above += certificate.epsilon > gaussian_epsilon(mu, certificate.delta_below)
    assert certificate.delta_below == pytest.approx(2e-3, rel=0.05)
    assert binom.sf(above - 1, 200, 0.05) > 1e-3
    assert np.mean(found) > 0.6 * gaussian_epsilon(mu, 1e-5)  # 16.7: far beyond ln(500 / 3.7) = 4.9


def test_certificate_on_a_null_certifies_nothing():
    assert likelihood_ratio_certificate(torch.zeros(500)).epsilon == 0.0
    with pytest.raises(ValueError, match="k=5"):
        likelihood_ratio_certificate(torch.zeros(4))
    with pytest.raises(ValueError, match="NaN"):
        likelihood_ratio_certificate(torch.full((9,), float("nan")))


def test_log_ratios_are_the_densities():
    g = torch.Generator().manual_seed(3)
    o, p = torch.randn(6, 2, generator=g, dtype=torch.float64), torch.tensor([0.3, -1.0], dtype=torch.float64)
    expected = (norm.logpdf(o, p, 0.7) - norm.logpdf(o, 0.0, 0.7)).sum(1)
    np.testing.assert_allclose(gaussian_log_ratio(o, p, torch.zeros(2), 0.7), expected)
    steps = torch.randn(4, 9, generator=g, dtype=torch.float64)
    np.testing.assert_allclose(subsampled_log_ratio(steps, 0.2), np.log(0.8 + 0.2 * np.exp(steps)).sum(1))
    torch.testing.assert_close(subsampled_log_ratio(steps, 1.0), steps.sum(1))


@pytest.mark.parametrize(("runs", "width"), [(800, 6), (200, 300)])
def test_runs_with_and_without_the_record_are_told_apart_below_the_truth(runs, width):
    rng, mu = np.random.default_rng(4), 3.0
    direction = np.ones(width) / math.sqrt(width)
    spread = np.ones(width) if width < 10 else np.full(width, 0.3)
    inside = rng.normal(size=(runs, width)) * spread + mu * direction * spread[0]
    outside = rng.normal(size=(runs, width)) * spread
    bound = bound_from_runs(torch.from_numpy(inside), torch.from_numpy(outside), delta=1e-5, generator=rng)
    assert 0.7 < bound.value < gaussian_epsilon(mu, 1e-5) and bound.validity == "finite_sample"


def test_runs_of_a_null_claim_nothing_beyond_the_level():
    rng, above = np.random.default_rng(5), 0
    for _ in range(100):
        a, b = (torch.from_numpy(rng.normal(size=(200, 5))) for _ in range(2))
        above += bound_from_runs(a, b, delta=1e-5, generator=rng).value > 0
    assert above <= 5
    with pytest.raises(ValueError, match="R >= 20"):
        bound_from_runs(torch.zeros(5, 2), torch.zeros(5, 2), delta=1e-5, generator=rng)


def test_crafted_records_reach_the_best_corner_of_the_box():
    """A linear effect is largest at a corner: here all 2^6 corners are tried."""
    g = torch.Generator().manual_seed(6)
    weight, direction = torch.randn(6, 4, generator=g), torch.randn(4, generator=g)
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 6)
    start = Canaries(torch.full((1, 1, 2, 3), 0.5), torch.tensor([0]), ("grey",))
    found = craft_canaries(lambda x, y: x.flatten(1) @ weight, start, direction=direction)
    best = (corners @ weight @ direction).max()
    assert float(found.x.flatten() @ weight @ direction) == pytest.approx(float(best), rel=1e-5)
    longest = craft_canaries(lambda x, y: x.flatten(1) @ weight, start)
    assert (longest.x.flatten() @ weight).norm() >= 0.8 * (corners @ weight).norm(dim=1).max()
    assert found.names == ("crafted:grey",)


def test_crafting_never_does_worse_than_its_start():
    g = torch.Generator().manual_seed(7)
    start = Canaries(torch.rand(5, 1, 3, 3, generator=g), torch.arange(5), ("r",) * 5)

    def effect(x, y):
        return torch.sin(20 * x).flatten(1) * (y + 1.0).unsqueeze(1)

    found = craft_canaries(effect, start, steps=5, step_size=0.3)
    assert (effect(found.x, found.y).norm(dim=1) >= effect(start.x, start.y).norm(dim=1) - 1e-6).all()


def test_canary_sets_are_what_they_say():
    g = torch.Generator().manual_seed(8)
    y = torch.arange(30) % 3
    wrong = mislabel_records(torch.rand(30, 1, 2, 2, generator=g), y, 3, g)
    assert (wrong.y != y).all() and set(wrong.y.tolist()) == {0, 1, 2}
    four = out_of_distribution_canaries((1, 4, 4), 1, g)
    assert four.names == ("white", "black", "stripes", "noise") and len(join_canaries(four, four)) == 8
    assert four.x[2, 0, 0].tolist() == [0, 1, 0, 1]
    with pytest.raises(ValueError, match="pattern="):
        pattern_canary("grey", (1, 2, 2), 0)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        Canaries(torch.full((1, 1, 2, 2), 2.0), torch.tensor([0]), ("x",))
