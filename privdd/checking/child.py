"""A stranger's code runs in a process of its own, which is stopped when its time is up. Answers come back as JSON."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from privdd.core.errors import BadConfig

LARGEST = 50_000_000


class Stopped(BadConfig):
    """The process was stopped, or ended without an answer."""


def in_child(
    work: Callable[[Callable[[Mapping[str, Any]], None]], Mapping[str, Any]],
    seconds: float,
    told: Callable[[Mapping[str, Any]], None] = lambda note: None,
) -> dict[str, Any]:
    """Run ``work(say)`` in a forked process -> what it returns, as JSON takes it.

    told: called here with everything that work says on the way. Raises BadConfig with the message of a BadConfig
    there, and Stopped after ``seconds`` of wall time or where the process dies.
    """
    if not hasattr(os, "fork"):
        raise BadConfig("checks need a system with os.fork (Linux, macOS)")
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _work(work, writer)
    os.close(writer)
    try:
        return _answer(reader, seconds, told)
    finally:
        os.close(reader)
        _end(child)


def _work(work: Callable[..., Mapping[str, Any]], writer: int) -> None:
    """In the child: never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        _own_chance()

        def say(note: Mapping[str, Any]) -> None:
            _write(writer, {"note": note})

        try:
            _write(writer, {"answer": work(say)})
        except BadConfig as error:
            _write(writer, {"refused": str(error)})
        except Exception as error:  # told to the parent, which says it in one line
            _write(writer, {"broken": f"{type(error).__name__}: {error}"})
        code = 0
    finally:
        os._exit(code)


def _own_chance() -> None:
    """Global generators that were inherited would give every child the same noise."""
    import numpy as np

    fresh = int.from_bytes(os.urandom(7), "little")
    np.random.seed(fresh % 2**32)  # noqa: NPY002 - the stranger's code may draw from it
    sys.modules["random"].seed(fresh)
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(fresh)


def _write(writer: int, value: Mapping[str, Any]) -> None:
    from privdd.runtime.files import jsonable

    data = json.dumps(jsonable(value), allow_nan=True).encode() + b"\n"
    while data:
        data = data[os.write(writer, data) :]


def _answer(reader: int, seconds: float, told: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    ends, waiting = time.monotonic() + seconds, b""
    while True:
        left = ends - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            raise Stopped(f"the mechanism was stopped after {seconds:g} s without an answer")
        part = os.read(reader, 65536)
        if not part:
            raise Stopped("the mechanism ended its process (it exited, crashed or ran out of memory)")
        waiting += part
        if len(waiting) > LARGEST:
            raise Stopped("the answer is too large")
        *lines, waiting = waiting.split(b"\n")
        for line in lines:
            value = json.loads(line)
            if "answer" in value:
                return value["answer"]
            if "refused" in value:
                raise BadConfig(value["refused"])
            if "broken" in value:
                raise BadConfig(f"the check broke off: {value['broken']}")
            told(value["note"])


def _end(child: int) -> None:
    """The child and everything that it started."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:  # it has no group of its own yet
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def add_folder(folder: Path) -> None:
    """Modules of the folder that the command was started in can be named."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
