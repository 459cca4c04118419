"""The ledger of a recording: one row for everything that left a client, with what its component claims, if one was known.

A claim is not a proof: its row says whose it is, and ``python -m privdd.check`` is there to try it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dp_accounting as dpa

from attacks.types import Surface
from privdd.core.checks import is_number
from privdd.privacy.ledger import SERVER, Ledger
from privdd.privacy.mechanism import Row
from privdd.runtime.files import DamagedRun
from privdd.tapping.message_file import FINAL, REPLY
from privdd.tapping.recording import Recorded, Recording

DELTA = 1e-5
UNPROTECTED = "no mechanism was recognised"
BESIDE = "sent beside what the component protects"


def ledger_of(recording: Recording, delta: float | None = None) -> Ledger:
    """Unit client, relation zero_out, for that is what the recognised components speak of; delta: theirs, or 1e-5."""
    claims = [claim for message in recording.messages for claim in message.heading.claims]
    stated = [value for claim in claims for name, value in _numbers(claim) if name == "delta"]
    ledger = Ledger("zero_out", "client", delta or (min(stated) if stated else DELTA))
    for message in recording.messages:
        ledger.append(list(_rows(message)))
    return ledger


def _rows(message: Recorded) -> Iterator[Row]:
    heading = message.heading
    claim = next((c for c in heading.claims if c.get("covers") == heading.part), None)
    if heading.part == REPLY:
        if heading.kind == "train" and message.shapes:
            yield _row(message, "update", Surface.UPDATE, heading.round, heading.node, claim)
        if heading.metrics:
            yield _row(message, f"metrics of {heading.kind}", Surface.STATISTICS, heading.round, heading.node, None)
    elif heading.part == FINAL and claim is not None:
        yield _row(message, "global_model", Surface.GLOBAL_MODEL, 0, SERVER, claim)


def _row(
    message: Recorded, name: str, surface: Surface, round: int, client: int, claim: Mapping[str, Any] | None
) -> Row:
    """The final model's row counts for the aggregates of all rounds: each of them was sent to the clients."""
    beside = surface == Surface.STATISTICS
    told: dict[str, Any] = {
        "event": dpa.NonPrivateDpEvent(),
        "nonprivate_reason": BESIDE if message.heading.claims and beside else UNPROTECTED,
    }
    if claim is not None:
        told = {
            "event": dpa.GaussianDpEvent(_multiplier(message, claim)),
            "flags": {"unit:client": True, "relation:zero_out": True},
            "why": f"claimed by {_said(claim)}, not checked here",
            "count": 1 if client != SERVER else max(message.heading.round, 1),
        }
    seen = ("server",) if client != SERVER else ("clients", "server")
    shapes = {} if beside else dict(message.shapes)
    return Row(round, client, name, str(surface), seen, shapes, message.digest, **told)


def _multiplier(message: Recorded, claim: Mapping[str, Any]) -> float:
    value = claim.get("noise_multiplier")
    if not is_number(value) or not 0 < value < 1e100:  # type: ignore[operator]
        raise DamagedRun(f"{message.path}: a claim with noise_multiplier={value!r}")
    return float(value)  # type: ignore[arg-type]


def _said(claim: Mapping[str, Any]) -> str:
    settings = ", ".join(f"{name}={value:g}" for name, value in _numbers(claim))
    return f"{str(claim.get('component'))[:60]}({settings})"


def _numbers(claim: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings that a claim tells as numbers, but for those that no float holds."""
    return ((name, v) for name, v in claim.get("settings", {}).items() if is_number(v) and abs(v) < 1e300)
