"""The small audits, and the trainings, that the sentences are tried on; finished ones are used again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from privdd.cli.paper_rows import audit_row
from privdd.reproduce.entries import find
from privdd.reproduce.reproduction import reproduced
from privdd.reproduce.typed import Wish
from privdd.runtime.files import read_json

SMALL = ("data=digits", "preset=smoke", "audit.worlds=16")
AUDITS = {
    "fedrd": ("algo=fedrd", "attack=[lira,rmia,loss_threshold,feature_inversion]"),
    "fedfed": ("algo=fedfed", "attack=[feature_inversion]"),
    "fedlgd": ("algo=fedlgd", "attack=[lira,rmia,loss_threshold]"),
    "virtual_data": ("algo=virtual_data", "attack=[lira,rmia,loss_threshold]"),
    "fedavg": ("algo=fedavg", "attack=[lira,rmia,loss_threshold]"),
}


@dataclass(frozen=True)
class AuditRuns:
    """Runs what is asked for, the first time that it is."""

    wish: Wish

    @cached_property
    def _seen(self) -> dict[str, Any]:
        return {}

    def findings(self, name: str) -> dict[str, Any]:
        path = self.wish.out / "privacy" / name
        if name not in self._seen:
            if not (path / "findings.json").is_file():
                audit_row((*AUDITS[name], *SMALL), path)
            self._seen[name] = read_json(path / "findings.json")
        found: dict[str, Any] = self._seen[name]
        return found

    def results(self, entry: str) -> dict[str, Any]:
        if entry not in self._seen:
            self._seen[entry] = reproduced(find(entry), replace(self.wish, name=entry, scale="small"))[0].as_json()
        found: dict[str, Any] = self._seen[entry]
        return found
