"""The user's own yaml files, looked at before Hydra reads them: Hydra's messages name neither file
nor line.

Looked at are the files that were chosen, and those that their lists of defaults name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from privdd.cli import compose
from privdd.core.validation import BadConfig
from privdd.runtime.own_yaml import compose_own_yaml
from privdd.runtime.yaml_files import TARGET

DEFAULTS = "defaults"
BUILT_GROUPS = ("algo", "model")  # one object each, of the class that the file names
# Hydra's own words, and what is known only when it composes
OTHER_FILES = re.compile(r"[$?@]|^_self_$|^null$")


def check_own_files(argv: Sequence[str]) -> None:
    """Raises BadConfig, FILE:LINE and one sentence, for a folder that is not there and a chosen
    file that cannot be read."""
    folders = compose.user_config_folders(argv)
    for folder in folders:
        if not Path(folder).exists():
            raise BadConfig(f"--config-dir {folder}: no such folder")
        if not Path(folder).is_dir():
            raise BadConfig(
                f"--config-dir {folder}: a folder is needed, with algo/, attack/, data/ "
                "and so on below it"
            )
    if not folders:
        return
    checked: set[Path] = set()
    for group, name in _chosen(argv, folders):
        _check_choice(group, name, folders, checked)


def _chosen(argv: Sequence[str], own: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(group, file's name) of every choice that was typed; all of the user's own attacks, as
    attack=all has them."""
    for item in argv:
        key, _, value = item.partition("=")
        group = key.partition("@")[0]
        if group in compose.CONFIG_GROUPS:
            names = [name.strip(" '\"") for name in re.split(r"[,\[\]]", value)]
            if "glob(" in value or "all" in names:
                every = compose.group_choices(group, own)
            else:
                every = []
            yield from ((group, name) for name in [*names, *every] if name)
    if not any(item.startswith("attack=") for item in argv):
        yield from (("attack", name) for name in compose.group_choices("attack", own))


def _check_choice(group: str, name: str, own: Sequence[str], seen: set[Path]) -> None:
    for folder in own:
        file = Path(folder) / group / f"{name.removesuffix('.yaml')}.yaml"
        if file in seen or not file.is_file():
            continue
        seen.add(file)
        if (Path(compose.config_dir()) / group / file.name).is_file():  # Hydra would take that one
            raise BadConfig(
                f"{file}:1: privdd's own {group}={file.stem} would run in its place; give the file "
                f"a name of its own, as in {group}=my_{file.stem}"
            )
        node = compose_own_yaml(file)
        entries = _values_by_key(node)
        if (
            group in BUILT_GROUPS
            and not {TARGET, DEFAULTS} & {*entries}
            and not name.startswith("_")
        ):
            start = "defaults: [NAME, _self_], NAME being the file that this one changes"
            raise BadConfig(
                f"{file}:1: has neither {TARGET} nor a default that has it; begin it with {start}"
            )
        if DEFAULTS in entries:
            for chosen_group, entry, line in _default_entries(group, file, entries[DEFAULTS]):
                _check_default(file, line, chosen_group, entry, own)
                _check_choice(chosen_group, entry, own, seen)


def _values_by_key(node: yaml.MappingNode | None) -> dict[str, yaml.Node]:
    if node is None:
        return {}
    return {str(key.value): value for key, value in node.value}


def _default_entries(group: str, file: Path, node: yaml.Node) -> Iterator[tuple[str, str, int]]:
    """(group, file's name, line) of every file that a list of defaults names. Raises BadConfig for
    what is no list."""
    if not isinstance(node, yaml.SequenceNode):
        raise BadConfig(
            f"{file}:{node.start_mark.line + 1}: defaults: a list is needed, as in [fedavg, _self_]"
        )
    for entry in node.value:
        if isinstance(entry, yaml.MappingNode):
            pairs = entry.value
        else:
            pairs = [(None, entry)]
        for key, value in pairs:
            if key is None:
                place = group
            else:
                place = _group_of(group, str(key.value))
            if isinstance(value, yaml.SequenceNode):
                names = value.value
            else:
                names = [value]
            for name in names:
                if isinstance(name, yaml.ScalarNode) and not OTHER_FILES.search(name.value):
                    yield place, name.value, name.start_mark.line + 1
                elif (
                    isinstance(name, yaml.ScalarNode)
                    and "@" in name.value
                    and "$" not in name.value
                ):
                    yield place, name.value.partition("@")[0], name.start_mark.line + 1


def _group_of(group: str, key: str) -> str:
    """The group that a key of a list of defaults names: "override /data" is data, "base" of algo is
    algo/base."""
    path = key.removeprefix("override ").removeprefix("optional ").strip().partition("@")[0]
    if path.startswith("/"):
        return path.removeprefix("/")
    return f"{group}/{path}"


def _check_default(file: Path, line: int, group: str, name: str, own: Sequence[str]) -> None:
    folders = [*own, compose.config_dir()]
    if not name.startswith("/"):
        path = Path(group) / name
    else:
        path = Path(name.removeprefix("/"))
    if any((Path(folder) / f"{path}.yaml").is_file() for folder in folders):
        return
    close = difflib.get_close_matches(name, compose.group_choices(group, folders), 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise BadConfig(f"{file}:{line}: defaults: no file {name} in {group}{hint}")
