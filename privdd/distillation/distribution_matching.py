"""Distribution matching: synthetic images whose mean embeddings follow those of the real records.

Zhao and Bilen, "Dataset Condensation with Distribution Matching" (WACV 2023). Per iteration one
network is drawn for all classes, real records are embedded without a graph, and the loss is sum
over classes of ||mean embedding of real - mean embedding of synthetic||^2. The networks are freshly
initialised ones, or draws around the server's model.

Siamese augmentation: Zhao and Bilen, "Dataset Condensation with Differentiable Siamese
Augmentation" (ICML 2021): one operation is drawn per call and applied with the same numbers to real
and synthetic images. Every number comes from the generator that the caller hands in: the published
code reseeds the global generator from a clock, after which any noise drawn from it can be guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from attacks.validation import check_below_one, check_counts, check_positive
from privdd.core.device import copy_to_device, max_images_per_batch, stream_to_device
from privdd.core.loop_timing import timed_steps
from privdd.core.rng import Keys
from privdd.core.types import RecordShape, State, is_image
from privdd.distillation.class_cells import ClassCells, RealBatch, draw_real_batches
from privdd.federated.audit_hooks import RecordTransform
from privdd.federated.channel import ClientContext
from privdd.privacy.batch_invariance import compute_rows

CROP = 0.125  # largest shift, as a part of the side
CUTOUT = 0.5  # side of the erased square, as a part of the side
SCALE = 1.2  # largest stretch; the smallest is its inverse
ROTATE = 15.0  # degrees either way
BRIGHTNESS = 1.0  # width of the interval of additive shifts
SATURATION = 2.0  # largest factor about the mean over channels
CONTRAST = 0.5  # the factor about the image mean lies in [CONTRAST, CONTRAST + 1]
FLIP = 0.5  # probability

COLOUR_STRATEGY = "color_crop_cutout_flip_scale_rotate"
DIGIT_STRATEGY = "color_crop_cutout_scale_rotate"  # digits must not be mirrored
CHUNK = 64  # images per forward pass: larger batches no longer fit in the cache


def _shift_image(x: Tensor, rows: int, columns: int) -> Tensor:
    """x moved down by ``rows`` and right by ``columns``, zeros coming in."""
    h, w = x.shape[-2:]
    padded = F.pad(x, (max(columns, 0), max(-columns, 0), max(rows, 0), max(-rows, 0)))
    top = max(-rows, 0)
    first_column = max(-columns, 0)
    return padded[..., top : top + h, first_column : first_column + w]


def _erase_square(x: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    keep = torch.ones(x.shape[-2:], dtype=x.dtype, device=x.device)
    keep[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)] = 0
    return x * keep


def _apply_affine(x: Tensor, a: float, b: float, c: float, d: float) -> Tensor:
    """Sampled at (a u + b v, c u + d v) in coordinates of [-1, 1], bilinear, zeros outside."""
    matrix = torch.tensor([[a, b, 0.0], [c, d, 0.0]], dtype=x.dtype, device=x.device)
    grid = F.affine_grid(matrix.expand(1, 2, 3), [1, *x.shape[1:]], align_corners=False)
    return sample_grid(x, grid[0])


def _change_colours(x: Tensor, brightness: float, saturation: float, contrast: float) -> Tensor:
    x = x + brightness
    grey = x.mean(1, keepdim=True)
    x = (x - grey) * saturation + grey
    mean = x.mean((1, 2, 3), keepdim=True)
    return (x - mean) * contrast + mean


@dataclass(frozen=True)
class Transform:
    """One drawn operation: a function of images (b, c, h, w) that treats each image alone."""

    name: str = "none"
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, x: Tensor) -> Tensor:
        return _OPERATIONS[self.name][0](x, **self.numbers)


def parse_strategy(strategy: str) -> tuple[str, ...]:
    """The operations named in ``strategy`` ("a_b_c", or "none").

    Raises ValueError for an unknown operation.
    """
    names = tuple(strategy.split("_"))
    if unknown := [name for name in names if name not in _OPERATIONS]:
        raise ValueError(
            f"augment={strategy!r}: unknown {unknown}; allowed are {sorted(_OPERATIONS)} "
            "joined by '_'"
        )
    return names


def draw_transform(strategy: str, shape: RecordShape, generator: torch.Generator) -> Transform:
    """One operation of ``strategy`` with its numbers, for images of ``shape`` (c, h, w)."""
    names = parse_strategy(strategy)
    name = names[_draw_integer(0, len(names) - 1, generator)]
    if is_image(shape):
        height, width = shape[1:]
    else:  # "none" alone, which reads no side
        height, width = 1, 1
    return Transform(name, _OPERATIONS[name][1](height, width, generator))


def record_transform_of(strategy: str, shape: RecordShape) -> RecordTransform | None:
    """(records (b, c, h, w) of ``shape``, generator) -> all of them under one drawn operation; None
    for "none"."""
    if set(parse_strategy(strategy)) == {"none"}:
        return None
    return lambda x, generator: draw_transform(strategy, shape, generator)(x)


def _draw_integer(low: int, high: int, generator: torch.Generator) -> int:
    return int(torch.randint(low, high + 1, (), generator=generator, device=generator.device))


def _draw_uniform(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, device=generator.device))


def _draw_crop(h: int, w: int, g: torch.Generator) -> dict[str, float]:
    rows = int(h * CROP + 0.5)
    columns = int(w * CROP + 0.5)
    return {"rows": _draw_integer(-rows, rows, g), "columns": _draw_integer(-columns, columns, g)}


def _draw_cutout(h: int, w: int, g: torch.Generator) -> dict[str, float]:
    """A square whose centre is uniform over the image, so that it may hang over the edge."""
    height = int(h * CUTOUT + 0.5)
    width = int(w * CUTOUT + 0.5)
    top = _draw_integer(0, h - 1, g) - height // 2
    first_column = _draw_integer(0, w - 1, g) - width // 2
    return {"top": top, "left": first_column, "height": height, "width": width}


def _draw_scale(h: int, w: int, g: torch.Generator) -> dict[str, float]:
    return {
        "a": _draw_uniform(1 / SCALE, SCALE, g),
        "b": 0.0,
        "c": 0.0,
        "d": _draw_uniform(1 / SCALE, SCALE, g),
    }


def _draw_rotation(h: int, w: int, g: torch.Generator) -> dict[str, float]:
    angle = torch.deg2rad(torch.tensor(_draw_uniform(-ROTATE, ROTATE, g), dtype=torch.float64))
    cosine = float(angle.cos())
    sine = float(angle.sin())
    return {"a": cosine, "b": -sine, "c": sine, "d": cosine}


def _draw_colours(h: int, w: int, g: torch.Generator) -> dict[str, float]:
    return {
        "brightness": _draw_uniform(-BRIGHTNESS / 2, BRIGHTNESS / 2, g),
        "saturation": _draw_uniform(0, SATURATION, g),
        "contrast": _draw_uniform(CONTRAST, CONTRAST + 1, g),
    }


# operation -> (what it does to images with its numbers, how its numbers are drawn for images of
# height h and width w)
_OPERATIONS: Mapping[
    str, tuple[Callable[..., Tensor], Callable[[int, int, torch.Generator], dict[str, float]]]
] = {
    "none": (lambda x: x, lambda h, w, g: {}),
    "color": (_change_colours, _draw_colours),
    "crop": (_shift_image, _draw_crop),
    "cutout": (_erase_square, _draw_cutout),
    "flip": (
        lambda x, flip: x.flip(-1) if flip else x,
        lambda h, w, g: {"flip": _draw_uniform(0, 1, g) < FLIP},
    ),
    "scale": (_apply_affine, _draw_scale),
    "rotate": (_apply_affine, _draw_rotation),
}


def sample_grid(x: Tensor, grid: Tensor) -> Tensor:
    """``F.grid_sample`` of x (n, c, h, w) at one ``grid`` (h, w, 2) for all: bilinear, zeros
    outside, corners not aligned.

    Off the CPU as a weighted sum of four selections, whose gradient is repeatable.
    """
    if x.device.type == "cpu":
        return F.grid_sample(
            x, grid.expand(len(x), -1, -1, -1), mode="bilinear", align_corners=False
        )
    height, width = x.shape[-2:]
    across = ((grid[..., 0] + 1) * width - 1) / 2
    down = ((grid[..., 1] + 1) * height - 1) / 2
    left_column = across.floor()
    top = down.floor()
    total = torch.zeros_like(x)
    for column in (left_column, left_column + 1):
        for row in (top, top + 1):
            share = (1 - (across - column).abs()) * (1 - (down - row).abs())
            is_inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            positions = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
            total = total + x.flatten(2).index_select(2, positions.long().flatten()).view_as(x) * (
                share * is_inside
            )
    return total


Embed = Callable[[Tensor], Tensor]  # images (b, c, h, w) -> (b, p)
Networks = Callable[[int], Embed]  # iteration -> the network of that iteration


@torch.no_grad()
def embed_images(embed: Embed, x: Tensor, chunk: int = CHUNK) -> Tensor:
    """Embeddings (n, p) without a graph, ``chunk`` images at a time (0 = all at once; on a GPU the
    usual number is larger); (0, p) of no images.

    Not every layer takes an empty batch, so that the width of none is read off one black image.
    """
    if not len(x):
        return embed(x.new_zeros(1, *x.shape[1:]))[:0]
    return torch.cat(
        [embed(part) for part in x.split(max_images_per_batch(x, chunk, CHUNK) or len(x))]
    )


def record_embeddings(embed: Embed, x: Tensor, chunk: int = CHUNK) -> Tensor:
    """``embed``, where a mechanism is to bound what one record does: a row is a function of its
    image alone, in every bit."""
    rows = compute_rows(
        lambda _, part: {"": embed_images(embed, part, 0)},
        {},
        x,
        at_most=max_images_per_batch(x, chunk, CHUNK),
    )
    return rows[""]


def compose_maps(inner: Embed, outer: Embed) -> Embed:
    return lambda x: outer(inner(x))


class _Embedding(nn.Module):
    """A classifier seen as its penultimate features, with its logits behind them if wanted."""

    def __init__(self, model: nn.Module, logits: bool) -> None:
        super().__init__()
        self.model = model
        self.logits = logits

    def forward(self, x: Tensor) -> Tensor:
        features = self.model.features(x)  # type: ignore[operator]
        return torch.cat([features, self.model.head(features)], 1) if self.logits else features  # type: ignore[operator]


def _joint_norm(tensors: Mapping[str, Tensor]) -> float:
    """Euclidean norm over all tensors together."""
    return float(
        torch.stack([t.square().sum(dtype=torch.float64) for t in tensors.values()]).sum().sqrt()
    )


def build_embedder(model: nn.Module, state: Mapping[str, Tensor], *, logits: bool = False) -> Embed:
    """x (b, c, h, w) -> (b, d) features of ``model`` at ``state``, or (b, d + C) with the
    logits."""
    view = _Embedding(model, logits)
    named = {f"model.{name}": tensor.detach() for name, tensor in state.items()}
    return lambda x: functional_call(view, named, (x,))


def draw_in_ball(
    state: Mapping[str, Tensor], names: Iterable[str], rho: float, generator: torch.Generator
) -> State:
    """w + rho u with u uniform on the sphere over all parameters ``names`` together; buffers stay.

    Xiong et al. 2023 (FedDM) draw N(w, I) truncated at radius rho = 5; in 3e5 dimensions such a
    draw has norm about 566, so the truncation always acts and this is its law. Raises ValueError
    for a negative radius.
    """
    return _apply_moves(state, _draw_moves(state, names, rho, generator))


def _draw_moves(
    state: Mapping[str, Tensor], names: Iterable[str], rho: float, generator: torch.Generator
) -> State:
    """rho u, on the generator's device."""
    if not rho >= 0:
        raise ValueError(f"rho={rho}: a radius of at least 0 is needed")
    noise = {
        name: torch.randn(state[name].shape, generator=generator, device=generator.device)
        for name in names
    }
    norm = _joint_norm(noise)
    return {name: draws * (rho / norm) for name, draws in noise.items()}


def _apply_moves(state: Mapping[str, Tensor], moves: Mapping[str, Tensor]) -> State:
    return {**state, **{name: state[name] + move.to(state[name]) for name, move in moves.items()}}


def project_to_ball(state: Mapping[str, Tensor], centre: Mapping[str, Tensor], rho: float) -> State:
    """The nearest state whose distance to ``centre``, over all its tensors together, is at most
    rho."""
    gaps = {name: state[name] - centre[name] for name in centre}
    norm = _joint_norm(gaps)
    if norm <= rho:
        return dict(state)
    return {**state, **{name: centre[name] + gap * (rho / norm) for name, gap in gaps.items()}}


@dataclass(frozen=True)
class DrawnNetworks:
    """A network for each iteration, from numbers that are drawn on the CPU and sent to ``device``.

    draw: iteration -> the numbers, from a stream of that iteration; network: those numbers on the
        device -> network."""

    draw: Callable[[int], State]
    network: Callable[[State], Embed]
    device: torch.device

    def __call__(self, t: int) -> Embed:
        network = self.draw(t)
        return self.network(dict(zip(network, copy_to_device(list(network.values()), self.device))))

    def iterate_networks(self, steps: int) -> Iterator[Embed]:
        """The networks of iterations 0, ..., steps - 1, sent to the device many at a time."""
        return map(self.network, stream_to_device(self.draw, steps, self.device))


def iterate_networks(networks: Networks, steps: int) -> Iterator[Embed]:
    """The networks of iterations 0, ..., steps - 1, each when it is asked for."""
    if isinstance(networks, DrawnNetworks):
        return networks.iterate_networks(steps)
    return map(networks, range(steps))


def networks_in_ball(
    model: nn.Module,
    state: Mapping[str, Tensor],
    names: Iterable[str],
    rho: float,
    keys: Keys,
    *,
    logits: bool,
) -> Networks:
    """Networks around the server's model: one draw per iteration, the same for all classes."""
    names = tuple(names)
    return DrawnNetworks(
        lambda t: _draw_moves(state, names, rho, keys.fold(t).torch()),
        lambda moves: build_embedder(model, _apply_moves(state, moves), logits=logits),
        next((tensor.device for tensor in state.values()), torch.device("cpu")),
    )


def fresh_networks(
    model: nn.Module,
    initial: Callable[[torch.Generator], State],
    keys: Keys,
    *,
    logits: bool = False,
    device: str | torch.device = "cpu",
) -> Networks:
    """Newly initialised networks: ``initial`` gives a state from a generator; one draw per
    iteration."""
    return DrawnNetworks(
        lambda t: initial(keys.fold(t).torch()),
        lambda state: build_embedder(model, state, logits=logits),
        torch.device(device),
    )


def fixed_network(
    model: nn.Module, state: Mapping[str, Tensor], *, logits: bool = False
) -> Networks:
    """The same network at every iteration (FedLGD's iterative matching)."""
    embed = build_embedder(model, state, logits=logits)
    return lambda t: embed


@dataclass(frozen=True)
class MatchingSettings:
    """Settings of one matching run.

    iterations: steps on the images; batch: real records per class and step; lr, momentum: SGD on
    the images; augment: a siamese strategy or "none"; augment_synthetic: False transforms the real
    records only (FedRD); chunk: images per forward pass, 0 = all at once (batch norm needs that).
    """

    iterations: int
    batch: int = 256
    lr: float = 1.0
    momentum: float = 0.0
    augment: str = "none"
    augment_synthetic: bool = True
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        check_counts(self, "batch")
        check_counts(self, "iterations", "chunk", least=0)
        check_positive(self, "lr")
        check_below_one(self, "momentum")
        parse_strategy(self.augment)


@dataclass(frozen=True)
class MatchingStreams:
    """Random streams of one run: real batches (secret) and transforms (public)."""

    batch: Keys
    augment: Keys

    @staticmethod
    def of_round(ctx: ClientContext, *part: str) -> MatchingStreams:
        """Those of a client's round, or of a part of it."""
        return MatchingStreams(ctx.keys.fold(*part, "batch"), ctx.public(*part, "augment"))


def matching_gradient(
    images: Tensor, targets: Tensor, embed: Embed, *, chunk: int = CHUNK
) -> Tensor:
    """Gradient of sum_m ||targets_m - mean_j embed(images_mj)||^2 with respect to the images.

    images (M, ipc, c, h, w), targets (M, p) -> (M, ipc, c, h, w). Cells go through the network in
    groups of about ``chunk`` images: only one group's graph is alive at a time.
    """
    together = max_images_per_batch(images, chunk, CHUNK)
    if together:
        size = max(1, together // images.shape[1])
    else:
        size = max(len(images), 1)
    parts = []
    for part, target in zip(images.split(size), targets.split(size)):
        part = part.detach().requires_grad_(True)
        means = embed(part.flatten(0, 1)).unflatten(0, part.shape[:2]).mean(1)
        parts.append(torch.autograd.grad((target - means).square().sum(), part)[0])
    return torch.cat(parts)


def mean_real_embeddings(
    batch: RealBatch,
    cells: ClassCells,
    embed: Embed,
    transform: Transform,
    settings: MatchingSettings,
    real_map: Embed | None = None,
) -> Tensor:
    """Mean embedding of one batch of every cell, (M, p): each record is embedded once for all
    cells.

    real_map: applied to a record between ``transform`` and the network (FedRD's projection).
    """
    x = transform(cells.pool.x[batch.at])
    if real_map is None:
        embedding = embed
    else:
        embedding = compose_maps(real_map, embed)
    embeddings = embed_images(embedding, x, settings.chunk).split(
        [rows.shape[1] for rows in batch.taken]
    )
    weights = [rows.to(e) for rows, e in zip(batch.taken, embeddings)]
    return torch.cat([w @ e / w.sum(1, keepdim=True) for w, e in zip(weights, embeddings)])


def descend_images(
    images: Tensor, velocity: Tensor, gradient: Tensor, settings: MatchingSettings
) -> tuple[Tensor, Tensor]:
    """One step of SGD with momentum: (images, velocity)."""
    velocity = settings.momentum * velocity + gradient
    return images - settings.lr * velocity, velocity


def match_distributions(
    cells: ClassCells,
    images: Tensor,
    networks: Networks,
    settings: MatchingSettings,
    streams: MatchingStreams,
    *,
    real_map: Embed | None = None,
) -> Tensor:
    """Learn the images of every cell: (M, ipc, c, h, w) -> the same shape.

    Works for one client or for many replays of it (``cells``): the real records are embedded once
    for all."""
    velocity = torch.zeros_like(images)
    steps = settings.iterations if len(cells) else 0
    batches = draw_real_batches(cells, settings.batch, streams.batch.fold, steps)
    for t, embed, batch in zip(
        timed_steps(range(steps)), iterate_networks(networks, steps), batches
    ):
        transform = draw_transform(
            settings.augment,
            tuple(images.shape[2:]),  # type: ignore[arg-type]
            streams.augment.fold(t).torch(),
        )
        targets = mean_real_embeddings(batch, cells, embed, transform, settings, real_map)
        if settings.augment_synthetic:
            synthetic = compose_maps(transform, embed)
        else:
            synthetic = embed
        gradient = matching_gradient(images, targets, synthetic, chunk=settings.chunk)
        images, velocity = descend_images(images, velocity, gradient, settings)
    return images
