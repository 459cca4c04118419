"""What was typed: unknown keys, files and options, values of another kind, and settings that would
do nothing are refused before anything slow is imported.

A value is of another kind if a text stands where the yaml file has a number, or the like. Types and
ranges that a class declares are checked with the class, before anything is trained. A setting does
something if the code reads it by name, or if another setting of the composed config points to it
(``${privacy.clip_norm}``); a sweep of one that does nothing makes a flat curve that looks like a
result.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attacks.command_line import CommandParser
from privdd.cli import compose
from privdd.cli.plain_config import children, iterate_settings, join_key, to_plain_settings
from privdd.cli.secret import SECRET_KEY as SECRET
from privdd.cli.suggestions import suggest_key, suggest_word
from privdd.cli.sweeps import first_values, is_sweep
from privdd.cli.type_check import TypeCheck, check_setting_numbers
from privdd.core.validation import BadConfig, is_number, setting_error
from privdd.data.own_data import reads_files
from privdd.federated.settings import SHARED_COUNTS, PrivacySettings
from privdd.runtime.engine_kinds import SETTINGS_BY_KIND
from privdd.runtime.run_files import TRUST_CODE
from privdd.runtime.yaml_files import TARGET

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
HYDRA_TOPICS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
FLAGS = (
    ("--multirun", "-m"),
    ("--resolve",),
    ("--hydra-help",),
    ("--shell-completion", "-sc"),
    ("--help", "-h"),
    ("--version",),
    ("--dry-run",),
)
COMMAND_OPTIONS = (
    "-m",
    "--multirun",
    "--config-dir",
    "-cd",
    "--help",
    "-h",
    "--version",
    "--dry-run",
    *HYDRA_OPTIONS,
)
OWN_DATA_HINT = (
    "; for a file of yours write data=npz data.root=FILE, for images data=folder data.root=DIR."
)
MOST_CHOICES_NAMED = 25  # of a group, in one line
DECIMAL_COMMA = re.compile(r"[\w.]+=-?\d+,\d+")
STATED_HINT = (
    "a simulation states the epsilon of its own accounting: set it by privacy=dpsgd "
    "privacy.epsilon=8, and to fail "
    "if more is shown, write fail_on.epsilon_shown=8; an external result "
    "(target.*=, run=RECORDING) takes stated.epsilon=8"
)
INTERPOLATION = re.compile(r"\$\{([\w.]+)\}")
MECHANISM_SETTINGS = ("noise_multiplier", "clip_norm")  # PrivacySettings only records them
# without a mechanism there is none
NOISE_SETTINGS = ("noise_source", "paired_noise", "secret", "epsilon", "budget")
SETTINGS_WITH_SCORES = (
    "scores",
    "scores_surface",
    "name",
    "seed",
    "tracking",
    "preset",
    "attack",
    "audit.confidence",
    "privacy.delta",
    "privacy.epsilon",
)


def check_value_kinds(config: DictConfig, base: DictConfig) -> None:
    """Refuse a typed value of another kind than the one in the yaml file that it replaces.

    What a class declares, and the range that it checks, come with ``check_config_types``: for
    those its module has to be imported. A number may stand for a number and a truth value for a
    truth value; null, and a file's text or null, say nothing about what else is allowed.

    Args:
        config: The composed config.
        base: The same choices of files with nothing else typed.

    Raises:
        BadConfig: One line with key, value and what is needed.
    """
    try:
        typed = to_plain_settings(config)
        shipped = dict(iterate_settings(to_plain_settings(base)))
    except OmegaConfBaseException:  # a value that is missing, or points nowhere
        return
    types = TypeCheck(config)
    for key, value in iterate_settings(typed):
        default = shipped.get(key)
        is_unchanged = type(value) is type(default) and value == default
        if is_unchanged or key == SECRET:  # no message may hold the secret
            continue
        typed_key = types.source_key_of(key)
        check_setting_numbers(key, value, typed_key)
        needed = _needed_kind(default, value)
        if needed and not key.endswith(TARGET):
            raise setting_error(typed_key, value, needed)


def _needed_kind(default: Any, value: Any) -> str:
    """The kind of value that a shipped one calls for, where ``value`` is of another; else ""."""
    if value is None:
        return ""
    if isinstance(default, bool):
        if isinstance(value, bool):
            return ""
        return "true or false is needed"
    if is_number(default):
        return "" if is_number(value) else "a number is needed"
    return ""


def check_hydra_options(argv: Sequence[str]) -> None:
    """Ends with status 1 and one line for an option of Hydra's without its value, or with one that
    it does not take: Hydra's own parser would end with 2, and take abbreviations."""
    parser = CommandParser(prog="privdd", add_help=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    parser.add_argument("--package", "-p")
    parser.add_argument("--info", "-i", nargs="?", choices=HYDRA_TOPICS)
    parser.add_argument("--config-dir", "-cd")
    for flag in FLAGS:
        parser.add_argument(*flag, action="store_true")
    parser.parse_args(compose.put_overrides_first(argv))


def check_overrides(command: str, argv: Sequence[str]) -> DictConfig:
    """Compose what was typed (first value of each sweep) and refuse unknown keys with a
    suggestion."""
    folders = compose.user_config_folders(argv)
    typed = [a for a in argv if "=" in a and not a.startswith(("-", "hydra"))]
    _check_argument_form(argv, folders)
    try:
        parsed = OverridesParser.create().parse_overrides(typed)
    except HydraException as error:
        hint = "cannot be read; put the value into quotes, key=\"'value'\""
        raise BadConfig(f"{compose.format_hydra_error(error)}: {hint}") from None
    group = [
        o
        for o in parsed
        if o.key_or_group.split("@")[0] in compose.CONFIG_GROUPS and "." not in o.key_or_group
    ]
    for override in group:
        _check_group_choice(override, [compose.config_dir(), *folders])
    plain = [o for o in parsed if o not in group]
    base = compose.compose_config(command, first_values(group), folders)
    for override in plain:
        _check_known_key(base, override.key_or_group)
    if not is_sweep(argv):
        _check_single_values(base, parsed)
    if not plain:
        return base
    config = compose.compose_config(command, first_values(parsed), folders)
    check_value_kinds(config, base)
    return config


def _check_argument_form(argv: Sequence[str], folders: Sequence[str]) -> None:
    for position, item in enumerate(argv):
        if item.startswith(("+", "~")):
            hint = "put new parts into yaml files (--config-dir)"
            raise BadConfig(f"{item}: adding or deleting keys is not supported; {hint}")
        if item.startswith("-") and item.split("=")[0] not in COMMAND_OPTIONS:
            hint = _suggest_override(item, argv[position + 1 : position + 2])
            raise BadConfig(f"{item}: unknown option; {hint}")
        if "=" not in item and not item.startswith("-") and item not in folders:
            choices = {
                group: compose.group_choices(group, [compose.config_dir(), *folders])
                for group in compose.CONFIG_GROUPS
            }
            hint = suggest_word(item, choices)
            raise BadConfig(
                f"{item}: an override has the form key=value{'; ' if hint else ''}{hint}"
            )


def check_spaces(argv: Sequence[str]) -> None:
    """Refuse, as they were typed, values that spaces cut to pieces."""
    for position, item in enumerate(argv):
        before = argv[position - 1] if position else ""
        after = argv[position + 1] if position + 1 < len(argv) else ""
        if "=" not in item and before.count("[") > before.count("]") and not item.startswith("-"):
            joined = "".join(_until_closed(argv[position - 1 :]))
            raise BadConfig(
                f"{before} {item}: a space ends an argument; write {joined} without spaces"
            )
        if not item.startswith(("-", "=")) and "=" not in item and after.startswith("="):
            value = after.removeprefix("=") or (
                argv[position + 2] if position + 2 < len(argv) else "VALUE"
            )
            raise BadConfig(
                f"{item} {after}: a space ends an argument; write {item}={value} without spaces"
            )
        if item.endswith("=") and after and not after.startswith("-") and "=" not in after:
            raise BadConfig(
                f"{item} {after}: a space ends an argument; write {item}{after} without spaces"
            )
        if before.startswith("attack=") and "=" not in item and item in _attacks_beside(argv):
            listed = f"attack=[{before.removeprefix('attack=').strip('[]')},{item}]"
            raise BadConfig(
                f"{before} {item}: several attacks are a list; write {listed} without spaces"
            )


def _until_closed(items: Sequence[str]) -> Iterator[str]:
    """The pieces of one list, to the one that closes it."""
    depth = 0
    for item in items:
        yield item
        depth += item.count("[") - item.count("]")
        if depth <= 0:
            return


def _attacks_beside(argv: Sequence[str]) -> list[str]:
    return compose.group_choices(
        "attack", [compose.config_dir(), *compose.user_config_folders(argv)]
    )


def _check_single_values(base: DictConfig, parsed: Sequence[Override]) -> None:
    """Refuse several values of a key. base: the config as it is without them."""
    for override in (one for one in parsed if one.is_sweep_override()):
        line = override.input_line or override.key_or_group
        hint = "several values are a sweep: add -m, or write a list in brackets"
        default = OmegaConf.select(base, override.key_or_group)
        if DECIMAL_COMMA.fullmatch(line) and not isinstance(default, int):
            hint = (
                f"a decimal number has a point, {line.replace(',', '.')}; several values are "
                "a sweep: add -m"
            )
        raise BadConfig(f"{line}: {hint}")


def _suggest_override(option: str, following: Sequence[str]) -> str:
    """What to type instead of ``--preset smoke``."""
    name, _, value = option.lstrip("-").partition("=")
    value = value or next(
        (word for word in following if "=" not in word and not word.startswith("-")), "VALUE"
    )
    options = [o for o in COMMAND_OPTIONS if o.startswith("--")]
    close = difflib.get_close_matches(option.split("=")[0], options, 1, cutoff=0.75)
    if close and name not in compose.CONFIG_GROUPS:
        return f"did you mean {close[0]}?"
    return f"settings have no dashes: write {name.replace('-', '_')}={value}"


def _check_group_choice(override: Override, folders: Sequence[str]) -> None:
    """Every file that a group's override names is there, and may be chosen."""
    group = override.key_or_group.split("@")[0]
    choices = compose.group_choices(group, folders)
    for name in _chosen_files(override):
        if name.startswith("_"):
            why = "files whose names start with _ hold what others share and cannot be chosen"
            raise BadConfig(f"{override.input_line}: {why}")
        if name not in choices and "/" not in name:
            close = difflib.get_close_matches(name.lower(), choices, 1)
            if group == "data" and "." in name:
                meant = OWN_DATA_HINT
            else:
                meant = "."
            meant = f"; did you mean {close[0]}?" if close else meant
            if group == "trust" and not close:
                meant = f"; packages of your own are {TRUST_CODE}={name}."
            allowed = ", ".join(choices[:MOST_CHOICES_NAMED])
            if len(choices) > MOST_CHOICES_NAMED:
                others = len(choices) - MOST_CHOICES_NAMED
                allowed = f"{allowed} and {others} more: python -m privdd.list"
            raise BadConfig(f"{group}={name}: unknown {group}{meant} Allowed are {allowed}")


def _chosen_files(override: Override) -> Iterator[str]:
    """The files that a group's override chooses: each value of a sweep, each item of a list; null
    chooses none."""
    for name in _chosen_names(override):
        if name is not None and str(name) not in ("null", ""):
            yield re.sub(r"\.yaml$", "", str(name).strip().strip("'\""))


def _chosen_names(override: Override) -> Iterator[Any]:
    if override.is_sweep_override():
        for point in override.sweep_string_iterator():
            yield from str(point).strip("[]").split(",")
        return
    value = override.value()
    if isinstance(value, list):
        yield from value
    else:
        yield value


def _check_known_key(config: DictConfig, key: str) -> None:
    if key.split(".")[0] == "stated":
        raise BadConfig(f"{key}: {STATED_HINT}")
    node: Any = config
    for depth, part in enumerate(key.split(".")):
        if OmegaConf.is_dict(node):
            names = [str(k) for k in node]
        else:
            names = []
        if part not in names:
            raise BadConfig(f"{key}: unknown key; {suggest_key(config, key, depth)}")
        node = OmegaConf.select(
            config, ".".join(key.split(".")[: depth + 1]), throw_on_missing=False
        )


def check_settings_used(config: DictConfig, typed: Sequence[str]) -> None:
    """Raises BadConfig, one line, for the first typed ``key=value`` that nothing reads.

    config: as composed, its interpolations unresolved. A key that was set to null, or to false,
        asks for nothing."""
    items = [item for item in typed if "=" in item and not item.startswith(("-", "hydra"))]
    values = {item.partition("=")[0].partition("@")[0]: item.partition("=")[2] for item in items}
    keys = [*values]
    typed_keys = [key for key in keys if OmegaConf.select(config, key) not in (None, False)]
    links = _linked_keys(config)
    if config.get("scores") is not None:
        if unread := next((key for key in typed_keys if key not in SETTINGS_WITH_SCORES), None):
            why = f"scores= trains nothing and reads only {', '.join(SETTINGS_WITH_SCORES)}"
            raise BadConfig(f"{unread}={values[unread][:100]}: would do nothing: {why}")
        return
    if "scores_surface" in typed_keys:
        raise _unused_error(config, "scores_surface", "it says what scores=FILE was computed from")
    for key in typed_keys:
        group = key.split(".")[0]
        if group == "privacy":
            _check_privacy_setting(config, key, links)
        elif group == "model" and not any(link.split(".")[0] == "model" for link in links):
            own_models = ", ".join(_model_keys(config.algo, "algo")) or "nothing"
            raise _unused_error(
                config, key, f"algo={_chosen_name(config, 'algo')} has its own, set by {own_models}"
            )
    check_engine_settings_used(config, typed_keys)
    typed_root = "data.root" in typed_keys and isinstance(config.data.root, str)
    if typed_root and not reads_files(config.data.name, config.data.get("source")):
        raise _unused_error(config, "data.root", f"data={config.data.name} reads no file")
    shared = [f"audit.{key}" for key in SHARED_COUNTS]
    if {"audit.replays", *shared} <= set(typed_keys):
        raise _unused_error(config, "audit.replays", f"{' and '.join(shared)} are both set")
    if {"privacy.epsilon", "privacy.noise_multiplier"} <= set(typed_keys):
        pair = " ".join(
            f"privacy.{key}={config.privacy[key]}" for key in ("epsilon", "noise_multiplier")
        )
        raise BadConfig(
            f"{pair}: one of the two is needed, since epsilon chooses the noise multiplier"
        )


def check_engine_settings_used(config: DictConfig, keys: Sequence[str]) -> None:
    """The same for the engine's settings alone, by their dotted keys."""
    for key in keys:
        if key.startswith("engine.") and OmegaConf.select(config, key) is not None:
            kind = config.engine.get("kind")
            name = key.removeprefix("engine.")
            readers = [engine for engine, names in SETTINGS_BY_KIND.items() if name in names]
            if kind in SETTINGS_BY_KIND and readers and kind not in readers:
                why = f"engine={kind} does not read it; engine={' and engine='.join(readers)} do"
                raise _unused_error(config, key, why)


def _check_privacy_setting(config: DictConfig, key: str, links: set[str]) -> None:
    privacy = config.privacy
    name = key.partition(".")[2]
    if name == "name":
        raise BadConfig(
            f"{key}={privacy.name}: the name of the chosen file, a label; choose with privacy=NAME"
        )
    if (
        not name
        or name.startswith("mechanisms")
        or (name, privacy[name]) == ("noise_source", "seed")
    ):
        return
    by_name = {f.name for f in fields(PrivacySettings)} - set(MECHANISM_SETTINGS) | {"secret"}
    nowhere = name in NOISE_SETTINGS and not privacy.get("mechanisms")
    if name in by_name and not nowhere and name != "epsilon":
        return
    if name == "epsilon":
        wanted = "privacy.noise_multiplier"
    else:
        wanted = key
    if not nowhere and wanted in links:
        return
    if not privacy.get("mechanisms"):
        raise _unused_error(
            config, key, f"privacy={privacy.name} has no mechanism; choose one with privacy=NAME"
        )
    read = sorted(link for link in links if link.startswith("privacy."))
    # settings of mechanisms that are written there and point nowhere
    leaves = _iterate_leaves(
        OmegaConf.to_container(privacy.mechanisms, resolve=False), "privacy.mechanisms"
    )
    settings = ((leaf, value) for leaf, value in leaves if not leaf.endswith(TARGET))
    fixed = [
        leaf
        for leaf, value in settings
        if not (isinstance(value, str) and INTERPOLATION.search(value))
    ]
    why = f"privacy={privacy.name} does not read it"
    if name == "epsilon":
        why = f"the noise of privacy={privacy.name} is not set by a noise multiplier"
    raise _unused_error(config, key, f"{why}; its mechanisms read {', '.join([*read, *fixed])}")


def _unused_error(config: DictConfig, key: str, why: str) -> BadConfig:
    value = OmegaConf.select(config, key)
    if OmegaConf.is_dict(value):
        text = _chosen_name(config, key)
    else:
        text = str(value)[:100]
    return BadConfig(f"{key}={text}: would do nothing: {why}")


def _chosen_name(config: DictConfig, group: str) -> str:
    """What a group's node calls itself."""
    node = config[group]
    return str(node.get("name") or str(node.get(TARGET)).rsplit(".", 1)[-1].lower())


def _linked_keys(config: DictConfig) -> set[str]:
    """All keys that a setting of the config points to, from outside the mapping that holds them."""
    values = (value for _, value in _iterate_leaves(OmegaConf.to_container(config, resolve=False)))
    return {
        link for value in values if isinstance(value, str) for link in INTERPOLATION.findall(value)
    }


def _model_keys(node: Any, key: str) -> Iterator[str]:
    """Where below ``key`` a model is described."""
    if OmegaConf.is_dict(node):
        if str(node.get(TARGET)).endswith((".ModelSpec", ".OwnModel")):
            yield key
        for name in node:
            yield from _model_keys(node.get(name), f"{key}.{name}")


def _iterate_leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(node, dict | list):
        yield key, node
    for name, value in children(node):
        yield from _iterate_leaves(value, join_key(key, name))
