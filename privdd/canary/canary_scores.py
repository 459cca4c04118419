"""A score for each canary from what a federation let out: larger = in. Nothing here sees a coin.

update: each round's update is regressed on what each canary alone would have done to it, all rounds together
(``attacks.one_run_canaries``). The size of a step and the noise are not known, so they are estimated from the update.
loss: how far a canary's loss fell from the first model to the last.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from attacks.one_run_canaries import likelihood_ratios, noise_beside
from privdd.canary.sealed_files import read_npz
from privdd.core.errors import BadConfig
from privdd.runtime.files import DamagedRun
from privdd.tapping.recorded_network import class_sums, descents, difference, load, losses, thinning

Round = tuple[Mapping[str, Tensor], Mapping[str, Tensor]]  # what a client was sent, what it replied
Pair = tuple[np.ndarray, np.ndarray]
LARGEST_TEXT = 50_000_000


def by_updates(
    model: nn.Module,
    rounds: Iterable[Round],
    x: np.ndarray,
    y: np.ndarray,
    clip: float | None = None,
    known: Pair | None = None,
) -> np.ndarray:
    """(m,) from one client's rounds. clip: norm to which each record's gradient was clipped, None = it was not.

    known: other records of the client, or records like them: what each class of them does to an update is taken off
    first, whatever its size. Of a large network every k-th parameter is read, so that m gradients fit into memory.
    Raises BadConfig for messages that do not fit the model, and where there is none.
    """
    m, heard = len(y), 0
    gram, precision, product, moment = np.zeros((m, m)), np.zeros((m, m)), np.zeros(m), np.zeros(m)
    every = thinning(model, m)
    for sent, replied in rounds:
        load(model, sent)
        rows = descents(model, x, y, every, clip).astype(np.float64)
        update = difference(model, sent, replied)[::every]
        if known is not None:
            rows, update = beside(class_sums(model, *known, every, clip), rows, update)
        noise = noise_beside(rows, update, max(float(update.std()), 1e-12))
        both, along = rows @ rows.T, rows @ update
        gram, product = gram + both, product + along
        precision, moment, heard = precision + both / noise**2, moment + along / noise**2, heard + 1
    if not heard:
        raise BadConfig("updates=: no round of this client was recorded")
    step = _step(gram, product)
    return likelihood_ratios(step**2 * precision, step * moment, 0.5)


def beside(others: np.ndarray, rows: np.ndarray, update: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """rows (m, p) and update (p,) without their parts in the span of others (k, p) (Frisch and Waugh 1933)."""
    basis = np.linalg.qr(others.T)[0]
    return rows - (rows @ basis) @ basis.T, update - basis @ (basis.T @ update)


def _step(gram: np.ndarray, product: np.ndarray) -> float:
    """What one canary's descent is multiplied by in an update: twice the mean coefficient, as half of them are in.

    Of all rounds together, by least squares with a little ridge; a positive number.
    """
    ridge = 1e-3 * float(np.trace(gram)) / len(gram)
    coefficients = np.linalg.solve(gram + max(ridge, 1e-12) * np.eye(len(gram)), product)
    size = 2 * float(np.mean(coefficients))
    return size if size > 0 else max(float(np.abs(coefficients).mean()), 1e-12)


def by_loss(
    model: nn.Module, before: Mapping[str, Tensor] | None, after: Mapping[str, Tensor], x: np.ndarray, y: np.ndarray
) -> np.ndarray:
    """(m,): loss before - loss after; minus the loss after where the first model is not known."""
    load(model, after)
    last = losses(model, x, y)
    if before is None:
        return -last
    load(model, before)
    return losses(model, x, y) - last


def from_file(path: Path, count: int) -> np.ndarray:
    """(m,) from an npz with id and score, or a csv with columns id and score. Raises DamagedRun."""
    ids, values = _npz(path) if path.suffix == ".npz" else _csv(path)
    if ids.shape != values.shape or sorted(ids.tolist()) != [*range(count)]:
        raise DamagedRun(f"{path}: one score for each id from 0 to {count - 1} is needed")
    scores = np.empty(count)
    scores[ids] = values
    if not np.isfinite(scores).all():
        raise DamagedRun(f"{path}: scores must be finite")
    return scores


def _npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    found = read_npz(path, ("id", "score"))
    if found["id"].dtype.kind not in "iu" or found["score"].dtype.kind not in "fiu" or found["id"].ndim != 1:
        raise DamagedRun(f"{path}: id (m,) whole numbers and score (m,) numbers are needed")
    return found["id"].astype(np.int64), found["score"].astype(np.float64)


def _csv(path: Path) -> tuple[np.ndarray, np.ndarray]:
    if path.is_file() and path.stat().st_size > LARGEST_TEXT:
        raise DamagedRun(f"{path}: more than {LARGEST_TEXT} bytes")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [(int(row["id"]), float(row["score"])) for row in csv.DictReader(file)]
        return np.array([r[0] for r in rows], np.int64), np.array([r[1] for r in rows])
    except FileNotFoundError:
        raise DamagedRun(f"{path}: no such file") from None
    except (ValueError, KeyError, TypeError, OverflowError, csv.Error) as error:
        raise DamagedRun(f"{path}: columns id and score of numbers are needed ({str(error)[:80]})") from None
