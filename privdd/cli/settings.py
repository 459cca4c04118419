"""From a composed or stored config to typed settings: the last place where a config is read by
name. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from privdd.auditing.replay_budget import split_replays
from privdd.cli.plain_config import NOT_FINGERPRINTED, mapping_at, to_plain_settings
from privdd.cli.user_code import user_code_of_config
from privdd.core.validation import BadConfig, setting_error
from privdd.federated.settings import (
    SHARED_COUNTS,
    AuditSettings,
    GuaranteeBudget,
    HardExampleSettings,
    PrivacySettings,
    RunSettings,
    check_replays,
)
from privdd.runtime.yaml_files import TARGET

if TYPE_CHECKING:
    from privdd.federated.aggregation import Trust

# none of them changes what is run
NOISE_SETTINGS = ("secret", "paired_noise", "budget")


def settings_fingerprint(config: DictConfig) -> str:
    """A digest of all settings that affect what clients send (not of how it is attacked), and of
    the user's own code.

    Seeded noise is drawn from a stream that this digest names."""
    settings = to_plain_settings(config)
    content = {key: value for key, value in settings.items() if key not in NOT_FINGERPRINTED}
    if code := user_code_of_config(config):
        content["own_code"] = code
    if isinstance(privacy := content.get("privacy"), dict):
        content["privacy"] = {k: v for k, v in privacy.items() if k not in NOISE_SETTINGS}
    return hashlib.blake2b(
        json.dumps(content, sort_keys=True, default=str).encode(), digest_size=8
    ).hexdigest()


def is_forced(config: DictConfig) -> bool:
    """``resources.force``. Raises BadConfig where it is no truth value."""
    value = mapping_at(config, "resources").get("force", False)
    if not isinstance(value, bool):
        raise setting_error("resources.force", value, "true or false is needed")
    return value


def algo_name(config: DictConfig) -> str:
    """The label of a run: ``name`` (by default the chosen algo's file name), else the method's
    class name."""
    return str(config.get("name") or str(config.algo[TARGET]).rsplit(".", 1)[-1].lower())


@dataclass(frozen=True)
class CommandSettings:
    """What a config says beside its methods, mechanisms and attacks.

    Attributes:
        run: What names a run, and what all of its parts share.
        privacy: What all mechanisms share.
        audit: None for a config that only trains.
        is_forced: Whether a run starts that seems too large for the machine.
    """

    run: RunSettings
    privacy: PrivacySettings
    audit: AuditSettings | None
    is_forced: bool


def command_settings(config: DictConfig) -> CommandSettings:
    """The typed settings of a config.

    Raises:
        BadConfig: One line with key, value and what is allowed.
    """
    return CommandSettings(
        run_settings(config), privacy_settings(config), audit_settings(config), is_forced(config)
    )


def run_settings(config: DictConfig) -> RunSettings:
    """Raises BadConfig, naming key, value and what is allowed."""
    names: dict[str, Any] = {key: mapping_at(config, key).get("name") for key in ("data", "preset")}
    shared: dict[str, Any] = {key: config.get(key) for key in ("seed", "device", "participation")}
    return RunSettings(
        algo=algo_name(config), fingerprint=settings_fingerprint(config), **names, **shared
    )


def privacy_settings(config: DictConfig) -> PrivacySettings:
    """The keys that all privacy files share. Raises BadConfig, naming key, value and what is
    allowed."""
    privacy = mapping_at(config, "privacy")
    return PrivacySettings(**_require_fields("privacy", privacy, PrivacySettings))


def trust_settings(config: DictConfig) -> Trust:
    """What the server sees. Raises BadConfig, naming key and value."""
    from privdd.federated.aggregation import Trust  # imports torch

    return Trust(**_require_fields("trust", mapping_at(config, "trust"), Trust))


def audit_settings(config: DictConfig) -> AuditSettings | None:
    """None for a config that only trains. Raises BadConfig, naming key, value and what is
    allowed."""
    if "audit" not in config:
        return None
    audit = dict(mapping_at(config, "audit"))
    audit["waive"] = {
        str(k): v for k, v in mapping_at(config, "audit.waive").items() if v is not None
    }
    parts: dict[str, type] = {"guarantee": GuaranteeBudget, "tail": HardExampleSettings}
    for name, kind in parts.items():
        values = mapping_at(config, f"audit.{name}")
        names = [f.name for f in fields(kind)]
        if unknown := next((key for key in values if key not in names), None):
            raise BadConfig(f"audit.{name}.{unknown}: unknown key; known there: {', '.join(names)}")
        audit[name] = kind(**values)
    is_left_to_us = all(audit.get(key) is None for key in SHARED_COUNTS)
    audit = split_replays_of(audit)
    if not is_left_to_us:
        audit["replays"] = None
    return AuditSettings(**_require_fields("audit", audit, AuditSettings))


def split_replays_of(audit: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an audit with a number for each of ``SHARED_COUNTS`` that was left to us, as for
    a run of few rounds; ``spread_replays`` shares anew if both were. If one was, the budget is none
    any more. Raises BadConfig."""
    left_to_us = [key for key in SHARED_COUNTS if audit.get(key) is None]
    if not left_to_us:
        return {**audit}
    if audit.get("replays") is None:
        raise BadConfig(f"audit.{left_to_us[0]}: a value is needed, or audit.replays for both")
    replays = check_replays(audit["replays"])
    # of one round there are as many shadow models as there may be, whatever the records
    split = split_replays(replays, 1, 1)
    numbers = dict(zip(SHARED_COUNTS, (split.shadow_models, split.rounds)))
    return {
        **audit,
        **{key: numbers[key] for key in left_to_us},
        "replays": replays if len(left_to_us) == len(SHARED_COUNTS) else None,
    }


def _require_fields(key: str, found: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The fields of a settings class; one that has no default must be there."""
    for field in fields(kind):
        if (
            field.default is MISSING
            and field.default_factory is MISSING
            and field.name not in found
        ):
            raise BadConfig(f"{key}.{field.name}: a value is needed")
    return {f.name: found[f.name] for f in fields(kind) if f.name in found}
