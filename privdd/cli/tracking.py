"""Scalars of a finished run for a viewer: TensorBoard, MLflow or Weights & Biases. findings.json remains the result."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from privdd.core.errors import BadConfig
from privdd.reporting.schema import Findings

MEASURES = ("auc", "epsilon_measured", "psnr", "ssim", "lpips", "label_accuracy", "kappa")
TRACKERS = ("tensorboard", "mlflow", "wandb")  # each the name of its package and of its extra


def check_tracking(choice: Any) -> None:
    """Before anything is computed: raises BadConfig for an unknown tracker or one that is not installed."""
    if choice is None:
        return
    if choice not in TRACKERS:
        raise BadConfig(f"tracking={choice}: allowed are null, {', '.join(TRACKERS)}")
    if importlib.util.find_spec(choice) is None:
        extra = "tracking" if choice == "tensorboard" else choice
        raise BadConfig(f"tracking={choice}: the package is missing; pip install 'privdd[{extra}]'")


def track(choice: Any, folder: Path, accuracy: Sequence[float], scalars: Mapping[str, float]) -> None:
    """Accuracy by round and single numbers; does nothing where no tracker is chosen.

    Infinite numbers are left out: the viewers have no place for them. Without settings of their own MLflow writes
    below ``folder/mlflow`` and Weights & Biases, offline, into ``folder-wandb`` beside it (it
    leaves links, and a run folder holds plain files only).
    """
    if choice is None:
        return
    points = [("accuracy", value, at) for at, value in enumerate(accuracy, 1)]
    points += [(name, value, len(accuracy)) for name, value in scalars.items() if math.isfinite(value)]
    {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}[choice](folder, points)


Points = Sequence[tuple[str, float, int]]


def _tensorboard(folder: Path, points: Points) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(log_dir=str(folder / "tensorboard")) as writer:
        for name, value, step in points:
            writer.add_scalar(name, value, step)


def _mlflow(folder: Path, points: Points) -> None:
    """To MLFLOW_TRACKING_URI where it is set, else to a file in the run's folder."""
    import mlflow

    if "MLFLOW_TRACKING_URI" not in os.environ:
        (folder / "mlflow").mkdir(parents=True, exist_ok=True)
        mlflow.set_tracking_uri(f"sqlite:///{(folder / 'mlflow' / 'mlflow.db').resolve()}")
    mlflow.set_experiment("privdd")
    with mlflow.start_run(run_name=folder.name):
        for name, value, step in points:
            mlflow.log_metric(_plain(name), value, step=step)


def _plain(name: str) -> str:
    """Of the characters that MLflow takes in a metric's name."""
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)


def _wandb(folder: Path, points: Points) -> None:
    """Offline unless WANDB_MODE says otherwise; ``wandb sync`` sends the folder later."""
    import wandb

    beside = folder.with_name(f"{folder.name}-wandb")
    beside.mkdir(parents=True, exist_ok=True)
    settings = {"mode": os.environ.get("WANDB_MODE", "offline"), "dir": str(beside)}
    with wandb.init(project="privdd", name=folder.name, **settings) as run:  # type: ignore[arg-type]
        for step, values in _by_step(points):
            run.log(values, step=step)


def _by_step(points: Points) -> Iterator[tuple[int, dict[str, float]]]:
    for step in sorted({step for _, _, step in points}):
        yield step, {name: value for name, value, at in points if at == step}


def scalars_of(findings: Findings) -> dict[str, float]:
    """name -> number: epsilons of the run, and each finding's measures under surface/attack/adversary."""
    found = {f"epsilon/{name}": value for name, value in findings.privacy.epsilon if isinstance(value, float)}
    for row in findings.findings:
        stem = f"{row.surface}/{row.attack}/{row.adversary}"
        found |= {f"{stem}/{name}": getattr(row, name) for name in MEASURES if getattr(row, name) is not None}
        rates = row.tpr_at_fpr or {}
        found |= {f"{stem}/tpr_at_{key}": at.tpr for key, at in rates.items() if at.resolvable}
    return found
