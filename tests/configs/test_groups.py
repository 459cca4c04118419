"""Every yaml of every group composes in every preset, and what it describes can be built."""

from __future__ import annotations

from itertools import cycle, islice
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from attacks.types import SENT_BY_SERVER, Attack, Surface
from privdd.cli.assemble import attacks_of, build
from privdd.cli.config import GROUPS, PRESETS, all_attacks, choices, composed, config_dir, expand
from privdd.cli.read_settings import plain
from privdd.data.partition import Partition
from privdd.federated.capture import Capture
from privdd.federated.method import Method
from privdd.models import ModelSpec
from privdd.privacy.mechanism import Mechanism
from privdd.runtime.engine import Engine
from tests.federations import PRETRAINED

FOLDER = Path(config_dir())


def names(group: str) -> list[str]:
    return choices(group, [str(FOLDER)])


def test_the_groups_are_the_folders():
    assert {p.name for p in FOLDER.iterdir() if p.is_dir()} <= set(GROUPS)
    assert names("preset") == sorted(PRESETS) and {p.stem for p in FOLDER.glob("*.yaml")} == {"audit", "base", "train"}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_algo_builds(preset):
    """Method and mechanisms of each algo's own yaml; a second pass over the other groups rides along."""
    algos = [a for a in names("algo") if a not in PRETRAINED]
    beside = {g: list(islice(cycle(names(g)), len(algos))) for g in ("data", "partition", "engine")}
    for at, algo in enumerate(algos):
        others = [f"{group}={chosen[at]}" for group, chosen in beside.items()]
        config = composed("train", [f"algo={algo}", f"preset={preset}", *others])
        assert not OmegaConf.missing_keys(config)
        method = build(config.algo)
        assert isinstance(method, Method), algo
        assert set(method.uploads.values()) <= set(Surface) - SENT_BY_SERVER and method.rounds >= 1
        assert set(method.broadcasts.values()) - set(method.uploads.values()) <= SENT_BY_SERVER
        mechanisms = {n: build(m) for n, m in (config.privacy.mechanisms or {}).items()}
        assert set(mechanisms) <= {*method.uploads, *method.queries}, algo
        assert Partition(**plain(config.partition)).name == beside["partition"][at]
        assert Engine(**plain(config.engine)).kind == beside["engine"][at] and Capture(**plain(config.capture)) == Capture()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", names("model"))
def test_every_model_builds(name, preset):
    assert isinstance(build(composed("train", [f"model={name}", f"preset={preset}"]).model), ModelSpec)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", names("privacy"))
def test_every_privacy_builds(name, preset):
    config = composed("train", [f"privacy={name}", f"preset={preset}"])
    for mechanism in (config.privacy.mechanisms or {}).values():
        assert isinstance(build(mechanism), Mechanism)
    assert config.privacy.name == name and 0 < config.privacy.delta < 1


@pytest.mark.parametrize("preset", PRESETS)
def test_every_attack_builds(preset):
    """Those that are on by default, and the others on request."""
    attacks = attacks_of(composed("audit", expand([f"preset={preset}", f"attack=[{','.join(names('attack'))}]"], "audit")))
    assert sorted(attacks) == names("attack")
    default = attacks_of(composed("audit", expand([f"preset={preset}"], "audit")))
    assert sorted(default) == sorted(all_attacks([config_dir()])) and set(default) < set(attacks)
    for attack in attacks.values():
        assert isinstance(attack, Attack) and attack.surfaces


@pytest.mark.parametrize("name", names("experiment") or [pytest.param(None, marks=pytest.mark.skip(reason="no experiments yet"))])
def test_every_experiment_composes(name):
    config = composed("audit", [f"experiment={name}"])
    assert isinstance(build(config.algo), Method)
