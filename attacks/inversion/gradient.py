"""Gradient inversion: images whose gradient is the one that the victim sent.

Deep leakage from gradients with L-BFGS (DLG, and iDLG, whose labels are read off first), inverting
gradients with signed Adam, and GradInversion, layer-wise with image, batch-norm and group priors
(Yin et al. 2021). They see the model, the gradients and what is public; the truth never enters.
Where ``evaluate_objective`` does not vanish at the truth, attacker and victim compute different
things."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from attacks.inversion.gradient_matching import (
    DescentInverter,
    GradientInverter,
    GradientMatching,
    LayerStatistics,
    MatchingObjective,
    Objective,
    SignedAdam,
    absolute_distance,
    can_share_batch,
    cosine_distance,
    draw_normal_like,
    layerwise_distance,
    record_if_long,
    squared_distance,
)
from attacks.inversion.labels import guess_labels
from attacks.inversion.victim import (
    SINGLE_STEP,
    Channelwise,
    LocalSteps,
    PixelScale,
    Reconstruction,
    Victim,
    check_gradient_request,
)
from attacks.tensors import accepts_numpy
from attacks.validation import check_counts, check_non_negative

OBJECTIVES = {"cosine": cosine_distance, "absolute": absolute_distance}
STALL_STEPS = 5  # a run ends after so many outer steps with less than 5 % improvement in total
SHARPNESS_GROWTH = 100.0  # how much sharper the corners are when they are about to be put back
SOFTENED_SHARE = 0.8  # share of the iterations after which the network is the victim's own


def running_statistics(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """Layer name -> (mean, variance) as kept by the model's batch-norm layers."""
    return {
        name: (m.running_mean, m.running_var)
        for name, m in model.named_modules()
        if isinstance(m, _BatchNorm) and m.running_mean is not None and m.running_var is not None
    }


def sent_statistics(
    model: nn.Module, before: Mapping[str, Tensor], after: Mapping[str, Tensor], steps: int
) -> LayerStatistics:
    """Layer name -> (mean, variance) of the victim's own batches, solved from the buffers that it
    sent.

    A layer of momentum m keeps (1 - m) of what it had in each of ``steps`` >= 1 steps, so (after -
    kept * before) / (1 - kept), kept = (1 - m)^steps, is a mean over the batches, the last ones
    weighing most. Variances are the unbiased ones that layers keep. Layers without momentum (a
    cumulative mean) or whose buffers did not travel are left out."""
    statistics = {}
    for name, module in model.named_modules():
        keys = f"{name}.running_mean", f"{name}.running_var"
        if (
            isinstance(module, _BatchNorm)
            and module.momentum
            and all(k in before and k in after for k in keys)
        ):
            remaining_weight = (1 - module.momentum) ** steps
            mean, var = (
                (after[k] - remaining_weight * before[k]) / (1 - remaining_weight) for k in keys
            )
            statistics[name] = mean.detach(), var.detach().clamp_min(0)
    return statistics


def batchnorm_distance(victim: Victim, inputs: Tensor, statistics: LayerStatistics) -> Tensor:
    """sum over layers of |mean_l(x) - m_l| + |var_l(x) - v_l| (eq. 8), biased variance."""
    distances: list[Tensor] = []

    def add_layer_distance(target: tuple[Tensor, Tensor], values: Tensor) -> None:
        axes = [0, *range(2, values.ndim)]
        mean_gap = values.mean(axes) - target[0]
        variance_gap = values.var(axes, unbiased=False) - target[1]
        distances.append(mean_gap.norm() + variance_gap.norm())

    layers = dict(victim.model.named_modules())
    hooks = [
        layers[name].register_forward_pre_hook(
            lambda _, inputs, target=target: add_layer_distance(target, inputs[0])
        )
        for name, target in statistics.items()
    ]
    try:
        victim.loss(
            victim.detached_parameters(),
            inputs,
            torch.zeros(len(inputs), dtype=torch.int64, device=inputs.device),
        )
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(distances).sum()


@dataclass(frozen=True)
class PriorObjective:
    """The matching problem plus the priors that a single forward pass or none can give."""

    matching: GradientMatching
    l2: float
    batchnorm: float
    group: float
    statistics: LayerStatistics

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        data, total, slope = self.matching(images)
        leaf = images.detach().requires_grad_()
        with torch.enable_grad():
            prior = self.l2 * leaf.square().flatten(1).mean(1)
            centre = images.mean(0, keepdim=True)
            prior = prior + self.group * (leaf - centre).square().flatten(1).mean(1)
            if self.batchnorm and self.statistics:
                rows = [batchnorm_distance(self.matching.victim, x, self.statistics) for x in leaf]
                prior = prior + self.batchnorm * torch.stack(rows)
            (extra,) = torch.autograd.grad(prior.sum(), leaf)
        return data, total + prior.detach(), slope + extra


@dataclass(frozen=True)
class SeeThrough(DescentInverter):
    """GradInversion (Yin et al. 2021): layer-wise norms, total variation, L2, batch-norm statistics
    and agreement of several seeds.

    The published weights are for 224-pixel ImageNet; the defaults are scaled for small images.

    Attributes:
        iterations: steps of the descent.
        tv: weight of total variation.
        l2: weight of the images' squares.
        batchnorm: weight of batch-norm statistics.
        group: weight of the distance of each seed's images to their mean.
        seeds: problems that are solved together.
        lr: step in units of the model's inputs.
        langevin: noise, in units of the learning rate.
    """

    iterations: int = 1000
    tv: float = 1e-4
    l2: float = 1e-6
    batchnorm: float = 1e-2
    group: float = 1e-2
    seeds: int = 4
    lr: float = 0.1
    langevin: float = 0.01
    warmup: int = 50

    def __post_init__(self) -> None:
        check_counts(self, "seeds")
        check_non_negative(self, "tv", "l2", "batchnorm", "group")
        self.descent_rule()

    @property
    def distance(self) -> Objective:
        return layerwise_distance

    @property
    def start_count(self) -> int:
        return self.seeds

    def descent_rule(self) -> SignedAdam:
        return SignedAdam(
            self.iterations, self.lr, signed=False, warmup=self.warmup, langevin=self.langevin
        )

    def whole_objective(
        self, matching: GradientMatching, statistics: LayerStatistics | None
    ) -> tuple[MatchingObjective, float]:
        """statistics: by default the running ones, used as a penalty only."""
        priors: LayerStatistics
        if statistics is None:
            priors = running_statistics(matching.victim.model)
        else:
            priors = statistics
        return PriorObjective(matching, self.l2, self.batchnorm, self.group, priors), 0.0


@dataclass
class BestIterate:
    """The lowest value met inside the line of closures, with the variables it was evaluated at."""

    variables: list[Tensor]
    value: float = float("inf")
    history: list[float] = field(default_factory=list)

    def keep_if_lower(self, variables: Sequence[Tensor], value: float) -> None:
        if value < self.value:
            self.value = value
            self.variables = [v.detach().clone() for v in variables]


@dataclass(frozen=True)
class DLG(GradientInverter):
    """Deep leakage from gradients: squared gradient distance over images and label logits together
    (Zhu, Liu and Han 2019, algorithm 1).

    Made for smooth networks with wide weights; it seldom converges on ReLU networks.

    Attributes:
        iterations: outer L-BFGS steps, of 20 inner ones.
        attempts: fresh draws after an objective that is non-finite or stalls above ``accept`` times
            |observed|^2; the lowest one counts.
        accept: a share of |observed|^2.
        tolerance: objective below which the search stops.
    """

    iterations: int = 300
    attempts: int = 6
    accept: float = 1e-4
    tolerance: float = 1e-12
    joint_labels = True

    def __post_init__(self) -> None:
        check_counts(self, "iterations", "attempts")
        check_non_negative(self, "accept", "tolerance")

    @property
    def distance(self) -> Objective:
        return squared_distance

    def search_images(
        self,
        model: nn.Module,
        gradients: list[Tensor],
        shape: tuple[int, ...],
        pixels: PixelScale,
        labels: Tensor | None,
        generator: torch.Generator,
        local: LocalSteps,
        statistics: LayerStatistics | None,
    ) -> Reconstruction:
        """Labels are those that the optimiser ends with."""
        check_gradient_request(gradients, list(model.parameters()), shape)
        victim = Victim(model, local)
        observed = [g.detach() for g in gradients]
        if labels is None and not self.joint_labels:
            labels = guess_labels(model, observed, shape, pixels, local, generator)
        enough = self.accept * float(
            squared_distance([torch.zeros_like(g) for g in observed], observed)[0]
        )
        runs: list[BestIterate] = []
        while len(runs) < self.attempts and not (runs and runs[-1].value <= enough):
            variables = self._draw_start(victim, observed[0], shape, labels, generator)
            runs.append(self._minimise_by_lbfgs(victim, observed, variables, labels))
        best = min(runs, key=lambda run: run.value)
        if labels is not None:
            recovered = labels
        else:
            recovered = best.variables[1].argmax(1)
        images = pixels.to_image(best.variables[0])
        return Reconstruction(
            images, recovered, best.value, tuple(best.history), {"attempts": float(len(runs))}
        )

    def _draw_start(
        self,
        victim: Victim,
        like: Tensor,
        shape: Sequence[int],
        labels: Tensor | None,
        generator: torch.Generator,
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
            if labels is not None:
                target = labels
            else:
                target = variables[1].softmax(1)
            gradients = victim.simulated_gradients(variables[0], target)
            with torch.no_grad():
                value, cotangents = squared_distance(gradients, observed)
            for variable, slope in zip(
                variables, torch.autograd.grad(gradients, variables, cotangents)
            ):
                variable.grad = slope
            best.keep_if_lower(variables, float(value))
            return float(value)

        for _ in range(self.iterations):
            value = float(optimiser.step(evaluate_closure))
            best.history.append(best.value)
            stalled = (
                len(best.history) > STALL_STEPS
                and best.value >= 0.95 * best.history[-1 - STALL_STEPS]
            )
            if not value < float("inf") or best.value < self.tolerance or stalled:
                break
        return best


@dataclass(frozen=True)
class IDLG(DLG):
    """DLG with the labels read off the last layer's gradient first (Zhao et al. 2020)."""

    joint_labels = False


class SoftenedReLU(nn.Module):
    """softplus(beta x) / beta; ReLU where beta is 0."""

    beta: float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        if self.beta:
            return F.softplus(x, beta=self.beta)
        return F.relu(x)


def soften_relus(model: nn.Module) -> tuple[nn.Module, list[SoftenedReLU]]:
    """A copy of the model whose nn.ReLU modules are ``SoftenedReLU``, and these; parameters keep
    names and order.

    The gradient of a ReLU network jumps where a unit switches, which no derivative with respect to
    the image sees. Of a softened one the search feels the switches; it sharpens until the network
    is the victim's again."""
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
    """A slope whose network sharpens from ``beta`` to ``SHARPNESS_GROWTH`` times that, then is the
    victim's own."""

    slope: MatchingObjective
    corners: list[SoftenedReLU]
    beta: float
    iterations: int
    done: int = field(default=0)

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        share = self.done / self.iterations
        if share < SOFTENED_SHARE:
            beta = self.beta * SHARPNESS_GROWTH ** (share / SOFTENED_SHARE)
        else:
            beta = 0.0
        for corner in self.corners:
            corner.beta = beta
        self.done += 1
        return self.slope(images)


@dataclass(frozen=True)
class InvertingGradients(DescentInverter):
    """Gradient matching with total variation and signed Adam in a box; the defaults are those of
    Geiping et al. (2020).

    On ReLU networks, absolute values with lr 0.03 and a cosine schedule reconstruct records far
    better (benchmarks/inversion.py).

    Attributes:
        iterations: steps of the descent.
        tv: weight of total variation.
        restarts: starts from fresh noise, of which the objective without total variation chooses.
        lr: step in units of the model's inputs.
        signed: Adam on the gradient's sign.
        objective: the distance of two gradients, "cosine" (published) or "absolute" (see
            ``OBJECTIVES``).
        schedule: of the learning rate, "steps" (published) or "cosine"; see ``SignedAdam``.
        batchnorm: weight of batch-norm statistics, if they are known (Yin et al. 2021, eq. 8).
        soften: ReLUs begin as softplus of this sharpness, 0: never; see ``soften_relus``.

    Example:
        >>> from attacks import InvertingGradients, LocalSteps
        >>> attack = InvertingGradients(iterations=100, objective="absolute", lr=0.03)
        >>> attack.schedule
        'steps'
    """

    iterations: int = 1000
    tv: float = 1e-3
    restarts: int = 1
    lr: float = 0.1
    signed: bool = True
    objective: Literal["cosine", "absolute"] = "cosine"
    schedule: Literal["steps", "cosine"] = "steps"
    batchnorm: float = 1e-2
    soften: float = 0.0

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective={self.objective!r}: allowed are {', '.join(OBJECTIVES)}")
        check_counts(self, "restarts")
        check_non_negative(self, "tv", "batchnorm", "soften")
        self.descent_rule()

    @property
    def distance(self) -> Objective:
        return OBJECTIVES[self.objective]

    @property
    def start_count(self) -> int:
        return self.restarts

    def descent_rule(self) -> SignedAdam:
        return SignedAdam(self.iterations, self.lr, self.signed, schedule=self.schedule)

    def whole_objective(
        self, matching: GradientMatching, statistics: LayerStatistics | None
    ) -> tuple[MatchingObjective, float]:
        if self.soften:
            twin, corners = soften_relus(matching.victim.model)
        else:
            twin = matching.victim.model
            corners = []
        matching = replace(matching, victim=Victim(twin, matching.victim.local))
        objective: MatchingObjective
        if statistics:
            objective = PriorObjective(matching, 0.0, self.batchnorm, 0.0, statistics)
        else:
            objective = matching
        if corners:
            return SharpeningObjective(
                objective, corners, self.soften, self.iterations
            ), SOFTENED_SHARE
        return objective if statistics else record_if_long(matching, self.iterations), 0.0

    def reconstruct_each(
        self,
        model: nn.Module,
        gradients: Sequence[Sequence[Tensor] | Tensor],
        shape: tuple[int, ...],
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
        """``reconstruct`` for k updates of one model at once: gradients[i] holds parameter i's k
        gradients.

        labels: (k, b). start: images (b, c, h, w) in [0, 1] that all begin with, else black, with
        noise of standard deviation ``spread`` in either case. statistics: of the victim's batches
        at each batch-norm layer, a penalty of weight ``batchnorm``. Problems and restarts go
        through the model as one batch."""
        pixels = PixelScale(mean, std)
        posed = self._pose_problems(
            model, gradients, shape, pixels, labels, generator, local, start, spread
        )
        return self._solve_problems([posed], pixels, generator, local, statistics)[0]

    def reconstruct_models(
        self,
        models: Sequence[nn.Module],
        gradients: Sequence[Sequence[Sequence[Tensor] | Tensor]],
        shape: tuple[int, ...],
        *,
        generators: Sequence[torch.Generator],
        local: LocalSteps = SINGLE_STEP,
    ) -> list[list[Reconstruction]]:
        """``reconstruct_each`` of several models at once, with the same images up to rounding (but
        for searches that turn non-finite and start afresh: their new noise is the first
        generator's, and the others wait for a step).

        gradients[m][i] holds parameter i's gradients of model m. Models that are not
        ``can_share_batch`` are solved one by one."""
        pixels = PixelScale()
        posed = [
            self._pose_problems(model, each, shape, pixels, None, generator, local)
            for model, each, generator in zip(models, gradients, generators, strict=True)
        ]
        if can_share_batch(models) and not self.soften:
            return self._solve_problems(posed, pixels, generators[0], local)
        return [
            self._solve_problems([problem], pixels, g, local)[0]
            for problem, g in zip(posed, generators)
        ]


@accepts_numpy
def gradient_norm(gradients: Sequence[Tensor]) -> float:
    """The Euclidean norm of the whole list."""
    return float(torch.stack([g.square().sum() for g in gradients]).sum().sqrt())
