"""The noise's own metric, and the directions in which a record shows most over it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privdd.blackbox.transcripts import Transcripts, transcript_totals

WIDE = 300  # numbers above which the covariance of the noise is taken to be diagonal
ENOUGH = 3  # times as many transcripts as numbers, for a covariance
FLOOR = 1e-12  # relative: deviations below are taken for rounding
FLOAT_ERROR = 1e-13  # of the largest number
LEAST_DEVIATION = 1e-60
LEAST_EIGENVALUE = 1e-9
MOVED_ERRORS = 3.0  # standard errors of a mean from which on a number counts as moved


@dataclass(frozen=True)
class NoiseMetric:
    """The metric in which noise looks alike from every side.

    Attributes:
        centre: (m,) mean.
        std: (m,) deviation.
        precision: (m, m) inverse covariance; None if it is taken to be diagonal.
    """

    centre: np.ndarray
    std: np.ndarray
    precision: np.ndarray | None

    @staticmethod
    def from_sides(*sides: np.ndarray) -> NoiseMetric:
        """From sides (n, m), each about its own mean; the centre is the last side's."""
        residuals = np.concatenate([side - side.mean(0) for side in sides])
        n, m = residuals.shape
        freedom = max(1, n - len(sides))
        std = np.sqrt(np.square(residuals).sum(0) / freedom)
        largest = float(np.abs(np.concatenate(sides)).max(initial=0.0))
        floor = max(largest * FLOAT_ERROR, FLOOR * float(std.max(initial=0.0)), LEAST_DEVIATION)
        precision = None
        if m <= WIDE and n > ENOUGH * m:
            scale = np.maximum(std, floor)
            correlation = (residuals / scale).T @ (residuals / scale) / freedom
            values, vectors = np.linalg.eigh(correlation)
            inverse = (vectors / np.maximum(values, LEAST_EIGENVALUE)) @ vectors.T
            precision = inverse / scale / scale[:, None]
        return NoiseMetric(sides[-1].mean(0), np.maximum(std, floor), precision)

    def whiten_vector(self, v: np.ndarray) -> np.ndarray:
        """Sigma^-1 v, (m,) or (n, m)."""
        if self.precision is None:
            return v / np.square(self.std)
        return v @ self.precision


def shift_directions(
    present: Transcripts, absent: Transcripts, axis: np.ndarray | None
) -> list[np.ndarray]:
    """Unit vectors along which the sums of two training blocks differ.

    Fisher's discriminant w = Sigma^-1 (mean a - mean b), the most powerful direction if noise is
    normal; the same with the known direction of the record in place of the noisy difference of
    means; and with the numbers alone that move by more than 3 standard errors.

    Args:
        present: transcripts with the record.
        absent: transcripts without it.
        axis: direction of the record, of as many numbers as a release or a piece of it.

    Returns:
        Directions (m,); none if releases differ in size.
    """
    a = transcript_totals(present)
    b = transcript_totals(absent)
    if a.shape[1] != b.shape[1] or not a.shape[1]:
        return []
    metric = NoiseMetric.from_sides(a, b)
    gap = a.mean(0) - b.mean(0)
    learned = metric.whiten_vector(gap)
    directions = [learned]
    if axis is not None and len(axis) == a.shape[1]:
        sign = np.sign(axis @ learned or 1.0)
        directions.append(metric.whiten_vector(axis * sign))
    elif axis is not None and a.shape[1] % len(axis) == 0:
        # several pieces, each as long as the record
        pieces = gap.reshape(-1, len(axis))
        along_record = np.outer(pieces @ axis, axis).ravel()
        directions.append(metric.whiten_vector(along_record))
    error = metric.std * np.sqrt(1 / len(a) + 1 / len(b))
    moved = np.where(np.abs(gap) > MOVED_ERRORS * error, gap, 0.0)
    if moved.any() and (moved == 0).any():
        directions.append(metric.whiten_vector(moved))
    return [w / np.linalg.norm(w) for w in directions if np.isfinite(w).all() and w.any()]
