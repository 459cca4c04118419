"""Descent on images for many problems at once: restarts and records share one batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from attacks.gpu import ahead, look_every
from attacks.inversion.objectives import Objective, total_variation
from attacks.inversion.victim import Victim
from attacks.ranges import check_counts, check_from_zero, check_positive

Progress = Callable[[int, float], None]
FLOOR = 0.01  # share of the learning rate that a cosine schedule ends with


class Slope(Protocol):
    """images (r, b, c, h, w) -> data term (r,), whole objective (r,), gradient of the whole."""

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]: ...


@dataclass(frozen=True)
class Matching:
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
        if self.batched(len(images)):
            return self.at(images, self.labels, self.observed, self.parameters)
        rows = [self._plain(x, y, [t[r] for t in self.observed]) for r, (x, y) in enumerate(zip(images, self.labels))]
        return tuple(torch.stack(part) for part in zip(*rows))  # type: ignore[return-value]

    def batched(self, problems: int) -> bool:
        """Whether so many problems go through the model as one batch. Raises ValueError where each has a model of its
        own and they cannot."""
        if self.parameters and not self.victim.batchable():
            raise ValueError("parameters: problems with models of their own need a model that vmap can run")
        return (problems > 1 or bool(self.parameters)) and self.victim.batchable()

    def at(
        self, images: Tensor, labels: Tensor, observed: list[Tensor], parameters: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The value at all problems' images as one batch, of nothing but the arguments."""
        size = self.together if 0 < self.together < len(images) else None
        return torch.func.vmap(self._functional, chunk_size=size)(images, labels, observed, dict(parameters))

    def _plain(self, images: Tensor, labels: Tensor, observed: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        leaf = images.detach().requires_grad_()
        gradients = self.victim.gradients(leaf, labels)
        with torch.no_grad():
            data, cotangents = self.objective(gradients, observed)
        outputs, seeds = list(gradients), list(cotangents)
        total = data
        if self.tv:
            smooth = total_variation(leaf)
            outputs, seeds = [*outputs, smooth], [*seeds, torch.full_like(smooth, self.tv)]
            total = data + self.tv * smooth.detach()
        (slope,) = torch.autograd.grad(outputs, leaf, seeds)
        return data, total, slope

    def _functional(
        self, images: Tensor, labels: Tensor, observed: list[Tensor], parameters: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        def sent(x: Tensor) -> list[Tensor]:
            return self.victim.gradients(x, labels, functional=True, parameters=parameters or None)

        gradients, pull = torch.func.vjp(sent, images)[:2]
        data, cotangents = self.objective(gradients, observed)
        (slope,) = pull(cotangents)
        if not self.tv:
            return data, data, slope
        smooth_slope, smooth = torch.func.grad_and_value(total_variation)(images)  # type: ignore[misc]
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
        check_from_zero(self, "langevin")
        if self.schedule not in ("steps", "cosine"):
            raise ValueError(f"schedule={self.schedule!r}: allowed are steps, cosine")

    def rate(self, stage: int, step: int) -> float:
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        if self.schedule == "cosine":
            return self.lr * warm * (FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * step / self.iterations)) / 2)
        return self.lr * 0.1**stage * warm


class Moments:
    """Adam's two moments of r problems and the step they propose."""

    def __init__(self, like: Tensor, rule: SignedAdam) -> None:
        self.rule, self.first, self.second = rule, torch.zeros_like(like), torch.zeros_like(like)

    def step(self, slope: Tensor, step: int, rate: float) -> Tensor:
        g, (b1, b2) = slope.sign() if self.rule.signed else slope, self.rule.betas
        self.first.lerp_(g, 1 - b1)
        self.second.mul_(b2).addcmul_(g, g, value=1 - b2)
        scale = (self.second / (1 - b2 ** (step + 1))).sqrt_().add_(1e-8)
        return (self.first / scale).mul_(-rate / (1 - b1 ** (step + 1)))

    def forget(self, lost: Tensor) -> None:
        self.first[lost], self.second[lost] = 0, 0


class Stages:
    """Where the learning rate stands: a stage ends at its milestone or on a plateau."""

    def __init__(self, rule: SignedAdam) -> None:
        self.rule, self.stage, self.lowest, self.since = rule, 0, float("inf"), 0
        self.cuts = [int(rule.iterations * part) for part in rule.milestones]

    def finished(self, step: int, total: Tensor) -> bool:
        """Move on where due; True when the last stage has reached a plateau."""
        plateau = self._plateau(step, total)
        last = self.stage == len(self.cuts)
        if not last and (plateau or step >= self.cuts[self.stage]):
            self.stage, self.since = self.stage + 1, 0
        return plateau and last

    def _plateau(self, step: int, total: Tensor, every: int = 10) -> bool:
        if not self.rule.patience or step % every:
            return False
        now = float(total.sum())
        self.lowest, self.since = (now, 0) if now < 0.999 * self.lowest else (self.lowest, self.since + every)
        return self.since >= self.rule.patience


@dataclass
class Trace:
    """The best iterate so far, kept with the value that it was scored at."""

    images: Tensor
    total: Tensor
    data: Tensor
    history: list[float] = field(default_factory=list)
    steps: int = 0

    @staticmethod
    def start(images: Tensor) -> Trace:
        infinite = torch.full((len(images),), torch.inf, dtype=images.dtype, device=images.device)
        return Trace(images.clone(), infinite, infinite)

    def keep(self, images: Tensor, data: Tensor, total: Tensor) -> None:
        """Keep those of ``images`` whose ``total``, evaluated at these very images, is the lowest."""
        better = total < self.total
        self.images = torch.where(better.view(-1, *[1] * (images.ndim - 1)), images, self.images)
        self.total = torch.where(better, total, self.total)
        self.data = torch.where(better, data, self.data)

    def note(self, step: int, progress: Progress | None) -> None:
        self.history.append(float(self.total.min()))
        if progress is not None:
            progress(step, self.history[-1])


def normal_like(images: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers of the shape of ``images``, drawn where the generator lives."""
    return torch.randn(images.shape, generator=generator, device=generator.device).to(images)


def descend(
    slope: Slope,
    start: Tensor,
    rule: SignedAdam,
    box: tuple[Tensor, Tensor],
    generator: torch.Generator,
    progress: Progress | None = None,
    every: int = 50,
    skip: float = 0.0,
) -> Trace:
    """Minimise ``slope``'s objective from ``start`` (r, b, c, h, w) inside ``box``; keeps the best iterates.

    skip: share of the iterations whose iterates are not kept, because the objective is still another one.

    A problem whose objective or gradient turns non-finite starts afresh from new noise, on a GPU at the next look.
    """
    images = start.clone().clamp(*box)
    moments, stages, trace = Moments(images, rule), Stages(rule), Trace.start(images)
    kicks = ahead(lambda: (torch.randn(start.shape, generator=generator),), rule.iterations, images.device)
    for step in range(rule.iterations):
        data, total, gradient = slope(images)
        if step >= skip * rule.iterations:
            trace.keep(images, data, total)
        trace.steps = step + 1
        if step % every == 0:
            trace.note(step, progress)
        lost = ~(torch.isfinite(total) & torch.isfinite(gradient.flatten(1)).all(1))
        if step % look_every(images.device) == 0 and lost.any():
            images[lost] = normal_like(images, generator)[lost].clamp(*box)
            moments.forget(lost)
            continue
        if stages.finished(step, trace.total):
            break
        rate = rule.rate(stages.stage, step)
        images = images + moments.step(gradient, step, rate)
        if rule.langevin:
            images = images + rule.langevin * rate * next(kicks)[0].to(images)
        images = images.clamp(*box)
    trace.keep(images, *slope(images)[:2])
    return trace
