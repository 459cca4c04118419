"""The releases of a run as its noise log holds them, and rows of T0 about them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from attacks.types import Finding
from privdd.auditing.coverage import covered_diagnostics, untested_diagnostics
from privdd.auditing.dp_tests.outcomes import (
    CheckOutcome,
    p_value_limit,
)
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.federated.noise_log import NoiseLog, ReleaseLog, RoundLog
from privdd.federated.simulation import ClientTask, logged_step

LoggedRelease = tuple[RoundLog, ReleaseLog]


def release_counts(subject: GuaranteeSubject, name: str) -> dict[int, int]:
    """Round -> how often the audited client's ledger rows say that ``name`` was released."""
    calls: dict[int, int] = {}
    for row in subject.own_releases(name):
        if row.is_protected:
            calls[row.round] = calls.get(row.round, 0) + row.count
    return calls


def logged_releases(record: NoiseLog, name: str) -> list[LoggedRelease]:
    """All releases of a name with the client round that they belong to, in order."""
    return [
        (watch, r)
        for _, watch in sorted(record.rounds.items())
        for r in watch.releases
        if r.name == name
    ]


def why_not_examined(subject: GuaranteeSubject, name: str, releases: list[LoggedRelease]) -> str:
    """Why the audited client's noise was not seen in all of its rounds; "" where it was."""
    mine = [(watch, r) for watch, r in releases if watch.audited]
    silent = next((r.missing for _, r in mine if r.missing), "")
    if silent:
        return silent
    stated = release_counts(subject, name)
    seen = [watch.round for watch, _ in mine]
    gone = [t for t, count in sorted(stated.items()) if seen.count(t) != count]
    if gone:
        return (
            f"the residuals of {len(gone)} of {len(stated)} rounds are not there (first: "
            f"round {gone[0]})"
        )
    return ""


def unexamined_finding(
    subject: GuaranteeSubject, attack: str, name: str, count: int, note: str, why: str
) -> Finding:
    """A row of T0 that could look at nothing, for the reason ``why``."""
    return subject.run_finding(attack, name, count, note, untested_diagnostics(attack, why))


def examined_finding(
    subject: GuaranteeSubject,
    attack: str,
    name: str,
    count: int,
    found: CheckOutcome,
    says: tuple[str, str],
    rounds: set[int],
) -> Finding:
    """A row of T0. says: at what it looked, and what it says where it refutes nothing; rounds: that
    it looked at."""
    limit = p_value_limit(subject.confidence)
    wrong = {"refuted": True} if found.p < limit else {}
    more = {"p_value": found.p, "p_allowed": limit, **wrong, **covered_diagnostics(attack, rounds)}
    return subject.run_finding(
        attack, name, count, f"{says[0]}: {found.says if wrong else says[1]}", more
    )


def repeat_rounds(
    subject: GuaranteeSubject, record: NoiseLog, name: str
) -> Iterator[tuple[int, RoundLog]]:
    """(round, the audited client's round once more), as someone makes it who knows the seed and not
    the secret."""
    for t, snapshot in sorted(subject.snapshots.items()):
        watch = record.rounds.get((t, subject.plan.victim))
        if watch is not None and any(r.name == name for r in watch.releases):
            plan = replace(subject.plan, keys=replace(subject.plan.keys, secret=b"a guess"))
            task = ClientTask(
                plan, t, plan.victim, snapshot.broadcast, snapshot.memory, subject.shard
            )
            yield t, logged_step(task)[1]
