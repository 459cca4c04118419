"""``--dry-run`` prints the price of an audit and keeps nothing."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from privdd.auditing import cost_estimate
from privdd.cli import main
from privdd.cli.build import build_experiment
from privdd.cli.main import _run_command, config_of
from privdd.core.rng import Keys
from privdd.core.validation import BadConfig, DataNotFound
from privdd.data import readers
from privdd.data.sources import load_shape
from privdd.runtime.engine import Engine
from tests.fake_device import fake_gpu

FEW = [
    "algo=fedproto",
    "preset=smoke",
    "data.limit=150",
    "data.test_limit=40",
    "partition.clients=3",
    "model.width=4",
]


@pytest.fixture(autouse=True)
def short_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said does not depend on how long rounds are timed."""
    monkeypatch.setattr(cost_estimate, "DRY_RUN_SECONDS", 2.0)


def test_a_price_has_every_stage_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = config_of("audit", *FEW, "attack=[lira,label_counts]", "name=mine")
    before = OmegaConf.to_yaml(config)
    assert main.print_cost(config, tmp_path) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("mine: about ") and {"train", "worlds", "attacks", "start"} <= {
        line.split()[0] for line in out[1:]
    }
    assert "CPU s; memory" in out[0] and re.fullmatch(
        r"network: \w+ of width 4, 0\.\d+ million numbers", out[-2]
    )
    assert list(tmp_path.iterdir()) == [] and OmegaConf.to_yaml(config) == before


def test_a_long_run_is_priced_from_a_part_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A million epochs a round."""
    began = time.process_time()
    assert (
        main.print_cost(
            config_of("audit", *FEW, "attack=[lira]", "algo.local_epochs=1000000"), tmp_path
        )
        == 0
    )
    took, (out, err) = time.process_time() - began, capsys.readouterr()
    assert took < 40 and list(tmp_path.iterdir()) == []
    assert re.search(r"about \d+ h", out) and "timing a part of a few rounds" in err


def test_on_a_gpu_the_kernels_of_the_run_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Seen(Exception):
        """What was looked for was there."""

    def rounds(*given: object) -> None:
        assert torch.are_deterministic_algorithms_enabled()
        raise Seen

    monkeypatch.setattr(cost_estimate, "time_rounds", rounds)
    with fake_gpu(), pytest.raises(Seen):
        main.print_cost(config_of("audit", *FEW, "attack=[lira]", "device=cuda"), tmp_path)
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_has_no_price_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["privdd.train", *FEW, "--dry-run"])
    with pytest.raises(BadConfig, match=r"^--dry-run: the price of audits"):
        _run_command("train", lambda *at: 0)


def test_a_sweep_is_priced_by_its_first_point(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The estimate itself is looked at above."""
    took = cost_estimate.CostEstimate(
        {"train": cost_estimate.Stage(90.0, 90.0)},
        Engine(),
        cost_estimate.ResourceNeeds(1, 1),
        "guessed",
    )
    monkeypatch.setattr(cost_estimate, "choose_engine", lambda *given: (None, took))
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "privdd.audit",
            "-m",
            *FEW,
            "seed=3,1",
            "algo.rounds=range(1,4)",
            "attack=[lira]",
            "--dry-run",
        ],
    )
    assert _run_command("audit", lambda *at: 9) == 0
    said = (
        "sweep: 6 points; the first takes about 1 min 30 s, so all take about 9 min 00 s one "
        "after the other, if alike"
    )
    assert capsys.readouterr().out.splitlines()[0] == said


def test_packages_to_trust_are_refused_with_a_price_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["privdd.audit", *FEW, "trust_code=my_package", "--dry-run"])
    with pytest.raises(
        BadConfig, match=r"^trust_code: packages are allowed together with run= or resume= only"
    ):
        _run_command("audit", lambda *at: 0)


def test_data_that_are_not_at_hand_are_priced_from_their_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run without them is refused in one line."""

    def no_network(*given: object, **more: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(readers, "fetch_torchvision", no_network)
    config = config_of("audit", *FEW, "data=usps", "attack=[label_counts]")
    with pytest.raises(DataNotFound, match=r"data\.root") as refused:
        build_experiment(config)
    assert "\n" not in str(refused.value)
    assert main.print_cost(config, tmp_path) == 0
    out, err = capsys.readouterr()
    assert "about" in out and "data=usps is not at hand: priced from its shape alone" in err


def test_the_shape_of_a_data_set_is_that_of_its_files() -> None:
    made = load_shape("mnist", limit=30, test_limit=7, keys=Keys(0))
    assert (made.shape, made.classes, len(made.train), len(made.test)) == ((1, 28, 28), 10, 30, 7)
    assert load_shape("svhn", size=8, limit=5, keys=Keys(0)).shape == (3, 8, 8)
    several = load_shape(
        "corrupted", source="cifar10", limit=4, corruptions=["fog", "contrast"], keys=Keys(0)
    )
    assert len(several.domains) == 2
    with pytest.raises(DataNotFound, match="shape is not known"):
        load_shape("domain_folder", keys=Keys(0))
