"""``--dry-run`` prints the price of an audit and keeps nothing."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from privdd.cli import dry_run
from privdd.cli.build import build_attacks, build_experiment
from privdd.cli.main import _run_command, config_of
from privdd.core.validation import BadConfig
from tests.fake_device import fake_gpu

FEW = ["algo=fedproto", "preset=smoke", "data.limit=150", "data.test_limit=40", "partition.clients=3", "model.width=4"]


def test_searches_are_shortened_at_any_depth_and_short_ones_are_not() -> None:
    node = {"captures": 500, "method": {"iterations": 1000, "lr": 0.1}, "prior": {"steps": 400}, "budget": 60}
    found = dry_run.shorten_searches(node)
    assert found is not None
    first, second, lengths = found
    assert (first["method"]["iterations"], first["prior"]["steps"], first["budget"], first["captures"]) == (25, 10, 60, 500)
    assert (second["method"]["iterations"], second["prior"]["steps"]) == (50, 20) and lengths == (25, 50, 1000)
    assert node["method"] == {"iterations": 1000, "lr": 0.1}
    assert dry_run.shorten_searches({"iterations": 99, "flag": True}) is None


def test_a_price_has_every_stage_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = config_of("audit", *FEW, "attack=[lira,label_counts]", "name=mine")
    before = OmegaConf.to_yaml(config)
    assert dry_run.print_cost(config, tmp_path) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("mine: ") and {"train", "worlds", "attacks", "start", "report"} <= {line.split()[0] for line in out[1:]}
    assert "CPU s; memory" in out[-1]
    assert list(tmp_path.iterdir()) == [] and OmegaConf.to_yaml(config) == before


def test_a_long_run_is_priced_from_a_part_of_it_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A million epochs a round: the probe would train one round of all clients."""
    began = time.process_time()
    assert dry_run.print_cost(config_of("audit", *FEW, "attack=[lira]", "algo.local_epochs=1000000"), tmp_path) == 0
    took, (out, err) = time.process_time() - began, capsys.readouterr()
    assert took < 40 and list(tmp_path.iterdir()) == []
    assert "nothing was kept; extrapolated from a part of" in out and "first steps of each long loop" in out
    assert "privdd: --dry-run: timing a part of a few rounds" in err and "--dry-run: rounds: 3/3, done in" in err


def test_on_a_gpu_the_kernels_of_the_run_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Seen(Exception):
        """What was looked for was there."""

    def rounds(whole: object) -> None:
        assert torch.are_deterministic_algorithms_enabled()
        raise Seen

    monkeypatch.setattr(dry_run, "_time_rounds", rounds)
    with fake_gpu(), pytest.raises(Seen):
        dry_run.print_cost(config_of("audit", *FEW, "attack=[lira]", "device=cuda"), tmp_path)
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_searches_of_attacks_that_read_nothing_are_not_counted() -> None:
    config = config_of("audit", "algo=fedavg", "preset=smoke", "attack=[lira,gradient_inversion,feature_inversion]")
    found = dry_run.lengths_of_used_searches(config, build_experiment(config).plan.method, build_attacks(config))
    assert sorted(found) == [0, 200]
    assert (dry_run.count_probe_steps(200), dry_run.count_probe_steps(99)) == (20, 99)


def test_what_has_no_price_is_refused() -> None:
    with pytest.raises(BadConfig, match=r"^--dry-run: .*leave -m away"):
        dry_run.price_command("audit", ["-m", "seed=0,1"], config_of("audit", *FEW))
    with pytest.raises(BadConfig, match=r"^--dry-run: the price of one audit"):
        dry_run.price_command("train", [], config_of("train", "algo=fedavg"))
    argv = ["algo=fedavg", "--dry-run"]
    assert dry_run.take_dry_run_option(argv) and argv == ["algo=fedavg"] and not dry_run.take_dry_run_option(argv)


def test_packages_to_trust_are_refused_with_a_price_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["privdd.audit", *FEW, "trust=my_package", "--dry-run"])
    with pytest.raises(BadConfig, match=r"^trust: packages .* trust=local or trust=secagg$"):
        _run_command("audit", lambda *at: 0)


@pytest.mark.parametrize(
    "settings",
    [
        ["algo=feddm_guided_dp", "preset=default"],
        ["algo=fedavg", "preset=smoke", "privacy=client", "model=mlp", "seed=1", "trust=secagg", "trust.least=2", "trust.dropout=.5"],
    ],
    ids=["reads in more rounds than one", "the audited client drops out of the first"],
)
def test_the_probe_of_one_round_can_be_assembled(settings: list[str]) -> None:
    config = config_of("audit", *settings, "data.limit=150", "data.test_limit=40", "attack=[lira]")
    assert build_experiment(dry_run._probe_config(config, 0)).plan.participants(0) == list(range(config.partition.clients))
