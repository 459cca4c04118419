"""Wrong values are refused before torch is imported, in the words of the full check."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import open_dict

from privdd.cli.compose import compose_config
from privdd.cli.overrides import check_changed_settings, check_overrides
from privdd.core.validation import BadConfig

WRONG = {
    "privacy=dpsgd privacy.noise_multiplier=-1": "noise_multiplier=-1: a finite number above 0",
    "privacy=dpsgd privacy.sampling_probability=abc": "privacy.sampling_probability='abc': a number",
    "privacy=client privacy.clip_norm=0": "clip_norm=0: a finite number above 0",
    "partition.clients=0": "partition.clients=0: from 1 to",
    "partition.clients=abc": "partition.clients='abc': a whole number",
    "partition.alpha=-1": "partition.alpha=-1: a finite number > 0",
    "partition.min_size=0": "partition.min_size=0: an integer >= 1",
    "partition=subset partition.main=2": "partition.main=2: a fraction in",
    "partition.name=nosuch": "partition.name='nosuch': one of dirichlet",
    "model.width=0": "model.width=0: an integer from 1",
    "model.norm=nosuch": "model.norm='nosuch': one of instance",
    "algo.lr=nan": "algo.lr=nan: a finite number",
    "algo.rounds=0": "rounds=0: a whole number of at least 1",
    "algo=fedprox algo.momentum=2": "momentum=2: a number in [0, 1)",
    "data.name=nosuch": "data.name='nosuch': one of digits",
    "data.limit=-5": "data.limit=-5: an integer >= 1",
    "data.limit=abc": "data.limit='abc': a whole number",
    "engine.workers=-1": "engine.workers=-1: an integer of at least 0",
    "capture.rounds=abc": "capture.rounds=abc: allowed are all",
    "trust=secagg trust.dropout=2": "trust.dropout=2: a number in [0, 1)",
    "attack=[rmia] attack.rmia.gamma=-1": "gamma=-1",
}


def test_wrong_values_are_refused_without_torch() -> None:
    program = (
        "import json, sys, privdd.cli.main; from privdd.cli.overrides import check_overrides\n"
        "for typed in json.load(sys.stdin):\n"
        "    try: check_overrides('audit', typed.split()); print('passed')\n"
        "    except ValueError as error: print(error, *({'torch', 'scipy', 'dp_accounting'} & {*sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], input=json.dumps([*WRONG]), capture_output=True, text=True)
    said = done.stdout.splitlines()
    assert len(said) == len(WRONG), done.stderr
    for typed, line in zip(WRONG, said, strict=True):
        assert line.startswith(WRONG[typed]) and not line.endswith((" torch", " scipy", " dp_accounting")), (typed, line)


def test_right_values_and_what_is_not_built_pass() -> None:
    check_overrides("audit", ["algo.rounds=3", "algo.lr=1", "model.norm=null", "partition.heldout=12", "data.limit=50"])
    check_overrides("audit", ["scores=some.npz", "algo.rounds=0"])  # of scores nothing is trained


def test_only_what_differs_from_the_chosen_files_is_looked_at() -> None:
    """A file that is wrong itself is left to the full check."""
    base = compose_config("train", ["algo.rounds=0"])
    check_changed_settings(compose_config("train", ["algo.rounds=0", "seed=3"]), base)
    with pytest.raises(ValueError, match=r"^rounds=0: a whole number of at least 1"):
        check_changed_settings(base, compose_config("train", []))
    with pytest.raises(BadConfig, match=r"^algo\.rounds='x': a whole number"):
        check_changed_settings(compose_config("train", ["algo.rounds=x"]), base)


def test_a_class_of_another_package_is_not_called(tmp_path: Path) -> None:
    """What may be called is the full check's to decide; not even the standard library is."""
    base = compose_config("audit", ["attack=[lira]"])
    config = compose_config("audit", ["attack=[lira]"])
    with open_dict(config):
        config.attack.lira = {"_target_": "logging.FileHandler", "filename": str(tmp_path / "made")}
    check_changed_settings(config, base)
    assert list(tmp_path.iterdir()) == []
