"""A config as plain values: dicts, lists, texts and numbers. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from privdd.core.validation import setting_error

NOT_FINGERPRINTED = (
    "attack",
    "audit",
    "engine",
    "capture",
    "run",
    "resume",
    "scores",
    "name",
    "tracking",
    "paper",
    "resources",
    "policy",
    "fail_on",
)


def to_plain_settings(node: Any) -> Any:
    """A config node as resolved dicts, lists and numbers."""
    if OmegaConf.is_config(node):
        return OmegaConf.to_container(node, resolve=True)
    return node


def children(node: Any) -> Iterable[tuple[Any, Any]]:
    """(key or position, value) of a mapping or a list; nothing of any other value."""
    if isinstance(node, dict):
        return node.items()
    if isinstance(node, list):
        return enumerate(node)
    return ()


def join_key(parent: str, name: Any) -> str:
    """The dotted key of ``name`` below ``parent``; "" is the top."""
    return f"{parent}.{name}" if parent else str(name)


def iterate_settings(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of all that is no mapping, at or below ``key``."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from iterate_settings(value, join_key(key, name))
    else:
        yield key, node


def mapping_at(config: DictConfig, key: str) -> Mapping[str, Any]:
    """A mapping of the config as plain values. Raises BadConfig where something else stands
    there."""
    node = to_plain_settings(OmegaConf.select(config, key))
    if not isinstance(node, dict):
        raise setting_error(key, node, "a mapping of settings is needed")
    return {str(k): v for k, v in node.items()}
