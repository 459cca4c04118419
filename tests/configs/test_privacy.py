"""Every privacy group in yaml builds its mechanisms."""

from __future__ import annotations

from pathlib import Path

import hydra
import pytest
from omegaconf import DictConfig, OmegaConf

from privdd.cli.build import build_experiment
from privdd.core.units import UNITS
from privdd.core.validation import BadConfig
from privdd.privacy.accounting import NEIGHBOURS
from privdd.privacy.mechanism import Mechanism
from tests.federations import tiny_config

FOLDER = Path(__file__).parents[2] / "configs" / "privacy"
KEYS = {
    "name",
    "mechanisms",
    "noise_multiplier",
    "clip_norm",
    "epsilon",
    "delta",
    "noise_source",
    "relation",
    "unit",
}
KEYS |= {"secret", "paired_noise"}


def loaded(path: Path) -> DictConfig:
    """The group under the defaults that it names; its own values win."""
    own = OmegaConf.load(path)
    parents = [name for name in own.pop("defaults", []) if name != "_self_"]
    return OmegaConf.merge(*(loaded(FOLDER / f"{name}.yaml") for name in parents), own)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("[!_]*.yaml")), ids=lambda p: p.stem)
def test_group_is_complete_and_builds(path: Path) -> None:
    config = OmegaConf.create({"privacy": loaded(path)})
    group = config.privacy
    assert set(group) >= KEYS and group.name == path.stem
    assert group.relation in NEIGHBOURS and group.unit in UNITS and 0 < group.delta < 1
    for mechanism in group.mechanisms.values():
        assert isinstance(hydra.utils.instantiate(mechanism), Mechanism)


@pytest.mark.parametrize(
    "name",
    [
        "dpsgd",
        "noisy_embedding",
        "gaussian_features",
        "client",
        "aggregate_clip",
        "fedfed_dp",
        "public_embedding",
        "public_head",
        "class_sums",
        "moments",
        "guided",
        "random_embedding",
        "set_gradient",
    ],
)
def test_the_noise_multiplier_reaches_every_mechanism(name: str) -> None:
    config = OmegaConf.create({"privacy": loaded(FOLDER / f"{name}.yaml")})
    config.privacy.noise_multiplier = 7.25
    # noise of its own
    own = {k: m for k, m in config.privacy.mechanisms.items() if k != "class_counts"}
    built = [hydra.utils.instantiate(m) for m in own.values()]
    assert built and all(m.noise_multiplier == 7.25 for m in built)


@pytest.mark.parametrize("kind", ["ClippedSum", "AggregateClip"])
def test_a_sum_over_records_is_refused_on_an_upload(kind: str) -> None:
    """Its rows would be those of the first layer; it has a place where a query has contributions of
    records."""
    config = tiny_config("fedavg", "privacy=dpsgd")
    part = {
        "_target_": f"privdd.privacy.mechanisms.{kind}",
        "noise_multiplier": 1.0,
        "clip_norm": 1.0,
    }
    config.privacy.mechanisms = {"update": part}
    with pytest.raises(
        BadConfig, match=rf"update: {kind} sums contributions.*queries are dpsgd"
    ) as refusal:
        build_experiment(config)
    assert "\n" not in str(refusal.value)
