"""A stored config comes back as it was written, or not at all; what leads outside has to be typed again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from privdd.cli.compose import compose_config
from privdd.cli.run import prepare_run_folder, print_resume_command
from privdd.cli.stored_config import check_outside_settings, load_stored_config, read_stored_config
from privdd.core.validation import BadConfig
from privdd.runtime.files import DamagedRun

OWN = "algo._target_=tests.cli.canary_module.Own"


def test_a_config_comes_back_without_interpolations(tmp_path: Path) -> None:
    config = compose_config("audit", ["algo=fedfed_dp", "attack=[lira,gradient_inversion]", "preset=smoke"])
    prepare_run_folder(tmp_path, config)
    assert "${" not in (tmp_path / "config.yaml").read_text()
    assert load_stored_config(tmp_path) == OmegaConf.create(OmegaConf.to_container(config, resolve=True))


def test_a_class_of_ones_own_needs_trust_and_the_hint_says_so(tmp_path: Path) -> None:
    config = compose_config("train", ["algo=fedavg", OWN, "data.root=/x/y"])
    prepare_run_folder(tmp_path, config)
    with pytest.raises(DamagedRun, match="add trust=tests"):
        load_stored_config(tmp_path)
    assert load_stored_config(tmp_path, ("tests",)) == read_stored_config(tmp_path)
    with pytest.raises(KeyboardInterrupt, match=r"resume=\S+ data\.root=/x/y trust=tests$"), print_resume_command("train", tmp_path, config):
        raise KeyboardInterrupt


def test_places_outside_are_typed_again() -> None:
    config = compose_config("train", ["data.root=/x/y", "engine=ray", "engine.address=far"])
    for typed in ([], ["data.root=/x/y"], ["engine.address=far"]):
        with pytest.raises(BadConfig, match="repeat it"):
            check_outside_settings(config, typed)
    check_outside_settings(config, ["data.root=/x/y", "engine.address=far"])
    check_outside_settings(compose_config("train", []), [])


@pytest.mark.parametrize("deep", ["[" * 100_000, "{a: " * 20_000, "".join(" " * n + "a:\n" for n in range(300))])
def test_a_deep_nest_is_refused_at_once(deep: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(deep)
    began = time.process_time()
    with pytest.raises(DamagedRun, match="nested more than 50 deep"):
        load_stored_config(tmp_path)
    assert time.process_time() - began < 1
