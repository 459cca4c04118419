"""``manifest.json``: where, when and on what a run was made."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from privdd import __version__
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Progress
from privdd.runtime.engine import describe


def manifest(
    experiment: Experiment, progress: Progress, seconds: Mapping[str, float], argv: Sequence[str]
) -> dict[str, Any]:
    """Where, when and on what a run was made, and every client's bytes by round."""
    return {
        "schema": 1,
        "version": __version__,
        "seed": experiment.plan.keys.seed,
        "config": experiment.run.fingerprint,
        "command": list(argv),
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "python": sys.version.split()[0],
            "torch": torch.__version__,
        },
        "engine": describe(experiment.engine),
        "audited_client": experiment.plan.victim,
        "data_note": experiment.dataset.note,
        "seconds": dict(seconds),
        "uploaded_bytes": [{str(k): v for k, v in r.items()} for r in progress.uploaded],
        "downloaded_bytes": [{str(k): v for k, v in r.items()} for r in progress.downloaded],
    }
