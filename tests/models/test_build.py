"""Tests of ``privdd.models.build``."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torch.func import functional_call

from privdd.models import ModelSpec, OwnModel, build, initial, projected_shape
from privdd.models.build import NETWORKS

# Networks: sizes against the papers, shapes, features, heads, and FedFed's generator.


FEDFED = {"name": "resnet18", "norm": "batch", "input_norm": True}
FEDRD = {"norm": "batch", "pooling": "max"}

# What the papers state or their released code builds: (description, image, classes, parameters).
SIZES = [
    ({}, (3, 32, 32), 10, 320_010),
    ({}, (1, 32, 32), 10, 317_706),
    ({"pad_grey": True}, (1, 28, 28), 10, 317_706),
    ({}, (3, 32, 32), 100, 504_420),
    ({}, (1, 32, 32), 100, 502_116),
    ({}, (3, 28, 28), 10, 311_050),
    ({}, (3, 96, 96), 2, 336_386),
    (FEDRD, (1, 28, 28), 10, 308_746),
    (FEDRD, (1, 32, 32), 10, 317_706),
    (FEDRD, (1, 32, 32), 100, 502_116),
    ({"name": "resnet18"}, (3, 32, 32), 10, 11_173_962),
    ({"name": "resnet18"}, (3, 28, 28), 10, 11_173_962),
    ({"name": "resnet18"}, (3, 96, 96), 2, 13_529_666),
    (FEDFED, (3, 32, 32), 10, 11_173_968),
    (FEDFED, (3, 32, 32), 100, 11_220_138),
    (FEDFED, (1, 32, 32), 10, 11_172_812),
    ({"name": "vae"}, (3, 32, 32), 10, 12_648_774),
    ({"name": "vae"}, (1, 32, 32), 10, 12_647_746),
    ({"name": "projection"}, (3, 32, 32), 10, 1_392),
    ({"name": "projection"}, (1, 28, 28), 10, 1_248),
]

CLASSIFIERS = [
    {"name": "convnet", "width": 8},
    {"name": "convnet", "width": 8, "norm": "group", "pooling": "max"},
    {"name": "convnet", "width": 8, "norm": "batch", "pooling": "max"},
    {"name": "convnet", "width": 8, "norm": "none", "depth": 2},
    {"name": "resnet18", "width": 4},
    {"name": "resnet18", "width": 4, "norm": "batch", "input_norm": True},
    {"name": "smallcnn", "width": 8},
    {"name": "smallcnn", "width": 8, "norm": "group"},
    {"name": "lenet"},
    {"name": "mlp", "width": 16},
]


def images(count: int, shape: tuple[int, int, int]) -> torch.Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(("fields", "shape", "classes", "parameters"), SIZES)
def test_parameter_counts_of_the_papers(fields, shape, classes, parameters):
    model = build(ModelSpec(**fields), shape, classes)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_fedfed_classifier_has_the_buffers_of_the_released_code():
    model = build(ModelSpec(**FEDFED), (3, 32, 32), 10)
    floats = sum(b.numel() for b in model.buffers() if b.is_floating_point())
    assert floats + sum(1 for b in model.buffers() if not b.is_floating_point()) == 9_627


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("fields", CLASSIFIERS, ids=lambda f: "-".join(map(str, f.values())))
def test_forward_is_head_of_features(fields, shape):
    spec = ModelSpec(**fields)
    model = build(spec, shape, 7)
    model.load_state_dict(initial(spec, shape, 7, torch.Generator().manual_seed(0)))
    x = images(4, shape)
    model.eval()
    features = model.features(x)
    assert features.shape == (4, model.head.in_features)
    assert torch.equal(model(x), model.head(features))
    assert model(x).shape == (4, 7) and torch.isfinite(model(x)).all()


@pytest.mark.parametrize(
    ("side", "width"), [(28, 1152), (32, 2048), (96, 18432), (8, 512), (16, 512), (4, 512)]
)
def test_convnet_feature_sizes(side, width):
    assert build(ModelSpec(), (3, side, side), 2).head.in_features == width


def test_convnet_depth_can_be_forced():
    assert build(ModelSpec(depth=3), (3, 8, 8), 2).head.in_features == 128


def test_padded_grey_image_has_the_features_of_a_32_pixel_one():
    assert build(ModelSpec(pad_grey=True), (1, 28, 28), 10).head.in_features == 2048


@pytest.mark.parametrize(
    ("shape", "out"),
    [((3, 32, 32), (1, 32, 32)), ((1, 28, 28), (1, 28, 28)), ((1, 8, 8), (1, 8, 8))],
)
def test_projection_keeps_the_size(shape, out):
    spec = ModelSpec("projection")
    state = initial(spec, shape, 10, torch.Generator().manual_seed(0))
    y = functional_call(build(spec, shape, 10), state, (images(2, shape),))
    assert projected_shape(spec, shape) == out
    assert y.shape == (2, *out)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 9, 10)])
def test_projections_of_figure_5_have_that_many_convolutions_and_one_output_size(depth, shape):
    """Every pixel is read: its gradient is not zero for every output."""
    spec = ModelSpec("projection", depth=depth)
    model = build(spec, shape, 10)
    model.load_state_dict(initial(spec, shape, 10, torch.Generator().manual_seed(0)))
    x = images(1, shape).requires_grad_(True)
    out = model(x)
    assert (
        out.shape[1:]
        == projected_shape(spec, shape)
        == projected_shape(ModelSpec("projection"), shape)
    )
    assert sum(isinstance(m, torch.nn.Conv2d) for m in model.modules()) == depth
    out.square().sum().backward()
    assert (x.grad != 0).float().mean() > 0.95


def test_projections_of_more_than_four_convolutions_are_refused():
    with pytest.raises(ValueError, match="depth=5"):
        ModelSpec("projection", depth=5)


@pytest.mark.parametrize("filters", [1, 4, 9, 25, 36])
def test_projection_sizes_of_fedrd_table_iv(filters):
    assert (
        projected_shape(ModelSpec("projection", width=filters), (3, 32, 32))[1:]
        == (8 * filters**0.5,) * 2
    )


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ({}, (3, 32, 32)),
        ({"width": 8, "latent": 16, "norm": "group"}, (1, 8, 8)),
        ({"width": 8, "latent": 16}, (1, 28, 28)),
    ],
)
def test_vae_output_and_its_dependence_on_noise(fields, shape):
    spec = ModelSpec("vae", **fields)
    model = build(spec, shape, 10).eval()
    model.load_state_dict(initial(spec, shape, 10, torch.Generator().manual_seed(0)))
    x = images(2, shape)
    plain, mu, logvar = model(x)
    noise = torch.randn(2, spec.latent, generator=torch.Generator().manual_seed(1))
    noisy, mu_again, _ = model(x, noise)
    assert plain.shape == x.shape and plain.min() >= 0 and plain.max() <= 1
    assert mu.shape == logvar.shape == (2, spec.latent) and torch.equal(mu, mu_again)
    assert torch.equal(plain, model.decode(mu)) and not torch.equal(plain, noisy)
    assert torch.equal(noisy, model.decode(mu + (logvar / 2).exp() * noise))


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "vae", "width": 8, "latent": 8, "norm": "group"},
        {"name": "smallcnn", "norm": "group"},
    ],
)
def test_group_norm_keeps_records_apart(fields):
    """Per-record gradients need outputs that do not depend on the other records of the batch."""
    spec = ModelSpec(**fields)
    shape = (1, 8, 8)
    state = initial(spec, shape, 10, torch.Generator().manual_seed(0))
    model = build(spec, shape, 10)
    x = images(6, shape)

    def run(batch: torch.Tensor) -> torch.Tensor:
        out = functional_call(model, state, (batch,))
        return out[0] if isinstance(out, tuple) else out

    torch.testing.assert_close(run(x)[:1], run(x[:1]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "convnett"}, "model.name='convnett'"),
        ({"width": 0}, "model.width=0"),
        ({"width": 2.5}, "model.width=2.5"),
        ({"norm": "layer"}, "model.norm='layer'"),
        ({"pooling": "sum"}, "model.pooling='sum'"),
        ({"init": "zero"}, "model.init='zero'"),
        ({"name": "projection", "width": 15}, "model.width=15"),
    ],
)
def test_bad_descriptions_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        ModelSpec(**fields)


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ({"depth": 4}, (1, 8, 8)),
        ({"name": "simplecnn"}, (1, 8, 8)),
        ({"name": "vae"}, (1, 10, 10)),
        ({}, (8, 8)),
    ],
)
def test_images_that_do_not_fit_are_refused(fields, shape):
    with pytest.raises(ValueError):
        build(ModelSpec(**fields), shape, 10)


@pytest.mark.parametrize("fields", CLASSIFIERS, ids=str)
def test_a_fresh_network_tells_small_images_apart(fields):
    """Whatever the norm: one over a single value gives the same for every image, and nothing could
    be learned."""
    spec = ModelSpec(**fields)
    model = build(spec, (1, 8, 8), 10).eval()
    state = initial(spec, (1, 8, 8), 10, torch.Generator().manual_seed(3))
    logits = functional_call(model, state, (images(6, (1, 8, 8)),))
    assert float(logits.std(0).min()) > 1e-6


@pytest.mark.parametrize(
    ("field", "value"),
    [("depth", 10**12), ("width", 10**12), ("latent", 10**12), ("groups", 10**12)],
)
def test_a_network_that_nobody_could_hold_is_refused(field, value):
    with pytest.raises(ValueError, match=f"^model.{field}={value}: an integer from 1 to "):
        ModelSpec(**{"name": "vae", field: value})


# Initial values: PyTorch's laws, from the given generator and from nothing else.


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
    before = torch.get_rng_state()
    numpy_before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = drawn(spec)
    again = drawn(spec)
    other = drawn(spec, 1)
    build(spec, SHAPE, 10)
    assert torch.equal(before, torch.get_rng_state())
    assert (numpy_before == np.random.get_state()[1]).all()  # noqa: NPY002
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert (
        any(not torch.equal(first[k], other[k]) for k in first) or name == "zero"
    )  # which has no values


@pytest.mark.parametrize("name", NETWORKS)
def test_state_fits_the_module(name):
    model = build(spec_of(name), SHAPE, 10)
    state = drawn(spec_of(name))
    assert list(state) == list(model.state_dict())
    model.load_state_dict(state, strict=True)
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_law_is_that_of_pytorch(name):
    """Against PyTorch's own constructors: constants equal, random tensors from the same
    distribution."""
    spec = spec_of(name)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        theirs = [NETWORKS[name](spec, SHAPE, 10).state_dict() for _ in range(8)]
    ours = [drawn(spec, seed) for seed in range(8)]
    for key in ours[0]:
        a, b = (
            torch.cat([s[key].flatten().double() for s in many]).numpy() for many in (ours, theirs)
        )
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
