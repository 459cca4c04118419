"""What ``findings.json`` says about epsilon and about what was sent, against ``ledger.json``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from privdd.auditing.findings import both, per_client, reconstruction_rows, size_in_bytes
from privdd.privacy.accounting import check_work
from privdd.privacy.ledger import SERVER, Ledger, Release
from privdd.reporting.folder import RunRecord
from privdd.reporting.schema import Findings
from privdd.reporting.schema_privacy import EpsilonPair
from privdd.runtime.files import DamagedRun
from privdd.verifying.disagreement import Disagreement, differing

FILE = "findings.json"
UNKNOWN = {"pld": math.inf, "rdp": math.inf}  # of scores that someone else computed, without a ledger


def ledger_of(record: RunRecord) -> Ledger | None:
    """The ledger, None for scores that were brought. Raises DamagedRun for one that is damaged or gone."""
    if not record.ledger:
        if record.findings.utility is None and not record.findings.run.rounds:
            return None
        raise DamagedRun(f"{record.path / 'ledger.json'}: no such file, or an empty one")
    try:
        ledger = Ledger.from_json(record.ledger)
        check_work(ledger.totals())
        return ledger
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedRun(f"{record.path / 'ledger.json'}: {' '.join(str(error).split())[:200]}") from None


def epsilons(ledger: Ledger | None, surfaces: Sequence[str] | None = None) -> dict[str, float]:
    """Both accountants' epsilon, of the whole run or of some surfaces."""
    if ledger is None:
        return dict(UNKNOWN)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an accountant without a bound: infinite, as the run recorded it
        return both(ledger, surfaces)


def check_ledger(record: RunRecord, ledger: Ledger | None) -> Iterator[Disagreement]:
    """Every number of ``findings.json`` that follows from the ledger alone."""
    findings = record.findings
    found: dict[str, Any] = {"epsilon": epsilons(ledger)}
    if ledger is not None:
        found |= {"delta": ledger.delta, "unit": ledger.unit, "relation": ledger.relation}
    stored = findings.privacy.model_dump(include=set(found))
    yield from differing(FILE, "privacy", {**stored, "epsilon": accounted(findings.privacy.epsilon)}, found)
    if ledger is not None:
        yield from _surfaces(findings, ledger)
        yield from _people(findings, ledger)
        yield from _sizes(record)
        yield from _reconstruction(findings, ledger)


def accounted(pair: EpsilonPair) -> dict[str, float]:
    """The two accountants' numbers, without the lower bound that stands beside them."""
    return {"pld": pair.pld, "rdp": pair.rdp}


def _reconstruction(findings: Findings, ledger: Ledger) -> Iterator[Disagreement]:
    """What a claim would allow is left to the claim; files of earlier versions have none of it."""
    if findings.privacy.reconstruction is not None:
        stored = [row.model_dump(exclude={"claimed"}, exclude_none=True) for row in findings.privacy.reconstruction]
        yield from differing(FILE, "privacy.reconstruction", stored, reconstruction_rows(ledger, []))


def _surfaces(findings: Findings, ledger: Ledger) -> Iterator[Disagreement]:
    rows: dict[tuple[str, str], list[Release]] = {}
    for release in ledger.releases:
        if release.visible_to != ("analyst",):
            sender = "server" if release.client == SERVER else "client"
            rows.setdefault((release.surface, sender), []).append(release)
    stored = {(str(row.surface), row.sender): row for row in findings.surfaces}
    for key in dict.fromkeys([*stored, *rows]):
        name = f"surfaces.{key[0]}"
        if key not in stored or key not in rows:
            words = [" ".join(key) if key in one else None for one in (stored, rows)]
            yield from differing(FILE, name, *words)
            continue
        releases = rows[key]
        found = {
            "names": list(dict.fromkeys(r.name for r in releases)),
            "rounds": len({r.round for r in releases}),
            "bytes": size_in_bytes(releases),
            "epsilon": epsilons(ledger, [key[0]]),
        }
        said = {**stored[key].model_dump(include=set(found)), "epsilon": accounted(stored[key].epsilon)}
        yield from differing(FILE, name, said, found)


def _people(findings: Findings, ledger: Ledger) -> Iterator[Disagreement]:
    """The ledger numbers clients and rounds from 0; not all of them need to have sent something."""
    clients = 1 + max((r.client for r in ledger.releases), default=-1)
    rounds = 1 + max((r.round for r in ledger.releases if r.client != SERVER), default=-1)
    for key, stored, least in (("clients", findings.run.clients, clients), ("rounds", findings.run.rounds, rounds)):
        if stored < least:
            yield Disagreement(FILE, f"run.{key}", str(stored), f"at least {least}, by ledger.json")


def _sizes(record: RunRecord) -> Iterator[Disagreement]:
    """Bytes by client and the accuracy of the last round."""
    utility, clients = record.findings.utility, record.findings.run.clients
    if utility is None or not clients:
        return
    for word in ("uploaded", "downloaded"):
        counts = record.manifest.get(f"{word}_bytes")
        if isinstance(counts, list):
            try:
                found = per_client(counts, clients)
            except (AttributeError, TypeError) as error:
                raise DamagedRun(f"{record.path / 'manifest.json'}: {word}_bytes: {error}") from None
            key = f"{word}_bytes_per_client"
            yield from differing(FILE, f"utility.{key}", getattr(utility, key), found)
    if utility.accuracy_by_round:
        yield from differing(FILE, "utility.accuracy", utility.accuracy, utility.accuracy_by_round[-1])
