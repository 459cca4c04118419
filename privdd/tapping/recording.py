"""A recording as an audit reads it: whole, of one run, every message as it was written. Else it is refused in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from privdd.core.types import State
from privdd.runtime.files import DamagedRun, read_json
from privdd.runtime.plain_folder import check_folder, plain_files
from privdd.runtime.private_folder import IGNORE
from privdd.tapping.message_file import BROADCAST, DIFFERENCE, FINAL, REPLY, SERVER, Heading, read_heading, read_message
from privdd.tapping.named_recording import CLIENTS, HEAD
from privdd.tapping.recorder import COMPLETE, SCHEMA

WRITTEN_LATER = (
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
class Recorded:
    """One message of a recording: where it lies, what it is, the digest of its arrays and their shapes."""

    path: Path
    heading: Heading
    digest: str
    shapes: Mapping[str, tuple[int, ...]]

    def arrays(self) -> State:
        """Raises DamagedRun where the file is not what was recorded."""
        return read_message(self.path)


@dataclass(frozen=True)
class Recording:
    """head: of tap.json; messages: by round, broadcasts before replies."""

    folder: Path
    head: Mapping[str, Any]
    messages: tuple[Recorded, ...]

    @property
    def by_server(self) -> bool:
        return self.head["by"] == "server"

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The clients that replied."""
        return tuple(sorted({m.heading.node for m in self.messages if m.heading.part == REPLY}))

    def replies(self, node: int, kind: str = "train") -> list[Recorded]:
        return [m for m in self.messages if (m.heading.part, m.heading.node, m.heading.kind) == (REPLY, node, kind)]

    def broadcast(self, reply: Recorded) -> Recorded:
        """What the client was sent before it replied so. Raises DamagedRun where that is not there."""
        asked = reply.heading
        for node in (asked.node, SERVER):
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

    def replied(self, reply: Recorded) -> State:
        """The parameters that a reply stands for: what it holds, or what it changes added to what was sent."""
        arrays = reply.arrays()
        if DIFFERENCE not in reply.heading.metrics:
            return arrays
        before = self.broadcast(reply).arrays()
        return {
            name: before[name] + arrays[name].to(before[name]) if name in arrays else before[name] for name in before
        }

    def final(self) -> Recorded | None:
        """The last aggregate; of a client's recording None."""
        return next((m for m in self.messages if m.heading.part == FINAL), None)


def read_recording(folder: Path) -> Recording:
    """One recorder's folder, checked as a whole. Raises DamagedRun, one line, for one that is not complete."""
    head = read_json(folder / HEAD)
    if not isinstance(head, dict) or head.get("schema") != SCHEMA or head.get("by") not in ("server", "client"):
        raise DamagedRun(f"{folder / HEAD}: no recording of schema {SCHEMA}")
    names = [name for name in sorted(plain_files(folder)) if _of_recording(name)]
    _check_whole(folder, head, names)
    found = tuple(sorted(_messages(folder, head, names), key=_order))
    runs = {m.heading.run for m in found if m.heading.part != FINAL}
    if len(runs) > 1:
        raise DamagedRun(
            f"{folder}: messages of several runs ({', '.join(map(str, sorted(runs)))}); audit one at a time"
        )
    if not any(m.heading.part == REPLY for m in found):
        raise DamagedRun(f"{folder}: no reply of a client was recorded")
    return Recording(folder, head, found)


def read_all(folder: Path) -> list[Recording]:
    """The server's recording first, where there is one, then each client's; what both saw has to agree.

    Raises DamagedRun, one line, for a folder with a link in it, and where there is none.
    """
    check_folder(folder)
    folders = [folder] if (folder / HEAD).is_file() else []
    folders += sorted(path.parent for path in folder.glob(f"{CLIENTS}/*/{HEAD}"))
    if not folders:
        raise DamagedRun(f"{folder}: no recording (no {HEAD})")
    found = [read_recording(one) for one in folders]
    if found[0].by_server:
        for other in found[1:]:
            _check_agreement(found[0], other)
    return found


def _of_recording(name: str) -> bool:
    return name != HEAD and not name.startswith((f"{CLIENTS}/", *WRITTEN_LATER))


def _check_whole(folder: Path, head: Mapping[str, Any], names: Sequence[str]) -> None:
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


def _messages(folder: Path, head: Mapping[str, Any], names: Sequence[str]) -> Iterator[Recorded]:
    listed = head.get("messages") if head["by"] == "server" else None
    if listed is not None and (not isinstance(listed, dict) or set(listed) != {*names}):
        odd = sorted(set(names) ^ {*listed})[:3] if isinstance(listed, dict) else []
        raise DamagedRun(f"{folder}: its files are not those that {HEAD} lists ({', '.join(map(repr, odd))})")
    for name in names:
        heading, mark, shapes = read_heading(folder / name)
        if listed is not None and listed[name] != mark:
            raise DamagedRun(f"{folder / name}: not the message that {HEAD} lists")
        yield Recorded(folder / name, heading, mark, shapes)


def _order(message: Recorded) -> tuple[int, int, str, int, str]:
    heading = message.heading
    part = (BROADCAST, REPLY, FINAL).index(heading.part)
    return heading.round, part, heading.kind, heading.node, message.path.name


def _check_agreement(server: Recording, client: Recording) -> None:
    """What a client says that it sent is what the server says that it got."""
    for sent in client.messages:
        if sent.heading.part != REPLY:
            continue
        got = [
            m.digest
            for m in server.replies(sent.heading.node, sent.heading.kind)
            if m.heading.round == sent.heading.round
        ]
        if got and sent.digest not in got:
            raise DamagedRun(
                f"{client.folder}: client {sent.heading.node} recorded another reply to {sent.heading.kind} of round "
                f"{sent.heading.round} than the server"
            )
