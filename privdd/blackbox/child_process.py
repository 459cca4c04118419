"""A process of its own for a stranger's code."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from privdd.core.validation import BadConfig
from privdd.runtime.files import to_plain_json

LARGEST_ANSWER = 50_000_000  # bytes
BLOCK = 65_536  # bytes that are read at a time

Note = Mapping[str, Any]


class ChildStopped(BadConfig):
    """The process was stopped, or ended without an answer."""


def run_in_child(
    work: Callable[[Callable[[Note], None]], Mapping[str, Any]],
    seconds: float,
    read_note: Callable[[Note], None] = lambda note: None,
) -> dict[str, Any]:
    """Run ``work(say)`` in a forked process.

    Args:
        work: called there with a function that sends notes.
        seconds: of wall time, after which the process is stopped.
        read_note: called here with every note.

    Returns:
        What ``work`` returns, as JSON takes it.

    Raises:
        BadConfig: with the message of a BadConfig there.
        ChildStopped: after ``seconds``, or if the process dies.
    """
    if not hasattr(os, "fork"):
        raise BadConfig("checks need a system with os.fork (Linux, macOS)")
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child_main(work, writer)
    os.close(writer)
    try:
        return _read_answer(reader, seconds, read_note)
    finally:
        os.close(reader)
        _stop_child(child)


def _child_main(work: Callable[..., Mapping[str, Any]], writer: int) -> None:
    """In the child: never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        _reseed_generators()

        def send_note(note: Note) -> None:
            _write_line(writer, {"note": note})

        try:
            _write_line(writer, {"answer": work(send_note)})
        except BadConfig as error:
            _write_line(writer, {"refused": str(error)})
        except Exception as error:  # the parent says it in one line
            _write_line(writer, {"broken": f"{type(error).__name__}: {error}"})
        code = 0
    finally:
        os._exit(code)


def _reseed_generators() -> None:
    """Global generators that were inherited would give every child the same noise."""
    fresh = int.from_bytes(os.urandom(7), "little")
    np.random.seed(fresh % 2**32)  # noqa: NPY002
    sys.modules["random"].seed(fresh)
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(fresh)


def _write_line(writer: int, value: Mapping[str, Any]) -> None:
    data = json.dumps(to_plain_json(value), allow_nan=True).encode() + b"\n"
    while data:
        written = os.write(writer, data)
        data = data[written:]


def _read_answer(reader: int, seconds: float, read_note: Callable[[Note], None]) -> dict[str, Any]:
    ends = time.monotonic() + seconds
    waiting = b""
    while True:
        seconds_left = ends - time.monotonic()
        if seconds_left <= 0 or not select.select([reader], [], [], seconds_left)[0]:
            raise ChildStopped(f"the mechanism was stopped after {seconds:g} s without an answer")
        block = os.read(reader, BLOCK)
        if not block:
            raise ChildStopped(
                "the mechanism ended its process (it exited, crashed or ran out of memory)"
            )
        waiting += block
        if len(waiting) > LARGEST_ANSWER:
            raise ChildStopped("the answer is too large")
        *lines, waiting = waiting.split(b"\n")
        for line in lines:
            value = json.loads(line)
            if "answer" in value:
                return value["answer"]
            if "refused" in value:
                raise BadConfig(value["refused"])
            if "broken" in value:
                raise BadConfig(f"the check broke off: {value['broken']}")
            read_note(value["note"])


def _stop_child(child: int) -> None:
    """The child and everything that it started."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:  # it has no group of its own yet
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
