"""Initial values: PyTorch's laws, from the given generator and from nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torch.func import functional_call

from privdd.models import ModelSpec, OwnModel, build, initial
from privdd.models.build import NETWORKS

SMALL = {"resnet18": 4, "vae": 8, "projection": 16, "lenet": 12, "simplecnn": 6}
SHAPE = (1, 16, 16)


def spec_of(name: str) -> ModelSpec:
    if name == "own":
        return OwnModel("own", target="privdd.models.own:Example")
    return ModelSpec(name, width=SMALL.get(name, 16), latent=8 if name == "vae" else None)


def drawn(spec: ModelSpec, seed: int = 0) -> dict[str, torch.Tensor]:
    return initial(spec, SHAPE, 10, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", NETWORKS)
def test_same_seed_same_bits_and_no_global_draw(name):
    spec = spec_of(name)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, again, other = drawn(spec), drawn(spec), drawn(spec, 1)
    build(spec, SHAPE, 10)
    assert torch.equal(before, torch.get_rng_state())
    assert (numpy_before == np.random.get_state()[1]).all()  # noqa: NPY002
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert any(not torch.equal(first[k], other[k]) for k in first) or name == "zero"  # which has no values


@pytest.mark.parametrize("name", NETWORKS)
def test_state_fits_the_module(name):
    model, state = build(spec_of(name), SHAPE, 10), drawn(spec_of(name))
    assert list(state) == list(model.state_dict())
    model.load_state_dict(state, strict=True)
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_law_is_that_of_pytorch(name):
    """Against PyTorch's own constructors: constants equal, random tensors from the same distribution."""
    spec = spec_of(name)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        theirs = [NETWORKS[name](spec, SHAPE, 10).state_dict() for _ in range(8)]
    ours = [drawn(spec, seed) for seed in range(8)]
    for key in ours[0]:
        a, b = (torch.cat([s[key].flatten().double() for s in many]).numpy() for many in (ours, theirs))
        if b.std() == 0:
            assert (a == b).all(), key
        else:
            assert ks_2samp(a, b).pvalue > 1e-5, key
            assert np.abs(a).max() <= np.abs(b).max() * 1.5 + 1e-9, key


def test_wrong_law_would_be_noticed():
    a = drawn(ModelSpec("mlp", init="uniform_half"))["body.0.weight"].flatten().numpy()
    b = drawn(ModelSpec("mlp"))["body.0.weight"].flatten().numpy()
    assert ks_2samp(a, b).pvalue < 1e-9
    assert 0.49 < np.abs(a).max() <= 0.5


def test_forgotten_state_shows():
    x = torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(0))
    model = build(spec_of("convnet"), SHAPE, 10)
    assert torch.isnan(model(x)).any()
    assert torch.isfinite(functional_call(model, drawn(spec_of("convnet")), (x,))).all()


def test_built_modules_are_apart():
    one, two = (build(spec_of("smallcnn"), SHAPE, 10) for _ in range(2))
    one.load_state_dict(drawn(spec_of("smallcnn")))
    one.eval()
    assert two.training and torch.isnan(two.head.weight).all()
