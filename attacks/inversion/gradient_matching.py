"""Descent on images whose gradient is to match an observed one: objectives, their derivatives, and many problems in one batch.

Each objective returns its value and its cotangents d(value)/d(gradient). Handing the cotangents to one vector-Jacobian
product replaces differentiation through the objective itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from attacks.gpu import draw_ahead, steps_between_reads
from attacks.inversion.victim import Victim
from attacks.validation import check_counts, check_non_negative, check_positive

# --- objectives --------------------------------------------------------------------------------
# How far a candidate's gradient is from the observed one, with the derivative in closed form.
#
# Each objective returns its value and its cotangents d(value)/d(gradient). Handing the cotangents to
# one vector-Jacobian product replaces differentiation through the objective itself.


Gradients = Sequence[Tensor]
Objective = Callable[[Gradients, Gradients], tuple[Tensor, list[Tensor]]]
MIN_NORM = 1e-20


def _inner_product(a: Gradients, b: Gradients) -> Tensor:
    return torch.stack([(x * y).sum() for x, y in zip(a, b)]).sum()


def cosine_distance(candidate: Gradients, observed: Gradients) -> tuple[Tensor, list[Tensor]]:
    """1 - <g, t> / (|g| |t|) over the whole concatenation (Geiping et al. 2020, eq. 4)."""
    length = _inner_product(candidate, candidate).clamp_min(MIN_NORM).rsqrt()
    target = _inner_product(observed, observed).clamp_min(MIN_NORM).rsqrt()
    similarity = _inner_product(candidate, observed) * length * target
    pull, push = length * target, similarity * length**2
    return 1 - similarity, [push * g - pull * t for g, t in zip(candidate, observed)]


def squared_distance(candidate: Gradients, observed: Gradients) -> tuple[Tensor, list[Tensor]]:
    """sum |g - t|^2 (Zhu et al. 2019, eq. 4)."""
    gaps = [g - t for g, t in zip(candidate, observed)]
    return _inner_product(gaps, gaps), [2 * gap for gap in gaps]


def layerwise_distance(candidate: Gradients, observed: Gradients) -> tuple[Tensor, list[Tensor]]:
    """sum over layers of |g_l - t_l| (Yin et al. 2021, eq. 2)."""
    gaps = [g - t for g, t in zip(candidate, observed)]
    norms = [gap.square().sum().clamp_min(MIN_NORM).sqrt() for gap in gaps]
    return torch.stack(norms).sum(), [gap / norm for gap, norm in zip(gaps, norms)]


def absolute_distance(candidate: Gradients, observed: Gradients) -> tuple[Tensor, list[Tensor]]:
    """sum |g - t|_1 / sum |t|_1 over the whole concatenation.

    Where a candidate image is near the record but some units of a ReLU network are on the wrong side, most entries of
    the gradient agree and a few are far off. Squares and angles chase those few; absolute values treat them as
    outliers.
    """
    gaps = [g - t for g, t in zip(candidate, observed)]
    size = torch.stack([t.abs().sum() for t in observed]).sum().clamp_min(MIN_NORM).reciprocal()
    return torch.stack([gap.abs().sum() for gap in gaps]).sum() * size, [gap.sign() * size for gap in gaps]


OBJECTIVES = {"cosine": cosine_distance, "absolute": absolute_distance}


def mean_total_variation(images: Tensor) -> Tensor:
    """(..., h, w) -> (): mean |x_{w+1} - x_w| + mean |x_{h+1} - x_h| (anisotropic, no padding)."""
    return images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()


# --- optimise ----------------------------------------------------------------------------------
# Descent on images for many problems at once: restarts and records share one batch.


Progress = Callable[[int, float], None]
FINAL_RATE_SHARE = 0.01  # share of the learning rate that a cosine schedule ends with


class MatchingObjective(Protocol):
    """images (r, b, c, h, w) -> data term (r,), whole objective (r,), gradient of the whole."""

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]: ...


@dataclass(frozen=True)
class GradientMatching:
    """The gradient-matching problem: r problems that share one architecture.

    observed: list of (r, *parameter shape); labels: (r, b) classes; tv: weight of total variation; parameters: name ->
    (r, *shape), where every problem has a model of its own, {}: all have the victim's; together: how many problems may
    go through the model at once (0: all), which bounds memory.
    """

    victim: Victim
    objective: Objective
    observed: list[Tensor]
    labels: Tensor
    tv: float = 0.0
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    together: int = 0

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.runs_as_batch(len(images)):
            return self.evaluate_batch(images, self.labels, self.observed, self.parameters)
        rows = [
            self._evaluate_plain(x, y, [t[r] for t in self.observed])
            for r, (x, y) in enumerate(zip(images, self.labels))
        ]
        return tuple(torch.stack(part) for part in zip(*rows))  # type: ignore[return-value]

    def runs_as_batch(self, problems: int) -> bool:
        """Whether so many problems go through the model as one batch. Raises ValueError where each has a model of its
        own and they cannot."""
        if self.parameters and not self.victim.is_batchable():
            raise ValueError("parameters: problems with models of their own need a model that vmap can run")
        return (problems > 1 or bool(self.parameters)) and self.victim.is_batchable()

    def evaluate_batch(
        self, images: Tensor, labels: Tensor, observed: list[Tensor], parameters: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The value at all problems' images as one batch, of nothing but the arguments."""
        size = self.together if 0 < self.together < len(images) else None
        return torch.func.vmap(self._evaluate_functional, chunk_size=size)(images, labels, observed, dict(parameters))

    def _evaluate_plain(self, images: Tensor, labels: Tensor, observed: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        leaf = images.detach().requires_grad_()
        gradients = self.victim.simulated_gradients(leaf, labels)
        with torch.no_grad():
            data, cotangents = self.objective(gradients, observed)
        outputs, seeds = list(gradients), list(cotangents)
        total = data
        if self.tv:
            smooth = mean_total_variation(leaf)
            outputs, seeds = [*outputs, smooth], [*seeds, torch.full_like(smooth, self.tv)]
            total = data + self.tv * smooth.detach()
        (slope,) = torch.autograd.grad(outputs, leaf, seeds)
        return data, total, slope

    def _evaluate_functional(
        self, images: Tensor, labels: Tensor, observed: list[Tensor], parameters: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        def simulated_gradients(x: Tensor) -> list[Tensor]:
            return self.victim.simulated_gradients(x, labels, functional=True, parameters=parameters or None)

        gradients, pull = torch.func.vjp(simulated_gradients, images)[:2]
        data, cotangents = self.objective(gradients, observed)
        (slope,) = pull(cotangents)
        if not self.tv:
            return data, data, slope
        smooth_slope, smooth = torch.func.grad_and_value(mean_total_variation)(images)  # type: ignore[misc]
        return data, data + self.tv * smooth, slope + self.tv * smooth_slope


@dataclass(frozen=True)
class SignedAdam:
    """Adam on the gradient's sign, with a box and a step-wise learning rate (Geiping et al. 2020).

    schedule: "steps" divides lr by ten after the ``milestones`` (fractions of the iterations); "cosine" lowers it to
    a hundredth along half a cosine. patience: iterations without an improvement of a thousandth before the next stage
    begins (0: never); in the last stage the descent stops there. langevin: noise of this many lr added to each iterate.
    """

    iterations: int
    lr: float
    signed: bool = True
    milestones: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8)
    schedule: Literal["steps", "cosine"] = "steps"
    patience: int = 0
    warmup: int = 0
    langevin: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        check_counts(self, "iterations")
        check_positive(self, "lr")
        check_counts(self, "patience", "warmup", least=0)
        check_non_negative(self, "langevin")
        if self.schedule not in ("steps", "cosine"):
            raise ValueError(f"schedule={self.schedule!r}: allowed are steps, cosine")

    def learning_rate(self, stage: int, step: int) -> float:
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        if self.schedule == "cosine":
            return (
                self.lr
                * warm
                * (FINAL_RATE_SHARE + (1 - FINAL_RATE_SHARE) * (1 + math.cos(math.pi * step / self.iterations)) / 2)
            )
        return self.lr * 0.1**stage * warm


class AdamMoments:
    """Adam's two moments of r problems and the step they propose."""

    def __init__(self, like: Tensor, rule: SignedAdam) -> None:
        self.rule, self.first, self.second = rule, torch.zeros_like(like), torch.zeros_like(like)

    def step(self, slope: Tensor, step: int, rate: float) -> Tensor:
        g, (b1, b2) = slope.sign() if self.rule.signed else slope, self.rule.betas
        self.first.lerp_(g, 1 - b1)
        self.second.mul_(b2).addcmul_(g, g, value=1 - b2)
        scale = (self.second / (1 - b2 ** (step + 1))).sqrt_().add_(1e-8)
        return (self.first / scale).mul_(-rate / (1 - b1 ** (step + 1)))

    def reset_moments(self, lost: Tensor) -> None:
        self.first[lost], self.second[lost] = 0, 0


class RateStages:
    """Where the learning rate stands: a stage ends at its milestone or on a plateau."""

    def __init__(self, rule: SignedAdam) -> None:
        self.rule, self.stage, self.lowest, self.since = rule, 0, float("inf"), 0
        self.cuts = [int(rule.iterations * part) for part in rule.milestones]

    def advance_stage(self, step: int, total: Tensor) -> bool:
        """Move on where due; True when the last stage has reached a plateau."""
        plateau = self._is_on_plateau(step, total)
        last = self.stage == len(self.cuts)
        if not last and (plateau or step >= self.cuts[self.stage]):
            self.stage, self.since = self.stage + 1, 0
        return plateau and last

    def _is_on_plateau(self, step: int, total: Tensor, every: int = 10) -> bool:
        if not self.rule.patience or step % every:
            return False
        now = float(total.sum())
        self.lowest, self.since = (now, 0) if now < 0.999 * self.lowest else (self.lowest, self.since + every)
        return self.since >= self.rule.patience


@dataclass
class DescentTrace:
    """The best iterate so far, kept with the value that it was scored at."""

    images: Tensor
    total: Tensor
    data: Tensor
    history: list[float] = field(default_factory=list)
    steps: int = 0

    @staticmethod
    def start_at(images: Tensor) -> DescentTrace:
        infinite = torch.full((len(images),), torch.inf, dtype=images.dtype, device=images.device)
        return DescentTrace(images.clone(), infinite, infinite)

    def keep_better(self, images: Tensor, data: Tensor, total: Tensor) -> None:
        """Keep those of ``images`` whose ``total``, evaluated at these very images, is the lowest."""
        better = total < self.total
        self.images = torch.where(better.view(-1, *[1] * (images.ndim - 1)), images, self.images)
        self.total = torch.where(better, total, self.total)
        self.data = torch.where(better, data, self.data)

    def note_progress(self, step: int, progress: Progress | None) -> None:
        self.history.append(float(self.total.min()))
        if progress is not None:
            progress(step, self.history[-1])


def draw_normal_like(images: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers of the shape of ``images``, drawn where the generator lives."""
    return torch.randn(images.shape, generator=generator, device=generator.device).to(images)


def minimise_objective(
    slope: MatchingObjective,
    start: Tensor,
    rule: SignedAdam,
    box: tuple[Tensor, Tensor],
    generator: torch.Generator,
    progress: Progress | None = None,
    every: int = 50,
    skip: float = 0.0,
) -> DescentTrace:
    """Minimise ``slope``'s objective from ``start`` (r, b, c, h, w) inside ``box``; keeps the best iterates.

    skip: share of the iterations whose iterates are not kept, because the objective is still another one.

    A problem whose objective or gradient turns non-finite starts afresh from new noise, on a GPU at the next look.
    """
    images = start.clone().clamp(*box)
    moments, stages, trace = AdamMoments(images, rule), RateStages(rule), DescentTrace.start_at(images)
    kicks = draw_ahead(lambda: (torch.randn(start.shape, generator=generator),), rule.iterations, images.device)
    for step in range(rule.iterations):
        data, total, gradient = slope(images)
        if step >= skip * rule.iterations:
            trace.keep_better(images, data, total)
        trace.steps = step + 1
        if step % every == 0:
            trace.note_progress(step, progress)
        lost = ~(torch.isfinite(total) & torch.isfinite(gradient.flatten(1)).all(1))
        if step % steps_between_reads(images.device) == 0 and lost.any():
            images[lost] = draw_normal_like(images, generator)[lost].clamp(*box)
            moments.reset_moments(lost)
            continue
        if stages.advance_stage(step, trace.total):
            break
        rate = rule.learning_rate(stages.stage, step)
        images = images + moments.step(gradient, step, rate)
        if rule.langevin:
            images = images + rule.langevin * rate * next(kicks)[0].to(images)
        images = images.clamp(*box)
    trace.keep_better(images, *slope(images)[:2])
    return trace
