"""Attacks on features, models and synthetic sets as rows of the report."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from attacks.baselines import class_means
from attacks.images import psnr
from attacks.inversion.compare import compare, fit_to, qualities
from attacks.inversion.decoder import DecoderTraining, draw_weights
from attacks.inversion.features import (
    FeatureInverter,
    FeatureMap,
    Rung,
    WhiteBox,
    average_copies,
    look,
    remove_shared_noise,
)
from attacks.inversion.generative import GenerativeInversion, WganGp
from attacks.inversion.judge import Judge, success
from attacks.inversion.model import ModelInversion as MiFace
from attacks.inversion.synthetic import copy_report
from attacks.types import Adversary, Capture, Evidence, Family, Finding, Surface, Truth, View

IMAGES = frozenset({Surface.SYNTHETIC_IMAGES, Surface.GLOBAL_IMAGES})
ANY = frozenset({Adversary.SERVER, Adversary.PEER, Adversary.PUBLIC})
MAP_NAMES = {
    Surface.FEATURES: "feature",
    Surface.SHARED_FEATURES: "feature",
    Surface.SYNTHETIC_REPRESENTATIONS: "projection",
    Surface.PROTOTYPES: "embedding",
}


def true_map(view: View) -> FeatureMap | None:
    """The map that the released features went through, if the view grants it."""
    maps, model = view.knowledge.maps, view.knowledge.model
    known = maps.get(MAP_NAMES[view.surface])
    if known is None and view.surface == Surface.PROTOTYPES and model is not None and hasattr(model, "features"):
        frozen = copy.deepcopy(model).eval().requires_grad_(False)
        return frozen.features  # type: ignore[return-value]
    return known


def shadow_map(view: View, like: Tensor, generator: torch.Generator) -> FeatureMap | None:
    """A map of the same kind with weights of its own: granted by name, a redrawn model, or two convolutions."""
    if "shadow" in view.knowledge.maps:
        return view.knowledge.maps["shadow"]
    model = view.knowledge.model
    if view.surface == Surface.PROTOTYPES and model is not None and hasattr(model, "features"):
        other = copy.deepcopy(model).eval().requires_grad_(False)
        draw_weights(other, generator)
        return other.features  # type: ignore[return-value]
    if like.ndim != 4 or tuple(like.shape[2:]) != tuple(view.knowledge.shape[1:]):
        return None
    c = view.knowledge.shape[0]
    other = nn.Sequential(
        nn.utils.skip_init(nn.Conv2d, c, 8, 3, padding=1), nn.ReLU(),
        nn.utils.skip_init(nn.Conv2d, 8, like.shape[1], 3, padding=1),
    ).requires_grad_(False)  # fmt: skip
    draw_weights(other, generator)
    return other


def released(view: View, capture: Capture, known: FeatureMap | None) -> Tensor:
    """The released rows after what anyone can undo: noise shared over a batch, copies averaged."""
    value, settings = capture.value, view.knowledge.settings
    rows = value["mean"][value["count"].flatten() > 0] if "mean" in value else value["x"]
    copies = int(settings.get("copies", 1)) if view.surface == Surface.FEATURES else 1
    batch = settings.get("broadcast_batch")
    if batch and known is not None and view.surface == Surface.FEATURES:
        with torch.no_grad():
            centre = known(view.knowledge.public_x).mean(0)
        parts = rows.chunk(copies)
        rows = torch.cat([remove_shared_noise(part, int(batch), centre) for part in parts])
    return average_copies(rows, copies) if copies > 1 and len(rows) % copies == 0 else rows


def joined(view: View, known: FeatureMap | None) -> tuple[Tensor, int]:
    """(rows, captures behind them): the mean over all captures whose rows are in step with the first's.

    A view's further captures are of the same client through the same map. Then the mean is all that a
    squared error can use: sum_k |f(x) - z_k|^2 = K |f(x) - mean z|^2 and what does not depend on x.
    """
    first, *more = view.captures
    rows = [released(view, first, known)]
    for capture in more:
        in_step = capture.name == first.name and all(
            _same(first.value.get(n), capture.value.get(n)) for n in ("y", "count")
        )
        other = released(view, capture, known) if in_step else None
        if other is not None and other.shape == rows[0].shape:
            rows.append(other)
    return torch.stack(rows).mean(0), len(rows)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


@dataclass(frozen=True)
class FeatureInversion:
    """Records from shared features, on every rung of the knowledge ladder that the view grants.

    Rounds in which the same rows went through the same map are joined before anything is inverted.
    """

    limit: int = 16
    public: int = 500
    decoder: DecoderTraining = field(default_factory=DecoderTraining)
    whitebox: WhiteBox = field(default_factory=WhiteBox)
    name: str = "feature_inversion"
    family = Family.RECONSTRUCTION
    surfaces = frozenset(MAP_NAMES)
    adversaries = ANY

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images: the highest rung's; extra: every rung's images, by its name."""
        known = true_map(view)
        rows, captures = joined(view, known)
        picked = torch.randperm(len(rows), generator=generator)[: self.limit]
        z, public = rows[picked].detach(), view.knowledge.public_x[: self.public]
        shadow = shadow_map(view, z, generator)
        found: dict[str, Tensor] = {}
        for rung, maps in self._rungs(known, shadow):
            inverter = FeatureInverter(rung, self._decoder(view, captures), self.whitebox)
            role = {"shadows": maps} if rung is Rung.SHADOW_MAP else {"maps": maps}
            found[str(rung)] = inverter.invert([z], public, generator, **role).images
        return Evidence(
            images=next(iter(found.values())), extra=found, notes={"rung": next(iter(found)), "captures": captures}
        )

    def _decoder(self, view: View, captures: int) -> DecoderTraining:
        settings = view.knowledge.settings
        if view.surface not in (Surface.FEATURES, Surface.SHARED_FEATURES):
            return self.decoder
        stds = tuple(settings.get("noise_stds") or (settings.get("noise_std", 0.0),))
        stds = () if settings.get("broadcast_batch") else tuple(float(std) for std in stds)
        count = len(stds) if view.surface == Surface.FEATURES else 1  # shared features are one copy a row
        noise = sum(std**2 for std in stds[:count]) ** 0.5 / count if count else 0.0
        return replace(self.decoder, noise_std=noise / captures**0.5)

    @staticmethod
    def _rungs(known: FeatureMap | None, shadow: FeatureMap | None) -> list[tuple[Rung, list[FeatureMap]]]:
        """From the most knowing down."""
        rungs: list[tuple[Rung, list[FeatureMap]]] = []
        if known is not None:
            rungs += [(Rung.KNOWS_MAP, [known]), (Rung.CAN_QUERY, [known])]
        if shadow is not None:
            rungs += [(Rung.SHADOW_MAP, [shadow])]
        return [*rungs, (Rung.NOTHING, [])]

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """The finding carries the best rung; ``diagnostics.ladder`` all of them."""
        compared = {rung: compare(images, view, truth) for rung, images in evidence.extra.items()}
        ladder = {
            rung: {k: c.measures[k] for k in ("psnr", "ssim", "lpips", "identified") if k in c.measures}
            for rung, c in compared.items()
        }
        best = max(compared, key=lambda rung: compared[rung].measures["psnr"])
        chosen, measures = compared[best], dict(compared[best].measures)
        captures = int(evidence.notes.get("captures", 1))
        measures["diagnostics"] = {**measures["diagnostics"], "ladder": ladder, "rung": best, "captures": captures}
        if captures > 1:
            measures["note"] = f"{captures} rounds' releases joined"
        return Finding(view.surface, self.name, self.family, view.adversary, measures, chosen.figures)


@dataclass(frozen=True)
class ModelInversion:
    """One image per class from a shared model, with and without a GAN prior on public records."""

    miface: MiFace = field(default_factory=lambda: MiFace(iterations=1000))
    prior: WganGp | None = field(default_factory=WganGp)
    search: GenerativeInversion = field(default_factory=lambda: GenerativeInversion(iterations=200, starts=2))
    referee: Judge = field(default_factory=Judge)
    name: str = "model_inversion"
    family = Family.MODEL_INVERSION
    surfaces = frozenset({Surface.GLOBAL_MODEL})
    adversaries = ANY

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images (C, c, h, w): one a class by MI-FACE; extra: by each method, by name."""
        knowledge = view.knowledge
        labels = torch.arange(knowledge.classes)
        if knowledge.model is None:
            return Evidence(labels=labels, notes={"skipped": "the artifact carries no classifier"})
        model = copy.deepcopy(knowledge.model).eval().requires_grad_(False)
        found = {"mi_face": self.miface.reconstruct(model, labels, knowledge.shape).images}
        if self.prior is not None:
            prior = self.prior.fit(knowledge.public_x, generator)
            found["gmi"] = self.search.reconstruct(model, prior, labels, generator).images
        best = found.get("gmi", found["mi_face"])
        return Evidence(images=best, labels=labels, extra=found)

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
        best = max(table, key=lambda name: (table[name]["judged"], table[name]["psnr"]))
        measures: dict[str, Any] = {k: v for k, v in table[best].items() if k != "judged"}
        measures |= {"label_accuracy": table[best]["judged"], "n": len(held)}
        measures["baselines"] = self._baselines(view, referee, labels[held], member_means)
        judge_accuracy = success(referee, truth.heldout_x, truth.heldout_y) if len(truth.heldout_x) else None
        measures["diagnostics"] = {"methods": table, "method": best, "judge_accuracy": judge_accuracy}
        measures["note"] = "against the mean image of each class of the client"
        figures = {"real": member_means, "reconstructed": evidence.extra[best][held]}
        return Finding(view.surface, self.name, self.family, view.adversary, measures, figures)

    @staticmethod
    def _baselines(view: View, referee: nn.Module, labels: Tensor, means: Tensor) -> dict[str, float]:
        knowledge = view.knowledge
        public = class_means(knowledge.public_x, knowledge.public_y, knowledge.classes)[labels]
        free = {"class_mean": public, "mean": knowledge.public_x.mean(0).expand_as(public), "black": public * 0}
        out = {f"psnr_{name}": float(psnr(images, means).mean()) for name, images in free.items()}
        return out | {f"label_accuracy_{name}": success(referee, images, labels) for name, images in free.items()}


@dataclass(frozen=True)
class CopyDetection:
    """Whether synthetic images lie nearer to the client's records than to equals that it never saw."""

    limit: int = 200
    name: str = "copy_detection"
    family = Family.RECONSTRUCTION
    surfaces = IMAGES
    adversaries = ANY

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images: the released ones; the attacker does nothing but look."""
        x = view.captures[0].value["x"].detach()
        picked = torch.randperm(len(x), generator=generator)[: self.limit]
        shown = x[picked] if fit_to(x, view.knowledge.shape) else look(x[picked], view.knowledge.public_x)
        return Evidence(images=shown.clamp(0, 1))

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """psnr, ssim, lpips: to the nearest member; baselines: to the nearest of as many held-out records."""
        images = evidence.images if evidence.images is not None else truth.x[:0]
        report = copy_report(images, truth.x, truth.heldout_x, torch.Generator().manual_seed(0))
        nearest = truth.x[report.nearest]
        measures: dict[str, Any] = {k: float(v.mean()) for k, v in qualities(images, nearest).items()}
        measures |= {"n": len(images), "identified": report.closer, "identified_chance": 0.5}
        measures["baselines"] = self._baselines(report.heldout)
        measures["diagnostics"] = self._diagnostics(report.member, report.heldout, report.interval, report.compared)
        measures["note"] = "identified: share of released images nearer to a member than to any held-out record"
        figures = {"real": nearest, "reconstructed": images}
        return Finding(view.surface, self.name, self.family, view.adversary, measures, figures)

    @staticmethod
    def _baselines(heldout: Tensor) -> dict[str, float]:
        return {"psnr_nearest_heldout": float((-10 * heldout.clamp_min(1e-20).log10()).mean())}

    @staticmethod
    def _diagnostics(
        member: Tensor, heldout: Tensor, interval: tuple[float, float], compared: int
    ) -> Mapping[str, Any]:
        return {
            "closer_interval": list(interval),
            "compared": compared,
            "copies": int((member < 1e-4).sum()),
            "distance_member": float(member.mean()),
            "distance_heldout": float(heldout.mean()),
        }
