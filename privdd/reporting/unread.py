"""Attacks that had nothing to read: they have no rate, and the report says neither that they found nor that they failed."""

from __future__ import annotations

from collections.abc import Iterable

from privdd.reporting.schema import FindingRow, Findings

SENTENCE = "No membership attack had anything to read: what was sent is the same whoever is in."


def unread(findings: Findings) -> list[FindingRow]:
    """The attacks for which nothing that was sent depends on a record."""
    return [row for row in findings.findings if row.status == "nothing_to_read"]


def only_unread(rows: Iterable[FindingRow]) -> bool:
    """Whether membership attacks were tried, and none of them had anything to read."""
    tried = [row.status for row in rows if row.family == "membership" and row.status != "not_attacked"]
    return bool(tried) and set(tried) == {"nothing_to_read"}
