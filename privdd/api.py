"""The commands as functions, for notebooks and scripts.

>>> from privdd.api import audit
>>> audit("algo=fedavg", "preset=smoke", out="runs/first").verdict  # doctest: +SKIP
'unprotected'
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privdd.cli.main import config_of
from privdd.cli.runs import run_audit, run_training
from privdd.reporting.comparison import write_comparison as compare
from privdd.reporting.folder import RunRecord
from privdd.reporting.folder import read_run as load_run
from privdd.reporting.schema import Findings
from privdd.runtime.run_folder import read_json

__all__ = ["Findings", "RunRecord", "audit", "compare", "config_of", "load_run", "train"]


def audit(*overrides: str, out: Path | str | None = None, config_dir: Path | str | None = None) -> Findings:
    """Train, replay, attack and report into ``out`` (new: one under ./outputs) -> what findings.json holds.

    overrides: as on the command line, "algo=fedavg". A folder that holds a part of the same run is gone
    on with. Raises ValueError with one line for what cannot run.
    """
    folder = _folder(out)
    run_audit(config_of("audit", *overrides, config_dir=config_dir), folder, _command("audit", overrides))
    return load_run(folder).findings


def train(*overrides: str, out: Path | str | None = None, config_dir: Path | str | None = None) -> Mapping[str, Any]:
    """Training alone -> training.json: accuracy, accuracy_by_round, epsilon {"pld", "rdp"}, bytes."""
    folder = _folder(out)
    run_training(config_of("train", *overrides, config_dir=config_dir), folder, _command("train", overrides))
    return read_json(folder / "training.json")


def _folder(out: Path | str | None) -> Path:
    return Path(out) if out is not None else Path(time.strftime("outputs/%Y-%m-%d/%H-%M-%S-") + uuid.uuid4().hex[:6])


def _command(command: str, overrides: tuple[str, ...]) -> list[str]:
    return ["python", "-m", f"privdd.{command}", *overrides]
