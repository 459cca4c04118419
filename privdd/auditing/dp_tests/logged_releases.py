"""The releases of a run as its noise log holds them, and rows of T0 about them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from attacks.types import Finding
from privdd.auditing.coverage import covered_diagnostics, untested_diagnostics
from privdd.auditing.dp_tests.outcomes import CheckOutcome, p_value_limit
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.federated.noise_log import NoiseLog, ReleaseLog, RoundLog
from privdd.federated.simulation import ClientTask, logged_step

LoggedRelease = tuple[RoundLog, ReleaseLog]


@dataclass(frozen=True)
class RunLook:
    """What a test of T0 examined.

    Attributes:
        test: its name.
        name: of the releases.
        count: of releases, or draws, examined.
    """

    test: str
    name: str
    count: int


def release_counts(subject: GuaranteeSubject, name: str) -> dict[int, int]:
    """Round -> how often the audited client's ledger rows say that ``name`` was released."""
    counts: dict[int, int] = {}
    for row in subject.own_releases(name):
        if row.is_protected:
            counts[row.round] = counts.get(row.round, 0) + row.count
    return counts


def logged_releases(record: NoiseLog, name: str) -> list[LoggedRelease]:
    """All releases of a name with the client round that they belong to, in order."""
    releases = []
    for _, round_log in sorted(record.rounds.items()):
        for release in round_log.releases:
            if release.name == name:
                releases.append((round_log, release))
    return releases


def why_not_examined(subject: GuaranteeSubject, name: str, releases: list[LoggedRelease]) -> str:
    """Why the audited client's noise was not seen in all of its rounds; "" if it was."""
    audited = [(round_log, release) for round_log, release in releases if round_log.audited]
    reason = next((release.missing for _, release in audited if release.missing), "")
    if reason:
        return reason
    stated = release_counts(subject, name)
    logged = [round_log.round for round_log, _ in audited]
    missing = [t for t, count in sorted(stated.items()) if logged.count(t) != count]
    if missing:
        return (
            f"the residuals of {len(missing)} of {len(stated)} rounds are not there (first: "
            f"round {missing[0]})"
        )
    return ""


def unexamined_finding(
    subject: GuaranteeSubject, run_look: RunLook, note: str, why: str
) -> Finding:
    """A row of T0 that could look at nothing, for the reason ``why``."""
    diagnostics = untested_diagnostics(run_look.test, why)
    return subject.run_finding(run_look.test, run_look.name, run_look.count, note, diagnostics)


def examined_finding(
    subject: GuaranteeSubject,
    look: RunLook,
    outcome: CheckOutcome,
    text: str,
    sound: str,
    rounds: set[int],
) -> Finding:
    """A row of T0.

    Args:
        subject: the run.
        look: what was examined.
        outcome: of all tests together; refutes if its p is below ``p_value_limit``.
        text: what was examined, in words.
        sound: what the row says if it refutes nothing.
        rounds: those examined.
    """
    limit = p_value_limit(subject.confidence)
    diagnostics: dict[str, Any] = {"p_value": outcome.p, "p_allowed": limit}
    conclusion = sound
    if outcome.p < limit:
        diagnostics["refuted"] = True
        conclusion = outcome.says
    diagnostics |= covered_diagnostics(look.test, rounds)
    note = f"{text}: {conclusion}"
    return subject.run_finding(look.test, look.name, look.count, note, diagnostics)


def repeat_rounds(
    subject: GuaranteeSubject, record: NoiseLog, name: str
) -> Iterator[tuple[int, RoundLog]]:
    """(round, the audited client's round once more), as someone makes it who knows the seed and not
    the secret."""
    plan = replace(subject.plan, keys=replace(subject.plan.keys, secret=b"a guess"))
    for t, snapshot in sorted(subject.snapshots.items()):
        round_log = record.rounds.get((t, plan.victim))
        if round_log is not None and any(release.name == name for release in round_log.releases):
            task = ClientTask(
                plan, t, plan.victim, snapshot.broadcast, snapshot.memory, subject.shard
            )
            yield t, logged_step(task)[1]
