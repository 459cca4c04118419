"""Model inversion: one image per class that the shared model is sure of, MI-FACE (Fredrikson, Jha,
Ristenpart 2015) and GMI beside it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attacks.images import bootstrap_interval, psnr
from attacks.inversion.evaluation import (
    class_mean_images,
    guess_class_images,
    image_qualities,
    pictures,
)
from attacks.inversion.generative import (
    EvaluationClassifier,
    GenerativeInversion,
    WganGp,
    class_accuracy,
)
from attacks.inversion.victim import Reconstruction
from attacks.measures import ReconstructionMeasures
from attacks.tensors import steps_between_reads
from attacks.types import (
    ANY_ADVERSARY,
    Attack,
    Evidence,
    Family,
    Finding,
    RecordShape,
    Surface,
    Truth,
    View,
)
from attacks.validation import check_counts, check_positive


@dataclass(frozen=True)
class MiFace:
    """Gradient descent on 1 - f_y(x) from a black image (algorithm 1, without auxiliary term).

    iterations: alpha; patience: beta, stop where no cost of the last beta steps was higher;
    confidence: gamma, stop once f_y(x) reaches it; lr: lambda.
    """

    iterations: int = 5000
    patience: int = 100
    confidence: float = 0.99
    lr: float = 0.1

    def __post_init__(self) -> None:
        check_counts(self, "iterations", "patience")
        if not 0 < self.confidence <= 1:
            raise ValueError(f"confidence={self.confidence}: a number in (0, 1] is needed")
        check_positive(self, "lr")

    def reconstruct(
        self,
        model: nn.Module,
        labels: Tensor,
        shape: RecordShape,
        *,
        start: Tensor | None = None,
    ) -> Reconstruction:
        """One image (c, h, w) in [0, 1] for each of ``labels`` (b,); all descend in one batch.

        The model must be in evaluation mode (its images then do not depend on each other), else
        ValueError. objective: mean 1 - f_y. start: (b, c, h, w) in [0, 1], else black.
        """
        if model.training:
            raise ValueError("model.training=True: evaluation mode is needed")
        if start is None:
            images = torch.zeros((len(labels), *shape), device=labels.device)
        else:
            images = start.clone()
        best = images.clone()
        lowest = torch.full((len(labels),), torch.inf, device=labels.device)
        window = torch.full((self.patience, len(labels)), torch.inf, device=labels.device)
        active = torch.ones(len(labels), dtype=torch.bool, device=labels.device)
        steps = torch.zeros((), dtype=torch.int64, device=labels.device)
        for step in range(self.iterations):
            going = active.any()
            # what happens between two looks changes nothing
            if step % steps_between_reads(labels.device) == 0 and not going:
                break
            steps += going
            cost, slope = self._cost_and_gradient(model, images, labels)
            better = active & (cost < lowest)
            best = torch.where(better.view(-1, 1, 1, 1), images, best)
            lowest = torch.where(better, cost, lowest)
            active &= (cost < window.amax(0)) & (cost > 1 - self.confidence)
            window[step % self.patience] = cost
            moved = (images - self.lr * slope).clamp(0, 1)
            images = torch.where(active.view(-1, 1, 1, 1), moved, images)
        return Reconstruction(
            best, labels, float(lowest.mean()), diagnostics={"steps": float(steps)}
        )

    @staticmethod
    def _cost_and_gradient(
        model: nn.Module, images: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        leaf = images.detach().requires_grad_()
        with torch.enable_grad():
            cost = 1 - model(leaf).softmax(1).gather(1, labels.view(-1, 1)).flatten()
            (slope,) = torch.autograd.grad(cost.sum(), leaf)
        return cost.detach(), slope


@dataclass(frozen=True)
class ModelInversion(Attack):
    """One image per class from a shared model, with and without a GAN prior on public records.

    The finding carries the search that starts from the public mean image of each class, chosen
    before anything is seen."""

    miface: MiFace = field(default_factory=lambda: MiFace(iterations=1000))
    prior: WganGp | None = field(default_factory=WganGp)
    search: GenerativeInversion = field(
        default_factory=lambda: GenerativeInversion(iterations=200, starts=2)
    )
    referee: EvaluationClassifier = field(default_factory=EvaluationClassifier)
    name: str = "model_inversion"
    images_only = True
    family = Family.MODEL_INVERSION
    on_gpu = True
    surfaces = frozenset({Surface.GLOBAL_MODEL})
    adversaries = ANY_ADVERSARY

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images (C, c, h, w): one a class by MI-FACE from the public mean; extra: by each method,
        by name."""
        knowledge = view.knowledge
        labels = torch.arange(knowledge.classes, device=knowledge.public_x.device)
        if knowledge.model is None:
            return Evidence(labels=labels, notes={"skipped": "the artifact carries no classifier"})
        model = copy.deepcopy(knowledge.model).eval().requires_grad_(False)
        means = class_mean_images(knowledge.public_x, knowledge.public_y, knowledge.classes)
        # in evaluation mode images do not depend on each other: both starts are one batch
        start = torch.cat([means, torch.zeros_like(means)])
        both = self.miface.reconstruct(model, labels.repeat(2), knowledge.shape, start=start).images
        informed, from_black = both.split(len(labels))
        images = {"from_class_mean": informed, "mi_face": from_black}
        if self.prior is not None:
            prior = self.prior.fit(knowledge.public_x, generator)
            images["gmi"] = self.search.reconstruct(model, prior, labels, generator).images
        return Evidence(images=informed, labels=labels, extra=images)

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """label_accuracy: share of images that an independent classifier puts in their class."""
        if evidence.images is None or evidence.labels is None:
            skipped = ReconstructionMeasures(note=str(evidence.notes.get("skipped", "")))
            return Finding(view.surface, self.name, self.family, view.adversary, skipped)
        generator = torch.Generator().manual_seed(0)
        knowledge = view.knowledge
        labels = evidence.labels
        referee = self.referee.fit(
            knowledge.public_x, knowledge.public_y, knowledge.classes, generator
        )
        held = [int(c) for c in labels if bool((truth.y == c).any())]
        member_means = class_mean_images(truth.x, truth.y, knowledge.classes)[held]
        table: dict[str, dict[str, float]] = {}
        for name, images in evidence.extra.items():
            scores = {
                k: float(v.mean()) for k, v in image_qualities(images[held], member_means).items()
            }
            table[name] = {**scores, "judged": class_accuracy(referee, images[held], labels[held])}
        best = "from_class_mean"
        qualities: dict[str, Any] = {k: v for k, v in table[best].items() if k != "judged"}
        free = guess_class_images(view, labels[held])
        blind = [psnr(guess, member_means) for guess in free.values()]
        baselines = {f"psnr_{name}": float(quality.mean()) for name, quality in zip(free, blind)}
        baselines |= {
            f"label_accuracy_{n}": class_accuracy(referee, g, labels[held]) for n, g in free.items()
        }
        if len(truth.heldout_x):
            judge_accuracy = class_accuracy(referee, truth.heldout_x, truth.heldout_y)
        else:
            judge_accuracy = None
        quality = psnr(evidence.extra[best][held], member_means)
        psnr_interval = bootstrap_interval(quality, generator)
        gain = bootstrap_interval(quality - psnr(free["class_mean"], member_means), generator)
        diagnostics = {
            "methods": table,
            "method": best,
            "judge_accuracy": judge_accuracy,
            "psnr_interval": list(psnr_interval),
            "gain_interval": list(gain),
        }
        if gain[0] > 0:
            words = ""
        else:
            words = "; adds nothing to the public mean image of each class"
        measures = ReconstructionMeasures(
            **qualities,
            label_accuracy=table[best]["judged"],
            n=len(held),
            baselines=baselines,
            pictures=pictures(quality, blind, torch.stack(blind).amax(0)),
            diagnostics=diagnostics,
            note=f"against the mean image of each class of the client{words}",
        )
        figures = {"real": member_means, "reconstructed": evidence.extra[best][held]}
        return Finding(view.surface, self.name, self.family, view.adversary, measures, figures)
