"""The most exposed records of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privdd.reporting import finding_selection
from privdd.reporting.figures.image_pairs import png_uri
from privdd.reporting.findings_tables import chosen_text, interval_text, trials_text
from privdd.reporting.run_record import RunRecord
from privdd.reporting.schema import (
    FindingRow,
    WorstRecords,
)

SHOWN_NUMBERS = 30  # of a row of a table


@dataclass(frozen=True)
class ExposedRecord:
    """One record: its picture as a data URI or "", the numbers of a row or "", its label or "", and
    how often it is found, in words."""

    picture: str
    numbers: str
    name: str
    found: str
    between: str


@dataclass(frozen=True)
class ExposedSurface:
    """The most exposed records of one surface under its strongest attack, most exposed first."""

    row: FindingRow
    records: tuple[ExposedRecord, ...]
    pictures: bool
    together: str


def most_exposed_records(record: RunRecord) -> list[ExposedSurface]:
    """One for each surface whose strongest membership attack names its most exposed records, by its
    lower end."""
    rows = [
        row for row in record.findings.findings if row.worst_records and row.worst_records.records
    ]
    surfaces = []
    for row in finding_selection.strongest_on_each_surface(rows, record.findings.scope):
        if row.worst_records is not None:
            surfaces.append(_exposed_on_surface(record, row, row.worst_records))
    return [surface for surface in surfaces if surface.records]


def _numbers_in_words(numbers: np.ndarray) -> str:
    """The first numbers of a row of a table, in [0, 1]."""
    text = " ".join(f"{number:.2f}" for number in numbers[:SHOWN_NUMBERS])
    if len(numbers) > SHOWN_NUMBERS:
        text += f" and {len(numbers) - SHOWN_NUMBERS} more"
    return text


def _exposed_on_surface(record: RunRecord, row: FindingRow, worst: WorstRecords) -> ExposedSurface:
    evidence = record.evidence(row)
    count = len(worst.records)
    has_images = evidence.exposed is not None and len(evidence.exposed) == count
    has_images = has_images and record.shows_images
    images = [""] * count
    rows = [""] * count
    labels = [""] * count
    if has_images and evidence.exposed is not None:
        if evidence.exposed.ndim == 2:
            rows = [_numbers_in_words(numbers) for numbers in evidence.exposed]
        else:
            images = [png_uri(image) for image in evidence.exposed]
    if has_images and evidence.exposed_label is not None:
        labels = [f", class {int(label)}" for label in evidence.exposed_label]
    ranked = sorted(
        zip(worst.records, images, rows, labels),
        key=lambda entry: (-entry[0].ci[0], entry[0].record),
    )
    records = []
    for exposed, image, numbers, label in ranked:
        if exposed.hits:
            name = f"record {exposed.record}{label}"
            rate = f"{exposed.hits} of {exposed.trials}"
            between = interval_text(exposed.ci)
            records.append(ExposedRecord(image, numbers, name, rate, between))
    together = (
        f"{chosen_text(row, worst)} were chosen; they are identified in {trials_text(worst)} "
        f"replays that hold them (95 %: {interval_text(worst.ci)})"
    )
    return ExposedSurface(row, tuple(records), has_images, together)


@dataclass(frozen=True)
class DetectionRates:
    """How often one attack identifies each audited record at one threshold for all.

    Attributes:
        row: The finding of the attack.
        fpr: The false-positive rate, in (0, 1].
        hits: Replays that hold the record and in which it is identified, (n,).
        trials: Replays that hold it, (n,), each at least 1. The most exposed record comes first.
    """

    row: FindingRow
    fpr: float
    hits: np.ndarray
    trials: np.ndarray

    @property
    def rates(self) -> np.ndarray:
        return self.hits / self.trials


def detection_rates(record: RunRecord) -> DetectionRates | None:
    """Count how often the strongest membership attack identifies each audited record.

    Args:
        record: The run; the attack's evidence is read.

    Returns:
        At 0.1 % false positives, or the least rate that the sample shows; None if no attack has
        a rate, or no record is in two replays.
    """
    findings = record.findings
    best = finding_selection.strongest_membership(findings.findings, findings.scope)
    if best is None:
        return None
    evidence = record.evidence(best.row)
    rates = [float(fpr) for fpr, at in (best.row.tpr_at_fpr or {}).items() if at.resolvable]
    scores = evidence.scores
    members = evidence.members
    if not rates or scores is None or members is None or evidence.record is None:
        return None
    if not evidence.has_curve:
        return None
    fpr = min(rates)
    records = evidence.record.astype(int)
    identified = members & (scores > _threshold_at(scores[~members], fpr))
    trials = np.bincount(records[members])
    hits = np.bincount(records[identified], minlength=len(trials))
    is_member = trials > 0
    if trials.max() < 2:
        return None
    hits = hits[is_member]
    trials = trials[is_member]
    order = np.lexsort((-trials, -hits / trials))
    return DetectionRates(best.row, fpr, hits[order], trials[order])


def _threshold_at(nonmembers: np.ndarray, fpr: float) -> float:
    """The score above which at most ``fpr`` of the non-members lie."""
    falling = np.sort(nonmembers)[::-1]
    return float(falling[min(int(fpr * len(falling)), len(falling) - 1)])
