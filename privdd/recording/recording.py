"""A recording of a federation: its messages, what a recorder writes beside the training, and how an audit reads it.

A recording is a folder: ``tap.json``, ``round-001/broadcast.safetensors``, ``round-001/client-7/update.safetensors`` and so on
(``message_path``), ``failed-*.json`` for what could not be kept, ``pending-*`` while a client works. A recording with either
of the last two is not complete, and no audit takes it. Nothing that writes may disturb the training beside which it runs;
who reads wants it complete, of one run, every message as it was written, or refuses it in one line.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from attacks.types import Surface
from privdd.core.types import State
from privdd.core.validation import is_number
from privdd.federated.channel import digest_tensors
from privdd.privacy.ledger import SERVER, Ledger
from privdd.privacy.mechanism import LedgerRow
from privdd.recording.recording_folder import CLIENTS_FOLDER, HEAD_FILE
from privdd.runtime.files import (
    IGNORE,
    DamagedRun,
    check_plain_folder,
    ignore_all,
    list_plain_files,
    read_json,
    write_bytes,
    write_json,
)
from privdd.runtime.run_folder import LARGEST_HEADER, LARGEST_TENSORS, read_tensors_and_header

BROADCAST, REPLY, FINAL = "broadcast", "reply", "final"
SERVER_NODE = -1
DIFFERENCE_KEY = "privdd/difference"  # among the metrics of a reply that holds changes of parameters, not parameters
HEADING_KEY = "privdd"  # the only key of the header: with several, safetensors writes other bytes each time


@dataclass(frozen=True)
class MessageHeading:
    """What is known of a message beside its arrays.

    part: broadcast (server to client), reply (client to server) or final (the latest aggregate); kind: train, evaluate
    or a name of the app's own; node: the client's number, SERVER where the message went to all of them alike; run: the
    library's number of the run; partition: what the client's own machine calls it, None = not told; metrics: numbers
    that travelled beside the arrays; claims: what components that were recognised say of their own privacy.
    """

    round: int
    node: int
    kind: str
    part: str
    run: int = 0
    partition: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    claims: tuple[Mapping[str, Any], ...] = ()


def message_path(heading: MessageHeading) -> Path:
    """The path of the message in its recording: round-001/client-7/update.safetensors and the like."""
    kind = "" if heading.kind == "train" else re.sub(r"[^\w.-]", "_", heading.kind)
    if heading.part == FINAL:
        return Path("final.safetensors")
    stem = "-".join(filter(None, [BROADCAST, kind])) if heading.part == BROADCAST else kind or "update"
    here = Path(f"round-{heading.round:03d}")
    if heading.node == SERVER_NODE:
        return here / f"{stem}.safetensors"
    return here / f"client-{heading.node}" / f"{stem}.safetensors"


def write_message(path: Path, heading: MessageHeading, arrays: Mapping[str, np.ndarray]) -> str:
    """Keep a message -> the digest of its arrays. Raises OSError, and TypeError for arrays without a torch type.

    Not forced onto the disk, which would cost most of a tap's time: a file that a power failure cuts short is not what
    its header says, and is refused when it is read.
    """
    tensors: dict[str, Tensor] = {
        name: torch.from_numpy(np.ascontiguousarray(a)).reshape(a.shape) for name, a in arrays.items()
    }
    mark = digest_tensors(tensors)
    told = {**asdict(heading), "order": list(tensors), "digest": mark}
    data = safetensors.torch.save(tensors, {HEADING_KEY: json.dumps(told, allow_nan=False)})
    write_bytes(path, data, durable=False)
    return mark


def read_heading(path: Path) -> tuple[MessageHeading, str, dict[str, tuple[int, ...]]]:
    """(what is known of a message, the digest of its arrays, their shapes), without the arrays. Raises DamagedRun."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > LARGEST_HEADER:
                raise ValueError(f"a header of more than {LARGEST_HEADER >> 20} MiB")
            head = json.loads(file.read(size))
        told = head.pop("__metadata__")
        shapes = {str(name): tuple(int(n) for n in entry["shape"]) for name, entry in head.items()}
        return (*_parse_heading(json.loads(told[HEADING_KEY])), shapes)
    except FileNotFoundError:
        raise DamagedRun(f"{path}: no such file") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedRun(f"{path}: no recorded message ({type(error).__name__}: {str(error)[:100]})") from None


def read_message(path: Path, limit: int = LARGEST_TENSORS) -> State:
    """The arrays in the order in which they were sent. Raises DamagedRun where they are not those that were recorded."""
    heading, mark, _ = read_heading(path)
    tensors, told = read_tensors_and_header(path, limit)
    try:
        found = {name: tensors[name] for name in json.loads(told[HEADING_KEY])["order"]}
    except (KeyError, TypeError) as error:
        raise DamagedRun(f"{path}: not readable as safetensors with what it says of itself ({error})") from None
    if len(found) != len(tensors) or digest_tensors(found) != mark:
        raise DamagedRun(f"{path}: its arrays of round {heading.round} are not those that were recorded")
    return found


def _parse_heading(told: Any) -> tuple[MessageHeading, str]:
    if not isinstance(told, dict) or set(told) != {*(f.name for f in fields(MessageHeading)), "order", "digest"}:
        raise ValueError("the heading has other parts than a recording of this version")
    whole = {name: told[name] for name in ("round", "node", "run")}
    if any(type(value) is not int for value in whole.values()) or whole["round"] < 0 or whole["node"] < SERVER_NODE:
        raise ValueError(f"round, node and run {whole}: whole numbers are needed")
    if told["part"] not in (BROADCAST, REPLY, FINAL) or not isinstance(told["kind"], str):
        raise ValueError(f"part={told['part']!r}, kind={told['kind']!r}")
    if (
        not isinstance(told["metrics"], dict)
        or not isinstance(told["claims"], list)
        or not isinstance(told["digest"], str)
    ):
        raise ValueError("metrics, claims and digest: an object, a list and text are needed")
    if told["partition"] is not None and type(told["partition"]) is not int:
        raise ValueError(f"partition={told['partition']!r}")
    if not all(isinstance(claim, dict) and isinstance(claim.get("settings", {}), dict) for claim in told["claims"]):
        raise ValueError("claims: objects with settings are needed")
    rest = {name: told[name] for name in ("kind", "part", "partition", "metrics")}
    return MessageHeading(**whole, **rest, claims=tuple(told["claims"])), told["digest"]


LOG = logging.getLogger("privdd")
RECORDING_SCHEMA = 1
RECORDING, COMPLETE, STOPPED = "recording", "complete", "stopped"


class MessageRecorder:
    """One recording. by: server or client; more: what else its head tells (library, strategy, ...)."""

    def __init__(self, folder: Path, by: str, more: Mapping[str, Any]) -> None:
        self.folder = folder
        self.head = {"schema": RECORDING_SCHEMA, "by": by, **more}
        self.kept: dict[str, str] = {}
        self.failures = 0

    def run_safely(self, what: str, work: Callable[[], Any]) -> Any:
        """The result of ``work``; None where it fails, which is logged and marked and never raised."""
        try:
            return work()
        except Exception as error:
            self.failures += 1
            LOG.exception(
                "PRIVDD TAP: %s was NOT recorded. Training goes on; the audit will refuse the recording %s",
                what,
                self.folder,
            )
            self._mark_failure(what, error)
            return None

    def _mark_failure(self, what: str, error: Exception) -> None:
        mark = {"what": what, "error": f"{type(error).__name__}: {error}"[:300]}
        try:
            write_json(self.folder / f"failed-{uuid.uuid4().hex}.json", mark)
        except OSError:
            LOG.exception("PRIVDD TAP: %s could not even be marked as missing in %s", what, self.folder)

    def write_head(self) -> None:
        """Write the head. A recording by a server is not whole before ``close_recording``."""
        ignore_all(self.folder)
        write_json(
            self.folder / HEAD_FILE, {**self.head, **({"state": RECORDING} if self.head["by"] == "server" else {})}
        )

    def record_message(self, heading: MessageHeading, arrays: Mapping[str, np.ndarray]) -> None:
        """Write one message; a second one of the same place stands beside the first, except for the final model."""
        path = (
            free_path(self.folder / message_path(heading))
            if heading.part != "final"
            else self.folder / message_path(heading)
        )
        self.kept[path.relative_to(self.folder).as_posix()] = write_message(path, heading, arrays)

    def close_recording(self, state: str) -> None:
        """Close the recording: complete with the digests of all messages, unless something failed."""
        state = STOPPED if self.failures else state
        write_json(self.folder / HEAD_FILE, {**self.head, "state": state, "messages": self.kept})


def free_path(path: Path) -> Path:
    """``path``, or the first of path-2, path-3, ... that is not there yet."""
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return found


class PendingMark:
    """A mark that lies in the folder while a message is worked on: a machine that dies then leaves it behind."""

    def __init__(self, folder: Path, round: int, kind: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"pending-{round}-{uuid.uuid4().hex[:8]}"
        self.path.touch()

    def remove_mark(self) -> None:
        with suppress(OSError):  # a mark that stays has the audit refuse the recording, and the training goes on
            self.path.unlink()


AUDIT_FILES = (
    "ledger.json",
    "findings.json",
    "manifest.json",
    "report.html",
    "card.json",
    "evidence/",
    "figures/",
    ".lock",
    IGNORE,
)


@dataclass(frozen=True)
class RecordedMessage:
    """One message of a recording: where it lies, what it is, the digest of its arrays and their shapes."""

    path: Path
    heading: MessageHeading
    digest: str
    shapes: Mapping[str, tuple[int, ...]]

    def read_arrays(self) -> State:
        """Raises DamagedRun where the file is not what was recorded."""
        return read_message(self.path)


@dataclass(frozen=True)
class Recording:
    """head: of tap.json; messages: by round, broadcasts before replies."""

    folder: Path
    head: Mapping[str, Any]
    messages: tuple[RecordedMessage, ...]

    @property
    def is_by_server(self) -> bool:
        return self.head["by"] == "server"

    @cached_property
    def client_nodes(self) -> tuple[int, ...]:
        """The clients that replied."""
        return tuple(sorted({m.heading.node for m in self.messages if m.heading.part == REPLY}))

    def replies_of(self, node: int, kind: str = "train") -> list[RecordedMessage]:
        return [m for m in self.messages if (m.heading.part, m.heading.node, m.heading.kind) == (REPLY, node, kind)]

    def broadcast_before(self, reply: RecordedMessage) -> RecordedMessage:
        """The server's message to which the client replied. Raises DamagedRun if it is missing."""
        asked = reply.heading
        for node in (asked.node, SERVER_NODE):
            for found in self.messages:
                heading = found.heading
                if (heading.part, heading.round, heading.kind, heading.node) == (
                    BROADCAST,
                    asked.round,
                    asked.kind,
                    node,
                ):
                    return found
        raise DamagedRun(f"{self.folder}: what client {asked.node} was sent in round {asked.round} was not recorded")

    def replied_parameters(self, reply: RecordedMessage) -> State:
        """The parameters that a reply stands for: what it holds, or what it changes added to what was sent."""
        arrays = reply.read_arrays()
        if DIFFERENCE_KEY not in reply.heading.metrics:
            return arrays
        before = self.broadcast_before(reply).read_arrays()
        return {
            name: before[name] + arrays[name].to(before[name]) if name in arrays else before[name] for name in before
        }

    def final_message(self) -> RecordedMessage | None:
        """The last aggregate; of a client's recording None."""
        return next((m for m in self.messages if m.heading.part == FINAL), None)


def read_recording(folder: Path) -> Recording:
    """One recorder's folder, checked as a whole. Raises DamagedRun, one line, for one that is not complete."""
    head = read_json(folder / HEAD_FILE)
    if (
        not isinstance(head, dict)
        or head.get("schema") != RECORDING_SCHEMA
        or head.get("by") not in ("server", "client")
    ):
        raise DamagedRun(f"{folder / HEAD_FILE}: no recording of schema {RECORDING_SCHEMA}")
    names = [name for name in sorted(list_plain_files(folder)) if _is_recording_file(name)]
    _check_complete(folder, head, names)
    found = tuple(sorted(_read_messages(folder, head, names), key=_message_order))
    runs = {m.heading.run for m in found if m.heading.part != FINAL}
    if len(runs) > 1:
        raise DamagedRun(
            f"{folder}: messages of several runs ({', '.join(map(str, sorted(runs)))}); audit one at a time"
        )
    if not any(m.heading.part == REPLY for m in found):
        raise DamagedRun(f"{folder}: no reply of a client was recorded")
    return Recording(folder, head, found)


def read_recordings(folder: Path) -> list[Recording]:
    """The server's recording first, where there is one, then each client's; what both saw has to agree.

    Raises DamagedRun, one line, for a folder with a link in it, and where there is none.
    """
    check_plain_folder(folder)
    folders = [folder] if (folder / HEAD_FILE).is_file() else []
    folders += sorted(path.parent for path in folder.glob(f"{CLIENTS_FOLDER}/*/{HEAD_FILE}"))
    if not folders:
        raise DamagedRun(f"{folder}: no recording (no {HEAD_FILE})")
    found = [read_recording(one) for one in folders]
    if found[0].is_by_server:
        for other in found[1:]:
            _check_agreement(found[0], other)
    return found


def _is_recording_file(name: str) -> bool:
    return name != HEAD_FILE and not name.startswith((f"{CLIENTS_FOLDER}/", *AUDIT_FILES))


def _check_complete(folder: Path, head: Mapping[str, Any], names: Sequence[str]) -> None:
    failed = [name for name in names if name.startswith("failed-")]
    if failed:
        first = read_json(folder / failed[0])
        what = str(first.get("what", "?"))[:100] if isinstance(first, dict) else "?"
        raise DamagedRun(f"{folder}: incomplete recording: {len(failed)} parts are missing ({what})")
    if any(name.startswith("pending-") for name in names):
        raise DamagedRun(f"{folder}: incomplete recording: a client's round began and its end was not recorded")
    if head["by"] == "server" and head.get("state") != COMPLETE:
        raise DamagedRun(
            f"{folder}: incomplete recording: the strategy's start() did not return (state {head.get('state')!r})"
        )


def _read_messages(folder: Path, head: Mapping[str, Any], names: Sequence[str]) -> Iterator[RecordedMessage]:
    listed = head.get("messages") if head["by"] == "server" else None
    if listed is not None and (not isinstance(listed, dict) or set(listed) != {*names}):
        odd = sorted(set(names) ^ {*listed})[:3] if isinstance(listed, dict) else []
        raise DamagedRun(f"{folder}: its files are not those that {HEAD_FILE} lists ({', '.join(map(repr, odd))})")
    for name in names:
        heading, mark, shapes = read_heading(folder / name)
        if listed is not None and listed[name] != mark:
            raise DamagedRun(f"{folder / name}: not the message that {HEAD_FILE} lists")
        yield RecordedMessage(folder / name, heading, mark, shapes)


def _message_order(message: RecordedMessage) -> tuple[int, int, str, int, str]:
    heading = message.heading
    part = (BROADCAST, REPLY, FINAL).index(heading.part)
    return heading.round, part, heading.kind, heading.node, message.path.name


def _check_agreement(server: Recording, client: Recording) -> None:
    """Check that the client's record of its message equals the server's record of it."""
    for sent in client.messages:
        if sent.heading.part != REPLY:
            continue
        got = [
            m.digest
            for m in server.replies_of(sent.heading.node, sent.heading.kind)
            if m.heading.round == sent.heading.round
        ]
        if got and sent.digest not in got:
            raise DamagedRun(
                f"{client.folder}: client {sent.heading.node} recorded another reply to {sent.heading.kind} of round "
                f"{sent.heading.round} than the server"
            )


# A claim is not a proof: its row says whose it is, and ``python -m privdd.check`` is there to try it.

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
