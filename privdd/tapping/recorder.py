"""What a tap writes. Nothing here may disturb the training beside which it runs: what fails is said and marked.

A recording is a folder: ``tap.json``, ``round-001/broadcast.safetensors``, ``round-001/client-7/update.safetensors``
and so on (``message_file.place``), ``failed-*.json`` for what could not be kept, ``pending-*`` while a client works. A
recording with either of the last two is not whole, and no audit takes it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from privdd.runtime.files import write_json
from privdd.runtime.private_folder import ignore_all
from privdd.tapping.message_file import Heading, place, write_message
from privdd.tapping.named_recording import HEAD

LOG = logging.getLogger("privdd")
SCHEMA = 1
RECORDING, COMPLETE, STOPPED = "recording", "complete", "stopped"


class TapRecorder:
    """One recording. by: server or client; more: what else its head tells (library, strategy, ...)."""

    def __init__(self, folder: Path, by: str, more: Mapping[str, Any]) -> None:
        self.folder = folder
        self.head = {"schema": SCHEMA, "by": by, **more}
        self.kept: dict[str, str] = {}
        self.failures = 0

    def safely(self, what: str, work: Callable[[], Any]) -> Any:
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
            self._mark(what, error)
            return None

    def _mark(self, what: str, error: Exception) -> None:
        mark = {"what": what, "error": f"{type(error).__name__}: {error}"[:300]}
        try:
            write_json(self.folder / f"failed-{uuid.uuid4().hex}.json", mark)
        except OSError:
            LOG.exception("PRIVDD TAP: %s could not even be marked as missing in %s", what, self.folder)

    def begin(self) -> None:
        """Write the head. A recording by a server is not whole before ``end``."""
        ignore_all(self.folder)
        write_json(self.folder / HEAD, {**self.head, **({"state": RECORDING} if self.head["by"] == "server" else {})})

    def keep(self, heading: Heading, arrays: Mapping[str, np.ndarray]) -> None:
        """Write one message; a second one of the same place stands beside the first, except for the final model."""
        path = free(self.folder / place(heading)) if heading.part != "final" else self.folder / place(heading)
        self.kept[path.relative_to(self.folder).as_posix()] = write_message(path, heading, arrays)

    def end(self, state: str) -> None:
        """Close the recording: complete with the digests of all messages, unless something failed."""
        state = STOPPED if self.failures else state
        write_json(self.folder / HEAD, {**self.head, "state": state, "messages": self.kept})


def free(path: Path) -> Path:
    """``path``, or the first of path-2, path-3, ... that is not there yet."""
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return found


class Pending:
    """A mark that lies in the folder while a message is worked on: a machine that dies then leaves it behind."""

    def __init__(self, folder: Path, round: int, kind: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"pending-{round}-{uuid.uuid4().hex[:8]}"
        self.path.touch()

    def done(self) -> None:
        with suppress(OSError):  # a mark that stays has the audit refuse the recording, and the training goes on
            self.path.unlink()
