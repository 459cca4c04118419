"""The small audits, and the trainings, that the sentences are tried on; finished ones of the same settings are used again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from privdd.cli.main import config_of
from privdd.cli.paper_rows import audit_row, config_mark
from privdd.cli.read_settings import plain
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


def audit_folder(name: str) -> str:
    """Another one where any setting of the audit has another value now, so that no finding of earlier settings is used."""
    config = config_of("audit", *AUDITS[name], *SMALL)
    return f"{name}-{config_mark(config, [plain(config[part]) for part in ('audit', 'attack', 'capture')])}"


@dataclass(frozen=True)
class AuditRuns:
    """Runs what is asked for, the first time that it is."""

    wish: Wish

    @cached_property
    def _seen(self) -> dict[str, Any]:
        return {}

    def findings(self, name: str) -> dict[str, Any]:
        if name not in self._seen:
            path = self.wish.out / "privacy" / audit_folder(name)
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
