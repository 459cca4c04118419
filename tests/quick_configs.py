"""Configs made once a session: composing one takes Hydra 0.13 s, and the yaml files do not change
between two tests.

A file is parsed once as long as its time and size stay the same, a text with ${...} once, and the
same choices of files are composed once; every caller has a copy of its own, made from bytes, as
``deepcopy`` takes four times as long. Processes that a test starts compose as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cache
from pathlib import Path
from pickle import dumps, loads
from types import SimpleNamespace
from typing import Any

import hydra.version
import omegaconf.base
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigSource
from omegaconf import grammar_parser
from omegaconf.errors import OmegaConfBaseException

from privdd.cli import compose as config


def remember_files(load: Callable[..., Any]) -> Callable[..., Any]:
    """A config source's ``load_config``, by the file's place, time and size."""
    parsed: dict[tuple[Any, ...], bytes] = {}

    def load_config(self: ConfigSource, config_path: str) -> Any:
        try:
            stat = Path(self.path, self._normalize_file_name(config_path)).stat()
        except OSError:
            return load(self, config_path=config_path)  # in its own words
        key = self.path, config_path, stat.st_mtime_ns, stat.st_size
        if key not in parsed:
            parsed[key] = dumps(load(self, config_path=config_path))
        return loads(parsed[key])

    return load_config


def remember_packages(load: Callable[..., Any]) -> Callable[..., Any]:
    """The same for the files of installed packages (Hydra's own), which do not change at all."""
    parsed: dict[tuple[str, str], bytes] = {}

    def load_config(self: ConfigSource, config_path: str) -> Any:
        key = self.path, config_path
        if key not in parsed:
            parsed[key] = dumps(load(self, config_path=config_path))
        return loads(parsed[key])

    return load_config


def remember_configs(compose: Callable[..., Any]) -> Callable[..., Any]:
    """``hydra.compose`` of the shipped files, by all of its arguments; of a user's folder nothing
    is remembered."""
    made: dict[tuple[Any, ...], bytes] = {}

    def composed(config_name: str, overrides: Sequence[str], return_hydra_config: bool) -> Any:
        if any(one.startswith("hydra.searchpath") for one in overrides):
            return compose(
                config_name=config_name,
                overrides=list(overrides),
                return_hydra_config=return_hydra_config,
            )
        key = config.config_dir(), config_name, tuple(overrides), return_hydra_config
        if key not in made:
            made[key] = dumps(composed_in_parts(config_name, list(overrides), return_hydra_config))
        return loads(made[key])

    def composed_in_parts(config_name: str, overrides: list[str], return_hydra_config: bool) -> Any:
        """Choices of files are composed; values are set in a copy of that, as Hydra does. What it
        would refuse, it refuses."""
        values = [
            one for one in overrides if one.split("=")[0].split("@")[0] not in config.CONFIG_GROUPS
        ]

        def whole():
            return compose(
                config_name=config_name,
                overrides=overrides,
                return_hydra_config=return_hydra_config,
            )

        if return_hydra_config or not values:
            return whole()
        try:
            parsed = OverridesParser.create().parse_overrides(values)
            if any(one.is_sweep_override() for one in parsed):
                return whole()
            chosen = composed(config_name, [one for one in overrides if one not in values], False)
            ConfigLoaderImpl._apply_overrides_to_config(parsed, chosen)
        except (HydraException, OmegaConfBaseException):
            return whole()
        return chosen

    return composed


def map_when_needed(create: Callable[..., Any]) -> Callable[..., Any]:
    """The map of choices in which an entry of a defaults list is looked up, if one has ${...}; no
    other entry reads it."""

    def create_map(overrides: Any, defaults_list: list[Any], self_added: bool) -> Any:
        if not any(one.is_interpolation() for one in defaults_list if not one.is_self()):
            return None
        return create(overrides, defaults_list, self_added)

    return create_map


def install() -> None:
    """For this process."""
    defaults_list._create_interpolation_map = map_when_needed(
        defaults_list._create_interpolation_map
    )
    defaults_list.copy = SimpleNamespace(copy=copy, deepcopy=lambda value: loads(dumps(value)))  # type: ignore[attr-defined]
    # asked four hundred times a config
    hydra.version._get_version = cache(hydra.version._get_version)
    Plugins.instance()  # which reads the module of the class below anew
    for scheme, remember in (("file", remember_files), ("pkg", remember_packages)):
        source = SourcesRegistry.instance().resolve(scheme)
        source.load_config = remember(source.load_config)
    omegaconf.base.parse = omegaconf._utils.parse = cache(grammar_parser.parse)  # type: ignore[attr-defined]
    config.compose = remember_configs(config.compose)
