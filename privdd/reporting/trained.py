"""A sweep of trainings as a table: accuracy beside the accounted epsilon, by setting over its seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from rich.table import Table as Drawn
from rich.text import Text

from privdd.reporting.findings_file import FindingsError
from privdd.reporting.folder import RunRecord, read_config
from privdd.reporting.grouping import Setting, settings
from privdd.reporting.schema import Findings, Run, Seconds, Utility
from privdd.reporting.schema_privacy import EpsilonPair, Privacy
from privdd.reporting.tables import Table, frontier_table, to_csv
from privdd.reporting.terminal import console_for
from privdd.reporting.words import number, share
from privdd.runtime.files import read_json, write_bytes

# Of the columns of an audit's frontier: what training alone knows. Nothing was attacked, so nothing is judged.
KNOWN = (
    "method", "setting", "seeds", "epsilon_pld", "epsilon_rdp", "delta", "unit", "relation", "accuracy_mean",
    "accuracy_std", "accuracy_min", "accuracy_max", "diverged", "uploaded_bytes_per_client",
)  # fmt: skip


def read_training(path: Path) -> RunRecord:
    """One training as a run without findings. Raises FindingsError or DamagedRun, one line, for another folder."""
    config, result = read_config(path / "config.yaml"), read_json(path / "training.json")
    try:
        privacy = {name: result[name] for name in ("delta", "unit", "relation")}
        seconds = Seconds(train=0, worlds=0, attacks=0, total=0)
        data, preset = (str(config[name]["name"]) for name in ("data", "preset"))
        run = Run(
            algo=str(config["name"]), data=data, preset=preset, seed=int(config["seed"]), version="", clients=0, rounds=0,
            seconds=seconds,
        )  # fmt: skip
        found = Findings(
            run=run, utility=_utility(result), surfaces=[], findings=[],
            privacy=Privacy(epsilon=EpsilonPair(**result["epsilon"]), claims=[], **privacy),
            verdict="unprotected" if result["epsilon"]["pld"] == "inf" else "consistent",  # never shown
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise FindingsError(f"{path}: not a finished training ({' '.join(str(error).split())[:100]})") from None
    return RunRecord(path, found, config=config)


def _utility(result: dict[str, Any]) -> Utility:
    sizes = {name: result[name] for name in ("uploaded_bytes_per_client", "downloaded_bytes_per_client")}
    return Utility(accuracy=result["accuracy"], accuracy_kind="global", diverged=result.get("diverged"), **sizes)


def trained_table(made: Sequence[Setting]) -> Table:
    """One row per setting, as an audit's ``frontier.csv`` has it."""
    header, rows = frontier_table(made)
    at = [list(header).index(name) for name in KNOWN]
    return KNOWN, [[row[i] for i in at] for row in rows]


def write_trained(paths: Sequence[Path], out: Path, read: Callable[[Path], RunRecord] = read_training) -> Path:
    """``out/training.csv`` of finished trainings, each opened by ``read``; returns its path."""
    write_bytes(out / "training.csv", to_csv(trained_table(settings([read(p) for p in paths]))).encode())
    return out / "training.csv"


def print_trained(paths: Sequence[Path], file: IO[str]) -> None:
    """The same for reading."""
    table = Drawn(title="Accuracy and accounted epsilon", title_justify="left")
    table.add_column("setting", overflow="fold")
    for name in ("seeds", "accuracy", "epsilon (PLD)", "epsilon (RDP)", "delta"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in settings([read_training(path) for path in paths]):
        privacy = one.runs[0].findings.privacy
        pld = max(run.findings.privacy.epsilon.pld for run in one.runs)
        cells = (one.label, len(one.runs), _accuracy(one), number(pld), number(one.epsilon_rdp), number(privacy.delta))
        table.add_row(*(Text(str(cell)) for cell in cells))
    console_for(file).print(table)


def _accuracy(setting: Setting) -> str:
    gone = f"{setting.diverged} of {len(setting.runs)} diverged" if setting.diverged else ""
    if not setting.accuracies:
        return gone
    low, high = min(setting.accuracies), max(setting.accuracies)
    spread = "" if math.isclose(low, high) else f" ({share(low)} to {share(high)})"
    return ", ".join(filter(None, (f"{share(setting.accuracy)}{spread}", gone)))
