"""Deep leakage from gradients with L-BFGS: DLG (joint labels) and iDLG (labels read off first)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from attacks.inversion.gradient_matching import GradientInverter, Objective, draw_normal_like, squared_distance
from attacks.inversion.labels import guess_labels
from attacks.inversion.reconstruction import Channelwise, PixelScale, Reconstruction, check_gradient_request
from attacks.inversion.victim import SINGLE_STEP, LocalSteps, Victim
from attacks.validation import check_counts, check_non_negative

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
