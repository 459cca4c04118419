"""Checks of a composed config: wrong types and values out of range, with a one-line message each."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from privdd.cli.secret import SECRET_KEY as SECRET
from privdd.cli.settings import (
    audit_settings,
    is_forced,
    iterate_settings,
    mapping_at,
    privacy_settings,
    run_settings,
    to_plain_settings,
)
from privdd.cli.type_check import TypeCheck, check_setting_numbers, declared_parameters
from privdd.core.validation import check_text
from privdd.data.partition import Partition
from privdd.data.sources import load_dataset
from privdd.federated.experiment import CaptureSettings
from privdd.runtime.engine import Engine

COMMAND_SETTINGS = ("name", "run", "resume", "scores", "tracking", "scores_surface", "policy")  # text or null


def check_config_types(config: DictConfig) -> None:
    """Every value is of the type that the code declares for it and lies in its range; nothing is built yet.

    Raises BadConfig, naming key, value and what is allowed.
    """
    check = TypeCheck(config)
    for key, value in iterate_settings(to_plain_settings(config)):
        if key == SECRET:  # no message may hold it; ``secret_of_config`` checks it
            continue
        check_setting_numbers(key, value, check.source_key_of(key))
    for key in COMMAND_SETTINGS:
        check_text(key, config.get(key), optional=True)
    for key in ("algo", "model"):
        check.check_built_node(key, to_plain_settings(config[key]))
    for group in ("privacy.mechanisms", "attack"):
        nodes = mapping_at(config, group) if OmegaConf.select(config, group) is not None else {}
        for name, node in nodes.items():
            check.check_built_node(f"{group}.{name}", node)
    for group, kind in (
        ("partition", Partition),
        ("engine", Engine),
        ("data", load_dataset),
        ("capture", CaptureSettings),
    ):
        check.check_arguments(group, mapping_at(config, group), *declared_parameters(kind))
    for group, made in (("partition", Partition), ("engine", Engine), ("capture", CaptureSettings)):
        made(**mapping_at(config, group))
    run_settings(config), privacy_settings(config), audit_settings(config), is_forced(config)
