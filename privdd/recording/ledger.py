"""The ledger of a recording: one row for everything that left a client, with what its component claims, if one was known.

A claim is not a proof: its row says whose it is, and ``python -m privdd.check`` is there to try it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dp_accounting as dpa

from attacks.types import Surface
from privdd.core.validation import is_number
from privdd.privacy.ledger import SERVER, Ledger
from privdd.privacy.mechanism import LedgerRow
from privdd.recording.recording import FINAL, REPLY, RecordedMessage, Recording
from privdd.runtime.files import DamagedRun

DEFAULT_DELTA = 1e-5
UNPROTECTED_REASON = "no mechanism was recognised"
BESIDE_REASON = "sent beside what the component protects"


def recording_ledger(recording: Recording, delta: float | None = None) -> Ledger:
    """Unit client, relation zero_out, for that is what the recognised components speak of; delta: theirs, or 1e-5."""
    claims = [claim for message in recording.messages for claim in message.heading.claims]
    stated = [value for claim in claims for name, value in _claimed_numbers(claim) if name == "delta"]
    ledger = Ledger("zero_out", "client", delta or (min(stated) if stated else DEFAULT_DELTA))
    for message in recording.messages:
        ledger.append(list(_message_rows(message)))
    return ledger


def _message_rows(message: RecordedMessage) -> Iterator[LedgerRow]:
    heading = message.heading
    claim = next((c for c in heading.claims if c.get("covers") == heading.part), None)
    if heading.part == REPLY:
        if heading.kind == "train" and message.shapes:
            yield _build_row(message, "update", Surface.UPDATE, heading.round, heading.node, claim)
        if heading.metrics:
            yield _build_row(
                message, f"metrics of {heading.kind}", Surface.STATISTICS, heading.round, heading.node, None
            )
    elif heading.part == FINAL and claim is not None:
        yield _build_row(message, "global_model", Surface.GLOBAL_MODEL, 0, SERVER, claim)


def _build_row(
    message: RecordedMessage, name: str, surface: Surface, round: int, client: int, claim: Mapping[str, Any] | None
) -> LedgerRow:
    """The final model's row counts for the aggregates of all rounds: each of them was sent to the clients."""
    beside = surface == Surface.STATISTICS
    told: dict[str, Any] = {
        "event": dpa.NonPrivateDpEvent(),
        "nonprivate_reason": BESIDE_REASON if message.heading.claims and beside else UNPROTECTED_REASON,
    }
    if claim is not None:
        told = {
            "event": dpa.GaussianDpEvent(_claimed_multiplier(message, claim)),
            "flags": {"unit:client": True, "relation:zero_out": True},
            "why": f"claimed by {_describe_claim(claim)}, not checked here",
            "count": 1 if client != SERVER else max(message.heading.round, 1),
        }
    seen = ("server",) if client != SERVER else ("clients", "server")
    shapes = {} if beside else dict(message.shapes)
    return LedgerRow(round, client, name, str(surface), seen, shapes, message.digest, **told)


def _claimed_multiplier(message: RecordedMessage, claim: Mapping[str, Any]) -> float:
    value = claim.get("noise_multiplier")
    if not is_number(value) or not 0 < value < 1e100:  # type: ignore[operator]
        raise DamagedRun(f"{message.path}: a claim with noise_multiplier={value!r}")
    return float(value)  # type: ignore[arg-type]


def _describe_claim(claim: Mapping[str, Any]) -> str:
    settings = ", ".join(f"{name}={value:g}" for name, value in _claimed_numbers(claim))
    return f"{str(claim.get('component'))[:60]}({settings})"


def _claimed_numbers(claim: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings that a claim tells as numbers, but for those that no float holds."""
    return ((name, v) for name, v in claim.get("settings", {}).items() if is_number(v) and abs(v) < 1e300)
