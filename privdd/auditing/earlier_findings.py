"""What a finished run folder already says, when it is attacked again: new findings are added to it.

What an attack finds follows from the run, its own settings, the seed and the code alone. So a finding of an attack that
is not asked for again is read back from the folder, where these are the same and its files are those that were sealed;
else the attack runs again. Either way what was found before is there afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from attacks.types import Adversary, Family, Finding, Surface
from privdd import __version__
from privdd.auditing.attack_tasks import CANARY_TESTS
from privdd.reporting.run_record import AttackCommand, RunRecord, attack_commands, read_run_record
from privdd.reporting.schema import FindingRow
from privdd.runtime.manifest import FILES_KEY, file_sha256, run_provenance
from privdd.runtime.run_folder import RunFolder

ONE_RUN = "one_run_"  # how findings of a game of canaries are named
HEAD = {"surface", "attack", "family", "adversary"}


@dataclass(frozen=True)
class EarlierFindings:
    """by_file: findings that need not be made again, by the name of their evidence file; rest: those without such a file, of
    guarantee tests and canaries; commands: one for each command that attacked the run; replaced: bounds whose place others
    have taken, which used their share of the run's error; seconds: spent before."""

    by_file: Mapping[str, Finding] = field(default_factory=dict)
    rest: tuple[Finding, ...] = ()
    commands: tuple[AttackCommand, ...] = ()
    replaced: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)

    def of_canaries(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.rest if one.attack.startswith(ONE_RUN))

    def not_lost(self, tests: Iterable[Finding]) -> tuple[Finding, ...]:
        """Findings of guarantee tests; the earlier one where it left less untested, as of noise that nobody can draw again."""
        before = {_identity(one): one for one in self.rest}
        return tuple(min(one, before.get(_identity(one), one), key=_untested) for one in tests)


def earlier_findings(folder: RunFolder, asked: Collection[str], *, others: bool) -> EarlierFindings:
    """asked: the attacks that run now; others: whether with other replays or tests than before.

    Raises DamagedRun for a folder whose result cannot be read.
    """
    if not folder.findings_file.exists():
        return EarlierFindings()
    record = read_run_record(folder.path)
    rows = [(row, as_finding(row)) for row in record.findings.findings]
    found = attack_commands(record)
    sealed, now = _sealed(record), (__version__, run_provenance()["commit"])
    last = {name: (look.version, look.commit) for look in found for name in look.attacks}
    kept = {
        row.figure: replace(finding, measures={k: v for k, v in finding.measures.items() if k != "epsilon_stated"})
        for row, finding in rows
        if row.figure and row.attack not in asked and last.get(row.attack) == now and row.figure in sealed
    }
    rest = tuple(finding for row, finding in rows if not row.figure)
    shared = record.findings.privacy.multiplicity
    before = 0 if shared is None else shared.replaced or 0
    if others and shared is not None:
        membership = [row for row, _ in rows if row.family == Family.MEMBERSHIP]
        untouched = sum(row.attack not in asked for row in membership)
        canaries = CANARY_TESTS * any(row.attack.startswith(ONE_RUN) for row, _ in rows)
        before = shared.tests - untouched - canaries  # all the rest is looked for anew
    return EarlierFindings(kept, rest, found, before, record.findings.run.seconds.model_dump())


def _sealed(record: RunRecord) -> frozenset[str]:
    """The evidence files that are as they were sealed; none where the findings are not."""
    listed = record.manifest.get(FILES_KEY)
    listed = listed if isinstance(listed, dict) else {}

    def same(name: str) -> bool:
        return (record.path / name).is_file() and file_sha256(record.path / name) == listed[name]

    if "findings.json" not in listed or not same("findings.json"):
        return frozenset()
    found = [name for name in listed if name.startswith("evidence/") and same(name)]
    return frozenset(name.removeprefix("evidence/") for name in found)


def as_finding(row: FindingRow) -> Finding:
    """A row as the value that verdicts are made from."""
    measures: dict[str, Any] = row.model_dump(exclude_none=True, exclude=HEAD)
    return Finding(Surface(row.surface), row.attack, Family(row.family), Adversary(row.adversary), measures)


def _untested(finding: Finding) -> int:
    """How many parts a test had to leave out."""
    return len(finding.measures.get("diagnostics", {}).get("untested") or ())


def _identity(finding: Finding) -> tuple[str, str, str]:
    return finding.surface, finding.attack, str(finding.measures.get("signal", ""))
