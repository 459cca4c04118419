"""What was typed: unknown keys, files and options, and values of a wrong type or out of range, are refused before anything slow is imported.

Every refusal of a value is one that the full check would make too, in the same words: types and ranges are read from the
source of the class (``declared_settings``). What cannot be told from it is left to the full check.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from privdd.cli.compose import (
    CONFIG_GROUPS,
    compose_config,
    config_dir,
    format_hydra_error,
    group_choices,
    user_config_folders,
)
from privdd.cli.declared_settings import check_declared_ranges, declared_type, with_defaults
from privdd.cli.secret import SECRET_KEY as SECRET
from privdd.cli.settings import iterate_settings, to_plain_settings
from privdd.cli.type_check import TypeCheck, check_setting_numbers, describe_type, fits_type, suggest_name
from privdd.core import group_settings
from privdd.core.validation import BadConfig, setting_error

FlatSettings = dict[str, Any]
GROUP_TARGETS = {  # groups without a _target_, what is called with their settings, and their rules
    "partition": ("privdd.data.partition.Partition", group_settings.check_partition),
    "engine": ("privdd.runtime.engine.Engine", group_settings.check_engine),
    "capture": ("privdd.federated.experiment.CaptureSettings", group_settings.check_capture),
    "trust": ("privdd.federated.secure_aggregation.Trust", group_settings.check_trust),
    "data": ("privdd.data.sources.load_dataset", group_settings.check_data),
}
TARGET_KEY = "_target_"
MODEL_TARGET = "privdd.models.ModelSpec"


def check_changed_settings(config: DictConfig, base: DictConfig) -> None:
    """Raises BadConfig or the class's own ValueError for the first value of ``config`` that cannot be used.

    base: the same choices of files with nothing else typed: what is as in there is not looked at.
    """
    try:
        now, before = to_plain_settings(config), to_plain_settings(base)
    except OmegaConfBaseException:  # a value that is missing, or points nowhere
        return
    known = dict(iterate_settings(before))
    changed = {
        key: value for key, value in iterate_settings(now) if key not in known or not _is_same_value(known[key], value)
    }
    changed.pop(SECRET, None)  # no message may hold it
    check = TypeCheck(config)
    for key, value in changed.items():
        _check_setting_type(check, now, key, value)
    if any(now.get(word) is not None for word in ("run", "resume", "scores")):
        return  # these make nothing of it
    for place in _changed_nodes(changed):
        with suppress(TypeError, AttributeError):  # the full check will meet it, and say what it means
            if place in GROUP_TARGETS:
                target, check_group = GROUP_TARGETS[place]
                check_group(with_defaults(target, _node_at(now, place)))
            else:
                _check_node_ranges(_node_at(now, place))


def _check_setting_type(check: TypeCheck, config: Mapping[str, Any], key: str, value: Any) -> None:
    check_setting_numbers(key, value, check.source_key_of(key))
    place, _, name = key.rpartition(".")
    node = _node_at(config, place)
    target = (
        GROUP_TARGETS[place][0] if place in GROUP_TARGETS else node.get(TARGET_KEY) if isinstance(node, dict) else None
    )
    kind = declared_type(target, name) if isinstance(target, str) else None
    if kind is not None and not fits_type(value, kind):
        raise setting_error(check.source_key_of(key), value, describe_type(kind))


def _check_node_ranges(node: Any) -> None:
    """Every ``_target_`` at or below a node, the inner ones first, as they are built."""
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _check_node_ranges(inner)
    target = str(node[TARGET_KEY]) if isinstance(node, dict) and TARGET_KEY in node else ""
    if target == MODEL_TARGET:
        group_settings.check_model(with_defaults(target, node))
    elif target:
        check_declared_ranges(target, node)


def _changed_nodes(changed: FlatSettings) -> list[str]:
    """The nodes that are built by themselves, of those in which something changed."""
    depths = {"algo": 1, "attack": 2, **dict.fromkeys(GROUP_TARGETS, 1)}
    found = []
    for key in changed:
        parts = key.split(".")
        depth = 3 if parts[:2] == ["privacy", "mechanisms"] else depths.get(parts[0], len(parts))
        if depth < len(parts):
            found.append(".".join(parts[:depth]))
    return list(dict.fromkeys(found))


def _is_same_value(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _node_at(config: Any, place: str) -> Any:
    for part in place.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    return config


HYDRA_OPTIONS = (
    "--hydra-help",
    "--info",
    "-i",
    "--cfg",
    "-c",
    "--shell-completion",
    "-sc",
    "--package",
    "-p",
    "--resolve",
)
COMMAND_OPTIONS = ("-m", "--multirun", "--config-dir", "-cd", "--help", "-h", "--version", "--dry-run", *HYDRA_OPTIONS)
OWN_DATA_HINT = "; for a file of yours write data=npz data.root=FILE, for pictures data=folder data.root=DIR."


def check_overrides(command: str, argv: Sequence[str]) -> DictConfig:
    """Compose what was typed (first value of each sweep) and refuse unknown keys with a suggestion."""
    folders = user_config_folders(argv)
    typed = [a for a in argv if "=" in a and not a.startswith(("-", "hydra"))]
    _check_argument_form(argv, folders)
    parser = OverridesParser.create()
    try:
        parsed = parser.parse_overrides(typed)
    except HydraException as error:
        raise BadConfig(
            f"{format_hydra_error(error)}: cannot be read; put the value into quotes, key=\"'value'\""
        ) from None
    group = [o for o in parsed if o.key_or_group.split("@")[0] in CONFIG_GROUPS and "." not in o.key_or_group]
    for override in group:
        _check_group_choice(override, [config_dir(), *folders])
    plain = [o for o in parsed if o not in group]
    base = compose_config(command, [_first_swept_value(o) for o in group], folders)
    for override in plain:
        _check_known_key(base, override.key_or_group)
    if not plain:
        return base
    config = compose_config(command, [_first_swept_value(o) for o in parsed], folders)
    check_changed_settings(config, base)
    return config


def _check_argument_form(argv: Sequence[str], folders: Sequence[str]) -> None:
    for at, item in enumerate(argv):
        if item.startswith(("+", "~")):
            raise BadConfig(
                f"{item}: adding or deleting keys is not supported; put new parts into yaml files (--config-dir)"
            )
        if item.startswith("-") and item.split("=")[0] not in COMMAND_OPTIONS:
            raise BadConfig(f"{item}: unknown option; {_suggest_override(item, argv[at + 1 : at + 2])}")
        if "=" not in item and not item.startswith("-") and item not in folders:
            raise BadConfig(f"{item}: an override has the form key=value")


def _suggest_override(option: str, following: Sequence[str]) -> str:
    """What to type instead of ``--preset smoke``."""
    name, _, value = option.lstrip("-").partition("=")
    value = value or next((word for word in following if "=" not in word and not word.startswith("-")), "VALUE")
    close = difflib.get_close_matches(
        option.split("=")[0], [o for o in COMMAND_OPTIONS if o.startswith("--")], 1, cutoff=0.75
    )
    return (
        f"did you mean {close[0]}?"
        if close and name not in CONFIG_GROUPS
        else f"settings have no dashes: write {name.replace('-', '_')}={value}"
    )


def _check_group_choice(override: Override, folders: Sequence[str]) -> None:
    """Every file that a group's override names is there, and may be chosen."""
    group = override.key_or_group.split("@")[0]
    known = group_choices(group, folders)
    for name in _chosen_files(override):
        if name.startswith("_"):
            raise BadConfig(
                f"{override.input_line}: files whose names start with _ hold what others share and cannot be chosen"
            )
        if name not in known and "/" not in name:
            close = difflib.get_close_matches(name.lower(), known, 1)
            meant = (
                f"; did you mean {close[0]}?" if close else OWN_DATA_HINT if group == "data" and "." in name else "."
            )
            raise BadConfig(f"{group}={name}: unknown {group}{meant} Allowed are {', '.join(known)}")


def _chosen_files(override: Override) -> Iterator[str]:
    """The files that a group's override chooses: each value of a sweep, each item of a list; null chooses none."""
    value = override.value()
    values = (
        [str(v).strip("[]").split(",") for v in override.sweep_string_iterator()]
        if override.is_sweep_override()
        else ([value] if isinstance(value, list) else [[value]])
    )
    for one in (item for several in values for item in several):
        if one is not None and str(one) not in ("null", ""):
            yield re.sub(r"\.yaml$", "", str(one).strip().strip("'\""))


def _first_swept_value(o: Override) -> str:
    if o.is_sweep_override():
        return f"{o.key_or_group}={next(iter(o.sweep_string_iterator()))}"
    return str(o.input_line)


STATED_HINT = (
    "a simulation states what its own accounting gives: choose that with privacy=dpsgd privacy.epsilon=8, and to fail "
    "where more is shown, write fail_on.epsilon_shown=8; what was made elsewhere (target.*=, run=RECORDING) takes stated.epsilon=8"
)


def _check_known_key(config: DictConfig, key: str) -> None:
    if key.split(".")[0] == "stated":
        raise BadConfig(f"{key}: {STATED_HINT}")
    node: Any = config
    for depth, part in enumerate(key.split(".")):
        names = [str(k) for k in node] if OmegaConf.is_dict(node) else []
        if part not in names:
            where = ".".join(key.split(".")[:depth])
            raise BadConfig(f"{key}: unknown key; {_suggest_key(config, part, names, where)}")
        node = OmegaConf.select(config, ".".join(key.split(".")[: depth + 1]), throw_on_missing=False)


def _suggest_key(config: DictConfig, part: str, names: Sequence[str], where: str) -> str:
    """The nearest key: of the same name below the same place, else alike there, else of the same name or alike anywhere."""
    keys = sorted(_iterate_keys(OmegaConf.to_container(config, resolve=False)), key=lambda k: (k.count("."), k))
    same = [key for key in keys if key.rsplit(".", 1)[-1] == part]
    below = [key for key in same if where and key.startswith(f"{where}.")]
    beside = suggest_name(part, names, where)
    if beside.startswith("did you mean") and not below:
        return beside
    alike = difflib.get_close_matches(part, [key.rsplit(".", 1)[-1] for key in keys], 1, cutoff=0.7)
    same = below or same or [key for key in keys if alike and key.rsplit(".", 1)[-1] == alike[0]]
    return f"did you mean {' or '.join(same[:3])}?" if same else beside


def _iterate_keys(node: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            yield f"{prefix}{name}"
            yield from _iterate_keys(value, f"{prefix}{name}.")
