"""FedFed's generators beside its VAE."""

from __future__ import annotations

import pytest
import torch

from privdd.core.rng import Keys
from privdd.distillation.feature_split import FeatureSplit, SplitLoss, train_split
from privdd.models import ModelSpec, build, initial
from tests.federations import tiny

SHAPE = (1, 8, 8)


@pytest.mark.parametrize("name", ["resnet_generator", "zero"])
def test_other_generators_have_no_code(name):
    spec = ModelSpec(name=name, width=8, norm="group") if name != "zero" else ModelSpec(name=name)
    model = build(spec, SHAPE, 10)
    model.load_state_dict(initial(spec, SHAPE, 10, Keys(0).torch()))
    x = torch.rand(5, *SHAPE)
    q, mu, logvar = model.eval()(x, torch.randn(5, 1))
    assert (
        q.shape == x.shape
        and (q >= 0).all()
        and (q <= 1).all()
        and not mu.any()
        and not logvar.any()
    )
    assert (q == 0).all() == (name == "zero")


def test_a_code_is_its_mean_and_the_noise_times_its_spread():
    """Kingma and Welling 2014, equation 10; the spread is the square root of the variance."""
    spec = ModelSpec(name="vae", width=8, latent=16, norm="group")
    model = build(spec, SHAPE, 10).eval()
    model.load_state_dict(initial(spec, SHAPE, 10, Keys(0).torch()))
    x = torch.rand(5, *SHAPE)
    g = Keys(1).torch()
    mu, logvar = model.encode(x)
    noise = torch.randn(mu.shape, generator=g)
    assert torch.allclose(
        model(x, noise)[0], model.decode(mu + logvar.exp().sqrt() * noise), atol=1e-6
    )
    assert torch.equal(model(x)[0], model.decode(mu)) and not torch.allclose(
        model(x, noise)[0], model.decode(mu), atol=1e-3
    )


def test_the_resnet_generator_learns_to_reproduce_images():
    """Phase A with it alone: the reconstruction error falls by half within a few epochs."""
    spec = ModelSpec(name="resnet_generator", width=16, norm="group")
    judge = ModelSpec(name="convnet", width=8, depth=2)
    model = FeatureSplit(build(spec, SHAPE, 10), build(judge, SHAPE, 10))
    state = {f"generator.{n}": t for n, t in initial(spec, SHAPE, 10, Keys(0).torch()).items()}
    state |= {f"classifier.{n}": t for n, t in initial(judge, SHAPE, 10, Keys(1).torch()).items()}
    records = tiny("fedfed").shards[0].train
    trained_state = train_split(
        model,
        state,
        {},
        records,
        SplitLoss(stds=(0.1,)),
        lr=3e-3,
        weight_decay=0.0,
        batch_size=8,
        epochs=8,
        generator=Keys(2).torch(),
    )[0]

    def error(values: dict) -> float:
        model.load_state_dict(values)
        with torch.no_grad():
            return float((model.eval().generator(records.x)[0] - records.x).square().mean())

    assert error(trained_state) < error(state) / 2


def test_sides_that_cannot_be_halved_twice_are_refused():
    with pytest.raises(ValueError, match="divisible by 4"):
        build(ModelSpec(name="resnet_generator"), (1, 10, 8), 10)
