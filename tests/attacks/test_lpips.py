"""LPIPS against the package lpips, the reader's refusals, and no download under any path."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attacks import images
from attacks.images import (
    LpipsTrunk,
    LpipsUnavailable,
    load_pretrained_trunk,
    read_flax_trunk,
    unpickle_arrays,
)
from privdd.core.user_modules import import_torchvision
from tests.attacks.pictures import pictures, rng

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torchvision.*")


@pytest.fixture(scope="module")
def package() -> torch.nn.Module:
    import_torchvision("torchvision.models")
    from lpips import LPIPS

    with torch.random.fork_rng(devices=[]):
        return LPIPS(net="alex", pnet_rand=True, verbose=False).eval()


def _load(model: torch.nn.Module, trunk: LpipsTrunk) -> torch.nn.Module:
    convolutions = [m for m in model.net.modules() if isinstance(m, torch.nn.Conv2d)]
    with torch.no_grad():
        for layer, weight, bias in zip(convolutions, trunk.weights, trunk.biases):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    return model


def _pairs(channels: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.rand((4, channels, side, side), generator=rng(s)) for s in (0, 1))  # type: ignore[return-value]


def random_trunk(generator: torch.Generator) -> LpipsTrunk:
    """An untrained trunk under the trained linear layers: the formula can be compared without the
    weights."""
    shapes = images._SHAPES
    weights = tuple(
        torch.randn(s, generator=generator) * (2 / (s[1] * s[2] * s[3])) ** 0.5 for s in shapes
    )
    return LpipsTrunk(
        "alexnet:random", weights, tuple(torch.zeros(s[0]) for s in shapes), images._linear_rows()
    )


def _expected(model: torch.nn.Module, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x, y = (
        F.interpolate(v.expand(-1, 3, -1, -1) * 2 - 1, size=(64, 64), mode="bilinear")
        for v in (a, b)
    )
    with torch.no_grad():
        return model(x, y).flatten()


@pytest.mark.nightly(but=["1-28"])
@pytest.mark.parametrize(("channels", "side"), [(1, 8), (1, 28), (3, 32), (3, 64)])
def test_same_score_as_the_package_for_any_trunk(
    package: torch.nn.Module, channels: int, side: int
) -> None:
    model = package
    trunk = random_trunk(rng(5))
    for layer, row in zip(model.lins, trunk.rows):
        assert torch.equal(layer.model[-1].weight.flatten(), row)
    a, b = _pairs(channels, side)
    assert torch.allclose(
        images.lpips(a, b, trunk), _expected(_load(model, trunk), a, b), atol=1e-5
    )


def test_repeated_images_score_as_each_pair_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "PAIRS_AT_ONCE", 5)
    trunk = random_trunk(rng(5))
    a, b = (torch.rand((3, 1, 8, 8), generator=rng(s)) for s in (0, 1))
    left, right = torch.cat([a, a[:1].expand(3, -1, -1, -1), b]), torch.cat([b, b, b])
    alone = torch.cat([images.lpips(left[i : i + 1], right[i : i + 1], trunk) for i in range(9)])
    assert torch.allclose(images.lpips(left, right, trunk), alone, rtol=1e-5)
    assert float(alone[6:].abs().max()) == 0 < float(alone[:6].min())


@pytest.mark.extra("lpips_weights")
def test_same_score_as_the_package_on_the_pretrained_weights(package: torch.nn.Module) -> None:
    trunk = load_pretrained_trunk()
    assert trunk is not None
    a, b = _pairs(3, 64)
    assert torch.allclose(images.lpips(a, b), _expected(_load(package, trunk), a, b), atol=1e-5)
    x = pictures()[0][:8]
    near = x + 0.02 * torch.randn(x.shape, generator=rng())
    far = x + 0.3 * torch.randn(x.shape, generator=rng())
    assert float(images.lpips(x, near).mean()) < 0.1 < float(images.lpips(x, far).mean())


def test_without_weights_another_trunk_is_used_only_when_it_is_given(
    package: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "load_pretrained_trunk", lambda: None)
    a, b = _pairs(1, 28)
    with pytest.raises(LpipsUnavailable, match="no pretrained AlexNet"):
        images.lpips(a, b)
    assert float(images.lpips(a, a, random_trunk(rng())).abs().max()) == 0


def test_the_reader_admits_arrays_and_nothing_else() -> None:
    arrays = {"a": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)}}
    assert np.array_equal(
        unpickle_arrays(pickle.dumps(arrays))["a"]["kernel"], arrays["a"]["kernel"]
    )
    for foreign in (print, Path("x"), np.random.default_rng(0), np.array([print], dtype=object)):
        with pytest.raises(ValueError, match="only numpy arrays"):
            unpickle_arrays(pickle.dumps({"a": foreign}))


def test_a_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "alexnet.ckpt"
    path.write_bytes(pickle.dumps({"a": np.zeros(3)}))
    with pytest.raises(ValueError, match="sha256"):
        read_flax_trunk(path)


def test_nothing_found_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(images.WEIGHTS_VARIABLE, str(tmp_path / "absent"))
    monkeypatch.setattr(images.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    for bare in (False, True):
        assert images._find_trunk.__wrapped__(str(tmp_path / "absent"), bare) is None


def test_a_bare_machine_hides_what_is_installed_and_in_caches_but_not_what_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for place in (tmp_path / "weights", tmp_path / "checkpoints"):
        place.mkdir()
    (tmp_path / "weights" / "alexnet.ckpt").write_bytes(b"installed")
    (tmp_path / "checkpoints" / images.TORCHVISION_FILE).write_bytes(b"cached")
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(images, "_installed_files", lambda: [tmp_path / "weights" / "alexnet.ckpt"])
    monkeypatch.setattr(images, "_find_trunk", images._find_trunk.__wrapped__)
    assert load_pretrained_trunk() is None
    monkeypatch.setenv(images.WEIGHTS_VARIABLE, str(tmp_path / "weights" / "alexnet.ckpt"))
    with pytest.raises(ValueError, match=r"alexnet\.ckpt has sha256"):
        load_pretrained_trunk()
    monkeypatch.delenv(images.WEIGHTS_VARIABLE)
    monkeypatch.delenv("PRIVDD_BARE")
    with pytest.raises(ValueError, match=r"alexnet\.ckpt has sha256"):
        load_pretrained_trunk()
