"""Scalars of a finished run for a viewer such as TensorBoard; findings.json remains the result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privdd.core.errors import BadConfig
from privdd.reporting.schema import Findings

MEASURES = ("auc", "epsilon_measured", "psnr", "ssim", "lpips", "label_accuracy", "kappa")


def check_tracking(choice: Any) -> None:
    """Before anything is computed: raises BadConfig for an unknown tracker or one that is not installed."""
    if choice is None:
        return
    if choice != "tensorboard":
        raise BadConfig(f"tracking={choice}: allowed are null, tensorboard")
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise BadConfig("tracking=tensorboard: the package is missing; pip install 'privdd[tracking]'") from None


def track(choice: Any, folder: Path, accuracy: Sequence[float], scalars: Mapping[str, float]) -> None:
    """Accuracy by round and single numbers into ``folder/tensorboard``; does nothing where no tracker is chosen.

    Infinite numbers are left out: the viewer has no place for them.
    """
    if choice is None:
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(log_dir=str(folder / "tensorboard")) as writer:
        for round_, value in enumerate(accuracy, 1):
            writer.add_scalar("accuracy", value, round_)
        for name, value in scalars.items():
            if math.isfinite(value):
                writer.add_scalar(name, value, len(accuracy))


def scalars_of(findings: Findings) -> dict[str, float]:
    """name -> number: epsilons of the run, and each finding's measures under surface/attack/adversary."""
    found = {f"epsilon/{name}": value for name, value in findings.privacy.epsilon if isinstance(value, float)}
    for row in findings.findings:
        stem = f"{row.surface}/{row.attack}/{row.adversary}"
        found |= {f"{stem}/{name}": getattr(row, name) for name in MEASURES if getattr(row, name) is not None}
        rates = row.tpr_at_fpr or {}
        found |= {f"{stem}/tpr_at_{key}": at.tpr for key, at in rates.items() if at.resolvable}
    return found
