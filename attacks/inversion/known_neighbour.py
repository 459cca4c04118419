"""Noise that a batch shares: an attacker who knows one of its records can remove the noise from all
others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.images import psnr
from attacks.inversion.released_rows import average_copies
from attacks.measures import ReconstructionMeasures
from attacks.types import Adversary, Attack, Evidence, Family, Finding, Surface, Truth, View
from attacks.validation import check_counts


@dataclass(frozen=True)
class KnownNeighbour(Attack):
    """Recover the features x_s of a release whose attacker holds one record of each noise batch.

    Where one noise tensor serves a batch (settings["broadcast_batch"]), noise = released row -
    feature of the known record, and every other row of the batch follows exactly; else the released
    rows (copies averaged) are the best estimate."""

    limit: int = 16
    name: str = "known_neighbour"
    family = Family.RECONSTRUCTION
    on_gpu = True
    surfaces = frozenset({Surface.FEATURES})
    adversaries = frozenset({Adversary.SERVER, Adversary.PEER})

    def __post_init__(self) -> None:
        check_counts(self, "limit")

    def nothing_to_read(self, view: View) -> str:
        if "row" in view.knowledge.known:
            return ""
        return "no released row belongs to one record, so knowing a record reveals no row"

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images: every row's feature estimate, (n, c, h, w) in [-1, 1]; extra: the rows of the
        known records."""
        settings = view.knowledge.settings
        known_records = view.knowledge.known
        f = view.knowledge.maps["feature"]
        released = view.captures[0].value["x"]
        copies = int(settings.get("copies", 1))
        batch = settings.get("broadcast_batch")
        sets = list(released.chunk(copies))
        if batch:
            with torch.no_grad():
                clean = f(known_records["x"])
            sets = [
                self._remove_known_noise(x, known_records["row"], clean, int(batch)) for x in sets
            ]
        images = average_copies(torch.cat(sets), copies)
        return Evidence(images=images, extra={"known": known_records["row"]})

    @staticmethod
    def _remove_known_noise(rows: Tensor, known: Tensor, clean: Tensor, batch: int) -> Tensor:
        """Rows without the noise of each batch that has a known row, whose clean feature shows
        it."""
        denoised = rows.clone()
        for row, feature in zip(known.tolist(), clean):
            start = row // batch * batch
            shared = slice(start, start + batch)
            denoised[shared] = rows[shared] - (rows[row] - feature)
        return denoised

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """psnr of unknown records' features (range 2, from -1 to 1), beside that of the rows as
        released."""
        if evidence.images is None or truth.rows is None:
            raise ValueError("truth.rows: which row stems from which record is needed to judge")
        unknown = torch.isin(truth.rows, evidence.extra["known"], invert=True)
        rows = truth.rows[unknown]
        with torch.no_grad():
            real = view.knowledge.maps["feature"](truth.x[unknown])
        copies = int(view.knowledge.settings.get("copies", 1))
        as_released = average_copies(view.captures[0].value["x"], copies)[rows]
        estimates = evidence.images[rows]
        batch = view.knowledge.settings.get("broadcast_batch")
        noise = "independent noise"
        if batch:
            noise = f"one noise image for each {batch} rows"
        known_records = len(evidence.extra["known"])
        measures = ReconstructionMeasures(
            psnr=_feature_psnr(estimates, real),
            n=len(rows),
            baselines={
                "psnr_as_released": _feature_psnr(as_released, real),
                "psnr_mean": _feature_psnr(real.mean(0).expand_as(real), real),
            },
            note=f"PSNR of the features x_s, not of images; {known_records} known records, {noise}",
        )
        figures = {
            "real": (real[: self.limit] + 1) / 2,
            "reconstructed": ((estimates[: self.limit] + 1) / 2).clamp(0, 1),
        }
        return Finding(view.surface, self.name, self.family, view.adversary, measures, figures)


def _feature_psnr(a: Tensor, b: Tensor) -> float:
    """Mean PSNR of feature maps, mapped from [-1, 1] to [0, 1]; exact recovery is capped at
    float32's 150 dB."""
    return float(psnr((a.clamp(-1, 1) + 1) / 2, (b + 1) / 2).clamp(max=150.0).mean())
