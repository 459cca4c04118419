"""Every yaml of every group composes in every preset, and what it describes can be built."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from attacks.membership.attack import MembershipAttack
from attacks.types import SENT_BY_SERVER, Attack, Surface
from privdd.cli.build import build_attacks, instantiate_node
from privdd.cli.compose import (
    CONFIG_GROUPS,
    PRESETS,
    compose_config,
    config_dir,
    default_attacks,
    expand_arguments,
    group_choices,
)
from privdd.cli.plain_config import to_plain_settings
from privdd.data.partition import Partition
from privdd.federated.experiment import CaptureSettings
from privdd.federated.method import Method
from privdd.models import ModelSpec
from privdd.privacy.mechanism import Mechanism
from privdd.runtime.engine import Engine
from tests import stand_in_weights

stand_in_weights.install()
FOLDER = Path(config_dir())


def names(group: str) -> list[str]:
    return group_choices(group, [str(FOLDER)])


def test_the_groups_are_the_folders():
    assert {p.name for p in FOLDER.iterdir() if p.is_dir()} <= set(CONFIG_GROUPS)
    assert names("preset") == sorted(PRESETS) and {p.stem for p in FOLDER.glob("*.yaml")} == {
        "audit",
        "base",
        "train",
    }


@pytest.mark.nightly(but=["default"])
@pytest.mark.parametrize("preset", PRESETS)
def test_every_algo_builds(preset):
    """Method and mechanisms of each algo's own yaml; a second pass over the other groups rides
    along."""
    algos = names("algo")
    beside = {g: list(islice(cycle(names(g)), len(algos))) for g in ("data", "partition", "engine")}
    for at, algo in enumerate(algos):
        others = [f"{group}={chosen[at]}" for group, chosen in beside.items()]
        config = compose_config("train", [f"algo={algo}", f"preset={preset}", *others])
        assert not OmegaConf.missing_keys(config)
        method = instantiate_node(config.algo)
        assert isinstance(method, Method), algo
        assert set(method.uploads.values()) <= set(Surface) - SENT_BY_SERVER and method.rounds >= 1
        assert set(method.broadcasts.values()) - set(method.uploads.values()) <= SENT_BY_SERVER
        mechanisms = {n: instantiate_node(m) for n, m in (config.privacy.mechanisms or {}).items()}
        assert set(mechanisms) <= {*method.uploads, *method.queries}, algo
        assert Partition(**to_plain_settings(config.partition)).name == beside["partition"][at]
        assert (
            Engine(**to_plain_settings(config.engine)).kind == beside["engine"][at]
            and CaptureSettings(**to_plain_settings(config.capture)) == CaptureSettings()
        )


@pytest.mark.nightly(cases=["paper", "default"])
@pytest.mark.parametrize("preset", PRESETS)
def test_every_privacy_and_every_model_builds(preset):
    """A second pass over the models rides along: a model's file does not read the privacy's."""
    for privacy, model in zip(
        names("privacy"), islice(cycle(names("model")), len(names("privacy"))), strict=True
    ):
        config = compose_config(
            "train", [f"privacy={privacy}", f"model={model}", f"preset={preset}"]
        )
        for mechanism in (config.privacy.mechanisms or {}).values():
            assert isinstance(instantiate_node(mechanism), Mechanism)
        assert config.privacy.name == privacy and 0 < config.privacy.delta < 1
        assert isinstance(instantiate_node(config.model), ModelSpec)
    assert len(names("model")) <= len(names("privacy"))


@pytest.mark.nightly(but=["smoke"])
@pytest.mark.parametrize("preset", PRESETS)
def test_every_attack_builds(preset):
    """Those that are on by default, and the others on request."""
    attacks = build_attacks(
        compose_config(
            "audit",
            expand_arguments(
                [f"preset={preset}", f"attack=[{','.join(names('attack'))}]"], "audit"
            ),
        )
    )
    assert sorted(attacks) == names("attack")
    default = build_attacks(
        compose_config("audit", expand_arguments([f"preset={preset}"], "audit"))
    )
    assert sorted(default) == sorted(default_attacks([config_dir()])) and set(default) < set(
        attacks
    )
    for attack in attacks.values():
        assert isinstance(attack, Attack) and attack.surfaces


def test_every_membership_attack_checks_what_all_of_them_share():
    """Also those that check settings of their own."""
    attacks = build_attacks(compose_config("audit", [f"attack=[{','.join(names('attack'))}]"]))
    membership = [attack for attack in attacks.values() if isinstance(attack, MembershipAttack)]
    assert len(membership) > 5
    for attack in membership:
        for wrong in ({"confidence": 1.0}, {"delta": 1.0}, {"targets": 0}):
            with pytest.raises(ValueError, match=rf"^{next(iter(wrong))}="):
                replace(attack, **wrong)


@pytest.mark.parametrize("name", ["feddm_table2", "fedfed_table2", "fedlgd_table1", "fedrd_table1"])
def test_an_experiment_of_each_paper_can_be_audited(name):
    """One of each: tests/configs/test_experiment.py builds every row of all."""
    config = compose_config("audit", [f"experiment={name}"])
    assert isinstance(instantiate_node(config.algo), Method)
