"""A run, assembled and checked, and the digest of everything that decides what clients send."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from privdd.core.types import Records, Shard
from privdd.data.dataset import Dataset
from privdd.federated.capture import Capture
from privdd.federated.simulation import Plan
from privdd.privacy.ledger import Ledger
from privdd.runtime.engine import Engine
from privdd.runtime.renames import original

UNFINGERPRINTED = ("attack", "audit", "engine", "capture", "run", "resume", "scores", "name", "tracking", "paper")


@dataclass(frozen=True)
class Experiment:
    """A run, assembled and checked, before anything is computed."""

    config: DictConfig
    plan: Plan
    dataset: Dataset
    shards: Sequence[Shard]
    engine: Engine
    capture: Capture

    @property
    def test(self) -> Records:
        return self.dataset.test

    def ledger(self) -> Ledger:
        privacy = self.config.privacy
        return Ledger(str(privacy.relation), str(privacy.unit), float(privacy.delta))  # type: ignore[arg-type]


def plain(node: Any) -> Any:
    """A config node as resolved dicts, lists and numbers."""
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def fingerprint(config: DictConfig) -> str:
    """A digest of everything that decides what clients send (not of how it is attacked).

    Classes count by the oldest names known, so that a run of an earlier version keeps its digest.
    """
    content = {k: v for k, v in original(plain(config)).items() if k not in UNFINGERPRINTED}
    return hashlib.blake2b(json.dumps(content, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()
