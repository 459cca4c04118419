"""Which parts of a run's guarantee were looked at: nothing is called consistent that no test has seen.

For every mechanism behind a surface three parts count: the noise of the run itself, its sampling where the accounting
amplifies by it, and how far one record (or client) moves the value before noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import dp_accounting as dpa

from attacks.types import Family, Finding
from privdd.privacy.ledger import Ledger, Release

PARTS = {"t0_noise": "noise", "t0_sampling": "sampling", "t1_sensitivity": "sensitivity"}


def gaps(ledger: Ledger, surface: str, findings: Sequence[Finding]) -> list[str]:
    """What no test looked at of the mechanisms behind a surface, and why: "name, part: why" each."""
    rows: dict[str, list[Release]] = {}
    for row in ledger.closure([surface]):
        if row.protected:
            rows.setdefault(row.name, []).append(row)
    return [
        f"{name}, {PARTS[attack]}: {_why(name, attack, findings)}"
        for name, made in sorted(rows.items())
        for attack in _needed(made)
        if not any(_looked(finding) for finding in _of(name, attack, findings))
    ]


def _needed(rows: Iterable[Release]) -> Iterator[str]:
    sampled = any(isinstance(row.event, dpa.PoissonSampledDpEvent) for row in rows)
    return (attack for attack in PARTS if sampled or attack != "t0_sampling")


def _of(name: str, attack: str, findings: Sequence[Finding]) -> list[Finding]:
    made = [f for f in findings if f.family == Family.GUARANTEE and f.attack == attack]
    return [f for f in made if f.measures.get("signal") == name]


def _looked(finding: Finding) -> bool:
    """Whether it measured: a test that could not be made leaves a row with its reason, and no number."""
    return "kappa" in finding.measures or "p_value" in finding.measures.get("diagnostics", {})


def _why(name: str, attack: str, findings: Sequence[Finding]) -> str:
    found = _of(name, attack, findings)
    if not found:
        return "no test applies to it"
    return str(found[0].measures.get("diagnostics", {}).get("untested") or found[0].measures.get("note", ""))
