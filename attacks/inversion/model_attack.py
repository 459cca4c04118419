"""Model inversion as an attack of the audit."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attacks.baselines import class_means
from attacks.images import bootstrap, psnr
from attacks.inversion.compare import pictures, qualities
from attacks.inversion.generative import GenerativeInversion, WganGp
from attacks.inversion.judge import Judge, success
from attacks.inversion.model import ModelInversion as MiFace
from attacks.types import ANY, Attack, Evidence, Family, Finding, Surface, Truth, View


@dataclass(frozen=True)
class ModelInversion(Attack):
    """One image per class from a shared model, with and without a GAN prior on public records.

    The finding carries the search that starts from the public mean image of each class, a choice made before anything
    is seen; the others stand beside it.
    """

    miface: MiFace = field(default_factory=lambda: MiFace(iterations=1000))
    prior: WganGp | None = field(default_factory=WganGp)
    search: GenerativeInversion = field(default_factory=lambda: GenerativeInversion(iterations=200, starts=2))
    referee: Judge = field(default_factory=Judge)
    name: str = "model_inversion"
    family = Family.MODEL_INVERSION
    on_gpu = True
    surfaces = frozenset({Surface.GLOBAL_MODEL})
    adversaries = ANY

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images (C, c, h, w): one a class by MI-FACE from the public mean; extra: by each method, by name."""
        knowledge = view.knowledge
        labels = torch.arange(knowledge.classes, device=knowledge.public_x.device)
        if knowledge.model is None:
            return Evidence(labels=labels, notes={"skipped": "the artifact carries no classifier"})
        model = copy.deepcopy(knowledge.model).eval().requires_grad_(False)
        means = class_means(knowledge.public_x, knowledge.public_y, knowledge.classes)
        informed = self.miface.reconstruct(model, labels, knowledge.shape, start=means).images
        found = {"from_class_mean": informed, "mi_face": self.miface.reconstruct(model, labels, knowledge.shape).images}
        if self.prior is not None:
            prior = self.prior.fit(knowledge.public_x, generator)
            found["gmi"] = self.search.reconstruct(model, prior, labels, generator).images
        return Evidence(images=informed, labels=labels, extra=found)

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """label_accuracy: share of images that an independent classifier puts in their class."""
        if evidence.images is None or evidence.labels is None:
            note = {"note": str(evidence.notes.get("skipped", ""))}
            return Finding(view.surface, self.name, self.family, view.adversary, note)
        generator, knowledge, labels = torch.Generator().manual_seed(0), view.knowledge, evidence.labels
        referee = self.referee.fit(knowledge.public_x, knowledge.public_y, knowledge.classes, generator)
        held = [int(c) for c in labels if bool((truth.y == c).any())]
        member_means = class_means(truth.x, truth.y, knowledge.classes)[held]
        table: dict[str, dict[str, float]] = {}
        for name, images in evidence.extra.items():
            scores = {k: float(v.mean()) for k, v in qualities(images[held], member_means).items()}
            table[name] = {**scores, "judged": success(referee, images[held], labels[held])}
        best = "from_class_mean"
        measures: dict[str, Any] = {k: v for k, v in table[best].items() if k != "judged"}
        measures |= {"label_accuracy": table[best]["judged"], "n": len(held)}
        free = self._free(view, labels[held])
        blind = [psnr(guess, member_means) for guess in free.values()]
        measures["baselines"] = {f"psnr_{name}": float(one.mean()) for name, one in zip(free, blind)}
        measures["baselines"] |= {f"label_accuracy_{n}": success(referee, g, labels[held]) for n, g in free.items()}
        judge_accuracy = success(referee, truth.heldout_x, truth.heldout_y) if len(truth.heldout_x) else None
        measures["diagnostics"] = {"methods": table, "method": best, "judge_accuracy": judge_accuracy}
        quality = psnr(evidence.extra[best][held], member_means)
        measures["pictures"] = pictures(quality, blind, torch.stack(blind).amax(0))
        measures["diagnostics"]["psnr_interval"] = list(bootstrap(quality, generator))
        gain = bootstrap(quality - psnr(free["class_mean"], member_means), generator)
        measures["diagnostics"]["gain_interval"] = list(gain)
        words = "" if gain[0] > 0 else "; adds nothing to the public mean image of each class"
        measures["note"] = f"against the mean image of each class of the client{words}"
        figures = {"real": member_means, "reconstructed": evidence.extra[best][held]}
        return Finding(view.surface, self.name, self.family, view.adversary, measures, figures)

    @staticmethod
    def _free(view: View, labels: Tensor) -> dict[str, Tensor]:
        knowledge = view.knowledge
        public = class_means(knowledge.public_x, knowledge.public_y, knowledge.classes)[labels]
        return {"class_mean": public, "mean": knowledge.public_x.mean(0).expand_as(public), "black": public * 0}
