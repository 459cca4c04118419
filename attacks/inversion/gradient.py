"""Gradient inversion: images whose gradient is the one that the victim sent.

All attacks share one call. They see the model, the gradients and what is public; the truth never enters.
``evaluate_objective`` gives the objective at any images, so that an evaluator can check that it vanishes at the truth:
where it does not, attacker and victim compute different things. Problems of several models of one architecture share a
batch, and ReLU networks may begin with rounded corners that sharpen during the search.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.arrays import accepts_numpy
from attacks.gpu import memory_budget, record_cuda_graph
from attacks.inversion.dlg import DLG, IDLG
from attacks.inversion.gradient_matching import (
    OBJECTIVES,
    DescentTrace,
    GradientMatching,
    MatchingObjective,
    Progress,
    SignedAdam,
    draw_normal_like,
    minimise_objective,
)
from attacks.inversion.labels import guess_labels
from attacks.inversion.reconstruction import Channelwise, PixelScale, Reconstruction, check_gradient_request
from attacks.inversion.seethrough import LayerStatistics, PriorObjective, SeeThrough
from attacks.inversion.victim import SINGLE_STEP, LocalSteps, Victim, update_to_gradients
from attacks.validation import check_counts, check_non_negative

# --- batched -----------------------------------------------------------------------------------
# Gradient matching for updates of several models of one architecture: one batch, within a bound on memory.
#
# What a step of the search costs on small models is the number of kernels it starts, not their size, so that eight
# problems cost little more than four.


CPU_MEMORY = 2**30  # bytes, about, that the problems which go through the model at once may take on the CPU
NUMBERS_PER_ACTIVATION, NUMBERS_PER_PARAMETER = (
    8,
    6,
)  # numbers kept a step for each activation and each parameter: a third above the ConvNet's
MIN_RECORDED_ITERATIONS = 400  # of a search, from which recording its kernels once costs less than it saves


@dataclass(frozen=True)
class MatchingProblems:
    """k problems of one model: observed list of (k r, *parameter shape) and starts (k r, b, c, h, w), each problem's r
    restarts one after the other; labels (k, b)."""

    model: nn.Module
    observed: list[Tensor]
    labels: Tensor
    starts: Tensor


def join_parameters(posed: Sequence[MatchingProblems]) -> dict[str, Tensor]:
    """Parameters of every problem, name -> (all restarts, *shape); {} where there is one model alone."""
    if len(posed) == 1:
        return {}
    rows = [dict(one.model.named_parameters()) for one in posed]
    return {
        name: torch.cat([row[name].detach().expand(len(one.starts), *p.shape) for row, one in zip(rows, posed)])
        for name, p in rows[0].items()
    }


def can_share_batch(models: Sequence[nn.Module]) -> bool:
    """Whether problems of these models can share a batch: one architecture in one mode, and the same buffers."""
    first = models[0]
    if not Victim(first).is_batchable():
        return False
    buffers = dict(first.named_buffers())
    return all(
        repr(other) == repr(first)
        and other.training == first.training
        and _state_shapes(other) == _state_shapes(first)
        and all(torch.equal(b, buffers[name]) for name, b in other.named_buffers())
        for other in models[1:]
    )


def _state_shapes(model: nn.Module) -> list[tuple[str, torch.Size]]:
    return [(name, value.shape) for name, value in model.state_dict().items()]


def max_problems_per_batch(victim: Victim, images: Tensor, memory: int | None = None) -> int:
    """How many problems with ``images`` (b, c, h, w) each may go through the model at once; at least one.

    memory: bytes; None: ``CPU_MEMORY`` on the CPU, a share of a GPU's (``memory_budget``).
    """
    memory = memory_budget(images.device, CPU_MEMORY) if memory is None else memory
    steps = victim.local.steps
    batch = images if victim.local.batch_size is None else images[: victim.local.batch_size]
    weights = sum(p.numel() for p in victim.model.parameters())
    numbers = steps * (NUMBERS_PER_ACTIVATION * _count_activations(victim, batch) + NUMBERS_PER_PARAMETER * weights)
    return max(1, memory // (numbers * images.element_size()))


def _count_activations(victim: Victim, images: Tensor) -> int:
    """Numbers that the model's layers put out for ``images``."""
    counted: list[int] = []

    def count_outputs(module: nn.Module, given: Any, out: Any) -> None:
        counted.append(out.numel() if isinstance(out, Tensor) else 0)

    hooks = [m.register_forward_hook(count_outputs) for m in victim.model.modules() if next(m.children(), None) is None]
    try:
        with torch.no_grad():
            victim.loss(
                victim.detached_parameters(), images, torch.zeros(len(images), dtype=torch.int64, device=images.device)
            )
    finally:
        for hook in hooks:
            hook.remove()
    return sum(counted) + images.numel()


@dataclass
class RecordedMatching:
    """``GradientMatching`` with its kernels recorded at the first call and replayed ever after: the same bits, without what
    torch.func adds to each kernel. Only for models whose computation does not depend on values."""

    matching: GradientMatching
    replay: Callable[[Tensor], tuple[Tensor, ...]] | None = None

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.replay is None:
            self.replay = self._record_kernels(images)
        with torch.no_grad():
            data, total, slope = self.replay(images)
        return data, total, slope

    def _record_kernels(self, images: Tensor) -> Callable[[Tensor], tuple[Tensor, ...]]:
        from torch.fx.experimental.proxy_tensor import make_fx

        fixed = (self.matching.labels, self.matching.observed, dict(self.matching.parameters))
        kernels = make_fx(lambda *at: self.matching.evaluate_batch(*at))(images, *fixed)  # counts no self
        with torch.no_grad():
            return record_cuda_graph(lambda x: kernels(x, *fixed), images)


def record_if_long(matching: GradientMatching, problems: int, iterations: int) -> MatchingObjective:
    """The matching problem, recorded where its search is long enough and all problems go through at once."""
    whole = not 0 < matching.together < problems
    return (
        RecordedMatching(matching)
        if iterations >= MIN_RECORDED_ITERATIONS and whole and matching.runs_as_batch(problems)
        else matching
    )


# --- softened ----------------------------------------------------------------------------------
# ReLU networks with rounded corners that sharpen during the search.
#
# The gradient of a ReLU network jumps where a unit switches on or off, which no derivative with respect to the image
# sees. With softplus(beta x) / beta in its place the search feels the switches; beta grows until the network is the
# victim's again.


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


# --- gradient ----------------------------------------------------------------------------------
# Gradient inversion: images whose gradient is the one that the victim sent.
#
# All attacks share one call. They see the model, the gradients and what is public; the truth never
# enters. ``evaluate_objective`` evaluates the objective at any images, so that an evaluator can check that it
# vanishes at the truth: where it does not, attacker and victim compute different things.


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
        check_non_negative(self, "tv", "batchnorm", "soften")
        if self.soften and self.patience:
            raise ValueError(f"patience={self.patience}: with soften the objective keeps changing; 0 is needed")
        self._descent_rule()

    def _descent_rule(self) -> SignedAdam:
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
        statistics: LayerStatistics | None = None,
    ) -> list[Reconstruction]:
        """``reconstruct`` for k updates of one model at once: gradients[i] holds parameter i's k gradients.

        labels: (k, b). start: images (b, c, h, w) in [0, 1] that all begin with, else black, with
        noise of standard deviation ``spread`` in either case. statistics: of the victim's batches at each batch-norm
        layer, a penalty of weight ``batchnorm``. Problems and restarts go through the model as one batch.
        """
        pixels = PixelScale(mean, std)
        posed = self._pose_problems(model, gradients, shape, pixels, labels, generator, local, start, spread)
        return self._solve_problems([posed], pixels, generator, local, progress, statistics)[0]

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
        pixels = PixelScale(0.0, 1.0)
        posed = [
            self._pose_problems(model, each, shape, pixels, None, generator, local, None, 1.0)
            for model, each, generator in zip(models, gradients, generators, strict=True)
        ]
        if can_share_batch(models) and not (self.soften or self.patience):  # a plateau is judged over the whole batch
            return self._solve_problems(posed, pixels, generators[0], local, None, None)
        return [self._solve_problems([one], pixels, g, local, None, None)[0] for one, g in zip(posed, generators)]

    def _pose_problems(
        self,
        model: nn.Module,
        gradients: Sequence[Sequence[Tensor] | Tensor],
        shape: tuple[int, int, int, int],
        pixels: PixelScale,
        labels: Tensor | None,
        generator: torch.Generator,
        local: LocalSteps,
        start: Tensor | None,
        spread: float,
    ) -> MatchingProblems:
        """One model's problems: their labels where none are given, and where every restart begins."""
        stacked = [torch.stack(list(g)).detach() for g in gradients]
        k = len(stacked[0])
        for i in range(k):
            check_gradient_request([g[i] for g in stacked], list(model.parameters()), shape)
        if labels is None:
            rows = [guess_labels(model, [g[i] for g in stacked], shape, pixels, local, generator) for i in range(k)]
            labels = torch.stack(rows)
        starts = torch.zeros((k * self.restarts, *shape), dtype=stacked[0].dtype, device=stacked[0].device)
        starts = spread * draw_normal_like(starts, generator)
        starts = starts if start is None else starts + pixels.to_input(start.to(starts))
        repeated = [g.repeat_interleave(self.restarts, 0) for g in stacked]
        return MatchingProblems(model, repeated, labels.to(stacked[0].device), starts)

    def _solve_problems(
        self,
        posed: Sequence[MatchingProblems],
        pixels: PixelScale,
        generator: torch.Generator,
        local: LocalSteps,
        progress: Progress | None,
        statistics: LayerStatistics | None,
    ) -> list[list[Reconstruction]]:
        """The reconstructions of every model's problems, from one descent on all of them."""
        starts, labels = torch.cat([one.starts for one in posed]), torch.cat([one.labels for one in posed])
        twin, corners = soften_relus(posed[0].model) if self.soften else (posed[0].model, [])
        victim = Victim(twin, local)
        problem = GradientMatching(
            victim,
            OBJECTIVES[self.objective],
            [torch.cat(part) for part in zip(*(one.observed for one in posed))],
            labels.repeat_interleave(self.restarts, 0),
            self.tv,
            join_parameters(posed),
            max_problems_per_batch(victim, starts[0]),
        )
        slope: MatchingObjective = (
            PriorObjective(problem, 0.0, self.batchnorm, 0.0, statistics) if statistics else problem
        )
        if corners:
            slope = SharpeningObjective(slope, corners, self.soften, self.iterations)
        elif not statistics:
            slope = record_if_long(problem, len(starts), self.iterations)
        skip = SOFTENED_SHARE if corners else 0.0
        trace = minimise_objective(
            slope, starts, self._descent_rule(), pixels.input_box(starts), generator, progress, skip=skip
        )
        best = [
            self._best_restart(trace, own, range(i * self.restarts, (i + 1) * self.restarts), pixels)
            for i, own in enumerate(labels)
        ]
        ends = torch.tensor([len(one.labels) for one in posed]).cumsum(0).tolist()
        return [best[end - len(one.labels) : end] for end, one in zip(ends, posed)]

    def _best_restart(self, trace: DescentTrace, labels: Tensor, rows: range, pixels: PixelScale) -> Reconstruction:
        row = min(rows, key=lambda r: float(trace.data[r]))
        objective = float(trace.data[row])
        return Reconstruction(
            pixels.to_image(trace.images[row]), labels, objective, tuple(trace.history),
            {"steps": float(trace.steps), "total": float(trace.total[row]), "restarts": float(len(rows))},
        )  # fmt: skip

    def evaluate_objective(
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
        inputs = PixelScale(mean, std).to_input(images)
        with torch.enable_grad():
            candidate = Victim(model, local).simulated_gradients(inputs, labels)
        return float(OBJECTIVES[self.objective]([g.detach() for g in candidate], gradients)[0])


@accepts_numpy
def gradient_norm(gradients: Sequence[Tensor]) -> float:
    """The Euclidean norm of the whole list."""
    return float(torch.stack([g.square().sum() for g in gradients]).sum().sqrt())
