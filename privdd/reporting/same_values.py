"""Same values, same verdict: a pool that sends a client's values on to everyone is refuted where they are.

``findings.json`` judges each surface by its own tests. A pool of released features holds the very values whose limit a
test broke, so its limit is broken too, and more people see it. And what works on the pool works on the values: who holds
these knows more.
"""

from __future__ import annotations

from collections.abc import Mapping

from privdd.reporting.schema import FindingRow, Findings, SurfaceRow
from privdd.reporting.schema_values import Verdict

POOLS: Mapping[str, str] = {"shared_features": "features"}  # surface -> the one whose values it holds


def source_of(row: SurfaceRow, findings: Findings) -> SurfaceRow | None:
    """The surface whose values this one holds."""
    return next((other for other in findings.surfaces if other.surface == POOLS.get(row.surface)), None)


def refuted_source(row: SurfaceRow, findings: Findings) -> SurfaceRow | None:
    """The same, where its stated limit is contradicted."""
    source = source_of(row, findings)
    return source if source is not None and source.verdict == "contradiction" else None


def verdict_of(row: SurfaceRow, findings: Findings) -> Verdict:
    """The surface's verdict, or that of the values it holds where these are refuted."""
    return "contradiction" if refuted_source(row, findings) else row.verdict


def rows_of(row: SurfaceRow, findings: Findings) -> list[FindingRow]:
    """The findings on a surface, and the attacks on a pool that holds its values; of a pool, also the tests of the noise on
    its values, and of refuted values all findings."""
    source, refuted = source_of(row, findings), refuted_source(row, findings)
    return [
        found
        for found in findings.findings
        if found.surface == row.surface
        or (source is not None and found.surface == source.surface and (refuted or found.family == "guarantee"))
        or (POOLS.get(found.surface) == row.surface and found.family != "guarantee")
    ]
