"""Rounds whose noise was not noted, because the run was stopped and went on, are run once more.

What a record of noise and sampling holds is private and never on disk, so it is lost with the process. Noise that is
not the operating system's can be drawn again: what was sent must then have the digests that the ledger has, else nothing is taken over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from privdd.core.types import Shard
from privdd.federated.heard import Heard
from privdd.federated.noise_record import NoiseRecord
from privdd.federated.simulation import Plan, start, step
from privdd.privacy.ledger import SERVER, Ledger
from privdd.runtime.progress import stage


def note_again(
    plan: Plan, shards: Sequence[Shard], engine: Any, empty: Ledger, ledger: Ledger, record: NoiseRecord,
    heard: list[Heard] | None = None,
) -> None:  # fmt: skip
    """Fill ``record`` where a round of ``ledger`` with protected releases is missing and can be repeated.

    empty: a ledger to repeat the run with. Nothing is done for noise that cannot be drawn again, and for
    real clients. heard: is given what the audited client released in these rounds.
    """
    wanted = {(row.round, row.client) for row in ledger.releases if row.protected} - record.rounds.keys()
    if not wanted or plan.noise_source == "os" or engine.clients_remember:
        return
    again, made, said = NoiseRecord(plan.victim), start(plan, empty), list[Heard]()
    last = max(round for round, _ in wanted)
    with stage("note the noise of rounds trained before", last + 1) as bar:
        broadcast = None
        while made.round <= last:
            made, _, broadcast = step(plan, made, shards, engine, broadcast, None if heard is None else said, again)
            bar.advance(f"round {made.round - 1}")
    before, after = _digests(ledger), _digests(made.ledger)
    for at in wanted & again.rounds.keys():
        if before[at] == after.get(at):
            record.add(again.rounds[at])
            if heard is not None:
                heard.extend(one for one in said if at == (one.round, plan.victim))


def _digests(ledger: Ledger) -> dict[tuple[int, int], list[str]]:
    found: dict[tuple[int, int], list[str]] = {}
    for row in ledger.releases:
        if row.client != SERVER:
            found.setdefault((row.round, row.client), []).append(row.digest)
    return found
