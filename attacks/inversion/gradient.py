"""Gradient inversion: images whose gradient is the one that the victim sent.

All attacks share one call. They see the model, the gradients and what is public; the truth never
enters. ``score`` evaluates the objective at any images, so that an evaluator can check that it
vanishes at the truth: where it does not, attacker and victim compute different things.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from attacks.arrays import arrays
from attacks.inversion.batched import Posed, alike, at_once, joined, slope_of
from attacks.inversion.labels import guess_labels
from attacks.inversion.lbfgs import DLG, IDLG
from attacks.inversion.objectives import OBJECTIVES
from attacks.inversion.optimise import Matching, Progress, SignedAdam, Slope, Trace, descend, normal_like
from attacks.inversion.result import Channelwise, Pixels, Reconstruction, check_request
from attacks.inversion.seethrough import Priors, SeeThrough, Statistics
from attacks.inversion.softened import SHARP, Sharpening, soften
from attacks.inversion.victim import SINGLE_STEP, LocalSteps, Victim, update_to_gradients
from attacks.ranges import check_counts, check_from_zero

__all__ = [
    "DLG", "IDLG", "InvertingGradients", "LocalSteps", "Reconstruction", "SeeThrough", "gradient_norm",
    "update_to_gradients",
]  # fmt: skip


@dataclass(frozen=True)
class InvertingGradients:
    """Gradient matching with total variation and signed Adam in a box; by default as Geiping et al. (2020) publish it.

    iterations: steps; tv: weight of total variation; restarts: starts from fresh noise, chosen by
    the objective without total variation; lr: step in units of the model's inputs; signed: Adam on
    the gradient's sign; patience, schedule: see SignedAdam (0 and "steps" are the published ones);
    soften: ReLUs begin as softplus of this sharpness (0: never), see ``softened``;
    batchnorm: weight of batch-norm statistics where they are known (Yin et al. 2021, eq. 8);
    objective: the distance of two gradients, "cosine" (published) or "absolute" (see ``objectives``). On ReLU networks
    absolute values with lr 0.03 and a cosine schedule reconstruct records far better (benchmarks/inversion.py).
    """

    iterations: int = 1000
    tv: float = 1e-3
    restarts: int = 1
    lr: float = 0.1
    signed: bool = True
    patience: int = 0
    objective: str = "cosine"
    schedule: Literal["steps", "cosine"] = "steps"
    batchnorm: float = 1e-2
    soften: float = 0.0

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective={self.objective!r}: allowed are {', '.join(OBJECTIVES)}")
        check_counts(self, "restarts")
        check_from_zero(self, "tv", "batchnorm", "soften")
        if self.soften and self.patience:
            raise ValueError(f"patience={self.patience}: with soften the objective keeps changing; 0 is needed")
        self._rule()

    def _rule(self) -> SignedAdam:
        return SignedAdam(self.iterations, self.lr, self.signed, patience=self.patience, schedule=self.schedule)

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
        progress: Progress | None = None,
    ) -> Reconstruction:
        """Images (b, c, h, w) in [0, 1] whose gradient is nearest to ``gradients``.

        gradients: in the order of ``model.parameters()``; for a multi-step update
        (theta_0 - theta_T) / lr with the steps in ``local``. labels: (b,), recovered from the last
        linear layer when absent. The model takes (image - mean) / std, in the mode it is in.
        """
        observed = [[g] for g in gradients]
        given = None if labels is None else labels[None]
        return self.reconstruct_each(
            model,
            observed,
            shape,
            labels=given,
            mean=mean,
            std=std,
            generator=generator,
            local=local,
            progress=progress,
        )[0]

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
        progress: Progress | None = None,
        start: Tensor | None = None,
        spread: float = 1.0,
        statistics: Statistics | None = None,
    ) -> list[Reconstruction]:
        """``reconstruct`` for k updates of one model at once: gradients[i] holds parameter i's k gradients.

        labels: (k, b). start: images (b, c, h, w) in [0, 1] that all begin with, else black, with
        noise of standard deviation ``spread`` in either case. statistics: of the victim's batches at each batch-norm
        layer, a penalty of weight ``batchnorm``. Problems and restarts go through the model as one batch.
        """
        pixels = Pixels(mean, std)
        posed = self._posed(model, gradients, shape, pixels, labels, generator, local, start, spread)
        return self._solved([posed], pixels, generator, local, progress, statistics)[0]

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

        gradients[m][i] holds parameter i's gradients of model m. Models that are not ``alike`` are solved one by one.
        """
        pixels = Pixels(0.0, 1.0)
        posed = [
            self._posed(model, each, shape, pixels, None, generator, local, None, 1.0)
            for model, each, generator in zip(models, gradients, generators, strict=True)
        ]
        if alike(models) and not (self.soften or self.patience):  # a plateau is judged over the whole batch
            return self._solved(posed, pixels, generators[0], local, None, None)
        return [self._solved([one], pixels, g, local, None, None)[0] for one, g in zip(posed, generators)]

    def _posed(
        self,
        model: nn.Module,
        gradients: Sequence[Sequence[Tensor] | Tensor],
        shape: tuple[int, int, int, int],
        pixels: Pixels,
        labels: Tensor | None,
        generator: torch.Generator,
        local: LocalSteps,
        start: Tensor | None,
        spread: float,
    ) -> Posed:
        """One model's problems: their labels where none are given, and where every restart begins."""
        stacked = [torch.stack(list(g)).detach() for g in gradients]
        k = len(stacked[0])
        for i in range(k):
            check_request([g[i] for g in stacked], list(model.parameters()), shape)
        if labels is None:
            rows = [guess_labels(model, [g[i] for g in stacked], shape, pixels, local, generator) for i in range(k)]
            labels = torch.stack(rows)
        starts = torch.zeros((k * self.restarts, *shape), dtype=stacked[0].dtype, device=stacked[0].device)
        starts = spread * normal_like(starts, generator)
        starts = starts if start is None else starts + pixels.to_input(start.to(starts))
        repeated = [g.repeat_interleave(self.restarts, 0) for g in stacked]
        return Posed(model, repeated, labels.to(stacked[0].device), starts)

    def _solved(
        self,
        posed: Sequence[Posed],
        pixels: Pixels,
        generator: torch.Generator,
        local: LocalSteps,
        progress: Progress | None,
        statistics: Statistics | None,
    ) -> list[list[Reconstruction]]:
        """The reconstructions of every model's problems, from one descent on all of them."""
        starts, labels = torch.cat([one.starts for one in posed]), torch.cat([one.labels for one in posed])
        twin, corners = soften(posed[0].model) if self.soften else (posed[0].model, [])
        victim = Victim(twin, local)
        problem = Matching(
            victim,
            OBJECTIVES[self.objective],
            [torch.cat(part) for part in zip(*(one.observed for one in posed))],
            labels.repeat_interleave(self.restarts, 0),
            self.tv,
            joined(posed),
            at_once(victim, starts[0]),
        )
        slope: Slope = Priors(problem, 0.0, self.batchnorm, 0.0, statistics) if statistics else problem
        if corners:
            slope = Sharpening(slope, corners, self.soften, self.iterations)
        elif not statistics:
            slope = slope_of(problem, len(starts), self.iterations)
        skip = SHARP if corners else 0.0
        trace = descend(slope, starts, self._rule(), pixels.box(starts), generator, progress, skip=skip)
        best = [
            self._best(trace, own, range(i * self.restarts, (i + 1) * self.restarts), pixels)
            for i, own in enumerate(labels)
        ]
        ends = torch.tensor([len(one.labels) for one in posed]).cumsum(0).tolist()
        return [best[end - len(one.labels) : end] for end, one in zip(ends, posed)]

    def _best(self, trace: Trace, labels: Tensor, rows: range, pixels: Pixels) -> Reconstruction:
        row = min(rows, key=lambda r: float(trace.data[r]))
        objective = float(trace.data[row])
        return Reconstruction(
            pixels.to_image(trace.images[row]), labels, objective, tuple(trace.history),
            {"steps": float(trace.steps), "total": float(trace.total[row]), "restarts": float(len(rows))},
        )  # fmt: skip

    def score(
        self,
        model: nn.Module,
        gradients: Sequence[Tensor],
        images: Tensor,
        labels: Tensor,
        *,
        mean: Channelwise = 0.0,
        std: Channelwise = 1.0,
        local: LocalSteps = SINGLE_STEP,
    ) -> float:
        """The data term at ``images`` (b, c, h, w) in [0, 1]; about 0 at the truth of a consistent set-up."""
        inputs = Pixels(mean, std).to_input(images)
        with torch.enable_grad():
            candidate = Victim(model, local).gradients(inputs, labels)
        return float(OBJECTIVES[self.objective]([g.detach() for g in candidate], gradients)[0])


@arrays
def gradient_norm(gradients: Sequence[Tensor]) -> float:
    """The Euclidean norm of the whole list."""
    return float(torch.stack([g.square().sum() for g in gradients]).sum().sqrt())
