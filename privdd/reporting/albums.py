"""Images beside their reconstructions, for pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from privdd.reporting import (
    figures,
    finding_selection,
    wording,
)
from privdd.reporting.run_record import (
    RunRecord,
)
from privdd.reporting.schema import FindingRow
from privdd.reporting.wording import format_decibel

PAIRS = 8  # pictures shown of one attack


@dataclass(frozen=True)
class PicturePair:
    """A real picture beside its reconstruction, both as data URIs."""

    real: str
    rebuilt: str
    quality: str


@dataclass(frozen=True)
class PictureAlbum:
    """The pictures that one attack rebuilt, best first."""

    owner: str
    title: str
    row: FindingRow
    pairs: tuple[PicturePair, ...]
    total: int
    real: np.ndarray
    rebuilt: np.ndarray

    @property
    def typical(self) -> str:
        """The finding's summary of all its images: medians, or means of features and of attacks
        without a guess for each image."""
        images = self.row.pictures
        if images is None:
            guess = finding_selection.blind_guess_psnr(self.row)
            text = f"mean {format_decibel(self.row.psnr or 0.0)}"
        else:
            guess = images.guess
            text = f"median {format_decibel(images.median)}"
        if self.row.n is not None and self.row.n != self.total:
            text += f" of {self.row.n}"
        if guess is None:
            return text
        return f"{text}; the best guess without it reaches {format_decibel(guess)}"

    @property
    def when(self) -> str:
        """The round of a finding whose note begins with it: "train phase, round 4"; else ""."""
        first = (self.row.note or "").split(";")[0]
        return first if "round" in first and len(first) < 40 else ""

    def save(self, folder: Path, name: str, pdf: bool = False) -> None:
        figure = figures.draw_pictures(self.real, self.rebuilt, PAIRS)
        figures.save_figure(figure, figures.to_svg(figure), folder, name, pdf)


def picture_album(owner: str, record: RunRecord, row: FindingRow) -> PictureAlbum | None:
    """The best pairs of one attack's pictures, or None where it left none."""
    evidence = record.evidence(row)
    if evidence.real is None or evidence.reconstructed is None or not len(evidence.real):
        return None
    real = evidence.real
    rebuilt = evidence.reconstructed
    quality = figures.psnr_of_arrays(real, rebuilt)
    order = figures.order_by_psnr(real, rebuilt)[:PAIRS]
    pairs = []
    for index in order:
        original = figures.png_uri(real[index])
        reconstruction = figures.png_uri(rebuilt[index])
        pairs.append(PicturePair(original, reconstruction, format_decibel(float(quality[index]))))
    surface = wording.surface_title(row, record.findings.scope)
    title = f"{surface}, {wording.attack_title(row.attack)}"
    return PictureAlbum(owner, title, row, tuple(pairs), len(real), real, rebuilt)


def picture_albums(record: RunRecord) -> list[PictureAlbum]:
    """The images of every attack, those furthest above a blind guess first.

    Args:
        record: The run; its evidence is read.

    Returns:
        One album for each attack that left images.
    """
    findings = record.findings
    rows = [row for row in findings.findings if row.family in finding_selection.PICTURE_FAMILIES]
    ranked = sorted(
        rows, key=lambda row: finding_selection.picture_strength(row, findings.scope), reverse=True
    )
    albums = [picture_album(findings.run.algo, record, row) for row in ranked]
    return [album for album in albums if album is not None]
