"""Train the rows of an entry: finished ones are skipped, a stopped one goes on, several side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from privdd.cli.paper_rows import train_row
from privdd.cli.sweeps import RESULTS, Sweep, point_error
from privdd.reproduce.plan_rows import PaperCell
from privdd.reproduce.same_training import copy_row, same_training
from privdd.runtime.plain_folder import check_folder
from privdd.runtime.progress import stage


@dataclass(frozen=True)
class RowJob:
    """One training."""

    sweep: Sweep
    cell: PaperCell
    seed: int

    @property
    def path(self) -> Path:
        return self.sweep.folder / self.cell.folder(self.seed)

    @property
    def done(self) -> bool:
        return all((self.path / name).is_file() for name in RESULTS["train"])


def run_job(job: RowJob) -> str:
    """Train, in whichever process; -> "" or why it failed, in one line."""
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        status = job.sweep.point(job.path, lambda: _train(job))
    return point_error(job.path) if status else ""


def _train(job: RowJob) -> int:
    """Copied where another entry has the same training."""
    if found := same_training(job.cell.overrides, job.seed, job.sweep.folder.parent):
        copy_row(found, job.path)
        return 0
    return train_row(job.cell.overrides, job.seed, job.path)


def train(cells: Sequence[PaperCell], seeds: Sequence[int], folder: Path, jobs: int, label: str) -> dict[Path, str]:
    """Train every cell with every seed into ``folder`` -> folder of each that failed: why.

    Rows that failed do not stop the others. The same training in two columns is done once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    check_folder(folder)
    sweep = Sweep("train", folder)
    made = {job.path: job for job in (RowJob(sweep, cell, seed) for seed in seeds for cell in cells)}
    work = [job for job in made.values() if not job.done]
    failed: dict[Path, str] = {}
    with stage(label, len(made)) as bar:
        if len(work) < len(made):
            bar.advance(f"{len(made) - len(work)} finished before", by=len(made) - len(work))
        for job, error in zip(work, _results(work, jobs), strict=True):
            if error:
                failed[job.path] = error
            bar.advance(f"{job.cell.row}, seed {job.seed}{': failed' if error else ''}")
    return failed


def _results(work: Sequence[RowJob], jobs: int) -> Iterator[Any]:
    if jobs == 1 or len(work) < 2:
        return (run_job(job) for job in work)
    from privdd.runtime.processes import process_map

    return process_map(run_job, work, workers=min(jobs, len(work)), threads=1, retries=1)
