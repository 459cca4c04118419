"""What the trainings of an entry came to: accuracy by round and seed, bytes, rounds to a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from privdd.reporting.trained import read_training
from privdd.reproduce.plan_rows import PaperCell
from privdd.runtime.files import DamagedRun, read_json
from privdd.runtime.run_folder import RunFolder


@dataclass(frozen=True)
class RowResult:
    """One row of a column. curves: accuracy in [0, 1] after each round, by seed; uploaded, downloaded: (rounds,) bytes
    that one client sends and receives up to each round, mean over clients and seeds; failed: seed -> why, in a line;
    diverged: how many seeds ended without a model."""

    cell: PaperCell
    best: bool
    curves: Mapping[int, tuple[float, ...]]
    uploaded: tuple[float, ...] = ()
    downloaded: tuple[float, ...] = ()
    failed: Mapping[int, str] | None = None
    diverged: int = 0

    @property
    def accuracies(self) -> tuple[float, ...]:
        """By seed: the last round's, or the best of all where the paper reports that."""
        return tuple(max(curve) if self.best else curve[-1] for curve in self.curves.values())

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.accuracies)) if self.curves else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds (n - 1), None for fewer than two."""
        return float(np.std(self.accuracies, ddof=1)) if len(self.curves) > 1 else None

    @property
    def curve(self) -> tuple[float, ...]:
        """Mean over seeds."""
        return tuple(float(v) for v in np.mean(list(self.curves.values()), axis=0)) if self.curves else ()

    def first_round(self, target: float) -> int | None:
        """The first round after which the mean accuracy is at least ``target``; None where it never is."""
        return next((at + 1 for at, value in enumerate(self.curve) if value >= target), None)

    def bytes_to(self, target: float) -> float | None:
        """Bytes that a client has uploaded by then."""
        first = self.first_round(target)
        return None if first is None else self.uploaded[first - 1]


def results(
    cells: Sequence[PaperCell], seeds: Sequence[int], folder: Path, best: bool, failed: Mapping[Path, str]
) -> list[RowResult]:
    """The results of all cells, as their folders tell. Raises DamagedRun or FindingsError, one line, for a bad folder."""
    return [_result(cell, seeds, folder, best, failed) for cell in cells]


def _result(cell: PaperCell, seeds: Sequence[int], folder: Path, best: bool, failed: Mapping[Path, str]) -> RowResult:
    curves, up, down, gone = {}, [], [], 0
    paths = {seed: folder / cell.folder(seed) for seed in seeds}
    wrong = {seed: failed[path] for seed, path in paths.items() if path in failed}
    for seed, path in paths.items():
        if seed in wrong:
            continue
        read_training(path)  # refuses what is no finished training
        stored = read_json(path / "training.json")
        curves[seed] = tuple(float(value) for value in stored["accuracy_by_round"])
        gone += stored["diverged"] is not None
        sent, got = _traffic(path)
        up.append(sent)
        down.append(got)
    if not curves:
        return RowResult(cell, best, {}, failed=wrong)
    mean = [tuple(float(v) for v in np.mean(part, axis=0)) for part in (up, down)]
    return RowResult(cell, best, curves, mean[0], mean[1], wrong, gone)


def _traffic(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Bytes that one client has sent and received up to each round, mean over all clients. Raises DamagedRun."""
    manifest, whole = read_json(RunFolder(path).manifest), read_json(path / "training.json")
    sums = []
    try:
        for name in ("uploaded", "downloaded"):
            total = np.cumsum([sum(int(v) for v in counts.values()) for counts in manifest[f"{name}_bytes"]])
            each = whole[f"{name}_bytes_per_client"]
            sums.append(total * (each / total[-1] if total[-1] else 0.0))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DamagedRun(f"{RunFolder(path).manifest}: damaged ({' '.join(str(error).split())[:100]})") from None
    return sums[0], sums[1]
