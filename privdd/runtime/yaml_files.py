"""The one reader of YAML: of run folders, which may come from a stranger, and of a user's own
policies. Quick to import.

Aliases are refused at the first: ten levels of ten aliases each are 3 kB of text and 10^10 nodes. A
cycle is an alias too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from privdd.runtime.files import DamagedRun, read_bytes

TARGET = "_target_"  # the key by which a node of a config names its class
MAX_YAML_BYTES = 2**20
MAX_DEPTH = 50  # mappings and lists inside each other
START_TOKENS = (
    yaml.FlowSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.BlockMappingStartToken,
    yaml.BlockSequenceStartToken,
)
END_TOKENS = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)
TIMESTAMP = "tag:yaml.org,2002:timestamp"
FLOAT = "tag:yaml.org,2002:float"
EXPONENT_WITHOUT_POINT = re.compile(r"[-+]?\d+[eE][-+]?\d+")  # 1e-5, which YAML 1.1 takes for text


class SettingsLoader(yaml.SafeLoader):
    """Plain values only: 1e-5 is a number and a date is text, as on the command line; a key stands
    once in a mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Raises yaml.YAMLError for a key that stands there twice: a reader would see one, and a
        program the other."""
        keys = [key.value for key, _ in node.value]
        if len(set(keys)) < len(keys):
            raise yaml.constructor.ConstructorError(
                None, None, "a key stands there twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


SettingsLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
SettingsLoader.add_implicit_resolver(FLOAT, EXPONENT_WITHOUT_POINT, list("-+0123456789"))


def parse_yaml(text: str) -> Any:
    """Plain values. Raises ValueError, one line, for damaged text, aliases, tags, and more than
    ``MAX_DEPTH`` levels."""
    try:
        _check_tokens(text)
        return yaml.load(text, SettingsLoader)  # a safe loader: it builds plain values only
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())[:200] or type(error).__name__) from None


def read_yaml(path: Path) -> Any:
    """A plain file of at most 1 MiB. Raises FileNotFoundError, and DamagedRun, one line that names
    the file."""
    try:
        return parse_yaml(read_bytes(path, MAX_YAML_BYTES).decode())
    except (DamagedRun, FileNotFoundError):
        raise
    except (OSError, ValueError) as error:
        raise DamagedRun(
            f"{path}: not readable as YAML ({' '.join(str(error).split())[:120]})"
        ) from None


def read_shipped_yaml(path: Path) -> Any:
    """A file of this package itself, which may use aliases."""
    return yaml.load(path.read_text(encoding="utf-8"), SettingsLoader)


def _check_tokens(text: str) -> None:
    """Raises ValueError for aliases, tags and deep nesting, at the first: to read on could take
    minutes."""
    depth = 0
    for token in yaml.scan(text, yaml.SafeLoader):
        if isinstance(token, yaml.AliasToken | yaml.TagToken):
            raise ValueError("aliases and tags are not allowed")
        depth += isinstance(token, START_TOKENS) - isinstance(token, END_TOKENS)
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
