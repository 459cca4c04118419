"""All records of a client at once, from the update that it really sent.

An update of few local steps is simulated: the steps are unrolled, and images are sought whose simulated update is the
one observed. An update of many steps is the displacement times a gradient of all records somewhere on the way, so that
images are sought whose gradient half-way between the two models is the mean one (surrogate model: Zhu, Yao, Blaschko
2023, "Surrogate model extension", eq. 5, with their alpha fixed at 1/2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attacks.baselines import class_means
from attacks.inversion.compare import _images, adds_nothing, compare
from attacks.inversion.gradient import InvertingGradients, gradient_norm
from attacks.inversion.labels import chance_overlap, displacement, overlap, update_counts
from attacks.inversion.seethrough import Statistics, sent_statistics
from attacks.inversion.victim import LocalSteps, local_steps, observed, victim_model
from attacks.ranges import check_counts, check_from_zero
from attacks.types import SERVER, Adversary, Attack, Capture, Evidence, Family, Finding, Surface, Truth, View

LEAST = 10  # iterations, however small the budget


@dataclass(frozen=True)
class Problem:
    """What is solved: a model, gradients in its order, the local work that led to them, and how that is known."""

    model: nn.Module
    gradients: list[Tensor]
    local: LocalSteps
    simulated: bool
    statistics: Statistics

    def cost(self, records: int) -> int:
        """Gradients of one record that one look at ``records`` images takes."""
        return self.local.steps * min(records, self.local.batch_size or records)


def posed(view: View, capture: Capture, limit: int) -> Problem:
    """The problem of one capture: unrolled up to ``limit`` local steps, else by the surrogate model."""
    model, local = victim_model(view, capture), local_steps(view.knowledge.settings)
    gradients = observed(view, capture, model)
    statistics = sent_statistics(model, capture.broadcast, capture.value, local.steps) if _sent(capture) else {}
    if view.surface == Surface.GRADIENT or local.steps <= limit:
        return Problem(model, gradients, local, True, statistics)
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients):
            parameter.sub_(gradient, alpha=local.lr / 2)
    scale = displacement(local.steps, local.momentum)
    once = LocalSteps(1, local.lr, weight_decay=local.weight_decay)
    return Problem(model, [g / scale for g in gradients], once, False, statistics)


def _sent(capture: Capture) -> bool:
    """Whether batch-norm statistics came with the update, instead of those of the broadcast."""
    names = [name for name in capture.value if name.endswith("running_mean")]
    return any(not torch.equal(capture.value[n], capture.broadcast[n]) for n in names if n in capture.broadcast)


@dataclass(frozen=True)
class UpdateInversion(Attack):
    """Reconstruct the audited client's records from its own update, whatever their number.

    budget: gradients of single records that one reconstruction may compute, restarts included; it sets the number of
    iterations, up to the method's own. records: images that are sought at most; simulated: local steps that are
    unrolled at most; spread: standard deviation of the noise around the start, the public mean image of each record's
    class.
    """

    method: InvertingGradients = field(default_factory=lambda: InvertingGradients(objective="absolute"))
    budget: int = 40_000
    records: int = 128
    simulated: int = 8
    spread: float = 0.1
    name: str = "update_inversion"
    family = Family.GRADIENT_INVERSION
    on_gpu = True
    surfaces = frozenset({Surface.UPDATE})
    adversaries = SERVER
    whole_client: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_counts(self, "budget", "records", "simulated")
        check_from_zero(self, "spread")

    def nothing_to_read(self, view: View) -> str:
        if view.knowledge.model is None or not view.captures[0].broadcast:
            return "the adversary does not know the model that the update belongs to"
        return ""

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images (m, c, h, w) and labels (m,), m = min(records, the client's); extra: objective, gradient norm, and the
        recovered label counts (C,) of all records."""
        capture, settings = view.captures[0], view.knowledge.settings
        held = int(settings.get("batch_records", 1))
        problem = posed(view, capture, self.simulated)
        counts = update_counts(view, capture, generator)
        labels = self._labels(counts, held, generator)
        method = self._within_budget(problem, len(labels))
        found = method.reconstruct_each(
            problem.model,
            [g[None] for g in problem.gradients],
            (len(labels), *view.knowledge.shape),
            labels=labels[None],
            generator=generator,
            local=problem.local,
            start=self._start(view, labels),
            spread=self.spread,
            statistics=problem.statistics,
        )[0]
        norm = torch.tensor(gradient_norm(problem.gradients))
        notes = {"held": held, "simulated": problem.simulated, "iterations": method.iterations}
        return Evidence(
            images=found.images,
            labels=labels,
            extra={"objective": torch.tensor(found.objective), "norm": norm, "counts": counts},
            notes=notes,
        )

    def _labels(self, counts: Tensor, held: int, generator: torch.Generator) -> Tensor:
        """Recovered labels of at most ``records`` records, in a random order: which record came when is unknown."""
        labels = torch.repeat_interleave(torch.arange(len(counts)), counts.cpu())
        return labels[torch.randperm(len(labels), generator=generator)][: min(held, self.records)].to(counts.device)

    def _within_budget(self, problem: Problem, records: int) -> InvertingGradients:
        """The method with as many iterations as the budget pays for; angles where the problem is only approximate."""
        affordable = self.budget // (problem.cost(records) * self.method.restarts)
        iterations = max(LEAST, min(self.method.iterations, affordable))
        objective = self.method.objective if problem.simulated else "cosine"
        return replace(self.method, iterations=iterations, objective=objective)

    @staticmethod
    def _start(view: View, labels: Tensor) -> Tensor:
        knowledge = view.knowledge
        return class_means(knowledge.public_x, knowledge.public_y, knowledge.classes)[labels]

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """Best assignment of images to records; identified, chance and the naive baselines as everywhere."""
        compared = compare(_images(evidence), view, truth)
        measures: dict[str, Any] = dict(compared.measures)
        measures["label_accuracy"] = overlap(evidence.extra["counts"], truth.counts)
        chance = {"label_accuracy_chance": chance_overlap(truth.counts)}
        measures["baselines"] = {**measures["baselines"], **chance}
        measures["diagnostics"] = {**measures["diagnostics"], **self._diagnose(evidence, view, truth)}
        words = f"{len(truth.x)} records, {_how(evidence.notes)}"
        measures["note"] = "; ".join(filter(None, [words, adds_nothing(measures)]))
        return Finding(view.surface, self.name, self.family, Adversary.SERVER, measures, compared.figures)

    def _diagnose(self, evidence: Evidence, view: View, truth: Truth) -> Mapping[str, Any]:
        problem = posed(view, view.captures[0], self.simulated)
        objective = self.method.objective if problem.simulated else "cosine"
        at_truth = replace(self.method, objective=objective).score(
            problem.model, problem.gradients, truth.x, truth.y, local=problem.local
        )
        return {
            "objective": [float(evidence.extra["objective"])],
            "objective_at_truth": [at_truth],
            "gradient_norm": [float(evidence.extra["norm"])],
            **evidence.notes,
        }


def _how(notes: Mapping[str, Any]) -> str:
    steps = "local steps simulated" if notes["simulated"] else "local steps approximated by one gradient half-way"
    return f"{steps}, {notes['iterations']} iterations"
