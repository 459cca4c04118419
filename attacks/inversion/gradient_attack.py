"""Gradient inversion of updates and gradients as an attack of the audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attacks.inversion.compare import _images, compare, own_records
from attacks.inversion.gradient import DLG, IDLG, InvertingGradients, Reconstruction, SeeThrough, gradient_norm
from attacks.inversion.seethrough import sent_statistics
from attacks.inversion.victim import LocalSteps, local_steps, observed, victim_model
from attacks.ranges import check_counts
from attacks.types import SERVER, UPDATES, Adversary, Attack, Capture, Evidence, Family, Finding, Truth, View

Method = InvertingGradients | DLG | IDLG | SeeThrough


@dataclass(frozen=True)
class _Asked:
    """One view as a problem: gradients by capture in the model's order; together: all captures are of one model."""

    view: View
    captures: Sequence[Capture]
    model: nn.Module
    local: LocalSteps
    gradients: list[list[Tensor]]
    shape: tuple[int, int, int, int]
    together: bool


@dataclass(frozen=True)
class GradientInversion(Attack):
    """Records from one client's update or gradient; captures of one model are solved as one batch."""

    method: Method = field(default_factory=InvertingGradients)
    captures: int = 8
    name: str = "gradient_inversion"
    family = Family.GRADIENT_INVERSION
    surfaces = UPDATES
    adversaries = SERVER

    def __post_init__(self) -> None:
        check_counts(self, "captures")

    @property
    def on_gpu(self) -> bool:
        """Not with L-BFGS: its line of steps reads the value of each, so that a GPU would wait at every one."""
        return not isinstance(self.method, DLG)

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images (captures * records, c, h, w), labels, extra objective / norm per capture."""
        return self.run_each([view], [generator])[0]

    def run_each(self, views: Sequence[View], generators: Sequence[torch.Generator]) -> list[Evidence]:
        """``run`` on several views: those whose clients trained alike are solved as one batch."""
        asked = [self._asked(view) for view in views]
        groups: dict[tuple[tuple[int, ...], LocalSteps], list[int]] = {}
        for i, one in enumerate(asked):
            groups.setdefault((one.shape, one.local), []).append(i)
        found: dict[int, list[Reconstruction]] = {}
        for (_, local), rows in groups.items():
            together = [i for i in rows if asked[i].together and isinstance(self.method, InvertingGradients)]
            found |= zip(together, self._solved([asked[i] for i in together], local, [generators[i] for i in together]))
            found |= {i: self._one_by_one(asked[i], generators[i]) for i in rows if i not in found}
        return [self._evidence(one, found[i]) for i, one in enumerate(asked)]

    def _asked(self, view: View) -> _Asked:
        captures = view.captures[: self.captures]
        model, local = victim_model(view, captures[0]), local_steps(view.knowledge.settings)
        gradients = [observed(view, capture, model) for capture in captures]
        shape = (int(view.knowledge.settings.get("batch_records", 1)), *view.knowledge.shape)
        return _Asked(view, captures, model, local, gradients, shape, _one_model(captures))

    def _solved(
        self, asked: Sequence[_Asked], local: LocalSteps, generators: Sequence[torch.Generator]
    ) -> list[list[Reconstruction]]:
        if not asked or not isinstance(self.method, InvertingGradients):
            return []
        stacked = [[torch.stack(part) for part in zip(*one.gradients)] for one in asked]
        return self.method.reconstruct_models(
            [one.model for one in asked], stacked, asked[0].shape, generators=generators, local=local
        )

    def _one_by_one(self, asked: _Asked, generator: torch.Generator) -> list[Reconstruction]:
        return [
            self.method.reconstruct(
                victim_model(asked.view, capture),
                gradient,
                asked.shape,
                generator=generator,
                local=asked.local,
                **self._statistics(capture, asked.model, asked.local),
            )
            for capture, gradient in zip(asked.captures, asked.gradients)
        ]

    def _evidence(self, asked: _Asked, results: Sequence[Reconstruction]) -> Evidence:
        return Evidence(
            images=torch.cat([r.images for r in results]),
            labels=torch.cat([r.labels for r in results]),
            extra={
                "objective": torch.tensor([r.objective for r in results]),
                "norm": torch.tensor([gradient_norm(g) for g in asked.gradients]),
            },
            notes={"method": type(self.method).__name__, "records": asked.shape[0]},
        )

    def _statistics(self, capture: Capture, model: nn.Module, local: LocalSteps) -> dict[str, Any]:
        """Batch-norm statistics of the victim's own batches, for the method that uses them, where they were sent."""
        if not isinstance(self.method, SeeThrough):
            return {}
        return {"statistics": sent_statistics(model, capture.broadcast, capture.value, local.steps) or None}

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        compared = compare(_images(evidence), view, truth, own_records(evidence, truth))
        measures = dict(compared.measures)
        if evidence.labels is not None:
            right = evidence.labels[: len(compared.rows)].cpu() == truth.y[compared.rows].cpu()
            measures["label_accuracy"] = float(right.double().mean())
        diagnostics = {**measures["diagnostics"], **self._diagnose(evidence, view, truth)}
        measures["diagnostics"] = {**diagnostics, "method": type(self.method).__name__}
        if view.knowledge.model is not None:
            measures["diagnostics"]["norm_layers"] = _norm_layers(view.knowledge.model)
        figures = dict(compared.figures)
        if truth.virtual is not None and len(truth.virtual) >= len(compared.rows):
            virtual = compare(_images(evidence), view, _virtual(truth))
            measures["diagnostics"]["psnr_to_virtual"] = virtual.measures["psnr"]
            measures["note"] = (
                f"{virtual.measures['psnr']:.1f} dB to the nearest of the images that stood in for the records"
            )
        return Finding(view.surface, self.name, self.family, Adversary.SERVER, measures, figures)

    def _diagnose(self, evidence: Evidence, view: View, truth: Truth) -> dict[str, Any]:
        """The objective at the result and at the truth: did the search fail, or is the victim's computation another?"""
        found, records = evidence.extra["objective"], int(evidence.notes["records"])
        out: dict[str, Any] = {"objective": found.tolist(), "gradient_norm": evidence.extra["norm"].tolist()}
        captures = view.captures[: len(found)]
        if len(truth.x) < records * len(captures):
            return out
        at_truth = []
        for i, capture in enumerate(captures):
            model, rows = victim_model(view, capture), slice(i * records, (i + 1) * records)
            gradients, local = observed(view, capture, model), local_steps(view.knowledge.settings)
            at_truth.append(self.method.score(model, gradients, truth.x[rows], truth.y[rows], local=local))
        out["objective_at_truth"] = at_truth
        out["reading"] = reading(float(found.mean()), float(torch.tensor(at_truth).mean()))
        return out


def reading(found: float, at_truth: float, tolerance: float = 1e-3) -> str:
    """What the two objectives say about a poor reconstruction (both on the method's own scale)."""
    if at_truth > max(tolerance, found):
        return "the update is not what the stated computation gives on the records: noise, or another protocol"
    if found > at_truth + tolerance:
        return "the search stopped above the truth's objective: a better attack may see more"
    return "the objective is met: what is missing in the images is not in the update"


def _one_model(captures: Sequence[Capture]) -> bool:
    first = captures[0].broadcast
    return all(c.broadcast.keys() == first.keys() for c in captures) and all(
        torch.equal(value, c.broadcast[name]) for c in captures[1:] for name, value in first.items()
    )


def _virtual(truth: Truth) -> Truth:
    """The truth with the virtual images that stood in for the records."""
    images = truth.virtual if truth.virtual is not None else truth.x
    labels = truth.y.new_zeros(len(images))
    return Truth(images, labels, truth.heldout_x, truth.heldout_y, truth.counts)


def _norm_layers(model: nn.Module) -> str:
    kinds = sorted({type(m).__name__ for m in model.modules() if "Norm" in type(m).__name__})
    return ", ".join(kinds) or "none"
