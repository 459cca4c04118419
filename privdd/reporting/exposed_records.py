"""The most exposed records on the page: how often each is found, with its picture where the run keeps it.

The pictures are records of the audited client, not rebuilt ones; a run with ``audit.worst_pictures=false`` keeps none.
"""

from __future__ import annotations

from dataclasses import dataclass

from privdd.reporting import wording
from privdd.reporting.finding_selection import strongest_on_each_surface
from privdd.reporting.run_record import RunRecord
from privdd.reporting.schema import FindingRow, KindRates, Run, WorstRecord, WorstRecords
from privdd.reporting.style import png_uri

KIND = {
    "mislabelled": "mislabelled",
    "near_duplicates": "near-duplicates with another label",
    "ordinary": "left as they were",
}


@dataclass(frozen=True)
class ExposedRecord:
    """One record: its picture as a data URI or "", its label or "", and how often it is found, in words."""

    picture: str
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
    """One for each surface whose strongest membership attack names its most exposed records, by its lower end."""
    rows = [row for row in record.findings.findings if row.worst_records and row.worst_records.records]
    return [
        _exposed_on_surface(record, row, row.worst_records)
        for row in strongest_on_each_surface(rows)
        if row.worst_records
    ]


def _exposed_on_surface(record: RunRecord, row: FindingRow, worst: WorstRecords) -> ExposedSurface:
    held = record.evidence(row)
    drawn = held.exposed is not None and len(held.exposed) == len(worst.records)
    made = []
    for place, one in enumerate(worst.records):
        picture = png_uri(held.exposed[place]) if drawn and held.exposed is not None else ""
        label = f", class {int(held.exposed_label[place])}" if drawn and held.exposed_label is not None else ""
        made.append((one, _exposed_record(one, picture, label)))
    order = sorted(made, key=lambda pair: (-pair[0].ci[0], pair[0].record))
    together = f"{wording.format_share(worst.tpr)} ({wording.format_share(worst.ci[0])} to {wording.format_share(worst.ci[1])})"
    return ExposedSurface(row, tuple(shown for _, shown in order), drawn, together)


def _exposed_record(one: WorstRecord, picture: str, label: str) -> ExposedRecord:
    between = f"{wording.format_share(one.ci[0])} to {wording.format_share(one.ci[1])}"
    return ExposedRecord(picture, f"record {one.record}{label}", f"{one.hits} of {one.trials}", between)


def hard_records_note(run: Run) -> str:
    """The note that some audited records were made hard to fit; "" if none was."""
    if not run.tail:
        return ""
    listed = wording.join_names([f"{count} {KIND.get(kind, kind)}" for kind, count in run.tail.items()])
    return (
        f"Of the audited client's own records, this audit changed some to be hard to fit: {listed}. Rates over all records "
        "mix these with ordinary records; rates for each kind are below. The accuracy, too, is of a run with these records."
    )


def rates_by_kind(record: RunRecord) -> list[tuple[FindingRow, list[tuple[str, KindRates]]]]:
    """For the strongest attack on each surface: (kind in words, its rates), what was made hard to fit first."""
    best = strongest_on_each_surface(row for row in record.findings.findings if row.by_kind)
    return [(row, [(KIND.get(k, k), v) for k, v in (row.by_kind or {}).items()]) for row in best]
