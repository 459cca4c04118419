"""A finished point of a sweep is shown as a result only of the settings that it was made with."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.cli.resume import check_finished_run, check_same_config
from privdd.cli.run import prepare_run_folder
from privdd.cli.sweeps import Sweep
from privdd.core.validation import BadConfig
from privdd.runtime.files import write_json
from tests.federations import TINY

AUDIT = [*TINY, "algo=fedavg", "attack=[lira,rmia]"]


def finished(path: Path, *typed: str) -> None:
    """What an audit leaves, as far as a sweep looks at it; its config is stored after it was assembled."""
    config = compose_config("audit", [*AUDIT, *typed])
    build_experiment(config)
    prepare_run_folder(path, config)
    (path / "report.html").write_text("")
    write_json(path / "findings.json", {"verdict": "unprotected"})


def test_another_setting_is_refused_and_the_same_is_skipped(tmp_path: Path) -> None:
    finished(tmp_path / "a")
    sweep = Sweep("audit", tmp_path)
    for typed, named in (((), ""), (("engine=processes",), ""), (("audit.waive.update=why",), ""), (("algo.rounds=9",), "algo"),
                         (("seed=1",), "seed"), (("audit.worlds=9",), "audit.worlds"), (("audit.confidence=0.9",), "audit.confidence"),
                         (("attack=[lira]",), ""), (("attack=[lira,loss_threshold]",), "attack")):  # fmt: skip
        config = compose_config("audit", [*AUDIT, *typed])
        status = sweep.run_point(tmp_path / "a", lambda: 1 // 0, lambda config=config: check_finished_run(tmp_path / "a", config))  # type: ignore[misc]
        assert status == (1 if named else 0), typed
        error = (tmp_path / "a" / "point.json").read_text()
        assert (f"holds a run of another config ({named} differ)" in error) == bool(named), typed


@pytest.mark.parametrize("typed", ["audit.records=9", "audit.client=1", "audit.tail.mislabelled=3", "participation=0.5"])
def test_a_run_is_gone_on_with_only_as_its_clients_began_it(typed: str, tmp_path: Path) -> None:
    """Which records are audited, and which of them are made hard, decides what the audited client trains on."""
    prepare_run_folder(tmp_path, compose_config("audit", AUDIT))
    check_same_config(tmp_path, compose_config("audit", [*AUDIT, "audit.worlds=9", "attack=[lira]"]))
    with pytest.raises(BadConfig, match=f"{typed.partition('=')[0]} differ"):
        check_same_config(tmp_path, compose_config("audit", [*AUDIT, typed]))


def test_noise_that_was_chosen_for_an_epsilon_is_the_same_setting(tmp_path: Path) -> None:
    private = ("privacy=dpsgd", "algo.rounds=1", "algo.local_epochs=1")
    finished(tmp_path, *private, "privacy.epsilon=3")
    check_finished_run(tmp_path, compose_config("audit", [*AUDIT, *private, "privacy.epsilon=3"]))
    with pytest.raises(BadConfig, match=r"\(privacy differ\)"):
        check_finished_run(tmp_path, compose_config("audit", [*AUDIT, *private, "privacy.epsilon=4"]))


def test_a_folder_of_an_earlier_version_lacks_what_was_no_setting_then(tmp_path: Path) -> None:
    finished(tmp_path)
    stored = OmegaConf.load(tmp_path / "config.yaml")
    del stored.audit["processed_worlds"]
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(stored))
    check_finished_run(tmp_path, compose_config("audit", AUDIT))
