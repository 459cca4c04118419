"""Checks of a composed config: wrong types and values out of range, with a one-line message each."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from privdd.cli.number_bounds import check_numbers
from privdd.cli.read_settings import audit_settings, forced, leaves, mapping_at, plain, privacy_settings, run_settings
from privdd.cli.secret import KEY as SECRET
from privdd.cli.type_check import TypeCheck, parameters
from privdd.core.checks import check_text
from privdd.data.partition import Partition
from privdd.data.sources import load
from privdd.federated.capture import Capture
from privdd.runtime.engine import Engine

OF_THE_COMMAND = ("name", "run", "resume", "scores", "tracking", "scores_surface")  # text or null


def check_types(config: DictConfig) -> None:
    """Every value is of the type that the code declares for it and lies in its range; nothing is built yet.

    Raises BadConfig, naming key, value and what is allowed.
    """
    check = TypeCheck(config)
    for key, value in leaves(plain(config)):
        if key == SECRET:  # no message may hold it; ``secret_of`` checks it
            continue
        check_numbers(key, value, check.key_of(key))
    for key in OF_THE_COMMAND:
        check_text(key, config.get(key), optional=True)
    for key in ("algo", "model"):
        check.built(key, plain(config[key]))
    for group in ("privacy.mechanisms", "attack"):
        nodes = mapping_at(config, group) if OmegaConf.select(config, group) is not None else {}
        for name, node in nodes.items():
            check.built(f"{group}.{name}", node)
    for group, kind in (("partition", Partition), ("engine", Engine), ("data", load), ("capture", Capture)):
        check.arguments(group, mapping_at(config, group), *parameters(kind))
    for group, made in (("partition", Partition), ("engine", Engine), ("capture", Capture)):
        made(**mapping_at(config, group))
    run_settings(config), privacy_settings(config), audit_settings(config), forced(config)
