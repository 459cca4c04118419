"""The mechanism as a black box: data in, everything that comes out as one vector and one signature."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

LONG = 1000  # characters
Data = Any  # update: list of arrays; aggregate: (list of updates, list of weights); records: array (n, d)


class Refused(Exception):
    """The mechanism raised an error for this input."""


@dataclass(frozen=True)
class Outcomes:
    """What one transcript lets out: every number, and all that is no number (types, shapes, names, texts)."""

    numbers: np.ndarray
    signature: str


@dataclass
class BlackBox:
    """A callable, made anew for each transcript where ``make`` makes it from a class.

    make: -> f; torch: whether f wants tensors. calls counts what was asked of it.
    """

    make: Callable[[], Callable[..., Any]]
    kind: str
    torch: bool = False
    calls: int = 0
    _one: Callable[..., Any] | None = field(default=None, repr=False)
    fresh: bool = True

    def transcript(self, inputs: Sequence[Data]) -> Outcomes:
        """One instance called on each input in turn. Raises Refused for any error that it raises."""
        try:
            f = self._instance()
            numbers: list[np.ndarray] = []
            words: list[str] = []
            for data in inputs:
                self.calls += 1
                flatten(self._call(f, data), numbers, words)
        except Exception as error:  # a stranger's code: whatever it raises is an answer
            raise Refused(f"{type(error).__name__}: {str(error)[:200]}") from error
        return _release(numbers, words)

    def _instance(self) -> Callable[..., Any]:
        if self.fresh:
            return self.make()
        if self._one is None:
            self._one = self.make()
        return self._one

    def _call(self, f: Callable[..., Any], data: Data) -> Any:
        if self.kind == "aggregate":
            updates, weights = data
            return f([[self._array(a) for a in update] for update in updates], list(weights))
        if self.kind == "update":
            return f([self._array(a) for a in data])
        return f(self._array(data))

    def _array(self, array: np.ndarray) -> Any:
        if self.torch:
            import torch

            return torch.from_numpy(array.copy())
        return array.copy()


def _release(numbers: list[np.ndarray], words: list[str]) -> Outcomes:
    vector = np.concatenate(numbers or [np.zeros(0)]) if len(numbers) != 1 else numbers[0]
    finite = np.isfinite(vector)
    if not finite.all():
        words = [*words, f"{int(np.isnan(vector).sum())} NaN, {int(np.isinf(vector).sum())} infinite"]
        vector = np.where(finite, vector, 0.0)
    return Outcomes(vector, ";".join(words))


def flatten(value: Any, numbers: list[np.ndarray], words: list[str]) -> None:
    """Append every number under ``value`` and the words for what holds them."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "fiub":
            numbers.append(value.astype(np.float64).ravel())
            words.append(f"{value.dtype.name}{value.shape}")
        elif value.dtype.kind == "c":
            numbers.append(np.stack([value.real, value.imag]).astype(np.float64).ravel())
            words.append(f"{value.dtype.name}{value.shape}")
        else:
            words.append(_word(value.tolist()))
    elif isinstance(value, (complex, np.complexfloating)):
        flatten(np.asarray(value), numbers, words)
    elif isinstance(value, (float, int, np.number)):
        numbers.append(np.array([float(value)]))
        words.append(type(value).__name__)
    elif isinstance(value, (list, tuple)):
        words.append(f"{type(value).__name__}{len(value)}")
        for part in value:
            flatten(part, numbers, words)
    elif isinstance(value, dict):
        words.append(f"dict{[str(key) for key in value]}")
        for part in value.values():
            flatten(part, numbers, words)
    else:
        _flatten_other(value, numbers, words)


def _word(value: Any) -> str:
    """All of a text counts; long ones by their digest."""
    text = repr(value)
    return text if len(text) <= LONG else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _flatten_other(value: Any, numbers: list[np.ndarray], words: list[str]) -> None:
    detach = getattr(value, "detach", None)
    if detach is not None:
        flatten(detach().cpu().numpy(), numbers, words)
    elif isinstance(value, (str, bytes, bool, type(None))):
        words.append(_word(value))
    elif hasattr(value, "__dataclass_fields__"):
        words.append(type(value).__name__)
        for name in value.__dataclass_fields__:
            flatten(getattr(value, name), numbers, words)
    elif hasattr(value, "__iter__"):
        flatten(list(value), numbers, words)
    else:
        raise TypeError(f"it returns a {type(value).__name__}: arrays, numbers, texts, lists or dicts are needed")
