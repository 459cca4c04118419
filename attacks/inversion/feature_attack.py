"""Feature inversion as an attack of the audit, on each rung of the knowledge ladder that the view allows."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from attacks.inversion.compare import compare
from attacks.inversion.decoder import DecoderTraining, draw_weights
from attacks.inversion.features import (
    FeatureInverter,
    FeatureMap,
    Rung,
    WhiteBox,
    average_copies,
    remove_shared_noise,
)
from attacks.ranges import check_counts
from attacks.types import ANY, Attack, Capture, Evidence, Family, Finding, Surface, Truth, View

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
    """A map of the same kind with weights of its own: granted by name, a fresh model, or two convolutions."""
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
    """(rows, number of captures): the mean over all captures with the same records in the same order as the first.

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
class FeatureInversion(Attack):
    """Records from shared features, on every rung of the knowledge ladder that the view grants.

    Rounds in which the same rows went through the same map are averaged before the inversion.
    """

    limit: int = 16
    public: int = 500
    decoder: DecoderTraining = field(default_factory=DecoderTraining)
    whitebox: WhiteBox = field(default_factory=WhiteBox)
    name: str = "feature_inversion"
    family = Family.RECONSTRUCTION
    surfaces = frozenset(MAP_NAMES)
    adversaries = ANY

    def __post_init__(self) -> None:
        check_counts(self, "limit", "public")

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
        count = len(stds) if view.surface == Surface.FEATURES else 1  # shared features: one copy per row
        noise = sum(std**2 for std in stds[:count]) ** 0.5 / count if count else 0.0
        return replace(self.decoder, noise_std=noise / captures**0.5)

    @staticmethod
    def _rungs(known: FeatureMap | None, shadow: FeatureMap | None) -> list[tuple[Rung, list[FeatureMap]]]:
        """The rungs that can be run, from the attacker who knows most to the one who knows least."""
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
