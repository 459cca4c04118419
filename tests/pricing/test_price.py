"""A price is made of measured unit costs and the sizes of the whole run."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from privdd.cli import dry_run
from privdd.cli.main import config_of
from privdd.core.errors import BadConfig
from privdd.pricing.price import Price
from privdd.pricing.probe import at_length, client_rounds, replayed_rounds
from tests.federations import tiny, trained

FEW = ["algo=fedproto", "preset=smoke", "data.limit=150", "data.test_limit=40", "partition.clients=3", "model.width=4"]


def test_wall_is_shared_by_workers_but_for_the_longest_attack() -> None:
    stages = {"start": 4.0, "train": 6.0, "worlds": 10.0, "attacks": 20.0}
    assert Price(stages, 5.0, 1, 0, 0).wall == pytest.approx(40)
    assert Price(stages, 5.0, 4, 0, 0).wall == pytest.approx(4 + 36 / 4)
    assert Price(stages, 18.0, 4, 0, 0).wall == pytest.approx(4 + 36 / 4 + 18 - 20 / 4)
    assert Price(stages, 18.0, 2, 2 * 10**9, 10**6).lines()[-1] == (
        "about 30 s on 2 workers, 40 CPU s; memory 2 GB, disk 1 MB"
    )


def test_a_search_costs_what_two_short_ones_say() -> None:
    assert at_length(1.5, 2.0, 10, 20, 100) == pytest.approx(1 + 0.05 * 100)
    assert at_length(2.0, 1.9, 10, 20, 100) == 2.0  # no shorter for being longer


def test_searches_are_shortened_at_any_depth_and_short_ones_are_not() -> None:
    node = {"captures": 500, "method": {"iterations": 1000, "lr": 0.1}, "prior": {"steps": 400}, "budget": 60}
    found = dry_run.shortened(node)
    assert found is not None
    first, second, lengths = found
    assert (first["method"]["iterations"], first["prior"]["steps"], first["budget"], first["captures"]) == (25, 10, 60, 500)
    assert (second["method"]["iterations"], second["prior"]["steps"]) == (50, 20) and lengths == (25, 50, 1000)
    assert node["method"] == {"iterations": 1000, "lr": 0.1}
    assert dry_run.shortened({"iterations": 99, "flag": True}) is None


@pytest.mark.parametrize("algo", ["fedavg", "fedfed", "feddm"])
def test_rounds_are_those_that_training_really_takes(algo: str) -> None:
    plan, (progress, inboxes, _) = tiny(algo).plan, trained(algo)
    assert client_rounds(plan) == len({(r.round, r.client) for r in inboxes})
    phases = {s.phase for s in progress.snapshots.values()}
    assert replayed_rounds(plan, 1) == len(phases) and replayed_rounds(plan, 99) == len(progress.snapshots)


def test_a_price_has_every_stage_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = config_of("audit", *FEW, "attack=[lira,label_counts]", "name=mine")
    before = OmegaConf.to_yaml(config)
    assert dry_run.dry_run(config, tmp_path) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("mine: ") and {"train", "worlds", "attacks", "start", "report"} <= {line.split()[0] for line in out[1:]}
    assert "CPU s; memory" in out[-1]
    assert list(tmp_path.iterdir()) == [] and OmegaConf.to_yaml(config) == before


def test_what_has_no_price_is_refused() -> None:
    with pytest.raises(BadConfig, match=r"^--dry-run: .*leave -m away"):
        dry_run.priced("audit", ["-m", "seed=0,1"], config_of("audit", *FEW))
    with pytest.raises(BadConfig, match=r"^--dry-run: the price of one audit"):
        dry_run.priced("train", [], config_of("train", "algo=fedavg"))
    argv = ["algo=fedavg", "--dry-run"]
    assert dry_run.wanted(argv) and argv == ["algo=fedavg"] and not dry_run.wanted(argv)
