"""Sweeps: one folder per sweep, finished points are kept after a kill, and one comparison at the
end.

Hydra's launchers run the points in this process, in others, or on other machines, so the result of
a point is always read from its folder, never from memory.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType

from privdd.core.validation import BadConfig
from privdd.runtime.files import DamagedRun, read_json, read_json_object, write_json
from privdd.runtime.progress import format_seconds
from privdd.runtime.run_files import FINDINGS, POINT, TRAINING
from privdd.runtime.seal import is_sealed

POINT_FILE = POINT


def short_digest(parts: Iterable[str]) -> str:
    """Eight hexadecimal digits that do not depend on the order of ``parts``."""
    return hashlib.blake2b("\n".join(sorted(parts)).encode(), digest_size=4).hexdigest()


def path_safe_text(text: str, limit: int = 80) -> str:
    """``text`` as part of a folder name: letters, digits and _.+- only, so that it can be typed as
    run=DIR."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", text.replace("=", "-"))[:limit].strip("_.-")


def point_name(overrides: str) -> str:
    """A folder name for one point from its comma-joined overrides: readable, safe, unique in its
    sweep."""
    short = re.sub(r"(^|,)[^=,]*[./@]([^=,./@]+=)", r"\1\2", overrides)
    return f"{path_safe_text(short) or 'point'}-{short_digest([overrides])}"


def _parse_overrides(argv: Sequence[str]) -> list[Override]:
    typed = [a for a in argv if "=" in a and not a.startswith(("-", "hydra."))]
    return [
        o
        for o in OverridesParser.create().parse_overrides(typed)
        if not o.key_or_group.startswith("hydra/")
    ]


def count_points(argv: Sequence[str]) -> int | None:
    """How many points a command line spans; None where only Hydra knows (as of another sweeper)."""
    swept = [o for o in _parse_overrides(argv) if o.is_sweep_override()]
    countable = {ValueType.CHOICE_SWEEP, ValueType.SIMPLE_CHOICE_SWEEP, ValueType.RANGE_SWEEP}
    if any("hydra/sweeper=" in a for a in argv) or not all(
        o.value_type in countable for o in swept
    ):
        return None
    return math.prod(sum(1 for _ in o.sweep_iterator()) for o in swept)


def first_values(overrides: Iterable[Override]) -> list[str]:
    """The overrides as they were typed, a sweep as its first value."""
    return [_first_value(override) for override in overrides]


def _first_value(override: Override) -> str:
    if override.is_sweep_override():
        return f"{override.key_or_group}={next(iter(override.sweep_string_iterator()))}"
    return str(override.input_line)


def first_point(argv: Sequence[str]) -> list[str]:
    """The arguments of the first point of a sweep; those of anything else as they are."""
    if not is_sweep(argv):
        return list(argv)
    parsed = _parse_overrides(argv)
    first = dict(zip((o.input_line for o in parsed), first_values(parsed), strict=True))
    return [
        first.get(a, a)
        for a in argv
        if a not in ("-m", "--multirun") and not a.startswith("hydra.mode=")
    ]


def sweep_folder_name(command: str, argv: Sequence[str]) -> str:
    """A folder name from the swept keys and the fixed values; adding values to a swept key does not
    change it."""
    parsed = _parse_overrides(argv)
    swept = [o.key_or_group for o in parsed if o.is_sweep_override()]
    fixed = sorted((o.key_or_group, str(o.input_line)) for o in parsed if not o.is_sweep_override())
    names = [
        command,
        *(text for key, text in fixed if key == "algo"),
        *sorted(key.rsplit(".", 1)[-1] for key in swept),
    ]
    mark = short_digest([command, *(f"{key}=*" for key in swept), *(text for _, text in fixed)])
    return f"{path_safe_text('-'.join(names))}-{mark}"


def is_sweep(argv: Sequence[str]) -> bool:
    """Whether Hydra will run several points."""
    return any(a in ("-m", "--multirun") or a.startswith("hydra.mode=MULTIRUN") for a in argv)


def pin_sweep_folder(argv: Sequence[str], folder: Path) -> list[str]:
    """The arguments with the sweep's folder spelled out, so that all workers use the same one.

    Points are named after the swept values.
    """
    keys = ",".join(
        sorted(f"'{o.key_or_group}'" for o in _parse_overrides(argv) if not o.is_sweep_override())
    )
    arguments = [a for a in argv if not a.startswith("hydra.sweep.dir=")]
    return [
        *arguments,
        f"hydra.sweep.dir='{folder}'",
        f"hydra.job.config.override_dirname.exclude_keys=[{keys}]",
    ]


@dataclass(frozen=True)
class Sweep:
    """One start of a sweep. token: tells its points from those of earlier starts in the same
    folder; total: how many points there will be, None = not known; began: seconds since the epoch,
    for all its workers."""

    command: str
    folder: Path
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    total: int | None = None
    began: float = field(default_factory=time.time)

    def run_point(
        self, path: Path, work: Callable[[], int], check: Callable[[], object] = lambda: None
    ) -> int:
        """Run one point, or skip it where it is finished -> status; a failing point does not stop
        the others.

        check: raises where what is finished there is not what is asked for now.
        """
        _check_mark(path)
        self._write_mark(path, None)

        def skip_finished() -> int:
            check()
            print(f"privdd: {path.name} is finished, skipped", file=sys.stderr)
            return stored_status(path)

        is_finished = is_sealed(path, self.command)
        status, line = _try_point(skip_finished if is_finished else work)
        if line:
            print(f"privdd: error: {path.name}: {line}", file=sys.stderr)
        self._write_mark(path, status, line)
        print(self.describe_progress(), file=sys.stderr, flush=True)
        return status

    def describe_progress(self) -> str:
        """How far the whole sweep is, whichever processes its points run in."""
        marks = [read_json(file) for file in self.folder.glob(f"*/{POINT_FILE}")]
        ended = [
            mark["status"]
            for mark in marks
            if mark.get("sweep") == self.token and mark["status"] is not None
        ]
        spent = time.time() - self.began
        if self.total is None:
            points = f"{len(ended)}"
        else:
            points = f"{len(ended)} of {self.total}"
        parts = [f"sweep: {points} points"]
        if 1 in ended:
            parts.append(f"{ended.count(1)} failed")
        parts.append(f"{format_seconds(spent)} so far")
        remaining = (self.total or 0) - len(ended)
        if remaining > 0 and ended:
            parts.append(f"about {format_seconds(spent / len(ended) * remaining)} left")
        return ", ".join(parts)

    def _write_mark(self, path: Path, status: int | None, error: str = "") -> None:
        write_json(path / POINT_FILE, {"sweep": self.token, "status": status, "error": error})

    def point_statuses(self) -> dict[Path, int]:
        """Folder -> status of every point that this start reached; an interrupted one counts as
        failed."""
        marks = {
            file.parent: read_json(file) for file in sorted(self.folder.glob(f"*/{POINT_FILE}"))
        }
        mine = {path: mark for path, mark in marks.items() if mark.get("sweep") == self.token}
        return {
            path: 1 if mark["status"] is None else int(mark["status"])
            for path, mark in mine.items()
        }

    def finish_sweep(self) -> int:
        """Write the comparison of all finished points -> 2 after a contradiction, 1 after a
        failure, else 0."""
        statuses = self.point_statuses()
        # A training that diverged has status 1 and is shown too. A point that says that it ended
        # and is not as it was sealed stays in the list: reading it ends in one line, but leaving
        # it out would say nothing.
        done = [
            path
            for path, status in statuses.items()
            if status != 1 or is_sealed(path, self.command)
        ]
        failed = [path for path, status in statuses.items() if status == 1]
        print(f"\nsweep: {len(done)} of {len(statuses)} points finished in {self.folder}")
        for path in failed:
            print(
                f"privdd: error: {path.name} failed: "
                f"{point_error(path) or why_not_done(path, self.command)}",
                file=sys.stderr,
            )
        if done and self.command == "audit":
            from privdd.verification.run_folder import compare

            print(
                f"comparison: {compare(done, self.folder)}\nfrontier: "
                f"{self.folder / 'frontier.csv'}"
            )
        trained = [path for path in done if (path / "training.json").is_file()]
        if trained and self.command == "train":
            from privdd.reporting.comparison import print_training_table, write_training_table
            from privdd.verification.recomputed import load_verified_training

            table = write_training_table(trained, self.folder, load_verified_training)
            print_training_table(trained, sys.stdout)
            print(f"table: {table}")
        if 2 in statuses.values():
            return 2
        return int(bool(failed) or not statuses)


def _check_mark(path: Path) -> None:
    """Raises BadConfig where a file of that name is no mark of a sweep: it would be overwritten."""
    file = path / POINT_FILE
    if not os.path.lexists(file):
        return
    try:
        is_mark = {"sweep", "status"} <= read_json_object(file).keys()
    except DamagedRun:
        is_mark = False
    if not is_mark:
        raise BadConfig(
            f"{file}: a sweep did not write this file, so it is kept; choose another folder"
        )


def _try_point(work: Callable[[], int]) -> tuple[int, str]:
    from privdd.cli.errors import explain_error

    try:
        return work(), ""
    except Exception as error:
        line = explain_error(error)
        if line is None:
            traceback.print_exc()
        return 1, line or f"{type(error).__name__}: {error}"


def stored_status(path: Path) -> int:
    """The exit status that a finished run had: 2 where it found a contradiction, 1 where its
    training diverged."""
    findings = read_json_object(path / FINDINGS, optional=True)
    if findings.get("verdict") == "contradiction":
        return 2
    results = (findings.get("utility"), read_json_object(path / TRAINING, optional=True))
    return int(any(isinstance(part, dict) and part.get("diverged") is not None for part in results))


def why_not_done(path: Path, command: str) -> str:
    """Why a point whose status is 1 says no error."""
    if is_sealed(path, command):
        return "its training diverged"
    return "cut off"


def point_error(path: Path) -> str:
    """Why a point failed, in one line ("" where it did not)."""
    return str(read_json(path / POINT_FILE)["error"])
