"""Canaries: records crafted for audits, and the scores of many of them in one noisy transcript. A
bound measured with them is about the worst case that a guarantee must cover, not about an average
record."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

import numpy as np
import torch
from scipy.linalg import qr
from torch import Tensor

from attacks.types import RecordShape, is_image

Pattern = Literal["white", "black", "stripes", "noise"]
Contribution = Callable[[Tensor, Tensor], Tensor]

MIN_FREE_DIRECTIONS = 10  # directions free of canaries, at least, to measure the noise in


@dataclass(frozen=True)
class Canaries:
    """x (n, c, h, w) or (n, d) in [0, 1], y (n,) int64 and one short name each."""

    x: Tensor
    y: Tensor
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.x.ndim not in (2, 4) or not len(self.x) == len(self.y) == len(self.names):
            raise ValueError(
                f"x {tuple(self.x.shape)}, y {tuple(self.y.shape)}, {len(self.names)} names"
            )
        if not bool(((self.x >= 0) & (self.x <= 1)).all()):
            raise ValueError("canaries must lie in [0, 1]")

    def __len__(self) -> int:
        return len(self.y)


def join_canaries(*parts: Canaries) -> Canaries:
    return Canaries(
        torch.cat([p.x for p in parts]),
        torch.cat([p.y for p in parts]),
        tuple(chain.from_iterable(p.names for p in parts)),
    )


def mislabel_records(x: Tensor, y: Tensor, classes: int, generator: torch.Generator) -> Canaries:
    """The records themselves, each with a label drawn uniformly from the wrong ones."""
    if not classes >= 2:
        raise ValueError(f"classes={classes}: at least 2 are needed")
    shift = torch.randint(1, classes, y.shape, generator=generator)
    return Canaries(x.clone(), (y + shift) % classes, ("mislabelled",) * len(y))


def pattern_canary(
    name: Pattern, shape: RecordShape, label: int, generator: torch.Generator | None = None
) -> Canaries:
    """One out-of-distribution image: all ones, all zeros, one-pixel vertical stripes, or uniform
    noise."""
    if name == "noise":
        if generator is None:
            raise ValueError("pattern='noise': a generator is needed")
        image = torch.rand(shape, generator=generator)
    elif name in ("white", "black"):
        image = torch.full(shape, float(name == "white"))
    elif name == "stripes":
        image = (torch.arange(shape[-1]) % 2).float().expand(shape).clone()
    else:
        raise ValueError(f"pattern={name!r}: white, black, stripes or noise")
    return Canaries(image.unsqueeze(0), torch.tensor([label]), (name,))


def out_of_distribution_canaries(
    shape: RecordShape, label: int, generator: torch.Generator
) -> Canaries:
    """The four patterns under one label."""
    names: tuple[Pattern, ...] = ("white", "black", "stripes", "noise")
    return join_canaries(*(pattern_canary(name, shape, label, generator) for name in names))


def draw_block_images(shape: RecordShape, count: int, generator: torch.Generator) -> Tensor:
    """Images (count, c, h, w) of random black and white blocks, of one size and share of white
    each: unlike one another. Rows of a table (count, d) have no blocks, but zeros and ones."""
    if not is_image(shape):
        shares = 0.1 + 0.8 * torch.rand(count, 1, generator=generator)
        return (torch.rand(count, *shape, generator=generator) < shares).float()
    c, h, w = shape
    images = torch.empty(count, c, h, w)
    for image in range(count):
        block = int(torch.randint(1, max(2, min(h, w) // 2 + 1), (), generator=generator))
        share = 0.1 + 0.8 * float(torch.rand((), generator=generator))
        grid = torch.rand(c, -(-h // block), -(-w // block), generator=generator) < share
        images[image] = (
            grid.repeat_interleave(block, 1).repeat_interleave(block, 2)[:, :h, :w].float()
        )
    return images


def select_independent(effects: np.ndarray, count: int) -> np.ndarray:
    """Positions of ``count`` rows of effects (n, p), each next one with most that the ones before
    do not span.

    Greedy, by QR with column pivoting (Businger and Golub 1965). Raises ValueError for more rows
    than there are."""
    if not 0 <= count <= len(effects):
        raise ValueError(f"count={count}: must be between 0 and the {len(effects)} rows")
    _, order = qr(np.asarray(effects, dtype=np.float64).T, mode="r", pivoting=True)
    return order[:count]


def craft_canaries(
    contribution: Contribution,
    start: Canaries,
    *,
    direction: Tensor | None = None,
    steps: int = 50,
    step_size: float = 0.05,
) -> Canaries:
    """Records that maximise their effect: sign-gradient ascent in the pixel box [0, 1].

    contribution(x, y) -> (b, p), differentiable in x and row by row: what each record adds to the
    released quantity. Maximised is its Euclidean norm, or its inner product with ``direction``
    (p,), e.g. minus the sum of the others' contributions, where an aggregate is clipped. No canary
    does worse than its start."""
    if not steps >= 1 or not step_size > 0:
        raise ValueError(f"steps={steps}, step_size={step_size}: positive numbers are needed")
    x = start.x.clone()
    best = start.x.clone()
    best_effect = torch.full((len(start),), -torch.inf, dtype=start.x.dtype)
    for _ in range(steps + 1):
        leaf = x.detach().requires_grad_(True)
        rows = contribution(leaf, start.y)
        if rows.ndim != 2:
            raise ValueError(f"contribution returned {tuple(rows.shape)}: (b, p) is needed")
        if direction is None:
            effect = rows.norm(dim=1)
        else:
            effect = rows @ direction
        (slope,) = torch.autograd.grad(effect.sum(), leaf)
        better = effect.detach() > best_effect
        best[better] = x[better]
        best_effect[better] = effect.detach()[better].to(best_effect.dtype)
        x = (x + step_size * slope.sign()).clamp(0, 1).detach()
    return Canaries(best, start.y, tuple(f"crafted:{name}" for name in start.names))


# Scores of many canaries in one noisy transcript, by regression on the whole signal.
#
# Without what the other records add, a release of a clipped sum is
#     y = sum over canaries of z_i a_i + noise.
# a_i is what canary i adds, which an adversary can compute from the canaries, the public maps and
# all earlier releases; z_i is 1 if the canary is in and was sampled. The best linear estimate of
# all z_i together decorrelates canaries that point the same way. The one-run bounds hold for every
# score that does not depend on the inclusion bits. So if the signal has directions that no canary
# reaches, the noise is measured there, and a release with less noise than stated is read with that.


@dataclass
class CanaryScores:
    """Log likelihood ratios, in against out, of m canaries; releases are added one by one.

    Full-batch releases are regressed on together; Poisson-sampled ones one at a time, since each
    has coins of its own."""

    count: int
    _precision: np.ndarray = field(init=False)
    _moment: np.ndarray = field(init=False)
    _sampled: np.ndarray = field(init=False)
    releases: int = 0
    # sum of |a_i|^2 / std^2 over canaries and releases: the squared mu of a perfect adversary, m
    # times
    gain: float = 0.0

    def __post_init__(self) -> None:
        self._precision = np.zeros((self.count, self.count))
        self._moment = np.zeros(self.count)
        self._sampled = np.zeros(self.count)

    def add_release(
        self,
        positions: np.ndarray,
        effects: np.ndarray,
        observed: np.ndarray,
        std: float,
        probability: float,
    ) -> None:
        """One release.

        Args:
            positions: of the canaries in it (g,).
            effects: what each of them adds (g, p).
            observed: the release less the other records' part (p,).
            std: of the noise.
            probability: with which a canary was sampled.

        Raises:
            ValueError: for shapes that do not fit, and noise that is not positive.
        """
        if (
            effects.shape != (len(positions), *observed.shape)
            or not std > 0
            or not 0 < probability <= 1
        ):
            raise ValueError(
                f"{len(positions)} canaries, effects {effects.shape}, observed {observed.shape}, "
                f"std {std}"
            )
        rows = effects.astype(np.float64)
        signal = observed.astype(np.float64)
        self.releases += 1
        self.gain += float(np.square(rows).sum()) / std**2
        real = noise_outside_span(rows, signal, std)
        precision = rows @ rows.T / real**2
        moment = rows @ signal / real**2
        if probability == 1:
            self._precision[np.ix_(positions, positions)] += precision
            self._moment[positions] += moment
            return
        ratios = likelihood_ratios(precision, moment, probability / 2)
        stay = math.log1p(-probability)
        self._sampled[positions] += np.logaddexp(stay, math.log(probability) + ratios)

    def canary_scores(self) -> np.ndarray:
        """The score of each canary (m,): the larger, the more likely it was in the data."""
        return self._sampled + likelihood_ratios(self._precision, self._moment, 0.5)


def noise_outside_span(rows: np.ndarray, signal: np.ndarray, std: float) -> float:
    """The noise scale outside the span of the rows, at most ``std`` and at least a ten-thousandth
    of it."""
    energy, free = outside_span(rows, signal)
    if free < MIN_FREE_DIRECTIONS:
        return std
    return min(std, max(math.sqrt(energy / free), 1e-4 * std))


def outside_span(rows: np.ndarray, signal: np.ndarray) -> tuple[float, int]:
    """(squared norm, dimensions) of a signal (p,) outside the span of the rows (g, p)."""
    solution, _, rank, _ = np.linalg.lstsq(rows.T, signal, rcond=1e-9)
    rest = signal - solution @ rows
    return float(rest @ rest), len(signal) - int(rank)


def likelihood_ratios(precision: np.ndarray, moment: np.ndarray, mean: float) -> np.ndarray:
    """ln of z_i = 1 over z_i = 0 (..., n), the other coefficients being unknown with this mean and
    a coin's variance.

    precision: (n, n) symmetric; moment: (..., n), one transcript or several.
    """
    # Posterior of z with the prior N(m, m (1 - m)) for each:  C = (P + I / (m (1 - m)))^-1,
    # mean m + C (A y - P m). Without the prior of canary i itself, precision w_i = 1 / C_ii -
    # 1 / (m (1 - m)), estimate e_i, and the ratio w_i (e_i - 1/2).
    prior_precision = 1 / (mean * (1 - mean))
    covariance = np.linalg.inv(precision + prior_precision * np.eye(len(precision)))
    posterior_mean = mean + (moment - precision.sum(1) * mean) @ covariance
    w = np.maximum(1 / np.diag(covariance) - prior_precision, 0.0)
    return posterior_mean / np.diag(covariance) - prior_precision * mean - w / 2
