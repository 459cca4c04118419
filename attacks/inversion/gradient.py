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
from attacks.inversion.dlg import DLG, IDLG
from attacks.inversion.gradient_matching import (
    OBJECTIVES,
    DescentInverter,
    GradientMatching,
    LayerStatistics,
    MatchingObjective,
    Objective,
    SignedAdam,
    can_share_batch,
    record_if_long,
)
from attacks.inversion.reconstruction import Channelwise, PixelScale, Reconstruction
from attacks.inversion.seethrough import PriorObjective, SeeThrough
from attacks.inversion.victim import SINGLE_STEP, LocalSteps, Victim, update_to_gradients
from attacks.validation import check_counts, check_non_negative

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
