"""Checks of the command line: unknown keys, wrong types and values out of range, with a one-line message each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from privdd.cli.config import GROUPS, composed, one_line, own_folders
from privdd.cli.read_settings import audit_settings, mapping_at, plain, privacy_settings, run_settings
from privdd.cli.secret import KEY as SECRET
from privdd.cli.type_check import TypeCheck, hint_at, parameters
from privdd.core.checks import check_finite, check_text, is_number
from privdd.core.errors import BadConfig
from privdd.data.partition import Partition
from privdd.data.sources import load
from privdd.federated.capture import Capture
from privdd.runtime.engine import Engine

OF_THE_COMMAND = ("name", "run", "resume", "scores", "tracking", "scores_surface")  # text or null


def check_overrides(command: str, argv: Sequence[str]) -> DictConfig:
    """Compose what was typed (first value of each sweep) and refuse unknown keys with a suggestion."""
    folders = own_folders(argv)
    typed = [a for a in argv if "=" in a and not a.startswith(("-", "hydra"))]
    for item in argv:
        if item.startswith(("+", "~")):
            raise BadConfig(
                f"{item}: adding or deleting keys is not supported; put new parts into yaml files (--config-dir)"
            )
        if "=" not in item and not item.startswith("-") and item not in folders:
            raise BadConfig(f"{item}: an override has the form key=value")
    parser = OverridesParser.create()
    try:
        parsed = parser.parse_overrides(typed)
    except HydraException as error:
        raise BadConfig(f"{one_line(error)}: cannot be read; put the value into quotes, key=\"'value'\"") from None
    group = [o for o in parsed if o.key_or_group.split("@")[0] in GROUPS and "." not in o.key_or_group]
    for shared in (line for o in group if re.search(r"[=,\[ ]_", line := str(o.input_line))):
        raise BadConfig(f"{shared}: files whose names start with _ hold what others share and cannot be chosen")
    plain = [o for o in parsed if o not in group]
    base = composed(command, [_first_value(o) for o in group], folders)
    for override in plain:
        _known(base, override.key_or_group)
    return composed(command, [_first_value(o) for o in parsed], folders)


def _first_value(override: Any) -> str:
    if override.is_sweep_override():
        return f"{override.key_or_group}={next(iter(override.sweep_string_iterator()))}"
    return override.input_line


def _known(config: DictConfig, key: str) -> None:
    node: Any = config
    for depth, part in enumerate(key.split(".")):
        names = [str(k) for k in node] if OmegaConf.is_dict(node) else []
        if part not in names:
            where = ".".join(key.split(".")[:depth])
            raise BadConfig(f"{key}: unknown key; {hint_at(part, names, where)}")
        node = OmegaConf.select(config, ".".join(key.split(".")[: depth + 1]), throw_on_missing=False)


def check_types(config: DictConfig) -> None:
    """Every value is of the type that the code declares for it and lies in its range; nothing is built yet.

    Raises BadConfig, naming key, value and what is allowed.
    """
    check = TypeCheck(config)
    for key, value in _leaves(config).items():
        if key == SECRET:  # no message may hold it; ``secret_of`` checks it
            continue
        for one in value if isinstance(value, list) else [value]:
            if is_number(one):
                check_finite(check.key_of(key), one)
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
    run_settings(config), privacy_settings(config), audit_settings(config)


def _leaves(node: Any) -> dict[str, Any]:
    """Dotted key -> value, of all that is no mapping."""
    return dict(pair for name, value in plain(node).items() for pair in _walk(str(name), value))


def _walk(key: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [pair for name, inner in value.items() for pair in _walk(f"{key}.{name}", inner)]
    return [(key, value)]
