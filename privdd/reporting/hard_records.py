"""Rates of the audited records that were made hard to fit."""

from __future__ import annotations

from privdd.reporting import finding_selection, wording
from privdd.reporting.run_record import RunRecord
from privdd.reporting.schema import (
    FindingRow,
    KindRates,
    Run,
)

KIND = {
    "mislabelled": "mislabelled",
    "near_duplicates": "near-duplicates with another label",
    "ordinary": "left as they were",
}


def changed_records_text(run: Run) -> str:
    """How many audited records were made hard to fit, by kind."""
    return wording.join_names(
        [f"{count} {KIND.get(kind, kind)}" for kind, count in (run.tail or {}).items()]
    )


def hard_records_note(run: Run) -> list[str]:
    """The note that some audited records were made hard to fit; none if none was."""
    if not run.tail:
        return []
    return [
        "Of the audited client's own records, this audit changed some to be hard to fit: "
        f"{changed_records_text(run)}. Rates over "
        "all records mix these with ordinary records; rates for each kind are below. The "
        "accuracy, too, is of a run with these records."
    ]


def rates_by_kind(record: RunRecord) -> list[tuple[FindingRow, list[tuple[str, KindRates]]]]:
    """For the strongest attack on each surface: (kind in words, its rates), what was made hard to
    fit first."""
    rows = [row for row in record.findings.findings if row.by_kind]
    best = finding_selection.strongest_on_each_surface(rows, record.findings.scope)
    return [(row, _named_rates(row)) for row in best]


def _named_rates(row: FindingRow) -> list[tuple[str, KindRates]]:
    return [(KIND.get(kind, kind), rates) for kind, rates in (row.by_kind or {}).items()]
