"""Tests of ``privdd.cli.settings``."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf, open_dict

from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.cli.run import run_training
from privdd.cli.settings import audit_settings, privacy_settings, run_settings, settings_fingerprint
from privdd.cli.stored_config import load_stored_config
from privdd.cli.user_code import check_code_digests, user_code_digests, write_code_digests
from privdd.core.validation import BadConfig
from privdd.runtime.files import DamagedRun
from tests.federations import tiny_config

# Another version of the user's own code is another run: it has its own fingerprint, and no folder
# of the old one is gone on with.


TRAIN = (
    "import torch\ndef train(model, x, y, seed):\n    with torch.no_grad():\n        "
    "model.head.bias += {}\n    return model\n"
)


class Elsewhere:
    """Finds modules in a folder, as a package does that is installed for editing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(self.folder)]) if path is None else None


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes own_net.py, and parts of the package own_parts, where Python finds them."""
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Elsewhere(tmp_path / "code")])
    package = tmp_path / "code" / "own_parts"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")

    def write(text: str, name: str = "own_net") -> Path:
        file = tmp_path / "code" / f"{name.replace('.', '/')}.py"
        file.write_text(text)
        importlib.invalidate_caches()
        sys.modules.pop(name, None)
        return file

    yield write
    sys.modules.pop("own_net", None)


def own_run() -> DictConfig:
    return tiny_config("own_training", "algo.training=own_net:train", "model=mlp")


def test_the_order_of_settings_is_no_setting() -> None:
    config = tiny_config("fedavg", "privacy=client")
    turned = OmegaConf.create(
        dict(reversed([*OmegaConf.to_container(config, resolve=True).items()]))
    )
    assert [*turned] != [*config] and settings_fingerprint(turned) == settings_fingerprint(config)


def test_an_edited_function_is_another_run_and_is_refused(net: Any, tmp_path: Path) -> None:
    """By the same command, by resume=DIR, and for its shadow models and noise, which go by the
    fingerprint."""
    file = net(TRAIN.format(1))
    run = tmp_path / "run"
    before = settings_fingerprint(own_run())
    assert run_training(own_run(), run, []) == 0 and run_training(own_run(), run, []) == 0
    net(TRAIN.format(2))
    assert settings_fingerprint(own_run()) != before
    for config in (own_run(), load_stored_config(run, ("own_net",))):
        with pytest.raises(
            BadConfig, match="began with another version of own_net; bring that one back"
        ) as refusal:
            run_training(config, run, [])
        assert "\n" not in str(refusal.value)
    assert run_training(own_run(), tmp_path / "other", []) == 0
    file.write_text(TRAIN.format(1))
    assert settings_fingerprint(own_run()) == before and run_training(own_run(), run, []) == 0


def test_a_network_and_a_class_of_ones_own_count_and_privdds_do_not(net: Any) -> None:
    net("a"), net("b", "own_parts.nets"), net("c", "own_parts.deep")
    chosen = compose_config(
        "train",
        ["model=own", "model.target=own_net:Net", "algo._target_=own_parts.nets.Own.configured"],
    )
    first = settings_fingerprint(chosen)
    net("a2")
    second = settings_fingerprint(chosen)
    net("b2", "own_parts.nets")
    assert len({first, second, settings_fingerprint(chosen)}) == 3
    third = settings_fingerprint(chosen)
    net("c2", "own_parts.deep")  # which nothing names
    assert settings_fingerprint(chosen) == third  # and nothing was imported: own_parts would raise
    assert set(user_code_digests({"algo": [{"_target_": "own_parts.nets.Own"}]})) == {
        "own_parts.nets"
    }
    for typed in (["algo=own_training"], ["model=own"], ["algo=fedfed_dp"]):
        assert user_code_digests(dict(compose_config("train", typed))) == {}
    attacked = compose_config("audit", ["attack=[lira]", "+attack.own._target_=own_net.Attack"])
    assert settings_fingerprint(attacked) == settings_fingerprint(
        compose_config("audit", ["attack=[lira]"])
    )  # how a run is attacked is not in it


def test_code_that_has_no_file_has_an_empty_digest() -> None:
    assert user_code_digests({"training": "no_such_module:train"}) == {"no_such_module": ""}
    assert user_code_digests({"training": "train", "target": "linear", "name": "own_net:x"}) == {}


def test_a_folder_without_digests_of_the_code_or_with_damaged_ones_is_refused(
    tmp_path: Path,
) -> None:
    check_code_digests(tmp_path, {})
    with pytest.raises(DamagedRun, match="does not say which version of net it began with"):
        check_code_digests(tmp_path, {"net": "1"})
    write_code_digests(tmp_path, {"net": "1"})
    check_code_digests(tmp_path, {"net": "1"})
    for text in ("[]", '{"code": 3}', "{"):
        (tmp_path / "state" / "own_code.json").write_text(text)
        with pytest.raises(DamagedRun, match=r"own_code\.json"):
            check_code_digests(tmp_path, {"net": "1"})


def test_folders_without_init_are_looked_into_and_not_imported(net: Any, tmp_path: Path) -> None:
    (tmp_path / "code" / "own_trials" / "nets").mkdir(parents=True)
    net("raise RuntimeError('imported')", "own_trials.nets.mine")
    first = user_code_digests({"training": "own_trials.nets.mine:train"})
    assert set(first) == {"own_trials.nets.mine"} and first["own_trials.nets.mine"]
    net("edited", "own_trials.nets.mine")
    assert user_code_digests({"target": "own_trials.nets.mine:Net"}) != first


# From a config to typed settings: what is missing or unknown is named, and calibrated noise is what
# counts.


TINY = ["preset=smoke", "data.limit=120", "partition=iid", "partition.clients=3"]


def test_each_value_is_in_its_place() -> None:
    config = compose_config(
        "audit",
        [
            *TINY,
            "privacy=dpsgd",
            "audit.waive.update=why",
            "seed=4",
            "participation=0.5",
            "audit.client=2",
        ],
    )
    run = run_settings(config)
    privacy = privacy_settings(config)
    audit = audit_settings(config)
    assert (run.algo, run.data, run.preset, run.seed, run.participation) == (
        "fedavg",
        "digits",
        "smoke",
        4,
        0.5,
    )
    assert run.fingerprint == settings_fingerprint(config)
    assert (privacy.name, privacy.delta, privacy.noise_multiplier, privacy.unit) == (
        "dpsgd",
        1e-5,
        1.0,
        "record",
    )
    assert audit is not None and (audit.client, audit.records, audit.worlds, audit.waive) == (
        2,
        60,
        12,
        {"update": "why"},
    )
    assert (audit.guarantee.runs, audit.guarantee.slow_runs, audit.guarantee.images) == (200, 20, 2)
    config.name = "mine"
    assert run_settings(config).algo == "mine"


def test_a_config_of_training_alone_has_no_audit() -> None:
    config = compose_config("train", TINY)
    assert audit_settings(config) is None
    with pytest.raises(BadConfig, match="this config only trains"):
        _ = build_experiment(config).audit_settings


def test_a_stored_config_that_lacks_a_setting_or_has_one_too_many() -> None:
    stored = OmegaConf.create(OmegaConf.to_container(compose_config("audit", TINY), resolve=True))
    with open_dict(stored):
        del stored.audit["training"]
    assert audit_settings(stored).training == "auto"  # from before there was a choice
    with open_dict(stored):
        del stored.audit["worlds"], stored.audit["replays"]
    with pytest.raises(BadConfig, match=r"audit\.worlds: a value is needed, or audit\.replays"):
        audit_settings(stored)
    stored.audit = {
        **stored.audit,
        "worlds": 3,
        "guarantee": {**stored.audit.guarantee, "walks": 3},
    }
    with pytest.raises(
        BadConfig,
        match=r"audit\.guarantee\.walks: unknown key; known there: runs, slow_runs, images",
    ):
        audit_settings(stored)


def test_the_calibrated_noise_is_that_of_the_run_and_of_its_fingerprint() -> None:
    config = compose_config(
        "audit",
        [*TINY, "algo.rounds=1", "algo.local_epochs=1", "privacy=dpsgd", "privacy.epsilon=3"],
    )
    before = settings_fingerprint(config)
    made = build_experiment(config)
    assert (
        made.privacy.noise_multiplier
        == config.privacy.noise_multiplier
        == made.plan.mechanisms["dpsgd"].noise_multiplier
    )
    assert made.run.fingerprint == settings_fingerprint(config) != before
    assert (
        build_experiment(config).run.fingerprint == made.run.fingerprint
    )  # as a stored config is assembled again


@pytest.mark.parametrize(
    "typed",
    [
        "trust=secagg",
        "seed=1",
        "participation=0.5",
        "data.limit=90",
        "data.standardise=true",
        "privacy=client",
        "algo.lr=0.5",
    ],
)
def test_what_clients_send_has_another_fingerprint_under_other_settings(typed: str) -> None:
    """Shadow models are kept under it, and a training of another entry is taken for this one by
    it."""
    assert settings_fingerprint(compose_config("audit", [*TINY, typed])) != settings_fingerprint(
        compose_config("audit", TINY)
    )


@pytest.mark.parametrize(
    "typed", ["attack=[lira]", "engine=processes", "audit.worlds=3", "name=mine"]
)
def test_how_it_is_attacked_and_computed_has_not(typed: str) -> None:
    assert settings_fingerprint(compose_config("audit", [*TINY, typed])) == settings_fingerprint(
        compose_config("audit", TINY)
    )


@pytest.mark.parametrize(
    "typed",
    ["audit.tail.mislabelled=-1", "audit.tail.near_duplicates=1.5", "audit.show_images=7"],
)
def test_a_bad_value_for_hard_records_or_pictures_is_named(typed: str) -> None:
    with pytest.raises(BadConfig, match=typed.replace(".", r"\.")):
        audit_settings(compose_config("audit", [*TINY, typed]))
