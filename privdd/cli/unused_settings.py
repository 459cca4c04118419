"""Settings that would do nothing are refused: a sweep of one makes a flat curve that looks like a result.

Only what was typed is judged. A setting is read where the code reads it by name, or where another setting of the
composed config points to it (``${privacy.clip_norm}``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, OmegaConf

from privdd.core.group_settings import SETTINGS_BY_KIND, reads_files
from privdd.core.validation import BadConfig
from privdd.federated.settings import PrivacySettings

INTERPOLATION = re.compile(r"\$\{([\w.]+)\}")
MECHANISM_SETTINGS = ("noise_multiplier", "clip_norm")  # PrivacySettings only records them
NOISE_SETTINGS = ("noise_source", "paired_noise", "secret", "epsilon")  # without a mechanism there is none
SETTINGS_WITH_SCORES = ("scores", "scores_surface", "name", "seed", "tracking", "preset", "attack", "audit.confidence",
               "privacy.delta", "privacy.epsilon")  # fmt: skip


def check_settings_used(config: DictConfig, typed: Sequence[str]) -> None:
    """Raises BadConfig, one line, for the first typed ``key=value`` that nothing reads.

    config: as composed, its interpolations unresolved. A key that was set to null, or to false, asks for nothing.
    """
    keys = [item.split("=")[0].split("@")[0] for item in typed if "=" in item and not item.startswith(("-", "hydra"))]
    given = [key for key in keys if OmegaConf.select(config, key) not in (None, False)]
    links = _linked_keys(config)
    if config.get("scores") is not None:
        for key in given:
            if key not in SETTINGS_WITH_SCORES:
                raise _unused_error(
                    config, key, f"scores= trains nothing and reads only {', '.join(SETTINGS_WITH_SCORES)}"
                )
        return
    if "scores_surface" in given:
        raise _unused_error(config, "scores_surface", "it says what scores=FILE was computed from")
    for key in given:
        group = key.split(".")[0]
        if group == "privacy":
            _check_privacy_setting(config, key, links)
        elif group == "model" and not any(link.split(".")[0] == "model" for link in links):
            own = ", ".join(_model_keys(config.algo, "algo")) or "nothing"
            raise _unused_error(config, key, f"algo={_chosen_name(config, 'algo')} has its own, set by {own}")
    check_engine_settings_used(config, given)
    typed_root = "data.root" in given and isinstance(config.data.root, str)
    if typed_root and not reads_files(config.data.name, config.data.get("source")):
        raise _unused_error(config, "data.root", f"data={config.data.name} reads no file")
    if {"privacy.epsilon", "privacy.noise_multiplier"} <= set(given):
        both = " ".join(f"privacy.{key}={config.privacy[key]}" for key in ("epsilon", "noise_multiplier"))
        raise BadConfig(f"{both}: one of the two is needed, since epsilon chooses the noise multiplier")


def check_engine_settings_used(config: DictConfig, keys: Sequence[str]) -> None:
    """The same for the engine's settings alone, by their dotted keys."""
    keys = [key for key in keys if key.startswith("engine.")]
    if not keys:
        return
    read_by, kind = SETTINGS_BY_KIND, config.engine.get("kind")
    for key in keys:
        name = key.partition("engine.")[2]
        readers = [other for other, names in read_by.items() if name in names]
        asked = OmegaConf.select(config, key) is not None
        if asked and kind in read_by and readers and kind not in readers:
            raise _unused_error(
                config, key, f"engine={kind} does not read it; engine={' and engine='.join(readers)} do"
            )


def _check_privacy_setting(config: DictConfig, key: str, links: set[str]) -> None:
    privacy, name = config.privacy, key.partition(".")[2]
    if name == "name":
        raise BadConfig(f"{key}={privacy.name}: the name of the chosen file, a label; choose with privacy=NAME")
    if not name or name.startswith("mechanisms") or (name, privacy[name]) == ("noise_source", "seed"):
        return
    by_name = {f.name for f in fields(PrivacySettings)} - set(MECHANISM_SETTINGS) | {"secret"}
    nowhere = name in NOISE_SETTINGS and not privacy.get("mechanisms")
    if name in by_name and not nowhere and name != "epsilon":
        return
    wanted = "privacy.noise_multiplier" if name == "epsilon" else key
    if not nowhere and wanted in links:
        return
    if not privacy.get("mechanisms"):
        raise _unused_error(config, key, f"privacy={privacy.name} has no mechanism; choose one with privacy=NAME")
    read = sorted(link for link in links if link.startswith("privacy."))
    fixed = [
        f"privacy.mechanisms.{leaf}"
        for leaf in _fixed_settings(OmegaConf.to_container(privacy.mechanisms, resolve=False))
    ]
    rest = f"its mechanisms read {', '.join([*read, *fixed])}"
    if name == "epsilon":
        raise _unused_error(
            config, key, f"the noise of privacy={privacy.name} is not set by a noise multiplier; {rest}"
        )
    raise _unused_error(config, key, f"privacy={privacy.name} does not read it; {rest}")


def _unused_error(config: DictConfig, key: str, why: str) -> BadConfig:
    value = OmegaConf.select(config, key)
    shown = _chosen_name(config, key) if OmegaConf.is_dict(value) else str(value)[:100]
    return BadConfig(f"{key}={shown}: would do nothing: {why}")


def _chosen_name(config: DictConfig, group: str) -> str:
    """What a group's node calls itself."""
    node = config[group]
    return str(node.get("name") or str(node.get("_target_")).rsplit(".", 1)[-1].lower())


def _linked_keys(config: DictConfig) -> set[str]:
    """All keys that a setting of the config points to, from outside the mapping that holds them."""
    tree = OmegaConf.to_container(config, resolve=False)
    return {
        link for _, value in _iterate_leaves(tree) if isinstance(value, str) for link in INTERPOLATION.findall(value)
    }


def _fixed_settings(mechanisms: Any) -> list[str]:
    """Settings of mechanisms that are written there and point nowhere."""
    leaves = ((key, value) for key, value in _iterate_leaves(mechanisms) if not key.endswith("_target_"))
    return [key for key, value in leaves if not (isinstance(value, str) and INTERPOLATION.search(value))]


def _model_keys(node: Any, key: str) -> Iterator[str]:
    """Where below ``key`` a model is described."""
    if OmegaConf.is_dict(node):
        if str(node.get("_target_")).endswith((".ModelSpec", ".OwnModel")):
            yield key
        for name in node:
            yield from _model_keys(node.get(name), f"{key}.{name}")


def _iterate_leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict | list):
        for name, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _iterate_leaves(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, node
