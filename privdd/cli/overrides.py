"""What was typed: unknown keys, groups' files and options are refused, each with a suggestion. Quick to import."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from privdd.cli.config import GROUPS, choices, composed, config_dir, one_line, own_folders
from privdd.cli.early_check import check_changed
from privdd.cli.type_check import hint_at
from privdd.core.errors import BadConfig

OF_HYDRA = ("--hydra-help", "--info", "-i", "--cfg", "-c", "--shell-completion", "-sc", "--package", "-p", "--resolve")
OPTIONS = ("-m", "--multirun", "--config-dir", "-cd", "--help", "-h", "--version", "--dry-run", *OF_HYDRA)
OWN_DATA = "; for a file of yours write data=npz data.root=FILE, for pictures data=folder data.root=DIR."


def check_overrides(command: str, argv: Sequence[str]) -> DictConfig:
    """Compose what was typed (first value of each sweep) and refuse unknown keys with a suggestion."""
    folders = own_folders(argv)
    typed = [a for a in argv if "=" in a and not a.startswith(("-", "hydra"))]
    _check_form(argv, folders)
    parser = OverridesParser.create()
    try:
        parsed = parser.parse_overrides(typed)
    except HydraException as error:
        raise BadConfig(f"{one_line(error)}: cannot be read; put the value into quotes, key=\"'value'\"") from None
    group = [o for o in parsed if o.key_or_group.split("@")[0] in GROUPS and "." not in o.key_or_group]
    for override in group:
        _check_choice(override, [config_dir(), *folders])
    plain = [o for o in parsed if o not in group]
    base = composed(command, [_first_value(o) for o in group], folders)
    for override in plain:
        _known(base, override.key_or_group)
    if not plain:
        return base
    config = composed(command, [_first_value(o) for o in parsed], folders)
    check_changed(config, base)
    return config


def _check_form(argv: Sequence[str], folders: Sequence[str]) -> None:
    for at, item in enumerate(argv):
        if item.startswith(("+", "~")):
            raise BadConfig(
                f"{item}: adding or deleting keys is not supported; put new parts into yaml files (--config-dir)"
            )
        if item.startswith("-") and item.split("=")[0] not in OPTIONS:
            raise BadConfig(f"{item}: unknown option; {_as_override(item, argv[at + 1 : at + 2])}")
        if "=" not in item and not item.startswith("-") and item not in folders:
            raise BadConfig(f"{item}: an override has the form key=value")


def _as_override(option: str, following: Sequence[str]) -> str:
    """What to type instead of ``--preset smoke``."""
    name, _, value = option.lstrip("-").partition("=")
    value = value or next((word for word in following if "=" not in word and not word.startswith("-")), "VALUE")
    close = difflib.get_close_matches(option.split("=")[0], [o for o in OPTIONS if o.startswith("--")], 1, cutoff=0.75)
    return (
        f"did you mean {close[0]}?"
        if close and name not in GROUPS
        else f"settings have no dashes: write {name.replace('-', '_')}={value}"
    )


def _check_choice(override: Override, folders: Sequence[str]) -> None:
    """Every file that a group's override names is there, and may be chosen."""
    group = override.key_or_group.split("@")[0]
    known = choices(group, folders)
    for name in _named(override):
        if name.startswith("_"):
            raise BadConfig(
                f"{override.input_line}: files whose names start with _ hold what others share and cannot be chosen"
            )
        if name not in known and "/" not in name:
            close = difflib.get_close_matches(name.lower(), known, 1)
            meant = f"; did you mean {close[0]}?" if close else OWN_DATA if group == "data" and "." in name else "."
            raise BadConfig(f"{group}={name}: unknown {group}{meant} Allowed are {', '.join(known)}")


def _named(override: Override) -> Iterator[str]:
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


def _first_value(o: Override) -> str:
    if o.is_sweep_override():
        return f"{o.key_or_group}={next(iter(o.sweep_string_iterator()))}"
    return str(o.input_line)


def _known(config: DictConfig, key: str) -> None:
    node: Any = config
    for depth, part in enumerate(key.split(".")):
        names = [str(k) for k in node] if OmegaConf.is_dict(node) else []
        if part not in names:
            where = ".".join(key.split(".")[:depth])
            raise BadConfig(f"{key}: unknown key; {_hint(config, part, names, where)}")
        node = OmegaConf.select(config, ".".join(key.split(".")[: depth + 1]), throw_on_missing=False)


def _hint(config: DictConfig, part: str, names: Sequence[str], where: str) -> str:
    """The nearest key: of the same name below the same place, else alike there, else of the same name or alike anywhere."""
    keys = sorted(_keys(OmegaConf.to_container(config, resolve=False)), key=lambda k: (k.count("."), k))
    same = [key for key in keys if key.rsplit(".", 1)[-1] == part]
    below = [key for key in same if where and key.startswith(f"{where}.")]
    beside = hint_at(part, names, where)
    if beside.startswith("did you mean") and not below:
        return beside
    alike = difflib.get_close_matches(part, [key.rsplit(".", 1)[-1] for key in keys], 1, cutoff=0.7)
    same = below or same or [key for key in keys if alike and key.rsplit(".", 1)[-1] == alike[0]]
    return f"did you mean {' or '.join(same[:3])}?" if same else beside


def _keys(node: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            yield f"{prefix}{name}"
            yield from _keys(value, f"{prefix}{name}.")
