"""What of a run with ``preset=paper`` is not its paper's: data, partition, participation, network.

The preset alone has the method's own settings; the rest of an experiment comes with
``experiment=NAME``. What is the paper's is read from the table by which experiments are judged
(``privdd/reproduce/papers``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

import privdd
from privdd.runtime.yaml_files import read_shipped_yaml

PAPER_FOLDER = Path(privdd.__file__).parent / "reproduce" / "papers"
# method -> the experiment with which its paper begins
FIRST_EXPERIMENTS = {
    "feddm": "feddm_table2",
    "fedrd": "fedrd_table1",
    "fedfed": "fedfed_table1",
    "fedlgd": "fedlgd_table1",
}
# start of a setting's key -> what it is in words
PARTS = {
    "data.name": "data",
    "partition.": "partition",
    "participation": "participation",
    "model.": "network",
}
NARROWED = ("rows", "unless")  # statements about some rows of a table only


def describe_paper_differences(config: DictConfig) -> str:
    """A line that names what is not the paper's, and the experiment that has it; "" if there is
    nothing to say."""
    module = str(OmegaConf.select(config, "algo._target_", default="")).rpartition(".")[0]
    experiment = FIRST_EXPERIMENTS.get(module.rpartition(".")[2])
    is_paper_preset = OmegaConf.select(config, "preset.name") == "paper"
    if experiment is None or not is_paper_preset or config.get("paper"):
        return ""
    parts = list(_differing_parts(config, experiment))
    if not parts:
        return ""
    if len(parts) == 1:
        named = parts[0]
    else:
        named = f"{', '.join(parts[:-1])} and {parts[-1]}"
    if len(parts) == 1 and parts[0] != "data":
        verb = "is"
    else:
        verb = "are"
    return (
        f"preset=paper: {named} {verb} not the paper's; with experiment={experiment} preset=paper "
        "they are"
    )


def _differing_parts(config: DictConfig, experiment: str) -> Iterator[str]:
    printed = _printed_values(experiment)
    for start, part in PARTS.items():
        keys = [key for key in printed if key.startswith(start)]
        if any(OmegaConf.select(config, key) not in printed[key] for key in keys):
            yield part


def _printed_values(experiment: str) -> Mapping[str, list[Any]]:
    """Key -> the values that the paper prints for some column of the experiment."""
    table = read_shipped_yaml(PAPER_FOLDER / f"{experiment.partition('_')[0]}.yaml")
    values: dict[str, list[Any]] = {}
    for statement in table["printed"]:
        is_about = experiment in statement.get("experiments", [experiment])
        if not is_about or any(name in statement for name in NARROWED):
            continue
        for key, value in statement["settings"].items():
            is_choice = isinstance(value, Mapping) and "tuned" in value
            values.setdefault(key, []).extend(value["tuned"] if is_choice else [value])
    return values
