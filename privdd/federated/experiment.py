"""``Experiment``: everything that a run needs, assembled and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from privdd.core.errors import BadConfig
from privdd.core.types import Records, Shard
from privdd.data.dataset import Dataset
from privdd.federated.capture import Capture
from privdd.federated.settings import AuditSettings, PrivacySettings, RunSettings
from privdd.federated.simulation import Plan
from privdd.privacy.ledger import Ledger
from privdd.runtime.engine import Engine


@dataclass(frozen=True)
class Experiment:
    """A run, assembled and checked, before anything is computed. auditing: None if the run only trains."""

    run: RunSettings
    privacy: PrivacySettings
    auditing: AuditSettings | None
    plan: Plan
    dataset: Dataset
    shards: Sequence[Shard]
    engine: Engine
    capture: Capture

    @property
    def test(self) -> Records:
        return self.dataset.test

    @property
    def audit(self) -> AuditSettings:
        """How the run is audited. Raises BadConfig where it only trains."""
        if self.auditing is None:
            raise BadConfig("audit: this config only trains; a config of privdd.audit is needed")
        return self.auditing

    def ledger(self) -> Ledger:
        return Ledger(self.privacy.relation, self.privacy.unit, self.privacy.delta)
