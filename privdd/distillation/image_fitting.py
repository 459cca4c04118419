"""Images made of what is already released: any number of steps at no privacy cost. Nothing here
reads a record.

Fitted images: targets are one mean embedding a class in one public map, or the gradients of a
linear head that clients sent,
once a round, each time with new noise: images that explain these in all rounds at once look to the
map like the records of their class, and more so like those near other classes (gradient
matching: Zhao, Mopuri and Bilen, ICLR 2021; with noised
gradients Chen, Kerkouche and Fritz, NeurIPS 2022). Adam (Kingma and Ba, ICLR 2015) with a cosine
schedule, pixels in [0, 1].

Guided images: drawn from a model of the classes, pushed, mixed and moved, labelled by a head. The
class model is a normal distribution by class of coarse pixels (the lowest cosine frequencies),
from noised sums alone: means by class, one covariance
within all classes, of the directions that stand out of the noise, and beside them independent
numbers of one variance a band. The noise is known to everyone, so what of an estimate is signal can
be told (empirical Bayes, James and Stein 1961; eigenvalues as in spiked models, Johnstone 2001).
What a linear head says of blurred images is wrong for whole classes: they lack edges and textures.
A few short steps along its gradient give each image what its class is known by, and hardly change
what it looks like (activation maximisation with jitter: Mordvintsev et al. 2015; data-free
distillation: Yin et al., CVPR 2020)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.validation import check_counts, check_non_negative, check_positive
from privdd.core.device import max_images_per_batch
from privdd.core.loop_timing import timed_steps
from privdd.core.rng import Keys
from privdd.core.types import RecordShape, is_image
from privdd.distillation.distribution_matching import CHUNK, Embed, embed_images

BETAS = (0.9, 0.99)
TINY = 1e-8
MIN_CLASS_WEIGHT = 1.0  # a class weighs at least as much as one record
GRADIENT_SCALE = 1e6  # slopes are small numbers, and Adam adds a constant to their size
MIN_CLASS_COUNT = 20  # a mean is never taken over fewer records than this
GREY = 0.35  # from where pixels are counted
PUSH_MOMENTUM = 0.7  # of the last step's direction
MIN_PUSH = 0.2  # of a step, for an image that already is of its class
SMOOTHNESS = 1e-3  # weight of the total variation
SCALES = (14, 7, 4, 2)  # pixels between two knots of a texture
BLENDED = 0.25  # the largest share of a second drawing in an image before it is pushed
FAINT = 0.3  # the strongest texture on an image before it is pushed
STEEP = 12.0  # of the edge of a silhouette: how fast it falls off along the drawing's brightness


@dataclass(frozen=True)
class FittingSettings:
    """steps: of Adam; lr: largest step of a pixel, reached at the start and falling to 0;
    smoothness: weight of the total variation (mean over images of the summed differences of
        neighbouring pixels)."""

    steps: int = 100
    lr: float = 0.06
    smoothness: float = 0.0

    def __post_init__(self) -> None:
        check_counts(self, "steps", under="fitting.")
        check_positive(self, "lr", under="fitting.")
        check_non_negative(self, "smoothness", under="fitting.")


def total_variation(images: Tensor) -> Tensor:
    """Total variation of every image: (b, c, h, w) -> (b,). Of rows (b, d) of a table 0, for their
    numbers have no neighbours."""
    if not is_image(images.shape[1:]):
        return images.new_zeros(len(images))
    down = images[..., 1:, :] - images[..., :-1, :]
    right = images[..., 1:] - images[..., :-1]
    return down.abs().sum((1, 2, 3)) + right.abs().sum((1, 2, 3))


def fit_to_embeddings(
    images: Tensor, targets: Tensor, embed: Embed, settings: FittingSettings, *, chunk: int = CHUNK
) -> Tensor:
    """Images (M, ipc, c, h, w) in [0, 1] whose mean embeddings approach targets (M, p); classes are
    independent."""
    if not len(images):
        return images
    size = max(1, max_images_per_batch(images, chunk, CHUNK) // images.shape[1])
    return torch.cat(
        [_fit_part(x, t, embed, settings) for x, t in zip(images.split(size), targets.split(size))]
    )


def _fit_part(images: Tensor, targets: Tensor, embed: Embed, settings: FittingSettings) -> Tensor:
    def gradient_at(x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_(True)
        flat = leaf.flatten(0, 1)
        loss = (embed(flat).unflatten(0, leaf.shape[:2]).mean(1) - targets).square().sum()
        if settings.smoothness:
            loss = loss + settings.smoothness * total_variation(flat).sum() / leaf.shape[1]
        return torch.autograd.grad(loss, leaf)[0]

    return minimise_by_adam(images.clamp(0, 1), gradient_at, settings.steps, settings.lr)


def minimise_by_adam(
    images: Tensor, slope: Callable[[Tensor], Tensor], steps: int, lr: float
) -> Tensor:
    """Images in [0, 1] after ``steps`` of Adam against ``slope``; the rate falls from lr to 0 along
    half a cosine.

    m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,
    x <- x - lr_t (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
    """
    slow, slower = BETAS
    mean = torch.zeros_like(images)
    square = torch.zeros_like(images)
    for t in timed_steps(range(1, steps + 1)):
        gradient = slope(images)
        mean = slow * mean + (1 - slow) * gradient
        square = slower * square + (1 - slower) * gradient.square()
        rate = lr * (1 + math.cos(math.pi * (t - 1) / steps)) / 2
        move = (mean / (1 - slow**t)) / ((square / (1 - slower**t)).sqrt() + TINY)
        images = (images - rate * move).clamp(0, 1)
    return images


@dataclass(frozen=True)
class GradientPath:
    """Mean gradients over all records, released in T rounds.

    weights (T, C, d): those of each round; gradients (T, C, d): released at them; count (C,):
        records by class, noised;
    longest: the norm to which each record's gradient was clipped (None: it was not).
    """

    weights: Tensor
    gradients: Tensor
    count: Tensor
    longest: float | None

    def mean_gradients_of(self, rows: Tensor, y: Tensor) -> Tensor:
        """The mean gradients (T, C, d) that rows (n, d) of classes y (n,) have, each class weighing
        what it has records."""
        classes = self.weights.shape[1]
        y = y.to(rows.device)
        held = torch.bincount(y, minlength=classes).clamp_min(1).to(rows)
        share = self.count.clamp_min(MIN_CLASS_WEIGHT).to(rows) / held
        share = share[y] / share[y].sum()
        guess = torch.softmax(torch.einsum("tcd,nd->tnc", self.weights.to(rows), rows), 2)
        residual = guess - F.one_hot(y, classes).to(rows)
        if self.longest is not None:
            norm = residual.norm(dim=2, keepdim=True) * rows.norm(dim=1)[:, None]
            residual = residual * (self.longest / norm.clamp_min(TINY)).clamp_max(1)
        return torch.einsum("tnc,nd->tcd", residual * share[:, None], rows)


def fit_to_gradients(
    images: Tensor, y: Tensor, rows: Embed, path: GradientPath, settings: FittingSettings
) -> Tensor:
    """Images (n, c, h, w) in [0, 1] of classes y (n,), all of them together moved until their rows'
    gradients approach the path's: Adam on the squared distance, mean over rounds, and the images'
    mean total variation.

    rows: images -> (n, d).
    """
    target = path.gradients.to(images)

    def gradient_at(x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_(True)
        with torch.enable_grad():
            miss = (path.mean_gradients_of(rows(leaf), y) - target).square().sum((1, 2)).mean()
            (found,) = torch.autograd.grad(
                miss + settings.smoothness * total_variation(leaf).mean(), leaf
            )
        return found * GRADIENT_SCALE

    return minimise_by_adam(images, gradient_at, settings.steps, settings.lr)


@dataclass(frozen=True)
class ClassModel:
    """means: (C, p); spread: directions times standard deviations of the numbers ``at`` (q,) of the
    p, of all classes (r, q) or of each (C, r, q)."""

    means: Tensor
    spread: Tensor
    at: Tensor

    def draw_records(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """One record of each label (m,) -> (m, p)."""
        records = self.means[labels].clone()
        normals = torch.randn(len(labels), self.spread.shape[-2], generator=generator).to(records)
        if self.spread.ndim == 3:
            by_label = [normals[i : i + 1] @ self.spread[k] for i, k in enumerate(labels)]
        else:
            by_label = []
        records[:, self.at] += torch.cat(by_label) if by_label else normals @ self.spread
        return records


def estimate_class_model(sums: Mapping[str, Tensor], bands: Tensor, at: Tensor) -> ClassModel:
    """From float64 sums over the records of all clients, each with noise of public variance in
    every number:

    "sum" (C, p) and "count" (C,) of a class, "variance" (1,) of both sums' numbers; "moments" (1,
    q, q), symmetric, of all records' numbers ``at``, or (C, q, q) of each class's, and
    "moments_variance" (1,), of its diagonal; half of that off the
    diagonal. bands: (p,) groups of numbers that are about as large, in which signal is told from
    noise."""
    count = sums["count"].clamp_min(MIN_CLASS_COUNT)
    noise = sums["variance"] / count.square()
    centre = sums["sum"].sum(0, keepdim=True) / count.sum()
    apart = sums["sum"] / count[:, None] - centre
    means = _shrink_to_signal(centre, sums["variance"] * len(count) / count.sum() ** 2, bands)
    means = means + _shrink_to_signal(apart, noise.mean(), bands)
    class_means = means[:, at]
    moments = sums["moments"]
    within = moments.sum(0) / count.sum() - class_means.T @ (
        class_means * (count / count.sum())[:, None]
    )
    values, vectors = torch.linalg.eigh(within)
    edge = (
        2 * len(at) * len(moments) * sums["moments_variance"]
    ).sqrt() / count.sum()  # noise's largest eigenvalue, about
    # ... which varies by a share of that order (Tracy and Widom 1994)
    real = values > edge * (1 + len(at) ** (-2 / 3))
    # noise lifts an eigenvalue v to v + (edge / 2)^2 / v
    clean = values[real] - edge**2 / (4 * values[real])
    factors = (vectors[:, real] * clean.clamp_min(0).sqrt()).T
    # what no direction that stands out explains
    remaining_variance = _average_by_band((within - factors.T @ factors).diag(), bands[at])
    spread = torch.cat([factors, remaining_variance.clamp_min(0).sqrt().diag()])
    if len(moments) > 1:
        class_moments = (
            moments / count[:, None, None] - class_means[:, :, None] * class_means[:, None]
        )
        edges = (2 * len(at) * sums["moments_variance"]).sqrt() / count
        spread = torch.stack(
            [
                _class_spread(spread.T @ spread, class_moment, limit)
                for class_moment, limit in zip(class_moments, edges)
            ]
        )
    return ClassModel(means.float(), spread.float(), at)


def _class_spread(shared: Tensor, own: Tensor, edge: Tensor) -> Tensor:
    """A root (q, q) of the covariance (q, q) of all classes, and of what a class's ``own`` differs
    by beyond noise of norm ``edge``."""
    values, vectors = torch.linalg.eigh(own - shared)
    values = torch.where(values.abs() > edge, values, 0.0)
    values, vectors = torch.linalg.eigh(shared + (vectors * values) @ vectors.T)
    return (vectors * values.clamp_min(0).sqrt()).T


def _shrink_to_signal(rows: Tensor, noise: Tensor, bands: Tensor) -> Tensor:
    """Rows (m, p) times the share of each band's mean square that is not noise."""
    power = _average_by_band(rows.square().mean(0), bands)
    return rows * (1 - noise / power.clamp_min(1e-30)).clamp(0, 1)


def _average_by_band(values: Tensor, bands: Tensor) -> Tensor:
    """Each of the values (p,) replaced by the mean of its band, in which noise of mean 0 is
    averaged out."""
    total = torch.zeros(int(bands.max()) + 1, dtype=values.dtype).index_add_(0, bands, values)
    return (total / torch.bincount(bands).clamp_min(1))[bands]


@dataclass(frozen=True)
class CoarsePixels:
    """Images (b, c, h, w) in [0, 1] -> (b, p): orthonormal cosine transform (DCT-II) of pixels less
    ``GREY``, the lowest side x side frequencies of every channel, over sqrt(c h w). Its norm is at
    most the root mean square of the pixels' distance from ``GREY``, below 0.65. It depends on the
    image alone."""

    side: int = 12

    def __post_init__(self) -> None:
        check_counts(self, "side", under="looks.")

    def __call__(self, x: Tensor) -> Tensor:
        down, right = (_cosine_rows(size, self.side).to(x) for size in x.shape[-2:])
        return (down @ (x - GREY) @ right.T).flatten(1) / math.sqrt(math.prod(x.shape[1:]))

    def to_images(self, looks: Tensor, shape: Sequence[int]) -> Tensor:
        """The smoothest images (b, c, h, w) that look so, cut to [0, 1]."""
        down, right = (_cosine_rows(size, self.side).to(looks) for size in shape[-2:])
        waves = looks.reshape(len(looks), shape[0], len(down), len(right)) * math.sqrt(
            math.prod(shape)
        )
        return (down.T @ waves @ right + GREY).clamp(0, 1)

    def frequency_bands(self, shape: Sequence[int]) -> Tensor:
        """The frequency of each number (p,), as a whole number: the distance from the lowest,
        rounded."""
        down, right = (torch.arange(min(size, self.side)) for size in shape[-2:])
        return (
            (down[:, None] ** 2 + right**2)
            .double()
            .sqrt()
            .round()
            .long()
            .repeat(shape[0], 1, 1)
            .flatten()
        )

    def positions_in(self, finer: CoarsePixels, shape: Sequence[int]) -> Tensor:
        """The positions of this map's numbers among those of a finer map, (p,)."""
        down, right = (torch.arange(min(size, finer.side)) < self.side for size in shape[-2:])
        return (down[:, None] & right).repeat(shape[0], 1, 1).flatten().nonzero()[:, 0]


def _cosine_rows(size: int, count: int) -> Tensor:
    """The ``count`` lowest cosines over ``size`` pixels, orthonormal rows (min(count, size),
    size)."""
    waves = torch.arange(min(count, size))[:, None] * (torch.arange(size) + 0.5) * math.pi / size
    rows = torch.cos(waves) * math.sqrt(2 / size)
    rows[0] /= math.sqrt(2)
    return rows


def push_images(
    images: Tensor, y: Tensor, score: Embed, steps: int, rate: float, keys: Keys
) -> Tensor:
    """Images (n, c, h, w) in [0, 1] after ``steps``, each by itself, towards a high probability of
    class y (n,).

    score: images -> logits (b, C); rate: root mean square of the first step's change of pixels,
        half of which is left at the last; steps are shorter where the probability is high. Each
        step sees the images moved by up to one pixel.
    """
    generator = keys.torch()
    parts = zip(images.split(CHUNK), y.split(CHUNK))
    return torch.cat([_push_part(x, of, score, steps, rate, generator) for x, of in parts])


def _push_part(
    x: Tensor, y: Tensor, score: Embed, steps: int, rate: float, generator: torch.Generator
) -> Tensor:
    direction = torch.zeros_like(x)
    for step in timed_steps(range(steps)):
        down, right = (torch.randint(-1, 2, (2,), generator=generator)).tolist()
        leaf = x.detach().requires_grad_(True)
        with torch.enable_grad():
            logits = score(torch.roll(leaf, (down, right), (2, 3)))
            loss = (
                F.cross_entropy(logits, y, reduction="sum")
                + SMOOTHNESS * total_variation(leaf).sum()
            )
        (slope,) = torch.autograd.grad(loss, leaf)
        size = slope.square().mean((1, 2, 3), keepdim=True).sqrt()
        direction = PUSH_MOMENTUM * direction + (1 - PUSH_MOMENTUM) * slope / (size + TINY)
        unsure = 1 - torch.softmax(logits.detach(), 1).gather(1, y[:, None]).view(-1, 1, 1, 1)
        length = rate * (1 - step / (2 * steps)) * (MIN_PUSH + (1 - MIN_PUSH) * unsure)
        x = (x - length * direction).clamp(0, 1).detach()
    return x


Score = Callable[[Tensor], Tensor]  # images (b, c, h, w) -> logits (b, C)
Fit = Callable[[Tensor, Tensor], Tensor]  # images (b, c, h, w) and their classes (b,) -> images


@dataclass(frozen=True)
class GuidanceSettings:
    """images: how many are released; drawn: how many they are mixed from, each pushed by itself in
    ``steps`` steps of ``rate`` (``push_images``) to where the head gives it its class; fitted:
    further ones, which are fitted to what was released by ``fitting`` first, and are mixed both as
    they then are and pushed; mixing: at most this share of a second image;
    moves: the largest shift, shear and change of scale, as a share of the image; temperature: the
        head's logits are multiplied by it before they become labels; texture: of noise of several
        scales that is
    laid over all but a share ``clean`` of the images, so that the head labels what no class looks
    like as well;
    silhouettes: half of what images are mixed from keep their bright part alone before they are
        pushed, and half get a faint texture (``vary_drawings``).
    """

    images: int = 4000
    drawn: int = 400
    fitted: int = 0
    fitting: FittingSettings = field(
        default_factory=lambda: FittingSettings(steps=60, lr=0.06, smoothness=1e-7)
    )
    steps: int = 12
    rate: float = 0.06
    mixing: float = 0.5
    moves: float = 0.08
    temperature: float = 0.75
    texture: float = 0.6
    clean: float = 0.4
    silhouettes: bool = True

    def __post_init__(self) -> None:
        check_counts(self, "images", "drawn", under="guiding.")
        check_counts(self, "fitted", "steps", least=0, under="guiding.")
        check_positive(self, "temperature", under="guiding.")
        for name in ("rate", "mixing", "moves", "texture", "clean"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(
                    f"guiding.{name}={getattr(self, name)!r}: a share in [0, 1] is needed"
                )


def build_guided_set(
    model: ClassModel,
    looks: CoarsePixels,
    score: Score,
    shape: RecordShape,
    guiding: GuidanceSettings,
    keys: Keys,
    fit: Fit | None = None,
) -> tuple[Tensor, Tensor]:
    """(images (m, c, h, w) in [0, 1], the head's soft labels (m, C)), of as many drawings of each
    class.

    fit: what fits images to the released gradients; None: no images are fitted.
    """

    def scale_logits(x: Tensor) -> Tensor:
        return guiding.temperature * score(x)

    def draw_start_images(count: int, keys: Keys) -> tuple[Tensor, Tensor]:
        y = torch.arange(count) % len(model.means)
        images = looks.to_images(model.draw_records(y, keys.fold("draw").torch()), shape)
        return vary_drawings(
            images, guiding, keys.fold("start")
        ) if guiding.silhouettes else images, y

    start, y = draw_start_images(guiding.drawn, keys)
    pool = push_images(start, y, scale_logits, guiding.steps, guiding.rate, keys.fold("push"))
    if fit and guiding.fitted:
        start, y = draw_start_images(guiding.fitted, keys.fold("fit"))
        fitted = fit(start, y)
        pushed = push_images(
            fitted, y, scale_logits, guiding.steps, guiding.rate, keys.fold("push fit")
        )
        pool = torch.cat([pool, fitted, pushed])
    x = mix_and_move(pool, guiding.images, guiding.mixing, guiding.moves, keys.fold("vary").torch())
    clean = int(guiding.clean * len(x))  # which are in no order
    x = torch.cat(
        [x[:clean], add_texture(x[clean:], guiding.texture, keys.fold("texture").torch())]
    )
    return x, torch.softmax(embed_images(scale_logits, x), 1)


def vary_drawings(pool: Tensor, guiding: GuidanceSettings, keys: Keys) -> Tensor:
    """Vary the pool's images (n, c, h, w): each is blended with a little of another and moved
    about; about half of them under a faint texture, and of the others the bright part alone, with
    an edge and a texture of its own."""
    x = mix_and_move(pool, None, BLENDED, guiding.moves, keys.fold("vary").torch())
    rough = add_texture(x, FAINT, keys.fold("faint").torch())
    which = torch.rand(len(x), 1, 1, 1, generator=keys.fold("which").torch()).to(x)
    return torch.where(which < 0.5, rough, draw_silhouettes(x, keys.fold("silhouette").torch()))


def draw_silhouettes(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images (n, c, h, w) whose part above a random brightness stays, with a sharp edge and some
    texture inside."""
    fill = add_texture(torch.full_like(images, 0.5), 2 * FAINT, generator)
    edge, share = (
        torch.rand(len(images), 1, 1, 1, generator=generator).to(images) for _ in range(2)
    )
    is_inside = torch.sigmoid(STEEP * (images - 0.1 - 0.3 * edge))
    share = 0.8 * share
    return (is_inside * ((1 - share) * (0.5 * images + 0.4) + share * fill)).clamp(0, 1)


def add_texture(images: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Images (m, c, h, w) under noise of one of several scales each, of standard deviation up to
    ``amount``."""
    size = images.shape[-2:]
    out = images.clone()
    scale = torch.randint(len(SCALES), (len(images),), generator=generator)
    for is_at_scale, parts in ((scale == k, parts) for k, parts in enumerate(SCALES)):
        knots = [max(2, side // parts + 1) for side in size]
        texture = torch.randn(int(is_at_scale.sum()), images.shape[1], *knots, generator=generator)
        much = amount * torch.rand(len(texture), 1, 1, 1, generator=generator)
        out[is_at_scale] += (
            much * F.interpolate(texture, size=size, mode="bicubic", align_corners=False)
        ).to(out)
    return out.clamp(0, 1)


def mix_and_move(
    pool: Tensor, count: int | None, mixing: float, moves: float, generator: torch.Generator
) -> Tensor:
    """``count`` images (m, c, h, w) of a pool (n, c, h, w), mixed with up to ``mixing`` of another,
    moved and dimmed.

    Which ones is random; None: each one once, in its place.
    """
    m = len(pool) if count is None else count

    def draw_uniform(*size: int) -> Tensor:
        return torch.rand(*size, generator=generator).to(pool)

    first, second = (torch.randint(len(pool), (m,), generator=generator) for _ in range(2))
    part = mixing * draw_uniform(m, 1, 1, 1)
    x = (1 - part) * (pool if count is None else pool[first]) + part * pool[second]
    where = torch.eye(2, 3).repeat(m, 1, 1).to(pool) + moves * (2 * draw_uniform(m, 2, 3) - 1)
    x = F.grid_sample(
        x, F.affine_grid(where, list(x.shape), align_corners=False), align_corners=False
    )
    return (x * (1 + 2 * moves * (2 * draw_uniform(m, 1, 1, 1) - 1))).clamp(0, 1)
