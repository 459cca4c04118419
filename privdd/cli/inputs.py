"""What a command is given to read: that it is there is told before anything that takes long is
imported."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from privdd.core.validation import BadConfig
from privdd.data.own_data import OWN_DATA, own_data_place
from privdd.runtime.own_yaml import compose_own_yaml

TRACKERS = ("tensorboard",)
CONFIG_FILE = "config.yaml"
FINDINGS_FILE = "findings.json"


def check_inputs(config: DictConfig) -> None:
    """Raises BadConfig, or DataNotFound, for the first file or folder that is named and is not what
    is needed."""
    for word in ("resume", "run"):
        if (folder := config.get(word)) is not None:
            check_run_folder(word, Path(str(folder)))
            return  # data and the rest are those of the stored run
    check_tracking(config.get("tracking"))
    if (policy := config.get("policy")) is not None:
        compose_own_yaml(Path(str(policy)))
    if (scores := config.get("scores")) is not None:
        if not Path(str(scores)).is_file():
            raise BadConfig(f"scores={scores}: no such file")
        return
    data: Any = config.get("data") or {}
    if data.get("name") in OWN_DATA:
        own_data_place(data["name"], data.get("root"))


def check_run_exists(word: str, path: Path) -> None:
    """Raises BadConfig for a path where nothing is."""
    if not path.exists():
        raise BadConfig(f"{word}={path}: no such folder")


def check_run_folder(word: str, path: Path) -> None:
    """Raises BadConfig for a path that is no folder of a run."""
    check_run_exists(word, path)
    if not (path / CONFIG_FILE).is_file():
        raise BadConfig(f"{word}={path}: not a run folder (no {CONFIG_FILE})")


def check_tracking(choice: Any) -> None:
    """Before anything is computed: raises BadConfig for an unknown tracker or one that is not
    installed."""
    if choice is None:
        return
    if choice not in TRACKERS:
        raise BadConfig(f"tracking={choice}: allowed are null, {', '.join(TRACKERS)}")
    if importlib.util.find_spec(choice) is None:
        raise BadConfig(f"tracking={choice}: the package is missing; pip install {choice}")
