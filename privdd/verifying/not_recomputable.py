"""The numbers of a run that its folder alone cannot give again: a verifier takes them from ``findings.json``."""

from __future__ import annotations

from collections.abc import Iterator

from attacks.types import Family
from privdd.privacy.ledger import Ledger
from privdd.reporting.folder import RunRecord
from privdd.runtime.seal import PAGE, library
from privdd.verifying.drawn_page import other_library
from privdd.verifying.score_numbers import evidence_of, scored_rows
from privdd.verifying.verdict_numbers import stated_epsilon

HEAD = {"surface", "attack", "family", "adversary", "figure", "note", "signal", "seconds", "epsilon_stated"}


def taken(record: RunRecord, ledger: Ledger | None) -> Iterator[str]:
    """One line for each: the key, and what it would take to compute it again."""
    findings = record.findings
    if findings.utility is not None:
        yield "utility.accuracy: needs the data and the model"
    if (drawn := other_library(record)) and (record.path / PAGE).is_file():
        yield f"{PAGE}: drawings: made by {drawn!r}, here is {library()}"
    for claim in findings.privacy.claims:
        yield f"privacy.claims ({claim.source}): the theorem needs the run's settings"
    scored = {at for at, _ in scored_rows(record)}
    for at, row in enumerate(findings.findings):
        name = f"findings.{at} ({row.surface} {row.attack})"
        if row.family != Family.MEMBERSHIP:
            measured = sorted(row.model_fields_set - HEAD - {"diagnostics"})
            if measured:
                yield f"{name}: {', '.join(measured)}: needs the run's records"
        elif at in scored and evidence_of(record, row) is None:
            yield f"{name}: its evidence holds no scores"
        elif row.epsilon_stated is not None and row.epsilon_stated != stated_epsilon(record, ledger, str(row.surface)):
            yield f"{name}: epsilon_stated is the claim's, not the ledger's"
