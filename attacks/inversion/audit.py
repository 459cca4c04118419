"""Attacks on updates and gradients as rows of the report; the others are in ``audit_release``."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attacks.inversion import analytic, labels
from attacks.inversion.audit_release import CopyDetection, FeatureInversion, ModelInversion
from attacks.inversion.compare import compare
from attacks.inversion.features import WhiteBox
from attacks.inversion.gradient import DLG, IDLG, InvertingGradients, SeeThrough, gradient_norm, guess_labels
from attacks.inversion.result import Pixels
from attacks.inversion.victim import LocalSteps, update_to_gradients
from attacks.types import Adversary, Capture, Evidence, Family, Finding, Surface, Truth, View

__all__ = [
    "AnalyticInversion", "CopyDetection", "FeatureInversion", "GradientInversion", "LabelCounts", "ModelInversion",
    "WhiteBox",
]  # fmt: skip

UPDATES = frozenset({Surface.UPDATE, Surface.GRADIENT})
SERVER = frozenset({Adversary.SERVER})
Method = InvertingGradients | DLG | IDLG | SeeThrough


def local_steps(settings: Mapping[str, Any]) -> LocalSteps:
    """The client's local work as the protocol states it."""
    batch = settings.get("batch_size")
    return LocalSteps(
        steps=max(1, int(settings.get("local_steps", 1))),
        lr=float(settings.get("lr", 1.0)),
        momentum=float(settings.get("momentum", 0.0)),
        weight_decay=float(settings.get("weight_decay", 0.0)),
        proximal=float(settings.get("mu", 0.0)),
        batch_size=None if batch is None else int(batch),
    )


def victim_model(view: View, capture: Capture) -> nn.Module:
    """A copy of the known architecture at the broadcast parameters, in the mode that the client trained in."""
    if view.knowledge.model is None:
        raise ValueError(f"surface={view.surface}: the attack needs knowledge.model")
    model = copy.deepcopy(view.knowledge.model)
    if capture.broadcast:
        known = model.state_dict()
        model.load_state_dict({**known, **{k: v for k, v in capture.broadcast.items() if k in known}})
    return model.train(bool(view.knowledge.settings.get("training", True)))


def observed(view: View, capture: Capture, model: nn.Module) -> list[Tensor]:
    """(theta_0 - theta_T) / lr in the model's order, from parameters, changes or gradients."""
    names = [name for name, _ in model.named_parameters()]
    value, lr = capture.value, local_steps(view.knowledge.settings).lr
    if view.surface == Surface.GRADIENT:
        return [value[name].detach() for name in names]
    if not capture.broadcast:
        return [-value[name].detach() / lr for name in names]
    before = {name: capture.broadcast[name].detach() for name in names}
    return update_to_gradients(before, {name: value[name].detach() for name in names}, lr)


@dataclass(frozen=True)
class GradientInversion:
    """Records from one client's update or gradient; captures of one model are solved as one batch."""

    method: Method = field(default_factory=InvertingGradients)
    captures: int = 8
    name: str = "gradient_inversion"
    family = Family.GRADIENT_INVERSION
    surfaces = UPDATES
    adversaries = SERVER

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images (captures * records, c, h, w), labels, extra objective / norm per capture."""
        captures = view.captures[: self.captures]
        model, local = victim_model(view, captures[0]), local_steps(view.knowledge.settings)
        gradients = [observed(view, capture, model) for capture in captures]
        records = int(view.knowledge.settings.get("batch_records", 1))
        shape = (records, *view.knowledge.shape)
        if isinstance(self.method, InvertingGradients) and _one_model(captures):
            stacked = [torch.stack(part) for part in zip(*gradients)]
            results = self.method.reconstruct_each(model, stacked, shape, generator=generator, local=local)
        else:
            results = [
                self.method.reconstruct(victim_model(view, c), g, shape, generator=generator, local=local)
                for c, g in zip(captures, gradients)
            ]
        return Evidence(
            images=torch.cat([r.images for r in results]),
            labels=torch.cat([r.labels for r in results]),
            extra={
                "objective": torch.tensor([r.objective for r in results]),
                "norm": torch.tensor([gradient_norm(g) for g in gradients]),
            },
            notes={"method": type(self.method).__name__, "records": records},
        )

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        compared = compare(_images(evidence), view, truth)
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
        """Objective where the attack ended and at the truth: 'failed' or 'the set-up is not the victim's'?"""
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


def _images(evidence: Evidence) -> Tensor:
    if evidence.images is None:
        raise ValueError("evidence.images is None: reconstructions are needed")
    return evidence.images


def _virtual(truth: Truth) -> Truth:
    """The truth with the virtual images that stood in for the records."""
    images = truth.virtual if truth.virtual is not None else truth.x
    labels = torch.zeros(len(images), dtype=truth.y.dtype)
    return Truth(images, labels, truth.heldout_x, truth.heldout_y, truth.counts)


def _norm_layers(model: nn.Module) -> str:
    kinds = sorted({type(m).__name__ for m in model.modules() if "Norm" in type(m).__name__})
    return ", ".join(kinds) or "none"


@dataclass(frozen=True)
class AnalyticInversion:
    """The exact input of the first biased linear layer; features are inverted in turn, with the map known."""

    whitebox: WhiteBox = field(default_factory=lambda: WhiteBox(iterations=500, tv=1e-3))
    captures: int = 8
    name: str = "analytic_inversion"
    family = Family.GRADIENT_INVERSION
    surfaces = UPDATES
    adversaries = SERVER

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images (captures * records, c, h, w); where no layer has a bias, the public mean and a note."""
        images, records = [], int(view.knowledge.settings.get("batch_records", 1))
        shape = (records, *view.knowledge.shape)
        pixels = shape[1] * shape[2] * shape[3]
        for capture in view.captures[: self.captures]:
            model = victim_model(view, capture)
            gradients, layers = observed(view, capture, model), analytic.biased_linears(model)
            chained = bool(layers) and layers[0].in_features != pixels
            if not layers or (chained and not hasattr(model, "features")):
                images.append(view.knowledge.public_x.mean(0).expand(shape))
                continue
            invert = (lambda z, m=model: self._chain(m, z, view)) if chained else None
            try:
                images.append(analytic.reconstruct(model, gradients, shape, invert=invert).images)
            except ValueError:  # no bias gradient at all: the layer says nothing about its input
                images.append(view.knowledge.public_x.mean(0).expand(shape))
        return Evidence(images=torch.cat(images), notes={"records": records})

    def _chain(self, model: nn.Module, features: Tensor, view: View) -> Tensor:
        start = view.knowledge.public_x.mean(0).expand(len(features), *view.knowledge.shape)
        frozen = copy.deepcopy(model).requires_grad_(False)
        return self.whitebox.invert([frozen.features], [features], start)[0]  # type: ignore[list-item]

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        compared = compare(_images(evidence), view, truth)
        return Finding(view.surface, self.name, self.family, Adversary.SERVER, compared.measures, compared.figures)


@dataclass(frozen=True)
class LabelCounts:
    """How many records of each class the client holds: from an update's last layer, or simply read off."""

    name: str = "label_counts"
    family = Family.LABEL
    surfaces = frozenset({Surface.UPDATE, Surface.GRADIENT, Surface.LABELS, Surface.COUNTS})
    adversaries = SERVER

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """extra: counts (C,), summing to the number of records behind the artifact as far as it is known."""
        capture = view.captures[0]
        if view.surface == Surface.LABELS:
            return Evidence(extra={"counts": labels.tally(capture.value["y"], view.knowledge.classes)})
        if view.surface == Surface.COUNTS:
            return Evidence(extra={"sizes": torch.cat([v.flatten().double() for v in capture.value.values()])})
        return Evidence(extra={"counts": self._from_update(view, capture, generator)})

    def _from_update(self, view: View, capture: Capture, generator: torch.Generator) -> Tensor:
        model, settings = victim_model(view, capture), view.knowledge.settings
        local, public = local_steps(settings), view.knowledge.public_x
        scale = labels.displacement(local.steps, local.momentum)
        gradients = [g / scale for g in observed(view, capture, model)]
        records = int(settings.get("batch_records", local.steps * (local.batch_size or 1)))
        head = labels.head_of(model, gradients)
        if records == 1 or head.bias is None:
            found = guess_labels(model, gradients, (records, *view.knowledge.shape), Pixels(), LocalSteps(), generator)
            return labels.tally(found, view.knowledge.classes)
        return labels.counts(head.bias, records, self._probabilities(model, capture, public))

    @staticmethod
    def _probabilities(model: nn.Module, capture: Capture, public: Tensor) -> Tensor:
        """Mean predicted probabilities on public records, half-way between the broadcast and the update."""
        before = labels.mean_probabilities(model, public)
        if not capture.broadcast:
            return before
        after = copy.deepcopy(model)
        after.load_state_dict({**after.state_dict(), **{k: v for k, v in capture.value.items()}}, strict=False)
        return (before + labels.mean_probabilities(after, public)) / 2

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        measures: dict[str, Any] = {"n": int(truth.counts.sum())}
        if "counts" in evidence.extra:
            found, true = evidence.extra["counts"].cpu(), truth.counts.cpu()
            if len(view.captures) > 1:  # each capture has its own records; the first one was read
                true = labels.tally(truth.y[:1], len(true))
            measures["label_accuracy"] = labels.overlap(found, true)
            measures["baselines"] = {"label_accuracy_chance": labels.chance_overlap(true)}
            measures["diagnostics"] = {"counts": found.tolist(), "true_counts": true.tolist()}
        else:
            sizes = evidence.extra["sizes"].tolist()
            measures["diagnostics"] = {"sent": sizes, "records": int(truth.counts.sum())}
        return Finding(view.surface, self.name, self.family, Adversary.SERVER, measures)
