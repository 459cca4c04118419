"""A recording of a federation: its messages, what a recorder writes beside the training, and how an
audit reads it.

A recording is a folder: ``tap.json``, ``round-001/broadcast.safetensors``,
``round-001/client-7/update.safetensors`` and so on (``message_path``), ``failed-*.json`` for
what could not be kept, ``pending-*`` while a client works. A recording with either
of the last two is not complete, and no audit takes it. Nothing that writes may disturb the training
beside which it runs; who reads wants it complete, of one run, every message as it was written, or
refuses it in one line."""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import dp_accounting as dpa
import numpy as np
import safetensors.torch
import torch
from pydantic import Field, TypeAdapter

from attacks.types import Surface
from privdd.core.types import State
from privdd.core.validation import is_number
from privdd.federated.channel import digest_tensors
from privdd.privacy.ledger import SERVER, Ledger
from privdd.privacy.mechanism import LedgerRow
from privdd.recording import CLIENTS_FOLDER, HEAD_FILE
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

BROADCAST: Final = "broadcast"
REPLY: Final = "reply"
FINAL: Final = "final"
SERVER_NODE = -1
# among the metrics of a reply that holds changes of parameters, not parameters
DIFFERENCE_KEY = "privdd/difference"
# the only key of the header: with several, safetensors writes other bytes each time
HEADING_KEY = "privdd"
LOG = logging.getLogger("privdd")
RECORDING_SCHEMA = 1
RECORDING = "recording"
COMPLETE = "complete"
STOPPED = "stopped"
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
DEFAULT_DELTA = 1e-5
UNPROTECTED_REASON = "no mechanism was recognised"
BESIDE_REASON = "sent without the component's protection"


@dataclass(frozen=True)
class MessageHeading:
    """What is known of a message beside its arrays.

    part: broadcast (server to client), reply (client to server) or final (the latest aggregate);
    kind: train, evaluate or a name of the app's own; node: the client's number, SERVER where the
    message went to all of them alike; run: the library's number of the run; partition: what the
    client's own machine calls it, None = not told; metrics: numbers that travelled beside the
    arrays; claims: what components that were recognised say of their own privacy."""

    round: Annotated[int, Field(ge=0)]
    node: Annotated[int, Field(ge=SERVER_NODE)]
    kind: str
    part: Literal["broadcast", "reply", "final"]
    run: int = 0
    partition: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    claims: tuple[Mapping[str, Any], ...] = ()


def message_path(heading: MessageHeading) -> Path:
    """The path of the message in its recording: round-001/client-7/update.safetensors and the
    like."""
    if heading.kind == "train":
        kind = ""
    else:
        kind = re.sub(r"[^\w.-]", "_", heading.kind)
    if heading.part == FINAL:
        return Path("final.safetensors")
    if heading.part == BROADCAST:
        stem = "-".join(filter(None, [BROADCAST, kind]))
    else:
        stem = kind or "update"
    here = Path(f"round-{heading.round:03d}")
    if heading.node == SERVER_NODE:
        return here / f"{stem}.safetensors"
    return here / f"client-{heading.node}" / f"{stem}.safetensors"


def write_message(path: Path, heading: MessageHeading, arrays: Mapping[str, np.ndarray]) -> str:
    """Keep a message -> the digest of its arrays. Raises OSError, and TypeError for arrays without
    a torch type. Not forced onto the disk, which would cost most of a tap's time: a file that is
    cut short is refused when it is read."""
    tensors_by_name = {
        name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()
    }
    tensors = {name: torch.from_numpy(array) for name, array in tensors_by_name.items()}
    mark = digest_tensors(tensors)
    metadata = {**asdict(heading), "order": list(tensors), "digest": mark}
    data = safetensors.torch.save(tensors, {HEADING_KEY: json.dumps(metadata, allow_nan=False)})
    write_bytes(path, data, durable=False)
    return mark


def read_heading(path: Path) -> tuple[MessageHeading, str, dict[str, tuple[int, ...]]]:
    """(what is known of a message, the digest of its arrays, their shapes), without the arrays.
    Raises DamagedRun."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > LARGEST_HEADER:
                raise ValueError(f"a header of more than {LARGEST_HEADER >> 20} MiB")
            head = json.loads(file.read(size))
        metadata = head.pop("__metadata__")
        shapes = {str(name): tuple(int(n) for n in entry["shape"]) for name, entry in head.items()}
        return (*_parse_heading(json.loads(metadata[HEADING_KEY])), shapes)
    except FileNotFoundError:
        raise DamagedRun(f"{path}: no such file") from None
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        message = " ".join(str(error).split())[:100]
        raise DamagedRun(
            f"{path}: no recorded message ({type(error).__name__}: {message})"
        ) from None


def read_message(path: Path, limit: int = LARGEST_TENSORS) -> State:
    """The arrays in the order in which they were sent. Raises DamagedRun where they are not those
    that were recorded."""
    heading, mark, _ = read_heading(path)
    tensors, metadata = read_tensors_and_header(path, limit)
    try:
        ordered = {name: tensors[name] for name in json.loads(metadata[HEADING_KEY])["order"]}
    except (KeyError, TypeError) as error:
        raise DamagedRun(
            f"{path}: not readable as safetensors with its metadata ({error})"
        ) from None
    if len(ordered) != len(tensors) or digest_tensors(ordered) != mark:
        raise DamagedRun(
            f"{path}: its arrays of round {heading.round} are not those that were recorded"
        )
    return ordered


@cache
def _heading_reader() -> TypeAdapter[MessageHeading]:
    return TypeAdapter(MessageHeading)


def _parse_heading(told: Any) -> tuple[MessageHeading, str]:
    names = [field.name for field in fields(MessageHeading)]
    if not isinstance(told, dict) or set(told) != {*names, "order", "digest"}:
        raise ValueError("the heading has other parts than a recording of this version")
    fields_text = json.dumps({name: told[name] for name in names})
    heading = _heading_reader().validate_json(fields_text, strict=True)
    settings = [claim.get("settings", {}) for claim in heading.claims]
    if not isinstance(told["digest"], str) or not all(
        isinstance(field, dict) for field in settings
    ):
        raise ValueError("digest: text, and claims: objects with settings are needed")
    return heading, told["digest"]


class MessageRecorder:
    """One recording. by: server or client; more: what else its head tells (library, strategy,
    ...)."""

    def __init__(self, folder: Path, by: str, more: Mapping[str, Any]) -> None:
        self.folder = folder
        self.head = {"schema": RECORDING_SCHEMA, "by": by, **more}
        self.kept: dict[str, str] = {}
        self.failures = 0

    def run_safely(self, what: str, work: Callable[[], Any]) -> Any:
        """The result of ``work``; None where it fails, which is logged and marked and never
        raised."""
        try:
            return work()
        except Exception as error:
            self.failures += 1
            LOG.exception(
                "PRIVDD TAP: %s was NOT recorded. Training goes on; the audit will "
                "refuse the recording %s",
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
            LOG.exception(
                "PRIVDD TAP: %s could not even be marked as missing in %s", what, self.folder
            )

    def write_head(self) -> None:
        """Write the head. A recording by a server is not whole before ``close_recording``."""
        ignore_all(self.folder)
        if self.head["by"] == "server":
            state = {"state": RECORDING}
        else:
            state = {}
        write_json(self.folder / HEAD_FILE, {**self.head, **state})

    def record_message(self, heading: MessageHeading, arrays: Mapping[str, np.ndarray]) -> None:
        """Write one message; a second one of the same place stands beside the first, except for the
        final model."""
        path = self.folder / message_path(heading)
        path = path if heading.part == FINAL else free_path(path)
        self.kept[path.relative_to(self.folder).as_posix()] = write_message(path, heading, arrays)

    def close_recording(self, state: str) -> None:
        """Close the recording: complete with the digests of all messages, unless something
        failed."""
        state = STOPPED if self.failures else state
        write_json(self.folder / HEAD_FILE, {**self.head, "state": state, "messages": self.kept})


def free_path(path: Path) -> Path:
    """``path``, or the first of path-2, path-3, ... that is not there yet."""
    number = 1
    candidate = path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return candidate


class PendingMark:
    """A mark that lies in the folder while a message is worked on: a machine that dies then leaves
    it behind."""

    def __init__(self, folder: Path, round: int, kind: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"pending-{round}-{uuid.uuid4().hex[:8]}"
        self.path.touch()

    def remove_mark(self) -> None:
        with suppress(
            OSError
        ):  # a mark that stays has the audit refuse the recording, and the training goes on
            self.path.unlink()


@dataclass(frozen=True)
class RecordedMessage:
    """One message of a recording: where it lies, what it is, the digest of its arrays and their
    shapes."""

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

    @cached_property
    def client_nodes(self) -> tuple[int, ...]:
        """The clients that replied."""
        return tuple(sorted({m.heading.node for m in self.messages if m.heading.part == REPLY}))

    def replies_of(self, node: int, kind: str = "train") -> list[RecordedMessage]:
        return [
            m
            for m in self.messages
            if (m.heading.part, m.heading.node, m.heading.kind) == (REPLY, node, kind)
        ]

    def broadcast_before(self, reply: RecordedMessage) -> RecordedMessage:
        """The server's message to which the client replied. Raises DamagedRun if it is missing."""
        reply_heading = reply.heading
        for node in (reply_heading.node, SERVER_NODE):
            for message in self.messages:
                heading = message.heading
                place = heading.part, heading.round, heading.kind, heading.node
                if place == (BROADCAST, reply_heading.round, reply_heading.kind, node):
                    return message
        raise DamagedRun(
            f"{self.folder}: what client {reply_heading.node} was sent in round "
            f"{reply_heading.round} was "
            "not recorded"
        )

    def replied_parameters(self, reply: RecordedMessage) -> State:
        """The parameters that a reply stands for: what it holds, or what it changes added to what
        was sent."""
        arrays = reply.read_arrays()
        if DIFFERENCE_KEY not in reply.heading.metrics:
            return arrays
        before = self.broadcast_before(reply).read_arrays()
        return before | {
            name: before[name] + arrays[name].to(before[name]) for name in before if name in arrays
        }

    def final_message(self) -> RecordedMessage | None:
        """The last aggregate; of a client's recording None."""
        return next((m for m in self.messages if m.heading.part == FINAL), None)


def read_recording(folder: Path) -> Recording:
    """One recorder's folder, checked as a whole. Raises DamagedRun, one line, for one that is not
    complete."""
    head = read_json(folder / HEAD_FILE)
    is_readable = isinstance(head, dict) and head.get("schema") == RECORDING_SCHEMA
    if not is_readable or head.get("by") not in ("server", "client"):
        raise DamagedRun(f"{folder / HEAD_FILE}: no recording of schema {RECORDING_SCHEMA}")
    ignored = f"{CLIENTS_FOLDER}/", *AUDIT_FILES
    names = [
        name
        for name in sorted(list_plain_files(folder))
        if name != HEAD_FILE and not name.startswith(ignored)
    ]
    _check_complete(folder, head, names)
    messages = tuple(sorted(_read_messages(folder, head, names), key=_message_order))
    runs = {m.heading.run for m in messages if m.heading.part != FINAL}
    if len(runs) > 1:
        several = ", ".join(map(str, sorted(runs)))
        raise DamagedRun(f"{folder}: messages of several runs ({several}); audit one at a time")
    if not any(m.heading.part == REPLY for m in messages):
        raise DamagedRun(f"{folder}: no reply of a client was recorded")
    return Recording(folder, head, messages)


def read_recordings(folder: Path) -> list[Recording]:
    """The server's recording first, if any, then each client's; what both saw has to agree. Raises
    DamagedRun, one line, also for a link."""
    check_plain_folder(folder)
    folders = [folder] if (folder / HEAD_FILE).is_file() else []
    folders += sorted(path.parent for path in folder.glob(f"{CLIENTS_FOLDER}/*/{HEAD_FILE}"))
    if not folders:
        raise DamagedRun(f"{folder}: no recording (no {HEAD_FILE})")
    recordings = [read_recording(place) for place in folders]
    if recordings[0].head["by"] == "server":
        for recording in recordings[1:]:
            _check_agreement(recordings[0], recording)
    return recordings


def all_client_nodes(recordings: Sequence[Recording]) -> list[int]:
    nodes = chain.from_iterable(recording.client_nodes for recording in recordings)
    return list(dict.fromkeys(nodes))


def find_client(
    recordings: Sequence[Recording], number: int | None
) -> tuple[Recording, int] | None:
    """The recording of a client, the server's first, and its node; None where there is no such
    client. number: its node, or its partition where its own tap told it; None: the only client."""
    nodes = all_client_nodes(recordings)
    messages = chain.from_iterable(recording.messages for recording in recordings)
    headings = [message.heading for message in messages]
    partitions = {
        heading.partition: heading.node for heading in headings if heading.partition is not None
    }
    if number is None:
        node = nodes[0] if len(nodes) == 1 else None
    else:
        node = number if number in nodes else partitions.get(number)
    return next(
        (
            (candidate, node)
            for candidate in recordings
            if node is not None and node in candidate.client_nodes
        ),
        None,
    )


def _check_complete(folder: Path, head: Mapping[str, Any], names: Sequence[str]) -> None:
    failed = [name for name in names if name.startswith("failed-")]
    if failed:
        first = read_json(folder / failed[0])
        if isinstance(first, dict):
            what = str(first.get("what", "?"))[:100]
        else:
            what = "?"
        raise DamagedRun(
            f"{folder}: incomplete recording: {len(failed)} parts are missing ({what})"
        )
    if any(name.startswith("pending-") for name in names):
        raise DamagedRun(
            f"{folder}: incomplete recording: a client's round began and its end was not recorded"
        )
    if head["by"] == "server" and head.get("state") != COMPLETE:
        state = f"the strategy's start() did not return (state {head.get('state')!r})"
        raise DamagedRun(f"{folder}: incomplete recording: {state}")


def _read_messages(
    folder: Path, head: Mapping[str, Any], names: Sequence[str]
) -> Iterator[RecordedMessage]:
    if head["by"] == "server":
        listed = head.get("messages")
    else:
        listed = None
    if listed is not None and (not isinstance(listed, dict) or set(listed) != {*names}):
        if isinstance(listed, dict):
            odd = sorted(set(names) ^ {*listed})[:3]
        else:
            odd = []
        raise DamagedRun(
            f"{folder}: its files are not those that {HEAD_FILE} lists "
            f"({', '.join(map(repr, odd))})"
        )
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
        replies = server.replies_of(sent.heading.node, sent.heading.kind)
        got = [m.digest for m in replies if m.heading.round == sent.heading.round]
        if got and sent.digest not in got:
            raise DamagedRun(
                f"{client.folder}: client {sent.heading.node} recorded another reply to "
                f"{sent.heading.kind} of round "
                f"{sent.heading.round} than the server"
            )


# A claim is not a proof: its row says whose it is, and ``python -m privdd.check`` is there to try
# it.


def recording_ledger(recording: Recording, delta: float | None = None) -> Ledger:
    """Unit client, relation zero_out, for that is what the recognised components speak of; delta:
    theirs, or 1e-5."""
    claims = chain.from_iterable(message.heading.claims for message in recording.messages)
    numbers = chain.from_iterable(_claimed_numbers(claim) for claim in claims)
    stated = [value for name, value in numbers if name == "delta"]
    ledger = Ledger("zero_out", "client", delta or min(stated, default=DEFAULT_DELTA))
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
            name = f"metrics of {heading.kind}"
            yield _build_row(message, name, Surface.STATISTICS, heading.round, heading.node, None)
    elif heading.part == FINAL and claim is not None:
        yield _build_row(message, "global_model", Surface.GLOBAL_MODEL, 0, SERVER, claim)


def _build_row(
    message: RecordedMessage,
    name: str,
    surface: Surface,
    round: int,
    client: int,
    claim: Mapping[str, Any] | None,
) -> LedgerRow:
    """The final model's row counts for the aggregates of all rounds: each of them was sent to the
    clients."""
    is_statistic = surface == Surface.STATISTICS
    fields_of_row: dict[str, Any] = {
        "event": dpa.NonPrivateDpEvent(),
        "nonprivate_reason": BESIDE_REASON
        if message.heading.claims and is_statistic
        else UNPROTECTED_REASON,
    }
    if claim is not None:
        settings = ", ".join(f"{name}={value:g}" for name, value in _claimed_numbers(claim))
        fields_of_row = {
            "event": dpa.GaussianDpEvent(_claimed_multiplier(message, claim)),
            "flags": {"unit:client": True, "relation:zero_out": True},
            "why": f"claimed by {str(claim.get('component'))[:60]}({settings}), not checked here",
            "count": 1 if client != SERVER else max(message.heading.round, 1),
        }
    viewers: tuple[str, ...]
    if client != SERVER:
        viewers = ("server",)
    else:
        viewers = ("clients", "server")
    shapes = {} if is_statistic else dict(message.shapes)
    return LedgerRow(
        round, client, name, str(surface), viewers, shapes, message.digest, **fields_of_row
    )


def _claimed_multiplier(message: RecordedMessage, claim: Mapping[str, Any]) -> float:
    value = claim.get("noise_multiplier")
    if not is_number(value) or not 0 < value < 1e100:  # type: ignore[operator]
        raise DamagedRun(f"{message.path}: a claim with noise_multiplier={value!r}")
    return float(value)  # type: ignore[arg-type]


def _claimed_numbers(claim: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings that a claim tells as numbers, but for those that no float holds."""
    return (
        (name, v)
        for name, v in claim.get("settings", {}).items()
        if is_number(v) and abs(v) < 1e300
    )
