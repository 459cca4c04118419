"""Feature inversion as an attack of the audit, on each rung of the knowledge ladder that the view allows."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from attacks.inversion.compare import adds_nothing, compare
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
        with torch.no_grad():
            fits = other.features(view.knowledge.public_x[:1]).shape[1:] == like.shape[1:]  # type: ignore[operator]
        return other.features if fits else None  # type: ignore[return-value]
    if like.ndim != 4 or tuple(like.shape[2:]) != tuple(view.knowledge.shape[1:]):
        return None
    c = view.knowledge.shape[0]
    other = nn.Sequential(
        nn.utils.skip_init(nn.Conv2d, c, 8, 3, padding=1), nn.ReLU(),
        nn.utils.skip_init(nn.Conv2d, 8, like.shape[1], 3, padding=1),
    ).requires_grad_(False)  # fmt: skip
    draw_weights(other, generator)
    return other.to(like.device)


def released(view: View, capture: Capture, known: FeatureMap | None) -> Tensor:
    """The released rows after what anyone can undo: noise shared over a batch, copies averaged."""
    value, settings = capture.value, view.knowledge.settings
    rows = value["x"] if "x" in value else class_rows(value)
    copies = int(settings.get("copies", 1)) if view.surface == Surface.FEATURES else 1
    batch = settings.get("broadcast_batch")
    if batch and known is not None and view.surface == Surface.FEATURES:
        with torch.no_grad():
            centre = known(view.knowledge.public_x).mean(0)
        parts = rows.chunk(copies)
        rows = torch.cat([remove_shared_noise(part, int(batch), centre) for part in parts])
    return average_copies(rows, copies) if copies > 1 and len(rows) % copies == 0 else rows


def class_rows(value: Mapping[str, Tensor]) -> Tensor:
    """(m, d): the mean of each class that has records, from class means or from class sums."""
    count = value["count"].flatten()
    mean = value["mean"] if "mean" in value else value["sum"] / count.clamp_min(1)[:, None]
    return mean[count > 0]


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


def released_labels(view: View, rows: int) -> Tensor | None:
    """(rows,) the labels that were released with the rows, as classes; None where there are none."""
    value, classes = view.captures[0].value, view.knowledge.classes
    if "count" in value and len(value["count"].flatten()) == classes:
        labels = torch.nonzero(value["count"].flatten() > 0).flatten()
    elif "y" in value and value["y"].ndim == 1 and not value["y"].is_floating_point():
        labels = value["y"][:rows]
    else:
        return None
    known = len(labels) == rows and bool(((labels >= 0) & (labels < classes)).all())
    return labels if known else None


def _success(measures: Mapping[str, Any]) -> tuple[float, ...]:
    """By which the best rung is picked: records matched, then pictures clearly above every guess, then PSNR."""
    return measures.get("identified") or 0.0, measures["pictures"]["clear"], measures["psnr"]


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


@dataclass(frozen=True)
class FeatureInversion(Attack):
    """Records from shared features, on every rung of the knowledge ladder that the view grants.

    Rounds in which the same rows went through the same map are averaged before the inversion. Decoders and the search
    know the stated noise, and the labels where they are released with the rows. report: the highest rung that counts. Who
    knows more can do all that who knows less can: the finding carries the best of that rung and those below it, and
    says of how many it was picked.
    """

    report: Rung = Rung.KNOWS_MAP
    limit: int = 16
    public: int = 500
    decoder: DecoderTraining = field(default_factory=DecoderTraining)
    whitebox: WhiteBox = field(default_factory=WhiteBox)
    name: str = "feature_inversion"
    family = Family.RECONSTRUCTION
    on_gpu = True
    surfaces = frozenset(MAP_NAMES)
    adversaries = ANY

    def __post_init__(self) -> None:
        check_counts(self, "limit", "public")
        object.__setattr__(self, "report", Rung(self.report))

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images: those of the highest rung that counts; extra: every rung's, by its name."""
        known = true_map(view)
        rows, captures = joined(view, known)
        picked = torch.randperm(len(rows), generator=generator)[: self.limit]
        z, public = rows[picked].detach(), view.knowledge.public_x[: self.public]
        shadow, own = shadow_map(view, z, generator), released_labels(view, len(rows))
        labels = None if own is None else (own[picked], view.knowledge.public_y[: self.public])
        found: dict[str, Tensor] = {}
        for rung, maps in self._rungs(known, shadow):
            inverter = FeatureInverter(rung, self._decoder(view, captures), self.whitebox)
            role = {"shadows": maps} if rung is Rung.SHADOW_MAP else {"maps": maps}
            found[str(rung)] = inverter.invert([z], public, generator, labels=labels, **role).images
        notes = {"captures": captures, "picked": picked.tolist(), "labels": labels is not None}
        return Evidence(images=found[self._counting(found)[0]], extra=found, notes=notes)

    def _counting(self, found: Mapping[str, Tensor]) -> list[str]:
        """The rungs that were run, from ``report`` down."""
        order = list(Rung)
        return [str(rung) for rung in order[order.index(self.report) :] if str(rung) in found]

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
        """The finding carries the best rung that counts; ``diagnostics.ladder`` all of them."""
        picked = torch.tensor(evidence.notes.get("picked", []), dtype=torch.int64)
        mine = self._records(picked, view, truth)
        keep = mine >= 0 if mine is not None else torch.ones(len(picked), dtype=torch.bool)
        rows = None if mine is None else mine[keep]
        compared = {rung: compare(images[keep], view, truth, rows) for rung, images in evidence.extra.items()}
        ladder = {
            rung: {k: c.measures[k] for k in ("psnr", "ssim", "lpips", "identified") if k in c.measures}
            for rung, c in compared.items()
        }
        counting = self._counting(evidence.extra)
        rung = max(counting, key=lambda name: _success(compared[name].measures))
        chosen, measures = compared[rung], {**compared[rung].measures, "picked": len(counting)}
        captures = int(evidence.notes.get("captures", 1))
        more = {
            "ladder": ladder,
            "rung": rung,
            "captures": captures,
            "pairing": "row" if mine is not None else "nearest",
        }
        measures["diagnostics"] = {**measures["diagnostics"], **more, "labels_known": bool(evidence.notes["labels"])}
        words = [f"{captures} rounds' releases joined" if captures > 1 else "", adds_nothing(measures)]
        if any(words):
            measures["note"] = "; ".join(filter(None, words))
        return Finding(view.surface, self.name, self.family, view.adversary, measures, chosen.figures)

    @staticmethod
    def _records(picked: Tensor, view: View, truth: Truth) -> Tensor | None:
        """Which record each picked row stems from (-1: none of them), where the release has one row per record."""
        if view.surface not in (Surface.FEATURES, Surface.SHARED_FEATURES) or truth.rows is None or not len(picked):
            return None
        rows = len(joined(view, true_map(view))[0])
        if rows <= int(truth.rows.max()) or rows > 2 * len(truth.rows):
            return None
        where = truth.rows.device
        records = torch.full((rows,), -1, device=where)
        records[truth.rows] = torch.arange(len(truth.rows), device=where)
        found, labels = records[picked], released_labels(view, rows)
        wrong = labels is not None and bool((truth.y[found[found >= 0]] != labels[picked][found >= 0]).any())
        return None if wrong or bool((found < 0).all()) else found
