"""Tests of ``privdd.cli.compose``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from privdd.cli.build import build_experiment
from privdd.cli.compose import (
    expand_arguments,
    format_assignment,
    format_shell_assignment,
    overrides_as_typed,
    quote_paths,
    settings_to_overrides,
)
from privdd.cli.main import check_command, config_of
from privdd.cli.run import print_resume_command

# Paths of any letters are read by Hydra, and what is printed can be pasted into a shell.


SMALL = ["preset=smoke", "data.limit=90", "partition=iid", "partition.clients=2"]
NAMES = [
    "plain",
    "a b",
    "négé中",
    "it's",
    "a=b",
    "{x}",
    "back\\slash",
    'say "x"',
    "$HOME",
    "a(b)",
    "50%",
    "tail\\",
]


def run_folder_at(path: Path) -> Path:
    """A folder that is there, with the file by which a run is known."""
    path.mkdir(parents=True)
    (path / "config.yaml").write_text("{}\n")
    return path


@pytest.mark.nightly(cases=['say "x"', "$HOME", "a(b)", "50%"])
@pytest.mark.parametrize("name", NAMES)
def test_a_path_comes_through_the_shell_and_hydra(name: str, tmp_path: Path) -> None:
    """What is printed, pasted into a shell and read by Hydra, is the path again."""
    path = run_folder_at(tmp_path / name)
    (word,) = shlex.split(format_shell_assignment("resume", str(path)))
    assert check_command("train", quote_paths([word])).resume == str(path)
    assert quote_paths([format_assignment("resume", name)]) == [
        format_assignment("resume", name)
    ]  # once quoted, it stays


@pytest.mark.parametrize("name", ["négé中", "a b", "50%"])
def test_a_path_needs_no_quotes_of_hydra(name: str, tmp_path: Path) -> None:
    np.savez(tmp_path / f"{name}.npz", x=np.zeros((30, 4, 4), np.uint8), y=np.arange(30) % 3)
    config = config_of("train", *SMALL, "data=npz", f"data.root={tmp_path / name}.npz")
    assert (
        config.data.root == f"{tmp_path / name}.npz"
        and build_experiment(config).dataset.classes == 3
    )


def test_the_resume_hint_can_be_pasted(tmp_path: Path) -> None:
    records = tmp_path / "rené x.npz"
    np.savez(records, x=np.zeros((30, 4, 4), np.uint8), y=np.arange(30) % 3)
    folder = run_folder_at(tmp_path / "a é")
    config = config_of("train", "preset=smoke", "data=npz", f"data.root={records}")
    with pytest.raises(KeyboardInterrupt) as caught, print_resume_command("train", folder, config):
        raise KeyboardInterrupt
    words = shlex.split(str(caught.value))
    found = check_command("train", ["data=npz", *words[words.index("privdd.train") + 1 :]])
    assert (found.resume, found.data.root) == (str(folder), str(records))


@pytest.mark.parametrize(
    ("settings", "typed"),
    [
        ({"algo": "fedfed", "seed": 3}, ["algo=fedfed", "seed=3"]),
        ({"attack": ["lira", "rmia"]}, ["attack=[lira,rmia]"]),
        ({"privacy": {"epsilon": 0.5}}, ["privacy.epsilon=0.5"]),
        ({"privacy.paired_noise": True, "run": None}, ["privacy.paired_noise=true", "run=null"]),
        ({"data": {"root": "/home/rené/my data"}}, ["data.root='/home/rené/my data'"]),
        ({"privacy": {"mechanisms": {"x": {"tau": 1}}}}, ["privacy.mechanisms.x.tau=1"]),
    ],
)
def test_python_values_become_overrides(settings: dict[str, Any], typed: list[str]) -> None:
    assert [*settings_to_overrides(settings)] == typed
    for item in typed:  # and the grammar reads them back
        OverridesParser.create().parse_override(item)


# A run's recorded command is the one that was typed, and typed again it means the same.


CASES = {
    "nothing typed": ["algo=fedfed", "preset=smoke"],
    "all": ["algo=fedfed", "attack=all"],
    "all and one more": ["attack=[all,label_only]", "algo=feddm"],
    "a few": ["algo=fedavg", "attack=[lira,rmia]"],
    "a few, all of them required": ["algo=fedavg", "attack=[lira]", "audit.require=all"],
    "a pattern of one": ["algo=glob(feddm)"],
}


@pytest.mark.parametrize("kind", CASES)
def test_what_was_typed_comes_back_and_means_the_same(kind: str) -> None:
    given = CASES[kind]
    ran = expand_arguments(given, "audit")  # Hydra's list of a run without a sweep
    shown = overrides_as_typed(ran, given)
    typed = [item.replace("glob(feddm)", "feddm") for item in given]
    assert sorted(shown) == sorted(typed)
    assert sorted(expand_arguments(shown, "audit")) == sorted(ran)


def test_of_a_sweep_the_value_of_this_run_is_shown() -> None:
    given = ["-m", "algo=feddm,fedavg", "attack=[lira],[rmia]"]
    assert overrides_as_typed(["algo=fedavg", "attack=[rmia]", "audit.require=some"], given) == [
        "algo=fedavg",
        "attack=[rmia]",
    ]
