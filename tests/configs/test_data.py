"""The yaml of models, data and partitions: every one fits what reads it, in every preset."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from privdd.cli.compose import (
    PRESETS,
    compose_config,
    config_dir,
    group_choices,
    register_resolvers,
)
from privdd.data.partition import Partition
from privdd.data.sources import load_dataset
from privdd.models import ModelSpec, build


def resolved(group: str, preset: str) -> dict[str, dict[str, Any]]:
    """Every yaml of a group by name, as the commands see it under ``preset``."""
    register_resolvers()
    files = sorted((Path(config_dir()) / group).glob("*.yaml"))
    whole = OmegaConf.create(
        {"preset": {"name": preset}, **{file.stem: OmegaConf.load(file) for file in files}}
    )
    plain = OmegaConf.to_container(whole, resolve=True)
    return {file.stem: plain[file.stem] for file in files}


@pytest.mark.nightly(cases=["default"])
@pytest.mark.parametrize("preset", PRESETS)
def test_models(preset):
    for name in group_choices("model", [config_dir()]):
        spec = instantiate(compose_config("train", [f"model={name}", f"preset={preset}"]).model)
        assert isinstance(spec, ModelSpec), name
        assert build(spec, (1, 32, 32), 10).head.out_features == 10


@pytest.mark.parametrize("preset", PRESETS)
def test_data_and_partitions(preset):
    arguments = set(inspect.signature(load_dataset).parameters) - {"keys"}
    for name, data in resolved("data", preset).items():
        assert data["name"] == name and set(data) - {"defaults"} <= arguments
    for name, dealt in resolved("partition", preset).items():
        assert Partition(**dealt).name == name and set(dealt) <= {
            field.name for field in fields(Partition)
        }


def test_paper_preset_has_the_papers_widths_and_all_records():
    assert resolved("model", "paper")["convnet"]["width"] == 128
    assert resolved("data", "paper")["fashion_mnist"]["limit"] is None
    assert resolved("partition", "paper")["dirichlet"]["clients"] == 10
