"""The certified epsilon of a run and of its surfaces: the largest finite-sample lower bound for all they let out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attacks.types import Finding
from privdd.privacy.ledger import Ledger

KEY = "certificate"  # in a finding's diagnostics: how a bound for the whole run was come by


def certified(findings: Sequence[Finding]) -> dict[str, Any]:
    """``certified`` and ``certified_by`` of the run, or nothing where no bound for the whole run was taken."""
    found = [f.measures for f in findings if KEY in f.measures.get("diagnostics", {})]
    if not found:
        return {}
    best = max(found, key=lambda measures: float(measures["epsilon_measured"]))
    return {"certified": best["epsilon_measured"], "certified_by": best["diagnostics"][KEY]}


def certified_on(victim: int, ledger: Ledger, surface: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """The same of one surface: the run's, where it was computed from all that the audited client spends, or nothing."""
    spent = {row.id for row in ledger.releases if row.client == victim and row.protected}
    return certified(findings) if spent and spent <= ledger.behind([surface]) else {}
