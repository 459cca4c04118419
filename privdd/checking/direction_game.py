"""Which of all directions was it? The record is drawn on a sphere, and its direction read back from the release.

A linear decoder in the noise's own metric is learned on transcripts of other directions, so it finds numbers without
noise, noise that is shared between numbers, rows or calls, and noise that is too small. Beside it nothing is learned:
does a piece of the release point along the record, to more places than chance explains (``pieces``)? That finds calls
and rows that have noise most of the time only. The chance of a guess is known exactly (``attacks.naming``), so the
bound holds for any mechanism and has no ceiling at ln n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attacks.naming import best_cosine, from_cosines
from privdd.checking.called import BlackBox, Data
from privdd.checking.learned import Metric
from privdd.checking.neighbours import HEAVY, LARGE, Tried, size_of, split
from privdd.checking.pieces import from_pieces
from privdd.checking.sampled import Clock, drawn


@dataclass(frozen=True)
class DirectionGame:
    """with_record: unit vector (m,) -> data that holds a record in this direction; says: which data.

    tried: inputs of the same sizes only.
    """

    dimensions: int
    with_record: Callable[[np.ndarray], Data]
    says: str
    tried: Tried = Tried()

    def without(self) -> Data:
        """The same data where the record holds nothing."""
        return self.with_record(np.full(self.dimensions, self.tried.nothing / LARGE))


@dataclass(frozen=True)
class Named:
    """epsilon: lower bound at the asked confidence; cosine: the median that was reached; says: in which game.

    pieces: another lower bound, from pieces of the release as they are, None where it has none; worst: the direction (m,)
    in which records show most, None where no decoder was learned.
    """

    epsilon: float
    cosine: float
    says: str
    transcripts: int
    pieces: float | None = None
    worst: np.ndarray | None = None


def games(kind: str, tried: Tried) -> Iterator[DirectionGame]:
    """Data around the record: none, zeros, records that cancel it."""
    if kind == "records":
        for n, d in tried.tables[1:3] or tried.tables:
            if d > 1 and n > 1:
                yield DirectionGame(d, partial(_table, n=n, nothing=tried.nothing), f"a record among {n} rows of zeros",
                                    replace(tried, tables=((n, d),)))  # fmt: skip
        return
    for shapes in tried.structures[:3]:
        m, one = size_of(shapes), replace(tried, structures=(shapes,), crowds=tried.crowds[-1:])
        if m < 2:
            continue
        if kind == "update":
            yield DirectionGame(m, partial(_update, shapes=shapes), f"an update of {len(shapes)} array(s)", one)
        else:
            k = tried.crowds[-1]
            says = f"one of {k} clients, weights {HEAVY} : {k - 1} x 100"
            yield DirectionGame(m, partial(_crowd, k=k, shapes=shapes, nothing=tried.nothing), says, one)


def _update(s: np.ndarray, shapes: tuple[tuple[int, ...], ...]) -> Data:
    return split(s * LARGE, shapes)


def _table(s: np.ndarray, n: int, nothing: float) -> np.ndarray:
    rows = np.full((n, len(s)), nothing)
    rows[n // 2] = s * LARGE
    return rows


def _crowd(s: np.ndarray, k: int, shapes: tuple[tuple[int, ...], ...], nothing: float) -> Data:
    rest = [split(np.full(len(s), nothing), shapes) for _ in range(k - 1)]
    return [split(s * LARGE, shapes), *rest], [HEAVY] + [100] * (k - 1)


def play(
    mechanism: BlackBox,
    game: DirectionGame,
    around: Callable[[Data], list[Data]],
    count: int,
    clock: Clock,
    rng: np.random.Generator,
    *,
    asked: float,
    delta: float,
    confidence: float,
) -> Named:
    """Half of ``count`` games teach the decoder, a tenth chooses the threshold, the rest decide.

    around: data -> the calls of a transcript. The same data several times is summed; other data before and after
    is looked at jointly. asked: the epsilon that is to be exceeded.
    """
    s = rng.standard_normal((count, game.dimensions))
    s /= np.linalg.norm(s, axis=1, keepdims=True)
    found, same = [], True
    for one in s:
        inputs = around(game.with_record(one))
        same = all(other is inputs[0] for other in inputs)
        found.append(drawn(mechanism, inputs, 1, clock, joined=not same).rows)
    shapes = {rows.shape for rows in found}
    if len(shapes) != 1 or not found[0].size:
        return Named(0.0, 0.0, game.says, count)
    rows = np.concatenate(found)
    pieces = from_pieces(s, rows.reshape(count, -1), asked=asked, delta=delta, confidence=confidence)
    outputs = rows.sum(1)
    learn, choose = count // 2, count * 6 // 10
    decode, worst = _decoder(s[:learn], outputs[:learn])
    guesses = decode(outputs[learn:])
    cosines = np.einsum("ij,ij->i", guesses, s[learn:])
    at = best_cosine(cosines[: choose - learn], game.dimensions, delta)
    judged = cosines[choose - learn :]
    bound = from_cosines(judged, at, game.dimensions, delta=delta, confidence=confidence)
    return Named(bound, float(np.median(judged)), game.says, count, pieces, worst)


def _decoder(s: np.ndarray, outputs: np.ndarray) -> tuple[Callable[[np.ndarray], np.ndarray], np.ndarray]:
    """Outputs (n, M) -> unit vectors (n, m): the mean of s given an output that is linear in it plus normal noise.

    Mixing and noise by least squares; before the output, s has mean 0 and covariance 1/m. Beside it the direction (m,)
    that moves the output furthest, in units of the noise.
    """
    centre = outputs.mean(0)
    mixing, *_ = np.linalg.lstsq(s, outputs - centre, rcond=None)  # (m, M)
    residuals = outputs - centre - s @ mixing
    metric = Metric.of(residuals)
    weights = metric.whitened(mixing)  # (m, M)
    inner = weights @ mixing.T
    worst = np.linalg.eigh((inner + inner.T) / 2)[1][:, -1]
    scale = 1 / np.sqrt(np.maximum(np.diag(inner), s.shape[1]))  # numbers without noise weigh 1e20 and more
    known = scale[:, None] * (inner + s.shape[1] * np.eye(s.shape[1])) * scale
    weights = scale[:, None] * np.linalg.lstsq(known, scale[:, None] * weights, rcond=1e-12)[0]

    def decode(new: np.ndarray) -> np.ndarray:
        guess = (new - centre) @ weights.T
        norms = np.linalg.norm(guess, axis=1, keepdims=True)
        good = np.isfinite(guess).all(1, keepdims=True) & (norms > 0)
        return np.where(good, guess / np.where(good, norms, 1.0), 1 / np.sqrt(guess.shape[1]))

    return decode, worst
