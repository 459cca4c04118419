"""Descent on images whose gradient is to match an observed one: objectives, the loop, and what all
attacks of this kind share.

Each objective returns its value and its cotangents d(value)/d(gradient): handing these to one
vector-Jacobian product replaces differentiation through the objective itself. Problems of several
models of one architecture share a batch: what a step costs on small models is the number of kernels
it starts, not their size."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

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
from attacks.tensors import (
    draw_ahead,
    flush_denormals,
    memory_budget,
    record_cuda_graph,
    steps_between_reads,
)
from attacks.types import is_image
from attacks.validation import check_counts, check_non_negative, check_positive

Gradients = Sequence[Tensor]
Objective = Callable[[Gradients, Gradients], tuple[Tensor, list[Tensor]]]
LayerStatistics = Mapping[str, tuple[Tensor, Tensor]]  # batch-norm layer -> (mean, variance)
MIN_NORM = 1e-20
# bytes, about, that the problems which go through the model at once may take on the CPU
CPU_MEMORY = 2**30
# numbers kept a step for each activation and each parameter: a third above the ConvNet's
NUMBERS_PER_ACTIVATION = 8
NUMBERS_PER_PARAMETER = 6
# of a search, from which recording its kernels once costs less than it saves
MIN_RECORDED_ITERATIONS = 400
FINAL_RATE_SHARE = 0.01  # share of the learning rate that a cosine schedule ends with
# of the iterations, after which the published schedule divides the rate by ten
MILESTONES = (3 / 8, 5 / 8, 7 / 8)
BETAS = (0.9, 0.999)
STEPS_BETWEEN_RECORDS = 50  # of the lowest objective so far


def _inner_product(a: Gradients, b: Gradients) -> Tensor:
    return torch.stack([(x * y).sum() for x, y in zip(a, b)]).sum()


def cosine_distance(candidate: Gradients, observed: Gradients) -> tuple[Tensor, list[Tensor]]:
    """1 - <g, t> / (|g| |t|) over the whole concatenation (Geiping et al. 2020, eq. 4)."""
    length = _inner_product(candidate, candidate).clamp_min(MIN_NORM).rsqrt()
    target = _inner_product(observed, observed).clamp_min(MIN_NORM).rsqrt()
    similarity = _inner_product(candidate, observed) * length * target
    pull = length * target
    push = similarity * length**2
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

    Where a candidate image is near the record but some units of a ReLU network are on the wrong
    side, a few entries of the gradient are far off. Squares and angles chase those; absolute values
    treat them as outliers."""
    gaps = [g - t for g, t in zip(candidate, observed)]
    size = torch.stack([t.abs().sum() for t in observed]).sum().clamp_min(MIN_NORM).reciprocal()
    return torch.stack([gap.abs().sum() for gap in gaps]).sum() * size, [
        gap.sign() * size for gap in gaps
    ]


def mean_total_variation(images: Tensor) -> Tensor:
    """(..., h, w) -> (): mean |x_{w+1} - x_w| + mean |x_{h+1} - x_h| (anisotropic, no padding)."""
    return images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()


class MatchingObjective(Protocol):
    """images (r, b, c, h, w) -> data term (r,), whole objective (r,), gradient of the whole."""

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]: ...


@dataclass(frozen=True)
class GradientMatching:
    """r gradient-matching problems that share one architecture.

    observed: list of (r, *parameter shape); labels: (r, b) classes; tv: weight of total variation;
        parameters: name -> (r, *shape), where every problem has a model of its own, {}: all have
            the victim's; together: how many problems may
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
        rows = []
        for x, y, *observed in zip(images, self.labels, *self.observed):
            rows.append(self._evaluate_plain(x, y, observed))
        return tuple(torch.stack(part) for part in zip(*rows))  # type: ignore[return-value]

    def runs_as_batch(self, problems: int) -> bool:
        """Whether so many problems go through the model as one batch. Raises ValueError where each
        has a model of its own and they cannot."""
        if self.parameters and not self.victim.is_batchable():
            raise ValueError(
                "parameters: problems with models of their own need a model that vmap can run"
            )
        return (problems > 1 or bool(self.parameters)) and self.victim.is_batchable()

    def evaluate_batch(
        self,
        images: Tensor,
        labels: Tensor,
        observed: list[Tensor],
        parameters: Mapping[str, Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The value at all problems' images as one batch, of nothing but the arguments."""
        if 0 < self.together < len(images):
            size = self.together
        else:
            size = None
        return torch.func.vmap(self._evaluate_functional, chunk_size=size)(
            images, labels, observed, dict(parameters)
        )

    def _evaluate_plain(
        self, images: Tensor, labels: Tensor, observed: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        leaf = images.detach().requires_grad_()
        gradients = self.victim.simulated_gradients(leaf, labels)
        with torch.no_grad():
            data, cotangents = self.objective(gradients, observed)
        outputs = list(gradients)
        seeds = list(cotangents)
        total = data
        if self.tv:
            smooth = mean_total_variation(leaf)
            outputs = [*outputs, smooth]
            seeds = [*seeds, torch.full_like(smooth, self.tv)]
            total = data + self.tv * smooth.detach()
        (slope,) = torch.autograd.grad(outputs, leaf, seeds)
        return data, total, slope

    def _evaluate_functional(
        self,
        images: Tensor,
        labels: Tensor,
        observed: list[Tensor],
        parameters: Mapping[str, Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        def simulated_gradients(x: Tensor) -> list[Tensor]:
            return self.victim.simulated_gradients(
                x, labels, functional=True, parameters=parameters or None
            )

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

    schedule: "steps" divides lr by ten after the ``MILESTONES``; "cosine" lowers it to a hundredth
        along half a cosine.
    langevin: noise of this many lr added to each iterate.
    """

    iterations: int
    lr: float
    signed: bool = True
    schedule: Literal["steps", "cosine"] = "steps"
    warmup: int = 0
    langevin: float = 0.0

    def __post_init__(self) -> None:
        check_counts(self, "iterations")
        check_positive(self, "lr")
        check_counts(self, "warmup", least=0)
        check_non_negative(self, "langevin")
        if self.schedule not in ("steps", "cosine"):
            raise ValueError(f"schedule={self.schedule!r}: allowed are steps, cosine")

    def learning_rate(self, step: int) -> float:
        if self.warmup:
            warm = min(1.0, (step + 1) / self.warmup)
        else:
            warm = 1.0
        if self.schedule == "cosine":
            wave = (1 + math.cos(math.pi * step / self.iterations)) / 2
            return self.lr * warm * (FINAL_RATE_SHARE + (1 - FINAL_RATE_SHARE) * wave)
        stage = sum(step >= int(self.iterations * part) for part in MILESTONES)
        return self.lr * 0.1**stage * warm


class AdamMoments:
    """Adam's two moments of r problems and the step they propose."""

    def __init__(self, like: Tensor, rule: SignedAdam) -> None:
        self.rule = rule
        self.first = torch.zeros_like(like)
        self.second = torch.zeros_like(like)

    def step(self, slope: Tensor, step: int, rate: float) -> Tensor:
        b1, b2 = BETAS
        g = slope
        if self.rule.signed:
            g = slope.sign()
        self.first.lerp_(g, 1 - b1)
        self.second.mul_(b2).addcmul_(g, g, value=1 - b2)
        scale = (self.second / (1 - b2 ** (step + 1))).sqrt_().add_(1e-8)
        return (self.first / scale).mul_(-rate / (1 - b1 ** (step + 1)))

    def reset_moments(self, lost: Tensor) -> None:
        self.first[lost] = 0
        self.second[lost] = 0


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
        """Keep those of ``images`` whose ``total``, evaluated at these very images, is the
        lowest."""
        better = total < self.total
        self.images = torch.where(better.view(-1, *[1] * (images.ndim - 1)), images, self.images)
        self.total = torch.where(better, total, self.total)
        self.data = torch.where(better, data, self.data)


def draw_normal_like(images: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers of the shape of ``images``, drawn where the generator lives."""
    return torch.randn(images.shape, generator=generator, device=generator.device).to(images)


@flush_denormals()
def minimise_objective(
    slope: MatchingObjective,
    start: Tensor,
    rule: SignedAdam,
    box: tuple[Tensor, Tensor],
    generator: torch.Generator,
    skip: float = 0.0,
) -> DescentTrace:
    """Minimise ``slope``'s objective from ``start`` (r, b, c, h, w) inside ``box``; keeps the best
    iterates.

    skip: share of the iterations whose iterates are not kept, because the objective is still
        another one. A problem whose objective or gradient turns non-finite starts afresh from new
        noise, on a GPU at the next look.
    """
    images = start.clone().clamp(*box)
    moments = AdamMoments(images, rule)
    trace = DescentTrace.start_at(images)
    kicks = draw_ahead(
        lambda: (torch.randn(start.shape, generator=generator),), rule.iterations, images.device
    )
    for step in range(rule.iterations):
        data, total, gradient = slope(images)
        if step >= skip * rule.iterations:
            trace.keep_better(images, data, total)
        trace.steps = step + 1
        if step % STEPS_BETWEEN_RECORDS == 0:
            trace.history.append(float(trace.total.min()))
        lost = ~(torch.isfinite(total) & torch.isfinite(gradient.flatten(1)).all(1))
        if step % steps_between_reads(images.device) == 0 and lost.any():
            images[lost] = draw_normal_like(images, generator)[lost].clamp(*box)
            moments.reset_moments(lost)
            continue
        rate = rule.learning_rate(step)
        images = images + moments.step(gradient, step, rate)
        if rule.langevin:
            images = images + rule.langevin * rate * next(kicks)[0].to(images)
        images = images.clamp(*box)
    trace.keep_better(images, *slope(images)[:2])
    return trace


@dataclass(frozen=True)
class MatchingProblems:
    """k problems of one model: observed list of (k r, *parameter shape) and starts (k r, b, c, h,
    w), each problem's r restarts one after the other; labels (k, b)."""

    model: nn.Module
    observed: list[Tensor]
    labels: Tensor
    starts: Tensor


def join_parameters(posed: Sequence[MatchingProblems]) -> dict[str, Tensor]:
    """Parameters of every problem, name -> (all restarts, *shape); {} where there is one model
    alone."""
    if len(posed) == 1:
        return {}
    rows = [dict(problem.model.named_parameters()) for problem in posed]
    joined = {}
    for name, parameter in rows[0].items():
        repeated = [
            row[name].detach().expand(len(problem.starts), *parameter.shape)
            for row, problem in zip(rows, posed)
        ]
        joined[name] = torch.cat(repeated)
    return joined


def can_share_batch(models: Sequence[nn.Module]) -> bool:
    """Whether problems of these models can share a batch: one architecture in one mode, and the
    same buffers."""
    first = models[0]
    if not Victim(first).is_batchable():
        return False
    return all(_is_alike(model, first) for model in models[1:])


def _is_alike(model: nn.Module, first: nn.Module) -> bool:
    """Whether two models differ in their parameters' values at most."""
    buffers = dict(first.named_buffers())
    return (
        repr(model) == repr(first)
        and model.training == first.training
        and _state_shapes(model) == _state_shapes(first)
        and all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    )


def _state_shapes(model: nn.Module) -> list[tuple[str, torch.Size]]:
    return [(name, value.shape) for name, value in model.state_dict().items()]


def max_problems_per_batch(victim: Victim, images: Tensor, memory: int | None = None) -> int:
    """How many problems with ``images`` (b, c, h, w) each may go through the model at once; at
    least one.

    memory: bytes; None: ``CPU_MEMORY`` on the CPU, a share of a GPU's (``memory_budget``).
    """
    if memory is None:
        memory = memory_budget(images.device, CPU_MEMORY)
    steps = victim.local.steps
    if victim.local.batch_size is None:
        batch = images
    else:
        batch = images[: victim.local.batch_size]
    weights = sum(p.numel() for p in victim.model.parameters())
    numbers = steps * (
        NUMBERS_PER_ACTIVATION * _count_activations(victim, batch) + NUMBERS_PER_PARAMETER * weights
    )
    return max(1, memory // (numbers * images.element_size()))


def _count_activations(victim: Victim, images: Tensor) -> int:
    """Numbers that the model's layers put out for ``images``."""
    counted: list[int] = []

    def count_outputs(module: nn.Module, inputs: Any, out: Any) -> None:
        counted.append(out.numel() if isinstance(out, Tensor) else 0)

    hooks = [
        m.register_forward_hook(count_outputs)
        for m in victim.model.modules()
        if next(m.children(), None) is None
    ]
    try:
        with torch.no_grad():
            victim.loss(
                victim.detached_parameters(),
                images,
                torch.zeros(len(images), dtype=torch.int64, device=images.device),
            )
    finally:
        for hook in hooks:
            hook.remove()
    return sum(counted) + images.numel()


@dataclass
class RecordedMatching:
    """``GradientMatching`` with its kernels recorded at the first call and replayed ever after: the
    same bits, without what torch.func adds to each kernel. Only for models whose computation does
    not depend on values."""

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
        # counts no self
        kernels = make_fx(lambda *values: self.matching.evaluate_batch(*values))(images, *fixed)
        with torch.no_grad():
            return record_cuda_graph(lambda x: kernels(x, *fixed), images)


def record_if_long(matching: GradientMatching, iterations: int) -> MatchingObjective:
    """The matching problem, recorded where its search is long enough and all problems go through at
    once."""
    problems = len(matching.labels)
    is_split = not 0 < matching.together < problems
    if iterations >= MIN_RECORDED_ITERATIONS and is_split and matching.runs_as_batch(problems):
        return RecordedMatching(matching)
    return matching


class GradientInverter(ABC):
    """A search for images whose gradient is the observed one; ``distance`` measures how near a
    candidate's gradient is."""

    @property
    @abstractmethod
    def distance(self) -> Objective: ...

    def reconstruct(
        self,
        model: nn.Module,
        gradients: list[Tensor],
        shape: tuple[int, ...],
        *,
        labels: Tensor | None = None,
        mean: Channelwise = 0.0,
        std: Channelwise = 1.0,
        generator: torch.Generator,
        local: LocalSteps = SINGLE_STEP,
        statistics: LayerStatistics | None = None,
    ) -> Reconstruction:
        """Images (b, c, h, w) in [0, 1] whose gradient is nearest to ``gradients``.

        gradients: in the order of ``model.parameters()``; for a multi-step update (theta_0 -
            theta_T) / lr with the steps in
        ``local``. labels: (b,), recovered from the last linear layer when absent. The model takes
        (image - mean) / std, in
        the mode it is in. statistics: of the victim's batches at each batch-norm layer, for methods
        that use them."""

        return self.search_images(
            model, gradients, shape, PixelScale(mean, std), labels, generator, local, statistics
        )

    @abstractmethod
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
        """``reconstruct``, by this method."""

    def evaluate_objective(
        self,
        model: nn.Module,
        gradients: Sequence[Tensor],
        images: Tensor,
        labels: Tensor,
        *,
        local: LocalSteps = SINGLE_STEP,
    ) -> float:
        """The data term at ``images`` (b, c, h, w) in [0, 1]; about 0 at the truth of a consistent
        set-up."""
        with torch.enable_grad():
            candidate = Victim(model, local).simulated_gradients(images, labels)
        return float(self.distance([g.detach() for g in candidate], gradients)[0])


class DescentInverter(GradientInverter):
    """One that descends on images from several starts at once. Beside ``distance`` it says how many
    starts a problem has, how a step is made, and what is added to the data term."""

    tv: float

    @property
    @abstractmethod
    def start_count(self) -> int: ...

    @abstractmethod
    def descent_rule(self) -> SignedAdam: ...

    @abstractmethod
    def whole_objective(
        self, matching: GradientMatching, statistics: LayerStatistics | None
    ) -> tuple[MatchingObjective, float]:
        """The objective to minimise, and the share of the first iterations whose iterates are not
        kept."""

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
        each = None if labels is None else labels[None]
        posed = self._pose_problems(
            model, [[g] for g in gradients], shape, pixels, each, generator, local
        )
        return self._solve_problems([posed], pixels, generator, local, statistics)[0][0]

    def _pose_problems(
        self,
        model: nn.Module,
        gradients: Sequence[Sequence[Tensor] | Tensor],
        shape: tuple[int, ...],
        pixels: PixelScale,
        labels: Tensor | None,
        generator: torch.Generator,
        local: LocalSteps,
        start: Tensor | None = None,
        spread: float = 1.0,
    ) -> MatchingProblems:
        """One model's problems: their labels where none are given, and where every search
        begins."""
        stacked = [torch.stack(list(g)).detach() for g in gradients]
        problems = [list(gradient) for gradient in zip(*stacked)]
        for problem in problems:
            check_gradient_request(problem, list(model.parameters()), shape)
        if labels is None:
            rows = [
                guess_labels(model, problem, shape, pixels, local, generator)
                for problem in problems
            ]
            labels = torch.stack(rows)
        start_shape = (len(problems) * self.start_count, *shape)
        starts = spread * draw_normal_like(stacked[0].new_zeros(start_shape), generator)
        if start is not None:
            starts = starts + pixels.to_input(start.to(starts))
        repeated = [g.repeat_interleave(self.start_count, 0) for g in stacked]
        return MatchingProblems(model, repeated, labels.to(stacked[0].device), starts)

    def _solve_problems(
        self,
        posed: Sequence[MatchingProblems],
        pixels: PixelScale,
        generator: torch.Generator,
        local: LocalSteps,
        statistics: LayerStatistics | None = None,
    ) -> list[list[Reconstruction]]:
        """The reconstructions of every model's problems, from one descent on all of them."""
        starts = torch.cat([problem.starts for problem in posed])
        labels = torch.cat([problem.labels for problem in posed])
        victim = Victim(posed[0].model, local)
        count = self.start_count
        observed_by_model = [problem.observed for problem in posed]
        matching = GradientMatching(
            victim,
            self.distance,
            [torch.cat(gradients) for gradients in zip(*observed_by_model)],
            labels.repeat_interleave(count, 0),
            self.tv if is_image(starts.shape[2:]) else 0.0,  # numbers of a row have no neighbours
            join_parameters(posed),
            max_problems_per_batch(victim, starts[0]),
        )
        objective, skip = self.whole_objective(matching, statistics)
        trace = minimise_objective(
            objective, starts, self.descent_rule(), pixels.input_box(starts), generator, skip=skip
        )
        best = [
            _best_start(trace, problem_labels, range(i * count, (i + 1) * count), pixels)
            for i, problem_labels in enumerate(labels)
        ]
        ends = torch.tensor([len(problem.labels) for problem in posed]).cumsum(0).tolist()
        return [best[end - len(problem.labels) : end] for end, problem in zip(ends, posed)]


def _best_start(
    trace: DescentTrace, labels: Tensor, rows: range, pixels: PixelScale
) -> Reconstruction:
    row = min(rows, key=lambda r: float(trace.data[r]))
    return Reconstruction(
        pixels.to_image(trace.images[row]),
        labels,
        float(trace.data[row]),
        tuple(trace.history),
        {
            "steps": float(trace.steps),
            "total": float(trace.total[row]),
            "restarts": float(len(rows)),
        },
    )
