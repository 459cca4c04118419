"""Random cosine features against the kernel that they estimate, and the methods that read them."""

import pytest
import torch

from privdd.cli.build import build_experiment
from privdd.distillation.public_features import RandomCosine
from tests.federations import finished, tiny, tiny_config


def test_products_are_the_gaussian_kernel() -> None:
    x = torch.rand(30, 2, 6, 5, generator=torch.Generator().manual_seed(0))
    rows = RandomCosine(count=40_000, scale=0.25)(x)
    gap = (x[:, None] - x).square().mean((2, 3, 4))
    assert float((rows @ rows.T - torch.exp(-gap / (2 * 0.25**2))).abs().max()) < 0.03
    assert float(rows.norm(dim=1).max()) <= 2**0.5


def test_a_row_is_its_images_alone_and_the_same_everywhere() -> None:
    x, see = torch.rand(4, 1, 8, 8), RandomCosine(50, side=4)
    assert torch.equal(see(x), RandomCosine(50, side=4)(x))
    assert torch.allclose(see(x)[2:], see(x[2:]), atol=1e-6)
    assert torch.allclose(see(x), see(x.unflatten(2, (4, 2)).mean(3, keepdim=True).expand(-1, -1, -1, 2, -1).flatten(2, 3)), atol=1e-5)


@pytest.mark.parametrize(("change", "named"), [({"count": 0}, "count=0"), ({"scale": 0.0}, "scale=0.0"), ({"side": -1}, "side=-1")])
def test_settings_without_a_meaning_are_refused(change: dict, named: str) -> None:
    with pytest.raises(ValueError, match=f"extractor.{named}"):
        RandomCosine(**change)


@pytest.mark.parametrize(("algo", "least", "more"), [
    ("dp_head_random", 0.6, ("algo.rows.width=100", "algo.rounds=15", "privacy.sampling_probability=1")),
    ("dp_merf", 0.4, ("algo.fitting.steps=40", "algo.server.epochs=30", "model.width=8", "privacy.sampling_probability=1")),
])  # fmt: skip
def test_digits_are_learned_where_noise_is_small(algo: str, least: float, more: tuple[str, ...]) -> None:
    """Chance is 0.1; 120 records."""
    experiment = build_experiment(tiny_config(algo, *more, "privacy.noise_multiplier=0.1"))
    progress, test = finished(experiment), experiment.test_records
    found = experiment.plan.method.predict(progress.server, None, test.x).argmax(1)
    assert float((found == test.y).float().mean()) > least


@pytest.mark.parametrize("algo", ["dp_head_random", "dp_merf"])
def test_the_budget_that_was_asked_for_is_spent(algo: str) -> None:
    assert 2.9 < finished(tiny(algo, "privacy.epsilon=3")).ledger.epsilon() <= 3.0 + 1e-6
