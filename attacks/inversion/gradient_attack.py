"""Gradient inversion of updates and gradients as attacks of the audit: one record a capture, or all
records of a client at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attacks.inversion.evaluation import (
    _require_images,
    class_mean_images,
    compare_with_records,
    describe_no_gain,
    own_records,
)
from attacks.inversion.gradient import (
    DLG,
    IDLG,
    InvertingGradients,
    SeeThrough,
    gradient_norm,
    sent_statistics,
)
from attacks.inversion.gradient_matching import LayerStatistics
from attacks.inversion.labels import (
    chance_overlap,
    label_counts_of_update,
    label_overlap,
    sgd_displacement,
)
from attacks.inversion.victim import (
    LocalSteps,
    Reconstruction,
    are_of_one_model,
    local_steps,
    observed_gradients,
    victim_model,
)
from attacks.types import (
    SERVER_ONLY,
    UPDATE_SURFACES,
    Attack,
    Capture,
    Evidence,
    Family,
    Finding,
    Surface,
    Truth,
    View,
)
from attacks.validation import check_counts, check_non_negative

InversionMethod = InvertingGradients | DLG | IDLG | SeeThrough
MIN_ITERATIONS = 10  # iterations, however small the budget


@dataclass(frozen=True)
class _GradientProblem:
    """One view as a problem: gradients by capture in the model's order; together: all captures are
    of one model."""

    view: View
    captures: Sequence[Capture]
    model: nn.Module
    local: LocalSteps
    gradients: list[list[Tensor]]
    shape: tuple[int, ...]
    together: bool


@dataclass(frozen=True)
class GradientInversion(Attack):
    """Records from one client's update or gradient; captures of one model are solved as one
    batch."""

    method: InversionMethod = field(default_factory=InvertingGradients)
    captures: int = 8
    name: str = "gradient_inversion"
    family = Family.GRADIENT_INVERSION
    surfaces = UPDATE_SURFACES
    adversaries = SERVER_ONLY

    def __post_init__(self) -> None:
        check_counts(self, "captures")

    @property
    def on_gpu(self) -> bool:
        """False for L-BFGS: its line search synchronises with the GPU at every step."""
        return not isinstance(self.method, DLG)

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images (captures * records, c, h, w), labels, extra objective / norm per capture."""
        return self.run_each([view], [generator])[0]

    def run_each(
        self, views: Sequence[View], generators: Sequence[torch.Generator]
    ) -> list[Evidence]:
        """``run`` on several views: those whose clients trained alike are solved as one batch."""
        problems = [self._pose_problem(view) for view in views]
        solutions = self._solve_in_batches(problems, generators)
        for i, problem in enumerate(problems):
            if i not in solutions:
                solutions[i] = self._solve_one_by_one(problem, generators[i])
        return [self._build_evidence(problem, solutions[i]) for i, problem in enumerate(problems)]

    def _solve_in_batches(
        self, problems: Sequence[_GradientProblem], generators: Sequence[torch.Generator]
    ) -> dict[int, list[Reconstruction]]:
        """The reconstructions of all problems that can share a batch, by position."""
        method = self.method
        solutions: dict[int, list[Reconstruction]] = {}
        if not isinstance(method, InvertingGradients):
            return solutions
        groups: dict[tuple[tuple[int, ...], LocalSteps], list[int]] = {}
        for i, problem in enumerate(problems):
            if problem.together:
                groups.setdefault((problem.shape, problem.local), []).append(i)
        for (shape, local), rows in groups.items():
            models = [problems[i].model for i in rows]
            streams = [generators[i] for i in rows]
            gradients = [_stack_gradients(problems[i].gradients) for i in rows]
            results = method.reconstruct_models(
                models, gradients, shape, generators=streams, local=local
            )
            solutions.update(zip(rows, results))
        return solutions

    def _pose_problem(self, view: View) -> _GradientProblem:
        captures = view.captures[: self.captures]
        model = victim_model(view, captures[0])
        local = local_steps(view.knowledge.settings)
        gradients = [observed_gradients(view, capture, model) for capture in captures]
        shape = (int(view.knowledge.settings.get("batch_records", 1)), *view.knowledge.shape)
        return _GradientProblem(
            view, captures, model, local, gradients, shape, are_of_one_model(captures)
        )

    def _solve_one_by_one(
        self, problem: _GradientProblem, generator: torch.Generator
    ) -> list[Reconstruction]:
        return [
            self.method.reconstruct(
                victim_model(problem.view, capture),
                gradient,
                problem.shape,
                generator=generator,
                local=problem.local,
                statistics=self._batch_norm_statistics(capture, problem.model, problem.local),
            )
            for capture, gradient in zip(problem.captures, problem.gradients)
        ]

    def _build_evidence(
        self, problem: _GradientProblem, results: Sequence[Reconstruction]
    ) -> Evidence:
        return Evidence(
            images=torch.cat([r.images for r in results]),
            labels=torch.cat([r.labels for r in results]),
            extra={
                "objective": torch.tensor([r.objective for r in results]),
                "norm": torch.tensor([gradient_norm(g) for g in problem.gradients]),
            },
            notes={"method": type(self.method).__name__, "records": problem.shape[0]},
        )

    def _batch_norm_statistics(
        self, capture: Capture, model: nn.Module, local: LocalSteps
    ) -> LayerStatistics | None:
        """Batch-norm statistics of the victim's own batches, for the method that uses them, where
        they were sent."""
        if not isinstance(self.method, SeeThrough):
            return None
        return sent_statistics(model, capture.broadcast, capture.value, local.steps) or None

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        compared = compare_with_records(
            _require_images(evidence), view, truth, own_records(evidence, truth)
        )
        measures = compared.measures
        if evidence.labels is not None:
            right = evidence.labels[: len(compared.rows)].cpu() == truth.y[compared.rows].cpu()
            measures = replace(measures, label_accuracy=float(right.double().mean()))
        diagnostics = {
            **(measures.diagnostics or {}),
            **self._diagnose_objective(evidence, view, truth),
            "method": type(self.method).__name__,
        }
        if view.knowledge.model is not None:
            diagnostics["norm_layers"] = _norm_layers(view.knowledge.model)
        figures = dict(compared.figures)
        if truth.virtual is not None and len(truth.virtual) >= len(compared.rows):
            stood_in = replace(truth, x=truth.virtual, y=truth.y.new_zeros(len(truth.virtual)))
            near = compare_with_records(_require_images(evidence), view, stood_in).measures.psnr
            diagnostics["psnr_to_virtual"] = near
            note = f"{near:.1f} dB to the nearest of the images that stood in for the records"
            measures = replace(measures, note=note)
        measures = replace(measures, diagnostics=diagnostics)
        return Finding(view.surface, self.name, self.family, view.adversary, measures, figures)

    def _diagnose_objective(self, evidence: Evidence, view: View, truth: Truth) -> dict[str, Any]:
        """The objective at the result and at the truth, which show whether the search failed or the
        victim computes something else."""
        objectives = evidence.extra["objective"]
        records = int(evidence.notes["records"])
        diagnostics: dict[str, Any] = {
            "objective": objectives.tolist(),
            "gradient_norm": evidence.extra["norm"].tolist(),
        }
        captures = view.captures[: len(objectives)]
        if len(truth.x) < records * len(captures):
            return diagnostics
        at_truth = []
        for i, capture in enumerate(captures):
            model = victim_model(view, capture)
            rows = slice(i * records, (i + 1) * records)
            gradients = observed_gradients(view, capture, model)
            local = local_steps(view.knowledge.settings)
            at_truth.append(
                self.method.evaluate_objective(
                    model, gradients, truth.x[rows], truth.y[rows], local=local
                )
            )
        diagnostics["objective_at_truth"] = at_truth
        diagnostics["reading"] = describe_objectives(
            float(objectives.mean()), float(torch.tensor(at_truth).mean())
        )
        return diagnostics


def describe_objectives(at_result: float, at_truth: float, tolerance: float = 1e-3) -> str:
    """What the two objectives say about a poor reconstruction (both on the method's own scale)."""
    if at_truth > max(tolerance, at_result):
        return (
            "the stated computation does not give this update on the records: noise, or "
            "another protocol"
        )
    if at_result > at_truth + tolerance:
        return "the search stopped above the truth's objective: a better attack may see more"
    return "the objective is met: the update does not hold the missing part of the images"


def _stack_gradients(gradients: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Gradients of several captures as one tensor (captures, ...) a parameter."""
    return [torch.stack(parameter) for parameter in zip(*gradients)]


def _norm_layers(model: nn.Module) -> str:
    kinds = sorted({type(m).__name__ for m in model.modules() if "Norm" in type(m).__name__})
    return ", ".join(kinds) or "none"


# All records of a client at once, from the update that it really sent. An update of few local steps
# is simulated: images are sought whose unrolled update is the one observed. One of many steps is
# the displacement times a gradient of all records somewhere on the way, so that images are sought
# whose gradient half-way between the two models is the mean one (surrogate model: Zhu, Yao,
# Blaschko 2023, "Surrogate model extension", eq. 5, with their alpha fixed at 1/2).


@dataclass(frozen=True)
class UpdateProblem:
    """What is solved: a model, gradients in its order, the local work that led to them, and how
    that is known."""

    model: nn.Module
    gradients: list[Tensor]
    local: LocalSteps
    simulated: bool
    statistics: LayerStatistics

    def gradients_per_step(self, records: int) -> int:
        """Gradients of one record that one look at ``records`` images takes."""
        return self.local.steps * min(records, self.local.batch_size or records)


def pose_update_problem(view: View, capture: Capture, limit: int) -> UpdateProblem:
    """The problem of one capture: unrolled up to ``limit`` local steps, else by the surrogate
    model."""
    model = victim_model(view, capture)
    local = local_steps(view.knowledge.settings)
    gradients = observed_gradients(view, capture, model)
    if _sends_statistics(capture):
        statistics = sent_statistics(model, capture.broadcast, capture.value, local.steps)
    else:
        statistics = {}
    if view.surface == Surface.GRADIENT or local.steps <= limit:
        return UpdateProblem(model, gradients, local, True, statistics)
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients):
            parameter.sub_(gradient, alpha=local.lr / 2)
    scale = sgd_displacement(local.steps, local.momentum)
    once = LocalSteps(1, local.lr, weight_decay=local.weight_decay)
    return UpdateProblem(model, [g / scale for g in gradients], once, False, statistics)


def _sends_statistics(capture: Capture) -> bool:
    """Whether batch-norm statistics came with the update, instead of those of the broadcast."""
    names = [name for name in capture.value if name.endswith("running_mean")]
    return any(
        not torch.equal(capture.value[n], capture.broadcast[n])
        for n in names
        if n in capture.broadcast
    )


@dataclass(frozen=True)
class UpdateInversion(Attack):
    """Reconstruct the audited client's records from its own update, whatever their number.

    budget: gradients of single records that one reconstruction may compute, restarts included; it
    sets the number of iterations, up to the method's own. records: images that are sought at most;
    simulated: local steps that are unrolled at most; spread: standard deviation of the noise around
    the start, the public mean image of each class."""

    method: InvertingGradients = field(
        default_factory=lambda: InvertingGradients(objective="absolute")
    )
    budget: int = 40_000
    records: int = 128
    simulated: int = 8
    spread: float = 0.1
    name: str = "update_inversion"
    family = Family.GRADIENT_INVERSION
    on_gpu = True
    surfaces = frozenset({Surface.UPDATE})
    adversaries = SERVER_ONLY
    whole_client: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_counts(self, "budget", "records", "simulated")
        check_non_negative(self, "spread")

    def nothing_to_read(self, view: View) -> str:
        if view.knowledge.model is None or not view.captures[0].broadcast:
            return "the adversary does not know the model that the update belongs to"
        return ""

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images (m, c, h, w) and labels (m,), m = min(records, the client's); extra: objective,
        gradient norm, and the recovered label counts (C,) of all records."""
        capture = view.captures[0]
        knowledge = view.knowledge
        held = int(knowledge.settings.get("batch_records", 1))
        problem = pose_update_problem(view, capture, self.simulated)
        counts = label_counts_of_update(view, capture, generator)
        labels = self._draw_labels(counts, held, generator)
        method = self._method_within_budget(problem, len(labels))
        reconstructions = method.reconstruct_each(
            problem.model,
            [g[None] for g in problem.gradients],
            (len(labels), *knowledge.shape),
            labels=labels[None],
            generator=generator,
            local=problem.local,
            start=class_mean_images(knowledge.public_x, knowledge.public_y, knowledge.classes)[
                labels
            ],
            spread=self.spread,
            statistics=problem.statistics,
        )[0]
        norm = torch.tensor(gradient_norm(problem.gradients))
        notes = {"held": held, "simulated": problem.simulated, "iterations": method.iterations}
        return Evidence(
            images=reconstructions.images,
            labels=labels,
            extra={
                "objective": torch.tensor(reconstructions.objective),
                "norm": norm,
                "counts": counts,
            },
            notes=notes,
        )

    def _draw_labels(self, counts: Tensor, held: int, generator: torch.Generator) -> Tensor:
        """Recovered labels of at most ``records`` records, in a random order: which record came
        when is unknown."""
        labels = torch.repeat_interleave(torch.arange(len(counts)), counts.cpu())
        return labels[torch.randperm(len(labels), generator=generator)][
            : min(held, self.records)
        ].to(counts.device)

    def _method_within_budget(self, problem: UpdateProblem, records: int) -> InvertingGradients:
        """The method with as many iterations as the budget pays for; angles where the problem is
        only approximate."""
        affordable = self.budget // (problem.gradients_per_step(records) * self.method.restarts)
        iterations = max(MIN_ITERATIONS, min(self.method.iterations, affordable))
        if problem.simulated:
            objective = self.method.objective
        else:
            objective = "cosine"
        return replace(self.method, iterations=iterations, objective=objective)

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """Best assignment of images to records; identified, chance and the naive baselines as
        everywhere."""
        compared = compare_with_records(_require_images(evidence), view, truth)
        label_chance = chance_overlap(truth.counts)
        if evidence.notes["simulated"]:
            steps = "simulated"
        else:
            steps = "approximated by one gradient half-way"
        words = (
            f"{len(truth.x)} records, local steps {steps}, {evidence.notes['iterations']} "
            "iterations"
        )
        diagnostics = {
            **(compared.measures.diagnostics or {}),
            **self._diagnose_objective(evidence, view, truth),
        }
        measures = replace(
            compared.measures,
            label_accuracy=label_overlap(evidence.extra["counts"], truth.counts),
            baselines={
                **(compared.measures.baselines or {}),
                "label_accuracy_chance": label_chance,
            },
            diagnostics=diagnostics,
        )
        note = "; ".join(filter(None, [words, describe_no_gain(measures)]))
        measures = replace(measures, note=note)
        return Finding(
            view.surface, self.name, self.family, view.adversary, measures, compared.figures
        )

    def _diagnose_objective(
        self, evidence: Evidence, view: View, truth: Truth
    ) -> Mapping[str, Any]:
        problem = pose_update_problem(view, view.captures[0], self.simulated)
        if problem.simulated:
            objective = self.method.objective
        else:
            objective = "cosine"
        at_truth = replace(self.method, objective=objective).evaluate_objective(
            problem.model, problem.gradients, truth.x, truth.y, local=problem.local
        )
        return {
            "objective": [float(evidence.extra["objective"])],
            "objective_at_truth": [at_truth],
            "gradient_norm": [float(evidence.extra["norm"])],
            **evidence.notes,
        }
