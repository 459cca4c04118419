"""A stranger's mechanism as a black box."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LONG = 1000  # characters of a text, from which on its digest is kept
# update: list of arrays; aggregate: (list of updates, list of weights); records: array (n, d)
Data = Any


class InputRefused(Exception):
    """The mechanism raised an error for this input."""


@dataclass(frozen=True)
class Outcomes:
    """What one transcript lets out.

    Attributes:
        numbers: (M,) every number.
        signature: all that is no number: types, shapes, names, texts.
    """

    numbers: np.ndarray
    signature: str


@dataclass
class BlackBox:
    """A callable that a stranger wrote.

    Attributes:
        make: -> f, called for each transcript.
        kind: update, aggregate or records.
        torch: whether f wants tensors.
        calls: made so far.
        fresh: whether ``make`` makes another f each time.
        plain: whether f is the named callable itself, and no adapter around it.
        on_transcript: called before each transcript, for whoever stops a check or shows how far it
            is.
    """

    make: Callable[[], Callable[..., Any]]
    kind: str
    torch: bool = False
    calls: int = 0
    fresh: bool = True
    plain: bool = True
    on_transcript: Callable[[], None] = lambda: None

    def transcript(self, inputs: Sequence[Data]) -> Outcomes:
        """One instance called on each input in turn. Raises InputRefused for any error that it
        raises."""
        self.on_transcript()
        try:
            f = self.make()
            numbers: list[np.ndarray] = []
            words: list[str] = []
            for data in inputs:
                self.calls += 1
                flatten_value(self._call_once(f, data), numbers, words)
        except Exception as error:  # a stranger's code: whatever it raises is an answer
            raise InputRefused(f"{type(error).__name__}: {str(error)[:200]}") from error
        return _outcomes_of(numbers, words)

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
    if len(numbers) == 1:
        vector = numbers[0]
    else:
        vector = np.concatenate([np.zeros(0), *numbers])
    finite = np.isfinite(vector)
    if finite.all():
        return Outcomes(vector, ";".join(words))
    nonfinite = f"{int(np.isnan(vector).sum())} NaN, {int(np.isinf(vector).sum())} infinite"
    return Outcomes(np.where(finite, vector, 0.0), ";".join([*words, nonfinite]))


def flatten_value(value: Any, numbers: list[np.ndarray], words: list[str]) -> None:
    """Append every number under ``value`` and the words for what holds them.

    Args:
        value: arrays, numbers, texts, and lists, dicts or dataclasses of them.
        numbers: that are appended to, one flat array for each array.
        words: that are appended to.

    Raises:
        TypeError: there is a value of another type.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    parts: Iterable[Any] = ()
    if isinstance(value, np.ndarray | complex | np.complexfloating):
        _flatten_array(np.asarray(value), numbers, words)
    elif isinstance(value, float | int | np.number):
        numbers.append(np.array([float(value)]))
        words.append(type(value).__name__)
    elif isinstance(value, str | bytes | None):
        words.append(_word_for(value))
    elif isinstance(value, dict):
        words.append(f"dict{[str(key) for key in value]}")
        parts = value.values()
    elif hasattr(value, "__dataclass_fields__"):
        words.append(type(value).__name__)
        parts = [getattr(value, name) for name in value.__dataclass_fields__]
    elif hasattr(value, "__iter__"):
        parts = value if isinstance(value, tuple) else list(value)
        words.append(f"{type(parts).__name__}{len(parts)}")
    else:
        raise TypeError(
            f"it returns a {type(value).__name__}: arrays, numbers, texts, lists or dicts "
            "are needed"
        )
    for part in parts:
        flatten_value(part, numbers, words)


def _flatten_array(array: np.ndarray, numbers: list[np.ndarray], words: list[str]) -> None:
    if array.dtype.kind not in "fiubc":
        words.append(_word_for(array.tolist()))
        return
    if array.dtype.kind == "c":
        real = np.stack([array.real, array.imag])
    else:
        real = array
    numbers.append(real.astype(np.float64).ravel())
    words.append(f"{array.dtype.name}{array.shape}")


def _word_for(value: Any) -> str:
    """All of a text counts; long ones by their digest."""
    text = repr(value)
    if len(text) <= LONG:
        return text
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
