"""Gradient inversion: images whose gradient is the one that the victim sent.

All attacks share one call. They see the model, the gradients and what is public; the truth never enters.
``evaluate_objective`` gives the objective at any images, so that an evaluator can check that it vanishes at the truth:
where it does not, attacker and victim compute different things.

The gradient of a ReLU network jumps where a unit switches on or off, which no derivative with respect to the image
sees. With softplus(beta x) / beta in its place the search feels the switches; beta grows until the network is the
victim's again.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.arrays import accepts_numpy
from attacks.inversion.gradient_matching import (
    OBJECTIVES,
    DescentInverter,
    GradientInverter,
    GradientMatching,
    LayerStatistics,
    MatchingObjective,
    Objective,
    SignedAdam,
    can_share_batch,
    draw_normal_like,
    record_if_long,
    squared_distance,
)
from attacks.inversion.labels import guess_labels
from attacks.inversion.reconstruction import Channelwise, PixelScale, Reconstruction, check_gradient_request
from attacks.inversion.seethrough import PriorObjective, SeeThrough
from attacks.inversion.victim import SINGLE_STEP, LocalSteps, Victim, update_to_gradients
from attacks.validation import check_counts, check_non_negative

# Deep leakage from gradients with L-BFGS: DLG (joint labels) and iDLG (labels read off first).


STALL_STEPS = 5  # a run ends after so many outer steps with less than 5 % improvement in total


@dataclass
class BestIterate:
    """The lowest value met inside the line of closures, with the variables it was evaluated at."""

    variables: list[Tensor]
    value: float = float("inf")
    history: list[float] = field(default_factory=list)

    def keep_if_lower(self, variables: Sequence[Tensor], value: float) -> None:
        if value < self.value:
            self.value, self.variables = value, [v.detach().clone() for v in variables]


@dataclass(frozen=True)
class DLG(GradientInverter):
    """Squared gradient distance over images and label logits together (Zhu, Liu, Han 2019, alg. 1).

    iterations: outer L-BFGS steps of 20 inner ones; restarts: kept by the lowest objective;
    attempts: fresh draws after an objective that is non-finite or stalls above ``accept`` times
    |observed|^2; tolerance: stop below this objective.
    Made for smooth networks with wide weights; it seldom converges on ReLU networks.
    """

    iterations: int = 300
    restarts: int = 1
    attempts: int = 6
    accept: float = 1e-4
    tolerance: float = 1e-12
    joint_labels = True

    def __post_init__(self) -> None:
        check_counts(self, "iterations", "restarts", "attempts")
        check_non_negative(self, "accept", "tolerance")

    @property
    def distance(self) -> Objective:
        return squared_distance

    def reconstruct(
        self,
        model: nn.Module,
        gradients: list[Tensor],
        shape: tuple[int, int, int, int],
        *,
        labels: Tensor | None = None,
        mean: Channelwise = 0.0,
        std: Channelwise = 1.0,
        generator: torch.Generator,
        local: LocalSteps = SINGLE_STEP,
    ) -> Reconstruction:
        """Labels are those that the optimiser ends with."""
        check_gradient_request(gradients, list(model.parameters()), shape)
        pixels, victim = PixelScale(mean, std), Victim(model, local)
        observed = [g.detach() for g in gradients]
        if labels is None and not self.joint_labels:
            labels = guess_labels(model, observed, shape, pixels, local, generator)
        runs = [self._run_restart(victim, observed, shape, labels, generator) for _ in range(self.restarts)]
        best = min(runs, key=lambda run: run.value)
        found = labels if labels is not None else best.variables[1].argmax(1)
        images = pixels.to_image(best.variables[0])
        return Reconstruction(images, found, best.value, tuple(best.history), {"restarts": float(self.restarts)})

    def _run_restart(
        self, victim: Victim, observed: list[Tensor], shape: Sequence[int], labels: Tensor | None, generator: torch.Generator
    ) -> BestIterate:  # fmt: skip
        enough = self.accept * float(squared_distance([torch.zeros_like(g) for g in observed], observed)[0])
        runs: list[BestIterate] = []
        while len(runs) < self.attempts and not (runs and runs[-1].value <= enough):
            variables = self._draw_start(victim, observed[0], shape, labels, generator)
            runs.append(self._minimise_by_lbfgs(victim, observed, variables, labels))
        return min(runs, key=lambda run: run.value)

    def _draw_start(
        self, victim: Victim, like: Tensor, shape: Sequence[int], labels: Tensor | None, generator: torch.Generator
    ) -> list[Tensor]:
        images = draw_normal_like(like.new_zeros(tuple(shape)), generator)
        if labels is not None:
            return [images.requires_grad_()]
        with torch.no_grad():
            classes = victim.model(images[:1]).shape[1]
        logits = draw_normal_like(like.new_zeros((shape[0], classes)), generator)
        return [images.requires_grad_(), logits.requires_grad_()]

    def _minimise_by_lbfgs(
        self, victim: Victim, observed: list[Tensor], variables: list[Tensor], labels: Tensor | None
    ) -> BestIterate:
        best = BestIterate([v.detach().clone() for v in variables])
        optimiser = torch.optim.LBFGS(variables)

        def evaluate_closure() -> float:
            target = labels if labels is not None else variables[1].softmax(1)
            gradients = victim.simulated_gradients(variables[0], target)
            with torch.no_grad():
                value, cotangents = squared_distance(gradients, observed)
            for variable, slope in zip(variables, torch.autograd.grad(gradients, variables, cotangents)):
                variable.grad = slope
            best.keep_if_lower(variables, float(value))
            return float(value)

        for _ in range(self.iterations):
            value = float(optimiser.step(evaluate_closure))
            best.history.append(best.value)
            stalled = len(best.history) > STALL_STEPS and best.value >= 0.95 * best.history[-1 - STALL_STEPS]
            if not value < float("inf") or best.value < self.tolerance or stalled:
                break
        return best


@dataclass(frozen=True)
class IDLG(DLG):
    """DLG with the labels read off the last layer's gradient first (Zhao et al. 2020)."""

    joint_labels = False


__all__ = [
    "DLG", "IDLG", "InvertingGradients", "LocalSteps", "Reconstruction", "SeeThrough", "gradient_norm",
    "update_to_gradients",
]  # fmt: skip

SHARPNESS_GROWTH = 100.0  # how much sharper the corners are when they are about to be put back
SOFTENED_SHARE = 0.8  # share of the iterations after which the network is the victim's own


class SoftenedReLU(nn.Module):
    """softplus(beta x) / beta; ReLU where beta is 0."""

    beta: float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(x, beta=self.beta) if self.beta else F.relu(x)


def soften_relus(model: nn.Module) -> tuple[nn.Module, list[SoftenedReLU]]:
    """A copy of the model whose nn.ReLU modules are ``SoftenedReLU``, and these; parameters keep names and order."""
    twin = copy.deepcopy(model)
    corners: list[SoftenedReLU] = []
    for parent in list(twin.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.ReLU):
                corners.append(SoftenedReLU())
                setattr(parent, name, corners[-1])
    return twin, corners


@dataclass
class SharpeningObjective:
    """A slope whose network sharpens from ``beta`` to ``SHARPNESS_GROWTH`` times that, then is the victim's own."""

    slope: MatchingObjective
    corners: list[SoftenedReLU]
    beta: float
    iterations: int
    done: int = field(default=0)

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        share = self.done / self.iterations
        beta = self.beta * SHARPNESS_GROWTH ** (share / SOFTENED_SHARE) if share < SOFTENED_SHARE else 0.0
        for corner in self.corners:
            corner.beta = beta
        self.done += 1
        return self.slope(images)


@dataclass(frozen=True)
class InvertingGradients(DescentInverter):
    """Gradient matching with total variation and signed Adam in a box; by default as Geiping et al. (2020) publish it.

    iterations: steps; tv: weight of total variation; restarts: starts from fresh noise, chosen by
    the objective without total variation; lr: step in units of the model's inputs; signed: Adam on
    the gradient's sign; patience, schedule: see SignedAdam (0 and "steps" are the published ones);
    soften: ReLUs begin as softplus of this sharpness (0: never), see ``soften_relus``;
    batchnorm: weight of batch-norm statistics where they are known (Yin et al. 2021, eq. 8);
    objective: the distance of two gradients, "cosine" (published) or "absolute" (see ``OBJECTIVES``). On ReLU networks
    absolute values with lr 0.03 and a cosine schedule reconstruct records far better (benchmarks/inversion.py).
    """

    iterations: int = 1000
    tv: float = 1e-3
    restarts: int = 1
    lr: float = 0.1
    signed: bool = True
    patience: int = 0
    objective: Literal["cosine", "absolute"] = "cosine"
    schedule: Literal["steps", "cosine"] = "steps"
    batchnorm: float = 1e-2
    soften: float = 0.0

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective={self.objective!r}: allowed are {', '.join(OBJECTIVES)}")
        check_counts(self, "restarts")
        check_non_negative(self, "tv", "batchnorm", "soften")
        if self.soften and self.patience:
            raise ValueError(f"patience={self.patience}: with soften the objective keeps changing; 0 is needed")
        self.descent_rule()

    @property
    def distance(self) -> Objective:
        return OBJECTIVES[self.objective]

    @property
    def start_count(self) -> int:
        return self.restarts

    def descent_rule(self) -> SignedAdam:
        return SignedAdam(self.iterations, self.lr, self.signed, patience=self.patience, schedule=self.schedule)

    def whole_objective(
        self, matching: GradientMatching, statistics: LayerStatistics | None
    ) -> tuple[MatchingObjective, float]:
        twin, corners = soften_relus(matching.victim.model) if self.soften else (matching.victim.model, [])
        matching = replace(matching, victim=Victim(twin, matching.victim.local))
        whole = PriorObjective(matching, 0.0, self.batchnorm, 0.0, statistics) if statistics else matching
        if corners:
            return SharpeningObjective(whole, corners, self.soften, self.iterations), SOFTENED_SHARE
        return whole if statistics else record_if_long(matching, self.iterations), 0.0

    def reconstruct_each(
        self,
        model: nn.Module,
        gradients: Sequence[Sequence[Tensor] | Tensor],
        shape: tuple[int, int, int, int],
        *,
        labels: Tensor | None = None,
        mean: Channelwise = 0.0,
        std: Channelwise = 1.0,
        generator: torch.Generator,
        local: LocalSteps = SINGLE_STEP,
        start: Tensor | None = None,
        spread: float = 1.0,
        statistics: LayerStatistics | None = None,
    ) -> list[Reconstruction]:
        """``reconstruct`` for k updates of one model at once: gradients[i] holds parameter i's k gradients.

        labels: (k, b). start: images (b, c, h, w) in [0, 1] that all begin with, else black, with
        noise of standard deviation ``spread`` in either case. statistics: of the victim's batches at each batch-norm
        layer, a penalty of weight ``batchnorm``. Problems and restarts go through the model as one batch.
        """
        pixels = PixelScale(mean, std)
        posed = self._pose_problems(model, gradients, shape, pixels, labels, generator, local, start, spread)
        return self._solve_problems([posed], pixels, generator, local, statistics)[0]

    def reconstruct_models(
        self,
        models: Sequence[nn.Module],
        gradients: Sequence[Sequence[Sequence[Tensor] | Tensor]],
        shape: tuple[int, int, int, int],
        *,
        generators: Sequence[torch.Generator],
        local: LocalSteps = SINGLE_STEP,
    ) -> list[list[Reconstruction]]:
        """``reconstruct_each`` of several models at once, with the same images up to rounding (but for searches that
        turn non-finite and start afresh: their new noise is the first generator's, and the others wait for a step).

        gradients[m][i] holds parameter i's gradients of model m. Models that are not ``can_share_batch`` are solved one by one.
        """
        pixels = PixelScale()
        posed = [
            self._pose_problems(model, each, shape, pixels, None, generator, local)
            for model, each, generator in zip(models, gradients, generators, strict=True)
        ]
        if can_share_batch(models) and not (self.soften or self.patience):  # a plateau is judged over the whole batch
            return self._solve_problems(posed, pixels, generators[0], local)
        return [self._solve_problems([one], pixels, g, local)[0] for one, g in zip(posed, generators)]


@accepts_numpy
def gradient_norm(gradients: Sequence[Tensor]) -> float:
    """The Euclidean norm of the whole list."""
    return float(torch.stack([g.square().sum() for g in gradients]).sum().sqrt())
