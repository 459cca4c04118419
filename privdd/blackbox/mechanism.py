"""A stranger's mechanism as a black box, and the process of its own that it runs in."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from privdd.core.validation import BadConfig

LONG = 1000  # characters
Data = Any  # update: list of arrays; aggregate: (list of updates, list of weights); records: array (n, d)


class InputRefused(Exception):
    """The mechanism raised an error for this input."""


@dataclass(frozen=True)
class Outcomes:
    """What one transcript lets out: every number, and all that is no number (types, shapes, names, texts)."""

    numbers: np.ndarray
    signature: str


@dataclass
class BlackBox:
    """A callable, made anew for each transcript where ``make`` makes it from a class.

    make: -> f; torch: whether f wants tensors; plain: whether f is the named callable itself, and no adapter around it. calls counts
    what was asked of it.
    """

    make: Callable[[], Callable[..., Any]]
    kind: str
    torch: bool = False
    calls: int = 0
    _one: Callable[..., Any] | None = field(default=None, repr=False)
    fresh: bool = True
    plain: bool = True

    def transcript(self, inputs: Sequence[Data]) -> Outcomes:
        """One instance called on each input in turn. Raises InputRefused for any error that it raises."""
        try:
            f = self._make_instance()
            numbers: list[np.ndarray] = []
            words: list[str] = []
            for data in inputs:
                self.calls += 1
                flatten_value(self._call_once(f, data), numbers, words)
        except Exception as error:  # a stranger's code: whatever it raises is an answer
            raise InputRefused(f"{type(error).__name__}: {str(error)[:200]}") from error
        return _outcomes_of(numbers, words)

    def _make_instance(self) -> Callable[..., Any]:
        if self.fresh:
            return self.make()
        if self._one is None:
            self._one = self.make()
        return self._one

    def _call_once(self, f: Callable[..., Any], data: Data) -> Any:
        if self.kind == "aggregate":
            updates, weights = data
            return f([[self._as_array(a) for a in update] for update in updates], list(weights))
        if self.kind == "update":
            return f([self._as_array(a) for a in data])
        return f(self._as_array(data))

    def _as_array(self, array: np.ndarray) -> Any:
        if self.torch:
            import torch

            return torch.from_numpy(array.copy())
        return array.copy()


def _outcomes_of(numbers: list[np.ndarray], words: list[str]) -> Outcomes:
    vector = np.concatenate(numbers or [np.zeros(0)]) if len(numbers) != 1 else numbers[0]
    finite = np.isfinite(vector)
    if not finite.all():
        words = [*words, f"{int(np.isnan(vector).sum())} NaN, {int(np.isinf(vector).sum())} infinite"]
        vector = np.where(finite, vector, 0.0)
    return Outcomes(vector, ";".join(words))


def flatten_value(value: Any, numbers: list[np.ndarray], words: list[str]) -> None:
    """Append every number under ``value`` and the words for what holds them."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "fiub":
            numbers.append(value.astype(np.float64).ravel())
            words.append(f"{value.dtype.name}{value.shape}")
        elif value.dtype.kind == "c":
            numbers.append(np.stack([value.real, value.imag]).astype(np.float64).ravel())
            words.append(f"{value.dtype.name}{value.shape}")
        else:
            words.append(_word_for(value.tolist()))
    elif isinstance(value, (complex, np.complexfloating)):
        flatten_value(np.asarray(value), numbers, words)
    elif isinstance(value, (float, int, np.number)):
        numbers.append(np.array([float(value)]))
        words.append(type(value).__name__)
    elif isinstance(value, (list, tuple)):
        words.append(f"{type(value).__name__}{len(value)}")
        for part in value:
            flatten_value(part, numbers, words)
    elif isinstance(value, dict):
        words.append(f"dict{[str(key) for key in value]}")
        for part in value.values():
            flatten_value(part, numbers, words)
    else:
        _flatten_other(value, numbers, words)


def _word_for(value: Any) -> str:
    """All of a text counts; long ones by their digest."""
    text = repr(value)
    return text if len(text) <= LONG else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _flatten_other(value: Any, numbers: list[np.ndarray], words: list[str]) -> None:
    detach = getattr(value, "detach", None)
    if detach is not None:
        flatten_value(detach().cpu().numpy(), numbers, words)
    elif isinstance(value, (str, bytes, bool, type(None))):
        words.append(_word_for(value))
    elif hasattr(value, "__dataclass_fields__"):
        words.append(type(value).__name__)
        for name in value.__dataclass_fields__:
            flatten_value(getattr(value, name), numbers, words)
    elif hasattr(value, "__iter__"):
        flatten_value(list(value), numbers, words)
    else:
        raise TypeError(f"it returns a {type(value).__name__}: arrays, numbers, texts, lists or dicts are needed")


LARGEST = 50_000_000


class ChildStopped(BadConfig):
    """The process was stopped, or ended without an answer."""


def run_in_child(
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
        _child_main(work, writer)
    os.close(writer)
    try:
        return _read_answer(reader, seconds, told)
    finally:
        os.close(reader)
        _stop_child(child)


def _child_main(work: Callable[..., Mapping[str, Any]], writer: int) -> None:
    """In the child: never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        _reseed_generators()

        def send_note(note: Mapping[str, Any]) -> None:
            _write_answer(writer, {"note": note})

        try:
            _write_answer(writer, {"answer": work(send_note)})
        except BadConfig as error:
            _write_answer(writer, {"refused": str(error)})
        except Exception as error:  # told to the parent, which says it in one line
            _write_answer(writer, {"broken": f"{type(error).__name__}: {error}"})
        code = 0
    finally:
        os._exit(code)


def _reseed_generators() -> None:
    """Global generators that were inherited would give every child the same noise."""
    import numpy as np

    fresh = int.from_bytes(os.urandom(7), "little")
    np.random.seed(fresh % 2**32)  # noqa: NPY002 - the stranger's code may draw from it
    sys.modules["random"].seed(fresh)
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(fresh)


def _write_answer(writer: int, value: Mapping[str, Any]) -> None:
    from privdd.runtime.files import to_plain_json

    data = json.dumps(to_plain_json(value), allow_nan=True).encode() + b"\n"
    while data:
        data = data[os.write(writer, data) :]


def _read_answer(reader: int, seconds: float, told: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    ends, waiting = time.monotonic() + seconds, b""
    while True:
        left = ends - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            raise ChildStopped(f"the mechanism was stopped after {seconds:g} s without an answer")
        part = os.read(reader, 65536)
        if not part:
            raise ChildStopped("the mechanism ended its process (it exited, crashed or ran out of memory)")
        waiting += part
        if len(waiting) > LARGEST:
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
            told(value["note"])


def _stop_child(child: int) -> None:
    """The child and everything that it started."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:  # it has no group of its own yet
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def add_search_folder(folder: Path) -> None:
    """Modules of the folder that the command was started in can be named."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
