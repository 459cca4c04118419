"""From a composed or stored config to typed settings: the last place where a config is read by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from privdd.cli.own_code import own_code
from privdd.core.checks import refused
from privdd.core.errors import BadConfig
from privdd.federated.settings import AuditSettings, Budget, HardRecords, PrivacySettings, RunSettings
from privdd.runtime.renames import original

if TYPE_CHECKING:
    from privdd.federated.trust import Trust

UNFINGERPRINTED = (
    "attack", "audit", "engine", "capture", "run", "resume", "scores", "name", "tracking", "paper", "resources",
)  # fmt: skip
OF_THE_NOISE = ("secret", "paired_noise")  # neither changes what is run, and runs of earlier versions have neither


def plain(node: Any) -> Any:
    """A config node as resolved dicts, lists and numbers."""
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of all that is no mapping, at or below ``key``."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from leaves(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, node


def fingerprint(config: DictConfig) -> str:
    """A digest of all settings that affect what clients send (not of how it is attacked), and of the user's own code.

    Classes enter under their oldest known names, so that a run of an earlier version keeps its digest.
    """
    content = {k: v for k, v in original(plain(config)).items() if k not in UNFINGERPRINTED}
    if code := code_of(config):
        content["own_code"] = code
    if isinstance(privacy := content.get("privacy"), dict):
        content["privacy"] = {k: v for k, v in privacy.items() if k not in OF_THE_NOISE}
    if isinstance(trust := content.get("trust"), dict) and trust.get("name") == "local":
        del content["trust"]  # as in every run of earlier versions
    if isinstance(data := content.get("data"), dict) and not data.get("standardise"):
        content["data"] = {k: v for k, v in data.items() if k != "standardise"}  # likewise
    return hashlib.blake2b(json.dumps(content, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def code_of(config: DictConfig) -> dict[str, str]:
    """The user's own modules that affect what clients send, and a digest of each."""
    return own_code({k: v for k, v in plain(config).items() if k not in UNFINGERPRINTED})


def forced(config: DictConfig) -> bool:
    """``resources.force``; stored configs of earlier versions have none. Raises BadConfig where it is no truth value."""
    value = mapping_at(config, "resources").get("force", False) if "resources" in config else False
    if not isinstance(value, bool):
        raise refused("resources.force", value, "true or false is needed")
    return value


def algo_name(config: DictConfig) -> str:
    """The label of a run: ``name`` (by default the chosen algo's file name), else the method's class name."""
    return str(config.get("name") or str(config.algo["_target_"]).rsplit(".", 1)[-1].lower())


def run_settings(config: DictConfig) -> RunSettings:
    """Raises BadConfig, naming key, value and what is allowed."""
    names: dict[str, Any] = {key: mapping_at(config, key).get("name") for key in ("data", "preset")}
    shared: dict[str, Any] = {key: config.get(key) for key in ("seed", "device", "participation")}
    return RunSettings(algo=algo_name(config), fingerprint=fingerprint(config), **names, **shared)


def privacy_settings(config: DictConfig) -> PrivacySettings:
    """The keys that all privacy files share. Raises BadConfig, naming key, value and what is allowed."""
    privacy = mapping_at(config, "privacy")
    return PrivacySettings(**_required("privacy", privacy, PrivacySettings))


def trust_of(config: DictConfig) -> Trust:
    """What the server sees; local in the stored configs of earlier versions. Raises BadConfig, naming key and value."""
    from privdd.federated.trust import LOCAL, Trust  # imports torch

    if config.get("trust") is None:
        return LOCAL
    return Trust(**_required("trust", mapping_at(config, "trust"), Trust))


def audit_settings(config: DictConfig) -> AuditSettings | None:
    """None for a config that only trains. Raises BadConfig, naming key, value and what is allowed."""
    if "audit" not in config:
        return None
    audit = mapping_at(config, "audit")
    budget = mapping_at(config, "audit.guarantee")
    waive = {str(k): v for k, v in mapping_at(config, "audit.waive").items() if v is not None}
    tail = mapping_at(config, "audit.tail") if "tail" in audit else {}  # stored configs of earlier versions have none
    parts = {
        "guarantee": Budget(**_known("audit.guarantee", budget, Budget)),
        "tail": HardRecords(**_known("audit.tail", tail, HardRecords)),
    }
    known = _required("audit", {**audit, **parts}, AuditSettings)
    return AuditSettings(**{**known, "waive": waive})


def mapping_at(config: DictConfig, key: str) -> Mapping[str, Any]:
    """A mapping of the config as plain values. Raises BadConfig where something else stands there."""
    node = plain(OmegaConf.select(config, key))
    if not isinstance(node, dict):
        raise refused(key, node, "a mapping of settings is needed")
    return {str(k): v for k, v in node.items()}


def _required(key: str, found: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The fields of a settings class; one that has no default must be there."""
    for field in fields(kind):
        if field.default is MISSING and field.default_factory is MISSING and field.name not in found:
            raise BadConfig(f"{key}.{field.name}: a value is needed")
    return {f.name: found[f.name] for f in fields(kind) if f.name in found}


def _known(key: str, found: Mapping[str, Any], kind: type) -> dict[str, Any]:
    names = [f.name for f in fields(kind)]
    for name in found:
        if name not in names:
            raise BadConfig(f"{key}.{name}: unknown key; known there: {', '.join(names)}")
    return dict(found)
