"""What an experiment of a paper says of itself: its source, columns and printed numbers. Imports no
torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from privdd.cli.compose import config_dir, group_choices
from privdd.core.validation import BadConfig
from privdd.runtime.yaml_files import read_shipped_yaml


@lru_cache(maxsize=64)
def paper_block(experiment: str) -> Mapping[str, Any]:
    """The ``paper`` block of ``experiment=NAME`` as written: source, metric, terms, columns with
    the printed numbers.

    Raises BadConfig for an unknown experiment.
    """
    names = group_choices("experiment", [config_dir()])
    if experiment not in names:
        raise BadConfig(f"experiment={experiment}: one of {', '.join(names)}")
    block: dict[str, Any] = read_shipped_yaml(
        Path(config_dir()) / "experiment" / f"{experiment}.yaml"
    )["paper"]
    return block
