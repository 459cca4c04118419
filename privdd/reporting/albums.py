"""Images, or rows of a table, beside their reconstructions, for pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from privdd.reporting import (
    finding_selection,
    wording,
)
from privdd.reporting.figures.image_pairs import (
    draw_image_pairs,
    order_by_psnr,
    png_uri,
    psnr_of_arrays,
)
from privdd.reporting.figures.paper import PaperStyle
from privdd.reporting.figures.rendering import save_figure, to_svg
from privdd.reporting.run_record import (
    RunRecord,
)
from privdd.reporting.schema import FindingRow
from privdd.reporting.wording import format_decibel

PAIRS = 8  # pictures shown of one attack
ROW_PAIRS = 2  # rows of a table shown of one attack
SHOWN_COLUMNS = 12  # of a row


@dataclass(frozen=True)
class PicturePair:
    """A real picture beside its reconstruction, both as data URIs."""

    real: str
    rebuilt: str
    quality: str


@dataclass(frozen=True)
class BestImage:
    """The reconstruction that gains most on its guess, with original and guess, as data URIs.

    guess: the closest image that needs no artifact, "" if the attack left none; quality,
    guess_quality: PSNR in words.
    """

    real: str
    rebuilt: str
    quality: str
    guess: str
    guess_quality: str


@dataclass(frozen=True)
class RowColumn:
    """A column of a table: its heading, real and reconstructed values in turn, and its error over
    all attempts."""

    heading: str
    values: tuple[str, ...]
    error: str


@dataclass(frozen=True)
class PictureAlbum:
    """The pictures, or rows, that one attack reconstructed, best first; one of pairs and columns is
    empty."""

    owner: str
    title: str
    row: FindingRow
    pairs: tuple[PicturePair, ...]
    total: int
    real: np.ndarray
    rebuilt: np.ndarray
    columns: tuple[RowColumn, ...] = ()
    more_columns: int = 0
    best: BestImage | None = None

    @property
    def shown(self) -> int:
        """How many attempts are shown."""
        if self.columns:
            return min(ROW_PAIRS, len(self.real))
        return len(self.pairs)

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
        """The round of a finding whose setting names it: "train phase, round 4"; else ""."""
        setting = finding_selection.finding_setting(self.row)
        return setting if "round" in setting and len(setting) < 40 else ""

    def save(self, folder: Path, name: str, paper: PaperStyle | None = None) -> None:
        if self.columns:
            return
        figure = draw_image_pairs(self.real, self.rebuilt, PAIRS)
        save_figure(figure, to_svg(figure), folder, name, paper)


def picture_album(owner: str, record: RunRecord, row: FindingRow) -> PictureAlbum | None:
    """The best pairs of one attack's images or rows; None if it left none or none are shown."""
    evidence = record.evidence(row)
    real = evidence.real
    surface = wording.surface_title(row, record.findings.scope)
    title = f"{surface}, {wording.attack_title(row.attack)}"
    if not record.shows_images:
        real = None
    if real is None and column_errors_of(row) and row.n:
        album = PictureAlbum(owner, title, row, (), row.n, np.zeros((0, 0)), np.zeros((0, 0)))
        return _with_columns(album, _columns_without_rows(row))
    if real is None or evidence.reconstructed is None or not len(real):
        return None
    if real.ndim == 2:
        album = PictureAlbum(owner, title, row, (), len(real), real, evidence.reconstructed)
        return _with_columns(album, _row_columns(row, real, evidence.reconstructed))
    rebuilt = evidence.reconstructed
    quality = psnr_of_arrays(real, rebuilt)
    order = order_by_psnr(real, rebuilt)[:PAIRS]
    pairs = []
    for index in order:
        original = png_uri(real[index])
        reconstruction = png_uri(rebuilt[index])
        pairs.append(PicturePair(original, reconstruction, format_decibel(float(quality[index]))))
    best = _best_image(real, rebuilt, evidence.guess)
    return PictureAlbum(owner, title, row, tuple(pairs), len(real), real, rebuilt, best=best)


def _best_image(real: np.ndarray, rebuilt: np.ndarray, guess: np.ndarray | None) -> BestImage:
    quality = psnr_of_arrays(real, rebuilt)
    if guess is None:
        index = int(np.argmax(quality))
        guess_uri = guess_quality = ""
    else:
        baseline = psnr_of_arrays(real, guess)
        index = int(np.argmax(quality - baseline))
        guess_uri = png_uri(guess[index])
        guess_quality = format_decibel(float(baseline[index]))
    return BestImage(
        png_uri(real[index]),
        png_uri(rebuilt[index]),
        format_decibel(float(quality[index])),
        guess_uri,
        guess_quality,
    )


def column_errors_of(row: FindingRow) -> list[Mapping[str, Any]]:
    """What a finding says of a table's columns and their errors; [] for images."""
    columns = (row.diagnostics or {}).get("columns")
    if not isinstance(columns, list):
        return []
    if not all(isinstance(column, dict) and {"name", "error"} <= set(column) for column in columns):
        return []
    return columns


def _with_columns(album: PictureAlbum, columns: list[RowColumn]) -> PictureAlbum:
    more = max(len(columns) - SHOWN_COLUMNS, 0)
    return replace(album, columns=tuple(columns[:SHOWN_COLUMNS]), more_columns=more)


def _columns_without_rows(row: FindingRow) -> list[RowColumn]:
    """The errors by column of rows that are kept off the page."""
    columns = column_errors_of(row)
    return [RowColumn(str(c["name"]), (), wording.format_number(c["error"])) for c in columns]


def _row_columns(row: FindingRow, real: np.ndarray, reconstruction: np.ndarray) -> list[RowColumn]:
    """The columns of the best reconstructed rows, in the units of the table where the finding says
    what they hold, else number by number in [0, 1]."""
    best = order_by_psnr(real, reconstruction)[:ROW_PAIRS]
    columns = []
    start = 0
    for column in _stated_columns(row, real.shape[1]):
        at = slice(start, start + _width(column))
        start = at.stop
        values = []
        for index in best:
            values += [
                _value_in_words(column, source[index, at]) for source in (real, reconstruction)
            ]
        error = wording.format_number(column["error"]) if "error" in column else ""
        columns.append(RowColumn(str(column["name"]), tuple(values), error))
    return columns


def _stated_columns(row: FindingRow, width: int) -> list[Mapping[str, Any]]:
    """What the finding says of the columns; headings alone if that is not of ``width`` numbers."""
    columns = column_errors_of(row)
    if columns and sum(map(_width, columns)) == width:
        return columns
    return [{"name": f"number {place + 1}"} for place in range(width)]


def _width(column: Mapping[str, Any]) -> int:
    """How many numbers of a row belong to a column."""
    return len(column.get("categories", ())) or 1


def _value_in_words(column: Mapping[str, Any], numbers: np.ndarray) -> str:
    """One value of a column, from its numbers in [0, 1]."""
    if column.get("categories"):
        return str(column["categories"][int(numbers.argmax())]) if numbers.max() > 0 else "none"
    low = column.get("low", 0.0)
    return f"{low + float(numbers[0]) * (column.get('high', 1.0) - low):.4g}"


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
