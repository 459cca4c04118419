"""Train the rows of an entry: finished ones are skipped, a stopped one goes on, several side by
side.

A training is a column of the table, one of its rows, one seed. Several entries show the same
training (FedFed's tables on one stand-in, FedRD's tables): it is done once, then copied. A finished
    row is read from its folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privdd.cli.paper_block import paper_block
from privdd.cli.paper_rows import (
    build_row_experiment,
    config_digest,
    flat_settings_of,
    row_config,
    train_row,
)
from privdd.cli.plain_config import to_plain_settings
from privdd.cli.settings import settings_fingerprint
from privdd.cli.stored_config import read_stored_config
from privdd.cli.sweeps import Sweep, path_safe_text, point_error, short_digest
from privdd.core.types import State, Tensors, unpack
from privdd.core.validation import BadConfig
from privdd.distillation.distribution_matching import build_embedder, embed_images
from privdd.federated.checkpoint import load_checkpoint
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Progress
from privdd.models import build
from privdd.reproduce.catalogue import ACCURACY, PaperEntry, scale_overrides
from privdd.reproduce.training_code import training_code
from privdd.runtime.files import LOCK_FILE, check_plain_folder, read_json, write_json
from privdd.runtime.progress import show_progress
from privdd.runtime.run_files import MANIFEST, POINT, SOURCE, check_run_folder
from privdd.runtime.run_folder import PACKAGE, RunFolder, source_commit
from privdd.runtime.seal import is_sealed

SEVERAL_STEPS = (
    "algo.matching.iterations",
    "algo.virtual.warmup.iterations",
    "algo.virtual.refine.iterations",
    "algo.global_iterations",
)
FINISHED_FILE = "training.json"
DAMAGED_ERRORS = (ValueError, OSError, KeyError, TypeError)


@dataclass(frozen=True)
class PaperCell:
    """One number of a table. printed: the paper's accuracy in percent, None where it prints no
    number."""

    column: str
    row: str
    printed: float | None
    overrides: tuple[str, ...]

    def folder_name(self, seed: int) -> str:
        """Equal for two cells with the same training, so that it is done once; different where a
        setting that is not typed here has another value now, so that no row of earlier settings is
        shown as one of today's."""
        config = row_config(self.overrides, seed)
        return f"{path_safe_text(self.row)}-seed{seed}-{config_digest(config, config.capture)}"


def merge_overrides(*groups: Iterable[str]) -> tuple[str, ...]:
    """All overrides, the later value where a key is given twice (Hydra allows each once)."""
    last = {item.split("=", 1)[0]: item for item in chain.from_iterable(groups)}
    return tuple(last.values())


def trained_columns(entry: PaperEntry, scale: str) -> tuple[str, ...]:
    """The columns that are trained: below scale=paper those that the catalogue names."""
    columns: dict[str, Any] = paper_block(entry.experiment)["columns"]
    chosen = {"small": entry.small, "medium": entry.medium}.get(scale) or tuple(columns)
    if wrong := [name for name in chosen if name not in columns]:
        raise BadConfig(
            f"{entry.name}: experiment={entry.experiment} has no column {wrong[0]!r}; it "
            f"has {', '.join(columns)}"
        )
    return chosen


def paper_cells(entry: PaperEntry, scale: str, device: str = "cpu") -> list[PaperCell]:
    """Every number of the entry at a scale.

    Small and medium take the stand-in data that the experiment names; scale=paper takes the paper's
    own."""
    paper = paper_block(entry.experiment)
    if scale == "paper":
        offline = ()
    else:
        offline = paper["offline"]["overrides"]
    on_device = () if device == "cpu" else (f"device={device}",)
    cells = []
    for column in trained_columns(entry, scale):
        part = paper["columns"][column]
        for row, printed in part["accuracy"].items():
            shared = ([f"experiment={entry.experiment}"], part["overrides"], offline)
            row_settings = (
                scale_overrides(entry, scale, row, part["overrides"]),
                row.split(),
                on_device,
            )
            cells.append(PaperCell(column, row, printed, merge_overrides(*shared, *row_settings)))
    return cells


def full_scale_cell(entry: PaperEntry, cell: PaperCell) -> PaperCell:
    """The same number at the paper's own scale and data, against which a run is compared."""
    return next(
        one
        for one in paper_cells(entry, "paper")
        if (one.column, one.row) == (cell.column, cell.row)
    )


@cache
def row_fingerprint(overrides: tuple[str, ...]) -> str:
    """The digest of all settings of a row that decide its results."""
    return settings_fingerprint(row_config(overrides))


def settings_digest(cells: Sequence[PaperCell]) -> str:
    """A digest of all settings that decide the results of these rows. Renamed classes keep
    theirs."""
    return short_digest(row_fingerprint(cell.overrides) for cell in cells)


def pairs_digest(
    cells: Sequence[PaperCell],
    pairs: Sequence[tuple[str, str]],
    by: str = ACCURACY,
    over: Mapping[str, str] | None = None,
) -> str:
    """A digest of what is compared with what, with all settings that decide the results, and by
    what; over: row -> the row that its gain is over."""
    fingerprints = {cell.row: row_fingerprint(cell.overrides) for cell in cells}
    bases = {
        row: f"{fingerprints[row]} over {fingerprints[base]}" for row, base in (over or {}).items()
    }
    fingerprints |= bases
    return short_digest(
        f"{by} {fingerprints[better]} {fingerprints[worse]}" for better, worse in pairs
    )


def describe_steps(overrides: Sequence[Sequence[str]]) -> str:
    """The steps of distillation of these rows: "T = 20", "T = 30, 10, 100" (first, again, on the
    server), "phase A 2 x 1"."""
    return "; ".join(dict.fromkeys(filter(None, map(_row_steps, overrides))))


def _row_steps(overrides: Sequence[str]) -> str:
    settings = flat_settings_of(overrides)
    counts = [str(settings[key]) for key in SEVERAL_STEPS if key in settings]
    if "algo.distill_rounds" in settings:
        return f"phase A {settings['algo.distill_rounds']} x {settings['algo.distill_epochs']}"
    return f"T = {', '.join(counts)}" if counts else ""


def read_commit(row: Path) -> str:
    """The commit of the code that trained a row, "" where it is not known."""
    file = row / SOURCE
    if file.is_file():
        return str(read_json(file)["commit"] or "")
    return ""


def read_code(row: Path) -> str:
    """The digest of the code that trained a row, "" where it is not known."""
    file = row / SOURCE
    if file.is_file():
        return str(read_json(file).get("code", ""))
    return ""


def find_same_training(overrides: Sequence[str], seed: int, rows: Path) -> Path | None:
    """A finished row of any entry below ``rows`` (rows/EXPERIMENT/ROW) with the same settings, the
    seed among them.

    It must have kept the same messages, or those of all clients. The text around a row (its paper's
    title, printed numbers) may differ: no number depends on it.
    """
    config = row_config(overrides, seed)
    wanted = settings_fingerprint(config)
    capture = to_plain_settings(config.capture)
    for file in sorted(rows.glob(f"*/*/{FINISHED_FILE}")):
        try:
            if (
                not is_sealed(file.parent, "train")
                or read_json(file.parent / MANIFEST)["config"] != wanted
            ):
                continue
            kept = to_plain_settings(read_stored_config(file.parent).capture)
            if kept in (capture, {**capture, "clients": "all"}):
                return file.parent
        except DAMAGED_ERRORS:  # it is not this row's fault, which trains itself
            continue
    return None


def copy_row(source: Path, target: Path) -> None:
    """All files of a finished row but the sweep's own mark, the sealed manifest last."""
    shutil.copytree(
        source,
        target,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns(POINT, LOCK_FILE, MANIFEST),
    )
    shutil.copy2(source / MANIFEST, target / MANIFEST)


@dataclass(frozen=True)
class StoredRow:
    """A training and where it ended."""

    experiment: Experiment
    progress: Progress

    @property
    def model(self) -> torch.nn.Module:
        """The network, to evaluate ``global_state`` or another state in."""
        data = self.experiment.dataset
        return build(self.experiment.plan.method.model, data.shape, data.classes).eval()  # type: ignore[attr-defined]

    @property
    def global_state(self) -> State:
        """The state of the final global model."""
        return unpack("model", self.progress.server)

    def embed_images(self, x: Tensor) -> NDArray[np.float64]:
        """Images (n, c, h, w) -> what the last layer of the final global model sees (n, d)."""
        return embed_images(build_embedder(self.model, self.global_state), x).double().numpy()

    def virtual_images(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's virtual images (n, c, h, w) and their labels (n,), sorted by class."""
        memory: Tensors = self.progress.memories[client]
        images = memory["images/x"]
        labels = memory["images/label"]
        return images.flatten(0, 1), labels.repeat_interleave(images.shape[1])

    @property
    def client_names(self) -> list[str]:
        """Of their domains, where each client is one."""
        names = self.experiment.dataset.domains or ()
        clients = len(self.experiment.shards)
        if len(names) == clients:
            return list(names)
        return [f"client {client}" for client in range(clients)]


def load_stored_row(cell: PaperCell, seed: int, rows: Path) -> StoredRow | None:
    """The finished row, or None if its training did not finish. Raises DamagedRun, one line, for a
    damaged folder."""
    folder = rows / cell.folder_name(seed)
    if not is_sealed(folder, "train"):
        return None
    experiment = build_row_experiment(cell.overrides, seed)
    progress = load_checkpoint(RunFolder(folder), experiment.plan)
    if progress is None or progress.diverged is not None:
        return None
    return StoredRow(experiment, progress)


def load_stored_rows(cell: PaperCell, seeds: Sequence[int], rows: Path) -> list[StoredRow]:
    """Those of the seeds that finished."""
    return [row for seed in seeds if (row := load_stored_row(cell, seed, rows))]


@dataclass(frozen=True)
class RowJob:
    """One training."""

    sweep: Sweep
    cell: PaperCell
    seed: int

    @property
    def row_folder(self) -> Path:
        return self.sweep.folder / self.cell.folder_name(self.seed)

    @property
    def is_finished(self) -> bool:
        return is_sealed(self.row_folder, "train")


def run_job(job: RowJob) -> str:
    """Train, in whichever process; -> "" or why it failed, in one line."""
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        status = job.sweep.run_point(job.row_folder, lambda: _train_row(job))
    return point_error(job.row_folder) if status else ""


def _train_row(job: RowJob) -> int:
    """Copied where another entry has the same training. Raises BadConfig for a folder that holds
    something else."""
    check_run_folder(job.row_folder)
    if finished := find_same_training(job.cell.overrides, job.seed, job.sweep.folder.parent):
        copy_row(finished, job.row_folder)
        return 0
    code = training_code(job.cell.overrides)
    write_json(
        job.row_folder / SOURCE, {"schema": 1, "commit": source_commit(PACKAGE), "code": code}
    )
    return train_row(job.cell.overrides, job.seed, job.row_folder)


def train_cells(
    cells: Sequence[PaperCell], seeds: Sequence[int], folder: Path, jobs: int, label: str
) -> dict[Path, str]:
    """Train every cell with every seed into ``folder`` -> folder of each that failed: why.

    Rows that failed do not stop the others. The same training in two columns is done once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    check_plain_folder(folder)
    sweep = Sweep("train", folder)
    trained = {}
    for seed, cell in product(seeds, cells):
        job = RowJob(sweep, cell, seed)
        trained[job.row_folder] = job
    work = [job for job in trained.values() if not job.is_finished]
    failed: dict[Path, str] = {}
    with show_progress(label, len(trained)) as bar:
        if len(work) < len(trained):
            bar.advance(f"{len(trained) - len(work)} finished before", by=len(trained) - len(work))
        for job, error in zip(work, _run_jobs(work, jobs), strict=True):
            if error:
                failed[job.row_folder] = error
            bar.advance(f"{job.cell.row}, seed {job.seed}{': failed' if error else ''}")
    return failed


def _run_jobs(work: Sequence[RowJob], jobs: int) -> Iterator[Any]:
    if jobs == 1 or len(work) < 2:
        return (run_job(job) for job in work)
    from privdd.runtime.process_pool import process_map

    return process_map(run_job, work, workers=min(jobs, len(work)), threads=1, retries=1)
